"""The HTML page of a self-test: all checks, the tables of each part, and a chart of detected slow-downs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opbench import units
from opbench.records import plain_name, read_record, stored_file
from opbench.report.bars import Bar, scaled
from opbench.report.charts.chart import COLOURS, SHAPES, Chart
from opbench.report.charts.svg import report_style, to_png, to_svg
from opbench.report.template import OTHER_FOLDER, render_template, write_files
from opbench.results.selftest import (
    AS_COMPARE,
    CHEATS,
    FORMAT,
    HONEST_TIMED,
    NO_GAIN,
    ORDERS,
    Claim,
    Part,
    Selftest,
    identical_pair_key,
)
from opbench.tables import align_columns
from opbench.timing import stats

FILE = "selftest.json"


@dataclass(frozen=True)
class CheckRow:
    """One check of a self-test as cells of a table."""

    name: str
    part: str
    word: str
    """Whether the check passes."""
    holds: bool | None
    required: str
    measured: str


def check_rows(part: Part) -> list[CheckRow]:
    """Return the checks of a part as rows; the row of a cheat says whether it was rejected, not by which rule."""
    if part.name == CHEATS:
        return [_cheat_row(part, claim) for claim in part.claims]
    return [CheckRow(c.sentence, part.name, c.word, c.holds, c.wanted, c.seen) for c in part.claims]


def _cheat_row(part: Part, claim: Claim) -> CheckRow:
    results = part.figures.get(claim.sentence.replace(" ", "_"))
    if not results:  # It was not judged, for example because a package is missing.
        return CheckRow(f"`{claim.sentence}`", part.name, claim.word, claim.holds, claim.wanted, claim.seen)
    statuses = [status for status in dict.fromkeys(result["status"] for result in results) if status != "unsupported"]
    rejections = [status for status in statuses if status != "right"]
    measured = f"rejected: {' and '.join(rejections)}" if rejections else "accepted" if statuses else "not supported"
    is_honest = claim.wanted == HONEST_TIMED
    # In records of older versions, a cheat that may gain no time is also called one that must be rejected.
    may_run = not is_honest and (claim.wanted == NO_GAIN or (bool(claim.holds) and not rejections))
    if may_run and claim.holds:
        measured = "timed without a gain"
    if claim.holds is False:
        measured += f" ({claim.seen})"
    required = "accepted" if is_honest else "no shorter time than the honest kernel" if may_run else "rejected"
    kind = "honest kernel" if is_honest else "cheat"
    return CheckRow(f"{kind} `{claim.sentence}`", part.name, claim.word, claim.holds, required, measured)


def part_bars(outcome: Selftest) -> list[Bar]:
    """Return a bar for each kind of result: how many checks of a part have it, and the same for cheats by outcome."""
    counts: dict[tuple[str, str, bool | None], int] = {}
    for part in outcome.parts:
        for row in check_rows(part):
            group = f"{row.name.partition(' `')[0]}s {row.measured}" if part.name == CHEATS else part.title
            key = group, row.word, row.holds
            counts[key] = counts.get(key, 0) + 1
    tones = {True: "fast", False: "slow", None: ""}
    return scaled(
        [
            Bar(group, str(count), count, "" if holds else word, tones[holds])
            for (group, word, holds), count in counts.items()
        ]
    )


def answer_sentence(outcome: Selftest) -> str:
    """Return the result of a self-test in one sentence, with each check that fails."""
    failing = [row.name for part in outcome.parts for row in check_rows(part) if row.holds is False]
    return outcome.summary() + (f". Failing: {'; '.join(failing)}" if failing else "")


def next_steps(outcome: Selftest) -> list[str]:
    """Return what to do about each part that fails, as sentences with a command."""
    return [
        f"{part.title}: end other programs that use the GPU, then repeat this part alone: "
        f"`opbench selftest --only {part.name} --out DIR`"
        for part in outcome.parts
        if part.failed
    ]


def part_lines(part: Part) -> list[str]:
    """Return one part as lines for a terminal: its claims, and the error that ended it early."""
    rows = [(row.word, row.name.replace("`", ""), row.required, row.measured) for row in check_rows(part)]
    lines = [f"{part.name}: {part.title} ({part.spent_s:.0f} s)"]
    lines += (
        [f"  {line}" for line in align_columns(("", "check", "required", "measured"), rows, left=(0, 1, 2, 3))]
        if rows
        else []
    )
    lines += [f"  note: {note}" for note in part.notes if part.name in ("clocks", "wall", CHEATS)]
    return lines + ([f"  ended early: {part.error}"] if part.error else [])


def write_selftest_results(outcome: Selftest, folder: Path) -> None:
    """Write the results so far as selftest.json, so that they survive if a later part fails."""
    write_files(folder, {FILE: json.dumps(outcome.to_json(), indent=1).encode()}, OTHER_FOLDER)


def is_selftest(path: Path) -> bool:
    """Return whether a folder or a file contains the results of a self-test."""
    return plain_name(path) == FILE or stored_file(path / FILE).is_file()


def read_selftest(folder: Path) -> Selftest:
    """Read the results of a self-test from a folder or a file; raise UsageError for other content."""
    path = folder if folder.is_file() else folder / FILE
    return read_record(Selftest, path, FORMAT, "make one with: opbench selftest --out DIR")


def write_selftest(outcome: Selftest, folder: Path) -> list[Path]:
    """Write selftest.html, selftest.png and selftest.json into a folder; return the files, the page first."""
    with report_style():
        chart = detection_chart(outcome)
        svg = to_svg(chart.figure, "selftest", chart.title, chart.description, chart.points) if chart else ""
        png = to_png(chart.figure) if chart else b""
    page = render_template(
        "selftest.html.j2",
        title="Self-test",
        outcome=outcome,
        answer=answer_sentence(outcome),
        next_steps=next_steps(outcome),
        bars=[] if chart else part_bars(outcome),
        rows=[(part, check_rows(part)) for part in outcome.parts],
        svg=svg,
        chart=chart,
        limit=detection_limit(outcome),
    )
    files = {"selftest.html": page.encode("utf-8"), **({"selftest.png": png} if chart else {})}
    write_files(folder, files, OTHER_FOLDER)
    write_selftest_results(outcome, folder)
    return [folder / name for name in (*files, FILE)]


def detection_chart(outcome: Selftest) -> Chart | None:
    """Draw how often an injected slow-down was detected, with one line per number of samples.

    Returns None without such comparisons.
    """
    from matplotlib.figure import Figure

    lines = _detections(outcome)
    if not lines:
        return None
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    points: dict[str, str] = {}
    for line_index, (label, counts_by_slowdown) in enumerate(lines.items()):
        colour, shape = COLOURS[line_index % len(COLOURS)], SHAPES[line_index % len(SHAPES)]
        for index, (slow, (count, total)) in enumerate(sorted(counts_by_slowdown.items())):
            low, high = stats.share_interval(count, total)
            labels_with_slowdown = [label_at_slowdown for label_at_slowdown, line in lines.items() if slow in line]
            x = 100 * slow + 0.06 * (labels_with_slowdown.index(label) - (len(labels_with_slowdown) - 1) / 2)
            gid = f"{line_index}-{index}"
            axes.plot([x, x], [100 * low, 100 * high], color=colour, linewidth=1.2)
            axes.plot([x], [100 * count / total], shape, color=colour, markersize=5.5, gid=gid, clip_on=False,
                      label=label if index == 0 else None)  # fmt: skip
            points[gid] = (
                f"{label}, slow-down {100 * slow:g} %: {count} of {total} pairs, {units.percent(count / total)} "
                f"[{units.percent(low)}, {units.percent(high)}]"
            )
    axes.axhline(95, color=COLOURS[0], linewidth=0.8, linestyle="--", zorder=0)
    axes.axhline(5, color=COLOURS[1], linewidth=0.8, linestyle="--", zorder=0)
    axes.set_ylim(-3, 103)
    axes.annotate("required above, from 2 % on", (3.5, 95), (0, -4), textcoords="offset points", va="top", ha="center",
                  fontsize=8.5)  # fmt: skip
    axes.annotate("required below, at 0", (3.5, 5), (0, 4), textcoords="offset points", va="bottom", ha="center",
                  fontsize=8.5)  # fmt: skip
    axes.set_xticks([0, 1, 2, 5])
    axes.set_xlabel("slow-down injected (%); 0 is a kernel against itself")
    axes.set_ylabel("pairs called different (%)")
    axes.grid(True)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncols=2, fontsize=8, frameon=False, handletextpad=0.3)
    description = "Share of pairs that are called different, with 95 % intervals, over the slow-down injected."
    return Chart("selftest", figure, "Detected differences", description, points)


def detection_limit(outcome: Selftest) -> str:
    """Return a sentence on the injected slow-downs that a comparison detects; "" if none was injected."""
    counts: dict[float, tuple[int, int]] = {}
    for detection in _detections(outcome).values():
        for slow, (count, total) in detection.items():
            counts_so_far = counts.get(slow, (0, 0))
            counts[slow] = (counts_so_far[0] + count, counts_so_far[1] + total)
    detection_texts = [
        f"{100 * slow:g} % in {count} of {total} pairs" for slow, (count, total) in sorted(counts.items()) if slow
    ]
    return f"Slow-downs that the default threshold detects: {', '.join(detection_texts)}." if detection_texts else ""


def _detections(outcome: Selftest) -> dict[str, dict[float, tuple[int, int]]]:
    """Return, by label and slow-down, how often the slow-down was detected, and how often it was injected."""
    figures: dict[str, Mapping[str, Any]] = {part.name: part.figures for part in outcome.parts}
    lines: dict[str, dict[float, tuple[int, int]]] = {}
    for order in ORDERS:
        if tallies := figures.get("aa", {}).get(identical_pair_key(order, AS_COMPARE)):
            total = tallies["all"]
            lines[f"same kernel, {order}"] = {0.0: (total["faster"] + total["slower"], total["pairs"])}
    for counts in figures.get("slowdown", {}).values():
        label = f"{counts['samples']} samples each" if counts["samples"] else "default stop rule"
        default_counts = counts["usual"]
        lines.setdefault(label, {})[counts["slow_down"]] = (default_counts["slower"], default_counts["pairs"])
    return lines
