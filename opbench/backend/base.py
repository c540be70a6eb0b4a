"""What a backend offers; the runner knows nothing else of `cuda` or `cpu`."""

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
    """What the compiler gave one kernel."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


@dataclass(frozen=True)
class Gpu:
    """One GPU as it is listed, before anything opens it."""

    index: int
    uuid: str
    name: str
    environment: Mapping[str, str]
    """What makes a process see this GPU alone."""


class Buffer(Protocol):
    """Device memory for one tensor, with guard bands before and after it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def write(self, array: np.ndarray) -> None:
        """Copy a C-contiguous host array of the same shape and dtype in."""

    def read(self) -> np.ndarray:
        """Copy the content out."""

    def copy_from(self, other: Any, shift: int = 0) -> None:
        """Copy the content of another buffer of this backend and of the same size, in the order of the launches.

        Each byte goes `shift` bytes further on; the last `shift` bytes go to the front.
        """

    def poison(self) -> None:
        """Fill the content with 0xFF bytes (NaN in every float format)."""

    def poison_part(self, offset: int, nbytes: int) -> None:
        """Fill some bytes of the content, from an offset on, with 0xFF."""

    def fingerprint(self) -> int:
        """64 bits that stand for the content: alike for equal contents, else as good as never in one process."""

    def damage(self) -> int | None:
        """Offset in bytes, relative to the buffer's start, of the nearest guard byte that changed, else None."""


class Sparse(Buffer, Protocol):
    """A buffer that takes memory where it is written only."""

    @property
    def content(self) -> np.ndarray:
        """The content itself, of which only what is looked at is fetched."""

    def clear(self) -> None:
        """Zeros everywhere."""

    def written_pages(self) -> np.ndarray | None:
        """The numbers of the pages that were written since it was filled; None where the system does not tell."""


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
        """The module's `__device__` and `__constant__` variables by name, as bytes: they outlive a launch."""


class Backend(Protocol):
    """Where cases run. Compiling needs no device and is safe from several threads; the rest is one thread's."""

    name: str
    sm_count: int

    @property
    def limits(self) -> DeviceLimits | None:
        """What bounds occupancy on this device; None where no GPU is."""

    def environment(self) -> Environment:
        """Return device, driver, compiler and versions."""

    def unsupported(self, request: BuildRequest) -> str | None:
        """Why this backend cannot run such a module, else None."""

    def compile(self, request: BuildRequest) -> Path:
        """Compile into the disk cache, or find it there; raises CompileError."""

    def load(self, request: BuildRequest) -> Program:
        """Compile if need be and load."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """A new poisoned buffer; `dtype` is f32, f16, bf16, i32, …; raises EnvironmentFault when memory is short."""

    def view(self, buffer: Buffer, tensor: Tensor, offset: int) -> Buffer:
        """A tensor in the memory of a buffer, at an offset in bytes; the buffer's guard bands are around both."""

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Give the memory back."""

    def synchronize(self) -> list[Finding]:
        """Wait for all launches; return what the runtime saw since the last call; raises LaunchError."""


# What only some backends can do: ask with `isinstance` ------------------------------------------------------------


class Rotated:
    """A case's launches on each of several sets of buffers; called, it takes the next."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        self._turn = 0

    def __call__(self) -> None:
        self.launches[self._turn % len(self.launches)]()
        self._turn += 1


class DeviceClock(Clock, Protocol):
    """The clock of a device: besides sampling, it times launches that follow on each other."""

    @property
    def between(self) -> float:
        """What a span of `chain` exceeds a kernel's own time by, in seconds."""

    def chain(self, launches: Sequence[Launch]) -> list[float]:
        """Spans between events before, between and after launches that follow on each other, in seconds, once."""

    def forget(self, launch: Launch) -> None:
        """Give back what is kept for a launch whose buffers end."""


@runtime_checkable
class Timed(Backend, Protocol):
    """A backend whose launches are timed."""

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""

    def clock(self, mode: str = "cold") -> DeviceClock:
        """The clock that works as one of `timing.MODES` says, opened at first use."""


@dataclass(frozen=True)
class TraceOptions:
    """What a trace looks at."""

    count: bool = True
    """Count requests, sectors and wavefronts."""
    races: bool = True
    """Look for races and for reads of what was never written."""
    max_blocks: int | None = None
    """Count at most so many blocks of a launch, spread evenly; all blocks run and are checked."""
    limits: DeviceLimits | None = None
    """The GPU whose caches are modelled; none are where it is not known."""
    undefined_line: int = 0
    """The line whose shuffles give other values where CUDA defines none; 0 for no line."""
    undefined_fill: int = 0
    """Which values these are: 1 or 2; 0 for those of all other lines."""


@dataclass(frozen=True)
class Trace:
    """What one run of a traced module showed."""

    findings: tuple[Finding, ...]
    traffic: Traffic
    completed: bool
    """False when a launch was abandoned; then the buffers' content means nothing."""
    accesses: int
    """How many accesses of single threads were looked at."""
    cut_short: int = 0
    """Of a sample: a bit for each of its blocks that was not let come to its end."""
    notes: tuple[Finding, ...] = ()
    """What is allowed, and is no finding."""


@runtime_checkable
class Traced(Backend, Protocol):
    """A backend that can look at every memory access of a launch."""

    def compile_traced(self, request: BuildRequest) -> Path:
        """Compile what `trace` runs into the disk cache, or find it there; raises CompileError."""

    def load_traced(self, request: BuildRequest) -> Program:
        """The same, loaded to be run without a trace."""

    def orders(self, request: BuildRequest) -> int:
        """In how many orders of threads a check runs such a module; each run of a bound program takes the next."""

    def architecture(self, request: BuildRequest) -> str:
        """Whose branches of `#if __CUDA_ARCH__` are compiled, such as "sm_90"; empty where the text has none."""

    def trace_sample(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        leave_out: int = 0,
    ) -> Trace:
        """Run some blocks of each launch of a huge problem, on sparse buffers; not those with a bit in `leave_out`."""

    def allocate_sparse(self, name: str, shape: tuple[int, ...], dtype: str) -> Sparse:
        """A poisoned buffer that takes memory where it is written only."""

    def doubts(self, request: BuildRequest) -> Sequence[Finding]:
        """What the compiler thinks may be read before it is written: hints that may explain a wrong result."""

    def trace(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        options: TraceOptions = ...,
    ) -> Trace:
        """Run the launches once, looked at; the buffers end as after an ordinary run."""


@runtime_checkable
class Arena(Backend, Protocol):
    """A backend on which the activations of a network share one piece of memory."""

    def arena(self, nbytes: int) -> Buffer:
        """Memory for many tensors, between guard bands; raises EnvironmentFault when it is short."""


class Recording(Protocol):
    """Launches recorded once."""

    def launch(self) -> None:
        """Enqueue all of them on the backend's stream."""

    def run(self) -> None:
        """Run them on a stream of their own and wait: what several threads can do at once."""

    def close(self) -> None:
        """Give it back; harmless twice."""


@runtime_checkable
class Recorder(Backend, Protocol):
    """A backend that records launches and takes several threads."""

    def graph(self, steps: Sequence[tuple[Launch, Sequence[int]]]) -> Recording:
        """Launches as one graph, each with the numbers of the earlier ones that it waits for."""

    def enter_thread(self) -> None:
        """Let the calling thread use the device, as the one that opened the backend may."""


class Communicator(Protocol):
    """One rank's part in sums over several devices; all ranks ask for the same sums in the same order."""

    @property
    def sm_count(self) -> int:
        """Multiprocessors that a sum may take from what runs beside it."""

    def all_reduce(self, buffer: Buffer) -> Launch:
        """A launch that adds a buffer of float32 over all ranks, in place, on the backend's stream."""

    def close(self) -> None:
        """Leave; harmless twice."""


@runtime_checkable
class Collective(Backend, Protocol):
    """A backend whose devices add among themselves."""

    def new_identity(self) -> bytes:
        """What the first rank hands to the others, so that they find each other."""

    def communicator(self, ranks: int, identity: bytes, rank: int) -> Communicator:
        """Join the others; returns when all are there."""


@runtime_checkable
class Libraries(Backend, Protocol):
    """A backend on which Python variants call a vendor's library."""

    @property
    def stream_handle(self) -> int:
        """The driver's handle of this backend's stream."""

    def arrays(self, buffers: Mapping[str, Buffer]) -> dict[str, object]:
        """The buffers as the library's arrays on the same memory."""

    def memory_of(self, array: object) -> Buffer:
        """A library's contiguous array as a buffer on the same memory, which the array goes on to own."""

    def on_stream(self) -> AbstractContextManager[object]:
        """Within it, the library's work goes to this backend's stream."""
