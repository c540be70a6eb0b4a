"""What is chosen for a run, what its file says of it and which run another completes."""

from __future__ import annotations

import os
import platform
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opbench import __version__
from opbench.catalog.case import Case
from opbench.errors import UsageError
from opbench.results.files import FILE, FORMAT, Run, content, read_run, run_file
from opbench.results.result import Launched, Result
from opbench.runs.suite import Suite


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose for a run; travels whole."""

    backend: str = "cpu"
    out: Path = Path("reports/run")
    resume: bool = False
    measure: bool = True
    seed: int = 20260
    roots: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()
    keep: bool = True
    """Whether `out` outlives the call, so that it can be resumed."""
    workers: int = 1
    """Processes that cases run in at the same time, at most; more than one only where nothing is measured."""
    processes: int = 1
    """How many processes each case is measured in, one after another."""
    exit_first: bool = False
    """Whether the run ends with the first case that is not right."""
    target: tuple[str, ...] = ()
    """What was asked for, as it was typed, and the further folders of variants: what names the same cases again."""
    gpu: str = ""
    """The GPU whose grids and caches a cpu run has; empty for those of the backend."""
    compile_for: str = ""
    """The GPU that a cpu run's kernels are compiled for, to see whether they do and what they take; empty for none."""
    every_module: bool = True
    """Whether all modules are compiled for it, or a few of each variant."""


def default_out(suite: Suite, backend: str) -> Path:
    """A new folder for a run, named by time so that runs sort."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("reports") / f"{stamp}-{suite.name}-{backend}"


def now() -> str:
    """The time in UTC, as the file has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def earlier_run(suite: Suite, options: RunOptions) -> Run | None:
    """The run in the folder that --resume completes, None for a new one; refuses to mix runs."""
    path = run_file(options.out)
    if not path.exists() or path.stat().st_size == 0:
        return None
    if not options.resume:
        raise UsageError(f"{path} holds a run already; add --resume to complete it or choose another --out DIR")
    if b"\n" not in content(path):
        return None
    earlier = read_run(options.out)
    before = {"mode": "cold", "processes": 1, **(earlier.header.get("timing") or {}), **earlier.header}
    wanted = {
        "suite": suite.name,
        "backend": options.backend,
        "seed": options.seed,
        "mode": suite.timing.mode,
        "processes": options.processes,
    }
    for key, value in wanted.items():
        if before.get(key) != value:
            raise UsageError(f"{path}: was run with {key} = {before.get(key)}, not {value}; choose another --out DIR")
    return earlier


def require_same_device(earlier: Run, environment: dict[str, Any]) -> None:
    """Times of two GPUs must not share a table."""
    before, here = earlier.header.get("environment", {}).get("gpu"), environment.get("gpu")
    if before != here:
        raise UsageError(f"{earlier.folder / FILE}: was run on gpu = {before}, not {here}; choose another --out DIR")


def stands(before: Result | None, case: Case, machine_code_sha256: str = "", sm_count: int = 0) -> bool:
    """Whether an earlier result stands for the case as it is now.

    It is of the same text, or it was right and the GPU would execute the same instructions in the same launches.
    """
    if before is None or before.source_sha256 == case.variant.source_sha256:
        return before is not None
    if before.status != "right" or not machine_code_sha256 or before.machine_code_sha256 != machine_code_sha256:
        return False
    return before.verdict is not None and before.verdict.launches == tuple(map(Launched.of, case.launches(sm_count)))


def header(suite: Suite, options: RunOptions, environment: dict[str, Any]) -> dict[str, Any]:
    """The first line of a run's file."""
    return {
        "format": FORMAT,
        "opbench": __version__,
        "suite": suite.name,
        "title": suite.title,
        "backend": options.backend,
        "seed": options.seed,
        "started": now(),
        "target": list(options.target),
        "command": shlex.join(["opbench", *options.command]) if options.command else "",
        "timing": {**asdict(suite.timing), "processes": options.processes},
        "cases": len(suite.cases),
        "left_out": suite.left_out,
        "environment": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            **environment,
        },
    }
