"""A chart that shows which variant of an operator is fastest at each problem size."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from opbench import units
from opbench.kernels.axes import read_axes
from opbench.report.bars import Bar
from opbench.report.charts.chart import Chart, row_sentence, shorten
from opbench.report.charts.svg import GRID, INK, MUTED, PAPER, spread_positions
from opbench.report.run.sections import Section, best_configs
from opbench.results.rows import Row, Times, ranked_rows

GRID_SIZES = 240
"""Number of sizes between the smallest and the largest problem at which the winner is computed."""
MIN_SIZE_RATIO = 1.25
"""Problems that differ in several axes are ordered by bytes only if neighbours differ by at least this factor: for two
shapes of similar size, interpolation is meaningless."""
MAX_LINES = 6
MAX_SLOWDOWN = 3.0
"""Variants slower than the fastest by more than this factor are not drawn."""


@dataclass(frozen=True)
class SizeRange:
    """A range of sizes at which one variant is fastest, or several tie."""

    begin: float
    end: float
    variants: tuple[str, ...]
    """The winner, or the tied variants by time."""

    @property
    def decided(self) -> bool:
        """Return whether one variant alone is fastest."""
        return len(self.variants) == 1


SweepLine = list[tuple[float, Row]]
"""A variant's best config at each size where it was measured, smallest first."""


def crossover_chart(
    operator: str, all_sections: Sequence[Section], name: str, styles: Mapping[str, tuple[str, str]]
) -> Chart | None:
    """Return the chart for an operator; None for one variant, or for fewer than three problems in an order."""
    all_sections = [section for section in all_sections if section.groups]
    axis = size_axis(all_sections)
    if axis is None:
        return None
    label, sizes = axis
    ordered = sorted(zip(sizes, all_sections, strict=True), key=lambda pair: pair[0])
    precision = ordered[0][1].groups[0].precision
    lines = _lines(ordered, precision)
    if len(lines) < 2:
        return None
    size_ranges = find_size_ranges(lines)
    drawn_variants = _variants_to_draw(lines, size_ranges)
    figure = Figure(figsize=(8.0, 4.4))
    axes = figure.add_axes((0.1, 0.13, 0.65, 0.64))
    strip = figure.add_axes((0.1, 0.82, 0.65, 0.1), sharex=axes)
    points = _draw_lines(axes, lines, drawn_variants, styles)
    _draw_size_ranges(axes, strip, size_ranges, styles)
    _scale(axes, label, [size for size, _ in ordered])
    _label_ends(figure, axes, lines, drawn_variants, styles)
    return Chart(
        name,
        figure,
        f"Which variant of {operator} wins at which size",
        f"{' '.join(size_range_sentences(size_ranges, label))} The tables hold the times.",
        points,
        f"Best config of each {precision} variant, median over the fastest's with its 95 % interval; marks are "
        "measured, what lies between them is interpolated. Hatched: intervals overlap, so no winner is named. "
        + " ".join(size_range_sentences(size_ranges, label)),
        size_range_bars(size_ranges, label),
    )


def size_axis(all_sections: Sequence[Section]) -> tuple[str, list[float]] | None:
    """Return the name of the size that orders the problems, and its values; None without an order.

    The size is the one axis in which the problems differ, else compulsory bytes. Problems that differ in an
    axis without a numeric value, such as nchw and nhwc, have no order.
    """
    if len(all_sections) < 3:
        return None
    axes = [read_axes(section.problem) for section in all_sections]
    differing = [key for key in dict.fromkeys(itertools.chain(*axes)) if len({a.get(key) for a in axes}) > 1]
    if any(isinstance(a.get(key), str) for a in axes for key in differing):
        return None
    for values in ([a.get(key) for key in differing] for a in axes):
        if len(set(values)) != 1 or values[0] is None:
            break
    else:
        sizes = [float(a[differing[0]]) for a in axes] if differing else []
        if sizes and len(set(sizes)) == len(sizes) and min(sizes) > 0:
            return "=".join(differing), sizes
    nbytes = [float(section.rows[0].compulsory_bytes or 0) for section in all_sections]
    are_ordered = all(b >= MIN_SIZE_RATIO * a > 0 for a, b in itertools.pairwise(sorted(nbytes)))
    return ("compulsory bytes", nbytes) if are_ordered else None


def _lines(ordered: Sequence[tuple[float, Section]], precision: str) -> dict[str, SweepLine]:
    lines: dict[str, SweepLine] = {}
    for size, section in ordered:
        ranked = [row for g in section.groups if g.precision == precision for row, _ in (g.rest or g.rows)]
        for row in best_configs(sorted(ranked, key=lambda r: r.time_s or math.inf)):
            lines.setdefault(row.variant, []).append((size, row))
    return lines


def time_at_size(line: SweepLine, size: float) -> tuple[float, float, float] | None:
    """Return the time in seconds at a size, with its interval, interpolated in log-log; None outside of the line."""
    sizes = [s for s, _ in line]
    if not sizes[0] <= size <= sizes[-1]:
        return None
    right = min(bisect_right(sizes, size), len(line) - 1)
    left = max(0, right - 1)
    (s0, r0), (s1, r1) = line[left], line[right]
    share = math.log(size / s0) / math.log(s1 / s0) if s1 > s0 else 0.0
    interpolated = [
        math.exp((1 - share) * math.log(a) + share * math.log(b)) for a, b in zip(_times(r0), _times(r1), strict=True)
    ]
    return interpolated[0], interpolated[1], interpolated[2]


def _times(row: Row) -> tuple[float, float, float]:
    if row.times is None:
        return math.nan, math.nan, math.nan
    time_s = row.times.time_s
    return time_s, *(row.times.interval_s or (time_s, time_s))


def find_size_ranges(lines: Mapping[str, SweepLine]) -> list[SizeRange]:
    """Return the ranges of sizes at which the same variant is fastest or the same variants tie.

    Ties are decided as in the tables' ranks.
    """
    sizes = sorted({size for line in lines.values() for size, _ in line})
    low, high = math.log(sizes[0]), math.log(sizes[-1])
    sampled_sizes = sorted({*sizes, *(math.exp(low + i * (high - low) / GRID_SIZES) for i in range(1, GRID_SIZES))})
    size_ranges: list[SizeRange] = []
    for size in sampled_sizes:
        fastest = _fastest_at_size(lines, size)
        if size_ranges and set(size_ranges[-1].variants) == set(fastest):
            size_ranges[-1] = SizeRange(size_ranges[-1].begin, size, size_ranges[-1].variants)
        else:
            range_begin = math.sqrt(size_ranges[-1].end * size) if size_ranges else size
            if size_ranges:
                size_ranges[-1] = SizeRange(size_ranges[-1].begin, range_begin, size_ranges[-1].variants)
            size_ranges.append(SizeRange(range_begin, size, fastest))
    return size_ranges


def _fastest_at_size(lines: Mapping[str, SweepLine], size: float) -> tuple[str, ...]:
    """Return the fastest variant at a size and every variant that ties with it."""
    rows = []
    for variant, line in lines.items():
        if times := time_at_size(line, size):
            row = line[0][1]
            rows.append(replace(row, variant=variant, config="", case=variant, times=Times(*times)))
    ranked = ranked_rows(rows)
    return tuple(row.variant for row, rank in ranked if rank == ranked[0][1])


def size_range_sentences(size_ranges: Sequence[SizeRange], label: str) -> list[str]:
    """Return a sentence for each range, such as "`tiled` wins from 512 to 1 900."."""

    sentences = []
    for winner_range in size_ranges:
        size_range = f"from {_size_text(winner_range.begin, label)} to {_size_text(winner_range.end, label)}"
        names = ", ".join(winner_range.variants[:4]) + (" and others" if len(winner_range.variants) > 4 else "")
        sentences.append(
            f"{names} wins {size_range}." if winner_range.decided else f"Undecided {size_range}: {names} tie."
        )
    return sentences


def size_range_bars(size_ranges: Sequence[SizeRange], label: str) -> list[Bar]:
    """Return a bar for each range, for a narrow screen: its sizes, its share of the axis and its fastest variants."""
    axis_length = math.log(size_ranges[-1].end / size_ranges[0].begin) or 1.0
    bars = []
    for size_range in size_ranges:
        names = " = ".join(size_range.variants[:2]) + (" = …" if len(size_range.variants) > 2 else "")
        sizes = f"{label} {_size_text(size_range.begin, label)} to {_size_text(size_range.end, label)}"
        share = math.log(size_range.end / size_range.begin) / axis_length
        note, tone = ("fastest", "fast") if size_range.decided else ("tie", "")
        bars.append(Bar(sizes, names, share, note, tone))
    return bars


def _size_text(size: float, label: str) -> str:
    if label == "compulsory bytes":
        return units.si(size, "B")
    return f"{size:,.3g}" if size < 100 else f"{size:,.0f}"


# Drawing ----------------------------------------------------------------------------------------------------------


def _variants_to_draw(lines: Mapping[str, SweepLine], size_ranges: Sequence[SizeRange]) -> list[str]:
    """Return the variants to draw, at most `MAX_LINES`: those that win or tie anywhere, then the closest others."""
    winners = list(
        dict.fromkeys(variant for size_range in size_ranges for variant in size_range.variants if size_range.decided)
    )
    ties = [v for v in dict.fromkeys(v for size_range in size_ranges for v in size_range.variants) if v not in winners]
    slowdown = {v: min(_slowdown(lines, size, row) for size, row in line) for v, line in lines.items()}
    other_variants = sorted(
        (v for v in lines if v not in (*winners, *ties) and slowdown[v] < MAX_SLOWDOWN), key=lambda v: slowdown[v]
    )
    return [*winners, *ties, *other_variants][: max(MAX_LINES, len(winners))]


def _slowdown(lines: Mapping[str, SweepLine], size: float, row: Row) -> float:
    times = [point[0] for line in lines.values() if (point := time_at_size(line, size))]
    return (row.time_s or math.inf) / min(times)


def _draw_lines(
    axes: Axes, lines: Mapping[str, SweepLine], drawn_variants: Sequence[str], styles: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """Draw the times of variants relative to the fastest; return the tooltips by the id of the point."""
    points: dict[str, str] = {}
    for variant in drawn_variants:
        colour, shape = styles[variant]
        sizes, ratios, lows, highs = [], [], [], []
        for size, row in lines[variant]:
            fastest_s_inverse = _slowdown(lines, size, row) / (row.time_s or math.nan)
            time_s, low, high = _times(row)
            sizes.append(size)
            ratios.append(time_s * fastest_s_inverse)
            lows.append(low * fastest_s_inverse)
            highs.append(high * fastest_s_inverse)
            gid = f"x{len(points)}"
            axes.plot([size], [ratios[-1]], shape, color=colour, markersize=6, gid=gid, zorder=4)
            points[gid] = f"{row.problem}: {row_sentence(row)}; {units.ratio(ratios[-1])} the fastest's time"
        axes.plot(sizes, ratios, "-", color=colour, linewidth=1.5, zorder=3)
        axes.fill_between(sizes, lows, highs, color=colour, alpha=0.18, linewidth=0)
    return points


def _draw_size_ranges(
    axes: Axes, strip: Axes, size_ranges: Sequence[SizeRange], styles: Mapping[str, tuple[str, str]]
) -> None:
    """Draw a strip above the chart in the colour of the fastest variant; hatch ranges with ties."""
    strip.set_axis_off()
    strip.set_ylim(0, 1)
    width = math.log(size_ranges[-1].end / size_ranges[0].begin)
    for size_range in size_ranges:
        if size_range.decided:
            strip.axvspan(size_range.begin, size_range.end, color=styles[size_range.variants[0]][0], linewidth=0)
        else:
            for target in (strip, axes):
                target.axvspan(
                    size_range.begin,
                    size_range.end,
                    facecolor="none",
                    edgecolor=MUTED if target is strip else GRID,
                    hatch="////",
                    linewidth=0,
                    zorder=0,
                )
        share = math.log(size_range.end / size_range.begin) / width if width else 1.0
        names = " = ".join(size_range.variants[:3]) + (" = …" if len(size_range.variants) > 3 else "")
        label = next((w for w in (names, "undecided", "?") if share > 0.0155 * len(w)), "")
        if label:
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
            strip.text(
                math.sqrt(size_range.begin * size_range.end), 0.46, label, ha="center", va="center", fontsize=8.5,
                color=INK, bbox=box, parse_math=False,
            )  # fmt: skip
    for left, _ in itertools.pairwise(size_ranges):
        axes.axvline(left.end, color=MUTED, linewidth=0.7, linestyle=":", zorder=1)


def _scale(axes: Axes, label: str, sizes: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    high = min(MAX_SLOWDOWN, max(1.1, axes.get_ylim()[1]))
    axes.set_ylim(0.985, high)
    tick_step = next(tick_step for tick_step in (0.02, 0.05, 0.1, 0.2, 0.5) if (high - 1) / tick_step <= 6)
    axes.set_yticks([1 + i * tick_step for i in range(int((high - 1) / tick_step + 1e-9) + 1)])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}×"))
    tick_sizes = [sizes[0]]
    for size in sizes[1:]:
        if math.log(size / tick_sizes[-1]) > 0.09 * math.log(sizes[-1] / sizes[0]):
            tick_sizes.append(size)
    tick_labels = [units.si(s, "B") if label == "compulsory bytes" else f"{s:,.0f}" for s in tick_sizes]
    axes.set_xticks(tick_sizes, tick_labels, fontsize=8.5)
    axes.set_xticks([], minor=True)
    axes.set_xlim(sizes[0] / (sizes[-1] / sizes[0]) ** 0.015, sizes[-1] * (sizes[-1] / sizes[0]) ** 0.015)
    axes.set_xlabel(label)
    axes.set_ylabel("time over the fastest's")
    axes.grid(True, axis="y")


def _label_ends(
    figure: Figure,
    axes: Axes,
    lines: Mapping[str, SweepLine],
    drawn_variants: Sequence[str],
    styles: Mapping[str, tuple[str, str]],
) -> None:
    """Draw the names of variants right of the lines, without overlaps."""
    box = axes.get_window_extent()
    top = axes.get_ylim()[1]
    label_positions = sorted((min(_slowdown(lines, *lines[v][-1]), top), v) for v in drawn_variants)
    targets = [float(axes.transData.transform((1, y))[1]) for y, _ in label_positions]
    heights = spread_positions(targets, 11.5 / 72 * figure.dpi, box.y0, box.y1)
    for (_, variant), height in zip(label_positions, heights, strict=True):
        relative_height = (height - box.y0) / box.height
        colour, shape = styles[variant]
        axes.plot(
            [1.025], [relative_height], shape, color=colour, markersize=5, transform=axes.transAxes, clip_on=False
        )
        axes.annotate(
            shorten(variant, 25), (1.0, relative_height), xycoords="axes fraction", xytext=(16, 0),
            textcoords="offset points", va="center", ha="left", fontsize=8.5,
            annotation_clip=False, parse_math=False,
        )  # fmt: skip
