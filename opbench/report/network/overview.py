"""Networks that were run, one a row of a Markdown table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opbench import units
from opbench.results.network import FILE, Record, Times, read_network

PEERS = ("PyTorch eager", "torch.compile", "torch.compile, CUDA graphs")


def network_folders(folder: Path) -> list[Path]:
    """The runs of networks in a folder of such runs."""
    return sorted(path.parent for path in folder.glob(f"*/{FILE}"))


def networks_overview(folders: Sequence[Path], base: Path) -> str:
    """Time of a batch beside PyTorch's ways in the same run; links are relative to the folder `base`."""
    lines = [
        f"| network | opbench | {' | '.join(PEERS)} | opbench over the best | peak memory of eager's |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    records = [(folder, read_network(folder)) for folder in folders]
    records.sort(key=lambda item: (item[1]["network"], item[1]["batch"], item[1]["precision"]))
    lines += [_row(record, total, folder, base) for folder, record in records if (total := record.get("total"))]
    return "\n".join(lines) + "\n"


def _row(record: Record, total: Times, folder: Path, base: Path) -> str:
    name = f"{record['network']}, batch {record['batch']}, {record['precision']}"
    link = Path(os.path.relpath(folder.resolve(), base.resolve())).as_posix()
    ours = float(total["median_s"])
    medians = {way: (record["peers"].get(way) or {}).get("median_s") for way in PEERS}
    known = [float(value) for value in medians.values() if value]
    eager = (record["peers"].get(PEERS[0]) or {}).get("peak_bytes")
    peak = record["memory"].get("peak_bytes")
    cells = [
        f"[{name}]({link})",
        f"**{units.time(ours)}**",
        *(units.time(value) if value else "–" for value in medians.values()),
        units.ratio(min(known) / ours) if known else "–",
        units.percent(peak / eager) if eager and peak is not None else "–",
    ]
    return f"| {' | '.join(cells)} |"
