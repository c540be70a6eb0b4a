"""softmax_cross_entropy: the mean negative log-likelihood of labels under each row's softmax, and its gradient."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Arrays, MeanLoss, from_storage, to_storage, vector_width

DEPTH = 200.0
"""What float32's exponential of its negative vanishes at."""
PIECE = 1 << 25
"""Elements that the reference treats together."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy(MeanLoss):
    """loss = sum over r of -log p[r, labels[r]] / (rows * micro), p being each row's softmax; dlogits is its gradient.

    dlogits[r,c] = (p[r,c] - (c == labels[r])) / (rows * micro). `micro` is the number of batches whose losses and
    gradients are added up in one step. A label outside 0 to cols - 1 makes its row's gradient and the loss NaN. With
    gradient "no" the loss is the only output. `dtype` stores logits and dlogits.
    """

    rows: int
    cols: int
    micro: int = 1
    dtype: str = "f32"
    gradient: str = "yes"

    special_inputs = {"logits": ("ties", "level", "far", "masked", "nan")}
    choices = {"dtype": ("f32", "bf16"), "gradient": ("yes", "no")}
    library = "torch"
    inputs = {"logits": "rows cols", "labels": "rows"}
    integers_exact = False  # exponentials are not whole

    @property
    def outputs(self) -> Mapping[str, str]:
        """Return the loss, and the gradient where it is wanted."""
        return {"loss": "1"} | ({"dlogits": "rows cols"} if self.gradient == "yes" else {})

    @property
    def count(self) -> int:
        """Number of rows that the mean is over."""
        return self.rows * self.micro

    @property
    def lanes(self) -> int:
        """Return the elements of the longest vector of up to 16 bytes that divides a row."""
        return vector_width(self.dtype, self.cols)

    def tensor_dtype(self, name: str) -> str:
        """Labels are integers, a loss is f32 always."""
        return "i32" if name == "labels" else super().tensor_dtype(name)

    def flops(self) -> int:
        """Return the FLOPs of a softmax, and for a gradient two more per element: a subtraction and a product."""
        return (7 if self.gradient == "yes" else 5) * self.rows * self.cols

    def reduction(self) -> int:
        """Return the exponentials of a row; losses are added up in two stages, whose error is far smaller."""
        return self.cols

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """Seeded logits, every second row far below 0, and a label of each row."""
        arrays = super().make_inputs(seed, integers)
        logits = from_storage(arrays["logits"], self.dtype)
        logits[1::2] -= DEPTH
        arrays["logits"] = to_storage(logits, self.dtype)
        rng = np.random.default_rng([seed, zlib.crc32(f"{self}/labels".encode())])
        arrays["labels"] = rng.integers(0, self.cols, self.rows, np.int32)
        return arrays

    def _pieces(self) -> list[slice]:
        """Return runs of rows of some million elements, so that intermediate results need little memory."""
        step = max(1, PIECE // self.cols)
        return [slice(first, first + step) for first in range(0, self.rows, step)]

    def reference(self, logits: np.ndarray, labels: np.ndarray) -> Arrays:
        """In float64, with the maximum subtracted."""
        columns = np.arange(self.cols, like=labels)
        losses = np.empty_like(logits, shape=(self.rows,))
        dlogits = np.empty_like(logits) if self.gradient == "yes" else None
        for rows in self._pieces():
            shifted = logits[rows] - logits[rows].max(axis=1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            at = labels[rows].astype(np.int64)[:, None]
            valid = (at >= 0) & (at < self.cols)
            onehot = columns == at
            own = -np.sum(np.where(onehot, log_p, 0.0), axis=1, keepdims=True)
            losses[rows] = np.where(valid, own, np.nan)[:, 0]
            if dlogits is not None:
                dlogits[rows] = np.where(valid, (np.exp(log_p) - onehot) / self.count, np.nan)
        loss = {"loss": np.sum(losses, keepdims=True).reshape(1) / self.count}
        return loss if dlogits is None else {**loss, "dlogits": dlogits}

    def magnitude_outputs(self, inputs: Arrays) -> Arrays:
        """Terms by their sizes: an error of an exponent is a relative error of its exponential, and 1 + its size long.

        Of dlogits p * (1 + exponent) + onehot, of a row's loss its label's exponent, the logarithm of the sum, and what
        the errors of the exponentials do to that. The loss is f32 for every `dtype`, so of what is allowed where
        gradients are rounded to bf16 it has only the share that f32 has.
        """
        wide = self.widened(inputs)
        logits, labels = wide["logits"], wide["labels"]
        columns = np.arange(self.cols, like=labels)
        losses = np.empty_like(logits, shape=(self.rows,))
        dlogits = np.empty_like(logits) if self.gradient == "yes" else None
        for rows in self._pieces():
            exponents = logits[rows].max(axis=1, keepdims=True) - logits[rows]
            sums = np.exp(-exponents).sum(axis=1, keepdims=True)
            p = np.exp(-exponents) / sums
            onehot = columns == labels[rows][:, None]
            losses[rows] = np.sum((onehot + p) * exponents, axis=1) + np.log(sums[:, 0]) + 1
            if dlogits is not None:
                dlogits[rows] = (p * (1 + exponents) + onehot) / self.count
        loss = {"loss": losses.sum(keepdims=True) / self.count * self.share_of_f32()}
        return loss if dlogits is None else {**loss, "dlogits": dlogits}

    @classmethod
    def examples(cls) -> Sequence[SoftmaxCrossEntropy]:
        """Rows of one element, shorter and longer than a warp, a block and a cluster, divided by vectors and not."""
        shapes = [(1, 1), (5, 3), (128, 10), (3, 31), (2, 32), (13, 64), (4, 257), (2, 1000), (3, 1024), (1, 4099)]
        shapes += [(1031, 7), (2, 8192), (3, 9001), (3, 33000)]
        found = [
            cls(rows=rows, cols=cols, micro=1 + i % 3, dtype=dtype)
            for dtype in ("f32", "bf16")
            for i, (rows, cols) in enumerate(shapes)
        ]
        return found + [
            cls(rows=rows, cols=cols, dtype=dtype, gradient="no")
            for rows, cols in ((5, 3), (2, 8192), (3, 9001))
            for dtype in cls.choices["dtype"]
        ]
