"""What a network is made of: values, and nodes that tie a problem's tensors to them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import DTYPES, Tensor

LAYOUTS = ("nchw", "nhwc")
CONVERSION = "layout2d"
"""The operator that copies an image from one layout to the other."""


def other_layout(layout: str) -> str:
    """nhwc for nchw, and back."""
    return LAYOUTS[1 - LAYOUTS.index(layout)]


def seen_flat(shape: tuple[int, ...], flat: tuple[int, ...]) -> bool:
    """Whether an operator that sees its tensors flat, with one axis or (outer, channels, inner), fits such an array.

    That is so where each of its axes is a run of neighbouring axes of the array.
    """
    if len(flat) not in (1, 3) or math.prod(shape) != math.prod(flat):
        return False
    edges = set(itertools.accumulate(shape, operator.mul))
    return all(edge in edges or edge == 1 for edge in itertools.accumulate(flat, operator.mul))


@dataclass(frozen=True)
class Value:
    """One array of a network: an input, a weight, or what a node computes."""

    name: str
    shape: tuple[int, ...]
    """As it lies in memory: an image is (n, c, h, w), or (n, h, w, c) where `layout` is "nhwc"."""
    dtype: str = "f32"
    layout: str = "nchw"
    """Order of an image's axes; of no meaning to a value of fewer than four."""
    of: str = ""
    """Name of the value whose memory this is, seen in another shape (a flattened image), or of which it is a part."""
    offset: int = 0
    """Elements of `of` before it, for a part of one."""
    updates: str = ""
    """Name of the state whose memory this is, written anew by the node that reads the old one."""

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def image(self) -> tuple[int, int, int, int]:
        """(n, c, h, w) of an image, whatever its layout; raises UsageError for anything else."""
        if len(self.shape) != 4:
            raise UsageError(f"'{self.name}' {self.shape} is no image: four axes are needed")
        n, *rest = self.shape
        c, h, w = rest if self.layout == "nchw" else (rest[2], rest[0], rest[1])
        return n, c, h, w


@dataclass(frozen=True)
class Node:
    """A problem with its tensors tied to values."""

    name: str
    operator: str
    problem: Operator
    inputs: Mapping[str, str]
    """Tensor of the problem to value."""
    outputs: Mapping[str, str]

    def tensors(self) -> Iterable[tuple[Tensor, str]]:
        """Every tensor of the problem with the name of its value, inputs first."""
        tied = {**self.inputs, **self.outputs}
        for tensor in (*self.problem.input_tensors(), *self.problem.output_tensors()):
            yield tensor, tied[tensor.name]

    @property
    def layouts(self) -> dict[str, str]:
        """The layout of each image among its tensors; empty for a node to which layouts mean nothing."""
        images = [t.name for t in (*self.problem.input_tensors(), *self.problem.output_tensors()) if len(t.shape) == 4]
        if self.operator == CONVERSION:
            to = str(self.problem.scope["to"])
            return {name: to if name in self.outputs else other_layout(to) for name in images}
        layout = self.problem.axes.get("layout")
        return {name: str(layout) for name in images} if layout else {}
