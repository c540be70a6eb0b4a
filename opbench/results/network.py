"""What one run of a network left behind: network.json, read and asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opbench.errors import EnvironmentFault, UsageError, writing_remedy
from opbench.paths import write_atomically

FILE = "network.json"
FORMAT = 1

Record = Mapping[str, Any]
NEEDED = ("network", "sizes", "precision", "backend", "memory", "values", "inputs", "outputs", "nodes")


def is_network(path: Path) -> bool:
    """Whether a folder, or a file, is the record of a network's run."""
    return path.name == FILE if path.is_file() else (path / FILE).is_file()


def read_network(path: Path) -> dict[str, Any]:
    """The record in a run's folder, or the file itself; raises UsageError for one that is not whole."""
    file = path if path.is_file() else path / FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{file}: is no JSON ({error}); run the network again: opbench net run") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        seen = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise UsageError(f"{file}: format {seen!r} cannot be read; this opbench reads format {FORMAT}")
    if missing := [key for key in NEEDED if key not in record]:
        raise UsageError(f"{file}: '{missing[0]}' is missing; run the network again: opbench net run")
    return record


def keep_network(record: Record, folder: Path) -> Path:
    """Write the record into a run's folder, whole or not at all."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, indent=1).encode())
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: cannot write: {error.strerror or error}; {writing_remedy(error)}"
            "choose another folder with --out DIR"
        ) from None
    return path


def base(record: Record, name: str) -> str:
    """The value in whose memory a value lies: a flattened image is a view of it."""
    of = (record["values"].get(name) or {}).get("of")
    return base(record, of) if of else name


@dataclass(frozen=True)
class Life:
    """A value's place in time: numbers of nodes, both ends included."""

    value: str
    first: int
    last: int
    nbytes: int
    offset: int


def lives(record: Record) -> list[Life]:
    """Every value and workspace that the memory plan gave a place, in the order in which they come to be."""
    nodes = record["nodes"]
    offsets: Mapping[str, int] = record["memory"].get("offsets") or {}
    born = {base(record, name): 0 for name in record["inputs"]}
    dies: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in node["outputs"].values():
            born[base(record, name)] = dies[base(record, name)] = number
        for name in node["inputs"].values():
            dies[base(record, name)] = number
    for name in record["outputs"]:
        dies[base(record, name)] = len(nodes) - 1
    found = [
        Life(name, born.get(name, 0), dies.get(name, born.get(name, 0)), record["values"][name]["bytes"], offset)
        for name, offset in offsets.items()
        if name in record["values"]
    ]
    numbers = {node["name"]: number for number, node in enumerate(nodes)}
    found += [
        Life(f"workspace of {name}", numbers[name], numbers[name], place["bytes"], place["offset"])
        for name, place in (record["memory"].get("workspaces") or {}).items()
        if name in numbers
    ]
    return sorted(found, key=lambda life: (life.first, life.offset))


def batch(record: Record) -> int:
    """Images in one run: the first axis of the first input."""
    shape = (record["values"].get(record["inputs"][0]) or {}).get("shape") if record["inputs"] else None
    return int(shape[0]) if shape else 1


def by_time(record: Record) -> list[Mapping[str, Any]]:
    """The nodes, slowest first; in their own order where there are no times."""
    return sorted(record["nodes"], key=lambda node: -(node.get("kernel_s") or 0.0))


def node_sum(record: Record) -> float | None:
    """Seconds of all nodes' kernels; None without a clock."""
    return _sum([node.get("kernel_s") for node in record["nodes"]])


def least_time(record: Record) -> float | None:
    """Seconds that the measured roofs allow the nodes one after the other; None where one is not known."""
    return _sum([node.get("bound_s") for node in record["nodes"]])


def alone_time(record: Record) -> float | None:
    """Seconds of the nodes' variants where they were measured, each alone; None where one was not."""
    return _sum([node.get("alone_s") for node in record["nodes"]])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def variant_of(node: Record) -> tuple[str, str]:
    """Variant and config of a node's case, such as ("nhwc_mma", "[BM=64]")."""
    name = str(node["case"]).partition("(")[0].partition("/")[2]
    variant, bracket, config = name.partition("[")
    return variant, bracket + config
