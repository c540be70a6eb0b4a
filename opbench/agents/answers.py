"""The answers of the tools of `opbench mcp`; a client sees the fields as a JSON schema."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class NextStep:
    """The recommended next step: a sentence and, if a tool does it, the tool with its arguments."""

    sentence: str
    tool: str = ""
    arguments: dict[str, str | list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ListedOperator:
    """One operator of opbench with its title."""

    operator: str
    title: str


@dataclass(frozen=True)
class OperatorList:
    """The operators that opbench knows."""

    operators: list[ListedOperator]
    next_step: NextStep


@dataclass(frozen=True)
class ArrayShape:
    """An input or output array of an operator: its axes, such as "m k", and its dtype in the example problem."""

    name: str
    dimensions: str
    dtype: str


@dataclass(frozen=True)
class LadderVariant:
    """A variant that opbench ships, and what makes it faster than the variant it builds on."""

    variant: str
    title: str
    builds_on: str
    mechanism: str
    """What makes the variant faster than the one that it builds on."""


@dataclass(frozen=True)
class OperatorDescription:
    """An operator, its variants from simple to fast, and the source of the simplest one."""

    operator: str
    title: str
    definition: str
    sizes: list[str]
    """The names of the sizes; a problem such as "(m=64,n=64,k=64)" gives each a number."""
    modes: dict[str, str]
    """Further axes with their default values."""
    inputs: list[ArrayShape]
    outputs: list[ArrayShape]
    example_problem: str
    variants: list[LadderVariant]
    simplest_source: str
    """A complete file: keep its header, rename the kernel and write your own code."""
    next_step: NextStep


@dataclass(frozen=True)
class KernelFault:
    """One kind of fault, at the first case that has it."""

    code: str
    message: str
    file: str
    line: int
    source_line: str
    remedy: str
    case: str
    cases: int
    """The number of cases with this fault."""


@dataclass(frozen=True)
class CheckAnswer:
    """The outcome of checking a kernel on many sizes: right, memory-safe and race-free, or its faults."""

    status: str
    """"right", "wrong", "failed" or "unsupported"; the worst status of all cases."""
    summary: str
    cases: int
    right: int
    faults: list[KernelFault]
    faults_not_shown: int
    next_step: NextStep


@dataclass(frozen=True)
class Advice:
    """A mechanism that would make a kernel faster, with the limit that it removes and the estimated gain."""

    file: str
    line: int
    """The most costly line; 0 if the whole kernel is to change."""
    further_lines: list[int]
    source_line: str
    kind: str
    """The limit, such as "coalescing"."""
    mechanism: str
    """The mechanism that removes the limit, such as "vectorised"."""
    evidence: str
    advice: str
    avoidable_share: float
    """The fraction of wavefronts or requests that the mechanism can save, from 0 to 1; 0 without a line."""
    gain: float | None
    """The estimated speedup; null if it can be estimated only from a time on a GPU."""
    gain_low: float | None
    gain_high: float | None
    """The range that contains the gain in four of five measured steps of shipped ladders."""
    example_variants: list[str]
    """Shipped variants that use the mechanism, the nearest first."""


@dataclass(frozen=True)
class TrafficCounts:
    """Counted accesses to global and shared memory over all kernels of a case; null without such accesses."""

    moved_bytes: int
    """Bytes of all 32-byte sectors that the accesses to global memory touch."""
    asked_bytes: int
    """Bytes that the threads read or write in global memory."""
    sectors_per_load: float | None
    ideal_sectors_per_load: float | None
    sectors_per_store: float | None
    ideal_sectors_per_store: float | None
    bank_conflict_share: float | None


@dataclass(frozen=True)
class ExplainAnswer:
    """The memory traffic of a kernel by source line, counted on the CPU, and the first change to make."""

    case: str
    traffic: TrafficCounts | None
    lower_bound_s: float | None
    """The time that the problem's compulsory bytes or FLOPs take at the measured peak of `gpu`."""
    lower_bound_by: str
    """"memory" or "compute"."""
    gpu: str
    advice: list[Advice]
    """The advice with the largest gain first."""
    next_step: NextStep


@dataclass(frozen=True)
class CaseTime:
    """The status and, on a GPU, the time of one case of a run."""

    case: str
    status: str
    reason: str
    median_s: float | None
    low_s: float | None
    high_s: float | None
    """The 95 % interval of the median."""
    share_of_peak: float | None
    limited_by: str
    moved_bytes: int | None


@dataclass(frozen=True)
class RunAnswer:
    """Times of a kernel, the fastest first; without a GPU only its traffic."""

    backend: str
    gpu: str
    cases: list[CaseTime]
    cases_not_shown: int
    results: str
    """The folder of the run, with a page for people."""
    next_step: NextStep


@dataclass(frozen=True)
class ComparedKernel:
    """One kernel of a comparison, relative to the first one."""

    kernel: str
    median_s: float | None
    time_ratio: float | None
    """The kernel's time divided by the first kernel's; below 1 the kernel is faster than the first."""
    time_ratio_low: float | None
    time_ratio_high: float | None
    traffic_ratio: float | None
    """The kernel's moved bytes divided by the first kernel's; if they are equal, the ratio of wavefronts."""
    traffic: TrafficCounts | None


@dataclass(frozen=True)
class CompareAnswer:
    """A comparison of kernels of one operator on one problem."""

    problem: str
    compared_by: str
    """"time" on a GPU, else "traffic"."""
    kernels: list[ComparedKernel]
    next_step: NextStep


@dataclass(frozen=True)
class ProfileAnswer:
    """Hardware counters of one case, from Nsight Compute."""

    case: str
    counters: dict[str, float]
    next_step: NextStep


@dataclass(frozen=True)
class Section:
    """One section of a verdict, such as memory-safe, with its status."""

    name: str
    status: str
    summary: str


@dataclass(frozen=True)
class JudgeAnswer:
    """The verdict on a submitted kernel, with its sections, faults and signs of cheating."""

    verdict: str
    """"accepted", "refused" or "not decided"."""
    code: str
    reason: str
    not_judged: list[str]
    sections: list[Section]
    faults: list[KernelFault]
    signs: list[str]
    """Signs of cheating, each with its line."""
    seed: int
    document: str
    """The path of the JSON file with the whole verdict."""
    next_step: NextStep
