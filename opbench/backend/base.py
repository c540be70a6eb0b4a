"""The interface of a backend; the runner uses nothing else of `cuda` or `cpu`."""

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
    """Resources of one compiled kernel."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine, before anything opens it."""

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
        """Copy a C-contiguous host array of the same shape and dtype in."""

    def read(self) -> np.ndarray:
        """Return a copy of the content."""

    def copy_from(self, other: Any, shift: int = 0) -> None:
        """Copy the content of another buffer of this backend and of the same size, in launch order.

        Each byte moves `shift` bytes forward; the last `shift` bytes move to the front.
        """

    def poison(self) -> None:
        """Fill the content with 0xFF bytes (NaN in every float format)."""

    def poison_part(self, offset: int, nbytes: int) -> None:
        """Fill `nbytes` bytes of the content from `offset` on with 0xFF."""

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the content: equal contents give equal hashes within one process."""

    def damage(self) -> int | None:
        """Return the offset in bytes, from the buffer's start, of the nearest changed guard byte, else None."""


class Sparse(Buffer, Protocol):
    """A buffer that uses memory only for pages that are written."""

    @property
    def content(self) -> np.ndarray:
        """The content; only the pages that are read are fetched."""

    def clear(self) -> None:
        """Fill the content with zeros."""

    def written_pages(self) -> np.ndarray | None:
        """Return the pages written since the last fill; None if the system does not report them."""


class Program(Protocol):
    """A compiled module, loaded."""

    resources: Mapping[str, KernelResources]
    machine_code_sha256: str
    """Hash of what the GPU executes; empty on a backend that runs no GPU code."""

    uses_device_heap: bool
    """Whether a kernel calls `malloc`, whose memory outlives a launch."""

    def bind(self, launches: Sequence[KernelLaunch], buffers: Mapping[str, Buffer]) -> Launch:
        """Return a callable that enqueues all launches in order."""

    def variables(self) -> Mapping[str, Buffer]:
        """Return the module's `__device__` and `__constant__` variables by name, as bytes: they outlive a launch."""


class Backend(Protocol):
    """Where cases run. Compiling needs no device and is thread-safe; use the rest from one thread."""

    name: str
    sm_count: int

    @property
    def limits(self) -> DeviceLimits | None:
        """The limits of occupancy on this device; None without a GPU."""

    def environment(self) -> Environment:
        """Return device, driver, compiler and versions."""

    def unsupported(self, request: BuildRequest) -> str | None:
        """Return why this backend cannot run a module, else None."""

    def compile(self, request: BuildRequest) -> Path:
        """Compile into the disk cache, or reuse the cached file; raise CompileError."""

    def load(self, request: BuildRequest) -> Program:
        """Compile if necessary, and load."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """Return a new poisoned buffer; `dtype` is f32, f16, bf16, i32, …; EnvironmentFault if memory is out."""

    def view(self, buffer: Buffer, tensor: Tensor, offset: int) -> Buffer:
        """Return a tensor in the memory of a buffer, at an offset in bytes, between the buffer's guard bands."""

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Free the memory."""

    def synchronize(self) -> list[Finding]:
        """Wait for all launches; return the findings since the last call; raise LaunchError."""


# Features of some backends: test with `isinstance` -----------------------------------------------------------------


class Rotated:
    """A case's launches on several sets of buffers; each call uses the next set."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        self._turn = 0

    def __call__(self) -> None:
        self.launches[self._turn % len(self.launches)]()
        self._turn += 1


class DeviceClock(Clock, Protocol):
    """The clock of a device; in addition to samples, it times launches in sequence."""

    @property
    def between(self) -> float:
        """Return the seconds by which a time of `chain` exceeds the kernel's own time."""

    def chain(self, launches: Sequence[Launch]) -> list[float]:
        """Run launches one after the other, once; return the time between the events around each, in seconds."""

    def forget(self, launch: Launch) -> None:
        """Free the resources of a launch before its buffers are freed."""


@runtime_checkable
class Timed(Backend, Protocol):
    """A backend whose launches are timed."""

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""

    def clock(self, mode: str = "cold") -> DeviceClock:
        """Return the clock of one of `timing.MODES`; it is opened at first use."""


@runtime_checkable
class LoadsCubins(Timed, Protocol):
    """A backend that also loads machine code that opbench did not compile from a variant's source."""

    def load_cubin(self, cubin: Path, request: BuildRequest) -> Program:
        """Load a cubin with the kernels of a module; it is not kept for later loads of the module."""


@dataclass(frozen=True)
class TraceOptions:
    """Options of a trace."""

    count: bool = True
    """Count requests, sectors and wavefronts."""
    races: bool = True
    """Report races and reads of uninitialised memory."""
    max_blocks: int | None = None
    """Count at most this many blocks of a launch, spread evenly; all blocks run and are checked."""
    limits: DeviceLimits | None = None
    """The GPU whose caches are modelled; None to model no caches."""
    undefined_line: int = 0
    """The line whose shuffles return other values where CUDA leaves them undefined; 0 for no line."""
    undefined_fill: int = 0
    """Which undefined values to return: 1 or 2; 0 for the usual ones."""


@dataclass(frozen=True)
class Trace:
    """The result of one traced run."""

    findings: tuple[Finding, ...]
    traffic: Traffic
    completed: bool
    """False if a launch was abandoned; then the buffers' content is meaningless."""
    accesses: int
    """The number of checked accesses, per thread."""
    unfinished: int = 0
    """Of a sample: one bit for each block that was stopped early."""
    notes: tuple[Finding, ...] = ()
    """Notes about allowed behaviour; they are not findings."""


@runtime_checkable
class Traced(Backend, Protocol):
    """A backend that can check every memory access of a launch."""

    def compile_traced(self, request: BuildRequest) -> Path:
        """Compile the module for `trace` into the disk cache, or reuse it; raise CompileError."""

    def load_traced(self, request: BuildRequest) -> Program:
        """Load the module of `compile_traced`, to run it without a trace."""

    def orders(self, request: BuildRequest) -> int:
        """Return in how many thread orders a check runs a module; each run of a bound program uses the next order."""

    def architecture(self, request: BuildRequest) -> str:
        """Return the architecture for `#if __CUDA_ARCH__`, such as "sm_90"; empty if the source does not use it."""

    def trace_sample(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        skip_blocks: int = 0,
    ) -> Trace:
        """Run some blocks of each launch of a huge problem on sparse buffers, without the bits in `skip_blocks`."""

    def allocate_sparse(self, name: str, shape: tuple[int, ...], dtype: str) -> Sparse:
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
class HostMemory(Backend, Protocol):
    """A backend whose kernels run on arrays in host memory."""

    def on_array(self, tensor: Tensor, memory: np.ndarray) -> Buffer:
        """Return a tensor in the bytes of a host array, which stays the owner; there are no guard bytes."""


@runtime_checkable
class Arena(Backend, Protocol):
    """A backend on which the activations of a network share one piece of memory."""

    def arena(self, nbytes: int) -> Buffer:
        """Allocate memory for many tensors, between guard bands; raise EnvironmentFault if it is insufficient."""


class Recording(Protocol):
    """Recorded launches."""

    def launch(self) -> None:
        """Enqueue all of them on the backend's stream."""

    def run(self) -> None:
        """Run them on their own stream and wait; several threads can do this at the same time."""

    def close(self) -> None:
        """Free the recording; harmless twice."""


@runtime_checkable
class Recorder(Backend, Protocol):
    """A backend that records launches and takes several threads."""

    def graph(self, steps: Sequence[tuple[Launch, Sequence[int]]]) -> Recording:
        """Record launches as one graph, each with the numbers of the earlier launches that it depends on."""

    def enter_thread(self) -> None:
        """Let the calling thread use the device, like the thread that opened the backend."""


class Communicator(Protocol):
    """Sum buffers over several devices, as one rank; all ranks must request the same sums in the same order."""

    @property
    def sm_count(self) -> int:
        """Return the number of multiprocessors that a sum may take from kernels that run at the same time."""

    def all_reduce(self, buffer: Buffer) -> Launch:
        """Return a launch that sums a buffer of float32 over all ranks, in place, on the backend's stream."""

    def close(self) -> None:
        """Leave the communicator; a second call does nothing."""


@runtime_checkable
class Collective(Backend, Protocol):
    """A backend that sums over several devices."""

    def new_identity(self) -> bytes:
        """Return the identifier that the first rank sends to the others."""

    def communicator(self, ranks: int, identity: bytes, rank: int) -> Communicator:
        """Join the communicator; return when all ranks have joined."""


@runtime_checkable
class Libraries(Backend, Protocol):
    """A backend on which Python variants call a vendor's library."""

    @property
    def stream_handle(self) -> int:
        """The driver's handle of this backend's stream."""

    def arrays(self, buffers: Mapping[str, Buffer]) -> dict[str, object]:
        """Return the buffers as the library's arrays on the same memory."""

    def memory_of(self, array: object) -> Buffer:
        """Return a library's contiguous array as a buffer on the same memory, which the array continues to own."""

    def on_stream(self) -> AbstractContextManager[object]:
        """Return a context in which the library's work goes to this backend's stream."""
