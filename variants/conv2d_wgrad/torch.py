"""cuDNN through PyTorch: what autograd calls for the filters and the bias of a convolution.

/// opbench
title     = "aten::convolution_backward of filters and bias by cudnn.benchmark's choice; float32 without TF32"
precision = "f32"
modules   = ["cupy", "torch"]
supports  = { layout = ["nchw", "nhwc"], bias = ["no", "yes"] }
///

The copy of its result into dweight is not timed. Some of cuDNN's algorithms add with float atomics, so that bits
vary from run to run. Of bf16 PyTorch rounds the filters' gradient to bf16, which is another problem: not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALLOW_TF32 = False


def bind(problem: Any, buffers: dict[str, Any], **config: int) -> Callable[[], None]:
    """Return a callable that enqueues the work on CuPy's current stream, writing into the buffers of the outputs."""
    import cupy
    import torch

    tensors = {t.name: _tensor(buffers[t.name], t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())}

    def seen(name: str) -> Any:
        """In the order nchw, as PyTorch has it; nhwc is its channels_last."""
        return tensors[name].permute(0, 3, 1, 2) if problem.layout == "nhwc" else tensors[name]

    image, dout, dweight = seen("image"), seen("dout"), seen("dweight")
    dbias = tensors["dbias"] if problem.bias == "yes" else None
    weight = torch.empty_like(dweight)  # of which only the shape is read
    sizes = [problem.k] if dbias is not None else None
    geometry = ([problem.stride] * 2, [problem.padding] * 2, [1, 1], False, [0, 0], 1)
    cudnn, backward = torch.backends.cudnn, torch.ops.aten.convolution_backward

    returned: list[Any] = []

    def on_stream() -> Any:
        handle = cupy.cuda.get_current_stream().ptr
        # handle 0 is the default stream, for which ExternalStream would make a new one of its own
        return torch.cuda.stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())

    def run() -> None:
        with torch.no_grad(), on_stream():
            cudnn.allow_tf32, cudnn.benchmark = ALLOW_TF32, True
            _, filters, sums = backward(dout, image, weight, sizes, *geometry, [False, True, dbias is not None])
            returned[:] = [filters, sums]

    def collect() -> None:
        with torch.no_grad(), on_stream():
            dweight.copy_(returned[0])
            if dbias is not None:
                dbias.copy_(returned[1])

    run.collect = collect  # type: ignore[attr-defined]
    run()  # tries algorithms and takes workspaces outside of any capture
    return run


def _tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a tensor over the same memory; bf16 travels as its 16 bits."""
    import cupy
    import torch

    if dtype == "bf16":
        return torch.from_dlpack(array.view(cupy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
