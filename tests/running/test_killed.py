"""Runs that are killed lose no case and repeat none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opbench import api
from opbench.errors import EnvironmentFault
from opbench.results.files import FILE, read_run
from opbench.results.result import Result
from opbench.running import runner
from opbench.running.header import RunFile
from opbench.running.runner import Progress, RunSetup, run_suite
from support.builders.two_problems import NAMES, cases_on_disk, own_variant
from support.checks.errors import refuses
from support.common import HANGS, RELU, Cli, alive, until

CRASHES = RELU.replace("const int i", "*(volatile int*)8 = 1;\n    const int i")


def start(suite: Path, *more: str) -> subprocess.Popen[bytes]:
    """Begin a run in a process of its own."""
    args = [
        sys.executable,
        "-m",
        "opbench",
        "run",
        str(suite),
        "--backend",
        "cpu",
        "--variants",
        "mine",
        "--out",
        "out",
        "--cpu-only",
        *more,
    ]
    return subprocess.Popen(args, cwd=suite.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def resume(cli: Cli, suite: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Complete the run."""
    return cli("run", suite, "--backend", "cpu", "--variants", "mine", "--out", "out", "--cpu-only", "--resume", *more)


def lines(folder: Path) -> int:
    """Results on disk."""
    path = folder / "out" / FILE
    return path.read_bytes().count(b'"type":"result"') if path.exists() else 0


def children(pid: int) -> list[int]:
    """Processes that another started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_killed_run_is_completed_without_repeating_or_losing_a_case(cli: Cli, suite_file: Path) -> None:
    folder = suite_file.parent
    kernel = own_variant(folder, HANGS)
    process = start(suite_file)
    until(lambda: lines(folder) == 2 and bool(children(process.pid)))
    (worker,) = children(process.pid)
    process.kill()
    process.wait()
    until(lambda: not alive(worker))  # else a kernel that hangs would burn a core for ever
    assert cases_on_disk(folder) == NAMES[:2]
    kernel.write_text(RELU)
    # Killed once more, in the middle of a line.
    path = folder / "out" / FILE
    path.write_bytes(path.read_bytes()[:-40])
    done = resume(cli, suite_file)
    assert done.returncode == 0, done.stderr
    assert cases_on_disk(folder) == [NAMES[0], *NAMES[1:]]
    assert read_run(folder / "out").finished
    # Complete: nothing is run again, not even the backend's compiler is needed for it.
    before = path.read_bytes()
    assert resume(cli, suite_file).returncode == 0
    assert [line for line in path.read_bytes().splitlines() if b'"result"' in line] == [
        line for line in before.splitlines() if b'"result"' in line
    ]


@pytest.mark.parametrize("kept", [0, 30, -1])
def test_a_run_cut_anywhere_is_completed(suite_file: Path, kept: int) -> None:
    """Within the header, which then is written anew, or after the last whole line."""
    folder, mine = suite_file.parent, [suite_file.parent / "mine"]
    api.run(suite_file, backend="cpu", variants=mine, out=folder / "out", report=False)
    path = folder / "out" / FILE
    path.write_bytes(path.read_bytes()[:kept])
    run = api.run(suite_file, backend="cpu", variants=mine, out=folder / "out", resume=True, report=False)
    assert [r.case for r in run.results] == cases_on_disk(folder) == NAMES
    assert run.finished and run.header.suite == "two"
    # What a killed run took is not known; of one that never began, the whole is.
    assert (run.wall_s is not None and run.wall_s > 0) if kept >= 0 else run.wall_s is None


def test_the_death_of_the_worker_costs_its_case_only(suite_file: Path) -> None:
    folder = suite_file.parent
    own_variant(folder, HANGS)
    process = start(suite_file)
    for done in (2, 5):  # it hangs in either problem; each time somebody kills the worker
        until(lambda done=done: lines(folder) == done and bool(children(process.pid)))  # type: ignore[misc]
        time.sleep(0.2)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        until(lambda done=done: lines(folder) > done)  # type: ignore[misc]
    assert process.wait(timeout=60) == 1
    results = {r.case: r for r in read_run(folder / "out").results}
    assert list(results) == NAMES
    assert [r.status for r in results.values()] == ["right", "right", "failed"] * 2
    assert "the process running it died (signal SIGKILL)" in results[NAMES[2]].reason


def test_several_workers_each_lose_their_own_cases_only(tmp_path: Path) -> None:
    """A worker dies of a variant's fifth size; every other case has a verdict of its own."""
    kills = RELU.replace("const int i", "if (n == 5) raise(9);\n    const int i")
    own_variant(tmp_path, kills.replace("// ///\n", "// ///\n#include <signal.h>\n", 1), "crashes")
    path = tmp_path / "many.toml"
    sizes = ", ".join(map(str, range(1, 41)))
    path.write_text(f'[[run]]\noperator = "relu"\nvariants = ["*"]\nsweep = {{ n = [{sizes}] }}\n')
    roots = (tmp_path / "mine",)
    suite, _, _ = api.expand_target(path, "cpu", ["relu/scalar*", "relu/crashes*", "relu/vec4[*"], roots)
    assert len(suite.cases) > 2 * runner.CASES_PER_WORKER
    told: list[Progress] = []
    run = run_suite(suite, RunSetup(out=tmp_path / "out", measure=False, roots=roots, workers=3), told.append)
    assert sorted(r.case for r in run.results) == sorted(case.name for case in suite.cases)
    failed = {r.case: r.reason for r in run.results if r.status != "right"}
    assert list(failed) == ["relu/crashes(n=5)"] and "the process running it died" in failed["relu/crashes(n=5)"]
    assert [p.done for p in told] == sorted(p.done for p in told)
    logs = sorted(p.name for p in (tmp_path / "out").glob("*.log"))
    assert logs == ["worker-2.log", "worker-3.log", "worker.log"]
    assert run.finished and all(case.name in run.traffic for case in suite.cases if case.variant.name == "scalar")


def test_a_fault_of_the_machine_ends_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "many.toml"
    sizes = ", ".join(map(str, range(1, 41)))
    path.write_text(f'[[run]]\noperator = "relu"\nvariants = ["scalar", "vec4"]\nsweep = {{ n = [{sizes}] }}\n')
    suite, _, _ = api.expand_target(path, "cpu", [], [])
    write = RunFile.result

    def full(self: RunFile, result: Result) -> None:
        if len(cases) > 20:
            raise EnvironmentFault("the disk is full", kind="disk-full")
        cases.append(result.case)
        write(self, result)

    cases: list[str] = []
    monkeypatch.setattr(RunFile, "result", full)
    before = children(os.getpid())  # a resource tracker of tests before this one, say
    with refuses("disk-full", error=EnvironmentFault):
        run_suite(suite, RunSetup(out=tmp_path / "out", measure=False, workers=3))
    assert [r.case for r in read_run(tmp_path / "out").results] == cases and len(cases) == 21
    assert [child for child in children(os.getpid()) if child not in before] == []


def test_variants_that_are_broken_in_every_way_fail_alone(suite_file: Path) -> None:
    folder = suite_file.parent
    broken = {
        "crashes": CRASHES,
        "hangs": HANGS,
        "no_kernel": RELU.replace("mine(", "other("),
        "no_name": RELU.replace('"cdiv(n, 256)"', '"cdiv(m, 256)"'),
        "bad_define": RELU.replace('title = "', 'define = { X = "n // 0" }\n// title = "'),
        "typo": RELU.replace("blockIdx.x *", "blockIdy.x *"),
        "wrong": RELU.replace(": 0.0f", ": 1.0f"),
        "no_zero": RELU.replace("launch = [", 'launch = [{ zero = "nothing" }, '),
        "huge_block": RELU.replace('block = ["256"]', 'block = ["2048"]'),
    }
    for name, source in broken.items():
        own_variant(folder, source, name)
    suite_file.write_text('[[run]]\noperator = "relu"\nconfigs = "default"\nproblems = [{ n = 300 }]\n')
    run = api.run(
        suite_file, backend="cpu", variants=[folder / "mine"], out=folder / "out", time_limit_s=10, report=False
    )
    status = {r.variant: r.status for r in run.results}
    assert status.pop("crashes") in ("wrong", "failed"), "whether the backend survives it is its own affair"
    assert {n: s for n, s in status.items() if n in broken and s != "failed"} == {"wrong": "wrong"}
    assert {s for name, s in status.items() if name not in broken} <= {"right", "unsupported"}
    reasons = {r.variant: r.reason for r in run.results}
    assert "typo.cu:" in reasons["typo"] and "blockIdy" in reasons["typo"]
    assert "unknown name 'm'" in reasons["no_name"] and "no_name.cu" in reasons["no_name"]
    assert "stopped after 10 s" in reasons["hangs"]
