"""The parts of a network: values (arrays), and nodes that connect a problem's tensors to values."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import DTYPES, Tensor

LAYOUTS = ("nchw", "nhwc")
CONVERSION = "layout2d"
"""The operator that copies an image from one layout to the other."""


def other_layout(layout: str) -> str:
    """Return nhwc for nchw, and nchw for nhwc."""
    return LAYOUTS[1 - LAYOUTS.index(layout)]


def splits_axes(shape: tuple[int, ...], finer: tuple[int, ...]) -> bool:
    """Return whether the shape `finer` only splits axes of `shape` into adjacent axes."""
    boundaries = set(itertools.accumulate(finer, operator.mul))
    return math.prod(shape) == math.prod(finer) and boundaries >= set(itertools.accumulate(shape, operator.mul))


def fits_flat_axes(shape: tuple[int, ...], flat: tuple[int, ...]) -> bool:
    """Return whether the flat axes (elements) or (outer, channels, inner) fit an array's shape.

    They fit if each flat axis is a run of neighbouring axes of the array.
    """
    if len(flat) not in (1, 3) or math.prod(shape) != math.prod(flat):
        return False
    boundaries = set(itertools.accumulate(shape, operator.mul))
    return all(boundary in boundaries or boundary == 1 for boundary in itertools.accumulate(flat, operator.mul))


@dataclass(frozen=True)
class Value:
    """One array of a network: an input, a weight, or a node's result."""

    name: str
    shape: tuple[int, ...]
    """The sizes of the axes in memory order: (n, c, h, w) for an image, or (n, h, w, c) if `layout` is "nhwc"."""
    dtype: str = "f32"
    layout: str = "nchw"
    """Order of an image's axes; meaningless for values with fewer than four axes."""
    of: str = ""
    """For a view, such as a flattened image: the name of the value whose memory it shares; else empty."""
    offset: int = 0
    """For a view of a part: its first element in `of`."""
    updates: str = ""
    """Name of the state that this value overwrites; the node that reads the old state writes it."""

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return int(math.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def image(self) -> tuple[int, int, int, int]:
        """Return the shape (n, c, h, w) of an image in any layout; raise UsageError for other values."""
        if len(self.shape) != 4:
            raise UsageError(
                f"'{self.name}' {self.shape} is not an image; pass a value with the four axes (n, c, h, w)",
                kind="not-an-image",
                subject=self.name,
                value=self.shape,
            )
        n, *rest = self.shape
        c, h, w = rest if self.layout == "nchw" else (rest[2], rest[0], rest[1])
        return n, c, h, w


@dataclass(frozen=True)
class Node:
    """A problem whose tensors are connected to values."""

    name: str
    operator: str
    problem: Operator
    inputs: Mapping[str, str]
    """The name of the value of each input tensor."""
    outputs: Mapping[str, str]

    def tensors(self) -> Iterable[tuple[Tensor, str]]:
        """Yield each tensor of the problem with the name of its value, inputs first."""
        value_by_tensor = {**self.inputs, **self.outputs}
        for tensor in (*self.problem.input_tensors(), *self.problem.output_tensors()):
            yield tensor, value_by_tensor[tensor.name]

    @property
    def layouts(self) -> dict[str, str]:
        """Return the layout of each image among the node's tensors; empty without images."""
        images = [t.name for t in (*self.problem.input_tensors(), *self.problem.output_tensors()) if len(t.shape) == 4]
        if self.operator == CONVERSION:
            written_layout = str(self.problem.scope["to"])
            return {name: written_layout if name in self.outputs else other_layout(written_layout) for name in images}
        layout = self.problem.axes.get("layout")
        return {name: str(layout) for name in images} if layout in LAYOUTS else {}
