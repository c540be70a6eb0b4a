"""Prepared calls, forward and backward: created once per form, so that later calls only change addresses."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.networks.pytorch import torch_operators
from opbench.networks.pytorch.choice import choice_for, require_no_capture
from opbench.networks.pytorch.devices import (
    CPU,
    EMPTY,
    MISALIGNED,
    CudaRunner,
    current_device,
    current_stream,
)
from opbench.networks.pytorch.operator_calls import OperatorCall
from opbench.networks.pytorch.primitives import BackwardPass, signature

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Backward:
    """The backward pass of a prepared call, for those of its tensors that require a gradient."""

    call: OperatorCall | None
    """None for a call without elements."""
    shapes_and_dtypes: Sequence[tuple[Sequence[int], torch.dtype] | None]
    """Shape and type of each tensor; None for a tensor that is None."""
    requires_grad: tuple[bool, ...]

    @functools.cached_property
    def backward_pass(self) -> BackwardPass | None:
        """Return the backward pass to these tensors; None for a call without elements."""
        if self.call is None:
            return None
        input_names = frozenset(
            name for name, is_needed in zip(self.call.names, self.requires_grad, strict=False) if is_needed
        )
        return BackwardPass(signature(self.call.operator, self.call.text).problem, input_names)

    @property
    def saved_positions(self) -> list[int]:
        """Return the tensors that the backward pass reads, as positions in the call's tensors plus its outputs."""
        return (
            [
                position if is_input else len(self.shapes_and_dtypes) + position
                for position, is_input in self.backward_pass.saved
            ]
            if self.backward_pass
            else []
        )


class CallPlan:
    """A prepared call for tensors of one form."""

    def __init__(self, call: OperatorCall, tensors: Sequence[Tensor | None]) -> None:
        first_tensor = tensors[0]
        assert first_tensor is not None
        self.call, self.text = call, call.text
        self.device, self.index = first_tensor.device, first_tensor.get_device()
        self.signature = signature(call.operator, self.text)
        require_no_capture(call.operator, self.text, self.index)
        self.runner = choice_for(call.operator, self.text, self.index).runner
        self.count = len(call.names)
        self.filled = missing_tensor_constants(call, tensors)
        self.copies = [
            (index, memory_format)
            for index, (tensor, memory_format) in enumerate(zip(tensors[: self.count], call.formats, strict=False))
            if tensor is not None and not tensor.is_contiguous(memory_format=memory_format)
        ]
        self.outputs = [(shape, _strides(shape, memory_format), dtype) for shape, dtype, memory_format in call.outputs]
        self._launching = self.runner if isinstance(self.runner, CudaRunner) else None
        self._as_it_is = not self.filled and not self.copies and self.count == len(tensors)
        self._into: tuple[int, ...] = ()
        self._after: tuple[int, ...] = ()
        self._updating: CallPlan | None = None
        self.shapes_and_dtypes = [None if t is None else (t.shape, t.dtype) for t in tensors]
        self.differentiated: dict[tuple[bool, ...], Callable[..., Tensor]] = {}
        """The functions for autograd, by which tensors require gradients."""

    def __call__(self, call_tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Enqueue the call and return its outputs."""
        cuda_runner = self._launching
        if cuda_runner is None:
            tensors: Sequence[Tensor] = call_tensors if self._as_it_is else self._prepare_inputs(call_tensors)
            return self._run_without_kernels(call_tensors, tensors)
        if current_device() != self.index:
            with torch.cuda.device(self.index):
                return self(call_tensors)
        tensors = call_tensors if self._as_it_is else self._prepare_inputs(call_tensors)
        addresses = []
        for tensor in tensors:
            address = tensor.data_ptr()
            if address & MISALIGNED:
                return self._run_on_aligned_copies(call_tensors, tensors)
            addresses.append(address)
        outputs = []
        for shape, strides, dtype in self.outputs:
            out = EMPTY(shape, strides, dtype)
            outputs.append(out)
            addresses.append(out.data_ptr())
        for position in self._into:
            addresses.append(addresses[position])
        cuda_runner.launch_on(addresses, current_stream(self.index))
        return self._copy_updated_inputs(call_tensors, outputs) if self._after else outputs

    def _prepare_inputs(self, call_tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the problem's inputs: a constant for a missing tensor, a copy for another memory format."""
        tensors: list[Tensor] = list(call_tensors[: self.count])
        for position, tensor in self.filled:
            tensors[position] = tensor
        for position, memory_format in self.copies:
            tensors[position] = tensors[position].contiguous(memory_format=memory_format)
        return tensors

    def _run_on_aligned_copies(self, call_tensors: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs from copies of tensors that are not aligned for wide accesses."""
        aligned = [t.clone() if t.data_ptr() & MISALIGNED else t for t in tensors]
        outputs = self([*aligned, *call_tensors[self.count :]])
        for position in self._into:
            if aligned[position] is not tensors[position]:
                tensors[position].copy_(aligned[position])
        for position in self._after:
            if (updated := call_tensors[position]) is not None and updated is not aligned[position]:
                updated.copy_(aligned[position])
        return outputs

    def _run_without_kernels(self, call_tensors: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs with PyTorch or on the CPU."""
        if self.runner is None:
            outputs = self._by_pytorch(tensors)
        else:
            aligned = [t.clone() if t.data_ptr() & MISALIGNED else t for t in tensors]
            outputs = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in self.outputs]
            self.runner.launch([*aligned, *outputs])
        return self._copy_updated_inputs(call_tensors, outputs) if self._after else outputs

    def _copy_updated_inputs(self, call_tensors: Sequence[Tensor | None], tensors: list[Tensor]) -> list[Tensor]:
        """Copy the last outputs over the inputs that they update, and return the other outputs."""
        count = len(self._after)
        for position, value in zip(self._after, tensors[-count:], strict=True):
            if (updated := call_tensors[position]) is not None:
                updated.copy_(value)
        return tensors[:-count]

    def updating(self, positions: tuple[int, ...]) -> CallPlan:
        """Return a plan that writes its last outputs directly over the inputs at these positions.

        The operator's kernels must allow that.

        They are copied instead on the host, with PyTorch, and for an input that is None or is copied first.
        """
        if not positions:
            return self
        if self._updating is None:
            plan = self._updating = copy.copy(self)
            plan.differentiated = {}
            if self._launching is not None and self._as_it_is:
                plan.outputs, plan._into = self.outputs[: -len(positions)], positions
            else:
                plan._after = positions
        return self._updating

    def backward(self, needs: tuple[bool, ...]) -> Backward:
        """Return the backward pass for these tensors."""
        return Backward(self.call, self.shapes_and_dtypes, needs)

    def _by_pytorch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        problem = self.signature.problem
        arrays = [
            to_operator_axes(problem, t, shape) for t, (_, shape, _) in zip(tensors, self.signature.inputs, strict=True)
        ]
        computed = torch_operators.compute(problem, arrays)
        return [
            from_operator_axes(problem, array, shape)
            for array, (shape, _, _) in zip(computed, self.outputs, strict=True)
        ]


def to_operator_axes(problem: object, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a PyTorch tensor with the axes and shape that the operator declares."""
    return torch_operators.to_declared_axes(problem, tensor).reshape(shape)  # type: ignore[arg-type]


def from_operator_axes(problem: object, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Permute a tensor from the axes that the operator declares to PyTorch's, and reshape it."""
    return torch_operators.to_torch_axes(problem, tensor).reshape(shape)  # type: ignore[arg-type]


def _strides(shape: Sequence[int], memory_format: torch.memory_format) -> tuple[int, ...]:
    return tuple(torch.empty(tuple(shape), device="meta", memory_format=memory_format).stride())


def missing_tensor_constants(call: OperatorCall, tensors: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
    """Return constants, by position, for missing tensors that the operator needs."""
    first_tensor = tensors[0]
    assert first_tensor is not None
    fill_values = (0.0,) * (len(call.names) - len(call.fill)) + call.fill
    missing = [position for position in range(len(call.names)) if tensors[position] is None]
    dtype = torch.float32 if call.operator == "batchnorm2d_train" else first_tensor.dtype
    constants = [
        (position, torch.full((call.channels,), fill_values[position], dtype=dtype, device=first_tensor.device))
        for position in missing
    ]
    if constants and first_tensor.get_device() != CPU:
        torch.cuda.current_stream(
            first_tensor.device
        ).synchronize()  # kernels on other streams will read these constants, too
    return constants
