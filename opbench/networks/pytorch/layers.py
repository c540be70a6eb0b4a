"""The layers as operators of PyTorch: with fake kernels and gradients, and called directly where nobody looks.

A call's form (shapes, strides, types, device, numbers) finds its plan in a dictionary: the problem, what has to be
copied first, the results' form and the kernels. What is left to do for each call is to allocate, to write addresses
into the launch's arguments and to launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import torch

from opbench.errors import UsageError
from opbench.networks.pytorch import described
from opbench.networks.pytorch.choice import CACHES
from opbench.networks.pytorch.described import Described
from opbench.networks.pytorch.known_forms import KNOWN, remember
from opbench.networks.pytorch.plans import Backward, CallPlan, fillings
from opbench.networks.pytorch.primitives import NAMESPACE, applied, eager, library
from opbench.networks.pytorch.straight_back import KnownBack, remember_back

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
    is_pulled_by_kernels: ClassVar[bool] = True
    """Whether its gradients are what kernels give."""
    updated: tuple[int, ...] = ()
    """Tensors that its last outputs replace, by place, when it is called as a layer."""

    def register(self) -> None:
        """Define it in PyTorch."""
        results = "Tensor" if self.outputs == 1 else f"({', '.join(['Tensor'] * self.outputs)})"
        library.define(f"{self.name}({self.arguments}) -> {results}")
        for key in ("CPU", "CUDA"):
            library.impl(self.name, self.compute, key)
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", self.fake, lib=library)
        torch.library.register_autograd(f"{NAMESPACE}::{self.name}", self.back, setup_context=self.setup, lib=library)

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

    def dispatched(self, tensors: Sequence[Tensor | None], numbers: Sequence[object]) -> Tensor:
        """The first output by PyTorch's dispatcher."""
        outputs = _overloads[self.name](*tensors, *numbers)
        if isinstance(outputs, torch.Tensor):
            return outputs
        for place, new in zip(self.updated, outputs[len(outputs) - len(self.updated) :], strict=True):
            if (updated := tensors[place]) is not None:
                updated.copy_(new)
        return outputs[0]

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

    def differentiated(self, plan: CallPlan, needs: tuple[bool, ...]) -> Callable[..., Tensor]:
        """Its first output by a plan, as a function of the tensors that autograd differentiates; made once a plan.

        What a call has in common with others of its form is the function's own, so that none of it passes through
        PyTorch, and outputs that no gradient comes back through are kept without being outputs to PyTorch.
        """
        found = plan.differentiated.get(needs)
        if found is not None:
            return found
        operator, backward, filled = self, plan.backward(needs), plan.filled

        class Differentiated(torch.autograd.Function):  # type: ignore[misc]
            """The same without PyTorch's dispatcher."""

            @staticmethod
            def forward(ctx: torch.autograd.function.FunctionCtx, *given: Tensor | None) -> Tensor:
                outputs = run(given)
                known = [*given, *outputs]
                for place, tensor in filled:
                    known[place] = tensor
                ctx.save_for_backward(*kept(known))
                return outputs[0]

            @staticmethod
            def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Sequence[Tensor | None]:
                saved = ctx.saved_tensors
                if not (_compiling() or _differentiating() or _modes() or _functions() or _profiling()):
                    for fits, straight in known:
                        if fits(*saved, gradient):
                            pulled = straight(saved, gradient) if straight is not None else None
                            if pulled is not None:
                                return pulled
                            break
                return operator.pulled_back(backward, saved, gradient, known)

        known: list[KnownBack] = []
        run, kept = plan.__call__, _picked(self.kept(backward))
        found = plan.differentiated[needs] = applied(Differentiated)
        return found

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
        outputs = (output,) if self.outputs == 1 else output
        ctx.backward_of = backward = Backward(described, like, needs)
        if len(outputs) > self.differentiable:
            ctx.mark_non_differentiable(*outputs[self.differentiable :])
        known = [*given, *outputs]
        if described and any(t is None for t in given):
            for place, tensor in fillings(described, given):
                known[place] = tensor
        ctx.save_for_backward(*[known[place] for place in self.kept(backward)])

    def kept(self, backward: Backward) -> Sequence[int]:
        """The tensors that the way back reads, by place among those of the call and the outputs after them."""
        return backward.kept

    def back(self, ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        """The gradients of all arguments of a traced call; there are none of its numbers."""
        found = self.pulled(ctx.backward_of, ctx.saved_tensors, gradients[0])
        return *found, *(None,) * (len(ctx.needs_input_grad) - len(found))

    def pulled_back(
        self,
        backward: Backward,
        saved: Sequence[Tensor],
        gradient: Tensor | None,
        known: list[KnownBack],
    ) -> tuple[Tensor | None, ...]:
        """The tensors' gradients; where they can be had straight from now on, that becomes known."""
        found = tuple(self.pulled(backward, saved, gradient))
        if self.is_pulled_by_kernels and backward.way is not None and gradient is not None:
            remember_back(known, backward.way, saved, gradient, found)
        return found

    def pulled(self, backward: Backward, saved: Sequence[Tensor], out: Tensor | None) -> Sequence[Tensor | None]:
        """The tensors' gradients, from that of the first output."""
        like, way = backward.like, backward.way
        found: list[Tensor | None] = [None] * len(like)
        if out is not None and way is not None:
            for place, gradient in way.pulled(saved, (out,)):
                shape, dtype = like[place]  # type: ignore[misc]
                seen = gradient if gradient.shape == shape else gradient.reshape(shape)
                found[place] = seen if seen.dtype == dtype else seen.to(dtype)
        elif out is not None:  # of no elements
            for place, form in enumerate(like):
                if form is not None and backward.needs[place]:
                    found[place] = out.new_zeros(form[0], dtype=form[1])
        return found


def _picked(places: Sequence[int]) -> Callable[[list[Tensor | None]], Sequence[Tensor]]:
    """What has these places in a list."""
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    return itemgetter(slice(first, first + len(places)))


class LossOperator(LayerOperator):
    """A loss that gives its gradient with it."""

    is_pulled_by_kernels = False

    def kept(self, backward: Backward) -> Sequence[int]:
        """The gradient."""
        return (self.tensors + 1,)

    def pulled(self, backward: Backward, saved: Sequence[Tensor], out: Tensor | None) -> Sequence[Tensor | None]:
        """The gradient, times the loss's own; of the target the opposite."""
        if out is None:
            return None, None
        (own,) = saved
        scaled = own * out.to(own.dtype)
        return scaled if backward.needs[0] else None, -scaled if backward.needs[1] else None


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
            updated=(3, 4),
        ),
        LayerOperator("softmax", "Tensor x", 1, described.softmax),
        LossOperator("l1_loss", "Tensor x, Tensor target", 2, described.l1_loss, outputs=2),
    )
}
for _layer in LAYERS.values():
    _layer.register()
_overloads: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    name: getattr(torch.ops.opbench, name).default for name in LAYERS
}


_compiling = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_functions = torch._C._len_torch_function_stack
_profiling = torch.autograd._profiler_enabled
_differentiating = torch.is_grad_enabled


def call(
    name: str,
    tensors: Sequence[Tensor | None],
    numbers: tuple[object, ...] = (),
    prepare: Callable[..., Sequence[Tensor | None]] | None = None,
) -> Tensor:
    """A layer's first output: straight to the kernels where nobody watches or transforms, else by the dispatcher.

    `prepare` is what autocast does to the tensors.
    """
    # A guard sees what is in the way of PyTorch's dispatcher: transforms, traces and autocast. To ask for are what goes
    # by other ways, and modes, of which it sees some.
    if not (_compiling() or _modes() or _functions() or _profiling()):
        try:
            known = KNOWN.get((name, tensors[0].shape, numbers), ())  # type: ignore[union-attr]
        except (AttributeError, TypeError):  # no tensor; or its sizes are free, which have no hash
            known = ()
        for fits, run, wanted, differentiated in known:
            if fits(*tensors):
                if not wanted or not _differentiating():
                    return run(tensors)[0]
                if differentiated is not None:
                    return differentiated(*tensors)
    layer = LAYERS[name]
    tensors = prepare(*tensors) if prepare else tensors
    plan = layer.plan((*tensors, *numbers)) if eager(tensors) else None
    return _planned(layer, plan, tensors, numbers) if plan else layer.dispatched(tensors, numbers)


def _planned(
    layer: LayerOperator, plan: CallPlan, tensors: Sequence[Tensor | None], numbers: tuple[object, ...]
) -> Tensor:
    """The first output by a plan, which serves what is called in this form from now on."""
    plan = plan.updating(layer.updated)
    needs = tuple(tensor is not None and tensor.requires_grad for tensor in tensors)
    function = layer.differentiated(plan, needs) if _differentiating() and any(needs) else None
    remember(layer.name, tensors, numbers, plan, function)
    return function(*tensors) if function else plan(tensors)[0]
