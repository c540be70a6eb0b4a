"""Checkpoints of a training: all data that a training needs to go on, in one file that is written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opbench.errors import OtherVersion, UsageError
from opbench.paths import next_command, write_atomically, write_errors
from opbench.records import from_json, to_json

CHECKPOINT_FILE, PREVIOUS_CHECKPOINT_FILE = "checkpoint.safetensors", "checkpoint.previous.safetensors"
FORMAT = 1

RecipeValue = str | int | float | bool | tuple[str | float, ...] | None
"""Value of one setting of a recipe."""


@dataclass(frozen=True)
class TrainingIdentity:
    """The network, recipe and data that identify a training; a checkpoint continues only the same training."""

    network: str
    parameters: dict[str, tuple[int, ...]]
    """Shapes of the parameters by name."""
    recipe: dict[str, RecipeValue]
    data: str
    """SHA-256 of the data set."""


@dataclass(frozen=True)
class CheckpointFacts:
    """The progress of a training, and the facts that a resumed training needs for equal bits."""

    identity: TrainingIdentity
    step: int
    losses_bytes: int
    """Length in bytes of the part of losses.jsonl that belongs to the checkpoint."""
    scores: tuple[tuple[int, float], ...]
    plan: str
    """SHA-256 of everything that determines the bits of a step."""
    backend: str
    opbench: str = ""
    ranks: int = 1
    accumulate: int = 1
    micro_batches: int | None = None
    """Micro-batches of all ranks so far; None in older checkpoints, whose steps had one each."""
    format: int = FORMAT

    @property
    def seen(self) -> int:
        """Return the number of micro-batches that all ranks have trained so far."""
        return self.step if self.micro_batches is None else self.micro_batches


@dataclass(frozen=True)
class Checkpoint:
    """The progress of a training, and its arrays by name."""

    facts: CheckpointFacts
    arrays: Mapping[str, np.ndarray]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Return the network's weights with their original names and order."""
        return {n.removeprefix("weight."): a for n, a in self.arrays.items() if n.startswith("weight.")}


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and keep the previous one; raise EnvironmentFault if writing fails.

    The old file gets its second name before the new one is published, so one of the two is complete at every
    moment.
    """
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    content = save(arrays, {"opbench": json.dumps(to_json(checkpoint.facts))})
    last_file, previous_file = folder / CHECKPOINT_FILE, folder / PREVIOUS_CHECKPOINT_FILE
    with write_errors(last_file, "the previous checkpoint is valid, so continue from there with --resume"):
        if last_file.exists():
            previous_file.unlink(missing_ok=True)
            os.link(last_file, previous_file)
        write_atomically(last_file, content)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint in a folder; None without one.

    Raises UsageError for files that are no checkpoints of this version.
    """
    problems = []
    for name in (CHECKPOINT_FILE, PREVIOUS_CHECKPOINT_FILE):
        path = folder / name
        if not path.exists():
            continue
        try:
            return _read(path)
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"{path}: cannot be read: {error}")
    if problems:
        raise UsageError(f"{problems[0]}; start again in another folder: --out DIR", kind="unreadable", subject=folder)
    return None


def _read(path: Path) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = json.loads((file.metadata() or {})["opbench"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if metadata.get("format") != FORMAT:
        remedy = f"continue with opbench {metadata.get('opbench')}, or choose another --out DIR"
        raise OtherVersion(path, "format", metadata.get("format"), FORMAT, remedy)
    return Checkpoint(from_json(CheckpointFacts, metadata), arrays)


def trained_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the weights of the newest checkpoint in a training's folder."""
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        make = next_command("net train", "NETWORK", out=folder)
        raise UsageError(
            f"--weights {folder}: this folder has no checkpoint; train a network to make one: {make}",
            kind="no-checkpoint",
            subject=folder,
        )
    return checkpoint.weights
