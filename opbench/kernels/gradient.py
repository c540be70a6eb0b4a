"""Gradients as data: which problems, tied to which tensors, take a problem's result back to its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GRADIENT = "d."
"""Before a forward tensor's name: the gradient of the loss by that tensor, in its shape."""


@dataclass(frozen=True)
class Gradient:
    """One problem of a backward pass, its tensors tied to those of the forward problem.

    A tensor is tied to a forward tensor ("image", "out"), to the gradient of one ("d.out"), or to what an earlier entry
    of the same rule wrote, whose name begins with the forward tensor of the same shape and a dot ("out.masked"). An
    entry without an operator passes a gradient on as it is: the one input is the one output, under another name.
    """

    operator: str
    axes: Mapping[str, int | str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def passed_on(source: str, *to: str) -> list[Gradient]:
    """The gradient of one tensor is that of others, such as of both terms of a sum."""
    return [Gradient("", inputs={"": source}, outputs={"": name}) for name in to]
