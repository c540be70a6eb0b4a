"""What a run and its worker process say to each other: requests, what is told while they are served, answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from opbench.adopting.memory_plan import MemoryPlan
from opbench.backend.environment import Environment
from opbench.checking.checking import SEED, TRACED_WORK, Checked
from opbench.checking.measuring import Measured
from opbench.checking.memory import MemoryChecked
from opbench.checking.racing import RacedCases
from opbench.errors import Location, Reason, UsageError
from opbench.gpu.compile.fitting import CompiledCase, GpuTarget
from opbench.gpu.compile.resources import Resources
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import Arrays
from opbench.timing.racing import RaceOptions
from opbench.timing.sampling import TimingOptions

OPEN_LIMIT_S = 120.0
BUILD_LIMIT_S = 900.0

A = TypeVar("A")


@dataclass(frozen=True)
class PackedCase:
    """A case as plain data, as classes loaded by path do not pickle."""

    path: str
    operator: str
    variant: str
    source_sha256: str
    config: dict[str, int]
    axes: dict[str, int | str]
    header: str = ""
    """The header that was proposed for a file without one."""


def pack(case: Case) -> PackedCase:
    """A case for a request."""
    variant = case.variant
    return PackedCase(
        str(variant.path),
        variant.operator,
        variant.name,
        variant.source_sha256,
        case.config,
        case.problem.axes,
        variant.header,
    )


def unpack(catalog: Catalog, packed: PackedCase) -> Case:
    """The case again; raises UsageError where its file was edited since."""
    problem = catalog.operator(packed.operator).from_axes(packed.axes)
    if packed.header:
        catalog.use_header(Path(packed.path), packed.header)
    variant = catalog.variant_file(Path(packed.path), packed.operator, packed.variant)
    if variant.source_sha256 != packed.source_sha256:
        raise UsageError(f"{variant.path} or a header of it was edited since the run began; start it again")
    return Case(variant, packed.config, problem)


# Requests ---------------------------------------------------------------------------------------------------------


class Request(Generic[A]):
    """What a worker is asked; its answer is an `A`."""


@dataclass(frozen=True)
class Open(Request[Environment]):
    """Open a backend; the answer is its environment, with the multiprocessors that grids are sized by."""

    backend: str
    """Empty for none: the process only compiles."""
    roots: tuple[Path, ...] = ()
    seed: int = SEED
    stands_for: DeviceLimits | None = None
    traced_work: float = TRACED_WORK
    capability: tuple[int, int] | None = None
    """The compute capability whose code the cpu backend compiles; None for the newest that it executes."""


@dataclass(frozen=True)
class Build(Request[None]):
    """Compile every module of some cases in parallel."""

    cases: Sequence[PackedCase]


@dataclass(frozen=True)
class CompileFor(Request[None]):
    """Compile cases for a named GPU, which need not be here, and tell what they take of it."""

    gpu: str
    cases: Sequence[PackedCase]
    every: bool = True
    """Whether each of their modules, or a few of each variant."""


@dataclass(frozen=True)
class CompileOne(Request[CompiledCase]):
    """Compile one case for a GPU into the cache."""

    case: PackedCase
    target: GpuTarget


@dataclass(frozen=True)
class Check(Request[Checked]):
    """Check one case, on inputs that are given where some are: then its outputs are in the answer."""

    case: PackedCase
    given: Arrays | None = None


@dataclass(frozen=True)
class CheckMemory(Request[MemoryChecked]):
    """Run a file's launches without a reference and look at memory, races and barriers."""

    plan: MemoryPlan


@dataclass(frozen=True)
class Measure(Request[Measured]):
    """Measure right cases of one problem, interleaved; then check them again if asked to."""

    cases: Sequence[PackedCase]
    timing: TimingOptions
    check_again: bool = True


@dataclass(frozen=True)
class Probe(Request[dict[str, float]]):
    """Medians in seconds of a few cases by name, cold, with nothing prepared for a check."""

    cases: Sequence[PackedCase]
    timing: TimingOptions


@dataclass(frozen=True)
class Race(Request[RacedCases]):
    """Look at cases of one problem quickly, then race those that are right; the leader is known to be."""

    cases: Sequence[PackedCase]
    leader: PackedCase | None
    options: RaceOptions
    limit_s: float
    mode: str = "cold"
    energy: bool = False
    """Whether for joules, not for time."""


# Told on the way --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unsupported:
    """This machine lacks what a case needs."""

    index: int
    reason: str


@dataclass(frozen=True)
class Built:
    """Cases that share a module: compiled, or not and why."""

    indices: Sequence[int]
    error: Reason | None = None
    machine_code_sha256: str = ""
    """Of a GPU's; empty on other backends."""


@dataclass(frozen=True)
class Taken:
    """What a case takes of the GPU that it was compiled for."""

    index: int
    resources: Resources


@dataclass(frozen=True)
class Started:
    """A case is launched from here on: whatever happens is its doing."""

    case: str


@dataclass(frozen=True)
class Sampled:
    """A sign of life while a case is measured."""

    case: str
    seconds: float


Told = Unsupported | Built | Taken | Started | Sampled


# The end of a request ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What was asked for."""

    value: object


@dataclass(frozen=True)
class Fault:
    """What was raised instead."""

    kinds: tuple[str, ...]
    """Names of its class and that one's bases."""
    message: str
    fatal: bool
    """Whether the process is of no use any more."""
    location: Location | None = None


def iterate_problems(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases in groups of one problem each, in order of first mention."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(f"{case.variant.operator}{case.problem}", []).append(case)
    yield from groups.values()
