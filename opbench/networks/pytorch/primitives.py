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
    ways: dict[frozenset[str], BackwardPass] = field(default_factory=dict, compare=False)
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
    """A problem on one device with the runner that was chosen for it."""

    def __init__(self, operator: str, text: str, index: int) -> None:
        known = self.signature = signature(operator, text)
        self.index = index
        self.runner = choice_for(operator, text, index).runner
        self._inputs = known.inputs
        self._outputs = [(shape, _dense_strides(shape), dtype) for _, shape, dtype in known.outputs]
        self._launching = self.runner if isinstance(self.runner, CudaRunner) else None

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs; inputs in another memory order are copied first."""
        index, addresses = self.index, []
        ready = list(inputs)
        for position, (given, (_, shape, dtype)) in enumerate(zip(inputs, self._inputs, strict=True)):
            if given.shape != shape or given.dtype != dtype or given.get_device() != index:
                raise self._refusal(given, position)
            if not given.is_contiguous():
                ready[position] = given.contiguous()
            address = ready[position].data_ptr()
            if address & MISALIGNED:
                ready[position] = ready[position].clone()
                address = ready[position].data_ptr()
            addresses.append(address)
        if self._launching is None:
            return self._run_without_kernels(ready)
        if current_device() != index:
            with torch.cuda.device(index):
                return self(ready)
        outputs = [EMPTY(shape, strides, dtype) for shape, strides, dtype in self._outputs]
        for tensor in outputs:
            addresses.append(tensor.data_ptr())
        self._launching.launch_on(addresses, current_stream(index))
        return outputs

    def _run_without_kernels(self, ready: Sequence[Tensor]) -> list[Tensor]:
        ready = [tensor.detach() for tensor in ready]
        if self.runner is None:
            return torch_operators.compute(self.signature.problem, ready)
        found = [torch.empty(shape, dtype=dtype) for shape, _, dtype in self._outputs]
        self.runner.launch([*ready, *found])
        return found

    def _refusal(self, tensor: Tensor, place: int) -> UsageError:
        name, shape, dtype = self._inputs[place]
        problem = self.signature.problem
        return UsageError(
            f"{problem.name}{problem}: '{name}' is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; "
            f"{dtype} {list(shape)} on one device with the others is needed"
        )


_ready: dict[tuple[str, str, int], ReadyProblem] = {}
CACHES.append(_ready.clear)


def execute(operator: str, text: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run a problem now and return its outputs.

    Raises UsageError for inputs of other shapes, dtypes or devices.
    """
    return ready_problem(operator, text, inputs[0].get_device())(inputs)


def ready_problem(operator: str, text: str, index: int) -> ReadyProblem:
    """Return a problem with its runner on a device; the first call prepares it."""
    key = (operator, text, index)
    ready = _ready.get(key)
    if ready is None:
        ready = _ready[key] = ReadyProblem(*key)
    return ready


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


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


def backward_steps(problem: Operator, wanted: frozenset[str]) -> tuple[BackwardStep, ...]:
    """Return the problems that compute the gradients of these inputs; raise UsageError without a gradient rule."""
    names = [name for name in problem.inputs if name in wanted]
    return tuple(
        _backward_step(problem, entry)
        for entry in gradient_entries(problem, names, "gradients of gradients, or of this operator")
    )


def _backward_step(problem: Operator, entry: Gradient) -> BackwardStep:
    if not entry.operator:
        (source,), (to,) = entry.inputs.values(), entry.outputs.values()
        return BackwardStep("", "", ((source, ()),), ((to, forward_tensor_of(problem, to).shape),))
    own = problem_of_entry(entry, settings().catalog.operator, problem.name)
    inputs = tuple((entry.inputs[t.name], t.shape) for t in own.input_tensors())
    outputs = tuple(
        (tied, forward_tensor_of(problem, tied).shape) if (tied := entry.outputs.get(t.name, "")) else ("", ())
        for t in own.output_tensors()
    )
    return BackwardStep(entry.operator, str(own), inputs, outputs)


class BackwardPass:
    """The backward pass of one problem to some of its inputs: the saved tensors, and the problems to solve.

    Tensors have PyTorch's form: any shape, and nchw for images and filters of a problem in nhwc. If `logical` is False,
    as for `compute`, tensors are in the operator's order.
    """

    def __init__(self, problem: Operator, wanted: frozenset[str], *, logical: bool = True) -> None:
        self.wanted = wanted
        self.steps = backward_steps(problem, wanted)
        inputs, outputs = list(problem.inputs), list(problem.outputs)
        forward = {*inputs, *outputs}
        names = sorted({name for step in self.steps for name, _ in step.inputs if name in forward})
        self.saved = [(inputs.index(n), True) if n in inputs else (outputs.index(n), False) for n in names]
        """For each saved tensor, its position among the inputs (True) or the outputs (False)."""
        nhwc = logical and problem.axes.get("layout") == "nhwc"
        shapes = {t.name: t.shape for t in (*problem.input_tensors(), *problem.output_tensors())}
        self._names = [(name, shapes[name], nhwc and len(shapes[name]) == 4) for name in names]
        read = {name for step in self.steps for name, _ in step.inputs}
        self._given = [
            (index, GRADIENT_PREFIX + t.name, t.shape, nhwc and len(t.shape) == 4, TORCH_DTYPES[t.dtype])
            for index, t in enumerate(problem.output_tensors())
            if GRADIENT_PREFIX + t.name in read
        ]
        self._found = [
            (inputs.index(name), GRADIENT_PREFIX + name, nhwc and len(shapes[name]) == 4)
            for name in inputs
            if name in wanted
        ]

    def as_read(self, saved: Sequence[Tensor], gradient: Tensor) -> list[tuple[str, Tensor]] | None:
        """Return the saved tensors and the gradient by name; None if the steps need another gradient."""
        if [place for place, *_ in self._given] != [0]:
            return None
        ((_, own, form, is_turned, _),) = self._given
        tensors = zip(self._names, saved, strict=True)
        ordered = [(name, to_operator_order(tensor, shape, turned)) for (name, shape, turned), tensor in tensors]
        return [*ordered, (own, to_operator_order(gradient, form, is_turned))]

    @property
    def found(self) -> Sequence[tuple[int, str, bool]]:
        """Return for each gradient its position among the inputs, its name, and whether its axes must be permuted."""
        return self._found

    def input_gradients(self, saved: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
        """Compute the requested gradients from those of the outputs (None means zeros), with their positions.

        At least one gradient of an output is not None. Gradients that no step reads may be None.
        """
        known: dict[str, Tensor] = {}
        for (name, shape, turned), tensor in zip(self._names, saved, strict=True):
            known[name] = to_operator_order(tensor, shape, turned)
        for place, name, shape, turned, dtype in self._given:
            given = gradients[place] if place < len(gradients) else None
            if given is None:
                like = next(gradient for gradient in gradients if gradient is not None)
                known[name] = like.new_zeros(shape, dtype=dtype)
            else:
                known[name] = to_operator_order(given, shape, turned)
        # A backward pass that is itself differentiated must be seen; every other one need not be.
        call = (
            torch.ops.opbench.compute.default
            if torch.is_grad_enabled() or not is_plain_eager_call(known.values())
            else execute
        )
        for step in self.steps:
            given_now = [to_operator_order(known[name], shape or known[name].shape) for name, shape in step.inputs]
            computed = call(step.operator, step.text, given_now) if step.operator else given_now
            for (name, shape), tensor in zip(step.outputs, computed, strict=True):
                if name:
                    known[name] = to_operator_order(tensor, shape)
        return [
            (place, known[name].permute(0, 3, 1, 2) if turned else known[name]) for place, name, turned in self._found
        ]


def to_operator_order(tensor: Tensor, shape: Sequence[int], turned: bool = False) -> Tensor:
    """Return a PyTorch tensor with the axes and shape that the operator declares."""
    if turned:
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def backward_pass(known: Signature, wanted: frozenset[str]) -> BackwardPass:
    """Return the backward pass of a problem whose tensors are in the operator's order."""
    found = known.ways.get(wanted)
    if found is None:
        found = known.ways[wanted] = BackwardPass(known.problem, wanted, logical=False)
    return found


def _save_tensors(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: Sequence[Tensor]
) -> None:
    operator, text, tensors = inputs
    known = signature(str(operator), str(text))
    saved: list[Tensor] = list(tensors)  # type: ignore[call-overload]
    wanted = frozenset(place[0] for place, tensor in zip(known.inputs, saved, strict=True) if tensor.requires_grad)
    ctx.signature, ctx.way, ctx.error = known, None, None
    try:
        ctx.way = way = backward_pass(known, wanted)
    except UsageError as error:
        ctx.error = error.with_traceback(None)  # a traceback would keep the tensors of its frames
        return
    ctx.save_for_backward(*((saved if own else output)[place] for place, own in way.saved))


def _gradients(ctx: torch.autograd.function.FunctionCtx, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients by position among the inputs."""
    known: Signature = ctx.signature
    if ctx.error is not None:
        raise UsageError(str(ctx.error), cause=ctx.error)
    converted: list[Tensor | None] = [None] * len(known.inputs)
    if all(gradient is None for gradient in gradients):
        return converted
    for place, tensor in ctx.way.input_gradients(ctx.saved_tensors, gradients):
        dtype = known.inputs[place][2]
        converted[place] = tensor if tensor.dtype == dtype else tensor.to(dtype)
    return converted


def _backward(ctx: torch.autograd.function.FunctionCtx, gradients: list[Tensor | None]) -> tuple[object, ...]:
    return None, None, _gradients(ctx, gradients)


def apply_function(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """Return PyTorch's `apply` of an autograd function without its check for functorch."""
    result: Callable[..., Tensor] = super(torch.autograd.Function, function).apply
    return result


class Computed(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of `compute`, for calls that do not need PyTorch's dispatcher."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, operator: str, text: str, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the outputs."""
        outputs = execute(operator, text, tensors)
        ctx.set_materialize_grads(False)
        _save_tensors(ctx, (operator, text, tensors), outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        """Return the gradients of the inputs."""
        return None, None, *_gradients(ctx, gradients)


_applied = apply_function(Computed)


def compute(operator: str, text: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a problem on tensors in the operator's order and return differentiable outputs, by the fastest path."""
    outputs: Sequence[Tensor]
    if not is_plain_eager_call(inputs):
        outputs = torch.ops.opbench.compute.default(operator, text, list(inputs))
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        outputs = _applied(operator, text, *inputs)
    else:
        outputs = execute(operator, text, inputs)
    return outputs


library.define("compute(str operator, str problem, Tensor[] inputs) -> Tensor[]")
for _key in ("CPU", "CUDA"):
    library.impl("compute", execute, _key)
torch.library.register_fake(f"{NAMESPACE}::compute", _fake_outputs, lib=library)
torch.library.register_autograd(f"{NAMESPACE}::compute", _backward, setup_context=_save_tensors, lib=library)


# Eager or seen ----------------------------------------------------------------------------------------------------

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state
_transforms = torch._C._functorch.peek_interpreter_stack
_profiling = torch.autograd._profiler_enabled


def is_plain_eager_call(tensors: Collection[Tensor | None]) -> bool:
    """Return whether a kernel may run directly: no trace, transform or mode intercepts calls on these tensors.

    A tensor with the negative bit set must be resolved by PyTorch.
    """
    if _compiling() or _modes() or _functions() or _profiling() or _tracing() is not None or _transforms() is not None:
        return False
    for tensor in tensors:  # noqa: SIM110 (a generator costs a quarter of a microsecond)
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.is_neg()):
            return False
    return True
