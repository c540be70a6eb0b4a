"""How far a training is: what its checkpoint and its record are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from opbench.backend.base import Backend
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.training_step import Training
from opbench.kernels.case import Case
from opbench.kernels.tensors import to_storage
from opbench.networks.plan.data import DataSet
from opbench.networks.plan.plan import Plan
from opbench.networks.train.group import RankGroup
from opbench.networks.train.train_options import TrainingSettings
from opbench.running.header import Beginning


@dataclass
class TrainingState:
    """A training on one device, with what it has come to so far; `Trainer` fills in the rest and goes on."""

    network: Graph
    data: DataSet
    options: TrainingSettings
    losses: list[float] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)
    rank: int = 0
    """Of `recipe.ranks`: the first writes the files."""
    group: RankGroup | None = None
    """The other ranks, where there are several."""
    step: int = field(default=0, init=False)
    seen: int = field(default=0, init=False)
    """Micro-batches of all ranks so far."""
    repeated: list[float] = field(default_factory=list, init=False)
    """Losses of steps that an earlier try went on to after its last checkpoint."""
    told: list[str] = field(default_factory=list, init=False)
    """Notes for the user, in the record."""
    batch: int = field(init=False)
    pictures: int = field(init=False)
    """Of a step, on all ranks."""
    steps_per_epoch: int = field(init=False)
    recipe: Recipe = field(init=False)
    """The options' recipe with the number of steps known."""
    name: str = field(init=False)
    """Of the backend."""
    training: Training = field(init=False)
    backend: Backend = field(init=False)
    plan: Plan = field(init=False)
    cases: Mapping[str, Case] = field(init=False)
    begun: Beginning = field(init=False)

    def given_state(self) -> dict[str, np.ndarray]:
        """What follows from the data and the recipe, as it is stored."""
        data, values = self.data, self.training.graph.values
        epochs = -(-self.recipe.steps // self.steps_per_epoch)
        order = data.order(epochs, self.pictures, self.recipe.seed)[: self.recipe.steps * self.pictures]
        given = {"data": data.images, "targets": data.targets, "order": order}
        if self.training.exchange:
            given["micro"] = np.array([self.rank + 1 - self.recipe.ranks], np.int32)
        return {n: to_storage(array.reshape(values[n].shape), values[n].dtype) for n, array in given.items()}

    @property
    def score_name(self) -> str:
        """What the held-out pictures are judged by."""
        return {"cross_entropy": "accuracy", "binary_cross_entropy": "IoU"}.get(self.recipe.loss, self.recipe.loss)
