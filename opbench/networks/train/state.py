"""The state of a training, from which checkpoint and record are made."""

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
from opbench.running.header import RunStart


@dataclass
class TrainingState:
    """A training on one device with its progress; `Trainer` adds the functions that train."""

    network: Graph
    data: DataSet
    options: TrainingSettings
    losses: list[float] = field(default_factory=list)
    scores: list[tuple[int, float]] = field(default_factory=list)
    rank: int = 0
    """Number of this rank, of `recipe.ranks`; rank 0 writes the files."""
    group: RankGroup | None = None
    """The other ranks; None for a single one."""
    step: int = field(default=0, init=False)
    seen: int = field(default=0, init=False)
    """Micro-batches of all ranks so far."""
    repeated: list[float] = field(default_factory=list, init=False)
    """Losses of steps that an earlier attempt ran after its last checkpoint."""
    notes: list[str] = field(default_factory=list, init=False)
    """Notes for the user, in the record."""
    batch: int = field(init=False)
    pictures: int = field(init=False)
    """Pictures per step, on all ranks."""
    steps_per_epoch: int = field(init=False)
    recipe: Recipe = field(init=False)
    """The recipe of the options, with the number of steps."""
    name: str = field(init=False)
    """Name of the backend."""
    training: Training = field(init=False)
    backend: Backend = field(init=False)
    plan: Plan = field(init=False)
    cases: Mapping[str, Case] = field(init=False)
    start: RunStart = field(init=False)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the arrays that data and recipe determine, in their stored dtypes."""
        data, values = self.data, self.training.graph.values
        epochs = -(-self.recipe.steps // self.steps_per_epoch)
        order = data.order(epochs, self.pictures, self.recipe.seed)[: self.recipe.steps * self.pictures]
        state = {"data": data.images, "targets": data.targets, "order": order}
        if self.training.exchange:
            state["micro"] = np.array([self.rank + 1 - self.recipe.ranks], np.int32)
        return {n: to_storage(array.reshape(values[n].shape), values[n].dtype) for n, array in state.items()}

    @property
    def score_name(self) -> str:
        """Return the name of the score on the test set, such as "accuracy"."""
        return {"cross_entropy": "accuracy", "binary_cross_entropy": "IoU"}.get(self.recipe.loss, self.recipe.loss)
