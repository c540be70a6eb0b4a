"""Advice on one case: what limits it, the mechanism that removes the limit, and how much that gains.

`opbench.insight.rules` names the mechanisms, `opbench.insight.gains` the gains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from opbench import units
from opbench.backend.findings import place_text
from opbench.insight.diagnosis import Diagnosis
from opbench.insight.facts import Facts, time_over_bound_for
from opbench.insight.gains import Gain, KernelKind, expected_gain
from opbench.insight.rules import RULES, Limit, Recommendation
from opbench.kernels.mechanism import MECHANISMS

NEAR_FRACTION = 0.9
"""A case whose time is less than its lower bound divided by this number gets no advice."""


@dataclass(frozen=True)
class Advice:
    """One mechanism that would make a case faster."""

    mechanism: str
    """A key of `opbench.kernels.mechanism.MECHANISMS`."""
    binds: Limit
    """The limit of the case."""
    source: str
    """How the limit is known: "measured" from launch, time and hardware counters, "counted" on the cpu backend
    ("predicted" if only some blocks were counted), "compiled", or "modelled" from the traffic, without a time."""
    evidence: str
    """The observation behind the advice, as a phrase."""
    strength: float
    """How strong the evidence is, from 0 to 1: it ranks advice and is no probability."""
    gain: Gain
    """Expected time before divided by time after, from similar measured improvements (`opbench.insight.gains`)."""
    file: str = ""
    line: int = 0
    """The line to change; 0 if it is the whole kernel."""
    called_from: int = 0
    """For a line of a header: the calling line in the kernel's own file; otherwise 0."""
    further_lines: tuple[int, ...] = ()
    """Other lines of `file` with the same problem."""
    avoidable_share: float = 0.0
    """Share of all counted passes or requests that `line` and `further_lines` could save; 0 if no line is known."""
    examples: tuple[str, ...] = ()
    """Variants of the operator that use the mechanism."""
    in_use: bool = False
    """Whether the kernel already uses the mechanism, so that only other parameters are left to try."""

    @property
    def action(self) -> str:
        """Return the change to make, as a phrase."""
        change = MECHANISMS[self.mechanism]
        return f"{change}; the kernel does, so search better parameters (opbench tune)" if self.in_use else change

    @property
    def place(self) -> str:
        """Return the place to change, such as "line 12"; "" for the whole kernel."""
        return place_text(self.file, self.line, self.called_from) if self.line else ""

    @property
    def gain_text(self) -> str:
        """Return the gain with its range, such as "gain 1.53× (1.18× to 1.87×)"."""
        low, middle, high = map(units.ratio, self.gain)
        return f"gain {middle} ({low} to {high})"

    def sentence(self, gains: bool = True) -> str:
        """Return limit, line, change, evidence, gain and examples as one sentence.

        Without `gains`, the sentence says instead that only a time on a GPU tells the gain.
        """
        place = f" at {self.place}" if self.place else ""
        see = f"; see {', '.join(f'`{name}`' for name in self.examples[:2])}" if self.examples else ""
        gain = self.gain_text if gains else UNKNOWN_GAIN
        limit, evidence = (text[:1].upper() + text[1:] for text in (self.binds, self.evidence))
        return f"{limit}{place}: {self.action}. {evidence} ({self.source}); {gain}{see}"


UNKNOWN_GAIN = "gain known only from a time on a GPU"


def advise(
    facts: Facts,
    problems: Sequence[Diagnosis] = (),
    mechanisms_in_use: Collection[str] = (),
    variants_with: Callable[[str], Sequence[str]] = lambda _: (),
    min_over_bound: float = 1 / NEAR_FRACTION,
) -> list[Advice]:
    """Return all advice on a case, the strongest first; none for a case below `min_over_bound` times its lower bound.

    `problems` are the problems of lines that `diagnose` found. `mechanisms_in_use` are those that the variant's header
    names: they are advised only if nothing else is. `variants_with` returns the variants that use a mechanism.
    """
    if facts.over_bound < min_over_bound:
        return []
    strongest: dict[str, Recommendation] = {}
    for rule in RULES:
        for recommendation in rule(facts):
            if recommendation[1] > strongest.get(recommendation[0], ("", 0.0))[1]:
                strongest[recommendation[0]] = recommendation
    rule_advice = [
        _make_advice(*recommendation, _expected_gain(recommendation[0], facts), problems, variants_with)
        for recommendation in strongest.values()
    ]
    ranked = sorted(rule_advice, key=lambda advice: -advice.strength)
    new_advice = [advice for advice in ranked if advice.mechanism not in mechanisms_in_use]
    line_advice = advise_lines(problems, facts.over_bound, mechanisms_in_use, facts.kind, facts.bound_s)
    others = [advice for advice in line_advice if advice.mechanism not in strongest]
    if new_advice or others or facts.over_bound * NEAR_FRACTION < 1.0:
        return sorted((*new_advice, *others), key=lambda advice: -advice.strength)
    return [replace(advice, in_use=True, strength=0.0) for advice in ranked[:1]]


def _expected_gain(mechanism: str, facts: Facts) -> Gain:
    """Return the expected gain of a mechanism in a case with these facts."""
    return expected_gain(mechanism, time_over_bound_for(mechanism, facts), facts.kind, facts.bound_s)


def advise_lines(
    problems: Sequence[Diagnosis],
    over_bound: float = 1.0,
    mechanisms_in_use: Collection[str] = (),
    kind: KernelKind = "stream",
    bound_s: float = 0.0,
) -> list[Advice]:
    """Return advice from the problems of lines alone, without machine code or launch, the costliest first.

    The gains follow from `over_bound`, the multiple of the lower bound, and from the bound `bound_s` in seconds, 0 if
    not known.
    """
    costliest: dict[str, Diagnosis] = {}
    for problem in problems:
        if problem.mechanism not in mechanisms_in_use:
            costliest.setdefault(problem.mechanism, problem)
    return [
        _make_advice(
            problem.mechanism,
            LINE_STRENGTH * min(1.0, problem.share),
            LIMIT_OF_PROBLEM[problem.kind],
            problem.source,
            problem.evidence,
            expected_gain(problem.mechanism, over_bound, kind, bound_s),
            problems,
            lambda _, diagnosis=problem: diagnosis.remedies,  # type: ignore[misc]
        )
        for problem in costliest.values()
    ]


def _make_advice(
    mechanism: str,
    strength: float,
    limit: Limit,
    source: str,
    evidence: str,
    gain: Gain,
    problems: Sequence[Diagnosis],
    variants_with: Callable[[str], Sequence[str]],
) -> Advice:
    """Return one piece of advice with the lines that have a problem which the mechanism removes."""
    line_problems = [problem for problem in problems if problem.mechanism == mechanism and problem.line]
    same_kind_problems = [
        problem
        for problem in line_problems
        if (problem.file, problem.kind, problem.unit)
        == (line_problems[0].file, line_problems[0].kind, line_problems[0].unit)
    ]
    return Advice(
        mechanism=mechanism,
        binds=limit,
        source=source,
        evidence=evidence,
        strength=strength,
        gain=gain,
        file=line_problems[0].file if line_problems else "",
        line=line_problems[0].line if line_problems else 0,
        called_from=line_problems[0].called_from if line_problems else 0,
        further_lines=tuple(sorted({problem.line for problem in same_kind_problems} - {line_problems[0].line}))
        if line_problems
        else (),
        avoidable_share=min(1.0, sum(problem.share for problem in same_kind_problems)),
        examples=tuple(variants_with(mechanism)),
    )


LINE_STRENGTH = 0.4
"""The strength of a problem that takes all passes but that no rule finds; most rules are stronger."""
LIMIT_OF_PROBLEM: Mapping[str, Limit] = {
    "uncoalesced": "coalescing",
    "strided": "coalescing",
    "scalar path": "access width",
    "narrow": "access width",
    "re-read": "reuse",
    "shared loads": "reuse",
    "bank conflicts": "bank conflicts",
    "atomic collisions": "atomics",
    "divergence": "divergence",
    "barriers": "barriers",
}
"""The limit that a kind of problem of `opbench.insight.diagnosis` belongs to."""
