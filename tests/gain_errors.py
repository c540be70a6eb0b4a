"""Shows where the estimated gains are wrong, and whether more knowledge of a step would make them right.

python tests/gain_errors.py   # write the tables of docs/advice.md, after tests/advice_score.py
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from statistics import median

import advice_score
from advice_score import Step, advised_mechanism, estimate_without, expected_by, is_close, record
from opbench import units
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.insight.facts import time_over_bound_for
from opbench.insight.gains import MIN_DISTANCE, Gain, GainEstimate, MeasuredStep, committed_steps
from opbench.insight.levels import bounds, levels
from opbench.tables import markdown_table

PAGE = advice_score.PAGE
MARKS = ("<!-- gains -->\n", "<!-- end of gains -->\n")
DISTANCES = (1.0, 2.0, 5.0, 20.0, math.inf)
"""Limits of the classes of distances from the lower bound."""
KINDS = {"stream": "few FLOPs per byte", "product": "products on CUDA cores", "tensor": "tensor cores"}
ESTIMATE_HEADINGS = (
    "the estimate knows",
    "steps",
    "gain within ±25 %",
    "opbench on the same steps",
    "at each problem",
    "opbench, at each problem",
)
SAME_BOUND = 1.03
"""Problems whose lower bounds differ by less are taken for the same problem."""
Estimate = Callable[[Step, str], Gain | None]
"""The estimated gain of a step with one of its mechanisms; None if it cannot be estimated."""


def promised(steps: Sequence[Step]) -> list[tuple[Step, str, Gain]]:
    """Return the steps of which one of the first three pieces of advice names a mechanism, with it and its gain."""
    found = []
    for step in advice_score.cures(steps):
        gain = advice_score.promise(step)
        if gain is not None:
            found.append((step, advised_mechanism(step), gain))
    return found


def tables(steps: Sequence[Step]) -> str:
    """Return both tables in Markdown: the errors by kind and distance, and estimates that know less or more."""
    rows = promised(steps)
    heads = [_class_name(low, high) for low, high in pairwise(DISTANCES)]
    errors = []
    for kind, name in KINDS.items():
        of_kind = [row for row in rows if row[0].facts.kind == kind]
        errors.append([name, *(_cell(of_kind, low, high) for low, high in pairwise(DISTANCES))])
    everywhere = promised([step for several in measured().values() for step in several])
    estimates = []
    for name, estimate in ESTIMATES.items():
        number, shares = _compared(estimate, rows)
        shares += _compared(estimate, everywhere)[1]
        estimates.append([name, str(number), *map(units.percent, shares)])
    lines = [*markdown_table(("times the bound", *heads), errors), "", *markdown_table(ESTIMATE_HEADINGS, estimates)]
    return "\n".join(lines) + "\n"


def _compared(estimate: Estimate, rows: Sequence[tuple[Step, str, Gain]]) -> tuple[int, list[float]]:
    """Return the number of steps that an estimate knows, and the share of close gains by it and by opbench."""
    known = [(step, gain, own) for step, mechanism, own in rows if (gain := estimate(step, mechanism)) is not None]
    close = sum(is_close(gain.middle, step.gain) for step, gain, _ in known)
    own_close = sum(is_close(own.middle, step.gain) for step, _, own in known)
    return len(known), [close / len(known), own_close / len(known)]


def _class_name(low: float, high: float) -> str:
    return f"{low:g} to {high:g}" if high < math.inf else f"more than {low:g}"


def _cell(rows: Sequence[tuple[Step, str, Gain]], low: float, high: float) -> str:
    """Return the share of close estimates, the number of steps, and the median of estimated by measured gain."""
    inside = [
        (step, gain) for step, mechanism, gain in rows if low <= time_over_bound_for(mechanism, step.facts) < high
    ]
    if not inside:
        return ""
    close = sum(is_close(gain.middle, step.gain) for step, gain in inside)
    ratio = median(gain.middle / step.gain for step, gain in inside)
    return f"{units.percent(close / len(inside))} of {len(inside)} ({ratio:.2f})"


def _without_bound(step: Step, mechanism: str) -> Gain:
    return expected_by(estimate_without(step.operator), step, mechanism, 0.0)


def _with_bound(step: Step, mechanism: str) -> Gain:
    return expected_by(estimate_without(step.operator), step, mechanism, step.facts.bound_s)


def _from(step: Step, mechanism: str, keep: Callable[[MeasuredStep], bool]) -> Gain | None:
    steps = [one for one in committed_steps() if one.operator != step.operator and keep(one)]
    return expected_by(GainEstimate(steps), step, mechanism, step.facts.bound_s) if steps else None


def _other_problems(step: Step, mechanism: str) -> Gain | None:
    bound_us = step.facts.bound_s * 1e6
    return _from(step, mechanism, lambda one: max(one.bound_us / bound_us, bound_us / one.bound_us) > SAME_BOUND)


def _all_changes(step: Step, mechanism: str) -> Gain | None:
    """Estimate from steps that share at least half of all changes, if there are any."""

    def alike(one: MeasuredStep) -> bool:
        return 2 * len(step.mechanisms & set(one.mechanisms)) >= len(step.mechanisms | set(one.mechanisms))

    return _from(step, mechanism, alike) or _with_bound(step, mechanism)


@cache
def measured() -> dict[tuple[str, str, str], list[Step]]:
    """Return all measured steps, by operator and both variants."""
    found = defaultdict(list)
    for step in advice_score.measured_steps():
        found[step.operator, step.lower, step.upper].append(step)
    return dict(found)


def _same_variants(step: Step, mechanism: str) -> Gain | None:
    """Estimate from the same step at other problems; None if it was measured at one problem only."""
    several = measured()[step.operator, step.lower, step.upper]
    return _by_own(step, mechanism, [one for one in several if one.problem != step.problem])


def _same_problem(step: Step, mechanism: str) -> Gain | None:
    """Estimate from the same step at the same problem in other runs; None if it was measured in one run only."""
    several = measured()[step.operator, step.lower, step.upper]
    return _by_own(step, mechanism, [one for one in several if one.problem == step.problem and one != step])


def _by_own(step: Step, mechanism: str, others: Sequence[Step]) -> Gain | None:
    known = [one for other in others if other.gain > 1.0 and (one := record(other)).distance > MIN_DISTANCE]
    return expected_by(GainEstimate(known), step, mechanism, step.facts.bound_s) if known else None


def _traffic_of_both(step: Step, mechanism: str) -> Gain | None:
    """Take the ratio of the least times that the counted traffic of both variants allows."""
    before, after = (over_compulsory(case) for case in step.counted)
    return Gain(*(3 * [max(1.0, before / after)])) if before and after else None


@cache
def over_compulsory(case: str) -> float | None:
    """Return the least time that a counted case's traffic takes, divided by that of its compulsory bytes."""
    run = advice_score.counted_run()
    counted = next((one for one in run.results if one.case == case), None)
    found = levels(run.traffic[case], counted.resources) if counted else None
    if counted is None or found is None or not counted.compulsory_bytes:
        return None
    limits = bounds(found, 0, "", committed_ceilings("h200"), counted.compulsory_bytes)
    times = {limit.limit: limit.time_s for limit in limits if limit.limit != "launch"}
    return max(times.values()) / times["compulsory"]


ESTIMATES: dict[str, Estimate] = {
    "mechanism, kind of kernel and distance": _without_bound,
    "also the lower bound in seconds: the full estimate of opbench": _with_bound,
    "full estimate, without steps of other operators at the same lower bound": _other_problems,
    "full estimate, and every change that the step makes": _all_changes,
    "the same two variants at other problems": _same_variants,
    "the same two variants at the same problem, in another run": _same_problem,
    "only the counted traffic of both variants": _traffic_of_both,
}


def page(steps: Sequence[Step]) -> str:
    """Return the text of docs/advice.md with these tables."""
    before, rest = PAGE.read_text().split(MARKS[0])
    return before + MARKS[0] + tables(steps) + MARKS[1] + rest.split(MARKS[1])[1]


if __name__ == "__main__":
    PAGE.write_text(page(advice_score.steps(one for several in measured().values() for one in several)))
