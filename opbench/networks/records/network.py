"""The record of one run of a network, network.json, and functions that read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from opbench.backend.environment import Environment
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.case_names import split_case
from opbench.networks.records.attribution import AttributionRecord
from opbench.paths import write_file
from opbench.records import from_json, plain_name, read_record, stored_file, to_json, with_new_keys
from opbench.results.header import Revision
from opbench.timing.host import HostTime
from opbench.timing.measurement import Measurement

FILE = "network.json"
FORMAT = 1

RERUN_COMMAND = "run the network again: opbench net run"


Times = Measurement | HostTime
"""A median with its 95 % interval."""


@dataclass(frozen=True)
class PeerRecord:
    """The times of the network in one mode of PyTorch; `error` says why it was not timed as a graph."""

    times: Measurement | None = None
    """In the file, its keys are among the peer's own."""
    captured: bool = False
    """Whether the times are those of one CUDA graph, on the clock that timed opbench.

    Not in older records: their peers were called from Python, and their times include the launches."""
    host: HostTime | None = None
    """Time of one call from Python until the GPU is done."""
    difference: float | None = None
    """Difference of its outputs from opbench's, relative, in norm."""
    allowed_difference: float | None = None
    peak_bytes: int | None = None
    norm_error: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the known values in one table."""
        omit_defaults = to_json(replace(self, times=None), omit_defaults=True)
        return {**(to_json(self.times) if self.times else {}), **omit_defaults}


@dataclass(frozen=True)
class NodeVerdict:
    """The comparison of a node with its reference, on its real inputs."""

    right: bool
    """Whether the network may launch the node."""
    status: str = ""
    """"right", "wrong" or "failed"; empty in older records."""
    reason: str = ""
    """Why it is not right; empty if it is."""
    worst_error: float | None = None
    allowed_error: float | None = None
    norm_error: float | None = None
    allowed_norm_error: float | None = None
    integers: str = ""
    """"exact" on small whole numbers, or why that run was skipped."""


@dataclass(frozen=True)
class NodeRecord:
    """One node: its variant, its time, and why this variant."""

    name: str
    operator: str
    problem: str
    case: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    title: str = ""
    precision: str = ""
    unit: str = ""
    kernels: tuple[str, ...] = ()
    launches_once: int = 0
    """Number of its setup launches, which ran when the weights were written and are in no time."""
    prepared_bytes: int = 0
    """Bytes that the setup launches filled."""
    flops: int = 0
    compulsory_bytes: int = 0
    kernel_s: float | None = None
    """The median of `samples_s`."""
    samples_s: tuple[float, ...] = ()
    """One sample per pass over all nodes, in seconds; empty if the device has no clock, and in older records."""
    share: float | None = None
    bound_s: float | None = None
    bound: str | None = None
    """What limits the lower bound: "memory" or "compute"."""
    memory_level: str = "dram"
    """The memory level whose bandwidth bounds it, as `Result.memory_level`; not in older records."""
    roof_share: float | None = None
    check: NodeVerdict | None = None
    source: str = ""
    tied_with: tuple[str, ...] = ()
    lead: float | None = None
    """Time of the next best variant divided by the time of this one."""
    alone_s: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Return whether the node was checked and is not right."""
        return self.check is not None and not self.check.right


@dataclass(frozen=True)
class ValueRecord:
    """A value between nodes; `of` names the value whose memory it shares."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    bytes: int = 0
    of: str = ""


@dataclass(frozen=True)
class WorkspaceRecord:
    """The offset and the size in bytes of a node's workspaces in the network's allocation."""

    offset: int
    bytes: int


@dataclass(frozen=True)
class MemoryRecord:
    """The memory plan of a network: offsets in the one allocation, and sizes."""

    peak_bytes: int | None = None
    naive_bytes: int | None = None
    lower_bound_bytes: int | None = None
    weights_bytes: int | None = None
    prepared_bytes: int | None = None
    """Bytes of the results of setup launches, which stay allocated with the weights; not in older records."""
    offsets: dict[str, int] = field(default_factory=dict)
    workspaces: dict[str, WorkspaceRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputVerdict:
    """The comparison of one output with the float64 reference."""

    norm_error: float | None = None
    allowed: float | None = None
    right: bool = False


@dataclass(frozen=True)
class NetworkVerdict:
    """The verdicts on the outputs, and the nodes that prevented a run of the whole network."""

    right: bool
    outputs: dict[str, OutputVerdict] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    timed: str = ""
    """What a timed replay computed wrongly; then there is no time of the whole. Not in older records."""


@dataclass(frozen=True)
class RecognisedClasses:
    """The class that the network gives each image, and the true class."""

    found: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class OptionsRecord:
    """The options of a run that affect its times: CUDA graph, parallel branches, layout and memory limit."""

    graph: bool = True
    parallel: bool = False
    layout: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class PassRecord:
    """A graph pass: whether it was enabled, and what it changed."""

    name: str
    on: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """The record of one run of a network."""

    format: int
    network: str
    sizes: dict[str, int]
    precision: str
    backend: str
    memory: MemoryRecord
    values: dict[str, ValueRecord]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeRecord, ...]
    opbench: str = ""
    started: str = ""
    revision: Revision | None = None
    """Commit of the user's project."""
    command: tuple[str, ...] = ()
    batch: int | None = None
    environment: Environment = field(default_factory=Environment)
    ceilings: Peaks | None = None
    options: OptionsRecord = OptionsRecord()
    weights: tuple[str, ...] = ()
    conversions: tuple[str, ...] = ()
    total: Measurement | None = None
    host: HostTime | None = None
    """Time of one call from Python until the GPU is done; only if peers were timed, not in older records."""
    gap_s: float | None = None
    """Time of the whole minus the sum of its nodes, in seconds."""
    between_s: float | None = None
    classes: RecognisedClasses | None = None
    check: NetworkVerdict | None = None
    peers: dict[str, PeerRecord] = field(default_factory=dict)
    peer_versions: dict[str, str] = field(default_factory=dict)
    """Versions in older records, for all peers."""
    passes: tuple[PassRecord, ...] = ()
    attribution: AttributionRecord | None = None
    """The choices undone one by one; None without `--attribution`, and in older records."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Record:
        """Return the record from the JSON data of network.json; raise ValueError for invalid data."""
        ceilings = Peaks.from_json(value["ceilings"]) if value.get("ceilings") else None
        peers = {
            name: {**peer, "times": peer if peer.get("median_s") else None} if isinstance(peer, dict) else peer
            for name, peer in (value.get("peers") or {}).items()
        }
        passes = [with_new_keys(name, notes="said") for name in value.get("passes", ())]
        current = {**value, "ceilings": None, "peers": peers, "passes": passes}
        return replace(from_json(cls, current), ceilings=ceilings)

    def to_json(self) -> dict[str, Any]:
        """Return the record as the JSON data of network.json."""
        return {
            **to_json(replace(self, ceilings=None, peers={})),
            "environment": self.environment.to_json(),
            "ceilings": self.ceilings.to_json() if self.ceilings else {},
            "peers": {name: peer.to_json() for name, peer in self.peers.items()},
        }


def is_network(path: Path) -> bool:
    """Return whether a folder or a file contains the record of a network's run."""
    return plain_name(path) == FILE if path.is_file() else stored_file(path / FILE).is_file()


def read_network(path: Path) -> Record:
    """Read the record of a network's run from its folder or file; raise UsageError for an invalid one."""
    return read_record(Record, path if path.is_file() else path / FILE, FORMAT, RERUN_COMMAND, decode=Record.from_json)


def store_network_record(record: Record, folder: Path) -> Path:
    """Write the record into a run's folder, atomically."""
    path = folder / FILE
    content = json.dumps(record.to_json(), indent=1).encode()
    write_file(path, content, "choose another folder with --out DIR", parents=True)
    return path


def memory_owner(record: Record, name: str) -> str:
    """Return the value whose memory a value uses: itself, or the origin of a view."""
    value = record.values.get(name)
    return memory_owner(record, value.of) if value and value.of else name


@dataclass(frozen=True)
class ValueLifetime:
    """The lifetime of a value: the numbers of its first and last node, inclusive."""

    value: str
    first: int
    last: int
    nbytes: int
    offset: int
    is_workspace: bool = False


class MemoryLayout(Protocol):
    """The interface of a memory plan: the offsets of values and workspaces."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """Return the offset of each value in bytes."""

    @property
    def workspaces(self) -> Mapping[str, WorkspaceRecord]:
        """Return the position of each node's workspaces."""


def value_lifetimes(record: Record) -> list[ValueLifetime]:
    """Return the lifetime of every value and workspace in the memory plan, in order of creation."""
    nodes = [(node.name, node.inputs.values(), node.outputs.values()) for node in record.nodes]
    return lifetimes_of(nodes, record.values, record.memory, record.inputs, record.outputs)


def lifetimes_of(
    nodes: Sequence[tuple[str, Iterable[str], Iterable[str]]],
    values: Mapping[str, ValueRecord],
    memory: MemoryLayout,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> list[ValueLifetime]:
    """Return the lifetime of each value; each node is given as name, inputs and outputs, in order."""

    def base_of(name: str) -> str:
        value = values.get(name)
        return base_of(value.of) if value and value.of else name

    first_node = {base_of(name): 0 for name in inputs}
    last_node: dict[str, int] = {}
    for index, (_, read_names, written_names) in enumerate(nodes):
        for name in written_names:
            first_node.setdefault(base_of(name), index)
            last_node[base_of(name)] = index
        for name in read_names:
            last_node[base_of(name)] = index
    for name in outputs:
        last_node[base_of(name)] = len(nodes) - 1
    lifetimes = [
        ValueLifetime(
            name, first_node.get(name, 0), last_node.get(name, first_node.get(name, 0)), values[name].bytes, offset
        )
        for name, offset in memory.offsets.items()
        if name in values
    ]
    index_of = {name: index for index, (name, _, _) in enumerate(nodes)}
    lifetimes += [
        ValueLifetime(f"workspace of {name}", index_of[name], index_of[name], workspace.bytes, workspace.offset, True)
        for name, workspace in memory.workspaces.items()
        if name in index_of
    ]
    return sorted(lifetimes, key=lambda life: (life.first, life.offset))


def images_per_run(record: Record) -> int:
    """Return the number of images per run: the first axis of the first input."""
    first_input = record.values.get(record.inputs[0]) if record.inputs else None
    return first_input.shape[0] if first_input and first_input.shape else 1


def nodes_by_time(record: Record) -> list[NodeRecord]:
    """Return the nodes, slowest first; without times, in their own order."""
    return sorted(record.nodes, key=lambda node: -(node.kernel_s or 0.0))


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that run the same case, such as those of equal layers; the slowest first."""

    nodes: tuple[NodeRecord, ...]

    @property
    def name(self) -> str:
        """Return the name of the first node, and the number of other nodes with the same case."""
        other_nodes = len(self.nodes) - 1
        return self.nodes[0].name + (f" and {other_nodes} more" if other_nodes else "")

    @property
    def kernel_s(self) -> float | None:
        """Return the total time of the nodes in seconds; None without a clock."""
        return _sum_known([node.kernel_s for node in self.nodes])

    @property
    def bound_s(self) -> float | None:
        """Return the total lower bound of the nodes in seconds; None if it is unknown."""
        return _sum_known([node.bound_s for node in self.nodes])


def grouped_nodes(nodes: Iterable[NodeRecord], key: Callable[[NodeRecord], object]) -> Iterator[tuple[NodeRecord, ...]]:
    """Yield the nodes with equal keys together, in the order of their first nodes."""
    groups: dict[object, list[NodeRecord]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node)
    yield from map(tuple, groups.values())


def groups_by_time(record: Record) -> list[NodeGroup]:
    """Return the nodes in groups of the same case and the same answer of the check, slowest group first."""

    def case_and_answer(node: NodeRecord) -> tuple[str, str]:
        answer = "" if node.check is None else node.check.status or ("right" if node.check.right else "wrong")
        return node.case or node.name, answer

    groups = map(NodeGroup, grouped_nodes(nodes_by_time(record), case_and_answer))
    return sorted(groups, key=lambda group: -(group.kernel_s or 0.0))


def sum_of_node_times_s(record: Record) -> float | None:
    """Return the sum of all nodes' kernel times in seconds; None without a clock."""
    return _sum_known([node.kernel_s for node in record.nodes])


def lower_bound_s(record: Record) -> float | None:
    """Return the sum of the nodes' lower bounds in seconds; None if one is unknown."""
    return _sum_known([node.bound_s for node in record.nodes])


def sum_of_times_alone_s(record: Record) -> float | None:
    """Return the sum of the times that the variants take alone, in seconds; None if one was not measured."""
    return _sum_known([node.alone_s for node in record.nodes])


def recoverable_s(node: NodeRecord) -> float:
    """Return how many seconds a node takes beyond its lower bound; 0 if time or bound is unknown."""
    if node.kernel_s is None or node.bound_s is None:
        return 0.0
    return max(0.0, node.kernel_s - node.bound_s)


def _sum_known(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values and len(known_values) == len(values) else None


def variant_of(node: NodeRecord) -> tuple[str, str]:
    """Return the variant and config of a node's case, such as ("nhwc_mma", "[BM=64]")."""
    return split_case(node.case)[:2]
