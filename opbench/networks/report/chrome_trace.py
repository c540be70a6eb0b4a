"""Export a network's run in the Chrome trace event format, which Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path

from opbench.errors import UsageError
from opbench.export import REMEDY
from opbench.networks.records.network import Record, read_network
from opbench.paths import next_command, write_file
from opbench.records import JSON


def export_trace(network: Path, path: Path) -> Path:
    """Write the run of a network as Chrome trace events; return the path."""
    write_file(path, trace(read_network(network)), REMEDY, parents=True)
    return path


def trace(record: Record) -> bytes:
    """Return the nodes as events one after the other, in microseconds as the format requires.

    If launches overlap, the whole is shorter than the sum of the nodes: the metadata has both. Raises
    UsageError if nothing was timed.
    """
    times = [node.kernel_s for node in record.nodes]
    if not any(times):
        raise UsageError(
            f"this run of {record.network} on the {record.backend} backend has no times, and a trace shows times; "
            f"measure on a GPU: {next_command('net run', record.network, backend='cuda')}",
            kind="no-times",
            subject=record.network,
            value=record.backend,
            allowed="cuda",
        )
    events: list[dict[str, JSON]] = [
        {
            "ph": "M",
            "pid": 0,
            "tid": 0,
            "name": "process_name",
            "args": {"name": f"{record.network} {record.precision}"},
        },
        {"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "nodes, each by itself"}},
    ]
    start_us = 0.0
    for node, time_s in zip(record.nodes, times, strict=True):
        details = {"case": node.case, "roof_share": node.roof_share, "bound": node.bound}
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "name": node.name,
                "cat": node.operator,
                "ts": round(start_us * 1e6, 3),
                "dur": round((time_s or 0.0) * 1e6, 3),
                "args": {key: value for key, value in details.items() if value is not None},
            }
        )
        start_us += time_s or 0.0
    total = record.total.median_s if record.total else None
    metadata = {"sum_of_nodes_s": start_us, "whole_s": total}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "metadata": metadata}, indent=1).encode() + b"\n"
