"""Recognise calls with tensors of a known form by guards of PyTorch's compiler, which are faster than Python.

How a call runs depends on its tensors' types, shapes, strides, element types and devices, on whether they
require gradients, and on whether a trace, transform or mode is active. Reading these from Python takes longer
than a kernel launch. A guard compares them in 0.1 µs per call plus 0.05 µs per tensor. A call that is not
recognised takes the slow path, which remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from opbench.networks.pytorch.choice import CACHES

try:
    from torch._C._dynamo.guards import TensorGuards as _guards
except ImportError:
    _guards = None

if TYPE_CHECKING:
    from torch import Tensor

    from opbench.networks.pytorch.plans import CallPlan

MAX_FORMS = 8
"""Most guards that are cached for calls of one operator with the same numbers and the same first shape."""

_any_autocast = torch._C._is_any_autocast_enabled
_trusted: bool | None = None


class CallGuard(NamedTuple):
    """A function that recognises calls of one form, and the prepared launch for these calls."""

    fits: Callable[..., bool]
    run: Callable[[Sequence[Tensor | None]], list[Tensor]]
    """The plan of the call."""
    needs_gradient: bool
    """Whether a tensor requires gradients."""
    differentiated: Callable[..., Tensor] | None
    """The plan as a function for autograd; None until such a call has been made with gradients enabled."""


KNOWN_CALLS: dict[object, tuple[CallGuard, ...]] = {}
CACHES.append(KNOWN_CALLS.clear)


def cache_call(
    name: str,
    tensors: Sequence[Tensor | None],
    options: tuple[object, ...],
    plan: CallPlan,
    differentiated: Callable[..., Tensor] | None,
) -> None:
    """Use a prepared launch for later calls with the same shapes, strides, dtypes and numbers.

    `differentiated` is the function for calls that need gradients.
    """
    first_tensor = tensors[0]
    assert first_tensor is not None
    key = name, first_tensor.shape, options
    # Under autocast a guard would not show the target type.
    if not _any_autocast() and are_guards_reliable():
        guards = tuple(guard for guard in KNOWN_CALLS.get(key, ()) if not guard.fits(*tensors))
        if len(guards) < MAX_FORMS:
            requires_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
            KNOWN_CALLS[key] = (*guards, CallGuard(make_guard(tensors), plan.__call__, requires_grad, differentiated))


def make_guard(tensors: Sequence[Tensor | None]) -> Callable[..., bool]:
    """Return a function that tests whether other tensors have the shapes, strides and dtypes of `tensors`.

    It also requires the same global state of PyTorch. A tensor may be None.
    """
    # PyTorch's guards do not support None, nor the same tensor twice.
    first_position = [
        next((p for p, earlier_tensor in enumerate(tensors[:index]) if earlier_tensor is t), None)
        for index, t in enumerate(tensors)
    ]
    positions = [
        index
        for index, (t, first_occurrence) in enumerate(zip(tensors, first_position, strict=True))
        if t is not None and first_occurrence is None
    ]
    check: Callable[..., bool] = _guards(
        *(tensors[position] for position in positions), dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    if len(positions) == len(tensors):
        return check
    repeated = [
        (index, first_occurrence) for index, first_occurrence in enumerate(first_position) if index not in positions
    ]

    def fits(*tensor: Tensor | None) -> bool:
        for position, first_occurrence in repeated:
            if tensor[position] is not (None if first_occurrence is None else tensor[first_occurrence]):
                return False
        return check(*[tensor[position] for position in positions])

    return fits


def are_guards_reliable() -> bool:
    """Return whether the guards of this PyTorch distinguish all that matters; their behaviour is not guaranteed."""
    global _trusted  # noqa: PLW0603 (asked once a process)
    if _trusted is None:
        try:
            _trusted = _guards is not None and _distinguishes_variations()
        except (AttributeError, RuntimeError, TypeError, ValueError):
            _trusted = False
    return _trusted


def _distinguishes_variations() -> bool:
    x = torch.zeros(2, 3)
    fits = make_guard([x])
    variations = [
        x.t(),
        x[:1],
        x.new_zeros(3, 2),
        x.new_zeros(2, 6)[:, ::2],
        x.double(),
        torch._neg_view(x),
        x.to("meta"),
    ]
    variations += [torch.nn.Parameter(x), x.clone().requires_grad_(), None]
    with torch.inference_mode():
        variations.append(torch.zeros(2, 3))
    if not fits(x.clone()) or any(fits(variation) for variation in variations):
        return False
    results = []
    with torch.autocast("cpu", torch.bfloat16):
        results.append(fits(x))

    def transformed(row: Tensor) -> Tensor:
        results.extend([fits(row), fits(x)])
        return row

    torch.vmap(transformed)(torch.zeros(1, 2, 3))
    return not any(results)
