"""Charts of a network's run: the timeline of its nodes, and the map of its memory."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from opbench import units
from opbench.networks.records.network import MemoryRecord, Record, ValueLifetime, sum_of_node_times_s, value_lifetimes
from opbench.networks.report.drawing import KINDS
from opbench.networks.report.phrases import node_sentence, size_text
from opbench.report.charts.chart import COLOURS, Chart, shorten
from opbench.report.charts.svg import INK

GAP_COLOUR = "#8a93a0"


def timeline_chart(record: Record) -> Chart | None:
    """Return a chart of the nodes as consecutive bars; the dark part of a bar is the lower bound."""
    total = sum_of_node_times_s(record)
    if not total:
        return None
    nodes, gap = record.nodes, record.gap_s or 0.0
    rows = len(nodes) + (gap > 0)
    height = 0.75 + 0.235 * rows
    figure = Figure(figsize=(10.0, height))
    names = [shorten(node.name, 22) for node in nodes] + ["gaps"] * (gap > 0)
    left = 0.02 + 0.0078 * max(map(len, names))
    axes = figure.add_axes((left, 0.5 / height, 0.99 - left, 1 - 0.6 / height))
    scale, unit = time_scale(total)
    end, points, start = (total + max(gap, 0.0)) * scale, {}, 0.0
    for row, node in enumerate(nodes):
        limit = "conversion" if node.name in record.conversions else node.bound or ""
        kernel_s = node.kernel_s or 0.0
        width, lower_bound = kernel_s * scale, min(node.bound_s or 0.0, kernel_s) * scale
        gid = f"t{row}"
        axes.barh(row, width, left=start, height=0.66, color=KINDS[limit], alpha=0.4, linewidth=0.8)
        axes.patches[-1].set_gid(gid)
        if lower_bound:
            axes.barh(row, lower_bound, left=start, height=0.66, color=KINDS[limit], linewidth=0.8)
        peak = f", {units.percent(node.roof_share)}" if node.roof_share is not None else ""
        _place_bar_text(axes, row, start, width, end, f"{units.time(kernel_s)}{peak}")
        points[gid] = node_sentence(node)
        start += width
    if gap > 0:
        axes.barh(len(nodes), gap * scale, left=start, height=0.66, color=GAP_COLOUR, linewidth=0.8)
        _place_bar_text(axes, len(nodes), start, gap * scale, end, units.time(gap))
    axes.set_xlim(0, 1.005 * end)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_yticks(range(rows), names, parse_math=False, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time ({unit})")
    axes.grid(True, axis="x")
    return Chart(
        "network-timeline",
        figure,
        "Timeline",
        f"{len(nodes)} nodes in order, {units.time(total)} together.",
        points,
        "Each bar is the time of a node's kernels. Its dark part is the lower bound by the measured peaks. The "
        "percentage is this bound divided by the time. " + _gap_text(record),
    )


def time_scale(total_s: float) -> tuple[float, str]:
    """Return the factor from seconds to the unit for an axis up to `total_s`, and the unit's name."""
    return (1e6, "µs") if total_s < 2e-3 else (1e3, "ms")


def byte_scale(top: int) -> tuple[float, str]:
    """Return the number of bytes in the unit for an axis up to `top` bytes, and the unit's name."""
    return next(((u, w) for u, w in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if top >= u), (1.0, "B"))


def lifetime_sentence(life: ValueLifetime, names: Sequence[str]) -> str:
    """Return the tooltip of a value: its size and lifetime with the nodes' names."""
    size_and_place = f"{size_text(life.nbytes)} at {size_text(life.offset)}"
    return f"{life.value}: {size_and_place}, from {names[life.first]} to {names[life.last]}"


def _gap_text(record: Record) -> str:
    """Return a sentence on the difference between the sum of the nodes' times and the whole time."""
    gap = record.gap_s
    if gap is None:
        return ""
    if gap > 0:
        return f"The gaps between them add up to {units.time(gap)}: the whole less the sum of its nodes."
    return f"The whole takes {units.time(-gap)} less than the sum of its nodes: they overlap where one ends."


def _place_bar_text(axes: Axes, row: int, begin: float, width: float, end: float, text: str) -> None:
    """Write the text of a bar on the side with more room."""
    right = begin + width < 0.8 * end
    axes.annotate(
        text,
        (begin + width if right else begin, row),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        va="center",
        ha="left" if right else "right",
        fontsize=7.6,
        color=INK,
        parse_math=False,
    )


def memory_chart(record: Record) -> Chart | None:
    """Return a chart with a rectangle for each value: its lifetime by its place in memory."""
    lifetimes = value_lifetimes(record)
    if not lifetimes:
        return None
    nodes, memory = record.nodes, record.memory
    figure = Figure(figsize=(10.0, 4.4))
    axes = figure.add_axes((0.07, 0.25, 0.92, 0.71))
    top = max(life.offset + life.nbytes for life in lifetimes)
    unit, unit_name = byte_scale(top)
    points = {}
    for index, life in enumerate(lifetimes):
        gid = f"m{index}"
        points[gid] = _draw_life(axes, life, unit, COLOURS[index % len(COLOURS)], gid, record, top)
    axes.set_xlim(-0.5, len(nodes) - 0.5)
    axes.set_ylim(0, 1.08 * max(top, memory.lower_bound_bytes or 0) / unit)
    _draw_memory_limits(axes, memory, unit)
    names = [shorten(node.name, 18) for node in nodes]
    axes.set_xticks(range(len(nodes)), names, rotation=90, fontsize=7, parse_math=False)
    axes.set_ylabel(f"offset ({unit_name})")
    axes.grid(True, axis="y")
    naive = memory.naive_bytes
    return Chart(
        "network-memory",
        figure,
        "Memory",
        f"{len(lifetimes)} values over {len(nodes)} nodes, {size_text(top)} at the peak.",
        points,
        "Each rectangle is a value: from the node that computes it to the last node that reads it, at its offset in "
        "the buffer that all values share."
        + (f" A buffer for each value would take {size_text(naive)}." if naive else ""),
    )


def _draw_memory_limits(axes: Axes, memory: MemoryRecord, unit: float) -> None:
    """Draw lines at the plan's peak and at the lower bound of any plan."""
    peak, lower_bound_bytes = memory.peak_bytes, memory.lower_bound_bytes
    label = "peak = lower bound" if peak == lower_bound_bytes else "peak"
    for nbytes, label_text, style, x, side in (
        (peak, label, "-", 1.0, "right"),
        (lower_bound_bytes, "lower bound", "--", 0.0, "left"),
    ):
        if not nbytes or (side == "left" and nbytes == peak):
            continue
        axes.axhline(nbytes / unit, color=INK, linewidth=0.9, linestyle=style)
        # Between lines this close the two texts would overlap.
        is_below = side == "left" and nbytes > 0.93 * (peak or 0)
        axes.annotate(f"{label_text} {size_text(nbytes)}", (x, nbytes / unit), (-4 if x else 4, -3 if is_below else 3),
                      xycoords=("axes fraction", "data"), textcoords="offset points", ha=side,
                      va="top" if is_below else "bottom", fontsize=8)  # fmt: skip


def _draw_life(axes: Axes, life: ValueLifetime, unit: float, colour: str, gid: str, record: Record, top: float) -> str:
    """Draw the rectangle of a value, with its name if it fits; return its tooltip."""
    x, width = life.first - 0.47, life.last - life.first + 0.94
    corner = (x, life.offset / unit)
    axes.add_patch(
        Rectangle(
            corner, width, life.nbytes / unit, facecolor=colour, alpha=0.45, edgecolor=colour, linewidth=1.0, gid=gid
        )
    )
    max_characters = int(width / len(record.nodes) * 660 / 4.6)
    if life.nbytes > 0.045 * top and max_characters >= 4:
        centre = (x + width / 2, (life.offset + life.nbytes / 2) / unit)
        axes.text(*centre, shorten(life.value, max_characters), fontsize=7.2, ha="center", va="center", color=INK,
                  parse_math=False, clip_on=True)  # fmt: skip
    return lifetime_sentence(life, [node.name for node in record.nodes])
