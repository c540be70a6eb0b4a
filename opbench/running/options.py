"""The user's options for `run` and `check`, and the setup of a run derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opbench.checking import backends
from opbench.options import option, set_types, variant_folders
from opbench.running.clusters import Tls
from opbench.running.devices import ChosenGpu
from opbench.timing.clock import MODES
from opbench.timing.processes import PROCESSES


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """Options that `run` and `check` share."""

    problems: tuple[str, ...] = option(
        (),
        "Sizes of a FILE.cu, such as '(n=1000)', in place of those that would be taken; repeatable.",
        "--problem",
        metavar="PROBLEM",
    )
    time_limit_s: float | None = option(
        None,
        "Stop a case that takes longer [default: the suite's, else 60].",
        "--time-limit",
        metavar="SECONDS",
        least=0.1,
    )
    seed: int = option(20260, "Seed of the inputs.", least=0)
    variants: tuple[Path, ...] = variant_folders()
    cases: tuple[str, ...] = option(
        (), "Only cases of this printed name or glob; repeatable.", "--case", metavar="GLOB", complete="variants"
    )
    cpu_only: bool = option(False, "On the cpu backend, do not let NVRTC compile the kernels for a GPU as well.")

    def __post_init__(self) -> None:
        set_types(self)


@dataclass(frozen=True, kw_only=True)
class RunOptions(CaseOptions):
    """The options of `opbench.run`; None for `out` is a new folder in reports/."""

    backend: str = option("auto", "Where cases run.", choices=backends.CHOICES)
    out: Path | None = option(None, "The run's folder [default: reports/<time>-<suite>-<backend>].", folder=True)
    mode: str | None = option(
        None,
        "Each sample with a flushed L2 cache, with the case's data left in it, or as replays of a CUDA graph "
        "over rotated buffers [default: the suite's, else cold].",
        choices=MODES,
    )
    publish: bool = option(
        False,
        f"Measure in {PROCESSES} processes, each with its own context, so that what differs between them is in the "
        "intervals.",
    )
    gpus: str = option(
        "",
        "GPUs of this machine to run on, one worker each: a problem with all its cases goes to one of them.",
        metavar="all|0,1",
    )
    on: str = option(
        "",
        "Run on the workers of a cluster, one GPU each; a scheduler runs what it is sent, so keep it private.",
        metavar="dask://HOST:PORT|slurm:FILE.toml",
    )
    resume: bool = option(False, "Complete the run in --out; cases that it has are not repeated.")
    gpu: str = option("h200", "The GPU that predictions without one are for.", metavar="NAME", complete="gpus")
    tls: Tls | None = None
    """Certificates for a scheduler that requires them; None for none."""
    report: bool = True
    """Whether to write the report."""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions(CaseOptions):
    """The options of `opbench.check`."""

    backend: str = option("cpu", "Where cases run.", choices=backends.CHOICES)
    random_shapes: int = option(3, "How many random shapes per operator, besides its examples.", "--random", least=0)
    every: bool = option(
        False,
        "Every config on every problem, also where each pair compiles a module of its own; on the cpu also --huge.",
        "--all",
    )
    huge: bool = option(
        False,
        "Also problems beyond 2^31 elements: a few blocks of each, on memory that is there where it is written.",
    )
    memory: bool = option(
        False,
        "Run the launches of FILE.cu's host code without a reference: races, bounds, uninitialised reads, barriers. "
        "A file for which no operator fits is checked so anyway.",
    )
    exit_first: bool = option(False, "Stop at the first case that is not right.", "-x", "--exitfirst")
    gpu: str = option(
        "h200",
        "The GPU whose code is checked, the branch of __CUDA_ARCH__: a name such as rtx3080, or a compute capability "
        "such as 8.6. NVRTC compiles for a name, too.",
        metavar="NAME|NUMBER",
        complete="gpus",
    )
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Values of host variables by name, in memory mode."""


@dataclass(frozen=True)
class RunSetup:
    """The settings of a run in addition to its suite."""

    backend: str = "cpu"
    out: Path = Path("reports/run")
    resume: bool = False
    measure: bool = True
    seed: int = 20260
    roots: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()
    keep: bool = True
    """Whether `out` still exists after the call, so that the run can be resumed."""
    workers: int = 1
    """Most processes that run cases in parallel; more than one only if nothing is measured."""
    processes: int = 1
    """Number of processes in which each case is measured, one after another."""
    exit_first: bool = False
    """Whether the run ends at the first case that is not right."""
    target: tuple[str, ...] = ()
    """The target as typed, followed by the extra folders of variants; together they select the same cases again."""
    targets: tuple[str, ...] = ()
    """All targets if they are several files; `target` has the first of them."""
    gpu: str = ""
    """The GPU whose grid sizes and caches a cpu run models; empty for the backend's own."""
    capability: tuple[int, int] | None = None
    """The compute capability whose code a cpu run compiles; None for the newest that the backend supports."""
    compile_for: str = ""
    """The GPU for which NVRTC compiles a cpu run's kernels, to find errors and resources; empty for none."""
    every_module: bool = True
    """Whether to compile all modules for that GPU; otherwise a few of each variant."""
    devices: tuple[ChosenGpu, ...] = ()
    """The GPUs to run on, one worker each; empty for the GPU that the backend opens."""
