"""The PyTorch operator `opbench::compute`, which runs any operator's problem and is differentiable.

A traced program contains it as a call with the names of operator and problem; an eager call goes directly to
`execute`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from opbench.errors import UsageError
from opbench.kernels.backward import forward_tensor_of, gradient_entries, problem_of_entry
from opbench.kernels.gradient import GRADIENT_PREFIX, Gradient
from opbench.kernels.operator import Operator
from opbench.networks.pytorch import torch_operators
from opbench.networks.pytorch.choice import CACHES, choice_for, problem_of, settings
from opbench.networks.pytorch.devices import (
    EMPTY,
    MISALIGNED,
    TORCH_DTYPES,
    CudaRunner,
    current_device,
    current_stream,
)

if TYPE_CHECKING:
    from torch import Tensor

NAMESPACE = "opbench"
library = torch.library.Library(NAMESPACE, "FRAGMENT")
"""The library in which the operators are registered."""


@dataclass(frozen=True)
class Signature:
    """A problem with the shapes and dtypes of its tensors."""

    problem: Operator
    inputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    outputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    backward_passes: dict[frozenset[str], BackwardPass] = field(default_factory=dict, compare=False)
    """The backward pass for each set of inputs."""


_signatures: dict[object, Signature] = {}
CACHES.append(_signatures.clear)


def signature(operator: str, text: str) -> Signature:
    """Return the signature of the problem that a text such as "(n=64)" names."""
    cached = _signatures.get((operator, text))
    if cached is None:
        problem = problem_of(operator, text)
        inputs, outputs = (
            tuple((t.name, t.shape, TORCH_DTYPES[t.dtype]) for t in tensors)
            for tensors in (problem.input_tensors(), problem.output_tensors())
        )
        cached = _signatures[operator, text] = Signature(problem, inputs, outputs)
    return cached


class ReadyProblem:
    """A problem on one device, prepared to run by the chosen variant or by PyTorch."""

    def __init__(self, operator: str, text: str, index: int) -> None:
        problem_signature = self.signature = signature(operator, text)
        self.index = index
        self.runner = choice_for(operator, text, index).runner
        self._inputs = problem_signature.inputs
        self._outputs = [(shape, _dense_strides(shape), dtype) for _, shape, dtype in problem_signature.outputs]
        self._launching = self.runner if isinstance(self.runner, CudaRunner) else None

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs; inputs in another memory order are copied first."""
        index, addresses = self.index, []
        aligned = list(inputs)
        for position, (tensor_given, (_, shape, dtype)) in enumerate(zip(inputs, self._inputs, strict=True)):
            if tensor_given.shape != shape or tensor_given.dtype != dtype or tensor_given.get_device() != index:
                raise self._refusal(tensor_given, position)
            if not tensor_given.is_contiguous():
                aligned[position] = tensor_given.contiguous()
            address = aligned[position].data_ptr()
            if address & MISALIGNED:
                aligned[position] = aligned[position].clone()
                address = aligned[position].data_ptr()
            addresses.append(address)
        if self._launching is None:
            return self._run_without_kernels(aligned)
        if current_device() != index:
            with torch.cuda.device(index):
                return self(aligned)
        outputs = [EMPTY(shape, strides, dtype) for shape, strides, dtype in self._outputs]
        for tensor in outputs:
            addresses.append(tensor.data_ptr())
        self._launching.launch_on(addresses, current_stream(index))
        return outputs

    def _run_without_kernels(self, aligned: Sequence[Tensor]) -> list[Tensor]:
        aligned = [tensor.detach() for tensor in aligned]
        if self.runner is None:
            return torch_operators.compute(self.signature.problem, aligned)
        outputs = [torch.empty(shape, dtype=dtype) for shape, _, dtype in self._outputs]
        self.runner.launch([*aligned, *outputs])
        return outputs

    def _refusal(self, tensor: Tensor, position: int) -> UsageError:
        name, shape, dtype = self._inputs[position]
        problem = self.signature.problem
        return UsageError(
            f"{problem.name}{problem}: tensor '{name}' is {tensor.dtype} of shape {list(tensor.shape)} on "
            f"{tensor.device}; pass a tensor of {dtype} and shape {list(shape)} on the device of the other tensors",
            kind="other-shape",
            subject=name,
            value=tuple(tensor.shape),
            allowed=tuple(shape),
        )


_ready_problems: dict[tuple[str, str, int], ReadyProblem] = {}
CACHES.append(_ready_problems.clear)


def execute(operator: str, text: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a problem now and return its outputs.

    Raises UsageError for inputs of other shapes, dtypes or devices.
    """
    return ready_problem(operator, text, inputs[0].get_device())(inputs)


def ready_problem(operator: str, text: str, index: int) -> ReadyProblem:
    """Return a problem with its runner on a device; the first call prepares it."""
    key = (operator, text, index)
    cached = _ready_problems.get(key)
    if cached is None:
        cached = _ready_problems[key] = ReadyProblem(*key)
    return cached


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _fake_outputs(operator: str, text: str, inputs: list[Tensor]) -> list[Tensor]:
    return [inputs[0].new_empty(shape, dtype=dtype) for _, shape, dtype in signature(operator, text).outputs]


# Gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackwardStep:
    """One problem of a backward pass, with the names of its tensors."""

    operator: str
    text: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """The tensors that it reads, in the operator's order, with their shapes."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """The name and shape of each output; "" for one that is not needed."""


def backward_steps(problem: Operator, input_names: frozenset[str]) -> tuple[BackwardStep, ...]:
    """Return the problems that compute the gradients of these inputs; raise UsageError without a gradient rule."""
    names = [name for name in problem.inputs if name in input_names]
    return tuple(
        _backward_step(problem, entry)
        for entry in gradient_entries(problem, names, "gradients of gradients, or of this operator")
    )


def _backward_step(problem: Operator, entry: Gradient) -> BackwardStep:
    if not entry.operator:
        (source,), (target,) = entry.inputs.values(), entry.outputs.values()
        return BackwardStep("", "", ((source, ()),), ((target, forward_tensor_of(problem, target).shape),))
    entry_problem = problem_of_entry(entry, settings().catalog.operator, problem.name)
    inputs = tuple((entry.inputs[t.name], t.shape) for t in entry_problem.input_tensors())
    outputs = tuple(
        (mapped_name, forward_tensor_of(problem, mapped_name).shape)
        if (mapped_name := entry.outputs.get(t.name, ""))
        else ("", ())
        for t in entry_problem.output_tensors()
    )
    return BackwardStep(entry.operator, str(entry_problem), inputs, outputs)


class BackwardPass:
    """The backward pass of one problem to some of its inputs: the saved tensors, and the problems to solve.

    Tensors have PyTorch's form: any shape, and nchw for images and filters of a problem in nhwc. If `logical` is False,
    as for `compute`, tensors are in the operator's order.
    """

    def __init__(self, problem: Operator, input_names: frozenset[str], *, logical: bool = True) -> None:
        self.input_names = input_names
        self.steps = backward_steps(problem, input_names)
        inputs, outputs = list(problem.inputs), list(problem.outputs)
        forward = {*inputs, *outputs}
        names = sorted({name for step in self.steps for name, _ in step.inputs if name in forward})
        self.saved = [(inputs.index(n), True) if n in inputs else (outputs.index(n), False) for n in names]
        """For each saved tensor, its position among the inputs (True) or the outputs (False)."""
        nhwc = logical and problem.axes.get("layout") == "nhwc"
        shapes = {t.name: t.shape for t in (*problem.input_tensors(), *problem.output_tensors())}
        self._names = [(name, shapes[name], nhwc and len(shapes[name]) == 4) for name in names]
        read_names = {name for step in self.steps for name, _ in step.inputs}
        self._given = [
            (index, GRADIENT_PREFIX + t.name, t.shape, nhwc and len(t.shape) == 4, TORCH_DTYPES[t.dtype])
            for index, t in enumerate(problem.output_tensors())
            if GRADIENT_PREFIX + t.name in read_names
        ]
        self._gradient_positions = [
            (inputs.index(name), GRADIENT_PREFIX + name, nhwc and len(shapes[name]) == 4)
            for name in inputs
            if name in input_names
        ]

    def saved_by_name(self, saved: Sequence[Tensor], gradient: Tensor) -> list[tuple[str, Tensor]] | None:
        """Return the saved tensors and the gradient by name; None if the steps need another gradient."""
        if [position for position, *_ in self._given] != [0]:
            return None
        ((_, gradient_name, gradient_shape, is_permuted, _),) = self._given
        tensors = zip(self._names, saved, strict=True)
        ordered = [(name, to_operator_order(tensor, shape, permuted)) for (name, shape, permuted), tensor in tensors]
        return [*ordered, (gradient_name, to_operator_order(gradient, gradient_shape, is_permuted))]

    @property
    def gradient_positions(self) -> Sequence[tuple[int, str, bool]]:
        """Return for each gradient its position among the inputs, its name, and whether its axes must be permuted."""
        return self._gradient_positions

    def input_gradients(self, saved: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
        """Compute the requested gradients from those of the outputs (None means zeros), with their positions.

        At least one gradient of an output is not None. Gradients that no step reads may be None.
        """
        tensor_by_name: dict[str, Tensor] = {}
        for (name, shape, permuted), tensor in zip(self._names, saved, strict=True):
            tensor_by_name[name] = to_operator_order(tensor, shape, permuted)
        for position, name, shape, permuted, dtype in self._given:
            output_gradient = gradients[position] if position < len(gradients) else None
            if output_gradient is None:
                any_gradient = next(gradient for gradient in gradients if gradient is not None)
                tensor_by_name[name] = any_gradient.new_zeros(shape, dtype=dtype)
            else:
                tensor_by_name[name] = to_operator_order(output_gradient, shape, permuted)
        # PyTorch must trace a backward pass only if that pass is differentiated, too.
        call = (
            torch.ops.opbench.compute.default
            if torch.is_grad_enabled() or not is_plain_eager_call(tensor_by_name.values())
            else execute
        )
        for step in self.steps:
            step_inputs = [
                to_operator_order(tensor_by_name[name], shape or tensor_by_name[name].shape)
                for name, shape in step.inputs
            ]
            computed = call(step.operator, step.text, step_inputs) if step.operator else step_inputs
            for (name, shape), tensor in zip(step.outputs, computed, strict=True):
                if name:
                    tensor_by_name[name] = to_operator_order(tensor, shape)
        return [
            (position, tensor_by_name[name].permute(0, 3, 1, 2) if permuted else tensor_by_name[name])
            for position, name, permuted in self._gradient_positions
        ]


def to_operator_order(tensor: Tensor, shape: Sequence[int], permuted: bool = False) -> Tensor:
    """Return a PyTorch tensor with the axes and shape that the operator declares."""
    if permuted:
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def backward_pass(problem_signature: Signature, input_names: frozenset[str]) -> BackwardPass:
    """Return the backward pass of a problem whose tensors are in the operator's order."""
    cached = problem_signature.backward_passes.get(input_names)
    if cached is None:
        cached = problem_signature.backward_passes[input_names] = BackwardPass(
            problem_signature.problem, input_names, logical=False
        )
    return cached


def _save_tensors(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: Sequence[Tensor]
) -> None:
    operator, text, tensors = inputs
    problem_signature = signature(str(operator), str(text))
    saved: list[Tensor] = list(tensors)  # type: ignore[call-overload]
    input_names = frozenset(
        position[0] for position, tensor in zip(problem_signature.inputs, saved, strict=True) if tensor.requires_grad
    )
    ctx.signature, ctx.backward_pass, ctx.error = problem_signature, None, None
    try:
        ctx.backward_pass = backward = backward_pass(problem_signature, input_names)
    except UsageError as error:
        ctx.error = error.with_traceback(None)  # a traceback would keep tensors alive
        return
    ctx.save_for_backward(*((saved if is_input else output)[position] for position, is_input in backward.saved))


def _gradients(ctx: torch.autograd.function.FunctionCtx, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients by position among the inputs."""
    problem_signature: Signature = ctx.signature
    if ctx.error is not None:
        raise UsageError(str(ctx.error), cause=ctx.error)
    converted: list[Tensor | None] = [None] * len(problem_signature.inputs)
    if all(gradient is None for gradient in gradients):
        return converted
    for position, tensor in ctx.backward_pass.input_gradients(ctx.saved_tensors, gradients):
        dtype = problem_signature.inputs[position][2]
        converted[position] = tensor if tensor.dtype == dtype else tensor.to(dtype)
    return converted


def _backward(ctx: torch.autograd.function.FunctionCtx, gradients: list[Tensor | None]) -> tuple[object, ...]:
    return None, None, _gradients(ctx, gradients)


def apply_function(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """Return the `apply` of an autograd function; it skips PyTorch's check for functorch to save time."""
    result: Callable[..., Tensor] = super(torch.autograd.Function, function).apply
    return result


class ComputeFunction(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of `compute`, for calls that do not need PyTorch's dispatcher."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, operator: str, text: str, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the problem and return its outputs."""
        outputs = execute(operator, text, tensors)
        ctx.set_materialize_grads(False)
        _save_tensors(ctx, (operator, text, tensors), outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        """Return the gradients of the inputs."""
        return None, None, *_gradients(ctx, gradients)


_apply_compute = apply_function(ComputeFunction)


def compute(operator: str, text: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a problem on tensors in the operator's order and return differentiable outputs, by the fastest path."""
    outputs: Sequence[Tensor]
    if not is_plain_eager_call(inputs):
        outputs = torch.ops.opbench.compute.default(operator, text, list(inputs))
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        outputs = _apply_compute(operator, text, *inputs)
    else:
        outputs = execute(operator, text, inputs)
    return outputs


library.define("compute(str operator, str problem, Tensor[] inputs) -> Tensor[]")
for _key in ("CPU", "CUDA"):
    library.impl("compute", execute, _key)
torch.library.register_fake(f"{NAMESPACE}::compute", _fake_outputs, lib=library)
torch.library.register_autograd(f"{NAMESPACE}::compute", _backward, setup_context=_save_tensors, lib=library)


# Eager or traced calls ------------------------------------------------------------------------------------------------

_PLAIN_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_compiling
_active_mode_count = torch._C._len_torch_dispatch_stack
_active_function_mode_count = torch._C._len_torch_function_stack
_tracing_state = torch._C._get_tracing_state
_active_transforms = torch._C._functorch.peek_interpreter_stack
_is_profiling = torch.autograd._profiler_enabled


def is_plain_eager_call(tensors: Collection[Tensor | None]) -> bool:
    """Return whether a kernel may run directly: no trace, transform or mode intercepts calls on these tensors.

    A tensor with the negative bit set must be resolved by PyTorch.
    """
    if (
        _is_compiling()
        or _active_mode_count()
        or _active_function_mode_count()
        or _is_profiling()
        or _tracing_state() is not None
        or _active_transforms() is not None
    ):
        return False
    for tensor in tensors:  # a generator would cost a quarter of a microsecond
        if tensor is not None and (type(tensor) not in _PLAIN_TENSOR_TYPES or tensor.is_neg()):
            return False
    return True
