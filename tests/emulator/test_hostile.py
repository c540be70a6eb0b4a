"""Hostile kernels: none reaches its goal, with the rules for its text, and in the cage alone, without these rules.

Each file of tests/hostile has the lines `// must not: GOAL` and `// expect: OUTCOME`, or outcomes with | between
them; @NAMES@ in a file become paths and numbers of the test.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from opbench import api
from opbench.cage import facts
from opbench.cage.confine import Limits
from opbench.cage.fork_server import ForkServer
from opbench.checking.checking import Session
from opbench.emulator import CpuBackend, caged, caged_build
from opbench.emulator.caged import CagedBackend, SharedMemory
from opbench.emulator.untrusted import require_plain_names
from opbench.errors import CompileError, EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.launch import BuildRequest
from support.common import CATALOG, RELU, ROOT, said

pytestmark = pytest.mark.skipif(bool(facts.available().missing_feature), reason=facts.available().missing_feature)

HOSTILE = ROOT / "tests" / "hostile"
FILES = sorted(HOSTILE.glob("*.cu"))
BY_A_WORKER = ("never_ends", "prints_without_end")
"""Kernels whose limits a worker sets: it is stopped at its time limit, and the output goes to its log."""
LOG_BYTES = 17 << 20
GOALS = {
    "read-a-file",
    "test-for-a-file",
    "write-a-file",
    "open-a-socket",
    "start-a-process",
    "crash-the-judge",
    "change-a-result",
    "hide-a-finding",
    "outlive-its-limit",
    "use-memory",
    "fill-the-disk",
    "flood-the-output",
}
SECRET = b"CANARY-5ec2e7"
MOST_S = 60.0
RULES = ("require_own_files", "require_plain_names", "require_device_code", "require_device_object")


@dataclass
class Place:
    """The folder of one test, and what a kernel must not reach."""

    folder: Path
    port: int
    connections: list[object]

    @property
    def canary(self) -> Path:
        return self.folder / "canary.txt"

    @property
    def victim(self) -> Path:
        return self.folder / "victim.txt"

    @property
    def new(self) -> Path:
        return self.folder / "new.txt"

    @property
    def mark(self) -> str:
        return f"opbench-hostile-{self.port}"

    def kernel(self, path: Path) -> Path:
        """Write the kernel with this place's names into a folder of its own."""
        values = {
            "CANARY": self.canary,
            "VICTIM": self.victim,
            "NEW": self.new,
            "FOLDER": self.folder,
            "CACHE": self.folder / "cache" / "cpu",
            "PORT": self.port,
            "MARK": self.mark,
        }
        text = re.sub(r"@([A-Z]+)@", lambda name: str(values[name[1]]), path.read_text())
        own = self.folder / "kernel"
        own.mkdir()
        (own / "link.cuh").symlink_to(self.canary)
        (own / ".hidden.h").write_bytes(b'"' + SECRET + b'"\n')
        for header in HOSTILE.glob("*.cuh"):
            (own / header.name).write_text(header.read_text())
        (own / path.name).write_text(text)
        return own / path.name


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections: list[object] = []
        thread = threading.Thread(target=_accept, args=(listening, connections), daemon=True)
        thread.start()
        made = Place(tmp_path, listening.getsockname()[1], connections)
        made.canary.write_bytes(b'"' + SECRET + b'"\n' * 16)
        made.victim.write_text("unchanged")
        yield made


def _accept(listening: socket.socket, connections: list[object]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connections.append(listening.accept())


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    caged.import_all()
    with ForkServer() as started:
        yield started


@dataclass
class Judged:
    """What came of a kernel."""

    outcome: str
    message: str
    outputs: list[bytes]


def _judge(server: ForkServer, path: Path) -> Judged:
    """Check one case in the cage: a refused kernel, one that was stopped, a wrong or a right ("harmless") result."""
    seen: list[bytes] = []
    copy_out = SharedMemory.copy_out

    def record(memory: SharedMemory) -> None:
        copy_out(memory)
        seen.extend(buffer.whole.tobytes() for buffer in memory.buffers.values())

    backend = CagedBackend(server)
    session = Session(backend)
    try:
        variant = Catalog().own_variants(path)[0]
    except UsageError as error:
        return Judged("refused", str(error), seen)
    case = Case(variant, {}, CATALOG.operator("relu").parse("(n=31)"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedMemory, "copy_out", record)
        try:
            if reason := session.unsupported_reason(case):
                return Judged("refused", str(reason), seen)
            verdict = session.check(case).verdict
        except CompileError as error:
            return Judged("refused", str(error), seen)
        except (LaunchError, EnvironmentFault) as error:
            return Judged("stopped", str(error), seen)
        finally:
            with contextlib.suppress(LaunchError, EnvironmentFault):
                session.release()
            backend.close()
    return Judged("harmless" if verdict.right else "wrong", verdict.reason, seen)


def _require_goal_missed(place: Place, goal: str, judged: Judged) -> None:
    assert place.victim.read_text() == "unchanged" and SECRET in place.canary.read_bytes()
    names = {"canary.txt", "victim.txt", "kernel", "cache"}
    assert {p.name for p in place.folder.iterdir()} <= names
    assert place.connections == []
    assert SECRET.decode() not in judged.message
    assert not any(SECRET in output for output in judged.outputs)
    assert not Path(f"/dev/shm/{place.mark}").exists()
    assert not _processes(place.mark)
    if goal in ("change-a-result", "hide-a-finding"):
        assert judged.outcome != "harmless"


def _processes(mark: str) -> list[str]:
    """Return the command lines of processes that contain a mark."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if mark in line]


def _children(pid: int) -> set[int]:
    """Return the processes that descend from one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found, more = set[int](), {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - found
        found |= more
    return found


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(cpu_s=8, memory_bytes=1 << 30, file_bytes=32 << 20, open_files=256)
    monkeypatch.setattr(caged_build, "COMPILE_LIMITS", limits)
    monkeypatch.setattr(caged_build, "COMPILE_LIMIT_S", 20.0)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("alone", [False, True], ids=["rules", "cage-alone"])
@pytest.mark.parametrize("path", [path for path in FILES if path.stem not in BY_A_WORKER], ids=lambda path: path.stem)
def test_a_hostile_kernel_misses_its_goal(
    path: Path, alone: bool, place: Place, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal, expected = said(path, "must not"), said(path, "expect").split("|")
    assert goal in GOALS
    if alone:
        for rule in RULES:
            monkeypatch.setattr(caged_build, rule, lambda *anything: None)
    began = time.monotonic()
    judged = _judge(server, place.kernel(path))
    assert time.monotonic() - began < MOST_S
    print(judged.outcome, judged.message)
    if alone and goal == "hide-a-finding":  # without the rules, findings are what the kernel's process says
        goal = "read-a-file"
    _require_goal_missed(place, goal, judged)
    if not alone:
        assert judged.outcome in expected, judged.message


def test_the_judge_goes_on_after_hostile_kernels(server: ForkServer, place: Place, tmp_path: Path) -> None:
    for name in ("kills_everybody", "ends_with_success"):
        with pytest.MonkeyPatch.context() as patch:
            for rule in RULES:
                patch.setattr(caged_build, rule, lambda *anything: None)
            text = (HOSTILE / f"{name}.cu").read_text()
            (tmp_path / f"{name}.cu").write_text(text)
            assert _judge(server, tmp_path / f"{name}.cu").outcome == "stopped"
    (tmp_path / "mine.cu").write_text(RELU)
    assert _judge(server, tmp_path / "mine.cu").outcome == "harmless"


@pytest.mark.parametrize("name", BY_A_WORKER)
def test_a_hostile_kernel_ends_at_its_limit(name: str, place: Place, tmp_path: Path) -> None:
    before = _children(os.getpid())
    began = time.monotonic()
    path, out = place.kernel(HOSTILE / f"{name}.cu"), tmp_path / "run"
    options = {"problems": ["(n=31)"], "time_limit_s": 5.0, "backend": "cpu", "report": False, "cpu_only": True}
    result = next(iter(api.run(path, out=out, untrusted=True, **options).results))
    assert time.monotonic() - began < MOST_S
    assert result.failure == "time limit" or name == "prints_without_end"
    assert sum(file.stat().st_size for file in out.iterdir()) < LOG_BYTES
    assert name == "never_ends" or (out / "worker.log").stat().st_size > 1 << 20
    deadline = time.monotonic() + 60.0
    while left := _children(os.getpid()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize(
    "header",
    [
        f"deep = {'[' * 20000}",
        f"workspace = {{ w = '{'(' * 5000}n{')' * 5000}' }}",
        "workspace = { w = '9**9**9**9' }",
        "workspace = { w = '1 << (1 << 40)' }",
        "workspace = { w = 'n * 1000000000000' }",
        "workspace = { '../../x' = 'n' }",
        f"tune = {{ A = {list(range(300))}, B = {list(range(300))}, C = {list(range(300))} }}",
    ],
    ids=["deep", "brackets", "power", "shift", "huge", "path", "tune"],
)
def test_a_hostile_header_ends_with_an_error(header: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU.replace("// title", f"// {header}\n// title"))
    with pytest.raises(OpbenchError):
        variant = Catalog().own_variants(path)[0]
        Case(variant, {}, CATALOG.operator("relu").parse("(n=31)")).launches(8)
        Session(CpuBackend()).check(Case(variant, {}, CATALOG.operator("relu").parse("(n=31)")))


@pytest.mark.parametrize(
    "name", ["mine) int f() { return 1; } OPB_ENTRY(x, mine", "mine\n#include </etc/passwd>", "asm"]
)
def test_names_of_the_header_cannot_become_code(name: str, tmp_path: Path) -> None:
    for request in (BuildRequest(tmp_path / "x.cu", (name,)), BuildRequest(tmp_path / "x.cu", (), (("A", name),))):
        with pytest.raises(CompileError):
            require_plain_names(request)
    require_plain_names(
        BuildRequest(tmp_path / "x.cu", ("ns::mine<float, 4, (3 > 2)>",), (("A", "-1"), ("B", "float")))
    )


@pytest.mark.parametrize("name", ["runs_a_shell", "changes_a_file", "connects", "runs_a_constructor", "links_a_file"])
def test_an_attack_succeeds_without_a_cage(name: str, place: Place) -> None:
    """Otherwise the tests above would prove nothing."""
    path = place.kernel(HOSTILE / f"{name}.cu")
    if name == "runs_a_shell":
        path.write_text(path.read_text().replace("; sleep 300", ""))
    api.check([path], random_shapes=0, cases=["*(n=31)"], cpu_only=True)
    reached = place.new.is_symlink() or place.new.exists() or place.victim.read_text() != "unchanged"
    assert reached or place.connections


def test_there_are_enough_hostile_kernels() -> None:
    assert len(FILES) >= 40 and {said(path, "must not") for path in FILES} == GOALS
