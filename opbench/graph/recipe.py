"""The recipe of a training: loss, optimiser, schedule, precision and passes, but not the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from opbench.errors import UsageError, unknown_name
from opbench.graph.training_passes import RECOMPUTE, TRAINING_PASSES
from opbench.graph.values import LAYOUTS
from opbench.options import option

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
STORAGE_DTYPES = ("f32", "bf16")
"""The dtypes in which images, activations and their gradients may be stored."""


@dataclass(frozen=True, kw_only=True)
class OptimiserOptions:
    """The user's options for the parameter update."""

    accumulate: int = option(
        1, "Number of micro-batches of --batch pictures before each update.", metavar="K", minimum=1
    )
    optimizer: str = option("adam", "Optimizer: adam, adamw or sgd.", metavar="NAME")
    learning_rate: float = option(1e-3, "Learning rate.", "--lr")
    warmup_steps: int = option(
        0, "Number of steps over which the learning rate rises linearly.", "--warmup", metavar="STEPS", minimum=0
    )
    momentum: float = option(0.9, "Momentum of sgd.")
    decay: float = option(0.0, "Weight decay.", minimum=0)
    clip: float = option(
        0.0, "Scale the gradients down if their global norm exceeds this.", metavar="NORM", greater_than=0
    )
    without: tuple[str, ...] = option(
        (), "Disable a pass over the training graph, such as fuse_relu_backward.", "--disable", metavar="PASS"
    )
    seed: int = option(0, "Seed for the order of the data and for dropout.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Recipe(OptimiserOptions):
    """How a network is trained: loss, optimiser, schedule and precision, without the data."""

    loss: str = "cross_entropy"
    schedule: str = "constant"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    steps: int = 1
    ranks: int = 1
    """Number of devices, which train micro-batches of a step in parallel."""
    layout: str = "nchw"
    """Layout of all images: nchw, or nhwc, which tensor cores read."""
    dtype: str = "f32"
    """Dtype of images, activations and their gradients: f32, or bf16, in which forward and backward also read a bf16
    copy of the parameters. Parameters, their gradients, moments, statistics and losses are always f32.
    """

    def __post_init__(self) -> None:
        for flag, value, allowed_names in (
            ("--loss", self.loss, LOSSES),
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--schedule", self.schedule, SCHEDULES),
            ("--layout", self.layout, LAYOUTS),
            ("dtype", self.dtype, STORAGE_DTYPES),
        ):
            if value not in allowed_names:
                raise UsageError(unknown_name(flag.removeprefix("--"), value, allowed_names, place=flag))
        if self.steps < 1:
            raise UsageError(
                f"--steps {self.steps} is not allowed; give at least 1",
                kind="not-allowed",
                subject="--steps",
                value=self.steps,
                allowed=1,
            )
        for flag, count in (("--accumulate", self.accumulate), ("--gpus", self.ranks)):
            if count < 1:
                raise UsageError(
                    f"{flag} {count} is not allowed; give at least 1",
                    kind="not-allowed",
                    subject=flag,
                    value=count,
                    allowed=1,
                )
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(
                f"--lr {self.learning_rate} is not allowed; give a number above 0",
                kind="not-allowed",
                subject="--lr",
                value=self.learning_rate,
                allowed=0,
            )
        if not 0 <= self.clip < math.inf:
            raise UsageError(
                f"--clip {self.clip} is not allowed; give a number above 0, or 0 for no limit",
                kind="not-allowed",
                subject="--clip",
                value=self.clip,
                allowed=0,
            )
        for name in self.without:
            if name not in (*TRAINING_PASSES, RECOMPUTE):
                raise UsageError(unknown_name("pass", name, (*TRAINING_PASSES, RECOMPUTE), place="--disable"))

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches per step, over all devices."""
        return self.accumulate * self.ranks

    def learning_rates(self) -> np.ndarray:
        """Return the learning rate of each step in float32: a linear rise, then constant or half a cosine to 0."""
        step_index = np.arange(self.steps, dtype=np.float64)
        rates = np.full(self.steps, self.learning_rate)
        if self.schedule == "cosine":
            decay_steps = max(1, self.steps - self.warmup_steps)
            rates *= 0.5 * (1 + np.cos(np.pi * np.clip((step_index - self.warmup_steps) / decay_steps, 0, 1)))
        warmup_factor = np.minimum(1.0, (step_index + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return (rates * warmup_factor).astype(np.float32)

    def optimizer_constants(self) -> np.ndarray:
        """Return the constants of the optimiser in the order that its operator expects: [4] float32."""
        operator_constants = (self.momentum, 0.0, 0.0) if self.optimizer == "sgd" else (*self.betas, self.epsilon)
        return np.array([*operator_constants, self.decay], np.float32)
