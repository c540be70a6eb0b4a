"""Convert calls with PyTorch's arguments to problems of opbench.

Each function takes an operator's tensors and numbers as `opbench.torch` does. It works on fake tensors too,
which have a form but no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from opbench.errors import UsageError
from opbench.networks.pytorch.devices import DTYPE_NAMES

if TYPE_CHECKING:
    from torch import Tensor

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
EPSILON = 1e-5
"""The term that opbench's batch norms add to a variance."""


@dataclass(frozen=True)
class OperatorCall:
    """One call as a problem of opbench, with the memory formats of its tensors and results."""

    operator: str
    names: tuple[str, ...]
    """The operator's names for the tensors of the call, in order."""
    axes: dict[str, int | str]
    formats: tuple[torch.memory_format, ...]
    """The required memory format of each tensor."""
    outputs: tuple[tuple[tuple[int, ...], torch.dtype, torch.memory_format], ...]
    fill: tuple[float, ...] = ()
    """The constant for each tensor that is None, repeated `channels` times."""
    channels: int = 0

    @property
    def text(self) -> str:
        """Return the problem as text; a symbolic size of a trace becomes a number."""
        values = {name: value if isinstance(value, str) else int(value) for name, value in self.axes.items()}
        return f"({','.join(f'{name}={value}' for name, value in values.items())})"


def _dtype(operator: str, tensor: Tensor, supported: Sequence[str]) -> str:
    """Return opbench's name of a tensor's dtype; raise UsageError if the operator does not support the dtype."""
    name = DTYPE_NAMES.get(tensor.dtype)
    if name not in supported:
        allowed = ", ".join(supported)
        raise UsageError(
            f"opbench.torch.{operator}: {tensor.dtype} is not supported; use {allowed}, for example "
            "x.to(torch.bfloat16)",
            kind="other-dtype",
            subject=operator,
            value=str(tensor.dtype),
        )
    return str(name)


def _require_same_type(operator: str, tensors: Sequence[Tensor | None]) -> None:
    """Raise UsageError for tensors of different types or devices."""
    present = [t for t in tensors if t is not None]
    for tensor in present[1:]:
        if tensor.dtype != present[0].dtype or tensor.device != present[0].device:
            raise UsageError(
                f"opbench.torch.{operator}: {present[0].dtype} on {present[0].device} and {tensor.dtype} on "
                f"{tensor.device}; convert all tensors to one dtype and device, for example y.to(x)",
                kind="mixed-tensors",
                subject=operator,
            )


def is_channels_last(image: Tensor, weight: Tensor | None = None) -> bool:
    """Return whether a call is channels_last: by the image's memory format or, if that is ambiguous, the weight's."""
    is_contiguous, is_last = image.is_contiguous(), image.is_contiguous(memory_format=CHANNELS_LAST)
    if is_contiguous != is_last or weight is None:
        return bool(is_last and not is_contiguous)
    return bool(weight.is_contiguous(memory_format=CHANNELS_LAST) and not weight.is_contiguous())


def _image_shape(operator: str, image: Tensor, label: str = "image") -> tuple[int, int, int, int]:
    if image.dim() != 4:
        raise UsageError(
            f"opbench.torch.{operator}: {label} of shape {list(image.shape)} is not allowed; pass a tensor of four "
            "axes (n, c, h, w), for example x.unsqueeze(0) for one image",
            kind="not-an-image",
            subject=operator,
            value=tuple(image.shape),
        )
    n, c, h, w = image.shape
    return n, c, h, w


def _per_channel(operator: str, channels: int, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != (channels,):
            raise UsageError(
                f"opbench.torch.{operator}: {name} of shape {list(tensor.shape)} is not allowed; pass one value for "
                f"each channel, a tensor of shape [{channels}]",
                kind="other-shape",
                subject=operator,
                value=tuple(tensor.shape),
                allowed=(channels,),
            )


def one_number(operator: str, argument: str, value: int | Sequence[int]) -> int:
    """Return the common value of one number per side; raise UsageError if the numbers differ."""
    if isinstance(value, int):
        return value
    distinct = set(value)
    if len(distinct) != 1:
        raise UsageError(
            f"opbench.torch.{operator}: {argument}={value} is not allowed; "
            f"use one number for all sides, such as {argument}=1",
            kind="unsupported-option",
            subject=operator,
            value=(argument, value),
        )
    return int(distinct.pop())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> OperatorCall:
    """Return the problem of a linear layer: x [..., k], weight [n, k], bias [n]."""
    _require_same_type("linear", (x, weight, bias))
    dtype = _dtype("linear", x, ("f32", "bf16", "f16"))
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1]:
        raise UsageError(
            f"opbench.torch.linear: x of shape {list(x.shape)} does not fit weight of shape {list(weight.shape)}; pass "
            "x of shape [..., k] and weight of shape [n, k]",
            kind="other-shape",
            subject="linear",
            value=tuple(x.shape),
            allowed=tuple(weight.shape),
        )
    n, k = weight.shape
    _per_channel("linear", n, bias=bias)
    rows = x.numel() // k if k else 0
    axes = {"m": rows, "n": n, "k": k, "epilogue": "bias_relu" if relu else "bias", "dtype": dtype}
    outputs = (((*x.shape[:-1], n), x.dtype, CONTIGUOUS),)
    return OperatorCall("linear", ("x", "weight", "bias"), axes, (CONTIGUOUS,) * 3, outputs, (0.0,), n)


def conv2d(image: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, relu: bool) -> OperatorCall:
    """Return the problem of a convolution: image [n, c, h, w], weight [k, c, r, s], bias [k]."""
    _require_same_type("conv2d", (image, weight, bias))
    dtype = _dtype("conv2d", image, ("f32", "bf16"))
    n, c, h, w = _image_shape("conv2d", image)
    k, filter_channels, r, s = _image_shape("conv2d", weight, "weight")
    if filter_channels != c:
        raise UsageError(
            f"opbench.torch.conv2d: the image has {c} channels and the filters have {filter_channels}, and "
            "opbench.torch has no grouped convolutions; pass filters of shape "
            f"[k, {c}, r, s], or use torch.nn.functional.conv2d",
            kind="grouped",
            subject="conv2d",
            value=c,
            allowed=filter_channels,
        )
    _per_channel("conv2d", k, bias=bias)
    is_last = is_channels_last(image, weight)
    p, q = (h + 2 * padding - r) // stride + 1, (w + 2 * padding - s) // stride + 1
    if p < 1 or q < 1:
        raise UsageError(
            f"opbench.torch.conv2d: a filter of {r}x{s} does not fit into an image of {h}x{w} with padding "
            f"{padding}; use a smaller filter or more padding",
            kind="filter-too-large",
            subject="conv2d",
            value=(r, s),
            allowed=(h, w),
        )
    axes: dict[str, int | str] = dict(zip("nchwkrs", (n, c, h, w, k, r, s), strict=True))
    epilogue = "bias_relu" if relu else "bias" if bias is not None else "none"
    axes |= {"stride": stride, "padding": padding, "layout": "nhwc" if is_last else "nchw", "epilogue": epilogue}
    names = ("image", "weight", "bias") if epilogue != "none" else ("image", "weight")
    memory_format = CHANNELS_LAST if is_last else CONTIGUOUS
    outputs = (((n, k, p, q), image.dtype, memory_format),)
    return OperatorCall(
        "conv2d", names, {**axes, "dtype": dtype}, (memory_format, memory_format, CONTIGUOUS), outputs, (0.0,), k
    )


def maxpool2d(x: Tensor, window: int, stride: int, padding: int) -> OperatorCall:
    """Return the problem of a max pooling: x [n, c, h, w]."""
    dtype = _dtype("maxpool2d", x, ("f32", "bf16"))
    n, c, h, w = _image_shape("maxpool2d", x, "x")
    p, q = (h + 2 * padding - window) // stride + 1, (w + 2 * padding - window) // stride + 1
    is_last = is_channels_last(x)
    axes: dict[str, int | str] = {"n": n, "c": c, "h": h, "w": w, "window": window, "stride": stride}
    axes |= {"padding": padding, "layout": "nhwc" if is_last else "nchw", "dtype": dtype}
    memory_format = CHANNELS_LAST if is_last else CONTIGUOUS
    return OperatorCall("maxpool2d", ("x",), axes, (memory_format,), (((n, c, p, q), x.dtype, memory_format),))


def batchnorm2d(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, mean: Tensor | None, variance: Tensor | None, relu: bool
) -> OperatorCall:
    """Return the problem of a batch norm with running statistics: x [n, c, h, w], the others [c], all of one type."""
    _require_same_type("batchnorm2d", (x, scale, shift, mean, variance))
    axes, memory_format = _batchnorm_axes(x, relu)
    _per_channel("batchnorm2d", x.shape[1], weight=scale, bias=shift, running_mean=mean, running_var=variance)
    names = ("x", "scale", "shift", "mean", "variance")
    outputs = ((tuple(x.shape), x.dtype, memory_format),)
    fill = (1.0, 0.0, 0.0, 1.0)
    return OperatorCall("batchnorm2d", names, axes, (memory_format, *(CONTIGUOUS,) * 4), outputs, fill, x.shape[1])


def batchnorm2d_train(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    momentum: int,
    relu: bool,
) -> OperatorCall:
    """Return the problem of a batch norm with the batch's statistics: x [n, c, h, w], the others [c] and float32.

    The results include the new running statistics.
    """
    for name, tensor in {"weight": scale, "bias": shift, "running_mean": mean, "running_var": variance}.items():
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device != x.device):
            raise UsageError(
                f"opbench.torch.batchnorm2d: {name} is {tensor.dtype} on {tensor.device}, but training needs "
                f"torch.float32 on {x.device} for images of any dtype; convert the tensor: "
                f"{name}.to({str(x.device)!r}, torch.float32)",
                kind="other-dtype",
                subject=name,
                value=str(tensor.dtype),
                allowed="torch.float32",
            )
    axes, memory_format = _batchnorm_axes(x, relu)
    c = x.shape[1]
    _per_channel("batchnorm2d", c, weight=scale, bias=shift, running_mean=mean, running_var=variance)
    names = ("x", "scale", "shift", "running_mean", "running_variance")
    outputs = ((tuple(x.shape), x.dtype, memory_format), *(((c,), torch.float32, CONTIGUOUS),) * 4)
    axes["momentum_percent"] = momentum
    fill = (1.0, 0.0, 0.0, 1.0)
    return OperatorCall("batchnorm2d_train", names, axes, (memory_format, *(CONTIGUOUS,) * 4), outputs, fill, c)


def _batchnorm_axes(x: Tensor, relu: bool) -> tuple[dict[str, int | str], torch.memory_format]:
    dtype = _dtype("batchnorm2d", x, ("f32", "bf16"))
    n, c, h, w = _image_shape("batchnorm2d", x, "x")
    is_last = is_channels_last(x)
    axes: dict[str, int | str] = {"n": n, "c": c, "h": h, "w": w, "layout": "nhwc" if is_last else "nchw"}
    axes |= {"dtype": dtype, "epilogue": "relu" if relu else "none"}
    return axes, CHANNELS_LAST if is_last else CONTIGUOUS


def softmax(x: Tensor) -> OperatorCall:
    """Return the problem of a softmax over the last axis: x [..., cols]."""
    dtype = _dtype("softmax", x, ("f32", "bf16"))
    if not x.dim():
        raise UsageError(
            "opbench.torch.softmax: x has no axis; pass a tensor of shape [..., cols], for example x.reshape(1)",
            kind="other-shape",
            subject="x",
            value=(),
        )
    cols = x.shape[-1]
    rows = x.numel() // cols if cols else 0
    axes: dict[str, int | str] = {"rows": rows, "cols": cols, "dtype": dtype}
    return OperatorCall("softmax", ("x",), axes, (CONTIGUOUS,), ((tuple(x.shape), x.dtype, CONTIGUOUS),))


def l1_loss(x: Tensor, target: Tensor) -> OperatorCall:
    """Return the problem of an L1 loss: x and target of one shape; the results are the loss and x's gradient."""
    _require_same_type("l1_loss", (x, target))
    dtype = _dtype("l1_loss", x, ("f32", "bf16"))
    if x.shape != target.shape:
        raise UsageError(
            f"opbench.torch.l1_loss: x has shape {list(x.shape)} and target has shape {list(target.shape)}; pass two "
            "tensors of the same shape",
            kind="other-shape",
            subject="l1_loss",
            value=tuple(x.shape),
            allowed=tuple(target.shape),
        )
    is_last = is_channels_last(x, target) if x.dim() == 4 else False
    memory_format = CHANNELS_LAST if is_last else CONTIGUOUS
    outputs = (((), torch.float32, CONTIGUOUS), (tuple(x.shape), x.dtype, memory_format))
    return OperatorCall(
        "l1_loss", ("x", "target"), {"n": x.numel(), "dtype": dtype}, (memory_format, memory_format), outputs
    )
