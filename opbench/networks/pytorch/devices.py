"""Run a case's kernels on PyTorch tensors, with the backend of the device that holds their memory."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from opbench.backend.base import Backend, HostMemoryBackend
from opbench.backend.findings import headline
from opbench.checking import backends
from opbench.errors import EnvironmentFault, LaunchError
from opbench.insight.defaults import RankingGpu, ranking_gpu
from opbench.kernels.case import Case
from opbench.kernels.expression import round_up
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT

if TYPE_CHECKING:
    from opbench.gpu.driver import CudaBackend
    from opbench.gpu.driver.movable import MovableLaunch

TORCH_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "u8": torch.uint8,
}
"""The PyTorch type of each dtype."""
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

ALIGNMENT = 16
"""Bytes of the widest access; a tensor at an address that is not a multiple is copied first."""
MISALIGNED = ALIGNMENT - 1
CPU = -1
"""PyTorch's device number for the host."""
_ONE_AT_A_TIME = threading.RLock()
"""The cpu runtime accepts one caller at a time."""
_OPENING = threading.Lock()
current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
current_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
"""The function that compiled code uses to get the handle of PyTorch's current stream; it takes 0.1 µs."""

EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None) or (
    lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda")
)
"""The function that compiled code uses to create an empty tensor.

It takes a third of the time of torch.empty_strided.
"""


@dataclass(frozen=True)
class OpenedDevice:
    """A device of PyTorch that opbench has opened: its number, backend and GPU model."""

    index: int
    backend: Backend
    gpu: str
    """The name of the GPU as in winners files; empty for the host."""
    compute_capability: str
    ranking_gpu: RankingGpu | None

    @property
    def device(self) -> torch.device:
        """Return the device as a `torch.device`."""
        return torch.device("cpu") if self.index == CPU else torch.device("cuda", self.index)


def opened_device_of(index: int) -> OpenedDevice:
    """Return the device with this number, or the CPU; the first call opens it."""
    with _OPENING:
        return _open_device(index)


@functools.cache
def _open_device(index: int) -> OpenedDevice:
    if index == CPU:
        return OpenedDevice(index, backends.open_backend("cpu"), "", "", None)
    from opbench.gpu.driver import CudaBackend

    torch.cuda.init()
    with torch.cuda.device(index):
        backend = CudaBackend(_driver_ordinal(index))
    environment = backend.environment()
    return OpenedDevice(index, backend, environment.gpu, environment.compute_capability, ranking_gpu(environment))


def _driver_ordinal(index: int) -> int:
    """Return the driver's number of a PyTorch device, by the order in CUDA_VISIBLE_DEVICES."""
    if index >= torch.cuda.device_count():
        raise EnvironmentFault(
            f"cuda:{index}: PyTorch sees {torch.cuda.device_count()} GPUs, numbered from 0; use a smaller number, or "
            "check CUDA_VISIBLE_DEVICES",
            kind="no-such-gpu",
            subject="cuda",
            value=index,
            allowed=torch.cuda.device_count(),
        )
    return index


def is_capturing(index: int) -> bool:
    """Return whether the current stream of a device is captured into a CUDA graph at the moment."""
    return index != CPU and bool(torch.cuda.is_current_stream_capturing())


class CudaRunner:
    """Run a case on a GPU, on PyTorch tensors at any address and on PyTorch's current stream."""

    def __init__(self, case: Case, opened_device: OpenedDevice) -> None:
        self.case = case
        self._index = opened_device.index
        self._backend: CudaBackend = opened_device.backend  # type: ignore[assignment]
        self._workspaces = case.workspace(opened_device.backend.sm_count)
        sizes = [round_up(t.nbytes, WORKSPACE_ALIGNMENT) for t in self._workspaces]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._bytes = sum(sizes)
        self._launch: MovableLaunch | None = None
        self._making = threading.Lock()
        self.launch_on: Callable[[list[int], int], None] = self._first_launch
        """Enqueues by address, on a stream given by its handle, with the device current."""

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Launch the kernels on dense, aligned inputs and outputs, in the problem's order."""
        with torch.cuda.device(self._index):
            self.launch_on([tensor.data_ptr() for tensor in tensors], current_stream(self._index))

    def _first_launch(self, addresses: list[int], stream: int) -> None:
        """Bind the launch at the first call; later calls use the bound launch directly."""
        if self._bytes:
            self.launch_on = self._with_workspaces
        else:
            self.launch_on = self._make_launch(addresses).__call__
        self.launch_on(addresses, stream)

    def _with_workspaces(self, addresses: list[int], stream: int) -> None:
        scratch = EMPTY((self._bytes,), (1,), torch.uint8)
        base = scratch.data_ptr()
        addresses = addresses + [base + offset for offset in self._offsets]
        (self._launch or self._make_launch(addresses))(addresses, stream)

    def _make_launch(self, addresses: Sequence[int]) -> MovableLaunch:
        with self._making:
            if self._launch is None:
                problem = self.case.problem
                tensors = [*problem.input_tensors(), *problem.output_tensors(), *self._workspaces]
                address_by_name = {tensor.name: address for tensor, address in zip(tensors, addresses, strict=True)}
                self._launch = self._backend.movable(self.case, address_by_name)
        return self._launch


class CpuRunner:
    """Run a case on the CPU, directly on the memory of PyTorch tensors."""

    def __init__(self, case: Case, opened_device: OpenedDevice) -> None:
        assert isinstance(opened_device.backend, HostMemoryBackend)
        self.case = case
        self._backend = opened_device.backend
        problem = case.problem
        self._tensors = [*problem.input_tensors(), *problem.output_tensors()]
        self._workspaces = case.workspace(opened_device.backend.sm_count)
        self._launches = case.launches(opened_device.backend.sm_count)
        with _ONE_AT_A_TIME:
            self._program = opened_device.backend.load(case.request())

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Compute the outputs and wait for them; inputs and outputs are contiguous, in the problem's order."""
        scratch = [torch.empty(t.nbytes, dtype=torch.uint8) for t in self._workspaces]
        buffers = {
            declared.name: self._backend.buffer_on_array(declared, _memory(tensor))
            for declared, tensor in zip([*self._tensors, *self._workspaces], [*tensors, *scratch], strict=True)
        }
        with _ONE_AT_A_TIME:
            self._program.bind(self._launches, buffers)()
            if findings := self._backend.synchronize():
                raise LaunchError(
                    f"{self.case.name}: {headline(findings[0])}", kind="launch-failed", subject=self.case.name
                )


Runner = CudaRunner | CpuRunner


def runner(case: Case, opened_device: OpenedDevice) -> Runner:
    """Return the object that runs a case on a device."""
    return CpuRunner(case, opened_device) if opened_device.index == CPU else CudaRunner(case, opened_device)


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a dense tensor without a copy."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    result: np.ndarray = flat.view(torch.uint8).numpy()
    return result


@contextlib.contextmanager
def on_backend_stream(opened_device: OpenedDevice) -> Iterator[int]:
    """Run PyTorch's work on the stream that the backend's clock times; yield the stream's handle."""
    backend: CudaBackend = opened_device.backend  # type: ignore[assignment]
    with torch.cuda.device(opened_device.index), torch.cuda.stream(torch.cuda.ExternalStream(backend.stream_handle)):
        yield backend.stream_handle
