"""Advice on one case: what limits it, the mechanism that removes the limit, and how much that gains.

`opbench.insight.rules` names the mechanisms, `opbench.insight.gains` the gains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from opbench import units
from opbench.backend.findings import place_text
from opbench.insight.diagnosis import Diagnosis
from opbench.insight.facts import Facts, distance_of
from opbench.insight.gains import Gain, KernelKind, expected_gain
from opbench.insight.rules import RULES, Recommendation
from opbench.kernels.mechanism import MECHANISMS

NEAR = 0.9
"""A case at this share of its lower bound gets no advice."""


@dataclass(frozen=True)
class Advice:
    """One mechanism that would make a case faster."""

    mechanism: str
    """A key of `opbench.kernels.mechanism.MECHANISMS`."""
    binds: str
    """The limit of the case: one of `LIMITS`."""
    source: str
    """How that is known: "measured" from launch, time and hardware counters, "counted" on the cpu backend ("predicted"
    where only some blocks were), "compiled", or "modelled" from the traffic, without a time."""
    evidence: str
    strength: float
    """How much speaks for it, from 0 to 1: a rank, no probability."""
    gain: Gain
    """Time before divided by time after, by the measured ladder steps most alike."""
    file: str = ""
    line: int = 0
    """The line to change; 0 if it is the whole kernel."""
    called_from: int = 0
    """For a line of a header: the calling line in the kernel's own file; otherwise 0."""
    further_lines: tuple[int, ...] = ()
    """Other lines of that file with the same problem."""
    avoidable_share: float = 0.0
    """The part of all counted passes or requests that these lines could save; 0 if no line is known."""
    examples: tuple[str, ...] = ()
    """Variants of the operator that use the mechanism."""
    in_use: bool = False
    """Whether the kernel has the mechanism, so that only other parameters are left to try."""

    @property
    def action(self) -> str:
        """Return what to do."""
        change = MECHANISMS[self.mechanism]
        return f"{change}; the kernel does, so search better parameters (opbench tune)" if self.in_use else change

    @property
    def place(self) -> str:
        """Return the place, such as "line 12"; empty if the whole kernel is to change."""
        return place_text(self.file, self.line, self.called_from) if self.line else ""

    @property
    def gain_text(self) -> str:
        """Return the gain with its range, such as "gain 1.53× (1.18× to 1.87×)"."""
        low, middle, high = map(units.ratio, self.gain)
        return f"gain {middle} ({low} to {high})"

    def sentence(self, gains: bool = True) -> str:
        """Return limit, line, change, evidence, gain and examples as one sentence.

        Without `gains`, only a time on a GPU can say what the change gains.
        """
        place = f" at {self.place}" if self.place else ""
        see = f"; see {', '.join(f'`{name}`' for name in self.examples[:2])}" if self.examples else ""
        gain = self.gain_text if gains else UNKNOWN_GAIN
        limit, evidence = (text[:1].upper() + text[1:] for text in (self.binds, self.evidence))
        return f"{limit}{place}: {self.action}. {evidence} ({self.source}); {gain}{see}"


UNKNOWN_GAIN = "gain known only from a time on a GPU"


LIMITS = (
    "coalescing",
    "access width",
    "bank conflicts",
    "atomics",
    "reuse",
    "arithmetic units",
    "instruction issue",
    "barriers",
    "idle multiprocessors",
    "latency",
    "passes over the data",
    "tensor-core feed",
    "launches",
    "wasted work",
    "tail",
    "occupancy",
    "local memory",
    "L2 reuse",
    "divergence",
)
"""The values of `Advice.binds`."""


def advise(
    facts: Facts,
    problems: Sequence[Diagnosis] = (),
    used: Collection[str] = (),
    remedies: Callable[[str], Sequence[str]] = lambda _: (),
    least: float = 1 / NEAR,
) -> list[Advice]:
    """Return all advice on a case, the strongest first; none for a case below `least` times its lower bound.

    `problems` are the diagnoses of the counted problem, which know lines. `used` are the mechanisms that the variant's
    header names: they are advised only if no rule knows another one. `remedies` returns the variants with a mechanism.
    """
    if facts.over_bound < least:
        return []
    strongest: dict[str, Recommendation] = {}
    for rule in RULES:
        for found in rule(facts):
            if found[1] > strongest.get(found[0], ("", 0.0))[1]:
                strongest[found[0]] = found
    named = [_advice(*found, _gain(found[0], facts), problems, remedies) for found in strongest.values()]
    ranked = sorted(named, key=lambda one: -one.strength)
    fresh = [one for one in ranked if one.mechanism not in used]
    lines = advise_lines(problems, facts.over_bound, used, facts.kind, facts.bound_s)
    others = [one for one in lines if one.mechanism not in strongest]
    if fresh or others or facts.over_bound * NEAR < 1.0:
        return sorted((*fresh, *others), key=lambda one: -one.strength)
    return [replace(one, in_use=True, strength=0.0) for one in ranked[:1]]


def _gain(mechanism: str, facts: Facts) -> Gain:
    """Return the expected gain of a mechanism in a case with these facts."""
    return expected_gain(mechanism, distance_of(mechanism, facts), facts.kind, facts.bound_s)


def advise_lines(
    problems: Sequence[Diagnosis],
    over_bound: float = 1.0,
    used: Collection[str] = (),
    kind: KernelKind = "stream",
    bound_s: float = 0.0,
) -> list[Advice]:
    """Return advice from the counted problems of lines alone, the costliest first: without machine code or launch.

    The gains follow from the multiple of the lower bound and the bound `bound_s` in seconds, 0 if it is not known.
    """
    first: dict[str, Diagnosis] = {}
    for problem in problems:
        if problem.mechanism not in used:
            first.setdefault(problem.mechanism, problem)
    return [
        _advice(
            problem.mechanism,
            OF_A_LINE * min(1.0, problem.share),
            BOUND_BY.get(problem.kind, problem.kind),
            problem.source,
            problem.evidence,
            expected_gain(problem.mechanism, over_bound, kind, bound_s),
            problems,
            lambda _, found=problem: found.remedies,  # type: ignore[misc]
        )
        for problem in first.values()
    ]


def _advice(
    mechanism: str,
    strength: float,
    binds: str,
    source: str,
    evidence: str,
    gain: Gain,
    problems: Sequence[Diagnosis],
    remedies: Callable[[str], Sequence[str]],
) -> Advice:
    """Return one piece of advice with the lines whose counted problem the mechanism cures."""
    lines = [problem for problem in problems if problem.mechanism == mechanism and problem.line]
    same = [one for one in lines if (one.file, one.kind, one.unit) == (lines[0].file, lines[0].kind, lines[0].unit)]
    return Advice(
        mechanism=mechanism,
        binds=binds,
        source=source,
        evidence=evidence,
        strength=strength,
        gain=gain,
        file=lines[0].file if lines else "",
        line=lines[0].line if lines else 0,
        called_from=lines[0].called_from if lines else 0,
        further_lines=tuple(sorted({one.line for one in same} - {lines[0].line})) if lines else (),
        avoidable_share=min(1.0, sum(one.share for one in same)),
        examples=tuple(remedies(mechanism)),
    )


OF_A_LINE = 0.4
"""The strength of a problem of a line that all passes go to and that no rule knows: below those of the rules."""
BOUND_BY = {
    "uncoalesced": "coalescing",
    "strided": "coalescing",
    "scalar path": "access width",
    "narrow": "access width",
    "re-read": "reuse",
    "shared loads": "reuse",
    "atomic collisions": "atomics",
}
"""The limit that a kind of problem of `opbench.insight.diagnosis` belongs to, where the words differ."""
