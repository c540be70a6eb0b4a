"""How calls of one form run, forward and back: found once, then tensors' addresses are all that changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.errors import UsageError
from opbench.integrations.pytorch import peers
from opbench.integrations.pytorch.choice import choice_for
from opbench.integrations.pytorch.described import Described
from opbench.integrations.pytorch.devices import (
    CPU,
    EMPTY,
    MISALIGNED,
    CudaRunner,
    capturing,
    current_device,
    current_stream,
)
from opbench.integrations.pytorch.primitives import WayBack, signature

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Backward:
    """What the gradients of calls of one form need, for those of their tensors that want one."""

    call: Described | None
    """None for a call of no elements."""
    like: Sequence[tuple[Sequence[int], torch.dtype] | None]
    """Of each tensor its shape and type; None for one that was left out."""
    needs: tuple[bool, ...]
    filled: Mapping[int, Tensor]
    """What stands for tensors that were left out, by place."""

    @functools.cached_property
    def way(self) -> WayBack | None:
        """What takes a call back to these of its tensors."""
        if self.call is None:
            return None
        wanted = frozenset(name for name, need in zip(self.call.names, self.needs, strict=False) if need)
        return WayBack(signature(self.call.operator, self.call.text).problem, wanted)

    def kept(self, given: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that the way back reads."""
        way = self.way
        if way is None:
            return []
        found = [(given if own else outputs)[place] for place, own in way.kept]
        for tensor in found:
            if tensor is None:
                return [self.filled[p] if t is None else t for t, (p, _) in zip(found, way.kept, strict=True)]
        return found


class CallPlan:
    """How calls of one form run."""

    def __init__(self, call: Described, given: Sequence[Tensor | None]) -> None:
        first = given[0]
        assert first is not None
        self.call, self.text = call, call.text
        self.device, self.index = first.device, first.get_device()
        self.signature = signature(call.operator, self.text)
        if capturing(self.index):
            raise UsageError(
                f"{call.operator}{self.text} is met for the first time while a CUDA graph is captured; "
                "call it once before"
            )
        self.runner = choice_for(call.operator, self.text, self.index).runner
        self.count = len(call.names)
        self.filled = fillings(call, given)
        self.copies = [
            (place, form)
            for place, (tensor, form) in enumerate(zip(given[: self.count], call.formats, strict=False))
            if tensor is not None and not tensor.is_contiguous(memory_format=form)
        ]
        self.outputs = [(shape, _strides(shape, form), dtype) for shape, dtype, form in call.outputs]
        self._on = self.runner.launch_on if isinstance(self.runner, CudaRunner) else None
        self._into: tuple[int, ...] = ()
        self._updating: CallPlan | None = None
        self._as_is = not self.filled and not self.copies
        self.like = [None if t is None else (t.shape, t.dtype) for t in given]
        self._backward: dict[tuple[bool, ...], Backward] = {}

    def __call__(self, given: Sequence[Tensor | None]) -> list[Tensor]:
        """The outputs, enqueued."""
        if self._on and current_device() != self.index:
            with torch.cuda.device(self.index):
                return self(given)
        tensors: list[Tensor] = list(given[: self.count])
        if not self._as_is:
            for place, tensor in self.filled:
                tensors[place] = tensor
            for place, form in self.copies:
                tensors[place] = tensors[place].contiguous(memory_format=form)
        addresses = [tensor.data_ptr() for tensor in tensors]
        for address in addresses:
            if address & MISALIGNED:
                tensors = [t.clone() if t.data_ptr() & MISALIGNED else t for t in tensors]
                addresses = [tensor.data_ptr() for tensor in tensors]
                break
        if self._on is not None:
            found = [EMPTY(shape, strides, dtype) for shape, strides, dtype in self.outputs]
            for tensor in found:
                addresses.append(tensor.data_ptr())
            for place in self._into:
                addresses.append(addresses[place])
            self._on(addresses, current_stream(self.index))
            return found
        if self.runner is None:
            return self._by_pytorch(tensors)
        found = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in self.outputs]
        self.runner.launch([*tensors, *found])
        return found

    def updating(self, places: tuple[int, ...]) -> CallPlan | None:
        """The same with its last outputs written over these inputs, for kernels whose operator allows it.

        None where that cannot be: on the host, by PyTorch, and where an input would be copied first.
        """
        if self._on is None or not self._as_is:
            return None
        if self._updating is None:
            self._updating = copy.copy(self)
            self._updating.outputs, self._updating._into = self.outputs[: -len(places)], places
        return self._updating

    def backward(self, needs: tuple[bool, ...]) -> Backward:
        """What the gradients of these of its tensors need."""
        found = self._backward.get(needs)
        if found is None:
            found = self._backward[needs] = Backward(self.call, self.like, needs, dict(self.filled))
        return found

    def _by_pytorch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        problem = self.signature.problem
        seen = [in_order(problem, t, shape) for t, (_, shape, _) in zip(tensors, self.signature.inputs, strict=True)]
        computed = peers.compute(problem, seen)
        return [from_order(problem, array, shape) for array, (shape, _, _) in zip(computed, self.outputs, strict=True)]


def in_order(problem: object, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of PyTorch's in the operator's order and shape."""
    return peers.physical(problem, tensor).reshape(shape)  # type: ignore[arg-type]


def from_order(problem: object, array: Tensor, shape: Sequence[int]) -> Tensor:
    """The opposite: an array of the operator's as PyTorch's tensor of a shape."""
    return peers.logical(problem, array).reshape(shape)  # type: ignore[arg-type]


def _strides(shape: Sequence[int], form: torch.memory_format) -> tuple[int, ...]:
    return tuple(torch.empty(tuple(shape), device="meta", memory_format=form).stride())


def fillings(call: Described, given: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
    """Numbers for tensors that were left out and that the operator needs; made once."""
    first = given[0]
    assert first is not None
    fills = (0.0,) * (len(call.names) - len(call.fill)) + call.fill
    missing = [place for place in range(len(call.names)) if given[place] is None]
    dtype = torch.float32 if call.operator == "batchnorm2d_train" else first.dtype
    made = [(place, torch.full((call.channels,), fills[place], dtype=dtype, device=first.device)) for place in missing]
    if made and first.get_device() != CPU:
        torch.cuda.current_stream(first.device).synchronize()  # other streams will read them, too
    return made
