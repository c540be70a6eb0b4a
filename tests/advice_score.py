"""Scores the advice on the ladders: does it name the mechanism of the next variant, and the gain that it brought?

python tests/advice_score.py            # write the table of docs/advice.md and opbench/insight/gains.py
python tests/advice_score.py --misses   # print the ladder steps whose mechanism is not the first advice
python tests/advice_score.py --steps    # print every measured step, and whether it was held out
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nsight_rules
from nsight_rules import Suggestion
from opbench import units
from opbench.insight.advice import Advice, Facts, advise, distance_of
from opbench.insight.gains import DISTANCES, Gain, KernelKind, Shares
from opbench.kernels.folders import Catalog
from opbench.results.advice import measured_facts, most_alike
from opbench.results.files import read_run
from opbench.results.result import Result

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "reports/h100"
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
)
CURE = 1.05
"""A ladder step that gains less is no cure."""
CLOSE = 1.25
"""A promised gain within this factor of the measured one is right."""
OTHER_MECHANISM, OTHER_KIND = 0.03, 0.2
"""The weight of steps with another mechanism and of steps of another kind of kernel."""
REACH = 2.0
"""On the logarithmic scale, the distance over which the weight of a step falls to 1 / e.

These three were chosen by leaving out one operator at a time, among those that are not held out."""
KINDS: tuple[KernelKind, ...] = ("stream", "product", "tensor")
PAGE = ROOT / "docs/advice.md"
MARKS = ("<!-- scores -->\n", "<!-- end of scores -->\n")
TABLE = ROOT / "opbench/insight/gains.py"


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

    @property
    def held_out(self) -> bool:
        """Return whether the operator belongs to the third that was not used for rules and gains."""
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


def measured_steps(runs: Path = RUNS) -> list[Step]:
    """Return the steps of all ladders at each problem of a run that measured both variants."""
    catalog = Catalog()
    counted = read_run(runs / "counters-cpu")
    counts: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in counted.results:
        if result.case in counted.traffic:
            counts[result.operator, result.variant].append(result)
    found = []
    for part in PARTS:
        run = read_run(runs / part)
        problems: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for result in run.results:
            problems[result.operator, result.problem].append(result)
        for (operator, problem), results in problems.items():
            headers = {variant.name: variant for variant in catalog.variants(operator)}
            by_variant = fastest(results)
            for name, upper in by_variant.items():
                lower = by_variant.get(headers[name].builds_on) if name in headers else None
                like = most_alike(lower, counts[operator, lower.variant]) if lower else None
                if lower is None or like is None or lower.variant not in headers:
                    continue
                gain = lower.measurement.median_s / upper.measurement.median_s  # type: ignore[union-attr]
                facts = measured_facts(
                    lower, run.ceilings_of(lower), counted.traffic[like.case], like.compulsory_bytes, like.resources
                )
                if facts is None:
                    continue
                added = frozenset(headers[name].mechanism) - frozenset(headers[lower.variant].mechanism)
                found.append(
                    Step(
                        operator,
                        lower.variant,
                        name,
                        lower.case,
                        problem,
                        gain,
                        added,
                        facts,
                        tuple(advise(facts, (), headers[lower.variant].mechanism)),
                    )
                )
    return found


def cures(found: Sequence[Step]) -> list[Step]:
    """Return the steps that gain and name what is new: only they have an answer to be found."""
    return [step for step in found if step.gain > CURE and step.mechanisms]


def fitted(measured: Sequence[Step]) -> dict[str, dict[KernelKind, Shares]]:
    """Return the shares of the logarithmic distance that steps closed, without held-out steps.

    A share is the median of all steps at all their problems, weighed by how alike they are: the same mechanism, the
    same kind of kernel, a near distance. The low and the high share leave out a tenth each.
    """
    used = [step for step in cures(measured) if not step.held_out]
    problems = Counter((step.operator, step.lower, step.upper) for step in used)
    points = [
        (mechanism, step.facts.kind, math.log(distance), min(1.2, math.log(step.gain) / math.log(distance)), 1 / count)
        for step in used
        for mechanism in step.mechanisms
        if (distance := distance_of(mechanism, step.facts)) > CURE
        for count in [problems[step.operator, step.lower, step.upper]]
    ]

    def shares(mechanism: str, kind: KernelKind, distance: float) -> Gain:
        weighed = [
            (
                share,
                weight
                * (1.0 if mechanism in ("", added) else OTHER_MECHANISM)
                * (1.0 if of == kind else OTHER_KIND)
                * math.exp(-abs(position - math.log(distance)) / REACH),
            )
            for added, of, position, share, weight in points
        ]
        return Gain(*(round(_quantile(weighed, part), 2) for part in (0.1, 0.5, 0.9)))

    return {
        mechanism: {kind: tuple(shares(mechanism, kind, one) for one in DISTANCES) for kind in KINDS}  # type: ignore[misc]
        for mechanism in ["", *sorted({point[0] for point in points})]
    }


def _quantile(weighed: Sequence[tuple[float, float]], part: float) -> float:
    """Return the value below which a part of the weights lies."""
    below, whole = 0.0, sum(weight for _, weight in weighed)
    for value, weight in sorted(weighed):
        below += weight
        if below >= part * whole:
            return value
    raise AssertionError("no steps")


def write_gains(gains: dict[str, dict[KernelKind, Shares]]) -> str:
    """Return the text of opbench/insight/gains.py with other numbers."""
    head, _, rest = TABLE.read_text().partition("] = {\n")
    lines = []
    for name, kinds in gains.items():
        lines.append(f'    "{name}": {{')
        for kind, shares in kinds.items():
            lines.append(f'        "{kind}": ({", ".join(_call(gain) for gain in shares)}),')
        lines.append("    },")
    return head + "] = {\n" + "\n".join(lines) + "\n}\n" + rest.rpartition("\n}\n")[2]


def _call(gain: Gain) -> str:
    return f"Gain({gain.low}, {gain.middle}, {gain.high})"


def promise(step: Step) -> Gain | None:
    """Return what the advice of the step's mechanism promises; None if no advice of three names it."""
    return next((one.gain for one in step.advice[:3] if one.mechanism in step.mechanisms), None)


def is_close(expected: float, gain: float) -> bool:
    """Return whether a promised gain is right."""
    return 1 / CLOSE <= expected / gain <= CLOSE


def table(measured: Sequence[Step]) -> str:
    """Return the scores in Markdown: all cures, the third that was held out, each mechanism, and the operators."""
    answered = cures(steps(measured))
    everywhere = cures(measured)
    rows = [
        ("all steps", answered),
        ("used for rules and gains", [step for step in answered if not step.held_out]),
        ("held out", [step for step in answered if step.held_out]),
    ]
    lines = [
        "| ladder steps | number | first advice | among the first three | gain within ±25 % | gain within its range |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    peer = nsight_rules.read([step.case for step in answered])
    rows.append(("those that Nsight Compute measured", [step for step in answered if step.case in peer]))
    lines += [_row(name, several) for name, several in rows]
    lines.append(_peer_row("Nsight Compute's rules on them", peer, rows[-1][1]))
    lines.append(_row("all steps, at each problem where they gain", everywhere))
    lines.append(_row("held out, at each such problem", [step for step in everywhere if step.held_out]))
    by_mechanism = defaultdict(list)
    for step in answered:
        for mechanism in step.mechanisms:
            by_mechanism[mechanism].append(step)
    lines += ["", "| mechanism | steps with it | first advice names it | among the first three |", "|---|--:|--:|--:|"]
    for mechanism, several in sorted(by_mechanism.items(), key=lambda item: (-len(item[1]), item[0])):
        first = sum(any(one.mechanism == mechanism for one in step.advice[:1]) for step in several)
        three = sum(any(one.mechanism == mechanism for one in step.advice[:3]) for step in several)
        lines.append(f"| `{mechanism}` | {len(several)} | {first} | {three} |")
    for name, held_out in (("Held out", True), ("Used for rules and gains", False)):
        operators = Counter(step.operator for step in steps(measured) if step.held_out == held_out)
        text = ", ".join(f"`{operator}` {count}" for operator, count in sorted(operators.items()))
        lines += ["", f"{name}, with the number of measured steps: {text}."]
    return "\n".join(lines) + "\n"


def _row(name: str, several: Sequence[Step]) -> str:
    promises = [(step, gain) for step in several if (gain := promise(step)) is not None]
    shares = [sum(step.within(count) for step in several) / len(several) for count in (1, 3)]
    shares.append(sum(is_close(gain.middle, step.gain) for step, gain in promises) / len(promises))
    # A range is printed with three digits.
    shares.append(sum(gain.low <= 1.005 * step.gain <= 1.01 * gain.high for step, gain in promises) / len(promises))
    return f"| {name} | {len(several)} | {' | '.join(units.percent(share) for share in shares)} |"


def _peer_row(name: str, suggestions: dict[str, list[Suggestion]], steps: Sequence[Step]) -> str:
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
    return f"| {name} | {len(measured)} | {' | '.join(units.percent(share) for share in shares)} | |"


def page(measured: Sequence[Step]) -> str:
    """Return the text of docs/advice.md with these scores."""
    before, rest = PAGE.read_text().split(MARKS[0])
    return before + MARKS[0] + table(measured) + MARKS[1] + rest.split(MARKS[1])[1]


def main(arguments: Sequence[str]) -> None:
    """Write both files, or print the misses."""
    measured = measured_steps()
    found = steps(measured)
    if "--steps" in arguments:
        for step in found:
            used = "held out" if step.held_out else "used"
            print(f"{step.operator}/{step.lower} -> {step.upper}: {step.gain:.2f} at {step.problem}, {used}")
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
                    "held out" if step.held_out else "",
                )
        print(table(measured))
        return
    table_text = write_gains(fitted(measured))
    if table_text != TABLE.read_text():
        TABLE.write_text(table_text)
        print(f"wrote {TABLE.relative_to(ROOT)}; run the same command again for the scores of these gains")
        return
    PAGE.write_text(page(measured))


if __name__ == "__main__":
    main(sys.argv[1:])
