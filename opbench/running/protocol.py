"""Messages between a run and its worker process: requests, notifications while a request runs, and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from opbench.backend.environment import Environment
from opbench.checking.checking import DEFAULT_SEED, MAX_TRACED_WORK, CheckResult
from opbench.checking.experiment import KnockOutTimes
from opbench.checking.measuring import MeasureResult
from opbench.checking.memory import MemoryCheckResult
from opbench.checking.racing import RaceResult
from opbench.errors import OpbenchError, Reason, UsageError
from opbench.gpu.compile.fitting import CompiledCase, GpuTarget
from opbench.gpu.compile.resources import Resources
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import Arrays
from opbench.kernels.torch_task import PackedTask, pack_task, unpack_task
from opbench.timing.racing import RaceOptions
from opbench.timing.sampling import TimingOptions

if TYPE_CHECKING:
    from opbench.adopting.memory_plan import MemoryPlan

OPEN_LIMIT_S = 120.0
BUILD_LIMIT_S = 900.0
CONFINED = "--confined"
"""The argument of a worker process that runs strangers' kernels."""

AnswerType = TypeVar("AnswerType")


@dataclass(frozen=True)
class PackedCase:
    """A case as plain data; classes that are loaded by path cannot be pickled."""

    path: str
    operator: str
    variant: str
    text_sha256: str
    """The checksum of the files' texts, to which the lines of findings refer."""
    config: dict[str, int]
    axes: dict[str, int | str]
    header: str = ""
    """The proposed header of a file that has none."""
    task: PackedTask | None = None
    """The PyTorch task that defines the operator."""


def pack(case: Case) -> PackedCase:
    """Convert a case to plain data for a request."""
    variant = case.variant
    return PackedCase(
        str(variant.path),
        variant.operator,
        variant.name,
        variant.text_sha256,
        case.config,
        case.problem.axes,
        variant.header,
        pack_task(case.problem),
    )


def unpack(catalog: Catalog, packed: PackedCase) -> Case:
    """Convert plain data back to a case; raise UsageError if the case's file was edited in between."""
    if packed.task:
        catalog.add_task(packed.task.task)
        catalog.add_operator(packed.operator, unpack_task(packed.task, packed.axes))
    problem = catalog.operator(packed.operator).from_axes(packed.axes)
    if packed.header:
        catalog.set_proposed_header(Path(packed.path), packed.header)
    variant = catalog.variant_file(Path(packed.path), packed.operator, packed.variant)
    if variant.text_sha256 != packed.text_sha256:
        raise UsageError(
            f"{variant.path}: this file, or a header that it includes, was edited after the run began; start the run "
            "again",
            kind="edited",
            subject=variant.path,
        )
    return Case(variant, packed.config, problem)


# Requests ---------------------------------------------------------------------------------------------------------


class Request(Generic[AnswerType]):
    """A request to a worker; the answer has type `AnswerType`."""


@dataclass(frozen=True)
class OpenBackend(Request[Environment]):
    """Open a backend; the answer is its environment, with the number of multiprocessors for grid sizes."""

    backend: str
    """Empty for none: the process only compiles."""
    roots: tuple[Path, ...] = ()
    seed: int = DEFAULT_SEED
    modelled_gpu: DeviceLimits | None = None
    traced_work: float = MAX_TRACED_WORK
    capability: tuple[int, int] | None = None
    """The compute capability whose code the cpu backend compiles; None for the newest that it executes."""
    secret: str = ""
    """Repeats the random choices of an earlier run; empty for new ones."""
    untrusted: bool = False
    """Whether the cpu backend compiles and runs kernels in confined processes."""


@dataclass(frozen=True)
class BuildModules(Request[None]):
    """Compile every module of some cases in parallel."""

    cases: Sequence[PackedCase]


@dataclass(frozen=True)
class BuildAhead(Request[None]):
    """Compile every module of some cases for a GPU, in a process that opens none and has a low priority."""

    cases: Sequence[PackedCase]
    capability: tuple[int, int]
    threads: int


@dataclass(frozen=True)
class FindUnsupported(Request[None]):
    """Report the cases that this machine cannot run; this imports the Python modules of libraries."""

    cases: Sequence[PackedCase]


@dataclass(frozen=True)
class CompileForGpu(Request[None]):
    """Compile cases for a GPU model that need not be present, and report the resources that each case uses."""

    gpu: str
    cases: Sequence[PackedCase]
    every: bool = True
    """Whether to compile every module; otherwise a few of each variant."""
    machine_code: bool = True
    """Whether to read the machine code, too."""


@dataclass(frozen=True)
class CompileOneCase(Request[CompiledCase]):
    """Compile one case for a GPU model into the cache."""

    case: PackedCase
    target: GpuTarget


@dataclass(frozen=True)
class CheckCase(Request[CheckResult]):
    """Check one case; with `given_inputs` inputs, the answer includes the case's outputs."""

    case: PackedCase
    given_inputs: Arrays | None = None


@dataclass(frozen=True)
class CheckMemory(Request[MemoryCheckResult]):
    """Run a file's launches without a reference; check memory accesses, races and barriers."""

    plan: MemoryPlan


@dataclass(frozen=True)
class MeasureCases(Request[MeasureResult]):
    """Measure right cases of one problem in turn; with `check_again`, check them again afterwards."""

    cases: Sequence[PackedCase]
    timing: TimingOptions
    check_again: bool = True
    prepared_cases: frozenset[str] = frozenset()
    """Names of the cases whose setup launches are not part of their time."""


@dataclass(frozen=True)
class RelaunchCases(Request[MeasureResult]):
    """Launch right cases of one problem again as a measurement does, on a backend without a clock."""

    cases: Sequence[PackedCase]


@dataclass(frozen=True)
class Probe(Request[dict[str, float]]):
    """Measure a few cases with a cold L2, without checks; the answer has medians in seconds by case name."""

    cases: Sequence[PackedCase]
    timing: TimingOptions


@dataclass(frozen=True)
class RaceCases(Request[RaceResult]):
    """Check cases of one problem quickly, then time them against the leader, a case that is known to be right."""

    cases: Sequence[PackedCase]
    leader: PackedCase | None
    options: RaceOptions
    limit_s: float
    mode: str = "cold"
    energy: bool = False
    """Whether to compare energy in joules instead of time."""


@dataclass(frozen=True)
class TimeCubins(Request[KnockOutTimes]):
    """Launch a case with edited machine code; time the launches, or only test for faults if `probe` is true."""

    case: PackedCase
    cubins: Mapping[str, Path]
    timing: TimingOptions
    probe: bool = False
    judged: bool = False
    """Whether the edited code must compute correct results."""


# Notifications ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaseUnsupported:
    """A notification that a case needs a feature which this machine lacks."""

    index: int
    reason: Reason


@dataclass(frozen=True)
class ModuleBuilt:
    """A notification that the module of some cases was compiled, or that compiling failed with `error`."""

    indices: Sequence[int]
    error: Reason | None = None
    machine_code_sha256: str = ""
    """Checksum of the GPU's machine code; empty on other backends."""


@dataclass(frozen=True)
class CaseResources:
    """A notification of the resources that a case uses on the GPU that it was compiled for."""

    index: int
    resources: Resources


@dataclass(frozen=True)
class CaseStarted:
    """A notification that the launches of a case begin; a crash after it counts as a crash of this case."""

    case: str


@dataclass(frozen=True)
class SampleTaken:
    """A notification during the measurement of a case, which shows that the worker is alive."""

    case: str
    seconds: float


@dataclass(frozen=True)
class PhasesTimed:
    """A notification of the seconds that the worker spent in each phase of a request."""

    seconds: Mapping[str, float]


Notification = CaseUnsupported | ModuleBuilt | CaseResources | CaseStarted | SampleTaken | PhasesTimed
OnNotification = Callable[[Notification], None]


# The end of a request ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    value: object


@dataclass(frozen=True)
class RequestFailed:
    """The error that ended a request."""

    error: OpbenchError
    fatal: bool
    """Whether the worker process must be restarted."""


def iterate_problems(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield the cases in groups of one problem, in the order in which problems appear first."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(f"{case.variant.operator}{case.problem}", []).append(case)
    yield from groups.values()
