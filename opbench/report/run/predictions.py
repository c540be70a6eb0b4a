"""The problems of a run without a GPU on a named GPU's roof: predictions, where no kernel was timed."""

from __future__ import annotations

from collections.abc import Sequence

from opbench import units
from opbench.gpus.ceilings import Ceilings, best_time
from opbench.report.charts.chart import Chart, look, per_byte, shortened
from opbench.report.charts.roofs import Label, draw_labels, draw_roofs, new_axes
from opbench.report.run.sections import Section

LABELLED = 20


def problems_chart(parts: Sequence[Section], ceilings: Ceilings) -> Chart | None:
    """Every problem with FLOPs at its arithmetic intensity, on the roof; None without one."""
    labels = [label for part in parts if (label := _label(part, ceilings)) is not None]
    if not labels or not ceilings.fp32_flops_per_s:
        return None
    shown = _largest_gaps(labels)
    figure, axes = new_axes(shown, [x.x for x in labels], [x.y for x in labels], [ceilings])
    draw_roofs(axes, [ceilings], "dram", slope_from=0.0, busy_above=False)
    colours = look(list(dict.fromkeys(x.text.split()[0] for x in labels)))
    points = {}
    for i, label in enumerate(labels):
        colour, shape = colours[label.text.split()[0]]
        axes.plot(
            label.x, label.y, shape, color=colour, fillstyle="none", markersize=7.5, mew=1.6, gid=f"p{i}", zorder=3
        )
        points[f"p{i}"] = f"{label.text}: {per_byte(label.x)}, at most {units.flop_rate(label.y)} (predicted)"
    draw_labels(figure, axes, shown, [ceilings])
    gpu = ceilings.gpu.removeprefix("NVIDIA ")
    unnamed = f" {len(shown)} of {len(labels)} problems are named." if len(shown) < len(labels) else ""
    return Chart(
        "problems",
        figure,
        f"Predicted: the problems on the roof of {gpu}",
        f"FLOP/s over FLOP per byte, both logarithmic; {len(labels)} problems at the most that {gpu} allows them. "
        "The table above holds the same numbers.",
        points,
        "Open points are the most that the roof allows a problem, from its FLOPs and compulsory bytes; no kernel was "
        f"timed. Left of the ridge bytes limit a problem, right of it arithmetic.{unnamed}",
    )


def _label(part: Section, ceilings: Ceilings) -> Label | None:
    """A problem's place on the roof; None when it has no FLOPs or lives in another memory level."""
    row = part.rows[0]
    if not row.flops or not row.compulsory_bytes or not row.memory_level.startswith("dram"):
        return None
    best = best_time(ceilings, row.flops, row.compulsory_bytes)
    if best is None:
        return None
    return Label(
        row.flops / row.compulsory_bytes,
        row.flops / best[0],
        f"{part.operator} {shortened(part.problem.strip('()'), 30)}",
    )


def _largest_gaps(labels: Sequence[Label]) -> list[Label]:
    """Those to name: one of each operator first, until the chart is full."""
    first = list({x.text.split()[0]: x for x in reversed(labels)}.values())
    return [*reversed(first), *(x for x in labels if x not in first)][:LABELLED]
