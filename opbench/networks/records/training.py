"""What one training left behind: train.json, read and asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opbench.backend.environment import Environment
from opbench.errors import EnvironmentFault, writing_remedy
from opbench.networks.records.network import ValueRecord, WorkspaceRecord
from opbench.paths import write_atomically
from opbench.records import read_record, to_json
from opbench.results.header import Revision
from opbench.timing.measurement import Measurement

FILE = "train.json"
FORMAT = 1
AGAIN = ".again"
"""Ends the name of a node, and of its values, that computes once more what the node of the name before it did."""
GROUPS = ("data", "forward", "loss", "backward", "exchange", "optimizer")
"""What a step's nodes are for, in their order."""


def original(node: str) -> str:
    """The node whose problem a node computes again; its own name for any other."""
    return original(node.removesuffix(AGAIN)) if node.endswith(AGAIN) else node


@dataclass(frozen=True)
class TrainingNode:
    """One node of the step."""

    name: str
    operator: str
    group: str
    case: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    flops: int
    compulsory_bytes: int
    launches: int = 1
    """In a step on one device: of several micro-batches each is one."""
    source: str = ""
    """The run that it was chosen from; "default" where nothing was measured."""


@dataclass(frozen=True)
class PassSaving:
    """What a step would have more of without a pass."""

    nodes: int
    compulsory_bytes: int
    flops: int


@dataclass(frozen=True)
class TrainingPass:
    """One pass over the graph, and what it did."""

    name: str
    on: bool
    said: tuple[str, ...]
    saved: PassSaving | None = None


@dataclass(frozen=True)
class StepTimes:
    """What one step took; empty where there is no clock."""

    cold: Measurement | None = None
    """From a cold L2."""
    hot: Measurement | None = None
    """Steps back to back."""
    nodes_s: dict[str, float] = field(default_factory=dict)
    """Each node's own, among the others."""


@dataclass(frozen=True)
class StepPeer:
    """One of PyTorch's ways of a step; `error` says why it was not measured."""

    captured: bool | None = None
    """Whether the step was one CUDA graph on a held stream, as ours is; else it was called from Python, and its times
    include the launches. None in older records, which held the stream for ours alone."""
    cold: Measurement | None = None
    hot: Measurement | None = None
    peak_bytes: int | None = None
    """The most that a step holds: parameters, gradients, moments and all between."""
    error: str = ""


@dataclass(frozen=True)
class FirstStepRecord:
    """How far our first step is from PyTorch's eager one, from the same weights on the same batch."""

    right: bool
    said: str
    loss: float | None = None
    peer_loss: float | None = None
    errors: dict[str, float] = field(default_factory=dict)
    """Relative, in norm: loss, gradients (of the weight that is worst), what the step changes of all parameters."""
    allowed: dict[str, float] = field(default_factory=dict)
    worst_gradient: str = ""
    compared: int = 0
    """Weights."""


@dataclass(frozen=True)
class StepMemory:
    """What a step holds, and where in the one arena of activations and workspaces."""

    activations_bytes: int
    state_bytes: int
    data_bytes: int
    offsets: dict[str, int] = field(default_factory=dict)
    workspaces: dict[str, WorkspaceRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """PyTorch compared with our step, in the same run."""

    first_step: FirstStepRecord
    ways: dict[str, StepPeer]
    versions: dict[str, str]


@dataclass(frozen=True)
class ExchangedPart:
    """A range of the gradients that is exchanged by itself."""

    after: str
    """The node that finishes it."""
    nbytes: int
    alone_s: float


@dataclass(frozen=True)
class ExchangeTimes:
    """What passes between ranks, in seconds."""

    step_s: float
    ranks_without_s: tuple[float, ...]
    """The same step without it, on each rank: together they are no faster than the slowest."""
    alone_s: float
    parts: tuple[ExchangedPart, ...]
    """One after the other."""


@dataclass(frozen=True)
class DataRecord:
    """The data set that was trained on."""

    name: str
    sha256: str = ""
    items: int = 0


@dataclass(frozen=True)
class TrainingRecord:
    """A training from its first step to its last."""

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
    told: tuple[str, ...]
    revision: Revision | None = None
    """Of the user's project, when it began."""
    values: dict[str, ValueRecord] = field(default_factory=dict)
    comparison: Comparison | None = None
    """Where one was asked for."""
    exchange: ExchangeTimes | None = None
    """Where several GPUs trained."""

    def __getitem__(self, key: str) -> Any:
        """Return one value of the file's content: `record["losses"]` of earlier versions is `record.losses`."""
        return self.to_json()[key]

    def to_json(self) -> dict[str, Any]:
        """Return the file's content."""
        written: dict[str, Any] = to_json(self)
        sparse = {
            "environment": self.environment.to_json(),
            "times": to_json(self.times, sparse=True),
            "passes": [_without_none(to_json(each)) for each in self.passes],
            "values": {name: {"bytes": value.bytes, "of": value.of} for name, value in self.values.items()},
        }
        parts = {"comparison": self.comparison, "exchange": self.exchange}
        return {**{key: of for key, of in written.items() if parts.get(key, self) is not None}, **sparse}


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: of for key, of in table.items() if of is not None}


def is_training(folder: Path) -> bool:
    """Whether a folder, or a file, is a training's."""
    return folder.name == FILE or (folder / FILE).is_file()


def keep_training(record: TrainingRecord, folder: Path) -> None:
    """Write the record whole or not at all."""
    try:
        write_atomically(folder / FILE, json.dumps(record.to_json(), indent=1).encode() + b"\n")
    except OSError as error:
        raise EnvironmentFault(
            f"{folder / FILE}: cannot be written: {error.strerror or error}; {writing_remedy(error)}"
            "the last checkpoint is kept: go on with --resume"
        ) from None


def read_training(folder: Path) -> TrainingRecord:
    """A training's record; raises UsageError for a file that is none."""
    path = folder / FILE if folder.is_dir() else folder
    return read_record(TrainingRecord, path, FORMAT, "a training ends with it: opbench net train --resume")
