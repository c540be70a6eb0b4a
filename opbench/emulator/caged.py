"""The cpu backend for untrusted kernels: they are compiled and run in confined processes.

This process allocates the buffers, and compares results with the reference. A kernel runs in its own process on
copies of the buffers, which are copied back before they are compared.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import mmap
import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from opbench import units
from opbench.backend.base import Buffer, KernelResources, Program, SparseMemory, Trace, TraceOptions
from opbench.backend.counts import Traffic
from opbench.backend.findings import Finding
from opbench.cage.facts import require
from opbench.cage.fork_server import Child, ForkServer
from opbench.emulator.backend import CpuBackend
from opbench.emulator.buffer import DTYPES, CpuArray, CpuBuffer, available_memory
from opbench.emulator.build import KernelBuilder
from opbench.emulator.caged_build import CagedBuilder
from opbench.emulator.kernel_process import (
    Bind,
    Forget,
    Message,
    Module,
    ReadVariable,
    Reply,
    Run,
    RunTraced,
    Share,
    SharedBuffer,
    WriteVariable,
    preload,
    receive,
    send,
    serve,
)
from opbench.emulator.program import variable_locations
from opbench.emulator.toolchain import FAST, CompileMode
from opbench.errors import EnvironmentFault, LaunchError, Location, OpbenchError, UsageError
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.source.sources import include_closure

LAZY_IMPORTS = ("elftools.elf.elffile", "elftools.dwarf.dwarfinfo", "elftools.dwarf.callframe", "numpy.ctypeslib")
MAX_PROCESSES = 4
"""Kernels' processes that wait for their next launch at the same time."""
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = 1 << 30, 16 << 30
"""Limits of one kernel's process: half of the available memory, but not less and not more than these."""
CPU_LIMIT_S = 3600
"""The limit on CPU time of one kernel's process, summed over its threads; usually the time limit of a case ends it."""
ERRORS: Mapping[str, type[OpbenchError]] = {
    "launch": LaunchError,
    "usage": UsageError,
    "environment": EnvironmentFault,
    "internal": LaunchError,
}


def import_all() -> None:
    """Import all modules that the emulator may need, because a confined process cannot read Python files."""
    for name in LAZY_IMPORTS:
        importlib.import_module(name)


def _huge_problem_error(subject: str, size: str, value: int) -> UsageError:
    """Return the error for a problem whose buffers do not fit into memory and therefore cannot be copied."""
    return UsageError(
        f"{subject}: --untrusted cannot check problems beyond the memory (here {size}), because it copies all "
        "buffers; remove --huge, or remove --untrusted for a kernel that you trust",
        kind="untrusted-huge",
        subject=subject,
        value=value,
    )


@dataclass
class SharedMemory:
    """Shared memory with copies of some buffers."""

    number: int
    buffers: dict[str, CpuBuffer]
    memory: mmap.mmap
    copies: dict[str, np.ndarray]
    """The bytes of each copy."""
    file: int

    def copy_in(self) -> None:
        """Copy the buffers to the shared memory."""
        for name, copy in self.copies.items():
            copy[:] = self.buffers[name].whole

    def copy_out(self) -> None:
        """Copy the shared memory to the buffers; afterwards no kernel can change the results to judge."""
        for name, copy in self.copies.items():
            self.buffers[name].whole[:] = copy
            self.buffers[name].initialised = True

    @property
    def initialised(self) -> frozenset[str]:
        """Return the names of the buffers that were written since they were poisoned."""
        return frozenset(name for name, buffer in self.buffers.items() if buffer.initialised)

    def close(self) -> None:
        """Unmap the memory in this process."""
        self.copies.clear()
        self.memory.close()
        os.close(self.file)


class KernelProcess:
    """The process that runs the kernels of one untrusted module, seen from the judging process."""

    def __init__(self, server: ForkServer, module: Module) -> None:
        own_socket, kernel_socket = socket.socketpair()
        with kernel_socket:
            self._child: Child = server.start(serve, module, files=[kernel_socket.fileno()])
        self._channel = own_socket
        self._shared: set[int] = set()
        self.bindings: set[int] = set()
        """Numbers of the launches that are bound in this process."""
        self.source = module.request.source
        self._reply()

    def run(self, message: Run | RunTraced, memory: SharedMemory) -> Reply:
        """Run launches on copies of buffers, copy the results back and return the process's reply.

        Raises the kernel's error, or LaunchError if its process died.
        """
        self._share(memory)
        memory.copy_in()
        self._send(message)
        reply = self._reply()
        memory.copy_out()
        return reply

    def bind(self, message: Bind, memory: SharedMemory) -> None:
        """Bind launches; raise LaunchError for a launch that a GPU would refuse."""
        self._share(memory)
        self._send(message)
        self._reply()
        self.bindings.add(message.number)

    def ask_variable(self, message: ReadVariable | WriteVariable) -> bytes:
        """Read or write a variable; return the bytes that were read, or none for a write."""
        self._send(message)
        return self._reply().content

    def forget(self, number: int) -> None:
        """Let the process unmap shared memory."""
        if number in self._shared:
            self._shared.remove(number)
            self._send(Forget(number))
            self._reply()

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._child.wait(0) is not None

    def stop(self) -> None:
        """End the process."""
        self._channel.close()
        self._child.kill()

    def _share(self, memory: SharedMemory) -> None:
        """Pass memory shared between the processes to the kernel's process, once."""
        if memory.number in self._shared:
            return
        offsets = itertools.accumulate((b.whole.size for b in memory.buffers.values()), initial=0)
        shared = tuple(
            SharedBuffer(name, buffer.shape, _dtype_name(buffer.dtype), offset)
            for (name, buffer), offset in zip(memory.buffers.items(), offsets, strict=False)
        )
        self._send(Share(memory.number, shared))
        socket.send_fds(self._channel, [b"f"], [memory.file])
        self._reply()
        self._shared.add(memory.number)

    def _send(self, message: Message) -> None:
        """Send a request; a process that died is reported by the missing reply."""
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # the answer's absence is reported
            send(self._channel, pickle.dumps(message))

    def _reply(self) -> Reply:
        """Receive a reply; raise the error that it reports, or LaunchError if the process died or sent invalid data."""
        try:
            reply = msgspec.json.decode(receive(self._channel), type=Reply)
        except (EOFError, ConnectionError):
            raise LaunchError(self._death_message()) from None
        except (ValueError, msgspec.MsgspecError, KeyError, RecursionError) as error:
            self._child.kill()
            raise LaunchError(
                f"{self.source}: the kernel's process sent an invalid report ({error}) and was stopped; the kernel "
                "may have overwritten the process's memory, so check its addresses and indices",
                cause=error,
            ) from None
        if reply.error:
            location = Location(Path(reply.file), reply.line) if reply.file else None
            raise ERRORS[reply.kind](reply.error, location)
        return reply

    def _death_message(self) -> str:
        """Return the message for a kernel's process that died, with the signal or the exit code."""
        code = self._child.wait(5.0)
        self._child.kill()
        if code == -signal.SIGSYS:
            return (
                f"{self.source}: the kernel made a system call that is not allowed for an untrusted kernel, so opbench "
                "stopped the kernel; remove the code that makes the call"
            )
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return (
            f"{self.source}: the process of the kernel died ({cause}); if you trust the kernel, check it without "
            "--untrusted to see the line of the invalid access"
        )


class CagedProgram:
    """An untrusted module; its launches run in a separate process."""

    machine_code_sha256 = ""
    uses_device_heap = False

    def __init__(self, backend: CagedBackend, path: Path, request: BuildRequest) -> None:
        self.resources: Mapping[str, KernelResources] = {}
        self._backend, self._path, self._request = backend, path, request

    def bind(self, launches: Sequence[KernelLaunch], buffers: Mapping[str, Buffer]) -> Callable[[], None]:
        """Return a callable that runs all launches in order."""
        return self._backend.bind_in_process(self._path, self._request, tuple(launches), buffers)

    def variables(self) -> Mapping[str, Buffer]:
        """Return the module's variables by name; each access goes to the kernel's process."""

        def ask(message: ReadVariable | WriteVariable) -> bytes:
            return self._backend.ask_variable(self._path, self._request, message)

        return {
            name: CagedVariable(name, location.bytes, ask) for name, location in variable_locations(self._path).items()
        }


class CagedVariable(CpuArray):
    """A variable of an untrusted module; its content is in the kernel's process, and the bytes here are a copy."""

    def __init__(self, name: str, nbytes: int, ask: Callable[[ReadVariable | WriteVariable], bytes]) -> None:
        super().__init__(name, (nbytes,), "u8", np.zeros(nbytes, np.uint8))
        self._ask = ask

    def read(self) -> np.ndarray:
        """Return a copy of the content."""
        self._fetch()
        return super().read()

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the content."""
        self._fetch()
        return super().fingerprint()

    def write(self, array: np.ndarray) -> None:
        """Copy a host array of the same size into the variable."""
        super().write(array)
        self._store()

    def copy_from(self, other: CpuArray, shift: int = 0) -> None:
        """Copy the content of a buffer of the same size."""
        super().copy_from(other, shift)
        self._store()

    def poison(self) -> None:
        """Fill the module variable with 0xFF bytes, also in the kernel's process."""
        super().poison()
        self._store()

    def _fetch(self) -> None:
        """Copy the module variable from the kernel's process to this process."""
        content = self._ask(ReadVariable(self.name))
        if len(content) != self.bytes:
            raise LaunchError(
                f"{self.name}: the kernel's process sent {len(content)} bytes of this variable instead of "
                f"{self.bytes}; the kernel may have overwritten the process's memory, so check its addresses and "
                "indices",
                kind="invalid-report",
                subject=self.name,
            )
        self._bytes[:] = np.frombuffer(content, np.uint8)

    def _store(self) -> None:
        """Copy the module variable from this process to the kernel's process."""
        self._ask(WriteVariable(self.name, self._bytes.tobytes()))


class CagedBackend(CpuBackend):
    """Run untrusted kernels in confined processes; requires the features that `opbench.cage.facts.require` checks."""

    def __init__(self, server: ForkServer, capability: tuple[int, int] | None = None) -> None:
        require()
        super().__init__(capability=capability)
        self._server = server
        self._processes: dict[Path, KernelProcess] = {}
        self._memory: dict[tuple[int, ...], SharedMemory] = {}
        self._numbers = itertools.count()
        self._findings: list[Finding] = []

    def _make_builder(self, mode: CompileMode) -> KernelBuilder:
        return CagedBuilder(self._server, self._toolchain, self._folder, mode, self.capability)

    def load(self, request: BuildRequest) -> Program:
        """Compile a module if necessary; its process loads it at the first launch."""
        return CagedProgram(self, self.compile(request), request)

    def load_traced(self, request: BuildRequest) -> Program:
        """Compile the instrumented build of a module if necessary, and run it without a trace."""
        return CagedProgram(self, self.compile_traced(request), request)

    def bind_in_process(
        self, path: Path, request: BuildRequest, launches: tuple[KernelLaunch, ...], buffers: Mapping[str, Buffer]
    ) -> Callable[[], None]:
        """Return a callable that copies the buffers, runs the launches of a module and copies the results back."""
        number = next(self._numbers)

        def bind(process: KernelProcess, memory: SharedMemory) -> None:
            if number not in process.bindings:  # the module may have another process than at its last launch
                process.bind(Bind(number, launches, memory.number), memory)

        def run() -> None:
            memory = self._memory_of(buffers)
            with self._running_process(path, request) as process:
                bind(process, memory)
                reply = process.run(Run(number, memory.number, memory.initialised), memory)
            self._findings += reply.findings

        with self._running_process(path, request) as process:
            bind(process, self._memory_of(buffers))
        return run

    def ask_variable(self, path: Path, request: BuildRequest, message: ReadVariable | WriteVariable) -> bytes:
        """Read or write a variable in the process of a module."""
        with self._running_process(path, request) as process:
            return process.ask_variable(message)

    def trace(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        options: TraceOptions = TraceOptions(),  # noqa: B008 (frozen)
    ) -> Trace:
        """Run the launches once in the instrumented build in the kernel's process; return the process's reports."""
        path = self.compile_traced(request)
        memory = self._memory_of(buffers)
        message = RunTraced(tuple(launches), memory.number, memory.initialised, options)
        with self._running_process(path, request) as process:
            reply = process.run(message, memory)
        try:
            traffic = Traffic.from_json(msgspec.json.decode(reply.traffic))
        except (ValueError, KeyError, TypeError, RecursionError, OpbenchError) as error:
            raise LaunchError(
                f"{request.source}: the kernel's process sent invalid counts of memory accesses ({error}); the "
                "kernel may have overwritten the process's memory, so check its addresses and indices",
                cause=error,
            ) from None
        return Trace(reply.findings, traffic, reply.completed, reply.accesses, notes=reply.notes)

    def trace_sample(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        skip_blocks: int = 0,
    ) -> Trace:
        """Raise UsageError, because sparse buffers cannot be copied."""
        raise _huge_problem_error(str(request.source), f"{len(buffers)} sparse buffers", len(buffers))

    def allocate_sparse(self, name: str, shape: tuple[int, ...], dtype: str) -> SparseMemory:
        """Raise UsageError, because sparse buffers cannot be copied."""
        nbytes = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        raise _huge_problem_error(f"buffer '{name}' {list(shape)}", units.si(nbytes, "B"), nbytes)

    def synchronize(self) -> list[Finding]:
        """Return the findings since the last call."""
        findings, self._findings = self._findings, []
        return findings

    def close(self) -> None:
        """End the processes of all kernels."""
        for path in list(self._processes):
            self._stop_process(path)

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Unmap the memory of the buffers, and their copies."""
        freed = {id(buffer) for buffer in buffers.values()}
        for key in [key for key in self._memory if freed & set(key)]:
            memory = self._memory.pop(key)
            for path, process in list(self._processes.items()):
                try:
                    process.forget(memory.number)
                except OpbenchError:
                    self._stop_process(path)
            memory.close()
        super().free(buffers)

    def _memory_of(self, buffers: Mapping[str, Buffer]) -> SharedMemory:
        """Return shared memory for copies of buffers; it is allocated once for the same buffers."""
        own_buffers = {name: cast(CpuBuffer, buffer) for name, buffer in buffers.items()}
        key = tuple(sorted(map(id, own_buffers.values())))
        if key not in self._memory:
            self._memory[key] = _shared_memory(next(self._numbers), own_buffers)
        return self._memory[key]

    def _process(self, path: Path, request: BuildRequest) -> KernelProcess:
        """Return the process of a module; start it if there is none."""
        process = self._processes.pop(path, None)
        if process is None:
            for oldest_path in list(self._processes)[: 1 - MAX_PROCESSES]:
                self._stop_process(oldest_path)
            sources = tuple(source.path.absolute() for source in include_closure(request.source, request.include))
            free_bytes = available_memory() or 2 * MIN_MEMORY_BYTES
            limits = min(max(MIN_MEMORY_BYTES, free_bytes // 2), MAX_MEMORY_BYTES), CPU_LIMIT_S
            _ = self._preloaded
            process = KernelProcess(self._server, Module(path, request, sources, self._workers, *limits))
        self._processes[path] = process
        return process

    @functools.cached_property
    def _preloaded(self) -> Path:
        """Return the runtime library after the fork server has loaded it, so that kernels' processes inherit it."""
        path = KernelBuilder(self._toolchain, self._folder, FAST, self.capability).runtime()
        self._server.call(preload, path)
        return path

    def _stop_process(self, path: Path) -> None:
        self._processes.pop(path).stop()

    @contextlib.contextmanager
    def _running_process(self, path: Path, request: BuildRequest) -> Iterator[KernelProcess]:
        """Yield a module's process; if it dies, the next use starts a new one."""
        process = self._process(path, request)
        try:
            yield process
        finally:
            if process.has_ended:
                self._stop_process(path)


def _dtype_name(dtype: np.dtype) -> str:
    """Return a dtype name for a stored type; bf16 and u16 are stored in the same way."""
    return next(name for name, stored in DTYPES.items() if np.dtype(stored) == dtype)


def _shared_memory(number: int, buffers: dict[str, CpuBuffer]) -> SharedMemory:
    """Return shared memory that is large enough for copies of buffers; raise EnvironmentFault if memory is short."""
    sizes = [buffer.whole.size for buffer in buffers.values()]
    file = os.memfd_create("opbench-buffers")
    try:
        os.ftruncate(file, max(sum(sizes), mmap.PAGESIZE))
        memory = mmap.mmap(file, max(sum(sizes), mmap.PAGESIZE))
    except OSError as error:
        os.close(file)
        raise EnvironmentFault(
            f"not enough memory: {error}; choose a smaller problem (--problem)", kind="memory-short"
        ) from None
    content = np.frombuffer(memory, np.uint8)
    ends = itertools.accumulate(sizes)
    copies = {name: content[end - size : end] for name, size, end in zip(buffers, sizes, ends, strict=True)}
    return SharedMemory(number, buffers, memory, copies, file)
