"""How a network is trained, but for the data: loss, optimiser, schedule, passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from opbench.errors import UsageError, unknown
from opbench.graph.training_passes import RECOMPUTE, TRAINING_PASSES
from opbench.graph.values import LAYOUTS

LOSSES = {
    "cross_entropy": "softmax_cross_entropy",
    "binary_cross_entropy": "sigmoid_cross_entropy",
    "l1": "l1_loss",
    "mse": "mse_loss",
}
"""The operator of each loss."""
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd"}
"""The operator of each optimiser."""
SCHEDULES = ("constant", "cosine")
STORED = ("f32", "bf16")
"""What images, activations and their gradients may be stored in."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, but for the data."""

    loss: str = "cross_entropy"
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    decay: float = 0.0
    clip: float = 0.0
    """The most that the norm of all gradients together may be before the optimiser takes less of them; 0: no limit."""
    steps: int = 1
    accumulate: int = 1
    """Micro-batches that one device trains before a step's one update."""
    ranks: int = 1
    """Devices that train micro-batches of a step side by side."""
    seed: int = 0
    layout: str = "nchw"
    """Of all images: nchw, or nhwc, in which tensor cores read them."""
    dtype: str = "f32"
    """Of images, activations and their gradients: f32, or bf16, in which forward and backward read a copy of the
    parameters, too; parameters, their gradients, moments, statistics and losses are f32 always."""
    without: tuple[str, ...] = ()
    """Passes to leave out."""

    def __post_init__(self) -> None:
        for option, value, known in (
            ("--loss", self.loss, LOSSES),
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--schedule", self.schedule, SCHEDULES),
            ("--layout", self.layout, LAYOUTS),
            ("dtype", self.dtype, STORED),
        ):
            if value not in known:
                raise UsageError(f"{option}: {unknown(option.removeprefix('--'), value, known)}")
        if self.steps < 1:
            raise UsageError(f"{self.steps} steps are not allowed; at least 1")
        for option, count in (("--accumulate", self.accumulate), ("--gpus", self.ranks)):
            if count < 1:
                raise UsageError(f"{option} {count} is not allowed; at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(f"--lr {self.learning_rate} is not allowed; a number above 0")
        if not 0 <= self.clip < math.inf:
            raise UsageError(f"--clip {self.clip} is not allowed; a number above 0, or 0 for no limit")
        for name in self.without:
            if name not in (*TRAINING_PASSES, RECOMPUTE):
                raise UsageError(f"--without: {unknown('pass', name, (*TRAINING_PASSES, RECOMPUTE))}")

    @property
    def micro(self) -> int:
        """Micro-batches of a step, on all devices together."""
        return self.accumulate * self.ranks

    def learning_rates(self) -> np.ndarray:
        """The rate of each step in float32: a linear rise, then constant or half a cosine down to 0."""
        t = np.arange(self.steps, dtype=np.float64)
        rate = np.full(self.steps, self.learning_rate)
        if self.schedule == "cosine":
            span = max(1, self.steps - self.warmup_steps)
            rate *= 0.5 * (1 + np.cos(np.pi * np.clip((t - self.warmup_steps) / span, 0, 1)))
        rising = np.minimum(1.0, (t + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return (rate * rising).astype(np.float32)

    def hyper(self) -> np.ndarray:
        """The constants of the optimiser as its operator takes them."""
        first = (self.momentum, 0.0, 0.0) if self.optimizer == "sgd" else (*self.betas, self.epsilon)
        return np.array([*first, self.decay], np.float32)
