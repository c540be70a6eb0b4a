"""What one run of a network left behind: network.json, read and asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Required, TypedDict

from opbench.errors import EnvironmentFault, UsageError, writing_remedy
from opbench.paths import write_atomically

FILE = "network.json"
FORMAT = 1

NEEDED = ("network", "sizes", "precision", "backend", "memory", "values", "inputs", "outputs", "nodes")
"""Keys of every record."""


class Times(TypedDict, total=False):
    """What was measured, as `Measurement` has it."""

    median_s: float
    low_s: float
    high_s: float
    coverage: float
    kernel_s: float | None
    mode: str
    warnings: list[str]


class PeerRecord(Times, total=False):
    """One of PyTorch's ways; `error` says why it was not timed as a CUDA graph."""

    captured: bool
    """Whether the times are those of one CUDA graph, on the clock that timed ours. Not in older records: their peers
    were called from Python, and their times include the launches."""
    host: Times
    """Of one call from Python until the GPU is done."""
    difference: float
    """Of its outputs from ours, relative and in norm."""
    allowed_difference: float
    peak_bytes: int | None
    norm_error: float | None
    versions: dict[str, str]
    error: str


class NodeVerdict(TypedDict, total=False):
    """How a node compares with its reference."""

    right: bool
    status: str
    """"right", "wrong" or "failed"; not in older records."""
    reason: str
    worst_error: float | None
    allowed_error: float | None
    norm_error: float | None
    allowed_norm_error: float | None
    integers: str


class NodeRecord(TypedDict, total=False):
    """One node: what ran, how long, and why this variant."""

    name: Required[str]
    operator: Required[str]
    problem: Required[str]
    case: Required[str]
    title: str
    precision: str
    unit: str
    inputs: Required[dict[str, str]]
    outputs: Required[dict[str, str]]
    kernels: list[str]
    launches_once: int
    """How many of its launches ran once, when the weights were written, and are in no time."""
    prepared_bytes: int
    """What those filled."""
    flops: int
    compulsory_bytes: int
    kernel_s: float | None
    """The median of `samples_s`."""
    samples_s: list[float]
    """One of each chain of all nodes; empty where the device has no clock, not in older records."""
    share: float | None
    bound_s: float | None
    bound: str | None
    """What sets the least time: "memory" or "compute"."""
    memory_level: str
    """Whose bandwidth bounds it, as `Result.memory_level`; not in older records."""
    roof_share: float | None
    check: NodeVerdict | None
    source: str
    tied_with: list[str]
    lead: float | None
    """The next best variant's time over this one's."""
    alone_s: float | None


class ValueRecord(TypedDict, total=False):
    """A value that nodes hand on; `of` is the one in whose memory it lies."""

    shape: list[int]
    dtype: str
    layout: str
    bytes: int
    of: str


class WorkspaceRecord(TypedDict):
    """Where in the one buffer a node's workspaces lie."""

    offset: int
    bytes: int


class MemoryRecord(TypedDict, total=False):
    """The plan of the network's memory."""

    peak_bytes: int | None
    naive_bytes: int | None
    lower_bound_bytes: int | None
    weights_bytes: int | None
    prepared_bytes: int | None
    """What was made of weights once and is kept beside them; not in older records."""
    offsets: dict[str, int]
    workspaces: dict[str, WorkspaceRecord]


class OutputVerdict(TypedDict, total=False):
    """An output against the float64 reference of the whole network."""

    norm_error: float
    allowed: float
    right: bool


class NetworkVerdict(TypedDict, total=False):
    """The outputs, and the nodes for whose sake the network was not run as a whole."""

    outputs: dict[str, OutputVerdict]
    right: bool
    missing: list[str]
    timed: str
    """What a timed replay got wrong, in which case there is no time of the whole; not in older records."""


class Recognised(TypedDict):
    """What each picture is taken for, and what it is."""

    found: list[int]
    labels: list[int]


class OptionsRecord(TypedDict, total=False):
    """How the network was run."""

    graph: bool
    parallel: bool
    layout: str
    memory_bytes: int | None


class PassRecord(TypedDict):
    """A pass over the graph, and what it did."""

    name: str
    on: bool
    said: list[str]


class Record(TypedDict, total=False):
    """One run of a network."""

    format: int
    opbench: str
    started: str
    revision: dict[str, object] | None
    """Commit of the user's project."""
    command: list[str]
    network: Required[str]
    sizes: Required[dict[str, int]]
    batch: int
    precision: Required[str]
    backend: Required[str]
    environment: Mapping[str, object]
    ceilings: dict[str, object]
    options: OptionsRecord
    memory: Required[MemoryRecord]
    values: Required[dict[str, ValueRecord]]
    weights: list[str]
    inputs: Required[list[str]]
    outputs: Required[list[str]]
    nodes: Required[list[NodeRecord]]
    conversions: list[str]
    total: Times | None
    host: Times | None
    """Of one call from Python until the GPU is done; only where peers were timed, not in older records."""
    gap_s: float | None
    """The whole less the sum of its nodes."""
    between_s: float | None
    classes: Recognised | None
    check: NetworkVerdict | None
    peers: dict[str, PeerRecord]
    peer_versions: dict[str, str]
    """In older records, of all peers."""
    passes: list[PassRecord]


def is_network(path: Path) -> bool:
    """Whether a folder, or a file, is the record of a network's run."""
    return path.name == FILE if path.is_file() else (path / FILE).is_file()


def read_network(path: Path) -> Record:
    """The record in a run's folder, or the file itself; raises UsageError for one that is not whole."""
    file = path if path.is_file() else path / FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{file}: is no JSON ({error}); run the network again: opbench net run") from None
    seen = content.get("format") if isinstance(content, dict) else type(content).__name__
    if seen != FORMAT:
        raise UsageError(f"{file}: format {seen!r} cannot be read; this opbench reads format {FORMAT}")
    if missing := [key for key in NEEDED if key not in content]:
        raise UsageError(f"{file}: '{missing[0]}' is missing; run the network again: opbench net run")
    record: Record = content
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
    nodes = [(node["name"], node["inputs"].values(), node["outputs"].values()) for node in record["nodes"]]
    return lives_of(nodes, record["values"], record["memory"], record["inputs"], record["outputs"])


def lives_of(
    nodes: Sequence[tuple[str, Iterable[str], Iterable[str]]],
    values: Mapping[str, ValueRecord],
    memory: MemoryRecord,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> list[Life]:
    """The same of any nodes in their order, each its name, the values that it reads and those that it makes."""

    def place(name: str) -> str:
        of = (values.get(name) or {}).get("of")
        return place(of) if of else name

    born = {place(name): 0 for name in inputs}
    dies: dict[str, int] = {}
    for number, (_, read, made) in enumerate(nodes):
        for name in made:
            born.setdefault(place(name), number)
            dies[place(name)] = number
        for name in read:
            dies[place(name)] = number
    for name in outputs:
        dies[place(name)] = len(nodes) - 1
    found = [
        Life(name, born.get(name, 0), dies.get(name, born.get(name, 0)), values[name]["bytes"], offset)
        for name, offset in (memory.get("offsets") or {}).items()
        if name in values
    ]
    numbers = {name: number for number, (name, _, _) in enumerate(nodes)}
    found += [
        Life(f"workspace of {name}", numbers[name], numbers[name], own["bytes"], own["offset"])
        for name, own in (memory.get("workspaces") or {}).items()
        if name in numbers
    ]
    return sorted(found, key=lambda life: (life.first, life.offset))


def batch(record: Record) -> int:
    """Images in one run: the first axis of the first input."""
    shape = (record["values"].get(record["inputs"][0]) or {}).get("shape") if record["inputs"] else None
    return int(shape[0]) if shape else 1


def by_time(record: Record) -> list[NodeRecord]:
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


def variant_of(node: NodeRecord) -> tuple[str, str]:
    """Variant and config of a node's case, such as ("nhwc_mma", "[BM=64]")."""
    name = str(node["case"]).partition("(")[0].partition("/")[2]
    variant, bracket, config = name.partition("[")
    return variant, bracket + config
