"""Scores the advice on the ladders: does it name the mechanism of the next variant, and the gain that it brought?

python tests/advice_score.py            # write the table of docs/advice.md and opbench/insight/gains.py
python tests/advice_score.py --misses   # print the ladder steps whose mechanism is not the first advice
"""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nsight_rules
from nsight_rules import Suggestion
from opbench import units
from opbench.insight.advice import Advice, advise, expected_gain
from opbench.insight.gains import Gain
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
)
CURE = 1.05
"""A ladder step that gains less is no cure."""
CLOSE = 1.25
"""A promised gain within this factor of the measured one is right."""
LEAST_STEPS = 3
"""A mechanism with fewer steps has the gain of all others."""
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
    over_bound: float
    advice: tuple[Advice, ...]

    @property
    def held_out(self) -> bool:
        """Return whether the operator belongs to the third that was not used for rules and gains."""
        return int(hashlib.md5(self.operator.encode()).hexdigest(), 16) % 3 == 0

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


def steps(runs: Path = RUNS) -> list[Step]:
    """Return every step of a ladder whose two variants were measured at one problem of one run: its largest gain."""
    catalog = Catalog()
    counted = read_run(runs / "counters-cpu")
    counts: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in counted.results:
        if result.case in counted.traffic:
            counts[result.operator, result.variant].append(result)
    best: dict[tuple[str, str, str], Step] = {}
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
                key = operator, lower.variant, name
                if key in best and best[key].gain >= gain:
                    continue
                facts = measured_facts(
                    lower, run.ceilings_of(lower), counted.traffic[like.case], like.compulsory_bytes, like.resources
                )
                if facts is None:
                    continue
                added = frozenset(headers[name].mechanism) - frozenset(headers[lower.variant].mechanism)
                best[key] = Step(
                    *key,
                    lower.case,
                    problem,
                    gain,
                    added,
                    facts.over_bound,
                    tuple(advise(facts, (), headers[lower.variant].mechanism)),
                )
    return list(best.values())


def cures(found: Sequence[Step]) -> list[Step]:
    """Return the steps that gain and name what is new: only they have an answer to be found."""
    return [step for step in found if step.gain > CURE and step.mechanisms]


def fitted(found: Sequence[Step]) -> dict[str, Gain]:
    """Return the shares of the logarithmic distance that steps with each mechanism closed, without held-out steps.

    The low and the high share leave out a tenth of the steps each.
    """
    shares: dict[str, list[float]] = defaultdict(list)
    for step in cures(found):
        if step.held_out or step.over_bound <= CURE:
            continue
        for mechanism in step.mechanisms:
            shares[mechanism].append(min(1.2, math.log(step.gain) / math.log(step.over_bound)))
    every = [share for several in shares.values() for share in several]
    kept = {name: several for name, several in sorted(shares.items()) if len(several) >= LEAST_STEPS}
    return {name: _range(several) for name, several in (*kept.items(), ("", every))}


def _range(shares: Sequence[float]) -> Gain:
    tenths = statistics.quantiles(shares, n=10, method="inclusive") if len(shares) > 1 else [shares[0]] * 9
    return Gain(round(tenths[0], 2), round(statistics.median(shares), 2), round(tenths[-1], 2))


def write_gains(gains: dict[str, Gain]) -> str:
    """Return the text of opbench/insight/gains.py with other numbers."""
    head = TABLE.read_text().split("OTHER = ")[0]
    lines = [
        f"OTHER = {_call(gains[''])}",
        '"""For mechanisms with fewer steps than three."""',
        "GAINS: Mapping[str, Gain] = {",
    ]
    lines += [f'    "{name}": {_call(gain)},' for name, gain in gains.items() if name]
    return head + "\n".join([*lines, "}", ""])


def _call(gain: Gain) -> str:
    return f"Gain({gain.low}, {gain.middle}, {gain.high})"


def promised(step: Step) -> bool | None:
    """Return whether the promise of the step's mechanism is close to its gain; None if no advice of three names it."""
    for one in step.advice[:3]:
        if one.mechanism in step.mechanisms:
            expected = expected_gain(one.mechanism, step.over_bound).middle
            return 1 / CLOSE <= expected / step.gain <= CLOSE
    return None


def table(found: Sequence[Step]) -> str:
    """Return the scores as a table of Markdown: all cures, the third that was held out, and each mechanism."""
    answered = cures(found)
    rows = [
        ("all steps", answered),
        ("used for rules and gains", [step for step in answered if not step.held_out]),
        ("held out", [step for step in answered if step.held_out]),
    ]
    lines = [
        "| ladder steps | number | first advice | among the first three | gain within ±25 % |",
        "|---|--:|--:|--:|--:|",
    ]
    peer = nsight_rules.read([step.case for step in answered])
    rows.append(("those that Nsight Compute measured", [step for step in answered if step.case in peer]))
    lines += [_row(name, several) for name, several in rows]
    lines.append(_peer_row("Nsight Compute's rules on them", peer, rows[-1][1]))
    by_mechanism = defaultdict(list)
    for step in answered:
        for mechanism in step.mechanisms:
            by_mechanism[mechanism].append(step)
    lines += ["", "| mechanism | steps with it | first advice names it | among the first three |", "|---|--:|--:|--:|"]
    for mechanism, several in sorted(by_mechanism.items(), key=lambda item: (-len(item[1]), item[0])):
        first = sum(any(one.mechanism == mechanism for one in step.advice[:1]) for step in several)
        three = sum(any(one.mechanism == mechanism for one in step.advice[:3]) for step in several)
        lines.append(f"| `{mechanism}` | {len(several)} | {first} | {three} |")
    return "\n".join(lines) + "\n"


def _row(name: str, several: Sequence[Step]) -> str:
    promises = [kept for step in several if (kept := promised(step)) is not None]
    shares = [units.percent(sum(step.within(count) for step in several) / len(several)) for count in (1, 3)] + [
        units.percent(sum(promises) / len(promises))
    ]
    return f"| {name} | {len(several)} | {' | '.join(shares)} |"


def _peer_row(name: str, suggestions: dict[str, list[Suggestion]], steps: Sequence[Step]) -> str:
    measured = [(step, suggestions[step.case]) for step in steps]
    shares = [
        sum(any(one.mechanisms & step.mechanisms for one in several[:count]) for step, several in measured)
        / len(measured)
        for count in (1, 3)
    ]
    promises = [
        1 / CLOSE <= one.gain / step.gain <= CLOSE
        for step, several in measured
        for one in several[:3]
        if one.mechanisms & step.mechanisms
    ]
    shares.append(sum(promises) / len(promises))
    return f"| {name} | {len(measured)} | {' | '.join(units.percent(share) for share in shares)} |"


def page(found: Sequence[Step]) -> str:
    """Return the text of docs/advice.md with these scores."""
    before, rest = PAGE.read_text().split(MARKS[0])
    return before + MARKS[0] + table(found) + MARKS[1] + rest.split(MARKS[1])[1]


def main(arguments: Sequence[str]) -> None:
    """Write both files, or print the misses."""
    found = steps()
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
        print(table(found))
        return
    TABLE.write_text(write_gains(fitted(found)))
    if PAGE.exists():
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main(sys.argv[1:])
