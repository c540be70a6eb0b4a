"""triplet_margin_loss: how far positives are not nearer to anchors than negatives by a margin, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opbench import Arrays, MeanLoss, from_storage, to_storage, vector_width


@dataclass(frozen=True, kw_only=True)
class TripletMarginLoss(MeanLoss):
    """loss = sum over rows of max(0, 1 + |anchor - positive| - |anchor - negative|) / (rows * micro); also gradients.

    The distance |x - y| of two rows is the root of the sum of (x[c] - y[c] + 1e-6)^2, as in PyTorch. `micro` is the
    number of batches whose losses and gradients are added up in one step. `dtype` stores all but the loss, which is
    f32.
    """

    rows: int
    cols: int
    micro: int = 1
    dtype: str = "f32"

    epsilon: ClassVar[float] = 1e-6
    special_inputs = {"anchor": ("nan",)}
    choices = {"dtype": ("f32", "bf16")}
    library = "torch"
    integers_exact = False  # roots are not whole
    inputs = {"anchor": "rows cols", "positive": "rows cols", "negative": "rows cols"}
    outputs = {"loss": "1", "danchor": "rows cols", "dpositive": "rows cols", "dnegative": "rows cols"}

    @property
    def count(self) -> int:
        """Number of elements that the mean is over."""
        return self.rows * self.micro

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def flops(self) -> int:
        """Return the FLOPs: per element two differences, their squares and sums, and five for the gradients."""
        return 13 * self.rows * self.cols

    def reduction(self) -> int:
        """Return the number of squares that a distance adds up."""
        return self.cols

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Return seeded normals; negatives of even rows are near 0 and have a loss, those of odd rows are far.

        Rounding then decides for no row of usual length whether it has a loss.
        """
        arrays = super().make_inputs(seed, integers)
        negative = from_storage(arrays["negative"], self.dtype)
        negative[::2] *= np.float32(0.5)
        negative[1::2] *= np.float32(4)
        return {**arrays, "negative": to_storage(negative, self.dtype)}

    def _distances(self, anchor: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the differences of all elements, and the distance of each row."""
        difference = anchor - other + self.epsilon
        return difference, np.sqrt((difference * difference).sum(axis=1))

    def reference(self, anchor: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Arrays:
        """In float64."""
        near, to_positive = self._distances(anchor, positive)
        far, to_negative = self._distances(anchor, negative)
        losses = 1 + to_positive - to_negative
        active = (losses >= 0)[:, None]
        near, far = active * near / to_positive[:, None], active * far / to_negative[:, None]
        total = {"loss": np.sum(np.maximum(losses, 0), keepdims=True), "danchor": near - far, "dpositive": -near}
        return {name: array / self.count for name, array in {**total, "dnegative": far}.items()}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Return the sizes of the terms: distances cancel in the loss, both differences in the anchors' gradient."""
        wide = self.widened(inputs)
        exact = self.reference(**wide)
        distances = [self._distances(wide["anchor"], wide[name])[1] for name in ("positive", "negative")]
        active = 1 + distances[0] - distances[1] >= 0
        loss = np.sum((1 + distances[0] + distances[1]) * active, keepdims=True) / self.count * self.share_of_f32()
        near, far = abs(exact["dpositive"]), abs(exact["dnegative"])
        return {"loss": loss, "danchor": near + far, "dpositive": near, "dnegative": far}

    @classmethod
    def examples(cls) -> Sequence[TripletMarginLoss]:
        """Rows shorter and longer than a warp and a block, divided by vectors and not, and more rows than a block."""
        shapes = [
            (1, 8),
            (5, 3),
            (7, 10),
            (3, 31),
            (2, 32),
            (13, 64),
            (4, 257),
            (2, 1000),
            (3, 1024),
            (2, 4099),
            (1500, 5),
        ]
        return [
            cls(rows=rows, cols=cols, micro=1 + i % 3, dtype=dtype)
            for dtype in cls.choices["dtype"]
            for i, (rows, cols) in enumerate(shapes)
        ]
