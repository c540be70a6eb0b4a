"""Short trainings of small networks, and what they leave."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.graph.recipe import Recipe
from opbench.networks.plan.executor import Context
from opbench.networks.records.checkpoints import read_checkpoint
from opbench.networks.records.training import TrainingRecord
from opbench.networks.train.ranks import train_network
from opbench.networks.train.train_options import TrainingProgress, TrainingSettings
from support.builders.training_data import random_data
from support.checks.graphs import NETWORKS


def train_on(
    backend: str,
    out: Path,
    name: str = "dropping",
    tell: Callable[[TrainingProgress], None] = lambda standing: None,
    **options: object,
) -> TrainingRecord:
    """Train one of the NETWORKS for a few steps, with several buckets of gradients."""
    make, loss = NETWORKS[name]
    known = {key: options.pop(key) for key in list(options) if key in Recipe.__dataclass_fields__}
    recipe = replace(Recipe(loss=loss, learning_rate=2e-3, steps=4), **known)  # type: ignore[arg-type]
    network = make()
    given = TrainingSettings(recipe, backend=backend, out=out, bucket_bytes=1000, **options)  # type: ignore[arg-type]
    return train_network(network, random_data(network, 24, loss), given, tell)


def training_files(folder: Path) -> dict[str, bytes]:
    """Return what two equal trainings have in common: the losses and every array of the last checkpoint."""
    found = read_checkpoint(folder)
    assert found
    return {name: array.tobytes() for name, array in found.arrays.items()} | {
        "losses": (folder / "losses.jsonl").read_bytes()
    }


def interrupt_launch(patch: pytest.MonkeyPatch, number: int) -> None:
    """Interrupt the training at this launch, counted from 1."""
    launches, launch = itertools.count(1), Context.launch

    def interrupted(context: Context) -> None:
        if next(launches) == number:
            raise KeyboardInterrupt
        launch(context)

    patch.setattr(Context, "launch", interrupted)
