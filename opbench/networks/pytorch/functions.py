"""Functions for models: layers with PyTorch's arguments, also under autocast, and other operators by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.networks.pytorch.choice import settings
from opbench.networks.pytorch.devices import DTYPE_NAMES
from opbench.networks.pytorch.layers import call
from opbench.networks.pytorch.operator_calls import EPSILON, one_number
from opbench.networks.pytorch.primitives import compute

if TYPE_CHECKING:
    from torch import Tensor

AUTOCAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


_any_autocast = torch._C._is_any_autocast_enabled


def _is_autocast_active() -> bool:
    """Return whether autocast may be active; only code that is being compiled needs the exact check."""
    return bool(torch.compiler.is_compiling() or _any_autocast())


def _to_autocast_type(*tensors: Tensor | None) -> Sequence[Tensor | None]:
    """Return the tensors in autocast's dtype if autocast is active, as PyTorch does for matrix products."""
    first_tensor = tensors[0]
    if not _is_autocast_active() or first_tensor is None or not torch.is_autocast_enabled(first_tensor.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first_tensor.device.type)
    return [t.to(dtype) if t is not None and t.dtype in AUTOCAST_DTYPES else t for t in tensors]


def _to_float32(*tensors: Tensor) -> Sequence[Tensor]:
    """Return the tensors in float32 if autocast is active, as PyTorch does for losses and softmax."""
    if not _is_autocast_active() or not torch.is_autocast_enabled(tensors[0].device.type):
        return tensors
    return [t.float() if t.dtype in AUTOCAST_DTYPES else t for t in tensors]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Return x @ weight.T + bias, then max(., 0) with `relu`, as `torch.nn.functional.linear` does.

    x is [..., k], weight [n, k], bias [n].
    """
    return call("linear", (x, weight, bias), (relu,), _to_autocast_type)


def conv2d(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    *,
    relu: bool = False,
) -> Tensor:
    """Return a convolution as `torch.nn.functional.conv2d` does, for one group and no dilation.

    A channels_last image is not copied.
    """
    sides = one_number("conv2d", "stride", stride), one_number("conv2d", "padding", padding)
    return call("conv2d", (image, weight, bias), (*sides, relu), _to_autocast_type)


def maxpool2d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Return the result of `torch.nn.functional.max_pool2d`, except that a NaN loses every comparison."""
    window = one_number("maxpool2d", "kernel_size", kernel_size)
    window_stride = window if stride is None else one_number("maxpool2d", "stride", stride)
    return call("maxpool2d", (x,), (window, window_stride, one_number("maxpool2d", "padding", padding)))


def batchnorm2d(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = EPSILON,
    *,
    relu: bool = False,
) -> Tensor:
    """Return the result of `torch.nn.functional.batch_norm`; in training it updates the running statistics in place.

    PyTorch's operator runs the call if it needs gradients with running statistics, or if those are float32 and the
    image is bf16.
    """
    if eps != EPSILON:
        raise UsageError(
            f"opbench.torch.batchnorm2d: eps={eps} is not supported; use eps={EPSILON}",
            kind="not-allowed",
            subject="eps",
            value=eps,
            allowed=EPSILON,
        )
    if training:
        return call(
            "batchnorm2d_train", (x, weight, bias, running_mean, running_var), (_momentum_percent(momentum), relu)
        )
    if running_mean is None or running_var is None:
        raise UsageError(
            "opbench.torch.batchnorm2d: training=False needs running statistics; pass running_mean and running_var, or "
            "training=True",
            kind="missing-argument",
            subject="running_mean" if running_mean is None else "running_var",
        )
    if _by_pytorch(x, weight, bias, running_mean):
        out = functional.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        return functional.relu(out) if relu else out
    return call("batchnorm2d", (x, weight, bias, running_mean, running_var), (relu,))


def _momentum_percent(momentum: float) -> int:
    percent = round(100 * momentum)
    if abs(percent - 100 * momentum) > 1e-9:
        raise UsageError(
            f"opbench.torch.batchnorm2d: momentum={momentum} is not supported; use whole hundredths, such as "
            "momentum=0.1",
            kind="not-allowed",
            subject="momentum",
            value=momentum,
        )
    return percent


def _by_pytorch(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor) -> bool:
    """Return whether PyTorch must compute a batch norm, because it has gradients or mixed dtypes."""
    dtype = x.dtype
    if mean.dtype != dtype or (weight is not None and weight.dtype != dtype):
        return True
    if not torch.is_grad_enabled():
        return False
    return any(t is not None and t.requires_grad for t in (x, weight, bias))


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the result of `torch.nn.functional.softmax`; an axis other than the last is moved there and back."""
    if dim == -1 or dim == x.dim() - 1:
        return call("softmax", (x,), (), _to_float32)
    return call("softmax", (x.movedim(dim, -1),), (), _to_float32).movedim(-1, dim)


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the result of `torch.nn.functional.l1_loss`, for the reductions mean and sum."""
    if reduction not in ("mean", "sum"):
        raise UsageError(
            f'opbench.torch.l1_loss: reduction={reduction!r} is not supported; use reduction="mean" or reduction="sum"',
            kind="not-allowed",
            subject="reduction",
            value=reduction,
            allowed=("mean", "sum"),
        )
    loss = call("l1_loss", (x, target), (), _to_float32)
    if loss.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        loss = loss.to(x.dtype)
    return loss * x.numel() if reduction == "sum" else loss


# Operators by name ----------------------------------------------------------------------------------------------------


def operator(name: str) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return an operator of the catalog, also one of the user, as a function of tensors in its physical order.

    Arrays of other libraries come in without a copy by DLPack, and a result goes out the same way:
    cupy.from_dlpack(out). The function takes the inputs in the operator's order or by name, and as keywords the modes,
    strides and so on that the shapes do not determine. It calls `torch.ops.opbench.compute`, and is differentiable if
    the operator has a gradient rule.
    """
    operator_class = settings().catalog.operator(name)

    def apply(*tensors: Tensor, **keywords: Tensor | int | str) -> Tensor | tuple[Tensor, ...]:
        modes = {key: value for key, value in keywords.items() if isinstance(value, (int, str))}
        names = _input_names(operator_class, modes)
        arrays = dict(zip(names, tensors, strict=False)) | {k: v for k, v in keywords.items() if k not in modes}
        tensor_by_name = {k: a if isinstance(a, torch.Tensor) else torch.from_dlpack(a) for k, a in arrays.items()}
        if missing := [tensor for tensor in names if tensor not in tensor_by_name]:
            raise UsageError(
                f"opbench.torch.operator('{name}'): tensor '{missing[0]}' is missing; pass all of {', '.join(names)} "
                "as keyword arguments",
                kind="missing-argument",
                subject=missing[0],
                allowed=tuple(names),
            )
        inputs = [tensor_by_name[tensor] for tensor in names]
        axes = _axes_of_call(operator_class, modes, dict(zip(names, inputs, strict=True)))
        text = str(operator_class.from_axes(axes))
        outputs = compute(name, text, inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    apply.__name__, apply.__doc__ = name, operator_class.__doc__
    return apply


def _operator_with_modes(operator_class: type[Operator], modes: Mapping[str, object]) -> Operator:
    """Return an operator with only its modes set; the axes of its tensors depend on nothing else."""
    draft = object.__new__(operator_class)
    for mode, default in operator_class.modes().items():
        object.__setattr__(draft, mode, modes.get(mode, default))
    for key, value in modes.items():
        object.__setattr__(draft, key, value)
    return draft


def _input_names(operator_class: type[Operator], modes: Mapping[str, object]) -> list[str]:
    return list(_operator_with_modes(operator_class, modes).inputs)


def _axes_of_call(
    operator_class: type[Operator], modes: Mapping[str, int | str], tensors: Mapping[str, Tensor]
) -> dict[str, int | str]:
    """Return the axes of a problem, from the shapes and the dtype of its inputs."""
    axes: dict[str, int | str] = dict(modes)
    if "dtype" in operator_class.choices and "dtype" not in axes:
        first_tensor = next(iter(tensors.values()))
        axes["dtype"] = DTYPE_NAMES.get(first_tensor.dtype, str(first_tensor.dtype))
    for name, declared in _operator_with_modes(operator_class, modes).inputs.items():
        sizes, axis_names = tensors[name].shape, declared.split()
        if len(sizes) != len(axis_names):
            raise UsageError(
                f"{operator_class.name}: tensor '{name}' of shape {list(sizes)} is not allowed; pass a tensor with the "
                f"axes '{declared}'",
                kind="other-shape",
                subject=name,
                value=tuple(sizes),
                allowed=declared,
            )
        for axis, size in zip(axis_names, sizes, strict=True):
            if axis in operator_class.__dataclass_fields__ and axes.setdefault(axis, int(size)) != int(size):
                raise UsageError(
                    f"{operator_class.name}: tensor '{name}' of shape {list(sizes)} has {axis}={size}, but another "
                    f"tensor has {axis}={axes[axis]}; pass tensors with the same {axis}",
                    kind="other-shape",
                    subject=name,
                    value=int(size),
                    allowed=axes[axis],
                )
    return axes
