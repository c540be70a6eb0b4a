"""What a user may choose of a network's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opbench import backends
from opbench.backends import cuda
from opbench.errors import EnvironmentFault, UsageError, unknown
from opbench.graphs.problems import ALLOWED
from opbench.runs.suite import Suite

LAYOUTS = ("auto", "nchw", "nhwc")


@dataclass(frozen=True)
class NetOptions:
    """What a user may choose; travels whole."""

    network: str
    """A name of `NETWORKS`, or the .json file of a saved network."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    backend: str = "auto"
    precision: str = "f32"
    layout: str = "auto"
    """nchw, nhwc, or auto: what costs least in all, conversions included; without results nhwc on a GPU, else nchw."""
    roots: tuple[Path, ...] = ()
    """Further folders laid out as variants/."""
    plan: Path | None = None
    results: tuple[Path, ...] = ()
    tune: bool = False
    libraries: bool = False
    leave_out: tuple[str, ...] = ()
    """Globs of variants that --tune does not measure."""
    graph: bool = True
    parallel: bool = False
    memory_bytes: int | None = None
    """The most that activations and workspaces may take: slower variants that need less are chosen where they must."""
    without: tuple[str, ...] = ()
    """Passes to leave out."""
    compare: tuple[str, ...] = ()
    """Peers to time beside it: "torch"."""
    gpu: str = "h200"
    """Whose ceilings say what a run without a GPU could reach."""
    check: bool = True
    time_limit_s: float = Suite.time_limit_s
    """What the check of one node may take before it counts as one that hangs."""
    weights: str = ""
    """A .safetensors file, or "digits": LeNet's, trained on those; else drawn from a seed."""
    inputs: Mapping[str, np.ndarray] | None = None
    """Seeded normals unless given."""
    labels: tuple[int, ...] = ()
    """The class of each input picture, where it is known."""
    out: Path = Path("reports/network")
    seed: int = 20260
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what does not fit together, whoever asks for it."""
        if self.precision not in ALLOWED:
            raise UsageError(f"--precision: {unknown('precision', self.precision, ALLOWED)}")
        if self.layout not in LAYOUTS:
            raise UsageError(f"--layout {self.layout} is not allowed; {', '.join(LAYOUTS)}")
        if self.plan and self.memory_bytes:
            raise UsageError("--memory decides what is chosen, and --plan has chosen; give one of them")
        if self.plan and self.tune:
            raise UsageError("--tune measures to choose, and --plan has chosen; give one of them")
        if self.leave_out and not self.tune:
            raise UsageError("--leave-out names what --tune does not measure; add --tune, or leave it out")

    def resolved(self) -> str:
        """The backend that it runs on; raises where one without a clock is to measure."""
        name = backends.resolve(self.backend)
        needs = "--tune measures" if self.tune else "--compare times PyTorch on a GPU" if self.compare else ""
        if not needs or name == "cuda":
            return name
        if self.backend == "cpu":
            instead = "choose from runs with --results DIR" if self.tune else "leave it out here"
            raise UsageError(f"{needs}, and the cpu backend has no clock; {instead}")
        raise EnvironmentFault(f"{needs}: {cuda.why_missing()}; without: opbench net run {self.network} --backend cpu")
