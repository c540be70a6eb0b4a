"""Markdown tables of networks and trainings with their times in opbench and PyTorch, one per row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opbench import units
from opbench.errors import UsageError
from opbench.networks.records.network import Record, Times, images_per_run, is_network, read_network
from opbench.networks.records.training import TrainingRecord, is_training, read_training
from opbench.networks.report import phrases
from opbench.networks.report.training_comparison import opbench_bytes, step_peers
from opbench.report.ladder_files import DocumentTable
from opbench.report.linked_table import LinkedRow, LinkedTable

HEADINGS = (
    *("GPU time", "fastest PyTorch", "speedup", "wall time of one call", "PyTorch's wall time"),
    "peak memory, % of PyTorch's",
)
BRIEF_HEADINGS = ("GPU time", "fastest PyTorch", "speedup", "peak memory, % of PyTorch's")
"""Of a table without the mode of PyTorch and without wall times."""
TRAININGS_HEADINGS = (
    *("one step", "fastest PyTorch", "speedup", "images or sequences per second"),
    "peak memory, % of PyTorch's",
)


def network_folders(folder: Path) -> list[Path]:
    """Return the folders of network runs and trainings in a folder."""
    return sorted(subfolder for subfolder in folder.glob("*/") if is_network(subfolder) or is_training(subfolder))


def network_tables(root: Path, folders: Sequence[Path]) -> list[DocumentTable]:
    """Return the tables of these runs, each with the document that contains it; none without a run.

    Raises UsageError for a folder outside the checkout, which a committed document cannot link to.
    """
    for folder in folders:
        if not folder.resolve().is_relative_to(root.resolve()):
            raise UsageError(
                f"{folder}: this run lies outside {root}, and the documents link to the runs; copy the run into "
                f"{root / 'reports'}",
                kind="outside",
                subject=folder,
                allowed=root,
            )
    networks = [folder for folder in folders if not is_training(folder)]
    trainings = [folder for folder in folders if is_training(folder)]
    guide, readme = root / "docs", root / "README.md"
    return [
        *(
            DocumentTable(document, "networks", networks_overview(networks, document.parent, brief=brief))
            for document, brief in ((guide / "networks.md", False), (readme, True))
        ),
        DocumentTable(guide / "training.md", "trainings", trainings_overview(trainings, guide)),
    ]


def networks_overview(folders: Sequence[Path], base: Path, *, brief: bool = False) -> LinkedTable:
    """Return the table of all networks that were timed together with PyTorch.

    A row shows the GPU time of both sides as one CUDA graph, then one call from Python, which `brief` leaves
    out. Records of older runs, whose PyTorch times include launches from the host, have no row; without a row
    there is no table. Links are relative to the folder `base`.
    """
    records = [(folder, read_network(folder)) for folder in folders]
    records.sort(key=lambda item: (item[1].network, images_per_run(item[1]), item[1].precision))
    shared_gpu = _shared_gpu([record for _, record in records])
    rows = [row for folder, record in records if (row := _row(record, folder, base, brief, shared_gpu))]
    return _table(BRIEF_HEADINGS if brief else HEADINGS, rows, shared_gpu)


def _row(record: Record, folder: Path, base: Path, brief: bool, shared_gpu: str) -> LinkedRow | None:
    """Return the row of a network; None if it was not timed together with PyTorch."""
    peer_times, total = phrases.compared_peers(record), record.total
    best = phrases.fastest_peer(peer_times)
    if not total or not best or not best.measured or not best.ratio:
        return None
    host_times = [peer.host for peer in peer_times if peer.host]
    smallest = phrases.smallest_peer(record)
    peak = record.memory.peak_bytes
    torch_time, fastest_call = (
        units.time(best.measured.median_s),
        min(host_times, key=lambda t: t.median_s, default=None),
    )
    cells = (
        f"**{units.time(total.median_s)}**",
        torch_time if brief else f"{torch_time} ({best.name})",
        units.ratio(best.ratio.value),
        *(() if brief else (_median(record.host), _median(fastest_call))),
        units.percent(peak / smallest.peak_bytes) if smallest and smallest.peak_bytes and peak is not None else "–",
    )
    name = _run_name((record.network, images_per_run(record), record.precision), record, shared_gpu)
    return LinkedRow(name, _relative_link(folder, base), cells)


def trainings_overview(folders: Sequence[Path], base: Path) -> LinkedTable:
    """Return the table of all trainings whose step was timed together with PyTorch's.

    Times are of steps back to back, each step one CUDA graph. A training whose first step differs from
    PyTorch's has a time and no speedup. Links are relative to the folder `base`.
    """
    records = [(folder, read_training(folder)) for folder in folders]
    records.sort(key=lambda item: (item[1].network, item[1].batch, item[1].precision))
    shared_gpu = _shared_gpu([record for _, record in records])
    rows = [row for folder, record in records if (row := _training_row(record, folder, base, shared_gpu))]
    return _table(TRAININGS_HEADINGS, rows, shared_gpu)


def _training_row(record: TrainingRecord, folder: Path, base: Path, shared_gpu: str) -> LinkedRow | None:
    """Return the row of a training; None if its step was not compared with PyTorch's."""
    peers, step = step_peers(record), record.times.hot
    best = phrases.fastest_peer(peers)
    if not step or not best or not best.measured or not best.ratio:
        return None
    least_bytes = min((peer.peak_bytes for peer in peers if peer.peak_bytes), default=None)
    is_same_step = record.comparison is not None and record.comparison.first_step.right
    cells = (
        f"**{units.time(step.median_s)}**",
        f"{units.time(best.measured.median_s)} ({best.name})",
        units.ratio(best.ratio.value) if is_same_step else "– (the first steps differ)",
        f"{record.batch / step.median_s:,.0f}",
        units.percent(opbench_bytes(record) / least_bytes) if least_bytes else "–",
    )
    name = _run_name((record.network, record.batch, record.precision), record, shared_gpu)
    return LinkedRow(name, _relative_link(folder, base), cells)


def _table(headings: Sequence[str], rows: Sequence[LinkedRow], shared_gpu: str) -> LinkedTable:
    """Return a table whose first column's title names the GPU of all rows."""
    first = f"network, batch, precision ({shared_gpu})" if shared_gpu else "network, batch, precision, GPU"
    return LinkedTable((first, *headings), rows)


def _gpu_model(record: Record | TrainingRecord) -> str:
    """Return the model of a record's GPU, such as "H100"."""
    return record.environment.gpu.removeprefix("NVIDIA ").partition(" ")[0]


def _shared_gpu(records: Sequence[Record | TrainingRecord]) -> str:
    """Return the GPU model of all records; empty if there are several."""
    models = {_gpu_model(record) for record in records}
    return models.pop() if len(models) == 1 else ""


def _run_name(parts: Sequence[str | int | None], record: Record | TrainingRecord, shared_gpu: str) -> str:
    """Return the name of a run: `parts`, and the GPU model if the rows share none."""
    model = "" if shared_gpu else _gpu_model(record)
    return " ".join(str(part) for part in (*parts, model) if part)


def _relative_link(folder: Path, base: Path) -> str:
    return Path(os.path.relpath(folder.resolve(), base.resolve())).as_posix()


def _median(times: Times | None) -> str:
    return units.time(times.median_s) if times else "–"
