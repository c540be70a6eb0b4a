"""The cage: what a confined process can still do, each in a process of its own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.cage import facts, seccomp
from opbench.cage.confine import Confinement, Limits, enter
from opbench.cage.fork_server import ForkServer
from opbench.cage.program import run_program
from opbench.errors import EnvironmentFault
from support.checks.errors import refuses

pytestmark = pytest.mark.skipif(bool(facts.available().missing_feature), reason=facts.available().missing_feature)

SYSTEM = tuple(map(Path, ("/usr", "/bin", "/lib", "/lib64")))
LIMITS = Limits(cpu_s=20, memory_bytes=1 << 30, file_bytes=1 << 20, open_files=64)
ESCAPED, REFUSED = 7, 8
"""Exit codes of a task: it did what it must not do, or the system refused."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = ForkServer()
    yield started
    started.close()


def _attempt(name: str, path: str, read: str, write: str, stage: str) -> None:
    """Confine this process as a stage does, try something, and end with a code that says how it went."""
    filters: dict[str, Callable[[], bytes]] = {
        "compile": seccomp.compiler_filter,
        "load": seccomp.loading_filter,
        "run": seccomp.kernel_filter,
    }
    enter(Confinement((Path(read),), (Path(write),) if write else (), (), LIMITS), filters[stage]())
    try:
        ATTEMPTS[name](path)
    except OSError as error:
        refused = error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EFBIG, errno.EMFILE, errno.ENOMEM)
        os._exit(REFUSED if refused else ESCAPED)
    except (MemoryError, ValueError):  # Python's setrlimit raises ValueError
        os._exit(REFUSED)
    os._exit(ESCAPED)


def _system_call(number: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")


def _write(path: str) -> None:
    with Path(path).open("ab", buffering=0) as file:
        file.write(b"x")


def _fill(path: str) -> None:
    with Path(path).open("wb", buffering=0) as file:
        for _ in range(4):
            if file.write(bytes(1 << 20)) < 1 << 20:
                raise OSError(errno.EFBIG, "")


def _open_many(path: str) -> None:
    held = [os.dup(0) for _ in range(200)]
    assert held


ATTEMPTS: dict[str, Callable[[str], object]] = {
    "read": lambda path: Path(path).read_bytes(),
    "list": lambda path: list(Path(path).iterdir()),
    "write": _write,
    "fill": _fill,
    "link": lambda path: Path(path).symlink_to("/etc/passwd"),
    "socket": lambda path: socket.socket(),
    "pair": lambda path: socket.socketpair(),
    "fork": lambda path: os.fork() or os._exit(0),
    "execute": lambda path: os.execv(path, [path]),
    "kill": lambda path: os.kill(os.getppid(), signal.SIGKILL),
    "trace": lambda path: _system_call(seccomp.CALL_NUMBERS["ptrace"][0] or 0, 16, os.getppid(), 0, 0),
    "mount": lambda path: _system_call(seccomp.CALL_NUMBERS["mount"][0] or 0, 0, 0, 0, 0, 0),
    "namespace": lambda path: _system_call(seccomp.CALL_NUMBERS["unshare"][0] or 0, 0x10000000),
    "code": lambda path: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
    "memory": lambda path: mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
    "files": _open_many,
    "limit": lambda path: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),
    "anonymous": lambda path: os.memfd_create("x"),
}
EVERYWHERE = ("read", "list", "write", "link", "socket", "pair", "kill", "trace", "mount", "namespace", "files")
EXTRA = {
    "compile": ("fill", "memory"),
    "load": ("fork", "execute", "anonymous", "memory"),
    "run": ("fork", "execute", "anonymous", "memory", "code", "limit"),
}
needs_x86 = pytest.mark.skipif(seccomp.MACHINE != "x86_64", reason="the numbers in the test are those of x86-64")


@needs_x86
@pytest.mark.parametrize(
    ("stage", "attempt"), [(s, a) for s, more in EXTRA.items() for a in (*EVERYWHERE, *more)], ids=str
)
def test_a_confined_process_cannot_leave(server: ForkServer, tmp_path: Path, stage: str, attempt: str) -> None:
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("secret")
    paths = {"list": outside, "link": outside / "link", "execute": Path("/bin/true"), "fill": own / "big"}
    write = str(own) if stage == "compile" else ""
    child = server.start(_attempt, attempt, str(paths.get(attempt, secret)), str(own), write, stage)
    assert child.wait(30.0) in (REFUSED, -signal.SIGSYS)
    assert secret.read_text() == "secret"
    assert sorted(p.name for p in outside.iterdir()) == ["secret"]


def _use(path: str, channel: str) -> None:
    """Confine this process as one that runs a kernel, then do what the emulator does."""
    # The server is forked from a test process, which may hold much memory and many files after other tests.
    enter(Confinement((Path(path),), limits=Limits(20, 16 << 30, 1 << 20, 4096)), seccomp.kernel_filter())
    assert Path(path).read_text() == "own"
    seen: list[int] = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory = mmap.mmap(-1, 1 << 20)
    memory[:4] = b"abcd"
    assert sorted(seen) == [0, 1, 2] and channel


def test_what_a_kernel_needs_stays_possible(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("own")
    assert server.start(_use, str(tmp_path / "own"), "x").wait(30.0) == 0


def test_a_program_sees_its_folder_and_no_variable(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPBENCH_TEST_TOKEN", "secret")
    other = tmp_path / "other.txt"
    other.write_text("not for it")
    folder = tmp_path / "scratch"
    folder.mkdir()
    cage = Confinement((), (folder, Path("/dev/null")), SYSTEM, LIMITS)
    script = f"echo made > made.txt; env; cat {other}; echo bad > {tmp_path}/new.txt"
    ended = run_program(server, cage, ["/bin/sh", "-c", script], {"A": "1"}, 30.0)
    assert (folder / "made.txt").read_text() == "made\n"
    assert "secret" not in ended.messages and "not for it" not in ended.messages and "A=1" in ended.messages
    assert ended.code != 0 and not (tmp_path / "new.txt").exists()


def test_a_program_ends_at_its_limits(server: ForkServer, tmp_path: Path) -> None:
    cage = Confinement((), (tmp_path, Path("/dev/null")), SYSTEM, LIMITS)
    assert run_program(server, cage, ["/bin/sh", "-c", "sleep 60 & sleep 60"], {}, 0.3).code is None
    flood = run_program(server, cage, ["/bin/sh", "-c", "while :; do echo line; done"], {}, 60.0)
    assert flood.code == -signal.SIGXFSZ and len(flood.messages) <= 1 << 20
    short = replace(cage, limits=replace(LIMITS, cpu_s=1))
    assert run_program(server, short, ["/bin/sh", "-c", "while :; do :; done"], {}, 60.0).code in (-9, -24)


def test_the_fork_server_has_no_file_of_its_parent(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "open.txt").open("w"), ForkServer() as own:
        cage = Confinement((Path("/proc"),), (tmp_path,), SYSTEM, LIMITS)
        listed = run_program(own, cage, ["/bin/ls", "-l", "/proc/self/fd"], {}, 30.0)
    assert listed.code == 0 and "open.txt" not in listed.messages


def test_a_closed_server_says_so() -> None:
    closed = ForkServer()
    closed.close()
    with pytest.raises(EnvironmentFault):
        closed.start(os.getpid)


@pytest.mark.parametrize(
    "change", [{"landlock_version": 0}, {"seccomp": False}, {"system": "Darwin 24.1"}], ids=lambda c: next(iter(c))
)
def test_a_system_without_a_cage_is_refused(change: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    poor = replace(facts.available(), **change)  # type: ignore[arg-type]
    assert poor.missing_feature
    monkeypatch.setattr(facts, "available", lambda: poor)
    with refuses("cage-impossible", error=EnvironmentFault):
        facts.require()
    assert not replace(
        facts.available(), landlock_version=1, seccomp=True, user_namespaces=False, system="Linux 6"
    ).missing_feature


def test_every_named_system_call_has_a_number_here() -> None:
    named = {*seccomp.CALLS_OUTSIDE_THE_PROCESS, *seccomp.CALLS_THAT_START_PROGRAMS, *seccomp.CALLS_OF_A_KERNEL}
    assert named <= set(seccomp.CALL_NUMBERS)
    for column in (0, 1):
        numbers = [row[column] for row in seccomp.CALL_NUMBERS.values() if row[column] is not None]
        assert len(numbers) == len(set(numbers))
