"""The user's options for `run` and `check`, and the setup of a run derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opbench.checking import backends
from opbench.options import option, set_types, variant_folders
from opbench.running.clusters import Tls
from opbench.running.devices import ChosenGpu
from opbench.timing.clock import TIMING_MODES
from opbench.timing.processes import PROCESSES


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """Options that `run` and `check` share."""

    problems: tuple[str, ...] = option(
        (),
        "Problem sizes for a FILE.cu, such as '(n=1000)', instead of the default ones; repeatable.",
        "--problem",
        metavar="PROBLEM",
    )
    time_limit_s: float | None = option(
        None,
        "Stop a case that takes longer than this [default: the limit of the suite, else 60].",
        "--time-limit",
        metavar="SECONDS",
        minimum=0.1,
    )
    seed: int = option(20260, "Seed for the random inputs.", minimum=0)
    variants: tuple[Path, ...] = variant_folders()
    cases: tuple[str, ...] = option(
        (), "Select cases by name or glob pattern; repeatable.", "--case", metavar="GLOB", completer="variants"
    )
    untrusted: bool = option(
        False,
        "Compile and run the kernels in a cage, as untrusted code: without network, other programs and other "
        "files, and with limits on time, memory and output. Refuses Python files of --variants folders.",
    )
    trust: bool = option(
        False,
        "With --untrusted, also load Python files, such as those of the --variants folders. Python has no cage; "
        "kernels stay in the cage.",
    )
    cpu_only: bool = option(False, "On the cpu backend, skip the additional compilation for a GPU with NVRTC.")

    def __post_init__(self) -> None:
        set_types(self)


@dataclass(frozen=True, kw_only=True)
class RunOptions(CaseOptions):
    """The options of `opbench.run`; without `out`, the results go to a new folder in reports/."""

    backend: str = option("auto", "Run on a GPU (cuda) or on the emulator (cpu).", choices=backends.BACKEND_CHOICES)
    out: Path | None = option(None, "Folder for the results [default: reports/<time>-<suite>-<backend>].", folder=True)
    mode: str | None = option(
        None,
        "cold: flush the L2 cache before each sample. hot: leave the data in the cache. graph: "
        "replay a CUDA graph over rotated buffers. [default: the mode of the suite, else cold]",
        choices=TIMING_MODES,
    )
    publish: bool = option(
        False,
        f"Measure in {PROCESSES} processes, each with its own CUDA context, so that the intervals include "
        "the variation between processes.",
    )
    samples: int | None = option(
        None,
        "Take N samples of each case, even if fewer make its interval narrow; the time budget of a case grows in "
        "proportion. [default: at most 200, or as the suite says]",
        metavar="N",
        minimum=10,
    )
    gpus: str = option(
        "",
        "GPUs of this machine to use, with one worker process per GPU. All cases of a problem run on the same GPU.",
        metavar="all|0,1",
    )
    on: str = option(
        "",
        "Run on the workers of a cluster, one GPU per worker. The scheduler runs any code that it"
        " receives, so use a private network.",
        metavar="dask://HOST:PORT|slurm:FILE.toml",
    )
    resume: bool = option(False, "Complete the run in --out without repeating finished cases.")
    gpu: str = option(
        "h200", "Without a GPU, predict lower bounds for this GPU model.", metavar="NAME", completer="gpus"
    )
    report: bool = option(
        True,
        "Write only the results, to free a rented GPU sooner; `opbench report DIR` draws the pages later.",
        "--no-report",
    )
    tls: Tls | None = None
    """Certificates for a scheduler that requires them; None for none."""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions(CaseOptions):
    """The options of `opbench.check`."""

    backend: str = option("cpu", "Run on a GPU (cuda) or on the emulator (cpu).", choices=backends.BACKEND_CHOICES)
    random_shapes: int = option(
        3, "Number of random shapes per operator, in addition to the examples.", "--random", minimum=0
    )
    every: bool = option(
        False,
        "Check every config on every problem, even if that needs many compilations; on the cpu "
        "backend, this includes --huge.",
        "--all",
    )
    huge: bool = option(
        False,
        "Also check problems of more than 2^31 elements: run a few blocks of each in sparse memory.",
    )
    memory: bool = option(
        False,
        "Run the launches in the host code of FILE.cu and report races, out-of-bounds accesses, "
        "uninitialised reads and barrier errors, without a reference for the results. This is the"
        " default for a file that fits no operator.",
    )
    exit_first: bool = option(False, "Stop at the first case that is wrong or fails.", "-x", "--exitfirst")
    gpu: str = option(
        "h200",
        "The GPU that selects the value of __CUDA_ARCH__: a name such as rtx3080, or a compute "
        "capability such as 8.6. With a name, NVRTC also compiles the kernels for that GPU.",
        metavar="NAME|NUMBER",
        completer="gpus",
    )
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Values of host variables by name, in memory mode."""


@dataclass(frozen=True)
class RunSetup:
    """The settings of a run that its suite does not determine."""

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
    relaunch: bool = False
    """Whether a run on a backend without a clock launches right cases again, under the rules of timing."""
    secret: str = ""
    """Repeats the random choices of an earlier run, such as which launches are judged; empty for new ones."""
    every_module: bool = True
    """Whether to compile all modules for that GPU; otherwise a few of each variant."""
    untrusted: bool = False
    """Whether kernels are compiled and run in confined processes."""
    devices: tuple[ChosenGpu, ...] = ()
    """The GPUs to run on, one worker each; empty for the GPU that the backend opens."""
