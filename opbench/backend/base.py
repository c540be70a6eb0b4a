"""The interface of a backend, which runs cases on a GPU (`cuda`) or on the CPU emulator (`cpu`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from opbench.backend.counts import Traffic
from opbench.backend.environment import Environment
from opbench.backend.findings import Finding
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensors import Tensor
from opbench.timing.clock import Clock, Launch


@dataclass(frozen=True)
class KernelResources:
    """The registers and the memory that one compiled kernel uses."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads_per_block: int


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, described before a backend opens it."""

    index: int
    uuid: str
    name: str
    environment: Mapping[str, str]
    """Environment variables that make a process see only this GPU."""


class Buffer(Protocol):
    """Device memory for one tensor, with guard bands before and after it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def write(self, array: np.ndarray) -> None:
        """Copy a C-contiguous host array of the same shape and dtype into the buffer."""

    def read(self) -> np.ndarray:
        """Return a copy of the buffer's content as a host array."""

    def copy_from(self, other: Any, shift: int = 0) -> None:
        """Copy the content of another buffer of the same size, on the backend's stream.

        With `shift`, the content is rotated: each byte moves `shift` bytes forward, the last bytes to the
        front.
        """

    def poison(self) -> None:
        """Fill the content with 0xFF bytes (NaN in every float format)."""

    def poison_part(self, offset: int, nbytes: int) -> None:
        """Fill `nbytes` bytes of the content from `offset` on with 0xFF."""

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the content: equal contents give equal hashes within one process."""

    def changed_guard_offset(self) -> int | None:
        """Return the offset in bytes of the changed guard byte that is nearest to the content; None if none changed."""


class SparseMemory(Buffer, Protocol):
    """A buffer that uses memory only for pages that are written."""

    @property
    def content(self) -> np.ndarray:
        """Return the content as an array; only pages that are read are fetched from the device."""

    def clear(self) -> None:
        """Fill the content with zeros."""

    def written_pages(self) -> np.ndarray | None:
        """Return the pages written since the last fill; None if the system does not report them."""


class Program(Protocol):
    """A compiled module that is loaded on the device."""

    resources: Mapping[str, KernelResources]
    machine_code_sha256: str
    """Hash of what the GPU executes; empty on a backend that runs no GPU code."""

    uses_device_heap: bool
    """Whether a kernel calls `malloc`, whose memory outlives a launch."""

    def bind(self, launches: Sequence[KernelLaunch], buffers: Mapping[str, Buffer]) -> Launch:
        """Return a callable that enqueues all launches in order."""

    def variables(self) -> Mapping[str, Buffer]:
        """Return the module's `__device__` and `__constant__` variables by name, as buffers of bytes."""


class Backend(Protocol):
    """A device that runs cases.

    Compiling is thread-safe and needs no device; call all other methods from one thread.
    """

    name: str
    sm_count: int

    @property
    def limits(self) -> DeviceLimits | None:
        """Return the limits that determine the device's occupancy; None for the emulator without a modelled GPU."""

    def environment(self) -> Environment:
        """Return the device, the driver, the compiler and their versions."""

    def unsupported_reason(self, request: BuildRequest) -> str | None:
        """Return the reason why this backend cannot run a module; None if it can."""

    def compile(self, request: BuildRequest) -> Path:
        """Compile a module into the disk cache, or reuse the cached file; raise CompileError."""

    def load(self, request: BuildRequest) -> Program:
        """Load a module on the device; compile it first if necessary."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """Return a new poisoned buffer; raise EnvironmentFault if memory is out.

        `dtype` is the name of an element type: f32, f16, bf16, i32, …
        """

    def view(self, buffer: Buffer, tensor: Tensor, offset: int) -> Buffer:
        """Return a tensor that uses part of a buffer's memory, from `offset` bytes on."""

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Free the memory of buffers."""

    def synchronize(self) -> list[Finding]:
        """Wait for all launches and return the findings since the last call; raise LaunchError."""


# Features of some backends: test with `isinstance` -----------------------------------------------------------------


class RotatingLaunch:
    """A launch that uses the next of several sets of buffers in each call, in a cycle."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        self._call_count = 0

    def __call__(self) -> None:
        self.launches[self._call_count % len(self.launches)]()
        self._call_count += 1


class DeviceClock(Clock, Protocol):
    """A clock that times single launches, as every clock does, and also a sequence of launches."""

    @property
    def gap_between_launches_s(self) -> float:
        """Return the overhead in seconds that `chain` adds to each kernel's own time."""

    def chain(self, launches: Sequence[Launch]) -> list[float]:
        """Run each launch once, in order; return the time between the events around each launch, in seconds."""

    def forget(self, launch: Launch) -> None:
        """Free the clock's data of a launch, such as a CUDA graph, before its buffers are freed."""


@runtime_checkable
class TimedBackend(Backend, Protocol):
    """A backend that can time launches."""

    @property
    def l2_bytes(self) -> int:
        """Return the size of the L2 cache in bytes."""

    def clock(self, mode: str = "cold") -> DeviceClock:
        """Return the clock of a timing mode, "cold", "hot" or "graph"; it is created at first use."""


@runtime_checkable
class CubinBackend(TimedBackend, Protocol):
    """A backend that can run machine code from outside, such as an edited cubin."""

    def load_cubin(self, cubin: Path, request: BuildRequest) -> Program:
        """Load a cubin instead of a module's own code; the cubin is not cached."""


@dataclass(frozen=True)
class TraceOptions:
    """Options of a traced run."""

    count: bool = True
    """Count requests, sectors and wavefronts."""
    races: bool = True
    """Report races and reads of uninitialised memory."""
    limits: DeviceLimits | None = None
    """The GPU whose caches are modelled; None to model no caches."""
    undefined_line: int = 0
    """The line whose shuffles return other values where CUDA leaves them undefined; 0 for no line."""
    undefined_fill: int = 0
    """The set of values for undefined shuffles: 0 is the default set; 1 and 2 are other values."""


@dataclass(frozen=True)
class Trace:
    """The findings and the memory traffic of one traced run."""

    findings: tuple[Finding, ...]
    traffic: Traffic
    completed: bool
    """False if a launch was abandoned; then the buffers' content is meaningless."""
    accesses: int
    """The number of checked accesses, per thread."""
    unfinished_blocks: int = 0
    """For a sample of blocks: bit n is set if the n-th block was stopped early."""
    notes: tuple[Finding, ...] = ()
    """Notes about allowed behaviour; they are not findings."""


@runtime_checkable
class TracingBackend(Backend, Protocol):
    """A backend that can check every memory access of a launch."""

    def compile_traced(self, request: BuildRequest) -> Path:
        """Compile the instrumented build that `trace` runs into the disk cache, or reuse it; raise CompileError."""

    def load_traced(self, request: BuildRequest) -> Program:
        """Load the instrumented build of `compile_traced`, and run it without a trace."""

    def order_count(self, request: BuildRequest) -> int:
        """Return in how many different orders of its threads a check runs a module.

        Each run of a bound program uses the next order.
        """

    def architecture(self, request: BuildRequest) -> str:
        """Return the architecture for `#if __CUDA_ARCH__`, such as "sm_90"; empty if the source does not use it."""

    def trace_sample(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        skip_blocks: int = 0,
    ) -> Trace:
        """Run some blocks of each launch of a huge problem on sparse buffers, and trace them.

        Bit n of `skip_blocks` excludes the n-th of these blocks.
        """

    def allocate_sparse(self, name: str, shape: tuple[int, ...], dtype: str) -> SparseMemory:
        """Return a poisoned buffer that uses memory only for pages that are written."""

    def compiler_warnings(self, request: BuildRequest) -> Sequence[Finding]:
        """Return compiler warnings about uninitialised reads: hints that may explain a wrong result."""

    def trace(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        options: TraceOptions = ...,
    ) -> Trace:
        """Run the launches once and check every access; the buffers end as after an ordinary run."""


@runtime_checkable
class HostMemoryBackend(Backend, Protocol):
    """A backend whose kernels can access arrays in host memory."""

    def buffer_on_array(self, tensor: Tensor, memory: np.ndarray) -> Buffer:
        """Return a buffer that uses the memory of a host array.

        The caller must keep the array. The buffer has no guard bytes.
        """


@runtime_checkable
class ArenaBackend(Backend, Protocol):
    """A backend that can place all activations of a network in one allocation."""

    def allocate_arena(self, nbytes: int) -> Buffer:
        """Allocate one piece of memory for many tensors, with guard bands at both ends; raise EnvironmentFault."""


class RecordedGraph(Protocol):
    """Launches that were recorded as a graph and can be replayed."""

    def launch(self) -> None:
        """Enqueue the recorded launches on the backend's stream."""

    def run(self) -> None:
        """Run the recorded launches on a stream of their own, and wait; several threads may do so at once."""

    def close(self) -> None:
        """Free the recording; a second call does nothing."""


@runtime_checkable
class GraphBackend(Backend, Protocol):
    """A backend that can record launches as a graph, and that several threads may use."""

    def graph(self, launches_with_dependencies: Sequence[tuple[Launch, Sequence[int]]]) -> RecordedGraph:
        """Record launches as one graph.

        Each item is a launch, and the indices of the earlier launches that must end before it starts.
        """

    def enter_thread(self) -> None:
        """Let the calling thread use the device, as the thread that opened the backend does."""


class Communicator(Protocol):
    """One rank of several devices that sum buffers. All ranks must request the same sums in the same order."""

    @property
    def sm_count(self) -> int:
        """Return the number of multiprocessors that a sum may occupy while other kernels run."""

    def all_reduce(self, buffer: Buffer) -> Launch:
        """Return a launch that sums a buffer of float32 over all ranks, in place, on the backend's stream."""

    def close(self) -> None:
        """Close the communicator; a second call does nothing."""


@runtime_checkable
class CollectiveBackend(Backend, Protocol):
    """A backend that can sum buffers over several devices."""

    def new_communicator_id(self) -> bytes:
        """Return the identifier of a new communicator, which rank 0 sends to the other ranks."""

    def communicator(self, ranks: int, identity: bytes, rank: int) -> Communicator:
        """Open a rank of the communicator; return when all ranks have done so."""


@runtime_checkable
class LibraryBackend(Backend, Protocol):
    """A backend on which Python variants can call a vendor's library, such as cuBLAS."""

    @property
    def stream_handle(self) -> int:
        """Return the CUDA driver's handle of this backend's stream."""

    def arrays(self, buffers: Mapping[str, Buffer]) -> dict[str, object]:
        """Return arrays of the library that share the buffers' memory, by name."""

    def buffer_of(self, array: object) -> Buffer:
        """Return a buffer that shares the memory of a library's contiguous array; the array still owns the memory."""

    def on_stream(self) -> AbstractContextManager[object]:
        """Return a context manager: within it, the library uses this backend's stream."""
