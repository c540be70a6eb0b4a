"""A backward pass for tensors in a known form, which only passes addresses to kernels.

`BackwardPass` goes by names and checks, reshapes and permutes every tensor. If that copied nothing, the next
call with tensors of the same form, as a guard tells, launches the same kernels on the new addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.networks.pytorch.call_guards import are_guards_reliable, make_guard
from opbench.networks.pytorch.devices import EMPTY, MISALIGNED, CudaRunner, current_device, current_stream
from opbench.networks.pytorch.primitives import BackwardPass, is_plain_eager_call, ready_problem

if TYPE_CHECKING:
    from torch import Tensor

MAX_CACHED = 4
"""Most forms of gradients remembered for calls of one form."""


@dataclass(frozen=True)
class CachedStep:
    """One problem of a backward pass, with the positions of its tensors."""

    runner: CudaRunner
    inputs: tuple[int, ...]
    """Numbers of its inputs: the saved tensors, then the gradient, then the outputs of all steps."""
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int | None], ...]
    """Shape, strides and type of each output, and the position of the call's tensor whose gradient it is."""


class CachedBackward:
    """Compute gradients from saved tensors and the output's gradient by launches that are prepared."""

    def __init__(self, steps: Sequence[CachedStep], index: int, found: Sequence[Tensor | None]) -> None:
        """Prepare the steps; `found` has gradients in the form that the kernels write."""
        self._steps = [(step.runner, step.inputs, step.outputs) for step in steps]
        self._index, self._none = index, [None] * len(found)
        types = {whose: dtype for step in steps for _, _, dtype, whose in step.outputs if whose is not None}
        self._rounded = [(p, t.dtype) for p, t in enumerate(found) if t is not None and t.dtype != types[p]]

    def __call__(self, saved: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor | None, ...] | None:
        """Enqueue the kernels and return the gradients; None if a tensor is not aligned for them."""
        index = self._index
        if current_device() != index:
            with torch.cuda.device(index):
                return self(saved, gradient)
        places = []
        for tensor in (*saved, gradient):
            place = tensor.data_ptr()
            if place & MISALIGNED:
                return None
            places.append(place)
        gradients: list[Tensor | None] = self._none.copy()
        tensors = []  # what a later step reads must not be given to its outputs
        stream = current_stream(index)
        for runner, inputs, outputs in self._steps:
            addresses = []
            for number in inputs:
                addresses.append(places[number])
            for shape, strides, dtype, whose in outputs:
                out = EMPTY(shape, strides, dtype)
                tensors.append(out)
                place = out.data_ptr()
                addresses.append(place)
                places.append(place)
                if whose is not None:
                    gradients[whose] = out
            runner.launch_on(addresses, stream)
        for whose, dtype in self._rounded:
            gradients[whose] = gradients[whose].to(dtype)  # type: ignore[union-attr]
        return tuple(gradients)


CachedBackwards = tuple[Callable[..., bool], "CachedBackward | None"]
"""A guard of saved tensors and gradient, and the cached pass; None if the slow pass must convert something."""


def cache_backward(
    known_backwards: list[CachedBackwards],
    way: BackwardPass,
    saved: Sequence[Tensor],
    gradient: Tensor,
    found: Sequence[Tensor | None],
) -> None:
    """Use a cached backward pass for tensors of this form from now on.

    `found` are the gradients of the slow pass.
    """
    tensors = (*saved, gradient)
    if (
        len(known_backwards) == MAX_CACHED
        or torch.is_grad_enabled()
        or not are_guards_reliable()
        or not is_plain_eager_call(tensors)
    ):
        return
    if not any(fits(*tensors) for fits, _ in known_backwards):
        known_backwards.append((make_guard(tensors), _make_cached(way, saved, gradient, found)))


def _make_cached(
    way: BackwardPass, saved: Sequence[Tensor], gradient: Tensor, found: Sequence[Tensor | None]
) -> CachedBackward | None:
    tensors = way.as_read(saved, gradient)
    if tensors is None:
        return None
    numbers: dict[str, int] = {}
    for number, (given, (name, seen)) in enumerate(zip((*saved, gradient), tensors, strict=True)):
        if not seen.is_contiguous() or seen.data_ptr() != given.data_ptr():
            return None
        numbers[name] = number
    wanted = {name: (place, turned) for place, name, turned in way.found}
    index, steps, count = gradient.get_device(), [], len(tensors)
    for step in way.steps:
        if not step.operator:
            return None
        ready = ready_problem(step.operator, step.text, index)
        if not isinstance(ready.runner, CudaRunner):
            return None
        outputs = []
        for (name, _), (_, shape, dtype) in zip(step.outputs, ready.signature.outputs, strict=True):
            whose, turned = wanted.pop(name, (None, False))
            like = torch.empty(shape, device="meta") if whose is None else found[whose]
            form = torch.channels_last if turned else torch.contiguous_format
            if like is None or not like.is_contiguous(memory_format=form) or like.numel() != math.prod(shape):
                return None
            outputs.append((tuple(like.shape), tuple(like.stride()), dtype, whose))
        steps.append(CachedStep(ready.runner, tuple(numbers[name] for name, _ in step.inputs), tuple(outputs)))
        for name, _ in step.outputs:
            numbers[name], count = count, count + 1
    return None if wanted else CachedBackward(steps, index, found)
