"""Elementwise arithmetic and activations by PyTorch.

/// opbench
title    = "torch.add, sub, mul or div(a, b, out=out) with b as a broadcast view, add with relu_, activations"
modules  = ["cupy", "torch"]
requires = ["dtype == 'f32' or (op != 'sigmoid_backward' and op != 'tanh_backward')"]

[supports]
op = [
    "add", "sub", "mul", "div", "add_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu",
    "softplus", "softsign", "hardswish", "hardsigmoid", "hardtanh", "exp", "abs", "swiglu", "geglu", "gelu_backward",
    "gelu_tanh_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "leaky_relu_backward", "elu_backward",
    "selu_backward", "softplus_backward", "hardsigmoid_backward", "hardtanh_backward", "exp_backward", "abs_backward",
    "swiglu_backward", "geglu_backward",
]
broadcast = ["none", "channel", "inner", "scalar", "outer_inner"]
dtype     = ["f32", "bf16"]
///

One general kernel, which takes vectors where neither array is broadcast. PyTorch has no single kernel for some modes,
such as swiglu: they are sequences of kernels, each of which reads and writes whole arrays. Not supported are
hardswish_backward, whose values at -3 and 3 depend on PyTorch's version, and softsign_backward. PyTorch computes the
gradients of sigmoid and tanh from the stored result, whose rounding to bf16 is too coarse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbench import torch_launch, torch_tensors

SELU = (1.6732632423543772, 1.0507009873554805, 1)
"""alpha, scale and input scale of the elu that is a selu."""


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    tensors = torch_tensors(problem, buffers)
    return torch_launch(_activation(problem.op, **tensors) if problem.function else _arithmetic(problem, **tensors))


def _arithmetic(problem: Any, a: Any, b: Any, out: Any) -> Callable[[], object]:
    import torch

    if problem.broadcast == "channel":
        b = b.view(-1, 1)
    if problem.broadcast == "outer_inner":
        b = b[:, None]
    if problem.op == "add_relu":
        return lambda: torch.add(a, b, out=out).relu_()
    function = getattr(torch, problem.op)
    return lambda: function(a, b, out=out)


def _activation(op: str, a: Any, out: Any, b: Any = None, dout: Any = None, db: Any = None) -> Callable[[], object]:
    """Return the kernels of an activation or gradient; an output may first hold an intermediate result."""
    import torch

    aten = torch.ops.aten

    def gate(function: Any) -> None:
        function(a, out=out)
        torch.mul(out, b, out=out)

    def gate_backward(function: Any, backward: Any) -> None:
        torch.mul(dout, b, out=db)
        backward(db, a, grad_input=out)
        function(a, out=db)
        torch.mul(db, dout, out=db)

    def softsign() -> None:
        torch.abs(a, out=out)
        torch.add(out, 1, out=out)
        torch.div(a, out, out=out)

    def times_b(function: Any) -> None:
        function(a, out=out)
        torch.mul(out, b, out=out)

    def through_result(function: Any, backward: Any) -> None:
        function(a, out=out)
        backward(b, out, grad_input=out)

    calls: dict[str, Callable[[], object]] = {
        "gelu": lambda: aten.gelu.out(a, out=out),
        "gelu_tanh": lambda: aten.gelu.out(a, approximate="tanh", out=out),
        "silu": lambda: aten.silu.out(a, out=out),
        "sigmoid": lambda: torch.sigmoid(a, out=out),
        "tanh": lambda: torch.tanh(a, out=out),
        "leaky_relu": lambda: aten.leaky_relu.out(a, 0.01, out=out),
        "elu": lambda: aten.elu.out(a, out=out),
        "selu": lambda: aten.elu.out(a, *SELU, out=out),
        "softplus": lambda: aten.softplus.out(a, out=out),
        "softsign": softsign,
        "hardswish": lambda: aten.hardswish.out(a, out=out),
        "hardsigmoid": lambda: aten.hardsigmoid.out(a, out=out),
        "hardtanh": lambda: aten.hardtanh.out(a, out=out),
        "exp": lambda: torch.exp(a, out=out),
        "abs": lambda: torch.abs(a, out=out),
        "swiglu": lambda: gate(aten.silu.out),
        "geglu": lambda: gate(aten.gelu.out),
        "gelu_backward": lambda: aten.gelu_backward.grad_input(b, a, grad_input=out),
        "gelu_tanh_backward": lambda: aten.gelu_backward.grad_input(b, a, approximate="tanh", grad_input=out),
        "silu_backward": lambda: aten.silu_backward.grad_input(b, a, grad_input=out),
        "sigmoid_backward": lambda: through_result(torch.sigmoid, aten.sigmoid_backward.grad_input),
        "tanh_backward": lambda: through_result(torch.tanh, aten.tanh_backward.grad_input),
        "leaky_relu_backward": lambda: aten.leaky_relu_backward.grad_input(b, a, 0.01, False, grad_input=out),
        "elu_backward": lambda: aten.elu_backward.grad_input(b, 1, 1, 1, False, a, grad_input=out),
        "selu_backward": lambda: aten.elu_backward.grad_input(b, *SELU, False, a, grad_input=out),
        "softplus_backward": lambda: aten.softplus_backward.grad_input(b, a, 1, 20, grad_input=out),
        "hardsigmoid_backward": lambda: aten.hardsigmoid_backward.grad_input(b, a, grad_input=out),
        "hardtanh_backward": lambda: aten.hardtanh_backward.grad_input(b, a, -1, 1, grad_input=out),
        "exp_backward": lambda: times_b(torch.exp),
        "abs_backward": lambda: times_b(torch.sign),
        "swiglu_backward": lambda: gate_backward(aten.silu.out, aten.silu_backward.grad_input),
        "geglu_backward": lambda: gate_backward(aten.gelu.out, aten.gelu_backward.grad_input),
    }
    return calls[op]
