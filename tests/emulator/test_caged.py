"""Kernels of strangers on the cpu backend: judged as other kernels are, but run in another process."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from opbench import api
from opbench.cage import facts
from opbench.cage.fork_server import Child, ForkServer
from opbench.checking.checking import Session
from opbench.emulator import caged, caged_build, kernel_process, untrusted
from opbench.emulator.caged import CagedBackend
from opbench.errors import CompileError, LaunchError
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.launch import BuildRequest
from opbench.running.options import RunSetup
from opbench.running.protocol import OpenBackend
from opbench.running.runner import run_suite
from opbench.running.suite import Suite
from opbench.running.worker import Worker
from opbench.source.sources import Source, include_closure
from opbench.timing.sampling import TimingOptions
from support.checks.errors import refuses
from support.common import CATALOG, CHEATS, RELU, WRONG, Cli, kernel_variants

pytestmark = pytest.mark.skipif(bool(facts.available().missing_feature), reason=facts.available().missing_feature)
SMALL = {"relu": ("*(n=1)", "*(n=31)", "*(n=4099)"), "matmul": ("*(m=2,n=3,k=5)", "*(m=17,n=31,k=33)")}
"""Examples of each operator on which each kernel below shows what it does."""


@pytest.mark.parametrize(
    ("name", "operator", "statuses"),
    [
        ("relu", "relu", {"right"}),
        ("wrong", "relu", {"wrong"}),
        ("forgets_the_second_barrier", "matmul", {"right", "wrong"}),
        ("forgets_the_guard", "relu", {"wrong"}),
        ("block_too_large", "relu", {"failed"}),
    ],
)
def test_a_kernel_is_judged_as_without_a_cage(name: str, operator: str, statuses: set[str], tmp_path: Path) -> None:
    texts = {"relu": RELU, "wrong": WRONG}
    path = tmp_path / f"{name}.cu"
    path.write_text(texts[name] if name in texts else (CHEATS / f"{name}.cu").read_text())
    caged, plain = (
        api.check([path], cases=SMALL[operator], random_shapes=0, cpu_only=True, untrusted=untrusted)
        for untrusted in (True, False)
    )
    assert {result.status for result in plain} == statuses
    assert [(r.case, r.status) for r in caged] == [(r.case, r.status) for r in plain]
    for one, other in zip(caged, plain, strict=True):
        assert one.verdict == other.verdict and one.reason == other.reason


def test_results_say_what_a_refused_kernel_may_not_contain(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU.replace('extern "C" __global__', 'extern "C" int system(const char*);\nextern "C" __global__'))
    path.write_text(path.read_text().replace("if (i < n)", 'if (i == 0) system("true");\n    if (i < n)'))
    answer = cli("check", path, "--untrusted", "--random", "0", "--case", "*(n=31)", "--json")
    (result,) = json.loads(answer.stdout)
    assert answer.returncode == 1 and result["status"] == "failed" and "system" in result["reason"]


@pytest.mark.parametrize("name", ["operator.py", "fast.py"])
def test_python_files_of_a_folder_are_refused(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "relu").mkdir()
    (tmp_path / "relu" / "mine.cu").write_text(RELU)
    (tmp_path / "relu" / name).write_text(f"open({str(marker)!r}, 'w')")
    with refuses("python-file", name):
        api.check(["relu/mine"], variants=[tmp_path], untrusted=True)
    with refuses("python-file", name):
        api.run("relu/mine", variants=[tmp_path], untrusted=True, backend="cpu", out=tmp_path / "run")
    assert not marker.exists()


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU)
    for wrong in ({"backend": "cuda"}, {"huge": True}):
        with refuses("exclusive"):
            api.check([path], untrusted=True, **wrong)
    with refuses("needs-option", "--trust", allowed="--untrusted"):
        api.check([path], trust=True)


def test_a_sparse_buffer_is_refused_with_its_size() -> None:
    caged.import_all()
    with ForkServer() as server:
        backend = CagedBackend(server)
        with refuses("untrusted-huge", "buffer 'x' [8589934592]", value=4 << 33):
            backend.allocate_sparse("x", (1 << 33,), "f32")
        backend.close()


def test_every_shipped_kernel_is_allowed_as_text() -> None:
    for variant in kernel_variants():
        request = BuildRequest(variant.path, (), include=tuple(variant.include))
        untrusted.require_own_files(request, include_closure(request.source, request.include))


def sources_of(path: Path) -> list[Source]:
    """The file itself only: closure() refuses some of these lines, too."""
    return [Source(path, path.read_bytes(), 0)]


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"',
        "#include HEADER",
        "#include <../../etc/passwd>",
        '#/**/include "/etc/passwd"',
        '/* a */ # line 1 "x"',
        '*/ # 1 "x" 3',
        '%:line 1 "x"',
        '#in\\\nclude "/etc/passwd"',
        "#embed <x>",
        "#include_next <x.h>",
        '#pragma GCC dependency "/etc/passwd"',
        '#pragma GCC plugin "x.so"',
        "#pragma GCC system_header",
        '#if __has_include("/etc/passwd")',
        '#if __has_include("../../etc/passwd")',
        "#define H __has_include",
        '#if __has_embed("/etc/passwd")',
        "opb_take_reports(0);",
        "\x00#line 1",
    ],
)
def test_a_line_that_reads_other_files_or_misleads_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(f"{RELU}\n{line}\n", newline="")
    request = BuildRequest(path, ("mine",))
    with pytest.raises(CompileError) as refused:
        untrusted.require_own_files(request, sources_of(path))
    assert refused.value.location is not None and refused.value.location.line == RELU.count("\n") + 2


def test_a_worker_of_strangers_has_no_secret_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret-5ec2e7")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    worker = Worker(OpenBackend("cpu", untrusted=True), tmp_path / "worker.log")
    try:
        worker.start()
        assert worker._process is not None
        environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
    finally:
        worker.end()
    assert b"secret-5ec2e7" not in environment and b"PATH=" in environment
    assert b"OPENBLAS_NUM_THREADS=1" in environment


def test_the_compilers_folder_is_never_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert caged_build._installation(tmp_path / "me" / "bin" / "g++") == tmp_path / "me" / "bin"
    assert caged_build._installation(tmp_path / "opt" / "gcc" / "bin" / "g++") == tmp_path / "opt" / "gcc"


@pytest.mark.parametrize("answer", [b"[" * 100_000, b'{"kind":5}', b"null", b"\xff"])
def test_an_answer_of_another_form_is_an_error_of_the_kernel(answer: bytes) -> None:
    """A kernel that can write to the channel can send anything."""
    ours, theirs = socket.socketpair()
    with theirs:
        kernel_process.send(theirs, answer)
    process = object.__new__(caged.KernelProcess)
    process._channel, process.source, process._child = ours, Path("x.cu"), Child(2**22 + 1, os.open(os.devnull, 0))
    with ours, pytest.raises(LaunchError, match=r"x\.cu"):
        process._reply()


COUNTS = RELU.replace('extern "C"', '__device__ int calls[2] = {7, 0};\nextern "C"').replace(
    "if (i < n)", "if (i == 0) ++calls[1];\n    if (i < n)"
)


def test_variables_of_a_module_are_read_and_written_in_its_process(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(COUNTS)
    caged.import_all()
    with ForkServer() as server:
        backend = CagedBackend(server)
        session = Session(backend)
        case = Case(Catalog().own_variants(path)[0], {}, CATALOG.operator("relu").parse("(n=31)"))
        prepared = session.prepare(case.problem)
        prepared.load("normal")
        ready = session.bind(case, prepared)
        assert ready.binding.program is not None
        (calls,) = ready.binding.program.variables().values()
        for expected in ([7, 1], [7, 2]):
            before = calls.fingerprint()
            ready.binding.launch()
            assert calls.read().view(np.int32).tolist() == expected and calls.fingerprint() != before
        calls.write(np.array([1, 40], np.int32).view(np.uint8))
        ready.binding.launch()
        assert calls.read().view(np.int32).tolist() == [1, 41]
        session.release()
        backend.close()


def test_right_cases_are_launched_again_in_the_cage(tmp_path: Path) -> None:
    """As a judge does it: other contents, poisoned outputs and moved buffers, and variables that count launches."""
    statuses = {}
    for name, text in (("mine", RELU), ("counts", COUNTS.replace("? x[i]", "&& calls[1] < 3 ? x[i]"))):
        path = tmp_path / f"{name}.cu"
        path.write_text(text)
        suite = Suite("again", "", tuple(suite_cases(path)), TimingOptions(), 60.0)
        setup = RunSetup("cpu", tmp_path / name, measure=False, relaunch=True, untrusted=True)
        statuses[name] = [(r.status, r.reason) for r in run_suite(suite, setup).results]
    assert [status for status, _ in statuses["mine"]] == ["right"]
    assert [status for status, _ in statuses["counts"]] != ["right"] and "calls" in statuses["counts"][0][1]


def suite_cases(path: Path) -> list[Case]:
    """Return one case of a file."""
    return [Case(Catalog().own_variants(path)[0], {}, CATALOG.operator("relu").parse("(n=4096)"))]
