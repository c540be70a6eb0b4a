"""Networks that were run, one a row of a Markdown table for README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opbench import units
from opbench.results.network import FILE, Record, read_network

PEERS = ("PyTorch eager", "torch.compile", "torch.compile, CUDA graphs")


def network_folders(folder: Path) -> list[Path]:
    """The runs of networks in a folder of such runs."""
    return sorted(path.parent for path in folder.glob(f"*/{FILE}"))


def networks_overview(folders: Sequence[Path], root: Path) -> str:
    """Time of a batch beside PyTorch's ways in the same run; links are relative to `root`."""
    lines = [
        f"| network | opbench | {' | '.join(PEERS)} | opbench over the best | peak memory of eager's |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    records = [(folder, read_network(folder)) for folder in folders]
    records.sort(key=lambda item: (item[1]["network"], item[1]["batch"], item[1]["precision"]))
    lines += [_row(record, folder, root) for folder, record in records if record.get("total")]
    return "\n".join(lines) + "\n"


def _row(record: Record, folder: Path, root: Path) -> str:
    name = f"{record['network']}, batch {record['batch']}, {record['precision']}"
    link = (folder / "network.html").resolve().relative_to(root.resolve()).as_posix()
    ours = float(record["total"]["median_s"])
    medians = {way: (record["peers"].get(way) or {}).get("median_s") for way in PEERS}
    known = [float(value) for value in medians.values() if value]
    eager = (record["peers"].get(PEERS[0]) or {}).get("peak_bytes")
    cells = [
        f"[{name}]({link})",
        f"**{units.time(ours)}**",
        *(units.time(value) if value else "–" for value in medians.values()),
        units.ratio(min(known) / ours) if known else "–",
        units.percent(record["memory"]["peak_bytes"] / eager) if eager else "–",
    ]
    return f"| {' | '.join(cells)} |"
