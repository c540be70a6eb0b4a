"""Scores the first advice on kernels of strangers: the gain that it promises and the gain that following it brings.

python tests/strangers_score.py ADVICE.json   # from `opbench advise RUN --json`: write scores and page
python tests/strangers_score.py               # write the table of docs/advice.md from the scores
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opbench import units
from opbench.kernels.folders import Catalog
from opbench.kernels.mechanism import MECHANISMS
from opbench.kernels.variant import Variant
from opbench.results.files import read_run
from opbench.results.result import Result
from opbench.tables import markdown_table
from opbench.timing.stats import Ratio, median_ratio

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "reports/h200/strangers"
KERNELS = FOLDER / "kernels"
SCORES = FOLDER / "scores.json"
PAGE = ROOT / "docs/advice.md"
MARKS = ("<!-- strangers -->\n", "<!-- end of strangers -->\n")
FASTER = 1.05
"""A change that gains less is no gain."""
CLOSE = 1.25
"""A promised gain within this factor of the measured one is right."""


@dataclass(frozen=True)
class Score:
    """The first advice on one kernel and what it brought; times in seconds."""

    kernel: str
    """Operator and name, such as "transpose/tile16"."""
    problem: str
    bound_s: float
    """The lower bound of the problem."""
    before_s: float
    after_s: float | None
    """None if the kernel after the advice was not measured."""
    gain: float | None
    """`before_s` divided by `after_s`."""
    interval: tuple[float, float] | None
    """The 95 % interval of the gain."""
    mechanism: str
    binds: str
    evidence: str
    promised: tuple[float, float, float]
    """The low, the middle and the high gain."""
    further: tuple[str, ...] = ()
    """The mechanisms that were advised second and third."""
    others: Mapping[str, float] = field(default_factory=dict)
    """The gains of other changes that were measured, by mechanism."""
    gain_was_known: bool = False
    """Whether a run on an H100 had measured the gain of this change before the rules were corrected."""
    note: str = ""
    """Why the gain is not the promised one, as read from both kernels."""

    @property
    def verdict(self) -> str:
        """Return "yes", "below" or "above" for the promised range, to two decimals; an empty string without a gain."""
        if self.gain is None:
            return ""
        low, _, high = (round(end, 2) for end in self.promised)
        gain = round(self.gain, 2)
        return "yes" if low <= gain <= high else "below" if gain < low else "above"

    @property
    def close(self) -> bool:
        """Return whether the middle of the promise is within ±25 % of the gain."""
        return self.gain is not None and 1 / CLOSE <= self.promised[1] / self.gain <= CLOSE


def changes(kernel: str, names: Iterable[str]) -> dict[str, str]:
    """Return the changed versions of a kernel among some names, by the mechanism that their names end with."""
    ends = {name.removeprefix(f"{kernel}_"): name for name in names if name.startswith(f"{kernel}_")}
    return {end: name for end, name in ends.items() if end in MECHANISMS}


def variants() -> dict[str, Variant]:
    """Return the kernels by operator and name."""
    catalog = Catalog((KERNELS,))
    found = (one for folder in sorted(KERNELS.iterdir()) for one in catalog.variants(folder.name))
    return {one.id: one for one in found if KERNELS in one.path.parents}


def timed() -> dict[str, Result]:
    """Return the committed result of each kernel whose source was measured.

    Names do not count: a kernel that is the same as another one has its result.
    """
    by_source = {r.source_sha256: r for r in read_run(FOLDER).results if r.measurement is not None}
    return {name: by_source[one.source_sha256] for name, one in variants().items() if one.source_sha256 in by_source}


def scores(advised: Sequence[Mapping[str, Any]], earlier: Mapping[str, Score]) -> list[Score]:
    """Return the scores of the committed run, one for each case of `advised`, the output of opbench advise."""
    times = timed()
    by_case = {times[name].case: name for name in times if not any(name.endswith(f"_{one}") for one in MECHANISMS)}
    rows = []
    for one in advised:
        kernel = by_case[one["case"]]
        before = times[kernel]
        gains = {name: _gain(before, times[changed]) for name, changed in changes(kernel, times).items()}
        first, *others = one["advice"]
        name = first["mechanism"]
        if not (KERNELS / f"{kernel}_{name}.cu").exists():
            raise SystemExit(f"{kernel}: the first advice is {name}; write {kernel}_{name}.cu")
        low, middle, high = (round(first["gain"][end], 4) for end in ("low", "middle", "high"))
        gain = gains.pop(name, None)
        scored = earlier.get(kernel)
        same = scored if scored and scored.mechanism == name else None
        after = times[f"{kernel}_{name}"].measurement if gain else None
        assert before.measurement
        rows.append(
            Score(
                kernel,
                before.problem,
                one["bound_s"],
                before.measurement.median_s,
                after.median_s if after else None,
                round(gain.value, 4) if gain else None,
                (round(gain.low, 4), round(gain.high, 4)) if gain else None,
                name,
                first["binds"],
                first["evidence"],
                (low, middle, high),
                tuple(other["mechanism"] for other in others[:2]),
                {other: round(ratio.value, 4) for other, ratio in gains.items()},
                same is not None and same.gain_was_known,
                same.note if same else "",
            )
        )
    return rows


def _gain(before: Result, after: Result) -> Ratio:
    assert before.measurement and after.measurement
    return median_ratio(before.measurement.samples_s, after.measurement.samples_s)


def read_scores() -> list[Score]:
    """Return the committed scores."""
    lists = ("interval", "promised", "further")
    return [
        Score(**{name: tuple(value) if name in lists and value else value for name, value in one.items()})
        for one in json.loads(SCORES.read_text(encoding="utf-8"))
    ]


COUNT_HEADINGS = (
    "kernels",
    "number",
    "measured",
    "faster by 5 % or more",
    "slower by 5 % or more",
    "in the promised range",
    "below",
    "above",
    "estimate within ±25 % of the gain",
)
HEADINGS = (
    "kernel",
    "time",
    "times the bound",
    "first advice",
    "promised",
    "measured",
    "in the range",
    "gain known before",
    "other change",
)


def counts(found: Sequence[Score]) -> list[list[str]]:
    """Return the rows that count the outcomes, for all kernels and for those whose gain was known or not."""
    groups = {
        "all": found,
        "gain known before the correction": [one for one in found if one.gain_was_known],
        "gain unknown before the correction": [one for one in found if not one.gain_was_known],
    }
    rows = []
    for title, group in groups.items():
        gains = [one.gain for one in group if one.gain is not None]
        verdicts = Counter(one.verdict for one in group)
        cells = (
            len(group),
            len(gains),
            sum(gain >= FASTER for gain in gains),
            sum(gain <= 1 / FASTER for gain in gains),
            *(verdicts[name] for name in ("yes", "below", "above")),
            sum(one.close for one in group),
        )
        rows.append([title, *map(str, cells)])
    return rows


def table(found: Sequence[Score]) -> str:
    """Return the counts, the table and the notes in Markdown, by falling gain."""
    ordered = sorted(found, key=lambda one: -(one.gain or 0.0))
    rows = []
    for one in ordered:
        low, middle, high = map(units.ratio, one.promised)
        link = f"[`{one.kernel}`](../reports/h200/strangers/kernels/{one.kernel}.cu)"
        others = ", ".join(f"`{name}` {units.ratio(gain)}" for name, gain in one.others.items())
        over = units.ratio(one.before_s / one.bound_s).removesuffix("×")
        known = "yes" if one.gain_was_known else ""
        rows.append(
            [
                link,
                units.time(one.before_s),
                over,
                f"`{one.mechanism}`",
                f"{middle} ({low} to {high})",
                units.ratio(one.gain),
                one.verdict,
                known,
                others,
            ]
        )
    lines = [
        *markdown_table(COUNT_HEADINGS, counts(ordered)),
        "",
        *markdown_table(HEADINGS, rows, left=(0, 3, 6, 7, 8)),
        "",
        *(f"- `{one.kernel}`: {one.note}" for one in ordered if one.note),
    ]
    return "\n".join(lines) + "\n"


def page(found: Sequence[Score]) -> str:
    """Return the text of docs/advice.md with these scores."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    return before + MARKS[0] + table(found) + MARKS[1] + rest.split(MARKS[1])[1]


def main(arguments: Sequence[str]) -> None:
    """Write the page, and the scores if the output of opbench advise is named."""
    if arguments:
        earlier = {one.kernel: one for one in read_scores()} if SCORES.exists() else {}
        found = scores(json.loads(Path(arguments[0]).read_text(encoding="utf-8")), earlier)
        rows = ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in found)
        SCORES.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    PAGE.write_text(page(read_scores()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
