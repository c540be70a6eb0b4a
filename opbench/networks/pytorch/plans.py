"""How calls of one form run, forward and back: found once, then tensors' addresses are all that changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.errors import UsageError
from opbench.networks.pytorch import peers
from opbench.networks.pytorch.choice import choice_for
from opbench.networks.pytorch.described import Described
from opbench.networks.pytorch.devices import (
    CPU,
    EMPTY,
    MISALIGNED,
    CudaRunner,
    capturing,
    current_device,
    current_stream,
)
from opbench.networks.pytorch.primitives import WayBack, signature

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

    @functools.cached_property
    def way(self) -> WayBack | None:
        """What takes a call back to these of its tensors."""
        if self.call is None:
            return None
        wanted = frozenset(name for name, need in zip(self.call.names, self.needs, strict=False) if need)
        return WayBack(signature(self.call.operator, self.call.text).problem, wanted)

    @property
    def kept(self) -> list[int]:
        """The tensors that the way back reads, by place among those of the call and the outputs after them."""
        return [place if own else len(self.like) + place for place, own in self.way.kept] if self.way else []


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
        self._launching = self.runner if isinstance(self.runner, CudaRunner) else None
        self._as_it_is = not self.filled and not self.copies and self.count == len(given)
        self._into: tuple[int, ...] = ()
        self._after: tuple[int, ...] = ()
        self._updating: CallPlan | None = None
        self.like = [None if t is None else (t.shape, t.dtype) for t in given]
        self.differentiated: dict[tuple[bool, ...], Callable[..., Tensor]] = {}
        """What autograd differentiates, by which tensors want gradients."""

    def __call__(self, given: Sequence[Tensor | None]) -> list[Tensor]:
        """The outputs, enqueued."""
        launching = self._launching
        if launching is None:
            tensors: Sequence[Tensor] = given if self._as_it_is else self._prepared(given)
            return self._slowly(given, tensors)
        if current_device() != self.index:
            with torch.cuda.device(self.index):
                return self(given)
        tensors = given if self._as_it_is else self._prepared(given)
        addresses = []
        for tensor in tensors:
            address = tensor.data_ptr()
            if address & MISALIGNED:
                return self._moved(given, tensors)
            addresses.append(address)
        found = []
        for shape, strides, dtype in self.outputs:
            out = EMPTY(shape, strides, dtype)
            found.append(out)
            addresses.append(out.data_ptr())
        for place in self._into:
            addresses.append(addresses[place])
        launching.launch_on(addresses, current_stream(self.index))
        return self._followed(given, found) if self._after else found

    def _prepared(self, given: Sequence[Tensor | None]) -> list[Tensor]:
        """The problem's inputs: made up where one was left out, copied where one lies otherwise."""
        tensors: list[Tensor] = list(given[: self.count])
        for place, tensor in self.filled:
            tensors[place] = tensor
        for place, form in self.copies:
            tensors[place] = tensors[place].contiguous(memory_format=form)
        return tensors

    def _moved(self, given: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, from copies of tensors that begin between the addresses that wide accesses need."""
        aligned = [t.clone() if t.data_ptr() & MISALIGNED else t for t in tensors]
        found = self([*aligned, *given[self.count :]])
        for place in self._into:
            if aligned[place] is not tensors[place]:
                tensors[place].copy_(aligned[place])
        for place in self._after:
            if (changed := given[place]) is not None and changed is not aligned[place]:
                changed.copy_(aligned[place])
        return found

    def _slowly(self, given: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Tensor]:
        """By PyTorch, or on the host."""
        if self.runner is None:
            found = self._by_pytorch(tensors)
        else:
            aligned = [t.clone() if t.data_ptr() & MISALIGNED else t for t in tensors]
            found = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in self.outputs]
            self.runner.launch([*aligned, *found])
        return self._followed(given, found) if self._after else found

    def _followed(self, given: Sequence[Tensor | None], found: list[Tensor]) -> list[Tensor]:
        """The outputs but the last, which are copied over inputs."""
        count = len(self._after)
        for place, new in zip(self._after, found[-count:], strict=True):
            if (changed := given[place]) is not None:
                changed.copy_(new)
        return found[:-count]

    def updating(self, places: tuple[int, ...]) -> CallPlan:
        """The same with its last outputs written over these inputs, which the operator's kernels have to allow.

        They are copied where that cannot be: on the host, by PyTorch, and where an input is copied first or left out.
        """
        if not places:
            return self
        if self._updating is None:
            plan = self._updating = copy.copy(self)
            plan.differentiated = {}
            if self._launching is not None and self._as_it_is:
                plan.outputs, plan._into = self.outputs[: -len(places)], places
            else:
                plan._after = places
        return self._updating

    def backward(self, needs: tuple[bool, ...]) -> Backward:
        """What the gradients of these of its tensors need."""
        return Backward(self.call, self.like, needs)

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
