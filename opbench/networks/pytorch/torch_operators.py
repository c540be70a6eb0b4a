"""PyTorch's implementations of operators, used where PyTorch is faster.

An image in nhwc is a permuted view for PyTorch, channels_last, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from opbench.kernels.activated_product import activation_of
from opbench.kernels.operator import Operator
from opbench.kernels.torch_library import torch_activate

PeerCall = Callable[..., tuple[torch.Tensor, ...]]
"""A function from the problem and its inputs to its outputs."""
aten = torch.ops.aten


def to_torch_axes(problem: Operator, array: torch.Tensor) -> torch.Tensor:
    """Return an array with PyTorch's axes: images and filters in nhwc become a view in nchw."""
    return array.permute(0, 3, 1, 2) if array.dim() == 4 and problem.axes.get("layout") == "nhwc" else array


def to_declared_axes(problem: Operator, tensor: torch.Tensor) -> torch.Tensor:
    """Return a PyTorch tensor as a view with the operator's axes; the inverse of `to_torch_axes`."""
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 and problem.axes.get("layout") == "nhwc" else tensor


def compute(problem: Operator, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a problem with PyTorch's implementation; return dense results in the declared dtypes."""
    tensors = [to_torch_axes(problem, array) for array in inputs]
    outputs = [to_declared_axes(problem, tensor) for tensor in PEERS[problem.name](problem, *tensors)]
    declared_outputs = zip(outputs, problem.output_tensors(), strict=True)
    return [tensor.reshape(declared.shape).contiguous() for tensor, declared in declared_outputs]


def _axis(problem: Operator, name: str) -> int:
    return int(problem.axes[name])


def _activated(problem: Operator, out: torch.Tensor) -> tuple[torch.Tensor]:
    torch_activate(out, activation_of(str(problem.axes.get("epilogue", ""))))
    return (out,)


def _linear(problem: Operator, x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = functional.linear(x, weight, *bias)
    return _activated(problem, out)


def _linear_dgrad(
    problem: Operator, dout: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    dx = dout @ weight
    if problem.axes["epilogue"] == "gelu_tanh":
        return (aten.gelu_backward(dx, extra[0], approximate="tanh"),)
    return (torch.where(extra[0] > 0, dx, 0.0) if extra else dx,)


def _linear_wgrad(problem: Operator, x: torch.Tensor, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dweight = (dout.T @ x).float()
    return (dweight, dout.sum(0, dtype=torch.float32)) if problem.axes["bias"] == "yes" else (dweight,)


def _conv2d(
    problem: Operator, image: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    bias, residual = (*extra, None, None)[:2]
    out = functional.conv2d(image, weight, bias, _axis(problem, "stride"), _axis(problem, "padding"))
    return _activated(problem, out if residual is None else out.add_(residual))


def _conv2d_backward(
    problem: Operator, dout: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, mask: tuple[bool, bool, bool]
) -> list[torch.Tensor]:
    sides = [[_axis(problem, name)] * 2 for name in ("stride", "padding")]
    bias = [_axis(problem, "k")] if mask[2] else None
    gradients: list[torch.Tensor] = aten.convolution_backward(
        dout, image, weight, bias, *sides, [1, 1], False, [0, 0], 1, list(mask)
    )
    return gradients


def _empty_in_layout(problem: Operator, like: torch.Tensor, axes: str) -> torch.Tensor:
    """Return an uninitialised tensor with the sizes of these axes, in the problem's memory layout."""
    memory_format = torch.channels_last if problem.axes["layout"] == "nhwc" else torch.contiguous_format
    return like.new_empty([_axis(problem, axis) for axis in axes]).to(memory_format=memory_format)


def _conv2d_dgrad(
    problem: Operator, dout: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    image = _empty_in_layout(problem, dout, "nchw")
    dimage = _conv2d_backward(problem, dout, image, weight, (True, False, False))[0]
    epilogue = str(problem.axes["epilogue"])
    if epilogue.startswith("add"):
        dimage = dimage + extra[0]
    return (torch.where(extra[-1] > 0, dimage, 0.0) if epilogue.endswith("mask") else dimage,)


def _conv2d_wgrad(problem: Operator, image: torch.Tensor, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weight = _empty_in_layout(problem, dout, "kcrs")
    with_bias = problem.axes["bias"] == "yes"
    _, dweight, dbias = _conv2d_backward(problem, dout, image, weight, (False, True, with_bias))
    return (dweight.float(), dbias.float()) if with_bias else (dweight.float(),)


def _window_sizes(problem: Operator) -> tuple[int, int, int]:
    return _axis(problem, "window"), _axis(problem, "stride"), _axis(problem, "padding")


def _maxpool2d(problem: Operator, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (functional.max_pool2d(x, *_window_sizes(problem)),)


def _maxpool2d_backward(
    problem: Operator, x: torch.Tensor, dout: torch.Tensor, *skip: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    sides = [[size] * 2 for size in _window_sizes(problem)]
    _, max_indices = aten.max_pool2d_with_indices(x, *sides)
    dx = aten.max_pool2d_with_indices_backward(dout, x, *sides, [1, 1], False, max_indices)
    if problem.axes["epilogue"] == "mask":
        return (torch.where(x > 0, dx, 0.0),)
    return (dx + skip[0] if skip else dx,)


def _batchnorm2d(problem: Operator, x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale, shift, mean, variance = parameters
    return _activated(problem, functional.batch_norm(x, mean, variance, scale, shift, eps=_epsilon_of(problem)))


def _epsilon_of(problem: Operator) -> float:
    return float(getattr(problem, "epsilon"))  # noqa: B009 (not every Operator declares it)


def _batchnorm2d_train(problem: Operator, x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale, shift, mean, variance, *residual = parameters
    mean, variance = mean.clone(), variance.clone()
    momentum = _axis(problem, "momentum_percent") / 100
    out, batch_mean, rstd = aten.native_batch_norm(
        x, scale, shift, mean, variance, True, momentum, _epsilon_of(problem)
    )
    for image in residual:
        out.add_(image)
    return (*_activated(problem, out), batch_mean, rstd, mean, variance)


def _batchnorm2d_backward(
    problem: Operator, x: torch.Tensor, dout: torch.Tensor, *parameters: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    scale, shift, mean, rstd = parameters
    if problem.axes["epilogue"] == "relu":
        view = (1, -1, 1, 1)
        is_positive = (x.float() - mean.view(view)) * (rstd * scale).view(view) + shift.view(view) > 0
        dout = torch.where(is_positive, dout, 0.0)
    gradients: tuple[torch.Tensor, ...] = aten.native_batch_norm_backward(
        dout, x, scale, None, None, mean, rstd, True, _epsilon_of(problem), [True, True, True]
    )
    return gradients


def _softmax(problem: Operator, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.log_softmax(x, 1) if problem.axes["log"] == "yes" else torch.softmax(x, 1),)


def _softmax_backward(problem: Operator, out: torch.Tensor, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (aten._softmax_backward_data(dout, out, 1, out.dtype),)


def _relu_backward(problem: Operator, out: torch.Tensor, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (aten.threshold_backward(dout, out, 0),)


def _l1_loss(problem: Operator, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = _axis(problem, "n") * _axis(problem, "micro")
    difference = x - target
    return difference.float().abs().sum().reshape(1) / count, difference.sign() / count


PEERS: dict[str, PeerCall] = {
    "linear": _linear,
    "linear_dgrad": _linear_dgrad,
    "linear_wgrad": _linear_wgrad,
    "conv2d": _conv2d,
    "conv2d_dgrad": _conv2d_dgrad,
    "conv2d_wgrad": _conv2d_wgrad,
    "maxpool2d": _maxpool2d,
    "maxpool2d_backward": _maxpool2d_backward,
    "batchnorm2d": _batchnorm2d,
    "batchnorm2d_train": _batchnorm2d_train,
    "batchnorm2d_backward": _batchnorm2d_backward,
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "relu_backward": _relu_backward,
    "l1_loss": _l1_loss,
}
"""PyTorch's implementation by operator."""


def has_peer(problem: Operator) -> bool:
    """Return whether PyTorch can compute the problem.

    PyTorch stores pooling positions in another form and rejects batch statistics of a single pixel.
    """
    if problem.name == "batchnorm2d_train" and _axis(problem, "n") * _axis(problem, "h") * _axis(problem, "w") == 1:
        return False
    return problem.name in PEERS and "positions" not in (*problem.inputs, *problem.outputs)
