"""The `cuda` backend: NVRTC compiles, the CUDA driver launches, events measure; library variants also use CuPy."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from opbench.backend.base import Buffer
from opbench.backend.environment import Environment
from opbench.backend.findings import Finding
from opbench.gpu.compile import nvrtc
from opbench.gpu.driver.clock import CudaClock
from opbench.gpu.driver.collective import NcclGroup, find_nccl
from opbench.gpu.driver.device import ECC_ENABLED, Device, device_key, require_gpu
from opbench.gpu.driver.driver import why_missing
from opbench.gpu.driver.graphs import CudaGraph, GraphStep
from opbench.gpu.driver.memory import CudaBuffer, DeviceArray
from opbench.gpu.driver.movable import MovableLaunch
from opbench.gpu.driver.nvml import Nvml
from opbench.gpu.driver.program import CudaProgram
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.capability import missing_capability
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest
from opbench.kernels.tensors import DTYPES, Tensor
from opbench.paths import MissingExtra

if TYPE_CHECKING:
    import cupy

__all__ = ["CudaBackend", "device_key", "require_gpu", "why_missing"]


class CudaBackend:
    """The backend for one GPU; the constructor raises EnvironmentFault with a remedy if there is no GPU."""

    name = "cuda"

    def __init__(self, ordinal: int = 0) -> None:
        self._device = Device(ordinal)
        self._nvml = Nvml(self._device.uuid)
        self._clocks: dict[str, CudaClock] = {}
        self._programs: dict[Path, CudaProgram] = {}
        self.sm_count = self._device.sm_count

    @property
    def limits(self) -> DeviceLimits:
        """Return the device's limits for occupancy and launches."""
        return self._device.limits

    @property
    def stream_handle(self) -> int:
        """Return the CUDA driver's handle of this backend's stream."""
        return self._device.stream.value or 0

    @property
    def l2_bytes(self) -> int:
        """Return the size of the L2 cache in bytes."""
        return self._device.l2_bytes

    def clock(self, mode: str = "cold") -> CudaClock:
        """Return the clock of a timing mode.

        The clock is created at first use, because it allocates four times the L2 size.
        """
        if mode not in self._clocks:
            self._clocks[mode] = CudaClock(self._device, self._nvml, mode)
        return self._clocks[mode]

    def environment(self) -> Environment:
        """Return device, driver, compiler and versions; values that are not known are None."""
        device, state = self._device, self._nvml.state()
        environment = self._nvml.settings(
            Environment(
                backend=self.name,
                gpu=device.name,
                uuid=device.uuid,
                compute_capability="{}.{}".format(*device.capability),
                sm_count=device.sm_count,
                l2_bytes=device.l2_bytes,
                memory_bytes=device.memory_bytes,
                energy_counted=state.energy_j is not None,
                driver_cuda="{}.{}".format(*device.cuda_version()),
                nvrtc="{}.{}".format(*device.compiler().version),
                nvrtc_options=tuple(nvrtc.OPTIONS),
                cupy=_installed_version("cupy-cuda13x")
                or _installed_version("cupy-cuda12x")
                or _installed_version("cupy"),
                torch=_installed_version("torch"),
                throttle=state.throttle,
            )
        )
        return (
            environment
            if environment.ecc is not None
            else replace(environment, ecc=bool(device.attribute(ECC_ENABLED)))
        )

    def unsupported_reason(self, request: BuildRequest) -> str | None:
        """Return why this GPU cannot run a module; None if it can."""
        own_capability = self._device.capability
        reason = missing_capability(own_capability, request.compute_capability)
        return reason and f"{reason}; this GPU has {own_capability[0]}.{own_capability[1]}"

    def compile(self, request: BuildRequest) -> Path:
        """Compile a module into the disk cache, or reuse the cached cubin; raise CompileError if it fails."""
        return nvrtc.compile_cubin(request, self._device.architecture(request)).cubin

    def load(self, request: BuildRequest) -> CudaProgram:
        """Load a module on the device; compile it first if necessary."""
        compiled = nvrtc.compile_cubin(request, self._device.architecture(request))
        cubin = compiled.cubin
        program = self._programs.get(cubin)
        if program is None or not set(request.kernels) <= set(program.resources):
            program = self._programs[cubin] = CudaProgram(self._device, cubin, request.kernels, compiled.names)
        return program

    def load_cubin(self, cubin: Path, request: BuildRequest) -> CudaProgram:
        """Load a cubin that replaces a module's own code; its kernels must have the same mangled names."""
        names = nvrtc.compile_cubin(request, self._device.architecture(request)).names
        return CudaProgram(self._device, cubin, request.kernels, names)

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> CudaBuffer:
        """Return a new poisoned buffer between guard bands; raise EnvironmentFault if memory is insufficient."""
        return CudaBuffer(self._device, name, shape, DTYPES[dtype])

    def allocate_arena(self, nbytes: int) -> CudaBuffer:
        """Return one buffer of `nbytes` bytes for many tensors, with guard bands at both ends.

        Raises EnvironmentFault if memory is insufficient.
        """
        return CudaBuffer(self._device, "activations", (nbytes,), np.dtype(np.uint8))

    def view(self, arena: Buffer, tensor: Tensor, offset: int) -> DeviceArray:
        """Return a tensor that uses part of an arena's memory, from `offset` bytes on."""
        pointer = cast(CudaBuffer, arena).pointer + offset
        return DeviceArray(self._device, tensor.name, tensor.shape, DTYPES[tensor.dtype], pointer)

    def movable(self, case: Case, addresses: Mapping[str, int]) -> MovableLaunch:
        """Return launches that take the addresses of inputs, outputs and workspaces, in this order, in each call.

        `addresses` are the first addresses. Earlier work in the stream may write any input, so the first launch
        waits for that work to end.
        """
        problem = case.problem
        tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(self.sm_count)]
        launches = case.launches(self.sm_count)
        launches[0] = replace(launches[0], programmatic=False)
        return MovableLaunch(self._device, self.load(case.request()), launches, tensors, addresses)

    def graph(self, steps: Sequence[GraphStep]) -> CudaGraph:
        """Record steps, each with the earlier steps it depends on, as one CUDA graph."""
        return CudaGraph(self._device, steps)

    def enter_thread(self) -> None:
        """Let the calling thread use the device, as the thread that opened the backend does."""
        self._device.driver.call("cuCtxSetCurrent", self._device.context)

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Free the memory of buffers after all launches have ended."""
        self._device.driver.unchecked("cuStreamSynchronize")(self._device.stream)
        for buffer in buffers.values():
            cast(CudaBuffer, buffer).release()

    def synchronize(self) -> list[Finding]:
        """Wait for all launches; if one failed, raise LaunchError with the names of the last launched kernels."""
        self._device.wait()
        return []

    # Several GPUs -------------------------------------------------------------------------------------------------

    def new_communicator_id(self) -> bytes:
        """Return a new NCCL identifier, which the first rank sends to the others."""
        return find_nccl().get_unique_id()

    def communicator(self, ranks: int, identity: bytes, rank: int) -> NcclGroup:
        """Open a rank of an NCCL communicator; return when all ranks have done so."""
        _cupy().cuda.Device(self._device.ordinal).use()
        return NcclGroup(ranks, identity, rank, self.stream_handle)

    # Library variants ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def stream(self) -> cupy.cuda.Stream:
        """Return this backend's stream as a CuPy stream."""
        cupy = _cupy()
        cupy.cuda.Device(self._device.ordinal).use()
        stream, ordinal = self.stream_handle, self._device.ordinal
        if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14; the older name is deprecated there
            return cupy.cuda.Stream.from_external(ExternalStream(stream))
        return cupy.cuda.ExternalStream(stream, ordinal)

    def on_stream(self) -> AbstractContextManager[object]:
        """Return a context in which a library's work goes to this backend's stream."""
        context: AbstractContextManager[object] = self.stream
        return context

    def arrays(self, buffers: Mapping[str, Buffer]) -> dict[str, cupy.ndarray]:
        """Return CuPy arrays that share the buffers' memory, and make this backend's stream CuPy's current one."""
        cupy = _cupy()
        self.stream.use()
        views = {}
        for name, buffer in buffers.items():
            device_buffer = cast(CudaBuffer, buffer)
            memory = cupy.cuda.UnownedMemory(
                device_buffer.pointer, device_buffer.nbytes, device_buffer, self._device.ordinal
            )
            views[name] = cupy.ndarray(device_buffer.shape, device_buffer.dtype, cupy.cuda.MemoryPointer(memory, 0))
        return views

    def buffer_of(self, array: object) -> DeviceArray:
        """Return a buffer that shares a CuPy array's memory; the array still owns the memory."""
        cupy_array = cast("cupy.ndarray", array)
        return DeviceArray(self._device, "reference", cupy_array.shape, cupy_array.dtype, cupy_array.data.ptr)


class ExternalStream:
    """An object that passes a stream handle to libraries by the CUDA stream protocol."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


def _cupy() -> ModuleType:
    """Return the module cupy; raise MissingExtra if it is not installed."""
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra("CuPy is not installed", "cuda13") from error
    module: ModuleType = cupy
    return module


def _installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
