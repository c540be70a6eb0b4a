"""A Markdown table of networks that were timed on one clock with PyTorch, one network in a row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opbench import units
from opbench.errors import UsageError
from opbench.networks.records.network import FILE, Record, Times, batch, read_network
from opbench.networks.report import phrases

HEAD = (
    "| network, batch, precision, GPU | GPU time | fastest PyTorch | speedup "
    "| wall time of one call | PyTorch's wall time | peak memory, % of PyTorch's |\n"
    "|---|--:|--:|--:|--:|--:|--:|\n"
)


def network_folders(folder: Path) -> list[Path]:
    """Return the runs of networks in a folder of such runs."""
    return sorted(path.parent for path in folder.glob(f"*/{FILE}"))


def network_tables(root: Path, networks: Sequence[Path]) -> dict[Path, str]:
    """Return each document of a checkout that shows networks, with its table; none where no network is given.

    Raises UsageError for a folder outside the checkout, which a committed document cannot link to.
    """
    for folder in networks:
        if not folder.resolve().is_relative_to(root.resolve()):
            raise UsageError(f"{folder}: is outside {root}; the documents link to the runs, so the runs must be inside")
    documents = (root / "docs" / "networks.md", root / "README.md") if networks else ()
    return {document: networks_overview(networks, document.parent) for document in documents}


def networks_overview(folders: Sequence[Path], base: Path) -> str:
    """Return the table of every network of these that was timed on one clock with PyTorch, slower ones too.

    A row shows the GPU time of both sides as one CUDA graph, then one call from Python. Records of older runs, whose
    PyTorch times include launches from the host, have no row; without a row there is no table. Links are relative to
    the folder `base`.
    """
    records = [(folder, read_network(folder)) for folder in folders]
    records.sort(key=lambda item: (item[1].network, batch(item[1]), item[1].precision))
    rows = [row for folder, record in records if (row := _row(record, folder, base))]
    return HEAD + "".join(f"{row}\n" for row in rows) if rows else ""


def _row(record: Record, folder: Path, base: Path) -> str:
    """Return a network's row; empty if it was not timed on one clock with PyTorch."""
    everyone, total = phrases.peers(record), record.total
    best = phrases.fastest(everyone)
    if not total or not best or not best.measured or not best.ratio:
        return ""
    gpu = record.environment.gpu.removeprefix("NVIDIA ").partition(" ")[0]
    facts = (record.network, batch(record), record.precision, gpu)
    name = " ".join(str(fact) for fact in facts if fact)
    link = Path(os.path.relpath(folder.resolve(), base.resolve())).as_posix()
    called = [peer.host for peer in everyone if peer.host]
    smallest = phrases.smallest_peer(record)
    peak = record.memory.peak_bytes
    cells = [
        f"[{name}]({link})",
        f"**{units.time(total.median_s)}**",
        f"{units.time(best.measured.median_s)} ({best.name})",
        units.ratio(best.ratio.value),
        _median(record.host),
        _median(min(called, key=lambda times: times.median_s, default=None)),
        units.percent(peak / smallest.peak_bytes) if smallest and smallest.peak_bytes and peak is not None else "–",
    ]
    return f"| {' | '.join(cells)} |"


def _median(times: Times | None) -> str:
    return units.time(times.median_s) if times else "–"
