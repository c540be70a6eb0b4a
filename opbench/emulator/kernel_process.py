"""The confined process that runs an untrusted kernel, and the messages to and from the judging process.

The judging process never loads the kernel. It sends copies of the buffers, and takes back the buffers' content
and what the runtime reported. It reads the answers as data of a declared form, because the kernel may have
written them.
"""

from __future__ import annotations

import functools
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np

from opbench.backend.base import Buffer, TraceOptions
from opbench.backend.findings import Finding
from opbench.cage import seccomp
from opbench.cage.confine import Confinement, Limits, enter
from opbench.emulator.backend import CpuBackend
from opbench.emulator.buffer import CpuBuffer, map_file
from opbench.emulator.build import constants_of
from opbench.emulator.library import Runtime, load_runtime
from opbench.emulator.toolchain import INCLUDE
from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.kernels.launch import BuildRequest, KernelLaunch

LENGTH = struct.Struct("<Q")
LONGEST_REPLY = 64 << 20
SYSTEM_FILES = ("/proc/meminfo", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")


# Sent by the judging process ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedBuffer:
    """The tensor of a buffer in shared memory, and the offset at which its guard bytes start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True)
class Share:
    """Request: map the memory that comes with this message and use its buffers under this number."""

    number: int
    buffers: tuple[SharedBuffer, ...]


@dataclass(frozen=True)
class Forget:
    """Request: unmap the buffers with this number."""

    number: int


@dataclass(frozen=True)
class Bind:
    """Request: bind launches to shared buffers; `number` identifies the binding in later requests."""

    number: int
    launches: tuple[KernelLaunch, ...]
    shared: int


@dataclass(frozen=True)
class Run:
    """Request: run bound launches, each time in another thread order."""

    binding: int
    shared: int
    initialised: frozenset[str]


@dataclass(frozen=True)
class RunTraced:
    """Request: run launches once and check every access."""

    launches: tuple[KernelLaunch, ...]
    shared: int
    initialised: frozenset[str]
    options: TraceOptions


@dataclass(frozen=True)
class ReadVariable:
    """Request: send the bytes of a module's variable."""

    name: str


@dataclass(frozen=True)
class WriteVariable:
    """Request: write the bytes of a module's variable."""

    name: str
    content: bytes


Message = Share | Forget | Bind | Run | RunTraced | ReadVariable | WriteVariable


# What the kernel's process answers ----------------------------------------------------------------------------------

Kind = Literal["launch", "usage", "environment", "internal"]
KINDS: Mapping[type[OpbenchError], Kind] = {LaunchError: "launch", UsageError: "usage", EnvironmentFault: "environment"}


class Reply(msgspec.Struct):
    """The answer to a request.

    The kernel may have written it, so findings can be missing, and no result may depend on it.
    """

    error: str = ""
    kind: Kind = "internal"
    """The kind of error, which selects the exception that the judging process raises."""
    file: str = ""
    line: int = 0
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    completed: bool = True
    accesses: int = 0
    traffic: msgspec.Raw = msgspec.Raw(b"null")
    content: bytes = b""
    """The bytes of a variable."""


def send(channel: socket.socket, content: bytes) -> None:
    """Send bytes with their length."""
    channel.sendall(LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> bytes:
    """Receive bytes that `send` sent; raise EOFError at the end, ValueError for too many bytes."""
    size = LENGTH.unpack(_receive_exactly(channel, LENGTH.size))[0]
    if size > LONGEST_REPLY:
        raise ValueError(f"{size} bytes; {LONGEST_REPLY} are allowed")
    return _receive_exactly(channel, size)


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    """Receive `size` bytes; raise EOFError if the channel closes before."""
    content = bytearray()
    while len(content) < size:
        chunk = channel.recv(min(size - len(content), 1 << 20))
        if not chunk:
            raise EOFError
        content += chunk
    return bytes(content)


# In the kernel's process --------------------------------------------------------------------------------------------


def preload(runtime: Path) -> None:
    """Load the runtime in the fork server, so that no kernel's process does."""
    load_runtime(lambda: runtime)


@dataclass(frozen=True)
class Module:
    """A compiled module, and the resource limits of the process that runs it."""

    path: Path
    request: BuildRequest
    sources: tuple[Path, ...]
    """The kernel's own files, whose lines findings quote."""
    workers: int
    memory_bytes: int
    cpu_s: int
    log_bytes: int = 16 << 20
    open_files: int = 64


class PrebuiltBackend(CpuBackend):
    """The cpu backend for one module that is already compiled."""

    def __init__(self, module: Module) -> None:
        self._module = module.path
        super().__init__(module.path.parent, module.workers)

    def compile(self, request: BuildRequest) -> Path:
        """Return the compiled module."""
        return self._module

    def compile_traced(self, request: BuildRequest) -> Path:
        """Return the compiled module."""
        return self._module

    @functools.cached_property
    def _runtime(self) -> Runtime:
        return load_runtime(lambda: self._module)  # the fork server has loaded it


class MappedBuffer(CpuBuffer):
    """A buffer in memory that the judging process maps, too, between unmapped pages of this process."""

    def __init__(self, shared: SharedBuffer, memory: int) -> None:
        self._memory, self._offset = memory, shared.offset
        super().__init__(shared.name, shared.shape, shared.dtype)

    def _map(self, name: str, shape: tuple[int, ...], size: int) -> int:
        base = super()._map(name, shape, size)
        map_file(base + self._fence_bytes, self._mapped_bytes, self._memory, self._offset)
        return base


class Server:
    """Answer requests about one module in the kernel's process."""

    def __init__(self, backend: PrebuiltBackend, request: BuildRequest, channel: socket.socket) -> None:
        self._backend, self._request, self._channel = backend, request, channel
        self._program = backend.load(request)
        self._shared: dict[int, dict[str, Buffer]] = {}
        self._bound: dict[int, Callable[[], None]] = {}

    def answer(self, message: Message) -> Reply:
        """Execute one request."""
        match message:
            case Share():
                self._share(message)
            case Forget():
                self._backend.free(self._shared.pop(message.number, {}))
            case ReadVariable():
                return Reply(content=self._program.variables()[message.name].read().tobytes())
            case WriteVariable():
                self._program.variables()[message.name].write(np.frombuffer(message.content, np.uint8))
            case Bind():
                self._bound[message.number] = self._program.bind(message.launches, self._shared[message.shared])
            case Run():
                self._buffers(message)
                self._bound[message.binding]()
                return Reply(findings=tuple(self._backend.synchronize()))
            case RunTraced():
                trace = self._backend.trace(self._request, message.launches, self._buffers(message), message.options)
                traffic = msgspec.Raw(msgspec.json.encode(trace.traffic.to_json()))
                return Reply(
                    findings=trace.findings,
                    notes=trace.notes,
                    completed=trace.completed,
                    accesses=trace.accesses,
                    traffic=traffic,
                )
        return Reply()

    def _buffers(self, message: Run | RunTraced) -> dict[str, Buffer]:
        """Return the buffers of a run; mark those that are initialised."""
        buffers = self._shared[message.shared]
        for name, buffer in buffers.items():
            cast(CpuBuffer, buffer).initialised = name in message.initialised
        return buffers

    def _share(self, message: Share) -> None:
        """Receive the file of memory shared between the processes, and map its buffers under `message.number`."""
        _, files, _, _ = socket.recv_fds(self._channel, 1, 1)
        try:
            self._shared[message.number] = {buffer.name: MappedBuffer(buffer, files[0]) for buffer in message.buffers}
        finally:
            os.close(files[0])


def serve(module: Module, files: Sequence[int]) -> None:
    """Confine this process, load a module and answer requests until the channel closes."""
    channel = socket.socket(fileno=files[0])
    readable = (module.path, constants_of(module.path), *module.sources, INCLUDE, *map(Path, SYSTEM_FILES))
    limits = Limits(module.cpu_s, module.memory_bytes, module.log_bytes, module.open_files)
    enter(Confinement(readable, limits=limits), seccomp.loading_filter())
    reply, server = Reply(), None
    try:
        server = Server(PrebuiltBackend(module), module.request, channel)
        seccomp.install(seccomp.kernel_filter())
    except OpbenchError as error:
        reply = _error_reply(error)
    send(channel, msgspec.json.encode(reply))
    while server is not None:
        try:
            message: Message = pickle.loads(receive(channel))
        except EOFError:
            return
        try:
            reply = server.answer(message)
        except OpbenchError as error:
            reply = _error_reply(error)
        except MemoryError as error:
            reply = Reply(f"not enough memory: {error}; choose a smaller problem", "environment")
        except Exception as error:
            traceback.print_exc()
            reply = Reply(f"{type(error).__name__}: {error}")
        send(channel, msgspec.json.encode(reply))


def _error_reply(error: OpbenchError) -> Reply:
    """Return the reply that reports an error to the judging process."""
    error_kind: Kind = next(
        (error_kind for error_type, error_kind in KINDS.items() if isinstance(error, error_type)), "internal"
    )
    location = error.location
    return Reply(error.message, error_kind, str(location.file) if location else "", location.line if location else 0)
