"""The record of a training, train.json, and functions that read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opbench.backend.environment import Environment
from opbench.networks.records.network import ValueRecord, WorkspaceRecord
from opbench.paths import write_file
from opbench.records import from_json, plain_name, read_record, stored_file, to_json, with_new_keys
from opbench.results.header import Revision
from opbench.timing.measurement import Measurement

FILE = "train.json"
FORMAT = 1
REPEATED_SUFFIX = ".again"
"""Suffix of a node that repeats the computation of the node named before it, and of its values."""
GROUPS = ("data", "forward", "loss", "backward", "exchange", "optimizer")
"""The purposes of a step's nodes, in their order."""


def original_node_name(node: str) -> str:
    """Return the name of the node that a recomputing node repeats; for other nodes their own name."""
    return original_node_name(node.removesuffix(REPEATED_SUFFIX)) if node.endswith(REPEATED_SUFFIX) else node


@dataclass(frozen=True)
class TrainingNode:
    """One node of a training step: its case, its work and its number of launches."""

    name: str
    operator: str
    group: str
    case: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    flops: int
    compulsory_bytes: int
    launches: int = 1
    """Launches in a step on one device: each of several micro-batches launches it once."""
    source: str = ""
    """The run from which it was chosen; "default" if nothing was measured."""


@dataclass(frozen=True)
class PassSaving:
    """The additional nodes, bytes and FLOPs that a step would have without a graph pass."""

    nodes: int
    compulsory_bytes: int
    flops: int


@dataclass(frozen=True)
class TrainingPass:
    """A graph pass, its changes and its saving."""

    name: str
    on: bool
    notes: tuple[str, ...]
    saved: PassSaving | None = None


@dataclass(frozen=True)
class StepTimes:
    """The times of a training step and its nodes; empty without a clock."""

    cold: Measurement | None = None
    """Time with a cold L2."""
    hot: Measurement | None = None
    """Time of steps back to back."""
    nodes_s: dict[str, float] = field(default_factory=dict)
    """Time of each node within the step, in seconds."""


@dataclass(frozen=True)
class StepPeer:
    """The times of a training step in one mode of PyTorch; `error` says why it was not measured."""

    captured: bool | None = None
    """Whether the step was one CUDA graph, enqueued completely before it began, as opbench's is.

    Otherwise it was called from Python, and its times include the launches. None in older records, which did this for
    opbench alone."""
    cold: Measurement | None = None
    hot: Measurement | None = None
    peak_bytes: int | None = None
    """Peak bytes of a step: parameters, gradients, moments and everything between."""
    error: str = ""


@dataclass(frozen=True)
class FirstStepRecord:
    """The difference between the first steps of opbench and PyTorch, with equal weights and batch."""

    right: bool
    text: str
    loss: float | None = None
    peer_loss: float | None = None
    errors: dict[str, float] = field(default_factory=dict)
    """Relative errors, in norm: loss, gradients (of the worst weight), and the step's change of all parameters."""
    allowed: dict[str, float] = field(default_factory=dict)
    worst_gradient: str = ""
    compared: int = 0
    """Number of weights compared."""


@dataclass(frozen=True)
class StepMemory:
    """The memory of a training step, and the offsets in its one allocation."""

    activations_bytes: int
    state_bytes: int
    data_bytes: int
    offsets: dict[str, int] = field(default_factory=dict)
    workspaces: dict[str, WorkspaceRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The comparison of opbench's training step with PyTorch's in the same run."""

    first_step: FirstStepRecord
    ways: dict[str, StepPeer]
    versions: dict[str, str]


@dataclass(frozen=True)
class ExchangedPart:
    """A range of the gradients that ranks exchange at once."""

    after: str
    """The node that completes the range."""
    nbytes: int
    alone_s: float


@dataclass(frozen=True)
class ExchangeTimes:
    """The times of exchanges between ranks, in seconds."""

    step_s: float
    ranks_without_s: tuple[float, ...]
    """Time of the step without the exchange, on each rank: together they are as slow as the slowest."""
    alone_s: float
    parts: tuple[ExchangedPart, ...]
    """The parts, in their order."""


@dataclass(frozen=True)
class DataRecord:
    """The name, checksum and size of the data set of a training."""

    name: str
    sha256: str = ""
    items: int = 0
    unit: str = "images"
    """The name of the items: "images", as in older records, or "sequences"."""


@dataclass(frozen=True)
class TrainingRecord:
    """The content of train.json: everything that is known about a training and its step."""

    format: int
    opbench: str
    started: str
    command: tuple[str, ...]
    network: str
    recipe: dict[str, str]
    data: DataRecord
    batch: int
    steps_per_epoch: int
    precision: str
    backend: str
    environment: Environment
    losses: tuple[float, ...]
    scores: tuple[tuple[float, float], ...]
    """Step and score on the test set."""
    score_name: str
    images_per_s: float
    times: StepTimes
    parameters: int
    memory: StepMemory
    passes: tuple[TrainingPass, ...]
    nodes: tuple[TrainingNode, ...]
    notes: tuple[str, ...]
    revision: Revision | None = None
    """Commit of the user's project, at the beginning."""
    values: dict[str, ValueRecord] = field(default_factory=dict)
    comparison: Comparison | None = None
    """The comparison with PyTorch; None if `--compare` was not given."""
    exchange: ExchangeTimes | None = None
    """The times of gradient exchanges; None for a training on one GPU."""

    def __getitem__(self, key: str) -> Any:
        """Return a value by the name of its field, as in `record["losses"]`, which older versions use."""
        return self.to_json()[key]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON data."""
        full: dict[str, Any] = to_json(self)
        omit_defaults = {
            "environment": self.environment.to_json(),
            "times": to_json(self.times, omit_defaults=True),
            "passes": [_without_none(to_json(pass_)) for pass_ in self.passes],
            "values": {name: {"bytes": value.bytes, "of": value.of} for name, value in self.values.items()},
        }
        optional_fields = {"comparison": self.comparison, "exchange": self.exchange}
        return {**{key: of for key, of in full.items() if optional_fields.get(key, self) is not None}, **omit_defaults}


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def is_training(folder: Path) -> bool:
    """Return whether a folder or a file contains the record of a training."""
    return plain_name(folder) == FILE or stored_file(folder / FILE).is_file()


def store_training_record(record: TrainingRecord, folder: Path) -> None:
    """Write the record atomically."""
    content = json.dumps(record.to_json(), indent=1).encode() + b"\n"
    write_file(folder / FILE, content, "the last checkpoint is valid, so continue from there with --resume")


def read_training(folder: Path) -> TrainingRecord:
    """Read the record of a training; raise UsageError for any other file."""
    path = folder / FILE if folder.is_dir() else folder
    remedy = "a training ends with it: opbench net train --resume"
    return read_record(TrainingRecord, path, FORMAT, remedy, decode=_training_from_json)


def _training_from_json(value: Mapping[str, Any]) -> TrainingRecord:
    """Convert JSON data to a record, also with keys of older versions; raise ValueError for invalid data."""
    current = dict(with_new_keys(value, notes="told"))  # the key in records of older versions
    if isinstance(passes := current.get("passes"), list):
        current["passes"] = [with_new_keys(pass_, notes="said") for pass_ in passes]
    if isinstance(comparison := current.get("comparison"), Mapping):
        current["comparison"] = {**comparison, "first_step": with_new_keys(comparison.get("first_step"), text="said")}
    return from_json(TrainingRecord, current)
