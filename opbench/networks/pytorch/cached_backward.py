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
"""Most combinations of gradient shapes and strides that are cached for one form of call."""


@dataclass(frozen=True)
class CachedStep:
    """One problem of a backward pass, with the positions of its tensors."""

    runner: CudaRunner
    inputs: tuple[int, ...]
    """Numbers of its inputs: the saved tensors, then the gradient, then the outputs of all steps."""
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int | None], ...]
    """Shape, strides and type of each output, and the position of the call's tensor whose gradient it is."""


class CachedBackward:
    """Compute gradients from saved tensors and the output's gradient by prepared launches on new addresses."""

    def __init__(self, steps: Sequence[CachedStep], index: int, gradients: Sequence[Tensor | None]) -> None:
        """Store the steps; `index` is the CUDA device, and `gradients` are examples of the results, None for none."""
        self._steps = [(step.runner, step.inputs, step.outputs) for step in steps]
        self._index, self._none = index, [None] * len(gradients)
        types = {
            gradient_index: dtype
            for step in steps
            for _, _, dtype, gradient_index in step.outputs
            if gradient_index is not None
        }
        self._rounded = [(p, t.dtype) for p, t in enumerate(gradients) if t is not None and t.dtype != types[p]]

    def __call__(self, saved: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor | None, ...] | None:
        """Enqueue the kernels and return the gradients; None if a tensor is not aligned for them."""
        index = self._index
        if current_device() != index:
            with torch.cuda.device(index):
                return self(saved, gradient)
        pointers = []
        for tensor in (*saved, gradient):
            pointer = tensor.data_ptr()
            if pointer & MISALIGNED:
                return None
            pointers.append(pointer)
        gradients: list[Tensor | None] = self._none.copy()
        tensors = []  # a tensor that a later step reads must not be returned as a result of that step
        stream = current_stream(index)
        for runner, inputs, outputs in self._steps:
            addresses = []
            for tensor_index in inputs:
                addresses.append(pointers[tensor_index])
            for shape, strides, dtype, gradient_index in outputs:
                out = EMPTY(shape, strides, dtype)
                tensors.append(out)
                pointer = out.data_ptr()
                addresses.append(pointer)
                pointers.append(pointer)
                if gradient_index is not None:
                    gradients[gradient_index] = out
            runner.launch_on(addresses, stream)
        for gradient_index, dtype in self._rounded:
            gradients[gradient_index] = gradients[gradient_index].to(dtype)  # type: ignore[union-attr]
        return tuple(gradients)


CachedBackwards = tuple[Callable[..., bool], "CachedBackward | None"]
"""A guard of saved tensors and gradient, and the cached pass; None if the slow pass must convert something."""


def cache_backward(
    known_backwards: list[CachedBackwards],
    backward_pass: BackwardPass,
    saved: Sequence[Tensor],
    gradient: Tensor,
    gradients: Sequence[Tensor | None],
) -> None:
    """Use a cached backward pass for tensors of this form from now on.

    `gradients` are the results of the slow pass.
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
        known_backwards.append((make_guard(tensors), _make_cached(backward_pass, saved, gradient, gradients)))


def _make_cached(
    backward_pass: BackwardPass, saved: Sequence[Tensor], gradient: Tensor, gradients: Sequence[Tensor | None]
) -> CachedBackward | None:
    tensors = backward_pass.saved_by_name(saved, gradient)
    if tensors is None:
        return None
    index_by_name: dict[str, int] = {}
    for number, (call_tensor, (name, read_tensor)) in enumerate(zip((*saved, gradient), tensors, strict=True)):
        if not read_tensor.is_contiguous() or read_tensor.data_ptr() != call_tensor.data_ptr():
            return None
        index_by_name[name] = number
    position_by_name = {
        name: (position, is_channels_last) for position, name, is_channels_last in backward_pass.gradient_positions
    }
    index, steps, count = gradient.get_device(), [], len(tensors)
    for step in backward_pass.steps:
        if not step.operator:
            return None
        ready_step = ready_problem(step.operator, step.text, index)
        if not isinstance(ready_step.runner, CudaRunner):
            return None
        outputs = []
        for (name, _), (_, shape, dtype) in zip(step.outputs, ready_step.signature.outputs, strict=True):
            gradient_index, is_channels_last = position_by_name.pop(name, (None, False))
            template = torch.empty(shape, device="meta") if gradient_index is None else gradients[gradient_index]
            memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
            if (
                template is None
                or not template.is_contiguous(memory_format=memory_format)
                or template.numel() != math.prod(shape)
            ):
                return None
            outputs.append((tuple(template.shape), tuple(template.stride()), dtype, gradient_index))
        steps.append(
            CachedStep(ready_step.runner, tuple(index_by_name[name] for name, _ in step.inputs), tuple(outputs))
        )
        for name, _ in step.outputs:
            index_by_name[name], count = count, count + 1
    return None if position_by_name else CachedBackward(steps, index, gradients)
