"""The layers as operators of PyTorch, with fake kernels and gradients; a plain eager call skips the dispatcher.

The form of a call (shapes, strides, types, device, numbers) is the key of its plan in a dictionary: the problem, the
inputs that need a copy, the form of the results and the kernels. Each call then only allocates outputs, writes
addresses into the launch's arguments and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import torch

from opbench.errors import UsageError
from opbench.networks.pytorch import operator_calls
from opbench.networks.pytorch.cached_backward import CachedBackwards, cache_backward
from opbench.networks.pytorch.call_guards import KNOWN_CALLS, cache_call
from opbench.networks.pytorch.choice import CACHES
from opbench.networks.pytorch.operator_calls import OperatorCall
from opbench.networks.pytorch.plans import Backward, CallPlan, missing_tensor_constants
from opbench.networks.pytorch.primitives import NAMESPACE, apply_function, is_plain_eager_call, library

if TYPE_CHECKING:
    from torch import Tensor


_plans: dict[object, CallPlan] = {}
CACHES.append(_plans.clear)


@dataclass(frozen=True)
class LayerOperator:
    """A PyTorch operator for one layer: its schema, the conversion of calls to problems, and its backward pass."""

    name: str
    arguments: str
    tensors: int
    """Number of tensor arguments, which come first."""
    describe: Callable[..., OperatorCall]
    outputs: int = 1
    differentiable: int = 1
    """Number of differentiable outputs, which come first."""
    has_backward_kernels: ClassVar[bool] = True
    """Whether kernels compute its gradients."""
    updated: tuple[int, ...] = ()
    """Positions of the tensors that its last outputs overwrite when it is called as a layer."""

    def register(self) -> None:
        """Define the operator in PyTorch."""
        results = "Tensor" if self.outputs == 1 else f"({', '.join(['Tensor'] * self.outputs)})"
        library.define(f"{self.name}({self.arguments}) -> {results}")
        for key in ("CPU", "CUDA"):
            library.impl(self.name, self.compute, key)
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", self.fake_outputs, lib=library)
        torch.library.register_autograd(
            f"{NAMESPACE}::{self.name}",
            self.gradients_of_traced_call,
            setup_context=self.save_for_backward,
            lib=library,
        )

    def plan(self, arguments: Sequence[object]) -> CallPlan | None:
        """Return the plan for a call; None for a call without elements."""
        key = self.key(arguments)
        plan = _plans.get(key)
        if plan is None:
            tensors: Sequence[Tensor | None] = arguments[: self.tensors]
            if all(t is None or t.numel() for t in tensors):
                plan = _plans[key] = CallPlan(self.describe(*arguments), tensors)
        return plan

    def key(self, arguments: Sequence[object]) -> tuple[object, ...]:
        """Return the key of a call: shapes, strides, dtypes, device and numbers."""
        key_items: list[object] = [self.name, *arguments[self.tensors :]]
        for t in arguments[: self.tensors]:
            if t is None:
                key_items.append(None)
            else:
                key_items += (t.shape, t.stride(), t.dtype, t.get_device())  # type: ignore[attr-defined]
        return tuple(key_items)

    def compute(self, *arguments: object) -> Tensor | tuple[Tensor, ...]:
        """Compute the outputs from real tensors."""
        plan = self.plan(arguments)
        outputs = plan(arguments[: self.tensors]) if plan else self._empty_outputs(arguments)
        return outputs[0] if self.outputs == 1 else tuple(outputs)

    def compute_through_dispatcher(self, tensors: Sequence[Tensor | None], options: Sequence[object]) -> Tensor:
        """Compute the first output through PyTorch's dispatcher."""
        outputs = _overloads[self.name](*tensors, *options)
        if isinstance(outputs, torch.Tensor):
            return outputs
        for position, value in zip(self.updated, outputs[len(outputs) - len(self.updated) :], strict=True):
            if (updated := tensors[position]) is not None:
                updated.copy_(value)
        return outputs[0]

    def _empty_outputs(self, arguments: Sequence[object]) -> list[Tensor]:
        """Return the outputs of a call without elements: empty, 0 for sums, NaN for means."""
        call = self.describe(*arguments)
        first_tensor: Tensor = arguments[0]
        if self.name == "batchnorm2d_train":
            raise UsageError(
                f"opbench.torch.batchnorm2d: x of shape {list(first_tensor.shape)} is empty, and batch "
                "statistics need elements; pass at least one image",
                kind="empty",
                subject="x",
                value=tuple(first_tensor.shape),
            )
        value = float("nan") if self.name == "l1_loss" else 0.0
        outputs = [first_tensor.new_full(shape, value, dtype=dtype) for shape, dtype, _ in call.outputs]
        if self.name == "linear" and outputs[0].numel() and arguments[2] is not None:
            outputs[0] += arguments[2]  # a product over no features is 0, so only the bias remains
        return [out.relu_() if arguments[-1] is True and out.is_floating_point() else out for out in outputs]

    def fake_outputs(self, *arguments: object) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs as fake tensors, which have shapes but no data."""
        first: Tensor = arguments[0]
        outputs = [
            torch.empty(shape, dtype=dtype, device=first.device, memory_format=memory_format)
            for shape, dtype, memory_format in self.describe(*arguments).outputs
        ]
        return outputs[0] if self.outputs == 1 else tuple(outputs)

    # Gradients ----------------------------------------------------------------------------------------------------

    def differentiated(self, plan: CallPlan, needs: tuple[bool, ...]) -> Callable[..., Tensor]:
        """Compute the first output of a plan as an autograd function, which is created once per plan.

        Values that all calls of a form share are captured by the function, so they do not pass through PyTorch.
        Outputs without a gradient are saved without being outputs for PyTorch.
        """
        cached = plan.differentiated.get(needs)
        if cached is not None:
            return cached
        operator, backward, constant_tensors = self, plan.backward(needs), plan.filled

        class DifferentiableFunction(torch.autograd.Function):  # type: ignore[misc]
            """The autograd function without PyTorch's dispatcher."""

            @staticmethod
            def forward(ctx: torch.autograd.function.FunctionCtx, *tensors: Tensor | None) -> Tensor:
                outputs = run(tensors)
                values = [*tensors, *outputs]
                for position, tensor in constant_tensors:
                    values[position] = tensor
                ctx.save_for_backward(*select_saved(values))
                return outputs[0]

            @staticmethod
            def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Sequence[Tensor | None]:
                saved = ctx.saved_tensors
                if not (
                    _is_compiling()
                    or _is_grad_enabled()
                    or _active_mode_count()
                    or _active_function_mode_count()
                    or _is_profiling()
                ):
                    for fits, cached_backward in known_backwards:
                        if fits(*saved, gradient):
                            gradients = cached_backward(saved, gradient) if cached_backward is not None else None
                            if gradients is not None:
                                return gradients
                            break
                return operator.gradients_and_cache(backward, saved, gradient, known_backwards)

        known_backwards: list[CachedBackwards] = []
        run, select_saved = plan.__call__, _select_positions(self.saved_positions(backward))
        cached = plan.differentiated[needs] = apply_function(DifferentiableFunction)
        return cached

    def save_for_backward(
        self,
        ctx: torch.autograd.function.FunctionCtx,
        inputs: tuple[object, ...],
        output: Tensor | tuple[Tensor, ...],
    ) -> None:
        """Save the tensors that the backward pass of a traced call, or of a call without elements, needs."""
        tensors: Sequence[Tensor | None] = inputs[: self.tensors]
        needs = ctx.needs_input_grad[: self.tensors]
        shapes_and_dtypes = [None if t is None else (t.shape, t.dtype) for t in tensors]
        operator_call = self.describe(*inputs) if all(t is None or t.numel() for t in tensors) else None
        outputs = (output,) if self.outputs == 1 else output
        ctx.backward_of = backward = Backward(operator_call, shapes_and_dtypes, needs)
        if len(outputs) > self.differentiable:
            ctx.mark_non_differentiable(*outputs[self.differentiable :])
        values = [*tensors, *outputs]
        if operator_call and any(t is None for t in tensors):
            for position, tensor in missing_tensor_constants(operator_call, tensors):
                values[position] = tensor
        ctx.save_for_backward(*[values[position] for position in self.saved_positions(backward)])

    def saved_positions(self, backward: Backward) -> Sequence[int]:
        """Return the indices, in the call's [*inputs, *outputs], of the tensors that the backward pass reads."""
        return backward.saved_positions

    def gradients_of_traced_call(
        self, ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None
    ) -> tuple[object, ...]:
        """Return the gradients of a traced call's arguments; None for numbers."""
        gradients_of_tensors = self.input_gradients(ctx.backward_of, ctx.saved_tensors, gradients[0])
        return *gradients_of_tensors, *(None,) * (len(ctx.needs_input_grad) - len(gradients_of_tensors))

    def gradients_and_cache(
        self,
        backward: Backward,
        saved: Sequence[Tensor],
        gradient: Tensor | None,
        known_backwards: list[CachedBackwards],
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the tensors.

        If a cached launch can compute them next time, add that launch to `known_backwards`.
        """
        gradients = tuple(self.input_gradients(backward, saved, gradient))
        if self.has_backward_kernels and backward.backward_pass is not None and gradient is not None:
            cache_backward(known_backwards, backward.backward_pass, saved, gradient, gradients)
        return gradients

    def input_gradients(
        self, backward: Backward, saved: Sequence[Tensor], out: Tensor | None
    ) -> Sequence[Tensor | None]:
        """Return the gradients of the layer's input tensors, from the gradient `out` of its first output."""
        shapes_and_dtypes, backward_pass = backward.shapes_and_dtypes, backward.backward_pass
        gradients: list[Tensor | None] = [None] * len(shapes_and_dtypes)
        if out is not None and backward_pass is not None:
            for position, gradient in backward_pass.input_gradients(saved, (out,)):
                shape, dtype = shapes_and_dtypes[position]  # type: ignore[misc]
                shaped = gradient if gradient.shape == shape else gradient.reshape(shape)
                gradients[position] = shaped if shaped.dtype == dtype else shaped.to(dtype)
        elif out is not None:  # a gradient without elements
            for position, shape_and_dtype in enumerate(shapes_and_dtypes):
                if shape_and_dtype is not None and backward.requires_grad[position]:
                    gradients[position] = out.new_zeros(shape_and_dtype[0], dtype=shape_and_dtype[1])
        return gradients


def _select_positions(positions: Sequence[int]) -> Callable[[list[Tensor | None]], Sequence[Tensor]]:
    """Return a function that selects the elements at these positions of a list."""
    if len(positions) > 1:
        return itemgetter(*positions)
    first_position = positions[0] if positions else 0
    return itemgetter(slice(first_position, first_position + len(positions)))


class LossOperator(LayerOperator):
    """A loss that computes its gradient together with its value."""

    has_backward_kernels = False

    def saved_positions(self, backward: Backward) -> Sequence[int]:
        """Return the position of the gradient, which the backward pass reads."""
        return (self.tensors + 1,)

    def input_gradients(
        self, backward: Backward, saved: Sequence[Tensor], out: Tensor | None
    ) -> Sequence[Tensor | None]:
        """Return the stored gradient times the gradient of the loss; the target's gradient is its negative."""
        if out is None:
            return None, None
        (stored_gradient,) = saved
        scaled = stored_gradient * out.to(stored_gradient.dtype)
        return scaled if backward.requires_grad[0] else None, -scaled if backward.requires_grad[1] else None


LAYERS = {
    layer.name: layer
    for layer in (
        LayerOperator("linear", "Tensor x, Tensor weight, Tensor? bias, bool relu", 3, operator_calls.linear),
        LayerOperator(
            "conv2d",
            "Tensor image, Tensor weight, Tensor? bias, int stride, int padding, bool relu",
            3,
            operator_calls.conv2d,
        ),
        LayerOperator("maxpool2d", "Tensor x, int window, int stride, int padding", 1, operator_calls.maxpool2d),
        LayerOperator(
            "batchnorm2d",
            "Tensor x, Tensor? scale, Tensor? shift, Tensor? mean, Tensor? variance, bool relu",
            5,
            operator_calls.batchnorm2d,
        ),
        LayerOperator(
            "batchnorm2d_train",
            "Tensor x, Tensor? scale, Tensor? shift, Tensor? mean, Tensor? variance, int momentum, bool relu",
            5,
            operator_calls.batchnorm2d_train,
            outputs=5,
            updated=(3, 4),
        ),
        LayerOperator("softmax", "Tensor x", 1, operator_calls.softmax),
        LossOperator("l1_loss", "Tensor x, Tensor target", 2, operator_calls.l1_loss, outputs=2),
    )
}
for _layer in LAYERS.values():
    _layer.register()
_overloads: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    name: getattr(torch.ops.opbench, name).default for name in LAYERS
}


_is_compiling = torch.compiler.is_dynamo_compiling
_active_mode_count = torch._C._len_torch_dispatch_stack
_active_function_mode_count = torch._C._len_torch_function_stack
_is_profiling = torch.autograd._profiler_enabled
_is_grad_enabled = torch.is_grad_enabled


def call(
    name: str,
    tensors: Sequence[Tensor | None],
    options: tuple[object, ...] = (),
    prepare: Callable[..., Sequence[Tensor | None]] | None = None,
) -> Tensor:
    """Compute the first output of a layer, by kernels directly or through PyTorch's dispatcher.

    The dispatcher is needed if a trace, transform or mode intercepts the call. `prepare` converts the tensors
    for autocast.
    """
    # A guard notices transforms, traces and autocast. Compilation, modes and the profiler are checked here, because a
    # guard does not notice all of them.
    if not (_is_compiling() or _active_mode_count() or _active_function_mode_count() or _is_profiling()):
        try:
            guards = KNOWN_CALLS.get((name, tensors[0].shape, options), ())  # type: ignore[union-attr]
        except (AttributeError, TypeError):  # no tensor, or symbolic sizes, which have no hash
            guards = ()
        for fits, run, requires_grad, differentiated in guards:
            if fits(*tensors):
                if not requires_grad or not _is_grad_enabled():
                    return run(tensors)[0]
                if differentiated is not None:
                    return differentiated(*tensors)
    layer = LAYERS[name]
    tensors = prepare(*tensors) if prepare else tensors
    plan = layer.plan((*tensors, *options)) if is_plain_eager_call(tensors) else None
    return _run_plan(layer, plan, tensors, options) if plan else layer.compute_through_dispatcher(tensors, options)


def _run_plan(
    layer: LayerOperator, plan: CallPlan, tensors: Sequence[Tensor | None], options: tuple[object, ...]
) -> Tensor:
    """Compute the first output by a plan, and use the plan for later calls of this form."""
    plan = plan.updating(layer.updated)
    needs = tuple(tensor is not None and tensor.requires_grad for tensor in tensors)
    function = layer.differentiated(plan, needs) if _is_grad_enabled() and any(needs) else None
    cache_call(layer.name, tensors, options, plan, function)
    return function(*tensors) if function else plan(tensors)[0]
