"""The HTML page of a network's run: prepare every text and number that the template prints."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from opbench import units
from opbench.gpu.limits.ceilings import datasheet
from opbench.networks.records.network import (
    NodeRecord,
    NodeVerdict,
    Record,
    images_per_run,
    nodes_by_time,
    sum_of_node_times_s,
    variant_of,
)
from opbench.networks.report import phrases
from opbench.networks.report.attribution import attribution_rows, attribution_sentences, waterfall_chart
from opbench.networks.report.drawing import graph_chart
from opbench.networks.report.figures import memory_chart, timeline_chart
from opbench.networks.report.work_next import WorkNode, work_nodes
from opbench.paths import next_command
from opbench.records import JSON, to_json
from opbench.report.charts.chart import Chart
from opbench.report.charts.svg import report_style, to_png
from opbench.report.run.evidence import ceilings_table, flat_rows
from opbench.report.run.sentences import gpu_name
from opbench.report.template import render_template, write_files
from opbench.report.terminal import error_text
from opbench.results.header import short_revision

PAGE = "network.html"


def write_network(record: Record, folder: Path) -> list[Path]:
    """Write network.html and its charts as PNG into a folder; return the files, the page first.

    The record alone determines their content.
    """
    with report_style():
        charts = (graph_chart(record), timeline_chart(record), memory_chart(record), waterfall_chart(record))
        page = render(record, *(_chart_for_page(chart) for chart in charts))
        pictures = {f"{chart.name}.png": to_png(chart.figure) for chart in charts if chart}
    files = {PAGE: page.encode("utf-8"), **pictures}
    remedy = f"make the folder writable. The record is stored; write the page with: {next_command('report', folder)}"
    return write_files(folder, files, remedy)


Drawn = dict[str, object] | None
PIXELS_PER_POINT = 1.6


def _chart_for_page(chart: Chart | None) -> Drawn:
    """Return a chart for the page, scaled so that its text has the size of the page's small text."""
    if chart is None:
        return None
    return {**chart.template_values(chart.name), "width": round(72 * PIXELS_PER_POINT * chart.figure.get_figwidth())}


def render(record: Record, graph: Drawn, timeline: Drawn, memory: Drawn, steps: Drawn = None) -> str:
    """Return the page of a record with its charts."""
    ceilings = record.ceilings
    largest = max((node.share or 0.0 for node in record.nodes), default=0.0)
    number_of_node = {node.name: node_number for node_number, node in enumerate(record.nodes, 1)}
    return render_template(
        "network.html.j2",
        title=phrases.short_name(record),
        facts=_header_facts(record),
        answer=phrases.answer_sentences(record),
        next_steps=phrases.next_steps(record),
        more_times=phrases.more_times(record),
        memory_sentences=phrases.memory_sentences(record),
        notices=phrases.notices(record),
        bars=phrases.bars_of(_all_times(record)),
        bars_caption="GPU time, cold L2 (median). The factor is the speedup of opbench.",
        batch=images_per_run(record),
        item=phrases.item_noun(record),
        against=_comparison_rows(record),
        versions=_versions(record),
        graph=graph,
        timeline=timeline,
        memory=memory,
        steps=steps,
        choices=attribution_rows(record),
        choice_sentences=attribution_sentences(record),
        choices_timed=any(alternative.times for alternative in record.attribution.alternatives)
        if record.attribution
        else False,
        work=[_work_row(node) for node in work_nodes(record)],
        timed=sum_of_node_times_s(record) is not None,
        between=_gap_note(record),
        nodes=[_node_row(node, number_of_node[node.name], record, largest) for node in nodes_by_time(record)],
        memory_facts=_memory_rows(record),
        passes=record.passes,
        ceilings=ceilings_table(ceilings, datasheet(record.environment.gpu or ceilings.gpu) if ceilings else None),
        predicting=gpu_name(ceilings) if ceilings and not record.total else "",
        commands=_repeat_commands(record),
        options=flat_rows(to_json(record.options)),
        environment=flat_rows(record.environment.to_json()),
    )


def _header_facts(record: Record) -> list[str]:
    """Return the entries of the line above the title: sizes, backend, device, date and version."""
    version = f"opbench {record.opbench}" if record.opbench else ""
    commit = short_revision(record.revision)
    revision = f"commit {commit}" if commit else ""
    sizes = ", ".join(f"{key} {value}" for key, value in record.sizes.items() if key != "batch")
    header_entries = [
        "network",
        sizes,
        f"backend {record.backend}",
        record.environment.device_name,
        record.started,
        version,
        revision,
    ]
    return [entry for entry in header_entries if entry]


def _comparison_rows(record: Record) -> list[dict[str, JSON]]:
    """Return the table rows of opbench and of PyTorch's modes, the fastest mode first."""
    own_time, *other_times = _all_times(record) or (None,)
    return [
        _peer_row(peer, images_per_run(record), is_opbench=peer is own_time)
        for peer in (own_time, *other_times)
        if peer
    ]


def _all_times(record: Record) -> list[phrases.PeerTime]:
    """Return the times of opbench and of PyTorch's modes, the fastest mode first; empty without a comparison."""
    total = record.total
    peers = phrases.compared_peers(record)
    if not peers or not total:
        return []
    outputs = record.check.outputs.values() if record.check else ()
    worst = max((output.norm_error for output in outputs if output.norm_error is not None), default=None)
    peak = record.memory.peak_bytes
    own_time = phrases.PeerTime("opbench", total, None, peak, worst, host=record.host)
    ordered = sorted(peers, key=lambda peer: peer.measured.median_s if peer.measured else math.inf)
    return [own_time, *ordered]


def _peer_row(peer: phrases.PeerTime, images: int, *, is_opbench: bool) -> dict[str, JSON]:
    value, _, ratio_interval = peer.times.partition(" ")
    time, interval = phrases.median_and_interval(peer.measured)
    return {
        "own": is_opbench,
        "name": peer.name,
        "time": time,
        "interval": interval,
        "image": units.time(peer.measured.median_s / images) if peer.measured else "–",
        "ratio": value,
        "ratio_ends": ratio_interval,
        "verdict": "" if is_opbench else peer.error or peer.verdict,
        "host": units.time(peer.host.median_s) if peer.host else "–",
        "peak": phrases.size_text(peer.peak_bytes),
        "error": error_text(peer.norm_error),
    }


def _versions(record: Record) -> str:
    versions_of_peers = [peer.versions for peer in record.peers.values() if peer.versions]
    versions = record.peer_versions or (versions_of_peers[0] if versions_of_peers else {})
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions unknown"


def _work_row(work_node: WorkNode) -> dict[str, JSON]:
    node = work_node.nodes[0]
    variant, config = variant_of(node)
    return {
        "name": work_node.name,
        "variant": f"{node.operator}/{variant}",
        "config": config,
        "time": units.time(work_node.kernel_s),
        "least": units.time(work_node.bound_s),
        "bound": node.bound or "",
        "above": units.time(work_node.recoverable_s),
        "share": units.percent(work_node.share),
        "commands": work_node.commands,
    }


def _gap_note(record: Record) -> str:
    cost = record.between_s
    return f"each alone, less the {units.time(cost)} that the events between two nodes cost" if cost else ""


def _node_row(node: NodeRecord, node_number: int, record: Record, largest: float) -> dict[str, JSON]:
    """Return the table row of a node, with the numbers to sort by."""
    check = node.check or NodeVerdict(right=True)
    variant, config = variant_of(node)
    share = node.share
    sort = {
        "time": node.kernel_s,
        "share": share,
        "least": node.bound_s,
        "peak": node.roof_share,
        "flops": node.flops,
        "bytes": node.compulsory_bytes,
        "error": check.worst_error,
        "norm": check.norm_error,
    }
    return {
        "number": node_number,
        "name": node.name,
        "operator": node.operator,
        "converts": node.name in record.conversions,
        "case": node.case,
        "kernels": ", ".join(node.kernels),
        "variant": variant,
        "config": config,
        "precision": node.precision,
        "title": node.title,
        "problem": node.problem,
        "time": units.time(node.kernel_s),
        "share": units.percent(share),
        "width": f"{100 * share / largest:.0f}" if share and largest else "",
        "least": units.time(node.bound_s),
        "bound": node.bound or "",
        "peak": units.percent(node.roof_share),
        "flops": units.si(node.flops or None, "FLOP"),
        "bytes": phrases.size_text(node.compulsory_bytes),
        "source": phrases.source_text_of(node),
        "wrong": phrases.fault_word(node) if node.is_wrong else "",
        "reason": check.reason,
        "error": error_text(check.worst_error),
        "allowed": error_text(check.allowed_error),
        "norm": error_text(check.norm_error),
        "allowed_norm": error_text(check.allowed_norm_error),
        "sort": {
            key: "" if value is None or not math.isfinite(value) else f"{value:.6g}" for key, value in sort.items()
        },
    }


def _memory_rows(record: Record) -> list[tuple[str, str]]:
    memory = record.memory
    sizes = {
        "activations at the peak": memory.peak_bytes,
        "the most that is alive at once, which no plan can go below": memory.lower_bound_bytes,
        "a buffer for each value": memory.naive_bytes,
        "weights": memory.weights_bytes,
        "prepared once of weights": memory.prepared_bytes or None,
    }
    return [(label, phrases.size_text(nbytes)) for label, nbytes in sizes.items() if nbytes is not None]


def _repeat_commands(record: Record) -> list[tuple[str, str]]:
    """Return the commands that repeat the run and that write this page again."""
    sizes = [argument for key, value in record.sizes.items() for argument in (f"--{key}", str(value))]
    arguments = ["net", "run", record.network, *sizes, "--precision", record.precision]
    run = "opbench " + shlex.join(record.command or [*arguments, "--backend", record.backend])
    return [("the run", run), ("this page again, from the run's folder", "opbench report .")]
