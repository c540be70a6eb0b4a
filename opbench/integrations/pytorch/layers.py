"""The layers as operators of PyTorch: with fake kernels and gradients, and called directly where nobody looks.

A call's form (shapes, strides, types, device, numbers) finds its plan in a dictionary: the problem, what has to be
copied first, the results' form and the kernels. What is left to do for each call is to allocate, to write addresses
into the launch's arguments and to launch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.errors import UsageError
from opbench.integrations.pytorch import described, peers
from opbench.integrations.pytorch.choice import CACHES, choice_for
from opbench.integrations.pytorch.described import Described
from opbench.integrations.pytorch.devices import CPU, EMPTY, MISALIGNED, CudaRunner, capturing, current_device
from opbench.integrations.pytorch.primitives import NAMESPACE, WayBack, eager, library, signature

if TYPE_CHECKING:
    from torch import Tensor


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
        self.filled = _filled(call, given)
        self.copies = [
            (place, form)
            for place, (tensor, form) in enumerate(zip(given[: self.count], call.formats, strict=False))
            if tensor is not None and not tensor.is_contiguous(memory_format=form)
        ]
        self.outputs = [(shape, _strides(shape, form), dtype) for shape, dtype, form in call.outputs]
        self._at = self.runner.launch_at if isinstance(self.runner, CudaRunner) else None
        self._into: tuple[int, ...] = ()
        self._updating: CallPlan | None = None
        self._as_is = not self.filled and not self.copies
        self.like = [None if t is None else (t.shape, t.dtype) for t in given]
        self._ways: dict[tuple[bool, ...], WayBack] = {}

    def __call__(self, given: Sequence[Tensor | None]) -> list[Tensor]:
        """The outputs, enqueued."""
        if self._at and current_device() != self.index:
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
        if self._at is not None:
            found = [EMPTY(shape, strides, dtype) for shape, strides, dtype in self.outputs]
            for tensor in found:
                addresses.append(tensor.data_ptr())
            for place in self._into:
                addresses.append(addresses[place])
            self._at(addresses)
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
        if self._at is None or not self._as_is:
            return None
        if self._updating is None:
            self._updating = copy.copy(self)
            self._updating.outputs, self._updating._into = self.outputs[: -len(places)], places
        return self._updating

    def way_back(self, needs: tuple[bool, ...]) -> WayBack:
        """What the gradients of these of its tensors need."""
        found = self._ways.get(needs)
        if found is None:
            found = self._ways[needs] = _way(self.call, needs)
        return found

    def _by_pytorch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        problem = self.signature.problem
        seen = [in_order(problem, t, shape) for t, (_, shape, _) in zip(tensors, self.signature.inputs, strict=True)]
        computed = peers.compute(problem, seen)
        return [from_order(problem, array, shape) for array, (shape, _, _) in zip(computed, self.outputs, strict=True)]


def _way(call: Described, needs: Sequence[bool]) -> WayBack:
    """What takes a call back to these of its tensors."""
    wanted = frozenset(name for name, need in zip(call.names, needs, strict=False) if need)
    return WayBack(signature(call.operator, call.text).problem, wanted)


def in_order(problem: object, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of PyTorch's in the operator's order and shape."""
    return peers.physical(problem, tensor).reshape(shape)  # type: ignore[arg-type]


def from_order(problem: object, array: Tensor, shape: Sequence[int]) -> Tensor:
    """The opposite: an array of the operator's as PyTorch's tensor of a shape."""
    return peers.logical(problem, array).reshape(shape)  # type: ignore[arg-type]


def _strides(shape: Sequence[int], form: torch.memory_format) -> tuple[int, ...]:
    return tuple(torch.empty(tuple(shape), device="meta", memory_format=form).stride())


def _filled(call: Described, given: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
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
        torch.library.register_autograd(f"{NAMESPACE}::{self.name}", self.back, setup_context=self.keep, lib=library)
        operator = self

        class Differentiated(torch.autograd.Function):  # type: ignore[misc]
            """The same without PyTorch's dispatcher."""

            @staticmethod
            def forward(
                ctx: torch.autograd.function.FunctionCtx, plan: CallPlan | None, *arguments: object
            ) -> Tensor | tuple[Tensor, ...]:
                output = operator.computed(plan, arguments)
                ctx.set_materialize_grads(False)
                operator.keep(ctx, arguments, output, plan, ctx.needs_input_grad[1:])
                return output

            @staticmethod
            def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
                return None, *operator.back(ctx, *gradients)

        return Differentiated

    def plan(self, arguments: Sequence[object]) -> CallPlan | None:
        """How a call runs; None for one of no elements."""
        key = self.key(arguments)
        found = _plans.get(key)
        given: Sequence[Tensor | None] = arguments[: self.tensors]
        if found is None and all(t is None or t.numel() for t in given):
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
        return self.computed(self.plan(arguments), arguments)

    def computed(self, plan: CallPlan | None, arguments: Sequence[object]) -> Tensor | tuple[Tensor, ...]:
        """The same by the call's plan."""
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

    def keep(
        self,
        ctx: torch.autograd.function.FunctionCtx,
        inputs: tuple[object, ...],
        output: Tensor | tuple[Tensor, ...],
        plan: CallPlan | None = None,
        needs: Sequence[bool] = (),
    ) -> None:
        """Save what the way back reads; there is no plan of a call that is traced."""
        given: Sequence[Tensor | None] = inputs[: self.tensors]
        outputs = (output,) if self.outputs == 1 else output
        needs = tuple((needs or ctx.needs_input_grad)[: self.tensors])
        ctx.like = plan.like if plan else [None if t is None else (t.shape, t.dtype) for t in given]
        ctx.needs, ctx.more = needs, (None,) * (len(inputs) - self.tensors)
        if len(outputs) > self.differentiable:
            ctx.mark_non_differentiable(*outputs[self.differentiable :])
        ctx.way = way = plan.way_back(needs) if plan else self._traced_way(inputs, needs)
        if way is not None:
            tensors = [(given if own else outputs)[place] for place, own in way.kept]
            for tensor in tensors:
                if tensor is None:
                    filled = dict(plan.filled if plan else _filled(self.describe(*inputs), given))
                    tensors = [filled[p] if t is None else t for t, (p, _) in zip(tensors, way.kept, strict=True)]
                    break
            ctx.save_for_backward(*tensors)

    def _traced_way(self, arguments: Sequence[object], needs: Sequence[bool]) -> WayBack | None:
        """What takes a call back; None for one of no elements."""
        if not all(t is None or t.numel() for t in arguments[: self.tensors]):  # type: ignore[attr-defined]
            return None
        return _way(self.describe(*arguments), needs)

    def back(self, ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        """The inputs' gradients."""
        out, like = gradients[0], ctx.like
        found: list[Tensor | None] = [None] * len(like)
        if out is not None and ctx.way is not None:
            for place, gradient in ctx.way.pulled(ctx.saved_tensors, (out,)):
                shape, dtype = like[place]
                seen = gradient if gradient.shape == shape else gradient.reshape(shape)
                found[place] = seen if seen.dtype == dtype else seen.to(dtype)
        elif out is not None:  # of no elements
            for place, form in enumerate(like):
                if form is not None and ctx.needs[place]:
                    found[place] = out.new_zeros(form[0], dtype=form[1])
        return (*found, *ctx.more)


class LossOperator(LayerOperator):
    """A loss that gives its gradient with it."""

    def keep(
        self,
        ctx: torch.autograd.function.FunctionCtx,
        inputs: tuple[object, ...],
        output: Tensor | tuple[Tensor, ...],
        plan: CallPlan | None = None,
        needs: Sequence[bool] = (),
    ) -> None:
        """Save the gradient."""
        ctx.needs = tuple(needs or ctx.needs_input_grad)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    def back(self, ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor | None) -> tuple[object, ...]:
        """The gradient, times the loss's own; of the target the opposite."""
        (own,), given = ctx.saved_tensors, gradients[0]
        if given is None:
            return None, None
        scaled = own * given.to(own.dtype)
        return scaled if ctx.needs[0] else None, -scaled if ctx.needs[1] else None


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
_functions = {name: layer.register() for name, layer in LAYERS.items()}
_overloads = {name: getattr(torch.ops.opbench, name).default for name in LAYERS}


def call(name: str, *arguments: object) -> Tensor | tuple[Tensor, ...]:
    """A layer: through PyTorch's dispatcher where anything watches or transforms, else straight to the kernels."""
    layer = LAYERS[name]
    tensors: Sequence[Tensor | None] = arguments[: layer.tensors]
    found: Tensor | tuple[Tensor, ...]
    if not eager(tensors):
        found = _overloads[name](*arguments)
    else:
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    return _functions[name].apply(layer.plan(arguments), *arguments)
        found = layer.compute(*arguments)
    return found


STATISTICS = (3, 4)
"""Of a batch norm's tensors, those that follow."""


def normalised(*arguments: object) -> Tensor:
    """A batch norm by its batch's statistics, which the running ones follow in place; arguments as the operator's."""
    layer = LAYERS["batchnorm2d_train"]
    tensors: Sequence[Tensor | None] = arguments[: layer.tensors]
    running = [tensors[place] for place in STATISTICS]
    if eager(tensors) and all(t is not None and not t.data_ptr() & MISALIGNED for t in running):
        plan = layer.plan(arguments)
        updating = plan.updating(STATISTICS) if plan else None
        if updating is not None:
            if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
                found = _functions[layer.name].apply(updating, *arguments)
            else:
                found = layer.computed(updating, arguments)
            return found[0]
    found = call(layer.name, *arguments)
    for kept, new in zip(running, found[3:], strict=True):
        if kept is not None:
            kept.copy_(new)
    return found[0]
