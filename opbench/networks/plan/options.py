"""Options of the commands that run a network, and of those that choose the variants of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opbench.checking import backends
from opbench.errors import EnvironmentFault, UsageError, unknown_name
from opbench.gpu import driver as cuda
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.options import argument, option, read_bytes, set_types, variant_folders
from opbench.paths import next_command
from opbench.running.suite import Suite

LAYOUTS = ("auto", "nchw", "nhwc")


@dataclass(frozen=True, kw_only=True)
class ChoosingOptions:
    """Options on how variants and memory are chosen, for runs and trainings of networks."""

    precision: str = option(
        "f32",
        "The lowest precision allowed for arithmetic. bf16 also applies to stored values, except "
        "the parameters of a training.",
        choices=tuple(ALLOWED_PRECISIONS),
    )
    backend: str = option("auto", "Run on a GPU (cuda) or on the emulator (cpu).", choices=backends.BACKEND_CHOICES)
    plan: Path | None = option(
        None,
        "Use the variants that this plan names (a plan.json that a run wrote; you may edit it).",
        metavar="FILE",
        folder=False,
    )
    results: tuple[Path, ...] = option(
        (), "Choose the variant of each node from the results of this run; repeatable.", metavar="DIR"
    )
    tune: bool = option(False, "Measure all suitable variants first, and choose the fastest for each node.")
    libraries: bool = option(False, "Also allow variants that call a library, such as cuDNN.")
    leave_out: tuple[str, ...] = option(
        (), "Exclude variants from --tune, such as 'conv2d/naive*'; repeatable.", "--exclude", metavar="GLOB"
    )
    graph: bool = option(True, "Launch the nodes one by one instead of as one CUDA graph.", "--no-graph")
    parallel: bool = option(False, "Run independent branches of the network on separate CUDA streams.")
    memory_bytes: int | None = option(
        None,
        "Limit the memory of activations and workspaces, such as 900MB; may select slower variants.",
        "--memory",
        metavar="SIZE",
        parse=read_bytes,
    )
    compare_limit_s: float = option(
        120.0,
        "With --compare, skip a mode of PyTorch that takes longer than this to compile and warm up.",
        "--compare-limit",
        metavar="SECONDS",
        minimum=1,
    )
    time_limit_s: float = option(
        Suite.time_limit_s,
        "Stop the check of a node that takes longer than this.",
        "--time-limit",
        metavar="SECONDS",
        minimum=0.1,
    )
    variants: tuple[Path, ...] = variant_folders()
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        set_types(self)
        if self.precision not in ALLOWED_PRECISIONS:
            raise UsageError(unknown_name("precision", self.precision, ALLOWED_PRECISIONS, place="--precision"))
        if self.plan and self.memory_bytes:
            raise UsageError(
                "--memory and --plan both choose the variants; remove one of these two options",
                kind="exclusive",
                subject=("--memory", "--plan"),
            )
        if self.plan and self.tune:
            raise UsageError(
                "--tune and --plan both choose the variants; remove one of these two options",
                kind="exclusive",
                subject=("--tune", "--plan"),
            )
        if self.leave_out and not self.tune:
            raise UsageError(
                "--exclude has an effect only with --tune; add --tune or remove --exclude",
                kind="needs-option",
                subject="--exclude",
                allowed="--tune",
            )

    def resolved_backend(self) -> str:
        """Return the backend to run on; raise UsageError if measurements are requested and it has no clock."""
        name, purpose = backends.resolve_name(self.backend), self._needs_clock()
        if not purpose:
            return name
        if self.backend == "cpu":
            remedy = (
                "use measured times with --results DIR" if self.tune else f"remove {purpose.split()[0]}, or use a GPU"
            )
            raise UsageError(
                f"{purpose}, and the cpu backend measures no times; {remedy}", kind="no-clock", subject=self.backend
            )
        if not (missing := cuda.why_missing()):
            return name
        command = self._command_without_gpu()
        remedy = f": {command} --backend cpu" if command else f", remove {purpose.split()[0]} and add --backend cpu"
        raise EnvironmentFault(
            f"{purpose}: {missing}; to run without a GPU{remedy}",
            kind="needs-gpu",
            subject="--backend",
            value=name,
        )

    def _needs_clock(self) -> str:
        return "--tune measures" if self.tune else ""

    def _command_without_gpu(self) -> str:
        return ""


@dataclass(frozen=True)
class NetOptions(ChoosingOptions):
    """Options for the run of a network."""

    network: str = field(metadata=argument("NAME|FILE.json", completer="networks"))
    """A name of `NETWORKS`, or the .json file of a saved network."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    layout: str = option(
        "auto",
        "Memory layout of images. auto: the fastest according to --results, else nhwc on a GPU.",
        choices=LAYOUTS,
    )
    without: tuple[str, ...] = option(
        (), "Disable a pass over the graph, such as fuse_relu.", "--disable", metavar="PASS", completer="passes"
    )
    compare: tuple[str, ...] = option(
        (),
        "Also time PyTorch in the same run: eager and torch.compile, in nchw and channels_last, "
        "as a CUDA graph and called from Python.",
        choices=("torch",),
    )
    attribution: bool = option(
        False, "Also undo each choice of the plan alone, check the outputs, and time both: what each choice saves."
    )
    weights: str = option(
        "",
        "Weights from a .safetensors file, or `digits` for a LeNet that was trained on digits "
        "[default: random, initialised as in PyTorch].",
        metavar="FILE|digits",
    )
    gpu: str = option(
        "h200", "Without a GPU, predict lower bounds for this GPU model.", metavar="NAME", completer="gpus"
    )
    check: bool = option(True, "Skip the check of nodes and outputs against the float64 reference.", "--no-check")
    seed: int = option(20260, "Seed for the random inputs.", minimum=0)
    out: Path = Path("reports/network")
    inputs: Mapping[str, np.ndarray] | None = None
    """Inputs by name; None for seeded normal values."""
    labels: tuple[int, ...] = ()
    """The class of each input picture; empty if not known."""

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise UsageError(
                f"--layout {self.layout} is not allowed; choose one of {', '.join(LAYOUTS)}",
                kind="not-allowed",
                subject="--layout",
                value=self.layout,
                allowed=LAYOUTS,
            )
        if self.attribution and not self.check:
            raise UsageError(
                "--attribution times only networks whose outputs agree with the reference; remove --no-check",
                kind="exclusive",
                subject=("--attribution", "--no-check"),
            )

    def _needs_clock(self) -> str:
        return super()._needs_clock() or ("--compare times PyTorch on a GPU" if self.compare else "")

    def _command_without_gpu(self) -> str:
        return next_command("net run", self.network, variants=self.variants)
