"""cuDNN through PyTorch: what autograd calls for the image of a convolution.

/// opbench
title     = "aten::convolution_backward of the image by cudnn.benchmark's choice"
precision = "f32"
modules   = ["cupy", "torch"]
supports.layout   = ["nchw", "nhwc"]
supports.epilogue = ["none", "add", "mask"]
supports.dtype    = ["f32", "bf16"]
///

It returns a new tensor; its copy into dimage is not timed, as PyTorch would not make it. Epilogues follow as
operations of their own.
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

    dout, weight, dimage = seen("dout"), seen("weight"), seen("dimage")
    other = seen({"add": "skip", "mask": "out"}[problem.epilogue]) if problem.epilogue != "none" else None
    image = torch.empty_like(dimage)  # of which only the shape is read
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
            found, _, _ = backward(dout, image, weight, None, *geometry, [True, False, False])
            if problem.epilogue == "add":
                torch.add(found, other, out=dimage)
            elif problem.epilogue == "mask":
                torch.ops.aten.threshold_backward.grad_input(found, other, 0, grad_input=dimage)
            returned[:] = [found]

    def collect() -> None:
        with torch.no_grad(), on_stream():
            if problem.epilogue == "none":
                dimage.copy_(returned[0])

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
