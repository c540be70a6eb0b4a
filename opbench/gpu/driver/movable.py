"""Launches that take addresses and a stream in each call, for memory that another library allocates.

Binding a launch takes microseconds and fixes its addresses. Here all kernels share one address argument per tensor, so
that one bound launch works on any memory. Setting an address takes a tenth of a microsecond; in addition, tensor maps
of Hopper kernels are updated if their tensor moved.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_uint64, c_void_p
from typing import TYPE_CHECKING

from opbench.errors import LaunchError
from opbench.gpu.driver.driver import INVALID_CONTEXT
from opbench.gpu.driver.memory import MovableArray
from opbench.gpu.driver.program import CudaProgram, PreparedCall
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.tensors import DTYPES, Tensor

if TYPE_CHECKING:
    from opbench.gpu.driver.device import Device


class MovableLaunch:
    """The launches of a case; each call passes the addresses of the tensors, in their order."""

    def __init__(
        self,
        device: Device,
        program: CudaProgram,
        launches: Sequence[KernelLaunch],
        tensors: Sequence[Tensor],
        addresses: Mapping[str, int],
    ) -> None:
        """Bind the launches to the first `addresses`; raise LaunchError for launches that need fixed addresses."""
        for launch in launches:
            if launch.textures:
                raise LaunchError(
                    f"{launch.kernel}: the kernel's textures belong to one buffer, so the kernel cannot run on "
                    "arrays at other addresses; choose a variant without textures",
                    kind="fixed-address",
                    subject=launch.kernel,
                )
        self._device = device
        lock = threading.Lock()
        self._acquire, self._release = lock.acquire, lock.release
        self._addresses = bytearray(8 * max(1, len(tensors)))
        self._pack_addresses = struct.Struct(f"{len(tensors)}Q").pack_into
        self._pack_addresses(self._addresses, 0, *(addresses[tensor.name] for tensor in tensors))
        arrays = [
            MovableArray(
                device,
                tensor.name,
                tensor.shape,
                DTYPES[tensor.dtype],
                c_uint64.from_buffer(self._addresses, 8 * index),
            )
            for index, tensor in enumerate(tensors)
        ]
        self._stream = c_void_p(0)
        steps = program.steps(launches, {array.name: array for array in arrays}, self._stream, extended=True)
        self._configs = [step.arguments[0].contents for step in steps if hasattr(step.arguments[0], "contents")]
        self._steps: Sequence[PreparedCall] = steps
        self._calls: list[tuple[Callable[..., int], tuple[object, ...]]] = [
            (device.driver.without_conversion(step.call.__name__), step.arguments) for step in steps
        ]
        self._last_stream = 0
        self._arrays_with_maps = [array for array in arrays if array.maps]

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Enqueue the launches on a stream, given by its driver handle.

        The GPU of the launches must be the calling thread's current device.
        """
        self._acquire()  # The driver reads the arguments during each call.
        try:  # `try` costs half as much as `with`.
            self._pack_addresses(self._addresses, 0, *addresses)
            if self._arrays_with_maps:
                for array in self._arrays_with_maps:
                    array.move_maps()
            if stream != self._last_stream:
                self._last_stream = self._stream.value = stream
                for config in self._configs:
                    config.stream = stream
            for call, arguments in self._calls:
                if code := call(*arguments):
                    self._retry_with_context(code, arguments)
        finally:
            self._release()

    def _retry_with_context(self, code: int, arguments: tuple[object, ...]) -> None:
        """Set the CUDA context and call again if the thread had none; otherwise raise the error."""
        driver = self._device.driver
        step = next(step for step in self._steps if step.arguments is arguments)
        if code == INVALID_CONTEXT:
            driver.call("cuCtxSetCurrent", self._device.context)
            code = step.call(*step.arguments)
        if code:
            raise driver.error(code, "launch", step.kernel)
