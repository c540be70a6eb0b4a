"""What a user may choose of a network's run, and of a training's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opbench.checking import backends
from opbench.errors import EnvironmentFault, UsageError, unknown
from opbench.gpu import driver as cuda
from opbench.graph.problems import ALLOWED
from opbench.paths import next_command
from opbench.running.suite import Suite

LAYOUTS = ("auto", "nchw", "nhwc")


@dataclass(frozen=True, kw_only=True)
class ChoosingOptions:
    """How each node gets its variant and the whole its place in memory: for a run and for a training alike."""

    backend: str = "auto"
    precision: str = "f32"
    """The least precise arithmetic allowed: f32, tf32, or bf16, which says how values are stored, too."""
    roots: tuple[Path, ...] = ()
    """Further folders laid out as variants/."""
    plan: Path | None = None
    results: tuple[Path, ...] = ()
    """Runs from which each node's variant is chosen; where none covers it see `defaults.ranked`."""
    tune: bool = False
    libraries: bool = False
    leave_out: tuple[str, ...] = ()
    """Globs of variants that --tune does not measure."""
    graph: bool = True
    parallel: bool = False
    memory_bytes: int | None = None
    """The most that activations and workspaces may take: slower variants that need less are chosen where they must."""
    compare: tuple[str, ...] = ()
    """Peers to compare it with: "torch"."""
    compare_limit_s: float = 120.0
    """How long each of PyTorch's ways may compile and warm up."""
    time_limit_s: float = Suite.time_limit_s
    """What the check of one node may take before it counts as one that hangs."""
    out: Path = Path("reports/network")
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what does not fit together, whoever asks for it."""
        if self.precision not in ALLOWED:
            raise UsageError(f"--precision: {unknown('precision', self.precision, ALLOWED)}")
        if self.plan and self.memory_bytes:
            raise UsageError("--memory decides what is chosen, and --plan has chosen; give one of them")
        if self.plan and self.tune:
            raise UsageError("--tune measures to choose, and --plan has chosen; give one of them")
        if self.leave_out and not self.tune:
            raise UsageError("--leave-out names what --tune does not measure; add --tune, or leave it out")

    def resolved(self) -> str:
        """The backend that it runs on; raises where one without a clock is to measure."""
        name, needs = backends.resolve(self.backend), self._needs_clock()
        if not needs:
            return name
        if self.backend == "cpu":
            instead = "choose from runs with --results DIR" if self.tune else "leave it out here"
            raise UsageError(f"{needs}, and the cpu backend has no clock; {instead}")
        if not (missing := cuda.why_missing()):
            return name
        raise EnvironmentFault(f"{needs}: {missing}; without: {self._elsewhere()} --backend cpu")

    def _needs_clock(self) -> str:
        return "--tune measures" if self.tune else ""

    def _elsewhere(self) -> str:
        return "the same command"


@dataclass(frozen=True)
class NetOptions(ChoosingOptions):
    """What a user may choose of a network's run; travels whole."""

    network: str
    """A name of `NETWORKS`, or the .json file of a saved network."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    layout: str = "auto"
    """nchw, nhwc, or auto: what costs least in all, conversions included; without results nhwc on a GPU, else nchw."""
    without: tuple[str, ...] = ()
    """Passes to leave out."""
    gpu: str = "h200"
    """Whose ceilings say what a run without a GPU could reach."""
    check: bool = True
    weights: str = ""
    """A .safetensors file, or "digits": LeNet's, trained on those; else drawn from a seed."""
    inputs: Mapping[str, np.ndarray] | None = None
    """Seeded normals unless given."""
    labels: tuple[int, ...] = ()
    """The class of each input picture, where it is known."""
    seed: int = 20260

    def __post_init__(self) -> None:
        """Refuse what does not fit together, whoever asks for it."""
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise UsageError(f"--layout {self.layout} is not allowed; {', '.join(LAYOUTS)}")

    def _needs_clock(self) -> str:
        return super()._needs_clock() or ("--compare times PyTorch on a GPU" if self.compare else "")

    def _elsewhere(self) -> str:
        return next_command("net run", self.network, variants=self.roots)
