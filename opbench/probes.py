"""The device's limits: measured by running the probes as ordinary cases, kept per GPU and driver."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from opbench import places
from opbench.catalog import Catalog
from opbench.ceiling import from_probes, with_sustained
from opbench.errors import EnvironmentFault
from opbench.results import Run
from opbench.runner import RunOptions, Tell, run_suite
from opbench.suite import read_suite

KEPT_S = 7 * 24 * 3600.0
"""Measured ceilings are trusted for a week: drivers and cooling change slowly."""


def remembered() -> dict[str, Any] | None:
    """The ceilings measured before on this GPU with this driver, if recent."""
    path = _path()
    try:
        if time.time() - path.stat().st_mtime > KEPT_S:
            return None
        value: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value


def _path() -> Path:
    from opbench.backends.cuda import device_key

    return places.cache_folder("ceilings") / f"{device_key()}.json"


def measure_ceilings(out: Path, tell: Tell = lambda progress: None, resume: bool = False) -> tuple[Run, dict[str, Any]]:
    """Run suites/ceilings.toml into `out` and suites/sustained.toml below it, and derive the limits.

    Raises EnvironmentFault when a probe fails.
    """
    run = _run("ceilings", out, tell, resume)
    sustained = _run("sustained", out / "sustained", tell, resume)
    ceilings = with_sustained(from_probes(run.results), sustained.results)
    environment = run.header["environment"]
    ceilings = replace(ceilings, gpu=environment["gpu"], l2_bytes=environment["l2_bytes"])
    value = ceilings.to_json()
    places.write_atomically(_path(), json.dumps(value, indent=2).encode())
    return run, value


def _run(name: str, out: Path, tell: Tell, resume: bool) -> Run:
    suite = read_suite(Path(name), Catalog(), "cuda")
    run = run_suite(suite, RunOptions(backend="cuda", out=out, resume=resume, command=("ceiling",)), tell)
    wrong = [r for r in run.results if r.status not in ("right", "unsupported")]
    if wrong:
        raise EnvironmentFault(f"the probe {wrong[0].case} {wrong[0].status}: {wrong[0].reason}; see {out}")
    return run


def ceilings_for_run(folder: Path, tell: Tell) -> dict[str, Any]:
    """The remembered ceilings, else fresh ones measured into `folder`, where a run that was killed is completed."""
    return remembered() or measure_ceilings(folder / "ceilings", tell, resume=True)[1]
