"""What a user may choose for a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opbench.running.devices import ChosenGpu


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
    targets: tuple[str, ...] = ()
    """All that was asked for, where that is several files; `target` names the first of them."""
    gpu: str = ""
    """The GPU whose grids and caches a cpu run has; empty for those of the backend."""
    capability: tuple[int, int] | None = None
    """The compute capability whose code a cpu run compiles; None for the newest that the backend executes."""
    compile_for: str = ""
    """The GPU that a cpu run's kernels are compiled for, to see whether they do and what they take; empty for none."""
    every_module: bool = True
    """Whether all modules are compiled for it, or a few of each variant."""
    devices: tuple[ChosenGpu, ...] = ()
    """The GPUs to run on, one worker each; none stands for the one that the backend opens."""
