"""The HTML page of a training: its curves, the nodes of a step, and commands that repeat it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from opbench import units
from opbench.kernels.case_names import split_case
from opbench.networks.records.training import GROUPS, TrainingNode, TrainingPass, TrainingRecord
from opbench.networks.report.phrases import size_text, unmeasured_hint
from opbench.networks.report.training_comparison import (
    first_step_text,
    opbench_state,
    peer_bars,
    peer_rows,
    peer_text,
    speed_text,
)
from opbench.networks.report.training_pictures import memory_map, step_chart
from opbench.networks.report.training_ranks import (
    batch_text,
    exchange_text,
    exchange_totals,
    ranks_and_micro_batches,
    ranks_text,
)
from opbench.paths import next_command
from opbench.records import JSON, to_json
from opbench.report.charts.chart import COLOURS, Chart
from opbench.report.charts.svg import report_style, to_png
from opbench.report.template import render_template, write_files
from opbench.results.header import short_revision

PAGE = "train.html"
PIXELS_PER_POINT = 1.6
SMOOTHED_STEPS = 50
"""Number of steps in the moving mean of the dark line."""
FEW_STEPS = 300
"""Most points for which the line of each step's loss has full strength."""


def write_training(record: TrainingRecord, folder: Path) -> list[Path]:
    """Write train.html and its charts from the record; return the files, the page first."""
    with report_style():
        charts = [loss_chart(record), step_chart(record), memory_map(record)]
        chart_by_name = {chart.name: chart for chart in charts if chart}
        files = {PAGE: _page(record, chart_by_name).encode()}
        files |= {f"{name}.png": to_png(chart.figure) for name, chart in chart_by_name.items()}
    remedy = f"make the folder writable. The record is stored; write the page with: {next_command('report', folder)}"
    return write_files(folder, files, remedy)


def loss_chart(record: TrainingRecord) -> Chart:
    """Return a chart of each step's loss with a moving mean, and of the score on the test set."""
    losses, scores = np.array(record.losses), record.scores
    figure = Figure(figsize=(5.0, 4.2))  # narrow enough for a phone
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = np.arange(1, len(losses) + 1)
    upper.plot(steps, losses, color=COLOURS[0], alpha=0.35 if len(losses) > FEW_STEPS else 0.6, linewidth=0.7)
    window = min(SMOOTHED_STEPS, max(1, len(losses) // 5))
    mean = np.convolve(losses, np.ones(window) / window, "valid")
    upper.plot(steps[window - 1 :], mean, color=COLOURS[0], linewidth=1.8)
    upper.set_ylabel("loss")
    if losses.min() > 0 and losses.max() / losses.min() > 20:
        upper.set_yscale("log")
        upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # The text is not mathematics.
        upper.yaxis.set_minor_formatter(NullFormatter())
    share = record.score_name in ("accuracy", "IoU")
    marker = "o" if len(scores) < 40 else ""
    values = [100 * score if record.score_name == "accuracy" else score for _, score in scores]
    lower.plot(
        [step for step, _ in scores], values, color=COLOURS[1], marker=marker, markersize=3.5, linewidth=1.4,
        clip_on=False,
    )  # fmt: skip
    lower.set_ylabel(f"test {record.score_name}" + (" (%)" if record.score_name == "accuracy" else ""))
    lower.set_xlabel("step")
    lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in (upper, lower):
        if axes.get_yscale() == "linear":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        axes.grid(True, axis="y")
        axes.set_xlim(1, max(2, len(losses)))
    if share and len(scores) == 1:
        lower.set_ylim(0, 100 if record.score_name == "accuracy" else 1)
    elif share:
        lower.set_ylim(bottom=max(0.0, lower.get_ylim()[0]))
    figure.subplots_adjust(left=0.135, right=0.965, top=0.975, bottom=0.12, hspace=0.09)
    best = (max if share else min)(score for _, score in scores)
    smoothed = f" and the mean of the last {window}" if window > 1 else ""
    return Chart(
        "loss",
        figure,
        "Loss and test score",
        f"{len(losses)} steps from {losses[0]:.4g} to {losses[-1]:.4g}; best {record.score_name} {best:.4g}.",
        {},
        f"Above: each step's loss{smoothed}. Below: {record.score_name} on the test set, which no step uses.",
    )


def _page(record: TrainingRecord, charts: Mapping[str, Chart]) -> str:
    drawn = {
        name: {**chart.template_values(name), "width": round(72 * PIXELS_PER_POINT * chart.figure.get_figwidth())}
        for name, chart in charts.items()
    }
    commit = short_revision(record.revision)
    revision = [f"commit {commit}"] if commit else []
    return render_template(
        "training.html.j2",
        title=f"{record.network} trained on {Path(record.data.name).name}",
        facts=[
            record.environment.device_name or record.backend,
            f"opbench {record.opbench}",
            record.started,
            *revision,
        ],
        headline=headline(record),
        bars=peer_bars(record),
        notes=record.notes,
        chart=drawn["loss"],
        step=drawn.get("step"),
        memory_map=drawn.get("training-memory"),
        groups=[_group_row(record, g) for g in GROUPS if _has_group(record, g)],
        timed=bool(record.times.nodes_s),
        nodes=[_row(node_number, node, record.times.nodes_s) for node_number, node in enumerate(record.nodes, 1)],
        passes=[{**to_json(item), "saves": _saving_text(item)} for item in record.passes],
        facts_of_run=_header_facts(record),
        memory=[
            ("activations and workspaces, one arena", size_text(record.memory.activations_bytes)),
            ("parameters, gradients, moments, statistics", size_text(opbench_state(record))),
            ("the data set, on the device", size_text(record.memory.data_bytes)),
        ],
        unit=record.data.unit,
        against=peer_rows(record),
        comparison=record.comparison,
        first_step=first_step_text(record.comparison.first_step) if record.comparison else "",
        recipe=[(name.replace("_", " "), value) for name, value in record.recipe.items()],
        command=shlex.join(["opbench", *record.command]) if record.command else "",
        environment=[(name, str(value)) for name, value in record.environment.to_json().items()],
    )


def headline(record: TrainingRecord) -> list[str]:
    """Return sentences on a training, the most important first: its speed if it was compared, else its score."""
    losses, (step, score) = record.losses, record.scores[-1]
    window = min(50, max(1, len(losses) // 5))
    name = record.score_name
    mean_text = f"the mean loss of {window} steps" if window > 1 else "the loss"
    score_text = f"{100 * score:.2f} %" if name == "accuracy" else f"{score:.4g}"
    return [
        *speed_text(record),
        f"Test {name} {score_text} after {int(step)} steps of {batch_text(record)}; {mean_text} went from "
        f"{np.mean(losses[:window]):.4g} (first) to {np.mean(losses[-window:]):.4g} (last).",
        f"{record.images_per_s:,.0f} {record.data.unit}/s{ranks_text(record)}, without evaluation on the test set and "
        f"checkpoints; {record.parameters:,} parameters.",
        *_step_text(record),
        *exchange_text(record),
        *peer_text(record),
    ]


def _step_text(record: TrainingRecord) -> list[str]:
    """Return sentences on the time of a step; none without a measurement."""
    hot, cold = record.times.hot, record.times.cold
    if not hot or not cold:
        return []
    back_to_back = f"{units.time(hot.median_s)} back to back ({units.interval(hot.low_s, hot.high_s)})"
    guessed = sum(node.source == "default" for node in record.nodes)
    sentences = [f"A step takes {back_to_back}, {units.time(cold.median_s)} from a cold L2."]
    return [*sentences, unmeasured_hint(guessed, len(record.nodes))] if guessed else sentences


def _saving_text(training_pass: TrainingPass) -> str:
    """Format the nodes and the compulsory bytes that a graph pass saves; "" if it saves nothing."""
    saved = training_pass.saved
    if not saved:
        return ""
    nodes = f"{units.count_noun(saved.nodes, 'node')}, " if saved.nodes else ""
    return f"saves {nodes}{size_text(saved.compulsory_bytes)} of compulsory traffic a step"


def _header_facts(record: TrainingRecord) -> list[tuple[str, str]]:
    epochs = len(record.losses) / record.steps_per_epoch
    return [
        (f"{record.data.unit} to train with", f"{record.data.items:,}"),
        ("batch", str(record.batch)),
        *([("pictures of a step", batch_text(record))] if math.prod(ranks_and_micro_batches(record)) > 1 else []),
        ("steps an epoch", str(record.steps_per_epoch)),
        ("epochs", f"{epochs:.4g}"),
        ("precision", record.precision),
    ]


def _has_group(record: TrainingRecord, group: str) -> bool:
    return exchange_totals(record, group)[0] > 0 or any(node.group == group for node in record.nodes)


def _group_row(record: TrainingRecord, group: str) -> dict[str, JSON]:
    nodes = [node for node in record.nodes if node.group == group]
    times, all_nodes = record.times.nodes_s, record.nodes
    flops, total_flops = (_sum_over_launches(node_group, lambda n: n.flops) for node_group in (nodes, all_nodes))
    bytes_moved, whole_bytes = (
        _sum_over_launches(node_group, lambda n: n.compulsory_bytes) for node_group in (nodes, all_nodes)
    )
    exchange_count, exchange_s = exchange_totals(record, group)
    group_s = _sum_over_launches(nodes, lambda n: times.get(n.name, 0.0)) + exchange_s
    total_s = _sum_over_launches(all_nodes, lambda n: times.get(n.name, 0.0)) + exchange_totals(record, "exchange")[1]
    return {
        "name": group,
        "count": len(nodes) + exchange_count,
        "flops": units.si(flops, "FLOP") if flops else "–",
        "flops_share": units.percent(flops / (total_flops or 1)) if flops else "–",
        "bytes": size_text(bytes_moved),
        "bytes_share": units.percent(bytes_moved / (whole_bytes or 1)),
        "time": units.time(group_s) if times else "",
        "time_share": units.percent(group_s / (total_s or 1)),
    }


def _sum_over_launches(nodes: Sequence[TrainingNode], quantity: Callable[[TrainingNode], float]) -> float:
    """Return the sum of a quantity over the nodes of a step, each multiplied by its number of launches."""
    return sum(n.launches * quantity(n) for n in nodes)


def _row(node_number: int, node: TrainingNode, times: Mapping[str, float]) -> dict[str, JSON]:
    case = split_case(node.case)
    return {
        "number": node_number,
        "name": node.name,
        "operator": node.operator,
        "group": node.group,
        "variant": case.variant_and_config,
        "problem": case.problem,
        "flops": units.si(node.flops, "FLOP") if node.flops else "–",
        "flops_sort": math.log10(node.flops + 1),
        "bytes": size_text(node.compulsory_bytes),
        "bytes_sort": node.compulsory_bytes,
        "time": units.time(times.get(node.name)),
        "time_sort": times.get(node.name, 0.0),
    }
