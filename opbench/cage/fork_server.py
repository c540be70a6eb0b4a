"""A small process that starts confined child processes in milliseconds.

A child of the parent itself would have a copy of the parent's memory, with seeds and expected results. The fork server
starts before the parent has any, has one thread and no open file of the parent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from opbench.cage.system import die_with_parent
from opbench.errors import EnvironmentFault

REQUEST_BYTES = 1 << 20
"""The longest request; it holds paths and a command line."""
MAX_PASSED_FILES = 8
NUMBER = struct.Struct("<i")
PASSED_VARIABLES = ("PATH", "LANG", "OPBENCH_CPU_ORDER", "TMPDIR")
"""The environment variables that children see; others may hold secrets."""
FAILED_EXIT_CODE = 125
"""The exit code of a child whose task raised an exception; the log has the traceback."""

Task = Callable[..., None]


@dataclass(frozen=True)
class _Request:
    task: Task
    arguments: tuple[Any, ...]
    here: bool = False
    """Whether the server itself runs the task, so that later children inherit its effect."""


class Child:
    """A process that the fork server started, as the parent sees it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._code: int | None = None

    def wait(self, limit_s: float | None = None) -> int | None:
        """Return the exit code, negative for a signal; None if the child still runs after `limit_s` seconds."""
        if self._code is None:
            if limit_s is not None and not select.select([self._status], [], [], limit_s)[0]:
                return None
            status_bytes = os.read(self._status, NUMBER.size)
            os.close(self._status)
            # Without an answer the server has ended, and its children with it.
            exit_code = (
                os.waitstatus_to_exitcode(NUMBER.unpack(status_bytes)[0]) if len(status_bytes) == NUMBER.size else -9
            )
            self._code = exit_code
        return self._code

    def kill(self) -> None:
        """End the child and the processes that it started, and wait for its end."""
        if self._code is None and self.wait(0) is None:
            for send_signal in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    send_signal(self.pid, signal.SIGKILL)
            self.wait()


class ForkServer:
    """The parent's handle to its fork server; threads may share it."""

    def __init__(self) -> None:
        parent_socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end_socket in (parent_socket, server_socket):
            end_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        sys.stdout.flush()
        sys.stderr.flush()
        parent_pid, pid = os.getpid(), os.fork()
        if pid == 0:
            _run_server(server_socket, parent_pid)
        server_socket.close()
        self._socket, self._pid = parent_socket, pid
        self._lock = threading.Lock()

    def start(self, task: Task, *arguments: object, files: Sequence[int] = ()) -> Child:
        """Start a child that runs a function of a module, with picklable arguments, and then ends.

        The function gets descriptors that refer to the same open files as `files`, as its last argument. Raises
        EnvironmentFault if the server has ended.
        """
        return self._send(_Request(task, arguments), files)

    def call(self, task: Task, *arguments: object) -> None:
        """Run a function in the fork server and wait; all children that start later have the modules that it loads."""
        if self._send(_Request(task, arguments, here=True), ()).wait() != 0:
            raise EnvironmentFault(
                "the sandbox of --untrusted cannot be prepared; read the reason in the worker's log, and see what is "
                "missing with: opbench doctor",
                kind="cage-not-prepared",
            )

    def _send(self, request: _Request, files: Sequence[int]) -> Child:
        """Send a request with files to the server, and return the child that the server starts for it."""
        read_end, write_end = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [pickle.dumps(request)], [write_end, *files])
        except OSError as error:
            os.close(read_end)
            raise EnvironmentFault(
                f"the process that starts confined kernels has ended ({error}); run the command again",
                kind="fork-server-ended",
                value=error,
            ) from None
        finally:
            os.close(write_end)
        pid_bytes = os.read(read_end, NUMBER.size)
        if len(pid_bytes) < NUMBER.size:
            os.close(read_end)
            raise EnvironmentFault(
                "the process that starts confined kernels has ended; check the limit of processes with: ulimit -u, "
                "then run the command again",
                kind="fork-server-ended",
            )
        return Child(NUMBER.unpack(pid_bytes)[0], read_end)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback_object: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and all its children."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _run_server(requests: socket.socket, parent: int) -> None:
    """Serve in a process that was just forked, and never return."""
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(parent)
        _drop_parent_state(requests.fileno())
        _serve(requests)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _drop_parent_state(kept_file: int) -> None:
    """Close every file of the parent except the log, and delete its environment variables."""
    gc.disable()
    gc.freeze()
    os.closerange(3, kept_file)
    os.closerange(kept_file + 1, os.sysconf("SC_OPEN_MAX"))
    for name in [name for name in os.environ if name not in PASSED_VARIABLES]:
        del os.environ[name]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end


def _serve(requests: socket.socket) -> None:
    """Handle requests until the parent closes the socket, and report each child's exit code when it ends."""
    children: dict[int, int] = {}
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests.fileno(), read_end], [], [])
        if read_end in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(read_end, 4096)
            _report_exit_codes(children)
        if requests.fileno() in ready:
            data, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES, MAX_PASSED_FILES)
            if not data:
                return
            _handle_request(pickle.loads(data), files, children, (requests.fileno(), read_end, write_end))


def _handle_request(
    request: _Request, received_files: list[int], children: dict[int, int], server_files: Sequence[int]
) -> None:
    """Run a task in a new child, or in the server itself; send its process ID through the first received file."""
    status, *descriptors = received_files
    server = os.getpid()
    if request.here:
        os.write(status, NUMBER.pack(server))
        os.write(status, NUMBER.pack(_run_task(request, []) << 8))
        os.close(status)
        return
    pid = os.fork()
    if pid == 0:
        code = FAILED_EXIT_CODE
        try:
            die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (*server_files, status, *children.values()):
                os.close(descriptor)
            os.setsid()
            code = _run_task(request, descriptors)
        finally:
            os._exit(code)
    children[pid] = status
    os.write(status, NUMBER.pack(pid))
    for file in descriptors:
        os.close(file)


def _run_task(request: _Request, files: list[int]) -> int:
    """Run a task and return its exit code."""
    try:
        request.task(*request.arguments, *([files] if files else []))
        return 0
    except BaseException:
        traceback.print_exc()
        return FAILED_EXIT_CODE
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _report_exit_codes(children: dict[int, int]) -> None:
    """Send the wait status of each ended child to the parent."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        status_file = children.pop(pid)
        with contextlib.suppress(OSError):
            os.write(status_file, NUMBER.pack(status))
        os.close(status_file)
