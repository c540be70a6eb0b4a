"""Options for the run of a network, and for the nodes of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opbench.checking import backends
from opbench.errors import EnvironmentFault, UsageError, unknown
from opbench.gpu import driver as cuda
from opbench.graph.problems import ALLOWED
from opbench.options import argument, option, read_bytes, set_types, variant_folders
from opbench.paths import next_command
from opbench.running.suite import Suite

LAYOUTS = ("auto", "nchw", "nhwc")


@dataclass(frozen=True, kw_only=True)
class ChoosingOptions:
    """How each node gets its variant and each value its memory, for a run and for a training."""

    precision: str = option(
        "f32",
        "The least precise arithmetic allowed; with bf16 values are stored so, too (of a training all but parameters).",
        choices=tuple(ALLOWED),
    )
    backend: str = option("auto", "Where it runs.", choices=backends.CHOICES)
    plan: Path | None = option(
        None,
        "Take every node's variant from this plan, as a run writes one (plan.json); it may be edited.",
        metavar="FILE",
        folder=False,
    )
    results: tuple[Path, ...] = option(
        (), "Choose each node's variant from the results of this run; repeatable.", metavar="DIR"
    )
    tune: bool = option(False, "Measure on the spot what could serve the nodes, and choose from that.")
    libraries: bool = option(False, "Let nodes be served by variants that call a library, too.")
    leave_out: tuple[str, ...] = option(
        (), "Variants that --tune does not measure, such as 'conv2d/naive*'; repeatable.", metavar="GLOB"
    )
    graph: bool = option(True, "Launch the nodes one by one, not as one CUDA graph.", "--no-graph")
    parallel: bool = option(False, "Run independent branches on streams of their own.")
    memory_bytes: int | None = option(
        None,
        "The most that activations and workspaces may take, such as 900MB: slower variants where needed.",
        "--memory",
        metavar="SIZE",
        parse=read_bytes,
    )
    compare_limit_s: float = option(
        120.0,
        "Give up one of PyTorch's ways that compiles and warms up for longer.",
        "--compare-limit",
        metavar="SECONDS",
        least=1,
    )
    time_limit_s: float = option(
        Suite.time_limit_s,
        "Stop the check of a node that takes longer.",
        "--time-limit",
        metavar="SECONDS",
        least=0.1,
    )
    variants: tuple[Path, ...] = variant_folders()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        set_types(self)
        object.__setattr__(self, "variants", tuple(folder.resolve() for folder in self.variants))
        if self.precision not in ALLOWED:
            raise UsageError(f"--precision: {unknown('precision', self.precision, ALLOWED)}")
        if self.plan and self.memory_bytes:
            raise UsageError("--memory decides what is chosen, and --plan has chosen; give one of them")
        if self.plan and self.tune:
            raise UsageError("--tune measures to choose, and --plan has chosen; give one of them")
        if self.leave_out and not self.tune:
            raise UsageError("--leave-out names what --tune does not measure; add --tune, or leave it out")

    def resolved(self) -> str:
        """Return the backend to run on; raises UsageError if it has no clock and measurements are requested."""
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
    """Options for the run of a network."""

    network: str = field(metadata=argument("NAME|FILE.json", complete="networks"))
    """A name of `NETWORKS`, or the .json file of a saved network."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    layout: str = option(
        "auto",
        "Of images; auto is what costs least by the results given, without them nhwc on a GPU.",
        choices=LAYOUTS,
    )
    without: tuple[str, ...] = option(
        (), "Leave out a pass over the graph, such as fuse_relu.", metavar="PASS", complete="passes"
    )
    compare: tuple[str, ...] = option(
        (),
        "Time PyTorch in the same run on the same clocks: eager and torch.compile, each in nchw and channels_last, "
        "each captured as one CUDA graph and called from Python.",
        choices=("torch",),
    )
    weights: str = option(
        "",
        "A .safetensors file, or LeNet's own, trained on digits [default: drawn from a seed as PyTorch does].",
        metavar="FILE|digits",
    )
    gpu: str = option("h200", "The GPU that predictions without one are for.", metavar="NAME", complete="gpus")
    check: bool = option(True, "Do not check nodes and outputs against the float64 reference.", "--no-check")
    seed: int = option(20260, "Seed of the inputs.", least=0)
    out: Path = Path("reports/network")
    inputs: Mapping[str, np.ndarray] | None = None
    """Inputs by name; None for seeded normal values."""
    labels: tuple[int, ...] = ()
    """The class of each input picture; empty if not known."""

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise UsageError(f"--layout {self.layout} is not allowed; {', '.join(LAYOUTS)}")

    def _needs_clock(self) -> str:
        return super()._needs_clock() or ("--compare times PyTorch on a GPU" if self.compare else "")

    def _elsewhere(self) -> str:
        return next_command("net run", self.network, variants=self.variants)
