"""Results of knock-out experiments: the time that a kernel saves without one class of instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from opbench.records import JSON
from opbench.timing import stats
from opbench.timing.measurement import Measurement

REMOVED_SHARE = 0.1
"""A group of instructions that shrinks by more than this share was removed, too."""


@dataclass(frozen=True)
class MachineCodeChange:
    """The number of machine instructions of one group before and after a knock-out."""

    group: str
    before: int
    after: int
    intended: bool
    """Whether the knock-out removes this group."""
    ptx: int = 0
    """Instructions of the group in the PTX, of which each needs one at least."""

    @property
    def removed(self) -> bool:
        """Return whether the assembler removed more instructions than the knock-out itself."""
        return not self.intended and self.after < (1 - REMOVED_SHARE) * min(self.before, self.ptx)

    @property
    def rolled(self) -> bool:
        """Return whether instructions are fewer only because the assembler unrolled a loop less."""
        return not self.intended and not self.removed and self.after < (1 - REMOVED_SHARE) * self.before


@dataclass(frozen=True)
class KeptLine:
    """Instructions of a class that a knock-out cannot remove from one source line, and the reason."""

    line: str
    instructions: int
    reason: str
    """A code, such as "feeds-address"."""


@dataclass(frozen=True)
class ClassCost:
    """One class of instructions in a kernel, and the time that the kernel saves without it."""

    name: str
    """One of `opbench.gpu.compile.knockout_classes.INSTRUCTION_CLASSES`."""
    instructions: int
    """PTX instructions that can be removed."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The number of removable instructions by source line, largest first; a line of a header is "tile.cuh:20"."""
    kept: tuple[KeptLine, ...] = ()
    """Instructions of the class that stay, and why."""
    changes: tuple[MachineCodeChange, ...] = ()
    """Groups of machine instructions whose number changed; empty if the machine code was not read."""
    registers: tuple[int, int] | None = None
    """The most registers of a thread before and after."""
    reason: str = ""
    """Why there is no time: a code; empty if there is one, or if nothing was timed."""
    detail: str = ""
    without_s: float | None = None
    """The median time without the class."""
    exposed_s: float | None = None
    """The time of the kernel minus its time without the class."""
    low_s: float | None = None
    high_s: float | None = None
    """The 95 % interval of `exposed_s`."""

    @property
    def upper_bound(self) -> tuple[str, ...]:
        """Return the other groups that the assembler removed as well, so that the saved time includes theirs."""
        return tuple(change.group for change in self.changes if change.removed)

    @property
    def spills(self) -> bool:
        """Return whether the knock-out spills registers that the kernel does not, which costs time."""
        return any(change.group == "spills" and change.after > change.before for change in self.changes)

    @property
    def lower_bound(self) -> bool:
        """Return whether the remaining code became slower, so that the class costs more than the saved time."""
        return not self.upper_bound and (self.rolled or self.spills)

    @property
    def rolled(self) -> bool:
        """Return whether the assembler unrolled loops less, which costs time."""
        return any(change.rolled for change in self.changes)


@dataclass(frozen=True)
class PairCost:
    """The time that a kernel saves without two classes of instructions."""

    names: tuple[str, str]
    exposed_s: float
    overlap_s: float
    """The exposed time of both minus that of each: more than 0 for work that hides behind the other class."""
    low_s: float
    high_s: float
    """The 95 % interval of `overlap_s`."""


@dataclass(frozen=True)
class Experiment:
    """The knock-out experiments of one case."""

    case: str
    arch: str
    assembler: str
    """Such as "ptxas 13.0"; empty if nothing was assembled."""
    same_machine_code: bool | None
    """Whether the assembled kernel without a knock-out has the machine code that a run times; None if not known."""
    classes: tuple[ClassCost, ...]
    pairs: tuple[PairCost, ...] = ()
    source: str = "counted"
    """"measured" on a GPU, or "counted" in the PTX."""
    gpu: str = ""
    total_s: float | None = None
    """The median time of the kernel, as `opbench run` measures it: with a cold L2, and with the launch."""
    low_s: float | None = None
    high_s: float | None = None
    offset_s: float | None = None
    """The part of each time that the clock adds."""

    def to_json(self) -> dict[str, JSON]:
        """Return the experiment as JSON data; times are in seconds."""
        fields = asdict(self)
        for cost, value in zip(self.classes, fields["classes"], strict=True):
            value["upper_bound"], value["lower_bound"] = list(cost.upper_bound), cost.lower_bound
        return fields


ORIGINAL = "original"


def with_times(cost: ClassCost, original: Measurement, without: Measurement) -> ClassCost:
    """Return a class with the time that the kernel saves without it."""
    exposed, low, high = _sum([(1, original.samples_s), (-1, without.samples_s)])
    return replace(cost, without_s=without.median_s, exposed_s=exposed, low_s=low, high_s=high)


def pair_cost(names: tuple[str, str], times: Mapping[str, Sequence[float]]) -> PairCost:
    """Return the time saved without two classes, from samples by name; the name of the pair is "one+two"."""
    name, other_name = names
    pair_samples_s = times[f"{name}+{other_name}"]
    exposed, _, _ = _sum([(1, times[ORIGINAL]), (-1, pair_samples_s)])
    return PairCost(
        names, exposed, *_sum([(1, times[name]), (1, times[other_name]), (-1, pair_samples_s), (-1, times[ORIGINAL])])
    )


def _sum(terms: Sequence[tuple[int, Sequence[float]]]) -> tuple[float, float, float]:
    """Return a sum of medians and its interval, rounded to a tenth of a nanosecond."""
    total, interval = stats.median_sum(terms)
    return round(total, 10), round(interval.low, 10), round(interval.high, 10)
