"""The layers as operators of PyTorch: with fake kernels and gradients, and called directly where nobody looks.

A call's form (shapes, strides, types, device, numbers) finds its plan in a dictionary: the problem, what has to be
copied first, the results' form and the kernels. What is left to do for each call is to allocate, to write addresses
into the launch's arguments and to launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.errors import UsageError
from opbench.integrations.pytorch import described
from opbench.integrations.pytorch.choice import CACHES
from opbench.integrations.pytorch.described import Described
from opbench.integrations.pytorch.devices import MISALIGNED
from opbench.integrations.pytorch.plans import Backward, CallPlan, fillings
from opbench.integrations.pytorch.primitives import NAMESPACE, applied, eager, library

if TYPE_CHECKING:
    from torch import Tensor


_plans: dict[object, CallPlan] = {}
CACHES.append(_plans.clear)


@dataclass(frozen=True)
class LayerOperator:
    """One operator: its schema, its calls as problems, and what makes its way back."""

    name: str
    arguments: str
    tensors: int
    """How many of its arguments are tensors; they come first."""
    describe: Callable[..., Described]
    outputs: int = 1
    differentiable: int = 1
    """How many of its outputs a gradient comes back through; they come first."""

    def register(self) -> type[torch.autograd.Function]:
        """Define it in PyTorch; returns the function that eager calls with gradients go through."""
        results = "Tensor" if self.outputs == 1 else f"({', '.join(['Tensor'] * self.outputs)})"
        library.define(f"{self.name}({self.arguments}) -> {results}")
        for key in ("CPU", "CUDA"):
            library.impl(self.name, self.compute, key)
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", self.fake, lib=library)
        torch.library.register_autograd(f"{NAMESPACE}::{self.name}", self.back, setup_context=self.setup, lib=library)
        operator = self

        class Differentiated(torch.autograd.Function):  # type: ignore[misc]
            """The same without PyTorch's dispatcher, by a call's plan."""

            @staticmethod
            def forward(
                ctx: torch.autograd.function.FunctionCtx, plan: CallPlan, *given: Tensor | None
            ) -> Tensor | tuple[Tensor, ...]:
                found = plan(given)
                ctx.set_materialize_grads(False)
                operator.keep(ctx, given, found, plan.backward(ctx.needs_input_grad[1:]))
                return found[0] if operator.outputs == 1 else tuple(found)

            @staticmethod
            def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
                return None, *operator.pulled(ctx, gradients[0])

        return Differentiated

    def plan(self, arguments: Sequence[object]) -> CallPlan | None:
        """How a call runs; None for one of no elements."""
        key = self.key(arguments)
        found = _plans.get(key)
        if found is None:
            given: Sequence[Tensor | None] = arguments[: self.tensors]
            if all(t is None or t.numel() for t in given):
                found = _plans[key] = CallPlan(self.describe(*arguments), given)
        return found

    def key(self, arguments: Sequence[object]) -> tuple[object, ...]:
        """The form of a call."""
        found: list[object] = [self.name, *arguments[self.tensors :]]
        for t in arguments[: self.tensors]:
            if t is None:
                found.append(None)
            else:
                found += (t.shape, t.stride(), t.dtype, t.get_device())  # type: ignore[attr-defined]
        return tuple(found)

    def compute(self, *arguments: object) -> Tensor | tuple[Tensor, ...]:
        """The outputs, from tensors with memory."""
        plan = self.plan(arguments)
        found = plan(arguments[: self.tensors]) if plan else self._of_nothing(arguments)
        return found[0] if self.outputs == 1 else tuple(found)

    def _of_nothing(self, arguments: Sequence[object]) -> list[Tensor]:
        """An empty batch has an empty result; sums over no terms are 0, a mean of nothing is no number."""
        call = self.describe(*arguments)
        first: Tensor = arguments[0]
        if self.name == "batchnorm2d_train":
            raise UsageError(f"opbench.torch.batchnorm2d: an empty batch {list(first.shape)} has no statistics")
        value = float("nan") if self.name == "l1_loss" else 0.0
        found = [first.new_full(shape, value, dtype=dtype) for shape, dtype, _ in call.outputs]
        if self.name == "linear" and found[0].numel() and arguments[2] is not None:
            found[0] += arguments[2]  # of no features
        return [out.relu_() if arguments[-1] is True and out.is_floating_point() else out for out in found]

    def fake(self, *arguments: object) -> Tensor | tuple[Tensor, ...]:
        """The outputs' form."""
        first: Tensor = arguments[0]
        found = [
            torch.empty(shape, dtype=dtype, device=first.device, memory_format=form)
            for shape, dtype, form in self.describe(*arguments).outputs
        ]
        return found[0] if self.outputs == 1 else tuple(found)

    # Gradients ----------------------------------------------------------------------------------------------------

    def setup(
        self,
        ctx: torch.autograd.function.FunctionCtx,
        inputs: tuple[object, ...],
        output: Tensor | tuple[Tensor, ...],
    ) -> None:
        """Save what the way back of a traced or empty call reads."""
        given: Sequence[Tensor | None] = inputs[: self.tensors]
        needs = ctx.needs_input_grad[: self.tensors]
        like = [None if t is None else (t.shape, t.dtype) for t in given]
        described = self.describe(*inputs) if all(t is None or t.numel() for t in given) else None
        filled = dict(fillings(described, given)) if described and any(t is None for t in given) else {}
        outputs = (output,) if self.outputs == 1 else output
        self.keep(ctx, given, outputs, Backward(described, like, needs, filled))

    def keep(
        self,
        ctx: torch.autograd.function.FunctionCtx,
        given: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        backward: Backward,
    ) -> None:
        """Save what the way back reads."""
        ctx.backward_of = backward
        if len(outputs) > self.differentiable:
            ctx.mark_non_differentiable(*outputs[self.differentiable :])
        ctx.save_for_backward(*self.read_back(given, outputs, backward))

    def read_back(
        self, given: Sequence[Tensor | None], outputs: Sequence[Tensor], backward: Backward
    ) -> Sequence[Tensor]:
        """The tensors that the way back reads."""
        return backward.kept(given, outputs)

    def back(self, ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        """The gradients of all arguments of a traced call; there are none of its numbers."""
        found = self.pulled(ctx, gradients[0])
        return *found, *(None,) * (len(ctx.needs_input_grad) - len(found))

    def pulled(self, ctx: torch.autograd.function.FunctionCtx, out: Tensor | None) -> Sequence[Tensor | None]:
        """The tensors' gradients, from that of the first output."""
        backward: Backward = ctx.backward_of
        like, way = backward.like, backward.way
        found: list[Tensor | None] = [None] * len(like)
        if out is not None and way is not None:
            for place, gradient in way.pulled(ctx.saved_tensors, (out,)):
                shape, dtype = like[place]  # type: ignore[misc]
                seen = gradient if gradient.shape == shape else gradient.reshape(shape)
                found[place] = seen if seen.dtype == dtype else seen.to(dtype)
        elif out is not None:  # of no elements
            for place, form in enumerate(like):
                if form is not None and backward.needs[place]:
                    found[place] = out.new_zeros(form[0], dtype=form[1])
        return found


class LossOperator(LayerOperator):
    """A loss that gives its gradient with it."""

    def read_back(
        self, given: Sequence[Tensor | None], outputs: Sequence[Tensor], backward: Backward
    ) -> Sequence[Tensor]:
        """The gradient."""
        return outputs[1:]

    def pulled(self, ctx: torch.autograd.function.FunctionCtx, out: Tensor | None) -> Sequence[Tensor | None]:
        """The gradient, times the loss's own; of the target the opposite."""
        if out is None:
            return None, None
        (own,), needs = ctx.saved_tensors, ctx.backward_of.needs
        scaled = own * out.to(own.dtype)
        return scaled if needs[0] else None, -scaled if needs[1] else None


LAYERS = {
    layer.name: layer
    for layer in (
        LayerOperator("linear", "Tensor x, Tensor weight, Tensor? bias, bool relu", 3, described.linear),
        LayerOperator(
            "conv2d",
            "Tensor image, Tensor weight, Tensor? bias, int stride, int padding, bool relu",
            3,
            described.conv2d,
        ),
        LayerOperator("maxpool2d", "Tensor x, int window, int stride, int padding", 1, described.maxpool2d),
        LayerOperator(
            "batchnorm2d",
            "Tensor x, Tensor? scale, Tensor? shift, Tensor? mean, Tensor? variance, bool relu",
            5,
            described.batchnorm2d,
        ),
        LayerOperator(
            "batchnorm2d_train",
            "Tensor x, Tensor? scale, Tensor? shift, Tensor? mean, Tensor? variance, int momentum, bool relu",
            5,
            described.batchnorm2d_train,
            outputs=5,
        ),
        LayerOperator("softmax", "Tensor x", 1, described.softmax),
        LossOperator("l1_loss", "Tensor x, Tensor target", 2, described.l1_loss, outputs=2),
    )
}
_applied = {name: applied(layer.register()) for name, layer in LAYERS.items()}
_overloads = {name: getattr(torch.ops.opbench, name).default for name in LAYERS}
_differentiating = torch.is_grad_enabled


def call(name: str, *arguments: object) -> Tensor | tuple[Tensor, ...]:
    """A layer: through PyTorch's dispatcher where anything watches or transforms, else straight to the kernels."""
    layer = LAYERS[name]
    tensors: Sequence[Tensor | None] = arguments[: layer.tensors]
    plan = layer.plan(arguments) if eager(tensors) else None
    found: Tensor | tuple[Tensor, ...]
    found = _overloads[name](*arguments) if plan is None else _directly(layer, plan, tensors)
    return found


def _directly(layer: LayerOperator, plan: CallPlan, tensors: Sequence[Tensor | None]) -> Tensor | tuple[Tensor, ...]:
    if _differentiating():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return _applied[layer.name](plan, *tensors)
    found = plan(tensors)
    return found[0] if layer.outputs == 1 else tuple(found)


STATISTICS = (3, 4)
"""Of a batch norm's tensors, those that follow."""


def normalised(*arguments: object) -> Tensor:
    """A batch norm by its batch's statistics, which the running ones follow in place; arguments as the operator's."""
    layer = LAYERS["batchnorm2d_train"]
    tensors: Sequence[Tensor | None] = arguments[: layer.tensors]
    mean, variance = (tensors[place] for place in STATISTICS)
    if mean is not None and variance is not None and eager(tensors):
        plan = layer.plan(arguments) if not (mean.data_ptr() | variance.data_ptr()) & MISALIGNED else None
        updating = plan.updating(STATISTICS) if plan else None
        if updating is not None:
            return _directly(layer, updating, tensors)[0]
    found = call(layer.name, *arguments)
    for kept, new in zip((mean, variance), found[3:], strict=True):
        if kept is not None:
            kept.copy_(new)
    return found[0]
