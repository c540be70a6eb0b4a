"""Show the time that each choice of a plan saves compared with PyTorch: chart, sentences and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from opbench import units
from opbench.networks.records.attribution import AlternativeRecord
from opbench.networks.records.network import Record, Times
from opbench.networks.report import phrases
from opbench.networks.report.figures import time_scale
from opbench.records import JSON
from opbench.report.charts.chart import Chart
from opbench.report.charts.svg import INK, MUTED
from opbench.report.run.sentences import code
from opbench.timing.stats import Difference

COMBINED_STEP = "together"
SAVES_COLOUR, COSTS_COLOUR, REST_COLOUR, ENDS_COLOUR = "#0072B2", "#D55E00", "#56B4E9", "#8a93a0"
"""Colours of choices that save time, of choices that cost time, of the remainder, and of the two networks."""


FONT_SIZE = 8.8
"""Size of text in points."""


@dataclass(frozen=True)
class Step:
    """One change of the time on the way from PyTorch to opbench; negative if it saves time."""

    name: str
    change_s: float
    sentence: str


@dataclass(frozen=True)
class Waterfall:
    """The times of PyTorch and opbench, and the steps whose sum is the difference."""

    peer: str
    peer_s: float
    steps: tuple[Step, ...]
    """The choices with a difference beyond noise, largest first, then the remainder.

    A choice that saves more than PyTorch's whole time is no step.
    """
    own_s: float


def waterfall(record: Record) -> Waterfall | None:
    """Return the steps from the fastest PyTorch to opbench; None if one of the two has no time."""
    best, total = phrases.fastest_peer(phrases.compared_peers(record)), record.total
    if not best or not best.measured or not total:
        return None
    timed = [
        (alternative, d)
        for alternative in _alternatives(record)
        if alternative.additive and (d := alternative.difference)
    ]
    # Exclude a choice that saves more than PyTorch's whole time, such as a layout with tensor cores where the other
    # layout has none: its step would lead from PyTorch's time to a time below zero.
    timed = [(alternative, d) for alternative, d in timed if d.value < best.measured.median_s]
    if not timed:
        return None
    significant = sorted(
        ((alternative, d) for alternative, d in timed if not d.is_noise), key=lambda pair: -pair[1].value
    )
    steps = [
        Step(alternative.choice, -d.value, f"{alternative.choice}: {_change_text(d)}; {alternative.instead}")
        for alternative, d in significant
    ]
    remainder_s = total.median_s - best.measured.median_s - sum(step.change_s for step in steps)
    sentence = (
        f"{COMBINED_STEP}: {units.signed_time(remainder_s)}; choices do not add up, and PyTorch has other kernels"
    )
    return Waterfall(
        best.name, best.measured.median_s, (*steps, Step(COMBINED_STEP, remainder_s, sentence)), total.median_s
    )


def waterfall_chart(record: Record) -> Chart | None:
    """Return the waterfall as a chart with one bar per step; None without a waterfall."""
    chart = waterfall(record)
    if chart is None:
        return None
    labels = ["PyTorch", *(step.name for step in chart.steps), "opbench"]
    height = 0.75 + 0.3 * len(labels)
    figure = Figure(figsize=(5.6, height))  # narrow enough for a phone
    left = 0.03 + 0.0135 * max(map(len, labels))
    axes = figure.add_axes((left, 0.5 / height, 0.97 - left, 1 - 0.6 / height))
    times_s = [chart.peer_s]
    for step in chart.steps:
        times_s.append(times_s[-1] + step.change_s)
    scale, unit = time_scale(max(times_s))
    bars = [
        (
            0.0,
            chart.peer_s,
            ENDS_COLOUR,
            units.time(chart.peer_s),
            f"{chart.peer}: {units.time(chart.peer_s)}",
        )
    ]
    for begin, step in zip(times_s, chart.steps, strict=False):
        colour = REST_COLOUR if step.name == COMBINED_STEP else SAVES_COLOUR if step.change_s < 0 else COSTS_COLOUR
        bars.append((begin, step.change_s, colour, units.signed_time(step.change_s), step.sentence))
    bars.append((0.0, chart.own_s, ENDS_COLOUR, units.time(chart.own_s), f"opbench: {units.time(chart.own_s)}"))
    top, low = max(times_s), min(0.0, *times_s)
    points = {}
    for row, (begin, length, colour, text, sentence) in enumerate(bars):
        gid = f"a{row}"
        points[gid] = sentence
        axes.barh(row, length * scale, left=begin * scale, height=0.62, color=colour, linewidth=0.8)
        axes.patches[-1].set_gid(gid)
        axes.annotate(text, (max(begin, begin + length) * scale, row), xytext=(4, 0), textcoords="offset points",
                      va="center", ha="left", fontsize=FONT_SIZE, color=INK, parse_math=False)  # fmt: skip
        if row + 1 < len(bars):
            end = (begin + length) * scale
            axes.plot((end, end), (row, row + 1), color=MUTED, linewidth=0.7, zorder=0)
    axes.set_xlim(low * scale * 1.02, (top + 0.24 * (top - low)) * scale)  # with room for a text
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), labels, fontsize=FONT_SIZE, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"GPU time, cold L2 ({unit})", fontsize=FONT_SIZE)
    axes.tick_params(axis="x", labelsize=FONT_SIZE)
    axes.grid(True, axis="x")
    return Chart(
        "network-attribution",
        figure,
        "From PyTorch to opbench",
        f"{chart.peer} takes {units.time(chart.peer_s)}, opbench {units.time(chart.own_s)}. "
        "The table below has the same numbers.",
        points,
        f"First {chart.peer}. Each blue bar is the time that the network loses if this choice alone is undone. Choices "
        f"do not add up: the bar “{COMBINED_STEP}” is the remainder. It has what choices save only together or save "
        "twice, and all other differences from PyTorch, such as its kernels.",
    )


# Rows and sentences -----------------------------------------------------------------------------------------------


def attribution_sentences(record: Record) -> list[str]:
    """Return sentences on what each choice saves; empty without measurements."""
    chart, undone = waterfall(record), _alternatives(record)
    if not undone:
        return []
    if not any(alternative.times for alternative in undone):
        right = sum(not alternative.error for alternative in undone)
        return [
            f"{right} of {units.count_noun(len(undone), 'alternative')} were checked and are right. They were not "
            "timed: times need a GPU."
        ]
    sentences = []
    if chart:
        steps = [f"{code(step.name)} {units.signed_time(step.change_s)}" for step in chart.steps]
        sentences.append(
            f"From {chart.peer} ({units.time(chart.peer_s)}) to opbench ({units.time(chart.own_s)}): "
            f"{units.join_words(steps)}."
        )
    if chart and (too_large := [code(name) for name in _savings_beyond_peer_time(record, chart)]):
        verb = "saves" if len(too_large) == 1 else "save"
        sentences.append(f"{units.join_words(too_large)} {verb} more than PyTorch's whole time, and no step shows it.")
    without_effect = [
        code(alternative.choice) for alternative in undone if (d := alternative.difference) and d.is_noise
    ]
    if without_effect:
        verb = "makes no difference" if len(without_effect) == 1 else "make no difference"
        sentences.append(f"{units.join_words(without_effect)} {verb} beyond noise: the 95 % interval contains 0.")
    return sentences


def _savings_beyond_peer_time(record: Record, chart: Waterfall) -> list[str]:
    """Return the choices that save more than PyTorch's whole time, which cannot be steps."""
    additive_alternatives = [alternative for alternative in _alternatives(record) if alternative.additive]
    return [
        alternative.choice
        for alternative in additive_alternatives
        if (d := alternative.difference) and d.value >= chart.peer_s
    ]


def attribution_rows(record: Record) -> list[dict[str, JSON]]:
    """Return one table row for each alternative."""
    chart = waterfall(record)
    beyond = _savings_beyond_peer_time(record, chart) if chart else []
    return [
        _alternative_row(alternative, record, drawn=alternative.additive and alternative.choice not in beyond)
        for alternative in _alternatives(record)
    ]


def _alternative_row(alternative: AlternativeRecord, record: Record, *, drawn: bool) -> dict[str, JSON]:
    assert record.attribution
    difference, counts, plan = alternative.difference, alternative.counts, record.attribution.counts
    host = (
        f"call from Python: {_time_text(alternative.host)} instead of {_time_text(alternative.plan_host)}"
        if alternative.host
        else ""
    )
    count = f"{alternative.unmeasured} of {len(alternative.changed)}"
    unmeasured_note = f"{count} changed nodes have a variant chosen without a measurement"
    return {
        "choice": alternative.choice,
        "instead": alternative.instead,
        "drawn": drawn,
        "notes": [note for note in (unmeasured_note if alternative.unmeasured else "", host) if note],
        "time": units.time(alternative.times.median_s) if alternative.times else "–",
        "interval": f"{units.interval(alternative.times.low_s, alternative.times.high_s)}" if alternative.times else "",
        "saves": "noise" if difference and difference.is_noise else _amount(difference.value) if difference else "–",
        "ends": _ends_text(difference) if difference else "",
        "share": _share_text(difference.value / alternative.plan.median_s) if difference and alternative.plan else "",
        "nodes": _change_of(counts.nodes, plan.nodes) if counts else "–",
        "launches": _change_of(counts.launches, plan.launches) if counts else "–",
        "bytes": phrases.size_text(counts.compulsory_bytes) if counts else "–",
        "memory": phrases.size_text(counts.memory_bytes) if counts else "–",
        "error": alternative.error,
    }


def attribution_table(record: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heading and rows of the table for a terminal; no rows without measurements."""
    rows = attribution_rows(record)
    has_times = any(alternative.times for alternative in _alternatives(record))
    columns = ("choice", "time", "saves", "ends", "nodes", "launches", "bytes") if has_times else (
        "choice", "nodes", "launches", "bytes", "memory")  # fmt: skip
    titles = {"choice": "choice undone", "ends": "95 % interval", "time": "time without it"}
    headings = (*(titles.get(name, name) for name in columns), "runs instead")
    lines = []
    for row in rows:
        cells = [str(row[name]) for name in columns]
        lines.append((*cells, str(row["error"] or row["instead"])))
    return headings, lines


def _alternatives(record: Record) -> Sequence[AlternativeRecord]:
    return record.attribution.alternatives if record.attribution else ()


def _amount(seconds: float) -> str:
    """Format a saved time; negative if the choice costs time."""
    return units.signed_time(seconds).lstrip("+")


def _ends_text(difference: Difference) -> str:
    if difference.low > 0:
        return units.interval(difference.low, difference.high)
    return f"{_amount(difference.low)} to {_amount(difference.high)}"


def _change_text(difference: Difference) -> str:
    return f"saves {units.time(difference.value)} [{_ends_text(difference)}]"


def _share_text(share: float) -> str:
    """Format a share of the plan's time; more than ten times the plan is a factor."""
    return units.ratio(share) if share > 10 else f"{'−' * (share < 0)}{units.percent(abs(share))}"


def _time_text(host: Times | None) -> str:
    return units.time(host.median_s) if host else "–"


def _change_of(count: int, plan: int) -> str:
    return str(count) if count == plan else f"{plan} → {count}"
