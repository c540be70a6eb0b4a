"""Save and resume a training, and check that its settings still fit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from opbench._version import __version__
from opbench.errors import SettingDiffers, UsageError
from opbench.graph.training_step import BF16_PARAMETERS, LIMIT
from opbench.kernels.tensors import Arrays
from opbench.networks.records.checkpoints import Checkpoint, CheckpointFacts, TrainingIdentity, read_checkpoint
from opbench.networks.records.training import original_node_name
from opbench.networks.train.losses import read_losses
from opbench.networks.train.state import TrainingState
from opbench.networks.train.train_options import TrainingSettings
from opbench.records import JSON, to_json

GIVEN_ARRAYS = ("data", "targets", "order", "learning_rates", "hyper", LIMIT)
UNSAVED_ARRAYS = (*GIVEN_ARRAYS, "gradients", "gradients.sum", "rates", "micro", "losses")
"""State that a checkpoint omits: the options determine it, or each step overwrites it."""
PARAMETER_ARRAYS = ("parameters", BF16_PARAMETERS)
"""State that a checkpoint stores as the network's weights: in float32, whatever dtype the step reads."""
CHANGEABLE_SETTINGS = ("without", "accumulate", "ranks")
"""Recipe settings that may change when a training resumes; a note says if the bits change."""
COPY_OPERATORS = ("advance", "gather", "tick")
"""Operators that move and count; their problems do not change the bits of a result."""


def training_identity(training: TrainingState) -> TrainingIdentity:
    """Return the identity of a training: all settings that a resumed training must share.

    A resumed one may use another plan or device, but then the bits may differ.
    """
    return TrainingIdentity(
        network=training.network.name,
        parameters={name: tuple(shape) for name, (_, shape) in training.training.parameters.items()},
        recipe={
            k: v for k, v in asdict(training.recipe).items() if k not in CHANGEABLE_SETTINGS and (k != "clip" or v)
        },
        data=training.data.sha256,
    )


def checkpoint_of(training: TrainingState, state: Arrays, losses_bytes: int) -> Checkpoint:
    """Return a checkpoint with a state that was read from the device."""
    arrays = {f"weight.{name}": a for name, a in training.training.weights(state).items()}
    saved_otherwise = {*PARAMETER_ARRAYS, *(name for name, _ in training.training.statistics.values())}
    arrays |= {f"state.{name}": a for name, a in state.items() if name not in saved_otherwise}
    checkpoint_facts = CheckpointFacts(
        identity=training_identity(training),
        step=training.step,
        losses_bytes=losses_bytes,
        scores=tuple(training.scores),
        plan=plan_sha256(training),
        backend=training.name,
        opbench=__version__,
        ranks=training.recipe.ranks,
        accumulate=training.recipe.accumulate,
        micro_batches=training.seen,
    )
    return Checkpoint(checkpoint_facts, arrays)


def plan_sha256(training: TrainingState) -> str:
    """Return the SHA-256 of every node's case and variant source, which determine the bits of a training step."""
    graph, groups = training.training.graph, training.training.groups
    nodes = [n for n in graph.nodes if groups.get(n.name) != "exchange" and n.operator not in COPY_OPERATORS]
    first_runs = [
        n.name for n in nodes if original_node_name(n.name) == n.name
    ]  # computing a value again gives the same bits
    text = json.dumps(
        {name: training.cases[name].name + training.cases[name].variant.source_sha256 for name in first_runs}
    )
    return hashlib.sha256(text.encode()).hexdigest()


def open_checkpoint(training: TrainingState, out: Path) -> Checkpoint | None:
    """Return the newest checkpoint of this training, and remove later losses from the file; None without one."""
    checkpoint = read_checkpoint(out)
    losses = out / "losses.jsonl"
    if checkpoint is None:
        if training.rank == 0:
            losses.unlink(missing_ok=True)
        return None
    checkpoint_facts = checkpoint.facts
    stored: Mapping[str, JSON] = to_json(checkpoint_facts.identity)
    for key, value in to_json(training_identity(training)).items():
        if stored[key] != value:
            stored_value, requested = (_shorten(differing) for differing in _differing_values(stored[key], value))
            raise SettingDiffers(out, key, stored_value, requested)
    same_micro_batches = math.prod(
        micro_batches(checkpoint)
    ) != training.recipe.micro_batches or checkpoint_facts.plan == plan_sha256(training)
    if not same_micro_batches or checkpoint_facts.backend != training.name:
        training.notes.append(
            "the checkpoint was made with other kernels or on another device: training continues, but not "
            "bit-identically"
        )
    _note_changed_micro_batches(training, checkpoint)
    training.step = checkpoint_facts.step
    training.seen = checkpoint_facts.seen
    training.scores = list(checkpoint_facts.scores)
    earlier_losses = read_losses(losses)
    training.losses = earlier_losses[: training.step]
    training.repeated = earlier_losses if math.prod(micro_batches(checkpoint)) == training.recipe.micro_batches else []
    if len(training.losses) < training.step:
        raise UsageError(
            f"{losses}: this file has the losses of {len(training.losses)} steps, but the checkpoint is of step "
            f"{training.step}, so the training cannot continue; start again in another folder: --out DIR",
            kind="missing-losses",
            subject=losses,
            value=len(training.losses),
            allowed=training.step,
        )
    if training.rank == 0:
        with losses.open("r+b") as file:
            file.truncate(checkpoint_facts.losses_bytes)
    return checkpoint


def _note_changed_micro_batches(training: TrainingState, checkpoint: Checkpoint) -> None:
    """Add a note if the micro-batches, or their order, differ from those before the checkpoint."""
    (ranks, accumulate), recipe = micro_batches(checkpoint), training.recipe
    earlier, current = (
        f"{r} ranks x {k} micro-batches" for r, k in ((ranks, accumulate), (recipe.ranks, recipe.accumulate))
    )
    if ranks * accumulate != recipe.micro_batches:
        training.notes.append(
            f"the checkpoint's steps are of {earlier}, and now of {current}: it goes on to step {recipe.steps}, not to "
            f"the same bits; for those: --accumulate {ranks * accumulate}"
        )
    elif earlier != current and training.name == "cuda" and max(ranks, recipe.ranks) > 2:
        training.notes.append(
            f"the checkpoint's steps add {earlier}, now {current}; of more than two GPUs the library adds in an "
            "order of its own: not to the same bits"
        )
    elif earlier != current and (min(ranks, accumulate), min(recipe.ranks, recipe.accumulate)) != (1, 1):
        training.notes.append(
            f"the checkpoint's steps add {earlier}, now {current}, in another order: not to the same bits"
        )


def training_state(training: TrainingState, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint as state of the training graph."""
    state = {name.removeprefix("state."): a for name, a in checkpoint.arrays.items() if name.startswith("state.")}
    state = {name: array for name, array in state.items() if name in training.training.graph.state}
    state |= training.training.running_statistics(checkpoint.weights)
    if training.training.exchange:
        state["micro"] = np.array([checkpoint.facts.seen + training.rank + 1 - training.recipe.ranks], np.int32)
    return {**state, **training.training.initial_parameters(checkpoint.weights)}


def started_steps(options: TrainingSettings) -> int:
    """Return the total steps of a resumed training whose micro-batches changed, to keep its schedule; else 0."""
    checkpoint = read_checkpoint(options.out) if options.resume else None
    if checkpoint is None or micro_batches(checkpoint) == (options.recipe.ranks, options.recipe.accumulate):
        return 0
    return int(checkpoint.facts.identity.recipe["steps"] or 0)  # type: ignore[arg-type]


def micro_batches(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the number of ranks, and micro-batches per rank, of each step before a checkpoint."""
    return checkpoint.facts.ranks, checkpoint.facts.accumulate


def _differing_values(stored: object, current: object) -> tuple[object, object]:
    """Return the stored and the current value; of two tables, only the entries that differ."""
    if not (isinstance(stored, dict) and isinstance(current, dict)):
        return stored, current
    keys = [
        key for key in {**stored, **current} if key not in CHANGEABLE_SETTINGS and stored.get(key) != current.get(key)
    ]
    return {key: stored.get(key) for key in keys}, {key: current.get(key) for key in keys}


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
