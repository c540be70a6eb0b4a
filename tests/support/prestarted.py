"""Start opbench's processes as forks of one process that has already imported opbench.

A fork saves the 0.3 to 0.5 s of CPU time in which each new process imports NumPy and opbench. The fork is a process
with its own environment, current folder, streams, exit code and signals. Where a fork would differ from a new
interpreter (another locale, another library path, modules in the current folder), the test gets a new interpreter.

OPBENCH_TEST_NEW_PROCESSES=1 starts a new interpreter for each process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SWITCH = "OPBENCH_TEST_NEW_PROCESSES"
COMMAND_LINE = ("-m", "opbench")
WORKER = ("-P", "-m", "opbench.running.server")
SAME = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENBLAS_", "OMP_", "MKL_", "COVERAGE")
"""Beginnings of the names of variables that are read while a process starts: they must be as they were."""
MAY_DIFFER = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTEST_CURRENT_TEST", "PYTHONDONTWRITEBYTECODE")
STATUS = struct.Struct("<i")
MOST_REQUEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Request:
    """One process to start; the open files come with it, those for stdin, stdout and stderr first."""

    arguments: tuple[str, ...]
    """The arguments of Python: those that select the program, then the program's own."""
    environment: dict[str, str]
    folder: str
    numbers: tuple[int, ...]
    """The descriptors that the open files have in the process."""


class Process:
    """A started process, with the part of Popen's interface that opbench and the tests use."""

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self.args = list(arguments)
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None
        self._connection = connection
        self.pid = self._number()

    def _number(self) -> int:
        data = self._connection.recv(STATUS.size, socket.MSG_WAITALL)
        if len(data) < STATUS.size:
            raise ChildProcessError("the process that forks has died")
        number: int = STATUS.unpack(data)[0]
        return number

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; raise TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._number()
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)


class Prestarted:
    """The way to a process that forks, from the process that started it and from all of its children."""

    def __init__(self, address: str, environment: Mapping[str, str], path: Sequence[str]) -> None:
        self.address = address
        self._started_with = dict(environment)
        self._path = frozenset(Path(part).absolute() for part in path)
        """Folders of modules: another one could hold modules with the names of those that are already imported."""

    def can_start(self, environment: Mapping[str, str], folder: Path) -> bool:
        """Return whether a fork is as good as a new interpreter with this environment."""
        if environment.get(SWITCH):
            return False
        known = self._started_with
        for name in {*environment, *known}:
            if name.startswith(SAME) and name not in MAY_DIFFER and environment.get(name) != known.get(name):
                return False
        added = {Path(part).absolute() for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part}
        return added - {folder.absolute()} <= self._path and not any(folder.glob("*.py"))

    def start(
        self, arguments: Sequence[str], files: Mapping[int, int], environment: Mapping[str, str], folder: Path
    ) -> Process:
        """Start a process whose descriptors (the keys) are open files of this process (the values)."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.address)
        request = Request(tuple(arguments), dict(environment), str(folder), tuple(files))
        message = pickle.dumps(request)
        assert len(message) <= MOST_REQUEST_BYTES
        socket.send_fds(connection, [STATUS.pack(len(message))], list(files.values()))
        connection.sendall(message)
        return Process(connection, [sys.executable, *arguments])

    def run(
        self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments; return its exit code and what it printed."""
        environment = os.environ if env is None else env
        if not self.can_start(environment, cwd):
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        with (
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
            Path(os.devnull).open("rb") as nothing,
        ):
            files = dict(enumerate(file.fileno() for file in (nothing, out, err)))
            process = self.start(arguments, files, environment, cwd)
            try:
                code = process.wait(timeout)
            except BaseException:
                process.kill()
                raise
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        return subprocess.CompletedProcess(process.args, code, *texts)

    def subprocess(self) -> types.SimpleNamespace:
        """Return the module subprocess for opbench.child_process, whose Popen starts forks where it can."""
        return types.SimpleNamespace(**{**vars(subprocess), "Popen": self.start_worker})

    def start_worker(self, command: Sequence[str], **options: object) -> Process | subprocess.Popen[bytes]:
        """Start a process as Popen does; a fork if it is a worker that a fork can be."""
        environment, folder = options["env"], Path.cwd()
        assert isinstance(environment, dict)
        arguments = tuple(command[1:])
        if (
            arguments[:3] != WORKER
            or len(arguments) != 4  # confined: its memory must not hold what a fork's holds
            or not self.can_start(environment, folder)
        ):
            return subprocess.Popen(command, **options)  # type: ignore[call-overload, no-any-return]
        with Path(os.devnull).open("rb") as nothing:
            files = {0: nothing.fileno(), **{n: options[s].fileno() for n, s in ((1, "stdout"), (2, "stderr"))}}  # type: ignore[attr-defined]
            files |= {number: number for number in options["pass_fds"]}  # type: ignore[attr-defined]
            return self.start(arguments, files, environment, folder)


@contextlib.contextmanager
def prestart(folder: Path):  # type: ignore[no-untyped-def]
    """Start the process that forks, and end it with everything that it started."""
    address = str(folder / "socket")
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "support.prestarted", address], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120.0
        while not Path(address).exists():
            assert process.poll() is None and time.monotonic() < deadline, "the process that forks does not start"
            time.sleep(0.01)
        yield Prestarted(address, os.environ, sys.path)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


# The process that forks ---------------------------------------------------------------------------------------------

Job = Callable[[], None]


def import_everything() -> None:
    """Import the modules of all commands and of the workers, without a thread or a GPU."""
    from opbench import cli

    for module, _ in cli.COMMANDS.values():
        importlib.import_module(module, "opbench.cli")
    for name in ("opbench.running.runner", "opbench.running.server", "opbench.emulator", "opbench.gpu.compile.nvrtc"):
        importlib.import_module(name)


def serve(address: str) -> Job | None:
    """Fork for each request; return the task of a child in the child, and None at the end."""
    sent, ended = socket.socketpair()
    for end in (sent, ended):
        end.setblocking(False)
    signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen(64)
    Path(f"{address}.new").rename(address)
    clients: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(ended, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                for pid in clients:
                    os.kill(pid, signal.SIGKILL)
                return None
            if key.fileobj is ended:
                _send_exit_codes(clients, selector, ended)
            elif key.fileobj is listener:
                client = listener.accept()[0]
                request, files = _receive(client)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in (sent, ended, listener, client, *clients.values()):
                        end.detach()
                    return _become(request, files, address)
                for file in files:
                    os.close(file)
                clients[pid] = client
                selector.register(client, selectors.EVENT_READ, pid)
                client.sendall(STATUS.pack(pid))
            elif key.data in clients:  # its parent has died
                selector.unregister(key.fileobj)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(key.data, signal.SIGKILL)


def _send_exit_codes(clients: dict[int, socket.socket], selector: selectors.BaseSelector, ended: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while ended.recv(4096):
            pass
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        client = clients.pop(pid)
        with contextlib.suppress(KeyError):
            selector.unregister(client)
        with contextlib.suppress(OSError):
            client.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))
        client.close()


def _receive(client: socket.socket) -> tuple[Request, list[int]]:
    data, files, _, _ = socket.recv_fds(client, STATUS.size, 64)
    data += client.recv(STATUS.size - len(data), socket.MSG_WAITALL) if len(data) < STATUS.size else b""
    size = STATUS.unpack(data)[0]
    request: Request = pickle.loads(client.recv(size, socket.MSG_WAITALL))
    return request, files


def _become(request: Request, files: Sequence[int], address: str) -> Job:
    """Take over the files, the environment, the folder and the arguments of a new process."""
    import fcntl

    highest = max((*request.numbers, *files)) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, highest) for file in files]
    for number, file in zip(request.numbers, moved, strict=True):
        os.dup2(file, number, inheritable=True)
    for link in Path("/proc/self/fd").iterdir():
        if int(link.name) not in request.numbers:
            with contextlib.suppress(OSError):
                os.close(int(link.name))
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    tempfile.tempdir = None
    first = [] if request.arguments[0] == "-P" else [request.folder]
    added = [part for part in request.environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    of_python = sys.path[len(before["PYTHONPATH"].split(os.pathsep)) :]
    from opbench import child_process

    vars(child_process)["subprocess"] = Prestarted(address, before, sys.path).subprocess()
    sys.path[:] = [*first, *added, *(part for part in of_python if part not in added)]
    sys.dont_write_bytecode = bool(request.environment.get("PYTHONDONTWRITEBYTECODE"))
    unbuffered = bool(request.environment.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(write_through=unbuffered)  # type: ignore[union-attr]
    sys.stderr.reconfigure(write_through=unbuffered)  # type: ignore[union-attr]
    importlib.invalidate_caches()
    if request.arguments[: len(WORKER)] == WORKER:
        sys.argv = ["server", *request.arguments[len(WORKER) :]]
        from opbench.running.server import main
    else:
        assert request.arguments[: len(COMMAND_LINE)] == COMMAND_LINE
        sys.argv = ["opbench", *request.arguments[len(COMMAND_LINE) :]]
        from opbench.cli import main
    return main


if __name__ == "__main__":
    import_everything()
    gc.collect()
    gc.freeze()
    if job := serve(sys.argv[1]):
        job()
