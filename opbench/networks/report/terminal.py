"""Print a network's run to a terminal or a pipe, with one line for all nodes of the same case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from opbench import units
from opbench.networks.records.network import NodeRecord, Record, groups_by_time, sum_of_node_times_s, variant_of
from opbench.networks.report import phrases
from opbench.networks.report.attribution import attribution_sentences, attribution_table
from opbench.networks.report.work_next import work_nodes
from opbench.tables import align_columns

if TYPE_CHECKING:
    from rich.console import Console


def print_network(record: Record, console: Console, run: str = "RUN") -> None:
    """Print the nodes, slowest first, then sentences; `run` is the folder that commands name."""
    console.print(Text(phrases.headline_name(record), style="bold"), soft_wrap=True)
    wrong = {n.name: n for n in record.nodes if n.is_wrong}
    lines = _table(record, with_configs=True)
    if below := console.is_terminal and max(map(len, lines)) + 2 > console.width:
        lines = _table(record, with_configs=False)
    heading, *lines = lines
    console.print(Text(f"  {heading}", style="dim"), soft_wrap=True)
    for group, line in zip(groups_by_time(record), lines, strict=True):
        node = group.nodes[0]
        console.print(Text(f"  {line}", style="red" if node.name in wrong else ""), soft_wrap=True)
        if below and (config := variant_of(node)[1]):
            console.print(Text(f"    {config.strip('[]')}", style="dim"), soft_wrap=True)
    for name, node in wrong.items():
        reason = (node.check.reason if node.check else "") or "beyond its tolerance"
        console.print(
            Text(f"  {name} ({node.case}): {phrases.fault_word(node)}: {reason}", style="red"), soft_wrap=True
        )
    for sentence in phrases.headline(record):
        console.print(Text(sentence.replace("`", "")), soft_wrap=True)
    if record.attribution:
        _print_attribution(record, console)
    if work := work_nodes(record, run):
        console.print(Text("Nodes with the most time above their lower bounds:", style="bold"), soft_wrap=True)
    for node_work in work:
        console.print(Text(f"  {node_work.sentence}"), soft_wrap=True)
        for command in node_work.commands:
            console.print(Text(f"    {command}", style="dim"), soft_wrap=True)
    for notice in phrases.notices(record):
        console.print(Text(f"! {notice}", style="yellow"), soft_wrap=True)


def _print_attribution(record: Record, console: Console) -> None:
    """Print what each choice of the plan saves: one line per choice, then the steps from PyTorch to opbench."""
    headings, rows = attribution_table(record)
    heading, *lines = align_columns(headings, rows, left=(0, len(headings) - 1))
    console.print(Text("What each choice saves, undone alone:", style="bold"), soft_wrap=True)
    console.print(Text(f"  {heading}", style="dim"), soft_wrap=True)
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
    for sentence in attribution_sentences(record):
        console.print(Text(sentence.replace("`", "")), soft_wrap=True)


def _table(record: Record, *, with_configs: bool) -> list[str]:
    """Return the heading of the table, then one line per group of nodes with the same case."""
    groups = groups_by_time(record)
    total_s = sum_of_node_times_s(record)
    names = [
        (group.name, group.nodes[0].operator, _variant_text(group.nodes[0], with_configs=with_configs))
        for group in groups
    ]
    verdicts = [_verdict_text(group.nodes[0]) for group in groups]
    if total_s is None:
        headings = ("node", "operator", "variant", "FLOPs", "bytes", "lower bound", "")
        figures = [
            (
                units.si(sum(node.flops for node in group.nodes) or None, "FLOP"),
                phrases.size_text(sum(node.compulsory_bytes for node in group.nodes)),
                units.time(group.bound_s),
            )
            for group in groups
        ]
    else:
        headings = ("node", "operator", "variant", "kernel time", "share", "% of peak", "")
        figures = [
            (
                units.time(group.kernel_s),
                units.percent(group.kernel_s / total_s if group.kernel_s is not None and total_s else None),
                units.percent(group.bound_s / group.kernel_s if group.bound_s and group.kernel_s else None),
            )
            for group in groups
        ]
    rows = [(*name, *figure, verdict) for name, figure, verdict in zip(names, figures, verdicts, strict=True)]
    return align_columns(headings, rows, left=(0, 1, 2, 6))


def _variant_text(node: NodeRecord, *, with_configs: bool) -> str:
    return "".join(variant_of(node)[: 2 if with_configs else 1]) + (
        f" ({node.precision})" if node.precision not in ("", "f32") else ""
    )


def _verdict_text(node: NodeRecord) -> str:
    return "not checked" if node.check is None else phrases.fault_word(node) if node.is_wrong else "right"
