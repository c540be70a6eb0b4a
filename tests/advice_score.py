"""Scores the advice on the ladders: does it name the mechanism of the next variant, and the gain that it brought?

python tests/advice_score.py            # write the tables of docs/advice.md and opbench/insight/ladder_steps.csv
python tests/advice_score.py --misses   # print the ladder steps whose mechanism is not the first advice
python tests/advice_score.py --steps    # print every measured step, and whether it is in the test set
python tests/advice_score.py --cases    # count the cases far from their bound, those with advice, and those to tune
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import nsight_rules
from nsight_rules import Suggestion
from opbench import units
from opbench.insight.advice import NEAR_FRACTION, Advice, advise
from opbench.insight.facts import Facts, time_over_bound_for
from opbench.insight.gains import STEPS_FILE, Gain, GainEstimate, MeasuredStep, committed_steps
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.records import from_json, read_json
from opbench.results.advice import measured_facts, shared_modes
from opbench.results.files import read_run
from opbench.results.result import Result
from opbench.results.run_data import RunData
from opbench.tables import markdown_table

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "reports/h200"
COUNTED = ROOT / "reports/h100/counters-cpu"
"""The run on the CPU that counted accesses; they do not depend on the card."""
PARTS = (
    "quick",
    "full",
    "layers",
    "gradients",
    "hopper",
    "mma",
    "norms",
    "activations",
    "convolutions",
    "attention",
    "reductions",
    "language",
    "products",
    "quantised",
    "sorts",
    "segments",
    "latent_attention",
    "token_sampling",
)
CURE = 1.05
"""A ladder step that gains less is no cure."""
CLOSE = 1.25
"""A promised gain within this factor of the measured one is right."""
PAGE = ROOT / "docs/advice.md"
MARKS = ("<!-- scores -->\n", "<!-- end of scores -->\n")


def most_similar_counted_result(measured: Result, counted: Iterable[Result]) -> Result | None:
    """Return the counted result that represents a measured one; None if no counted result has the same variant.

    Results with more equal modes come first, then those with the same config, then those of larger problems.
    """
    alike = [result for result in counted if (result.operator, result.variant) == (measured.operator, measured.variant)]

    def likeness(result: Result) -> tuple[int, bool, int]:
        return shared_modes(measured.axes, result.axes), result.config == measured.config, result.compulsory_bytes

    return max(alike, key=likeness, default=None)


@dataclass(frozen=True)
class Step:
    """A step of a ladder, measured in one run: from the lower variant to the upper one, each in its fastest config."""

    operator: str
    lower: str
    upper: str
    case: str
    """That of the lower variant."""
    problem: str
    gain: float
    """Time of the lower variant divided by the time of the upper one."""
    mechanisms: frozenset[str]
    """Those that the upper variant's header names and the lower one's does not."""
    facts: Facts
    advice: tuple[Advice, ...]
    counted: tuple[str, str]
    """The cases on the CPU whose accesses were counted for the lower and the upper variant; empty if there is none."""

    @property
    def in_test_set(self) -> bool:
        """Return whether the operator belongs to the third that was not used to develop rules and gains."""
        return int(hashlib.md5(self.operator.encode()).hexdigest(), 16) % 3 == 0

    @property
    def over_bound(self) -> float:
        """Return the time of the lower variant divided by the lower bound of the problem."""
        return self.facts.over_bound

    def within(self, count: int) -> bool:
        """Return whether one of the first `count` pieces of advice names a mechanism of the step."""
        return any(one.mechanism in self.mechanisms for one in self.advice[:count])


def fastest(results: Iterable[Result]) -> dict[str, Result]:
    """Return each variant's fastest right case."""
    found: dict[str, Result] = {}
    for result in results:
        if result.status != "right" or result.measurement is None:
            continue
        other = found.get(result.variant)
        if other is None or result.measurement.median_s < other.measurement.median_s:  # type: ignore[union-attr]
            found[result.variant] = result
    return found


def steps(measured: Iterable[Step]) -> list[Step]:
    """Return every step of a ladder once, at the problem where it gained most."""
    best: dict[tuple[str, str, str], Step] = {}
    for step in measured:
        key = step.operator, step.lower, step.upper
        if key not in best or best[key].gain < step.gain:
            best[key] = step
    return list(best.values())


def step_between(
    lower: Variant,
    upper: Variant,
    case: str,
    problem: str,
    gain: float,
    facts: Facts,
    counted: tuple[str, str] = ("", ""),
) -> Step:
    """Return a measured step with its mechanisms, by the headers of both variants, and the advice on the lower one."""
    added = frozenset(upper.mechanism) - frozenset(lower.mechanism)
    advice = tuple(advise(facts, (), lower.mechanism))
    return Step(lower.operator, lower.name, upper.name, case, problem, gain, added, facts, advice, counted)


@cache
def counted_run() -> RunData:
    """Return the run on the CPU that counted accesses."""
    return read_run(COUNTED)


@cache
def counted_results() -> dict[tuple[str, str], list[Result]]:
    """Return the counted results of each variant, by operator and name."""
    counts: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in counted_run().results:
        if result.case in counted_run().traffic:
            counts[result.operator, result.variant].append(result)
    return counts


def counted_like(measured: Result) -> Result | None:
    """Return the counted result that represents a measured one; None if its variant was not counted."""
    return most_similar_counted_result(measured, counted_results().get((measured.operator, measured.variant), ()))


def facts_by_counts(measured: Result, run: RunData, like: Result) -> Facts | None:
    """Return the facts of a measured result with the accesses of a counted one."""
    traffic = counted_run().traffic[like.case]
    return measured_facts(measured, run.ceilings_of(measured), traffic, like.compulsory_bytes, like.resources)


def advice_far_from_bound() -> dict[tuple[str, str], tuple[Advice, ...]]:
    """Return the advice on each counted case that is not near its bound, by run and case."""
    catalog = Catalog()
    found = {}
    for part in PARTS:
        run = read_run(RUNS / part)
        for result in run.results:
            like = counted_like(result) if result.status == "right" and result.measurement else None
            facts = facts_by_counts(result, run, like) if like else None
            if facts is not None and facts.over_bound * NEAR_FRACTION >= 1.0:
                used = catalog.variant(result.operator, result.variant).mechanism
                found[part, result.case] = tuple(advise(facts, (), used))
    return found


def measured_steps(runs: Path = RUNS) -> list[Step]:
    """Return the steps of all ladders at each problem of a run that measured both variants."""
    catalog = Catalog()
    found = []
    for folder in (runs / part for part in PARTS if (runs / part).exists()):
        run = read_run(folder)
        problems: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in run.results:
            problems[result.operator, result.problem].append(result)
        for (operator, problem), results in problems.items():
            headers = {variant.name: variant for variant in catalog.variants(operator)}
            by_variant = fastest(results)
            for name, upper in by_variant.items():
                lower = by_variant.get(headers[name].builds_on) if name in headers else None
                like = counted_like(lower) if lower else None
                if lower is None or like is None or lower.variant not in headers:
                    continue
                gain = lower.measurement.median_s / upper.measurement.median_s  # type: ignore[union-attr]
                facts = facts_by_counts(lower, run, like)
                if facts is None:
                    continue
                upper_like = counted_like(upper)
                cases = like.case, upper_like.case if upper_like else ""
                step = step_between(headers[lower.variant], headers[name], lower.case, problem, gain, facts, cases)
                found.append(step)
    return found


def peer_steps() -> list[Step]:
    """Return the steps whose lower variants Nsight Compute's rules saw, as measured on the same model of card."""
    catalog = Catalog()
    return [
        step_between(
            catalog.variant(one["operator"], one["lower"]),
            catalog.variant(one["operator"], one["upper"]),
            one["case"],
            one["problem"],
            one["gain"],
            from_json(Facts, one["facts"]),
        )
        for one in read_json(nsight_rules.STEPS, "")
    ]


def cures(found: Sequence[Step]) -> list[Step]:
    """Return the steps that gain and name what is new: only they have an answer to be found."""
    return [step for step in found if step.gain > CURE and step.mechanisms]


def used_steps(measured: Sequence[Step]) -> list[MeasuredStep]:
    """Return the steps that gains are estimated from: those that gain, at each problem, without the test set."""
    return [record(step) for step in cures(measured) if not step.in_test_set]


def record(step: Step) -> MeasuredStep:
    """Return what an estimate of gains uses of a step, with four digits."""
    return MeasuredStep(
        step.operator,
        step.lower,
        step.upper,
        tuple(sorted(step.mechanisms)),
        step.facts.kind,
        *(float(f"{value:.4g}") for value in (distance_after(step), step.facts.bound_s * 1e6, step.gain)),
    )


def distance_after(step: Step) -> float:
    """Return the time before the step divided by the lower bound that holds after it."""
    return max(time_over_bound_for(mechanism, step.facts) for mechanism in step.mechanisms)


def write_steps(steps: Sequence[MeasuredStep]) -> str:
    """Return the text of opbench/insight/ladder_steps.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(MeasuredStep._fields)
    for step in sorted(steps):
        writer.writerow(" ".join(value) if isinstance(value, tuple) else value for value in step)
    return text.getvalue()


@cache
def estimate_without(operator: str) -> GainEstimate:
    """Return an estimate that never saw an operator."""
    return GainEstimate([step for step in committed_steps() if step.operator != operator])


def advised_mechanism(step: Step) -> str:
    """Return the first mechanism of the step among the first three pieces of advice; an empty string without one."""
    return next((one.mechanism for one in step.advice[:3] if one.mechanism in step.mechanisms), "")


def promise(step: Step) -> Gain | None:
    """Return the estimated gain of the step's mechanism; None if none of the first three pieces of advice names it.

    Steps of the same operator are excluded from the estimate, so no step is judged by itself.
    """
    mechanism = advised_mechanism(step)
    return expected_by(estimate_without(step.operator), step, mechanism, step.facts.bound_s) if mechanism else None


def expected_by(estimate: GainEstimate, step: Step, mechanism: str, bound_s: float) -> Gain:
    """Return the gain of a mechanism in a step's case by an estimate; with `bound_s` 0 the lower bound is not used."""
    return estimate.expected(mechanism, time_over_bound_for(mechanism, step.facts), step.facts.kind, bound_s)


def is_close(expected: float, gain: float) -> bool:
    """Return whether a promised gain is right."""
    return 1 / CLOSE <= expected / gain <= CLOSE


SCORE_HEADINGS = (
    "ladder steps",
    "number",
    "first advice",
    "among the first three",
    "gain within ±25 %",
    "gain within its range",
    "high / low of the range",
)
PEER_HEADINGS = ("advice on steps of an H100", *SCORE_HEADINGS[1:5])
MECHANISM_HEADINGS = (
    "mechanism",
    "steps that add it",
    "that add only it",
    "first advice names it",
    "among the first three",
)


def table(measured: Sequence[Step]) -> str:
    """Return the scores in Markdown: all cures, development set, test set, each mechanism, and the operators."""
    answered = cures(steps(measured))
    everywhere = cures(measured)
    rows = [
        ("all steps", answered),
        ("development set", [step for step in answered if not step.in_test_set]),
        ("test set", [step for step in answered if step.in_test_set]),
    ]
    rows += [
        ("all steps, at each problem where they gain", everywhere),
        ("test set, at each such problem", [step for step in everywhere if step.in_test_set]),
    ]
    scores = [_row(name, several) for name, several in rows]
    peer = peer_steps()
    suggestions = nsight_rules.read([step.case for step in peer])
    compared = [_row("opbench", peer)[: len(PEER_HEADINGS)], _peer_row("rules of Nsight Compute", suggestions, peer)]
    by_mechanism = defaultdict(list)
    for step in answered:
        for mechanism in step.mechanisms:
            by_mechanism[mechanism].append(step)
    mechanisms = []
    for mechanism, several in sorted(by_mechanism.items(), key=lambda item: (-len(item[1]), item[0])):
        first = sum(any(one.mechanism == mechanism for one in step.advice[:1]) for step in several)
        three = sum(any(one.mechanism == mechanism for one in step.advice[:3]) for step in several)
        alone = sum(len(step.mechanisms) == 1 for step in several)
        mechanisms.append([f"`{mechanism}`", *map(str, (len(several), alone, first, three))])
    tables = ((SCORE_HEADINGS, scores), (PEER_HEADINGS, compared), (MECHANISM_HEADINGS, mechanisms))
    lines = [line for headings, cells in tables for line in (*markdown_table(headings, cells), "")][:-1]
    for name, in_test_set in (("Test set", True), ("Development set", False)):
        operators = Counter(step.operator for step in steps(measured) if step.in_test_set == in_test_set)
        text = ", ".join(f"`{operator}` {count}" for operator, count in sorted(operators.items()))
        lines += ["", f"{name}, with the number of measured steps: {text}."]
    return "\n".join(lines) + "\n"


def _row(name: str, several: Sequence[Step]) -> list[str]:
    promises = [(step, gain) for step in several if (gain := promise(step)) is not None]
    shares = [sum(step.within(count) for step in several) / len(several) for count in (1, 3)]
    shares.append(sum(is_close(gain.middle, step.gain) for step, gain in promises) / len(promises))
    # A range is printed with three digits.
    shares.append(sum(gain.low <= 1.005 * step.gain <= 1.01 * gain.high for step, gain in promises) / len(promises))
    width = units.ratio(median(gain.high / gain.low for _, gain in promises))
    return [name, str(len(several)), *map(units.percent, shares), width]


def _peer_row(name: str, suggestions: dict[str, list[Suggestion]], steps: Sequence[Step]) -> list[str]:
    measured = [(step, suggestions[step.case]) for step in steps]
    shares = [
        sum(any(one.mechanisms & step.mechanisms for one in several[:count]) for step, several in measured)
        / len(measured)
        for count in (1, 3)
    ]
    promises = [
        is_close(one.gain, step.gain)
        for step, several in measured
        for one in several[:3]
        if one.mechanisms & step.mechanisms
    ]
    shares.append(sum(promises) / len(promises))
    return [name, str(len(measured)), *map(units.percent, shares)]


def page(measured: Sequence[Step]) -> str:
    """Return the text of docs/advice.md with these scores."""
    before, rest = PAGE.read_text().split(MARKS[0])
    return before + MARKS[0] + table(measured) + MARKS[1] + rest.split(MARKS[1])[1]


def main(arguments: Sequence[str]) -> None:
    """Write both files, or print the misses, the steps or the numbers of cases."""
    if "--cases" in arguments:
        advised = advice_far_from_bound().values()
        tuned = sum(advice[0].in_use for advice in advised if advice)
        print(f"{len(advised)} cases, {sum(map(bool, advised))} with advice, {tuned} only to tune")
        return
    measured = measured_steps()
    found = steps(measured)
    if "--steps" in arguments:
        for step in found:
            part = "test set" if step.in_test_set else "development set"
            print(f"{step.operator}/{step.lower} -> {step.upper}: {step.gain:.2f} at {step.problem}, {part}")
        return
    if "--misses" in arguments:
        for step in cures(found):
            if not step.within(1):
                names = [one.mechanism for one in step.advice[:3]]
                print(
                    step.operator,
                    step.lower,
                    step.upper,
                    f"{step.gain:.2f}",
                    sorted(step.mechanisms),
                    names,
                    f"{step.over_bound:.1f}",
                    "test set" if step.in_test_set else "",
                )
        print(table(measured))
        return
    text = write_steps(used_steps(measured))
    if not STEPS_FILE.exists() or text != STEPS_FILE.read_text():
        STEPS_FILE.write_text(text)
        print(f"wrote {STEPS_FILE.relative_to(ROOT)}; run the same command again for the scores of these gains")
        return
    PAGE.write_text(page(measured))


if __name__ == "__main__":
    main(sys.argv[1:])
