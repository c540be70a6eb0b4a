"""Charts of a training step: its time by purpose, and its memory with the values that the backward pass waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from opbench import units
from opbench.networks.records.network import ValueLifetime, lifetimes_of
from opbench.networks.records.training import GROUPS, REPEATED_SUFFIX, ExchangedPart, TrainingRecord
from opbench.networks.report.figures import byte_scale, lifetime_sentence, time_scale
from opbench.networks.report.phrases import size_text
from opbench.report.charts.chart import COLOURS, Chart, shorten
from opbench.report.charts.svg import INK, MUTED

KINDS = ("convolution", "linear", "batch norm", "pooling, sampling", "other")
TOP_MARGIN_SHARE = 0.035
"""Least share of the whole for which a bar shows its name."""


def kind_of(operator: str) -> str:
    """Return the kind of a node's operator, in at most five words."""
    for name_part, kind in (("conv2d", 0), ("linear", 1), ("batchnorm", 2), ("pool", 3), ("upsample", 3)):
        if name_part in operator:
            return KINDS[kind]
    return KINDS[4]


def step_chart(record: TrainingRecord) -> Chart | None:
    """Return the chart of a step from left to right, one row per group: each node when it runs, as wide as its time."""
    times = record.times.nodes_s
    total = sum(times.values())
    if not total:
        return None
    exchanged_parts = record.exchange.parts if record.exchange else ()
    present_groups = {node.group for node in record.nodes} | ({"exchange"} if exchanged_parts else set())
    groups = [group for group in GROUPS if group in present_groups]
    figure = Figure(figsize=(10.0, 0.95 + 0.36 * len(groups)))
    axes = figure.add_axes((0.085, 0.62 / figure.get_figheight(), 0.905, 1 - 0.92 / figure.get_figheight()))
    scale, unit = time_scale(total)
    colour_of_kind, end, points = dict(zip(KINDS, COLOURS, strict=False)), 0.0, dict[str, str]()
    node_ends: dict[str, float] = {}
    for index, node in enumerate(record.nodes):
        width, kind = times.get(node.name, 0.0) * scale, kind_of(node.operator)
        row = groups.index(node.group)
        gid = f"s{index}"
        axes.barh(
            row,
            width,
            left=end,
            height=0.72,
            color=colour_of_kind[kind],
            alpha=0.75,
            edgecolor="#fefefe",
            linewidth=0.3,
        )
        axes.patches[-1].set_gid(gid)
        share = width / scale / total
        points[gid] = f"{node.name} ({node.operator}): {units.time(width / scale)}, {units.percent(share)}"
        if share > TOP_MARGIN_SHARE:
            name = shorten(node.name.partition(".")[0], max(3, int(share * 120)))
            axes.text(end + width / 2, row, name, fontsize=7, ha="center", va="center", color=INK, parse_math=False)
        end += width
        node_ends[node.name] = end
        if exchanged_parts and node.name == exchanged_parts[-1].after:  # the next nodes need the whole exchange
            end = max(end, _draw_exchanges(axes, exchanged_parts, node_ends, groups, scale, points))
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.set_xlim(0, end)
    axes.set_yticks(range(len(groups)), groups)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time ({unit})")
    axes.grid(True, axis="x")
    present_kinds = [kind for kind in KINDS if any(kind_of(node.operator) == kind for node in record.nodes)]
    _legend(axes, [(kind, colour_of_kind[kind]) for kind in present_kinds])
    return Chart(
        "step",
        figure,
        "One step in time",
        f"{len(record.nodes)} nodes, {units.time(total)} together.",
        points,
        "Each node at its place in the step: its width is its time; each group has a row."
        + (
            " The exchange is drawn from the moment when its gradients are ready, with the time that it takes alone."
            if exchanged_parts
            else ""
        ),
    )


def _draw_exchanges(
    axes: Axes,
    exchanged_parts: Sequence[ExchangedPart],
    node_ends: Mapping[str, float],
    groups: Sequence[str],
    scale: float,
    points: dict[str, str],
) -> float:
    """Draw the exchanges between ranks, each when its part is complete and the one before has ended.

    Return the last end.
    """
    free_from = 0.0
    for exchange_index, exchanged_part in enumerate(exchanged_parts):
        begin, width = max(free_from, node_ends[exchanged_part.after]), exchanged_part.alone_s * scale
        axes.barh(groups.index("exchange"), width, left=begin, height=0.72, color=MUTED, alpha=0.75, linewidth=0.3)
        axes.patches[-1].set_gid(f"x{exchange_index}")
        points[f"x{exchange_index}"] = (
            f"{size_text(exchanged_part.nbytes)} behind {exchanged_part.after}: "
            f"{units.time(exchanged_part.alone_s)} alone"
        )
        free_from = begin + width
    return free_from


def memory_map(record: TrainingRecord) -> Chart | None:
    """Return a chart with every value of the step at its place in the arena.

    Those that the backward pass reads stand out.
    """
    node_values = [(n.name, n.inputs.values(), n.outputs.values()) for n in record.nodes]
    lifetimes = lifetimes_of(node_values, record.values, record.memory)
    turn_index = next((i for i, node in enumerate(record.nodes) if node.group == "backward"), None)
    if not lifetimes or turn_index is None:
        return None
    top = max(life.offset + life.nbytes for life in lifetimes)
    unit, unit_name = byte_scale(top)
    live_across = [life for life in lifetimes if life.first < turn_index <= life.last]
    figure = Figure(figsize=(10.0, 4.2))
    axes = figure.add_axes((0.07, 0.11, 0.92, 0.80))
    points = {
        f"m{index}": _draw_lifetime(axes, life, record, turn_index, unit, f"m{index}")
        for index, life in enumerate(lifetimes)
    }
    axes.axvline(turn_index - 0.5, color=INK, linewidth=0.9, linestyle="--")
    axes.annotate(
        f"across the middle: {size_text(_total_bytes(live_across))}",
        (turn_index - 0.5, 1.0),
        (4, -9),
        color=INK,
        fontsize=8,
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
    )
    axes.set_xlim(-0.5, len(record.nodes) - 0.5)
    axes.set_ylim(0, 1.08 * top / unit)
    axes.set_xlabel("node, in order")
    axes.set_ylabel(f"offset ({unit_name})")
    axes.grid(True, axis="y")
    legend_entries = [("made by forward, read by backward", COLOURS[0]), ("forward only", COLOURS[4])]
    recomputed_entry = (
        [("computed again", COLOURS[2])] if any(REPEATED_SUFFIX in life.value for life in lifetimes) else []
    )
    _legend(axes, [*legend_entries, ("made by backward", COLOURS[1]), *recomputed_entry, ("workspace", MUTED)])
    return Chart(
        "training-memory",
        figure,
        "Memory of a step",
        f"{len(lifetimes)} values over {len(record.nodes)} nodes, {size_text(top)} at the peak; "
        f"{size_text(_total_bytes(live_across))} live across the middle.",
        points,
        "Each value from the node that computes it to the last node that reads it, at its offset in the arena. A value "
        "that forward computes and backward reads shares its memory with no value between.",
    )


def _total_bytes(lifetimes: Sequence[ValueLifetime]) -> int:
    return sum(life.nbytes for life in lifetimes)


def _draw_lifetime(
    axes: Axes, life: ValueLifetime, record: TrainingRecord, turn_index: int, unit: float, gid: str
) -> str:
    """Draw the rectangle of one value; return its tooltip."""
    is_kept = life.first < turn_index <= life.last
    colour = COLOURS[0] if is_kept else COLOURS[4] if life.last < turn_index else COLOURS[1]
    colour = COLOURS[2] if REPEATED_SUFFIX in life.value else colour
    colour = MUTED if life.is_workspace else colour
    corner = (life.first - 0.47, life.offset / unit)
    axes.add_patch(
        Rectangle(corner, life.last - life.first + 0.94, life.nbytes / unit, facecolor=colour,
                  alpha=0.55 if is_kept else 0.4, edgecolor=colour, linewidth=0.6, gid=gid)
    )  # fmt: skip
    return lifetime_sentence(life, [node.name for node in record.nodes])


def _legend(axes: Axes, entries: Sequence[tuple[str, str]]) -> None:
    """Draw a legend of colours in one line above."""
    for name, colour in entries:
        axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, alpha=0.75, label=name))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(entries),
                frameon=False, fontsize=8, handlelength=1.0, handleheight=0.8, borderpad=0.1)  # fmt: skip
