"""Where a tensor's memory is: the backend of its device, and a case's kernels run on tensors of PyTorch's."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from opbench.backend.base import Backend
from opbench.backend.findings import headline
from opbench.checking import backends
from opbench.emulator.buffer import CpuArray
from opbench.errors import EnvironmentFault, LaunchError
from opbench.insight.defaults import ChosenFor, target
from opbench.kernels.case import Case
from opbench.kernels.tensors import DTYPES

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
"""PyTorch's type of each dtype."""
OURS = {dtype: name for name, dtype in TORCH_DTYPES.items()}

ALIGNED = 16
"""Bytes of the widest access: an address that this does not divide is a copy's."""
MISALIGNED = ALIGNED - 1
PART = 256
"""Bytes that each workspace begins at a multiple of."""
CPU = -1
"""The number that PyTorch gives the host among devices."""
_ONE_AT_A_TIME = threading.RLock()
"""The cpu runtime takes one caller."""
_OPENING = threading.Lock()
current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
current_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)
"""The handle of PyTorch's current stream on a device, as compiled code asks for it: a tenth of a microsecond."""

EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None) or (
    lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda")
)
"""An empty tensor on the current device, as compiled code makes one: a third of the cost of torch.empty_strided."""


@dataclass(frozen=True)
class DevicePlace:
    """One device, opened."""

    index: int
    backend: Backend
    gpu: str
    """Its name as books have it; empty for the host."""
    compute_capability: str
    chosen_for: ChosenFor | None

    @property
    def device(self) -> torch.device:
        """PyTorch's name of it."""
        return torch.device("cpu") if self.index == CPU else torch.device("cuda", self.index)


def place_of(index: int) -> DevicePlace:
    """The device of a number, CPU for the host; opened once."""
    with _OPENING:
        return _opened(index)


@functools.cache
def _opened(index: int) -> DevicePlace:
    if index == CPU:
        return DevicePlace(index, backends.open_backend("cpu"), "", "", None)
    from opbench.gpu.driver import CudaBackend

    torch.cuda.init()
    with torch.cuda.device(index):
        backend = CudaBackend(_ordinal(index))
    environment = backend.environment()
    return DevicePlace(index, backend, environment.gpu, environment.compute_capability, target(environment))


def _ordinal(index: int) -> int:
    """The driver's number of PyTorch's device: both count what CUDA_VISIBLE_DEVICES leaves."""
    if index >= torch.cuda.device_count():
        raise EnvironmentFault(f"cuda:{index}: PyTorch sees {torch.cuda.device_count()} GPUs")
    return index


def capturing(index: int) -> bool:
    """Whether what is enqueued now is recorded into a CUDA graph."""
    return index != CPU and bool(torch.cuda.is_current_stream_capturing())


class CudaRunner:
    """A case on a GPU: kernels on tensors that lie anywhere, on PyTorch's current stream."""

    def __init__(self, case: Case, place: DevicePlace) -> None:
        self.case = case
        self._index = place.index
        self._backend: CudaBackend = place.backend  # type: ignore[assignment]
        self._workspaces = case.workspace(place.backend.sm_count)
        sizes = [-(-math.prod(t.shape) * DTYPES[t.dtype].itemsize // PART) * PART for t in self._workspaces]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._bytes = sum(sizes)
        self._launch: MovableLaunch | None = None
        self._making = threading.Lock()
        self.launch_on: Callable[[list[int], int], None] = self._first_launch
        """Enqueue by address, on a stream by its handle, with the device current."""

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Inputs and outputs in the problem's order, dense and aligned."""
        with torch.cuda.device(self._index):
            self.launch_on([tensor.data_ptr() for tensor in tensors], current_stream(self._index))

    def _first_launch(self, addresses: list[int], stream: int) -> None:
        """The launch, bound when memory is there first, which from then on is called itself."""
        if self._bytes:
            self.launch_on = self._with_workspaces
        else:
            self.launch_on = self._made(addresses).__call__
        self.launch_on(addresses, stream)

    def _with_workspaces(self, addresses: list[int], stream: int) -> None:
        scratch = EMPTY((self._bytes,), (1,), torch.uint8)
        base = scratch.data_ptr()
        addresses = addresses + [base + offset for offset in self._offsets]
        (self._launch or self._made(addresses))(addresses, stream)

    def _made(self, addresses: Sequence[int]) -> MovableLaunch:
        with self._making:
            if self._launch is None:
                problem = self.case.problem
                named = [*problem.input_tensors(), *problem.output_tensors(), *self._workspaces]
                first = {tensor.name: address for tensor, address in zip(named, addresses, strict=True)}
                self._launch = self._backend.movable(self.case, first)
        return self._launch


class CpuRunner:
    """A case on the host's cores, on tensors as they lie."""

    def __init__(self, case: Case, place: DevicePlace) -> None:
        self.case = case
        self._backend = place.backend
        problem = case.problem
        self._tensors = [*problem.input_tensors(), *problem.output_tensors()]
        self._workspaces = case.workspace(place.backend.sm_count)
        self._launches = case.launches(place.backend.sm_count)
        with _ONE_AT_A_TIME:
            self._program = place.backend.load(case.request())

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Inputs and outputs in the problem's order, dense; returns when they are computed."""
        scratch = [torch.empty(t.nbytes, dtype=torch.uint8) for t in self._workspaces]
        buffers = {
            ours.name: CpuArray(ours.name, ours.shape, ours.dtype, _memory(given))
            for ours, given in zip([*self._tensors, *self._workspaces], [*tensors, *scratch], strict=True)
        }
        with _ONE_AT_A_TIME:
            self._program.bind(self._launches, buffers)()
            if findings := self._backend.synchronize():
                raise LaunchError(f"{self.case.name}: {headline(findings[0])}")


Runner = CudaRunner | CpuRunner


def runner(case: Case, place: DevicePlace) -> Runner:
    """What runs a case on a device."""
    return CpuRunner(case, place) if place.index == CPU else CudaRunner(case, place)


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """A dense tensor's own bytes."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    found: np.ndarray = flat.view(torch.uint8).numpy()
    return found


@contextlib.contextmanager
def on_backend_stream(place: DevicePlace) -> Iterator[int]:
    """PyTorch's work goes to the stream that the backend's clock times; gives the stream's handle."""
    backend: CudaBackend = place.backend  # type: ignore[assignment]
    with torch.cuda.device(place.index), torch.cuda.stream(torch.cuda.ExternalStream(backend.stream_handle)):
        yield backend.stream_handle
