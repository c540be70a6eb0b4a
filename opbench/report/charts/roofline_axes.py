"""Draw rooflines of a GPU on logarithmic axes, and place texts of points without overlaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from opbench import units
from opbench.gpu.limits.ceilings import LEVELS, Peaks
from opbench.report.charts.svg import INK, MUTED, spread_positions

FONT_SIZE = 8.5
"""Font size of texts, in points."""
_LEFT, _WIDTH, _HEIGHT = 0.1, 0.885, 5.0
LABEL_SPACING = 10.5
"""Vertical distance between two texts, in points."""
MANY_LABELS = 16
"""Labels that fit into `_HEIGHT`; each further label makes the figure higher."""
_WIDTH_POINTS = 8.0 * 72 * _WIDTH


def text_width_points(text: str, *, bold: bool = False) -> float:
    """Estimate the width of a text in points; the estimate may be slightly low."""
    return (0.68 if bold else 0.62) * FONT_SIZE * len(text)


@dataclass(frozen=True)
class Label:
    """A text to be placed right of a point."""

    x: float
    y: float
    text: str
    bold: bool = False
    right_of: float = 0.0
    """The x of another mark; the text is also at the right of that mark."""

    @property
    def text_start_x(self) -> float:
        """Return the x coordinate, right of the point and of `right_of`, from which the text may start."""
        return max(self.x, self.right_of)

    @property
    def width(self) -> float:
        """Return the width in points that the text and the line to its point need."""
        return 28 + text_width_points(self.text, bold=self.bold)


def new_axes(
    labels: Sequence[Label], intensities: Sequence[float], rates: Sequence[float], peaks: Sequence[Peaks]
) -> tuple[Figure, Axes]:
    """Return a figure with logarithmic axes that contain all points and labels, with room for a legend above."""
    height = _HEIGHT + LABEL_SPACING / 72 * max(0, len(labels) - MANY_LABELS)
    figure = Figure(figsize=(8.0, height))
    bottom_margin = 0.55 / height
    axes = figure.add_axes((_LEFT, bottom_margin, _WIDTH, 1 - bottom_margin - (0.12 + 0.2 * len(peaks)) / height))
    ridges = [ridge_point(c) for c in peaks]
    lowest_intensity = min([*intensities, *(r / 1.4 for r in ridges)]) / 2.5
    decades = [_decades(lowest_intensity, label.text_start_x, label.width) for label in labels] + [
        _decades(lowest_intensity, r, 125) for r in ridges
    ]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(
        lowest_intensity,
        lowest_intensity * 10 ** max([*decades, math.log10(max(intensities) / lowest_intensity) + 0.3]),
    )
    tops = [*rates, *(c.fp32_flops_per_s or 0 for c in peaks)]
    lowest = min([*rates, *(peak_rate(c, lowest_intensity) * 2 for c in peaks)])
    axes.set_ylim(min(lowest / 2.2, max(tops) / 20), max(tops) * 2)
    axes.grid(True, which="major")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: units.si(y, "", 1).strip()))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("FLOP/s")
    return figure, axes


def _decades(left: float, x: float, width: float) -> float:
    """Return the number of decades with which the axis leaves `width` points right of `x`."""
    return math.log10(x / left) / max(0.25, 1 - width / _WIDTH_POINTS)


def ridge_point(ceilings: Peaks) -> float:
    """Return the arithmetic intensity (FLOP per byte) at which the memory and fp32 limits meet."""
    return (ceilings.fp32_flops_per_s or 1.0) / (ceilings.dram_bytes_per_s or 1.0)


def peak_rate(ceilings: Peaks, intensity: float) -> float:
    """Return the rate in FLOP/s that the memory and fp32 limits allow at an arithmetic intensity."""
    return min(ceilings.fp32_flops_per_s or math.inf, intensity * (ceilings.dram_bytes_per_s or math.inf))


def line_style(ceilings: Peaks) -> dict[str, Any]:
    """Return the line style of a limit: solid if measured, dashed if from a datasheet."""
    if ceilings.source == "measured":
        return {"linestyle": "-", "color": INK, "linewidth": 1.8}
    return {"linestyle": (0, (4, 3)), "color": MUTED, "linewidth": 1.1}


def draw_rooflines(axes: Axes, peaks: Sequence[Peaks], level: str, *, slope_from: float, busy_above: bool) -> None:
    """Draw the rooflines with their legend, and label the memory and the fp32 limit of the first one.

    The memory limit is labelled to the right of intensity `slope_from`. The flat fp32 limit is labelled at its
    right end, or at the ridge if `busy_above` says that texts of points are there.
    """
    left, right = axes.get_xlim()
    memory = LEVELS.get(level, level)
    for ceilings in reversed(peaks):
        x = [left, ridge_point(ceilings), right]
        axes.plot(x, [peak_rate(ceilings, v) for v in x], zorder=1.5, **line_style(ceilings))
    if not peaks:
        return
    first_peaks = peaks[0]
    ridge, top = ridge_point(first_peaks), max(c.fp32_flops_per_s or 0 for c in peaks)
    axes.plot(
        ridge,
        peak_rate(first_peaks, ridge),
        "o",
        color=line_style(first_peaks)["color"],
        markersize=4,
        fillstyle="none",
    )
    flat_label = f"fp32 {units.flop_rate(first_peaks.fp32_flops_per_s)}"
    if busy_above:
        axes.annotate(flat_label, (ridge, top), xytext=(4, 3), ha="left", **OFFSET)
    else:
        axes.annotate(flat_label, (right, top), xytext=(-2, 3), ha="right", **OFFSET)
    label_x = math.sqrt(max(left, slope_from if slope_from < ridge / 2 else left) * ridge)
    axes.annotate(
        f"{memory} {units.byte_rate(first_peaks.dram_bytes_per_s)}",
        (label_x, max(peak_rate(c, label_x) for c in peaks)),
        xytext=(-2, 3),
        ha="center",
        va="bottom",
        rotation=_slope(axes),
        rotation_mode="anchor",
        **OFFSET,
    )
    _legend(axes, peaks, memory)


def _legend(axes: Axes, peaks: Sequence[Peaks], memory: str) -> None:
    """Draw a legend of all rooflines above the axes."""
    handles = [Line2D([], [], **line_style(c)) for c in peaks]
    texts = [
        f"{c.source}: {memory} {units.byte_rate(c.dram_bytes_per_s)}, fp32 {units.flop_rate(c.fp32_flops_per_s)}, "
        f"ridge {units.per_byte(ridge_point(c))}"
        for c in peaks
    ]
    axes.legend(
        handles, texts, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, frameon=False, fontsize=FONT_SIZE,
        handlelength=2.6, labelspacing=0.35,
    )  # fmt: skip


class OffsetText(TypedDict):
    """The style of text that is placed at an offset from a point."""

    textcoords: str
    fontsize: float
    parse_math: bool


OFFSET: OffsetText = {"textcoords": "offset points", "fontsize": FONT_SIZE, "parse_math": False}


def draw_matrix_peaks(axes: Axes, peaks: Sequence[Peaks], units_used: Iterable[str], points_x: float) -> None:
    """Draw the limits of the matrix units that variants use as horizontal lines.

    Their names are left of the points where possible, because the variants' names are right of the points.
    """
    for unit in sorted(set(units_used) - {"f32"}):
        known_peaks, rate = next(((c, rate) for c in peaks if (rate := c.flops_per_s(unit))), (None, 0.0))
        if known_peaks is None:
            continue
        right = axes.get_xlim()[1]
        ridge_x = rate / (known_peaks.dram_bytes_per_s or 1.0)
        if ridge_x >= right / 1.2:
            continue  # the line of this peak would begin at the right edge or beyond it
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, rate * 2))
        axes.plot([ridge_x, right], [rate, rate], **{**line_style(known_peaks), "linewidth": 1.1})
        text = f"{known_peaks.source} {units.unit(unit)} {units.flop_rate(rate)}"
        x, side, shift = (ridge_x, "left", 2) if ridge_x < points_x else (right, "right", -2)
        axes.annotate(text, (x, rate), xytext=(shift, 3), ha=side, color=MUTED, **OFFSET)


def _slope(axes: Axes) -> float:
    """Return the angle in degrees of a line of slope 1 in log-log, as it appears in the figure."""
    box = axes.get_window_extent()
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    return math.degrees(math.atan2(box.height / math.log10(y1 / y0), box.width / math.log10(x1 / x0)))


def draw_labels(figure: Figure, axes: Axes, texts: Sequence[Label], peaks: Sequence[Peaks]) -> None:
    """Place texts right of their points without overlaps and without crossing a roofline."""
    box = axes.get_window_extent()
    gap = LABEL_SPACING / 72 * figure.dpi

    def pixels(y: float) -> float:
        return float(axes.transData.transform((1.0, y))[1])

    def max_height(label: Label) -> float:
        """Return the highest position of a label below the rooflines, which only rise to its right."""
        begin = axes.transData.transform((label.text_start_x, 1))[0] + 22 / 72 * figure.dpi
        x = float(axes.transData.inverted().transform((begin, 0))[0])
        return min([float(box.y1), *(pixels(peak_rate(c, x)) for c in peaks)]) - 0.65 * gap

    def on_flat(label: Label) -> bool:
        return bool(peaks) and all(label.x >= ridge_point(c) for c in peaks)

    ordered = sorted(texts, key=lambda label: (label.y, label.x, label.text))
    above_roofline = [x for x in ordered if on_flat(x) and x.y > min(peak_rate(c, x.x) for c in peaks)]
    below_roofline = sorted(
        (x for x in ordered if x not in above_roofline), key=lambda x: min(pixels(x.y), max_height(x))
    )
    wanted_heights = [-min(pixels(x.y), max_height(x)) for x in reversed(below_roofline)]
    heights = [-place for place in reversed(spread_positions(wanted_heights, gap, -box.y1, -box.y0 - gap / 2))]
    flat = [pixels(peak_rate(c, x.x)) for c in peaks for x in above_roofline]
    heights += spread_positions(
        [pixels(x.y) for x in above_roofline], gap, max(flat, default=box.y0) + 0.65 * gap, box.y1 - gap / 2
    )
    for label, height in zip([*below_roofline, *above_roofline], heights, strict=True):
        _draw_label(figure, axes, label, height)


def on_paper(axes: Axes) -> dict[str, object]:
    """Return the background box of a label, which hides lines behind the text."""
    return {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.4}


def _draw_label(figure: Figure, axes: Axes, label: Label, height: float) -> None:
    """Draw one label at a height in pixels, with the line to its point."""
    point = 1 / 72 * figure.dpi
    x_pixels, y_pixels = axes.transData.transform((label.x, label.y))
    text_x = axes.transData.transform((label.text_start_x, label.y))[0]
    to_data = axes.transData.inverted()
    (x0, y0), (x, y) = (
        to_data.transform((x_pixels + 6 * point, y_pixels)),
        to_data.transform((text_x + 22 * point, height)),
    )
    axes.plot([x0, x], [y0, y], "-", color=MUTED, linewidth=0.6)
    axes.annotate(
        label.text,
        (x, y),
        xytext=(2, 0),
        va="center",
        ha="left",
        fontweight="bold" if label.bold else "normal",
        bbox=on_paper(axes),
        **OFFSET,
    )
