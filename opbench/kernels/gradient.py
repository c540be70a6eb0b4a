"""Gradient rules as data: the problems that compute the gradients of a problem's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GRADIENT_PREFIX = "d."
"""Prefix of a forward tensor's name for the gradient of the loss with respect to it, in the same shape."""


@dataclass(frozen=True)
class Gradient:
    """One entry of a gradient rule: a problem of the backward pass, with its tensors mapped to forward tensors.

    A tensor is mapped to a forward tensor ("image", "out"), to its gradient ("d.out"), or to the result of an earlier
    entry. The name of a result is a forward tensor of the same shape, a dot and a word ("out.masked").
    An entry without an operator passes a gradient on unchanged: its only input is its only output under another name.
    """

    operator: str
    axes: Mapping[str, int | str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


def passed_on(source: str, *targets: str) -> list[Gradient]:
    """Return entries that copy one tensor's gradient to several tensors, such as both terms of a sum."""
    return [Gradient("", inputs={"": source}, outputs={"": name}) for name in targets]
