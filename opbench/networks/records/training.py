"""What one training left behind: train.json, read and asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypedDict

from opbench.errors import EnvironmentFault, UsageError, writing_remedy
from opbench.networks.records.network import Times, ValueRecord, WorkspaceRecord
from opbench.paths import write_atomically

FILE = "train.json"
FORMAT = 1
AGAIN = ".again"
"""Ends the name of a node, and of its values, that computes once more what the node of the name before it did."""
GROUPS = ("data", "forward", "loss", "backward", "exchange", "optimizer")
"""What a step's nodes are for, in their order."""


def original(node: str) -> str:
    """The node whose problem a node computes again; its own name for any other."""
    return original(node.removesuffix(AGAIN)) if node.endswith(AGAIN) else node


class TrainingNode(TypedDict):
    """One node of the step."""

    name: str
    operator: str
    group: str
    case: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    launches: NotRequired[int]
    """In a step on one device, where that is not 1: of several micro-batches each is one."""
    flops: int
    compulsory_bytes: int
    source: NotRequired[str]
    """The run that it was chosen from; "default" where nothing was measured."""


class TrainingPass(TypedDict):
    """One pass over the graph, and what it did."""

    name: str
    on: bool
    said: list[str]
    saved: NotRequired[PassSaving]


class PassSaving(TypedDict):
    """What a step would have more of without a pass."""

    nodes: int
    compulsory_bytes: int
    flops: int


class StepTimes(TypedDict, total=False):
    """What one step took; empty where there is no clock."""

    cold: Times
    """From a cold L2."""
    hot: Times
    """Steps back to back."""
    nodes_s: dict[str, float]
    """Each node's own, among the others."""


class StepPeer(TypedDict, total=False):
    """One of PyTorch's ways of a step; `error` says why it was not measured."""

    captured: bool
    """Whether the step was one CUDA graph on a held stream, as ours is; else it was called from Python, and its times
    include the launches. Not in older records, which held the stream for ours alone."""
    cold: Times
    hot: Times
    peak_bytes: int | None
    """The most that a step holds: parameters, gradients, moments and all between."""
    error: str


class FirstStepRecord(TypedDict, total=False):
    """How far our first step is from PyTorch's eager one, from the same weights on the same batch."""

    right: bool
    said: str
    loss: float
    peer_loss: float
    errors: dict[str, float]
    """Relative, in norm: loss, gradients (of the weight that is worst), what the step changes of all parameters."""
    allowed: dict[str, float]
    worst_gradient: str
    compared: int
    """Weights."""


class StepMemory(TypedDict):
    """What a step holds, and where in the one arena of activations and workspaces."""

    activations_bytes: int
    state_bytes: int
    data_bytes: int
    offsets: NotRequired[dict[str, int]]
    workspaces: NotRequired[dict[str, WorkspaceRecord]]


class Comparison(TypedDict):
    """PyTorch beside our step, in the same run."""

    first_step: FirstStepRecord
    ways: dict[str, StepPeer]
    versions: dict[str, str]


class ExchangedPart(TypedDict):
    """A range of the gradients that is exchanged by itself."""

    after: str
    """The node that finishes it."""
    nbytes: int
    alone_s: float


class ExchangeTimes(TypedDict):
    """What passes between ranks, in seconds."""

    step_s: float
    ranks_without_s: list[float]
    """The same step without it, on each rank: together they are no faster than the slowest."""
    alone_s: float
    parts: list[ExchangedPart]
    """One after the other."""


class TrainingRecord(TypedDict):
    """A training from its first step to its last."""

    format: int
    opbench: str
    started: str
    revision: NotRequired[dict[str, object] | None]
    """Of the user's project, when it began."""
    command: list[str]
    network: str
    recipe: dict[str, str]
    data: dict[str, object]
    batch: int
    steps_per_epoch: int
    precision: str
    backend: str
    environment: dict[str, object]
    losses: list[float]
    scores: list[list[float]]
    """Step and score of what is held out."""
    score_name: str
    images_per_s: float
    times: StepTimes
    parameters: int
    memory: StepMemory
    values: NotRequired[dict[str, ValueRecord]]
    passes: list[TrainingPass]
    nodes: list[TrainingNode]
    told: list[str]
    comparison: NotRequired[Comparison]
    """Where one was asked for."""
    exchange: NotRequired[ExchangeTimes]
    """Where several GPUs trained."""


def is_training(folder: Path) -> bool:
    """Whether a folder, or a file, is a training's."""
    return folder.name == FILE or (folder / FILE).is_file()


def keep_training(record: TrainingRecord, folder: Path) -> None:
    """Write the record whole or not at all."""
    try:
        write_atomically(folder / FILE, json.dumps(record, indent=1).encode() + b"\n")
    except OSError as error:
        raise EnvironmentFault(
            f"{folder / FILE}: cannot be written: {error.strerror or error}; {writing_remedy(error)}"
            "the last checkpoint is kept: go on with --resume"
        ) from None


def read_training(folder: Path) -> TrainingRecord:
    """A training's record; raises UsageError for a file that is none."""
    path = folder / FILE if folder.is_dir() else folder
    try:
        record: TrainingRecord = json.loads(path.read_bytes())
        if record["format"] != FORMAT:
            raise UsageError(f"{path}: a training of format {record['format']}; this opbench reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: cannot be read: {error}; a training ends with it: opbench net train --resume"
        ) from None
    return record
