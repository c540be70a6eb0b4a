"""PyTorch in library variants: tensors that share a case's buffers, and launches on CuPy's current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opbench.kernels.operator import Operator

if TYPE_CHECKING:
    import torch


FLOAT8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
"""PyTorch's name of each float of 8 bits."""


def torch_tensor(array: Any, dtype: str) -> torch.Tensor:
    """Return a PyTorch tensor over the memory of a CuPy or NumPy array whose elements have the type `dtype`.

    `dtype` is a name of opbench, such as "f32". An array of "bf16" has 16-bit integers, and one of "e4m3" or "e5m2"
    8-bit ones, because CuPy has no such types.
    """
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    if dtype in FLOAT8:
        return torch.from_dlpack(array).view(getattr(torch, FLOAT8[dtype]))
    return torch.from_dlpack(array)


def torch_tensors(problem: Operator, buffers: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a PyTorch tensor for each input and output of a problem, by name; it shares the buffer's memory.

    `buffers` are the arrays that a library variant's `bind` takes.
    """
    tensors = (*problem.input_tensors(), *problem.output_tensors())
    return {tensor.name: torch_tensor(buffers[tensor.name], tensor.dtype) for tensor in tensors}


def nchw_view(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a view of an image or filter tensor with its axes in the order nchw, which PyTorch's functions take.

    `layout` is the order in memory, "nchw" or "nhwc"; PyTorch calls a view of nhwc `channels_last`.
    """
    return tensor.permute(0, 3, 1, 2) if layout == "nhwc" else tensor


def torch_activate(tensor: torch.Tensor, activation: str) -> None:
    """Apply the activation of an epilogue, such as "hardswish", to a tensor in place; nothing for an empty name."""
    import torch

    if activation == "gelu_tanh":
        tensor.copy_(torch.nn.functional.gelu(tensor, approximate="tanh"))
    elif activation:
        getattr(torch.nn.functional, activation)(tensor, inplace=True)


def torch_launch(run: Callable[[], Any], outputs: Sequence[torch.Tensor] = ()) -> Callable[[], None]:
    """Return a launch that calls `run` with CuPy's current stream as PyTorch's, and without recording gradients.

    `outputs` are the tensors that PyTorch cannot write into. `run` returns one new tensor for each of them, and the
    launch's function `collect` copies those into `outputs`. Users of PyTorch need no such copy, so it
    is not timed.
    """
    import cupy
    import torch

    returned: list[torch.Tensor] = []

    def cupy_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # Handle 0 is the default stream; ExternalStream would make a new stream for it.
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def launch() -> None:
        with torch.no_grad(), cupy_stream():
            results = run()
            if outputs:
                returned[:] = results

    def collect() -> None:
        with torch.no_grad(), cupy_stream():
            for output, result in zip(outputs, returned, strict=True):
                output.copy_(result.view_as(output))

    if outputs:
        launch.collect = collect  # type: ignore[attr-defined]
    return launch
