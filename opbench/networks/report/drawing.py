"""Draw a network's graph: each node is a box with variant and time, filled by its share of the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from opbench import units
from opbench.networks.records.network import NodeRecord, Record, ValueRecord, memory_owner, variant_of
from opbench.networks.report.layout import Box, Layout, Sizes, layered_layout
from opbench.networks.report.phrases import headline_name, node_sentence, shape_text
from opbench.report.charts.chart import Chart, shorten
from opbench.report.charts.svg import INK, MUTED, PAPER

KINDS = {"memory": "#0072B2", "compute": "#009E73", "conversion": "#E69F00", "": "#56B4E9"}
"""Colour of a node by what limits its lower bound; layout conversions have a colour of their own."""
WRONG_COLOUR = "#D55E00"
NAME_FONT_SIZE, SMALL_FONT_SIZE, TINY_FONT_SIZE = 8.5, 7.4, 6.6
"""Sizes of text in points."""


def graph_chart(record: Record) -> Chart:
    """Return a chart with one box per node, with its variant and its share of the time, and arrows for the values."""
    items, edges = _items_and_edges(record)
    layout = layered_layout(items, list(edges))
    figure = Figure(figsize=(layout.width / 72, layout.height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    axes.axis("off")
    for edge, value in edges.items():
        _draw_edge(
            axes, layout, edge, skip=value in _reused_values(edges) and edge != _nearest_reader(edges, value, items)
        )
    largest = max((node.share or 0.0 for node in record.nodes), default=0.0)
    points: dict[str, str] = {}
    labelled: set[str] = set()
    for (source, _), value in edges.items():
        if value not in labelled:
            labelled.add(value)
            _label_value(axes, layout, source, record, value)
    for name in items:
        box = layout.boxes[name]
        node = next((n for n in record.nodes if name == f"node {n.name}"), None)
        if node is None:
            _draw_end(axes, box, layout.sizes, name.partition(" ")[2])
        else:
            gid = f"n{len(points)}"
            _draw_node(axes, box, layout.sizes, node, record, largest, gid)
            points[gid] = node_sentence(node)
    timed = largest > 0
    return Chart(
        "network-graph",
        figure,
        f"{headline_name(record)} as it ran",
        f"{len(record.nodes)} nodes from {', '.join(record.inputs)} to {', '.join(record.outputs)}. "
        "The table below holds the same numbers.",
        points,
        _legend(record, timed),
    )


def _legend(record: Record, timed: bool) -> str:
    bound_text = "By their compulsory bytes and FLOPs, memory limits the blue nodes and arithmetic the green nodes"
    if not any(node.bound for node in record.nodes):
        bound_text = "The limit of a node is unknown, because no peaks are known"
    conversions = "; yellow nodes convert a layout" if record.conversions else ""
    fill_text = "The filled part of a box is the time of its node relative to the slowest node. " if timed else ""
    return f"{fill_text}{bound_text}{conversions}. The text below a box is the shape of its output."


def _items_and_edges(record: Record) -> tuple[list[str], dict[tuple[str, str], str]]:
    """Return inputs, nodes and outputs in order, and each edge with its value."""
    source = {memory_owner(record, name): f"input {name}" for name in record.inputs}
    items = list(source.values())
    edges: dict[tuple[str, str], str] = {}
    for node in record.nodes:
        node_item = f"node {node.name}"
        items.append(node_item)
        for name in node.inputs.values():
            if (source_item := source.get(memory_owner(record, name))) is not None:
                edges[source_item, node_item] = memory_owner(record, name)
        source |= {memory_owner(record, name): node_item for name in node.outputs.values()}
    for name in record.outputs:
        items.append(f"output {name}")
        if (source_item := source.get(memory_owner(record, name))) is not None:
            edges[source_item, f"output {name}"] = memory_owner(record, name)
    return items, edges


def _reused_values(edges: Mapping[tuple[str, str], str]) -> set[str]:
    values = list(edges.values())
    return {value for value in values if values.count(value) > 1}


def _nearest_reader(edges: Mapping[tuple[str, str], str], value: str, items: list[str]) -> tuple[str, str]:
    """Return the edge from a value to its first reader."""
    return min((edge for edge, carried in edges.items() if carried == value), key=lambda edge: items.index(edge[1]))


def _draw_edge(axes: Axes, layout: Layout, edge: tuple[str, str], *, skip: bool) -> None:
    xs, ys = zip(*layout.routes[edge], strict=True)
    colour = INK if skip else MUTED
    axes.plot(xs, ys, color=colour, linewidth=1.3 if skip else 1.0, solid_joinstyle="round", zorder=1)
    arrow_style = {
        "arrowstyle": "-|>",
        "color": colour,
        "linewidth": 1.0,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 7,
    }
    axes.annotate("", (xs[-1], ys[-1]), xytext=(xs[-2], ys[-2]), arrowprops=arrow_style, zorder=1)


def _label_value(axes: Axes, layout: Layout, source: str, record: Record, value: str) -> None:
    box = layout.boxes[source]
    direction = -1 if box.upward else 1
    y = box.y + direction * (layout.sizes.height / 2 + 0.42 * layout.sizes.gap)
    shape = shape_text(record.values.get(value, ValueRecord()))
    axes.text(
        box.x + 6, y, shape, fontsize=TINY_FONT_SIZE, color=MUTED, va="center", ha="left", parse_math=False, zorder=2
    )


def _draw_end(axes: Axes, box: Box, sizes: Sizes, name: str) -> None:
    """Draw an input or output of the network as a small rounded box."""
    width, height = 12 + 5.6 * len(name), 0.62 * sizes.height
    shape = FancyBboxPatch(
        (box.x - width / 2, box.y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=9",
        facecolor=PAPER,
        edgecolor=MUTED,
        linewidth=1.0,
        zorder=3,
    )
    axes.add_patch(shape)
    axes.text(
        box.x, box.y, name, fontsize=SMALL_FONT_SIZE, color=INK, va="center", ha="center", parse_math=False, zorder=4
    )


def _draw_node(axes: Axes, box: Box, sizes: Sizes, node: NodeRecord, record: Record, largest: float, gid: str) -> None:
    converts = node.name in record.conversions
    wrong = node.is_wrong
    colour = KINDS["conversion" if converts else node.bound or ""]
    left, top = box.x - sizes.width / 2, box.y - sizes.height / 2
    axes.add_patch(Rectangle((left, top), sizes.width, sizes.height, facecolor=PAPER, edgecolor="none", zorder=3))
    share = (node.share or 0.0) / largest if largest else 0.0
    if share:
        axes.add_patch(
            Rectangle((left, top), share * sizes.width, sizes.height, facecolor=colour, alpha=0.32, zorder=3.1)
        )
    axes.add_patch(
        Rectangle(
            (left, top),
            sizes.width,
            sizes.height,
            facecolor="none",
            edgecolor=WRONG_COLOUR if wrong else colour,
            linewidth=2.2 if wrong else 1.1,
            zorder=3.2,
            gid=gid,
        )
    )
    axes.add_patch(Rectangle((left, top), 3.5, sizes.height, facecolor=colour, edgecolor="none", zorder=3.3))
    _write_node(axes, box, sizes, node, wrong=wrong)


def _write_node(axes: Axes, box: Box, sizes: Sizes, node: NodeRecord, *, wrong: bool) -> None:
    """Write a node's texts: name, operator and time above the middle, variant and shares below."""
    variant, config = variant_of(node)
    left, right = box.x - sizes.width / 2 + 9, box.x + sizes.width / 2 - 6
    upper, lower = box.y - 0.22 * sizes.height, box.y + 0.24 * sizes.height
    time = units.time(node.kernel_s) if node.kernel_s is not None else ""
    share, peak = node.share, node.roof_share
    parts = [units.percent(share)] if share is not None else []
    parts += [f"{units.percent(peak)} of peak"] if peak is not None else []
    parts += ["WRONG"] if wrong else []
    shares_text = " · ".join(parts)
    max_characters = int((sizes.width - 15) / (0.60 * SMALL_FONT_SIZE)) - len(shares_text) - 2
    text_style: dict[str, Any] = {"va": "center", "parse_math": False, "zorder": 4}
    operator = f"{node.operator} {node.precision}".rstrip()
    name = shorten(node.name, 26)
    axes.text(left, upper, name, fontsize=NAME_FONT_SIZE, color=INK, ha="left", fontweight="bold", **text_style)
    axes.text(
        left + 8 + 6.4 * len(name), upper, operator, fontsize=SMALL_FONT_SIZE, color=MUTED, ha="left", **text_style
    )
    axes.text(right, upper, time, fontsize=NAME_FONT_SIZE, color=INK, ha="right", fontweight="bold", **text_style)
    axes.text(
        left,
        lower,
        shorten(variant + config, max(12, max_characters)),
        fontsize=SMALL_FONT_SIZE,
        color=INK,
        ha="left",
        **text_style,
    )
    axes.text(
        right,
        lower,
        shares_text,
        fontsize=SMALL_FONT_SIZE,
        color=WRONG_COLOUR if wrong else INK,
        ha="right",
        **text_style,
    )
