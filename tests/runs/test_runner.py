"""Runs that are killed, resumed and refused, and what becomes of a measurement."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from common import CHEATS, RELU, Cli

from opbench import api
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog, case_named
from opbench.catalog.launch import BuildRequest
from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.gpus import floor
from opbench.results.files import FILE, Run, RunWriter, read_run
from opbench.results.result import Launched, Result, Verdict, exit_code
from opbench.runs import runner
from opbench.runs.protocol import (
    Build,
    Built,
    Check,
    Measure,
    Open,
    Probe,
    Sampled,
    Started,
    Unsupported,
    iterate_problems,
    pack,
    unpack,
)
from opbench.runs.runner import Progress, RunOptions, run_suite
from opbench.runs.suite import Suite, read_suite
from opbench.runs.worker import Worker, WorkerLost
from opbench.session.checking import Checked
from opbench.session.measuring import Measured
from opbench.timing.clock import DeviceState, Sample
from opbench.timing.sampling import TimingOptions, measure

HANGS = RELU.replace("const int i", "for (volatile int go = 1; go;) {}\n    const int i")
CRASHES = RELU.replace("const int i", "*(volatile int*)8 = 1;\n    const int i")
SUITE = """\
title = "two problems"
[[run]]
operator = "relu"
variants = ["scalar", "zz_last"]
tune = { BLOCK = [128, 256] }
problems = [{ n = 7 }, { n = 1000 }]
"""
NAMES = [f"relu/{v}(n={n})" for n in (7, 1000) for v in ("scalar[BLOCK=256]", "scalar[BLOCK=128]", "zz_last")]


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    """Three cases of each of two problems; the last of each is a variant of the test's own."""
    own_variant(tmp_path, RELU)
    path = tmp_path / "two.toml"
    path.write_text(SUITE)
    return path


def own_variant(folder: Path, source: str, name: str = "zz_last") -> Path:
    """A variant of relu in a folder laid out as variants/."""
    path = folder / "mine" / "relu" / f"{name}.cu"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


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


def alive(pid: int) -> bool:
    """Whether a process still runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cases_on_disk(folder: Path) -> list[str]:
    """Case names of every result line, repeated ones too."""
    found = [json.loads(line) for line in (folder / "out" / FILE).read_text().splitlines()]
    return [line["case"] for line in found if line["type"] == "result"]


# Killed and resumed -------------------------------------------------------------------------------------------------


def test_a_killed_run_is_completed_without_repeating_or_losing_a_case(cli: Cli, suite_file: Path) -> None:
    folder = suite_file.parent
    kernel = own_variant(folder, HANGS)
    process = start(suite_file)
    until(lambda: lines(folder) == 2 and bool(children(process.pid)))
    (worker,) = children(process.pid)
    process.kill()
    process.wait()
    until(lambda: not alive(worker), 10)  # else a kernel that hangs would burn a core for ever
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
    assert run.finished and run.header["suite"] == "two"
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
    suite, _, _ = api.expand(path, "cpu", ["relu/scalar*", "relu/crashes*", "relu/vec4[*"], roots)
    assert len(suite.cases) > 2 * runner.CASES_PER_WORKER
    told: list[Progress] = []
    run = run_suite(suite, RunOptions(out=tmp_path / "out", measure=False, roots=roots, workers=3), told.append)
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
    suite, _, _ = api.expand(path, "cpu", [], [])
    write = RunWriter.result

    def full(self: RunWriter, result: Result) -> None:
        if len(cases) > 20:
            raise EnvironmentFault("the disk is full")
        cases.append(result.case)
        write(self, result)

    cases: list[str] = []
    monkeypatch.setattr(RunWriter, "result", full)
    with pytest.raises(EnvironmentFault, match="the disk is full"):
        run_suite(suite, RunOptions(out=tmp_path / "out", measure=False, workers=3))
    assert [r.case for r in read_run(tmp_path / "out").results] == cases and len(cases) == 21
    assert children(os.getpid()) == []


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
        suite_file, backend="cpu", variants=[folder / "mine"], out=folder / "out", time_limit_s=5, report=False
    )
    status = {r.variant: r.status for r in run.results}
    assert status.pop("crashes") in ("wrong", "failed"), "whether the backend survives it is its own affair"
    assert {n: s for n, s in status.items() if n in broken and s != "failed"} == {"wrong": "wrong"}
    assert {s for name, s in status.items() if name not in broken} <= {"right", "unsupported"}
    reasons = {r.variant: r.reason for r in run.results}
    assert "typo.cu:" in reasons["typo"] and "blockIdy" in reasons["typo"]
    assert "unknown name 'm'" in reasons["no_name"] and "no_name.cu" in reasons["no_name"]
    assert "stopped after 5 s" in reasons["hangs"]


# Refused ------------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused_unless_it_is_that_runs(cli: Cli, suite_file: Path) -> None:
    folder = suite_file.parent
    arguments: dict[str, Any] = {
        "backend": "cpu",
        "variants": [folder / "mine"],
        "out": folder / "out",
        "report": False,
    }
    api.run(suite_file, **arguments)
    before = (folder / "out" / FILE).read_bytes()
    with pytest.raises(
        UsageError, match="holds a run already; add --resume to complete it or choose another --out DIR"
    ):
        api.run(suite_file, **arguments)
    with pytest.raises(UsageError, match="was run with seed = 20260, not 7; choose another --out DIR"):
        api.run(suite_file, **arguments, resume=True, seed=7)
    other = folder / "other.toml"
    other.write_text(SUITE)
    with pytest.raises(UsageError, match="was run with suite = two, not other"):
        api.run(other, **arguments, resume=True)
    suite, roots, _ = api.expand(suite_file, "cpu", (), [folder / "mine"])
    with pytest.raises(UsageError, match="was run with backend = cpu, not cuda"):
        run_suite(suite, RunOptions("cuda", folder / "out", resume=True, roots=roots))
    done = cli("run", suite_file, "--backend", "cpu", "--variants", "mine", "--out", "out")
    assert done.returncode == 2 and "add --resume" in done.stderr
    assert (folder / "out" / FILE).read_bytes() == before


def test_only_one_opbench_writes_a_run(suite_file: Path) -> None:
    folder = suite_file.parent
    writer = RunWriter(folder / "out")
    with pytest.raises(UsageError, match="another opbench writes this run now"):
        api.run(suite_file, backend="cpu", variants=[folder / "mine"], out=folder / "out")
    writer.close()
    RunWriter(folder / "out").close()


def test_a_suite_that_has_grown_runs_the_new_cases_only(suite_file: Path) -> None:
    folder = suite_file.parent
    arguments: dict[str, Any] = {
        "backend": "cpu",
        "variants": [folder / "mine"],
        "out": folder / "out",
        "report": False,
    }
    api.run(suite_file, **arguments)
    suite_file.write_text(SUITE.replace("{ n = 7 }", "{ n = 7 }, { n = 3 }"))
    told: list[Progress] = []
    run = api.run(suite_file, **arguments, resume=True, tell=told.append)
    new = [name.replace("n=7", "n=3") for name in NAMES[:3]]
    assert [p.case for p in told if p.phase == "done"] == new
    assert cases_on_disk(folder) == [r.case for r in run.results] == [*NAMES, *new]
    assert (told[-1].done, told[-1].total) == (9, 9)


def test_a_kernel_edited_since_is_run_again(suite_file: Path) -> None:
    folder = suite_file.parent
    arguments: dict[str, Any] = {
        "backend": "cpu",
        "variants": [folder / "mine"],
        "out": folder / "out",
        "report": False,
    }
    api.run(suite_file, **arguments)
    own_variant(folder, RELU.replace(": 0.0f", ": 1.0f"))
    run = api.run(suite_file, **arguments, resume=True)
    assert {r.case for r in run.results if r.status == "wrong"} == {NAMES[2], NAMES[5]}
    assert len(run.results) == len(NAMES) and len(cases_on_disk(folder)) == len(NAMES) + 2


def test_a_header_edited_since_makes_its_kernels_run_again(suite_file: Path) -> None:
    folder = suite_file.parent
    own_variant(folder, RELU.replace("extern", '#include "limit.cuh"\nextern').replace("0.0f;", "LIMIT;"))
    header = folder / "mine" / "relu" / "limit.cuh"
    header.write_text("#define LIMIT 0.0f\n")
    arguments: dict[str, Any] = {
        "backend": "cpu",
        "variants": [folder / "mine"],
        "out": folder / "out",
        "report": False,
    }
    before = api.run(suite_file, **arguments)
    assert {r.status for r in before.results} == {"right"}
    header.write_text("#define LIMIT 1.0f\n")
    run = api.run(suite_file, **arguments, resume=True)
    assert {r.case for r in run.results if r.status == "wrong"} == {NAMES[2], NAMES[5]}
    changed = {r.case for r, b in zip(run.results, before.results, strict=True) if r.source_sha256 != b.source_sha256}
    assert changed == {NAMES[2], NAMES[5]}


def test_a_kernel_edited_during_the_run_costs_its_own_cases(suite_file: Path) -> None:
    """Its result would stand under a text that did not run."""
    folder = suite_file.parent
    kernel = own_variant(folder, RELU)

    def edit(progress: Progress) -> None:
        (folder / "new.cu").write_text(RELU.replace(": 0.0f", ": 1.0f"))
        (folder / "new.cu").replace(kernel)

    arguments: dict[str, Any] = {"backend": "cpu", "variants": [folder / "mine"], "out": folder / "out"}
    run = api.run(suite_file, **arguments, report=False, tell=edit)
    assert {r.case for r in run.results if r.status == "right"} == set(NAMES) - {NAMES[2], NAMES[5]}
    reasons = [r.reason for r in run.results if r.status != "right"]
    assert all("edited since the run began" in reason for reason in reasons), reasons


def test_a_problem_too_large_for_the_machine_costs_its_own_cases(suite_file: Path) -> None:
    folder = suite_file.parent
    suite_file.write_text(SUITE.replace("{ n = 7 }", "{ n = 2000000000000 }"))
    run = api.run(suite_file, backend="cpu", variants=[folder / "mine"], out=folder / "out", report=False)
    status = {r.case: r.status for r in run.results}
    assert {s for name, s in status.items() if "(n=1000)" in name} == {"right"}
    assert {s for name, s in status.items() if "(n=1000)" not in name} <= {"failed", "unsupported"}


# A measurement becomes a result: no GPU, a worker that answers from a table -------------------------------------------


class FakeClock:
    """Time that passes as told."""

    timer = "fake"

    def __init__(self, times: Mapping[str, float]) -> None:
        self.times, self.key, self.noise = times, "", random.Random(1)

    def sample(self, launch: Callable[[], None], hold: bool = True) -> Sample:
        """The time of whatever was launched."""
        launch()
        return Sample(self.times[self.key] * (1 + 1e-4 * self.noise.random()))

    def device_state(self) -> DeviceState:
        """Nothing known."""
        return DeviceState()

    def launch_floor(self) -> float:
        """A microsecond."""
        return 1e-6

    def offset(self) -> float | None:
        """A little less."""
        return 0.8e-6


class FakeWorker(Worker):
    """Answers as a worker on a GPU would, from tables."""

    wrong_after: frozenset[str] = frozenset()

    times: Mapping[str, float] = {}
    deadly: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    gpu = "Fake GPU"
    asked: list[type] = []

    def start(self) -> dict[str, Any]:
        """Nothing to start."""
        return {"gpu": self.gpu}

    def ask(self, request: Any, limit_s: float, listen: Any = None) -> Any:
        """One of the three requests."""
        FakeWorker.asked.append(type(request))
        catalog = Catalog(self.opening.roots)
        if isinstance(request, Check):
            right = unpack(catalog, request.case).variant.name not in self.wrong
            return Checked(Verdict(right, "" if right else "wrong at out[0]"), {}, None, "")
        cases = [unpack(catalog, packed) for packed in request.cases]
        if isinstance(request, Build):
            for index, case in enumerate(cases):
                if case.variant.name in self.broken:
                    listen(Built([index], "broken.cu:1: no"))
                if case.variant.is_library:
                    listen(Unsupported(index, "no such library here"))
            return None
        assert isinstance(request, Measure)
        clock = FakeClock({c.name: self.times[c.variant.name] for c in cases})

        def on_start(key: str) -> None:
            clock.key = key
            listen(Started(key))
            if re.split(r"[/\[(]", key)[1] in self.deadly:
                raise LaunchError("an illegal address")

        launches = {c.name: lambda: None for c in cases}
        ticks = iter(range(10**9))
        found = measure(
            clock,
            launches,
            request.timing,
            on_start=on_start,
            on_sample=lambda key, s: listen(Sampled(key, s)),
            now=lambda: next(ticks) * 1e-3,
        )
        late = {c.name: "right before it was timed, wrong after" for c in cases if c.variant.name in self.wrong_after}
        return Measured(found, late if request.check_again else {})

    def stop(self) -> None:
        """Nothing to stop."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """A fresh fake in place of the worker."""
    kind = type("Fresh", (FakeWorker,), {"asked": []})
    FakeWorker.asked = []
    monkeypatch.setattr(runner, "Worker", kind)
    return kind


def run_fake(folder: Path, ceilings: dict[str, Any] | None = None, **options: Any) -> dict[str, Result]:
    """Run relu's default configs on 2^26 elements on the fake GPU; results by variant."""
    text = '[timing]\nbudget_s = 0.05\n[[run]]\noperator = "relu"\nconfigs = "default"\nproblems = [{ n = 67108864 }]\n'
    (folder / "s.toml").write_text(text)
    suite = read_suite(folder / "s.toml", Catalog(), "cuda")
    find_ceilings = (lambda: ceilings) if ceilings else None
    run = run_suite(suite, RunOptions("cuda", folder / "out", **options), find_ceilings=find_ceilings)
    assert run == read_run(folder / "out"), "what is returned is what is on disk"
    return {r.variant: r for r in run.results}


ROOF = {
    "gpu": "Fake GPU",
    "dram_bytes_per_s": 4e12,
    "l2_bytes": 60 << 20,
    "fp32_flops_per_s": 5e13,
    "source": "measured",
}
BYTES = 2 * 4 * 67108864


PROBED = {"dram_bytes_per_s": "copy/vec4[BLOCK=256](n=268435456)", "fp32_flops_per_s": "fma/chains_8(n=2112,rounds=4)"}


def test_other_text_of_the_same_machine_code_is_the_same_measurement(fake: Any, tmp_path: Path) -> None:
    """A header that other kernels use was edited: what is right, and is launched as before, is not measured again."""
    ask, codes, asked = fake.ask, {"scalar": "one", "vec4": "two", "grid_stride": "", "vec4_unrolled": "four"}, []

    def answer(self: Any, request: Any, limit_s: float, listen: Any = None) -> Any:
        if isinstance(request, Build):
            for index, packed in enumerate(request.cases):
                listen(Built([index], machine_code_sha256=codes.get(packed.variant, "")))
        found = ask(self, request, limit_s, listen)
        if isinstance(request, Check):
            case = unpack(Catalog(), request.case)
            asked.append(case.variant.name)
            launches = tuple(map(Launched.of, case.launches(132)))
            verdict = replace(found.verdict, launches=launches)
            found = replace(found, verdict=verdict, machine_code_sha256=codes.get(case.variant.name, ""))
        return found

    fake.start = lambda self: {"gpu": "Fake GPU", "sm_count": 132}
    fake.ask, fake.times = answer, dict.fromkeys(codes, 1e-3)
    run_fake(tmp_path)
    path = tmp_path / "out" / FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["type"] == "result":
            line["source_sha256"] = "of another text"
            if line["variant"] == "vec4_unrolled":
                line["verdict"]["launches"][0]["args"][0] = "out"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    codes["vec4"] = "other"
    asked.clear()
    run_fake(tmp_path, resume=True)
    assert asked == ["grid_stride", "vec4", "vec4_unrolled"], "no machine code, other code, other arguments"


@pytest.mark.parametrize(("copied", "said"), [(4.05e12, ""), (3.6e12, "DRAM copy 3.60 TB/s (−10.0 %) at the start")])
def test_remembered_ceilings_are_looked_at_before_the_run(fake: Any, tmp_path: Path, copied: float, said: str) -> None:
    ask = fake.ask

    def answer(self: Any, request: Any, limit_s: float, listen: Any = None) -> Any:
        if not isinstance(request, Probe):
            return ask(self, request, limit_s, listen)
        copy, fma = (unpack(Catalog(), packed) for packed in request.cases)
        return {copy.name: copy.problem.bytes() / copied, fma.name: fma.problem.flops() / 5e13}

    fake.ask, fake.times = answer, dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    run_fake(tmp_path, ROOF | {"cases": PROBED})
    run = read_run(tmp_path / "out")
    assert run.ceilings is not None and [e["limit"] for e in run.ceilings["canary"]["checked"]] == list(PROBED)
    assert run.ceilings["dram_bytes_per_s"] == 4e12 and len(run.warnings) == bool(said)
    assert all(said in w and "fp32" not in w and "opbench ceiling" in w for w in run.warnings)


def test_a_ceiling_check_that_dies_costs_no_run(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    results = run_fake(tmp_path, ROOF | {"cases": {"dram_bytes_per_s": "copy/gone(n=4)"}})
    assert {r.status for r in results.values()} == {"right", "unsupported"}
    (warning,) = read_run(tmp_path / "out").warnings
    assert "was not found out" in warning and "unknown variant 'gone'" in warning


def test_right_cases_are_measured_and_an_impossible_time_is_invalid(fake: Any, tmp_path: Path) -> None:
    least = (BYTES - ROOF["l2_bytes"]) / ROOF["dram_bytes_per_s"]  # type: ignore[operator]
    fake.times = {"scalar": 2 * least, "vec4": 1.01 * least, "grid_stride": 0.5 * least, "vec4_unrolled": least}
    results = run_fake(tmp_path, ROOF)
    status = {name: r.status for name, r in results.items()}
    assert status == {
        "scalar": "right",
        "vec4": "right",
        "vec4_unrolled": "right",
        "grid_stride": "invalid",
        "torch": "unsupported",
    }
    assert "impossible" in results["grid_stride"].reason and "DRAM bandwidth" in results["grid_stride"].reason
    assert results["grid_stride"].measurement is not None, "the evidence is kept"
    assert results["scalar"].measurement and results["scalar"].measurement.median_s == pytest.approx(
        2 * least, rel=1e-3
    )
    assert results["torch"].reason == "no such library here"
    assert exit_code(results.values()) == 1
    assert read_run(tmp_path / "out").ceilings == ROOF


def test_without_ceilings_there_is_no_floor(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-9)
    results = run_fake(tmp_path)
    assert {r.status for r in results.values()} == {"right", "unsupported"}
    assert read_run(tmp_path / "out").ceilings is None


def test_a_wrong_or_broken_case_is_never_measured(fake: Any, tmp_path: Path) -> None:
    fake.times = {"scalar": 1e-3, "grid_stride": 1e-3}
    fake.wrong, fake.broken = frozenset({"vec4"}), frozenset({"vec4_unrolled"})
    results = run_fake(tmp_path)
    assert (results["vec4"].status, results["vec4"].measurement) == ("wrong", None)
    assert (results["vec4_unrolled"].status, results["vec4_unrolled"].reason) == ("failed", "broken.cu:1: no")
    assert results["scalar"].measurement and results["grid_stride"].measurement


def test_a_case_that_dies_while_measured_is_failed_and_the_rest_measured_again(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.deadly = frozenset({"vec4", "grid_stride"})
    results = run_fake(tmp_path)
    status = {name: r.status for name, r in results.items() if name != "torch"}
    assert status == {"scalar": "right", "vec4": "failed", "grid_stride": "failed", "vec4_unrolled": "right"}
    assert results["vec4"].reason == "while measured: an illegal address"
    assert results["vec4"].measurement is None
    assert FakeWorker.asked.count(Measure) == 3


def test_who_is_wrong_after_timing_has_no_time(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.wrong_after = frozenset({"vec4"})
    results = run_fake(tmp_path)
    assert (results["vec4"].status, results["vec4"].measurement) == ("wrong", None)
    assert results["vec4"].reason == "right before it was timed, wrong after"
    assert results["vec4"].verdict == Verdict(False, results["vec4"].reason)
    assert {r.status for name, r in results.items() if name not in ("vec4", "torch")} == {"right"}


def test_a_ranking_to_be_published_is_measured_in_processes_of_their_own(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    fake.wrong_after = frozenset({"vec4"})
    stops: list[int] = []
    fake.stop = lambda self: stops.append(FakeWorker.asked.count(Measure))
    results = run_fake(tmp_path, processes=3)
    assert stops[:2] == [1, 2] and FakeWorker.asked.count(Measure) == 3, "a new process before each further round"
    found = results["scalar"].measurement
    assert found and set(found.processes) == {0, 1, 2} and len(found.processes) == len(found.samples_s)
    assert results["vec4"].status == "wrong", "checked after the last"
    assert read_run(tmp_path / "out").header["timing"]["processes"] == 3
    with pytest.raises(UsageError, match="was run with processes = 3, not 1"):
        run_fake(tmp_path, resume=True)


def test_nothing_right_asks_for_no_measurement(fake: Any, tmp_path: Path) -> None:
    fake.wrong = frozenset({"scalar", "vec4", "grid_stride", "vec4_unrolled"})
    assert {r.status for r in run_fake(tmp_path).values()} == {"wrong", "unsupported"}
    assert Measure not in FakeWorker.asked


def test_a_run_is_not_completed_on_another_gpu(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    run_fake(tmp_path)
    fake.gpu = "Other GPU"
    with pytest.raises(UsageError, match="gpu = Fake GPU, not Other GPU; choose another --out DIR"):
        run_fake(tmp_path, resume=True)


def test_times_of_two_modes_do_not_share_a_run(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1e-3)
    found = run_fake(tmp_path)["vec4"].measurement
    assert found and found.mode == "cold" and found.kernel_s == pytest.approx(found.median_s - 0.8e-6)
    suite = read_suite(tmp_path / "s.toml", Catalog(), "cuda")
    hot = replace(suite, timing=replace(suite.timing, mode="hot"))
    with pytest.raises(UsageError, match="was run with mode = cold, not hot; choose another --out DIR"):
        run_suite(hot, RunOptions("cuda", tmp_path / "out", resume=True))
    run = run_suite(hot, RunOptions("cuda", tmp_path / "hot"))
    assert {r.measurement.mode for r in run.results if r.measurement} == {"hot"}
    assert run.header["timing"]["mode"] == "hot"


def test_ceilings_lost_with_a_killed_run_are_written_when_it_is_completed(fake: Any, tmp_path: Path) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1.0)
    run_fake(tmp_path, ROOF)
    path = tmp_path / "out" / FILE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    run_fake(tmp_path, ROOF, resume=True)
    assert read_run(tmp_path / "out").ceilings == ROOF
    run_fake(tmp_path, {**ROOF, "dram_bytes_per_s": 1.0}, resume=True)
    assert read_run(tmp_path / "out").ceilings == ROOF, "the first run's ceilings hold for all of it"


def test_a_backend_that_does_not_open_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Worker) -> Any:
        raise WorkerLost("the process running it died (signal SIGKILL)")

    monkeypatch.setattr(Worker, "start", lost)
    with pytest.raises(EnvironmentFault, match=r"cannot be opened: .*SIGKILL.*opbench doctor"):
        run_fake(tmp_path)
    assert not (tmp_path / "out" / FILE).read_bytes()


def test_a_compiler_that_dies_does_not_stop_the_run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.times = dict.fromkeys(("scalar", "vec4", "grid_stride", "vec4_unrolled"), 1.0)
    answer = fake.ask

    def ask(self: Any, request: Any, limit_s: float, listen: Any = None) -> Any:
        if isinstance(request, Build):
            raise WorkerLost("the process running it died (signal SIGKILL)")
        return answer(self, request, limit_s, listen)

    monkeypatch.setattr(fake, "ask", ask)
    fake.wrong = frozenset({"torch"})  # nobody said that it is unsupported
    assert {r.status for n, r in run_fake(tmp_path).items() if n != "torch"} == {"right"}


# Pieces -------------------------------------------------------------------------------------------------------------


def test_a_packed_case_is_plain_data_and_comes_back() -> None:
    catalog = Catalog()
    for case in read_suite(Path("quick"), catalog, "cpu").cases[::5]:
        again = unpack(Catalog(), pack(case))
        assert (again.name, asdict(again.problem)) == (case.name, asdict(case.problem))
        assert isinstance(again.request(), BuildRequest)


def test_cases_of_one_problem_come_together_in_order_of_mention() -> None:
    cases = list(read_suite(Path("quick"), Catalog(), "cpu").cases)
    shuffled = random.Random(3).sample(cases, len(cases))
    groups = list(iterate_problems(shuffled))
    assert sorted(c.name for g in groups for c in g) == sorted(c.name for c in cases)
    assert all(len({(c.variant.operator, str(c.problem)) for c in g}) == 1 for g in groups)
    assert len(groups) == len({(c.variant.operator, str(c.problem)) for c in cases})
    assert [g[0].name for g in groups] == sorted((g[0].name for g in groups), key=[c.name for c in shuffled].index)


def test_floors_count_only_what_must_happen() -> None:
    def case(name: str, problem: str) -> Case:
        found = case_named(name + problem)
        return found

    copy = case("copy/vec4", "(n=268435456)")
    seconds, bound = floor.floor_s(copy, {**ROOF, "l2_bytes": 0})
    assert bound == "measured DRAM bandwidth" and seconds == pytest.approx(floor.FLOOR_MARGIN * 2**31 / 4e12)
    assert floor.floor_s(case("copy/vec4", "(n=1000)"), ROOF)[0] == 0.0, "it may never leave the L2 cache"
    matmul = case("matmul/coalesced", "(m=4096,n=4096,k=4096)")
    assert floor.floor_s(matmul, ROOF) == (
        pytest.approx(floor.FLOOR_MARGIN * 2 * 4096**3 / 5e13),
        "measured fp32 rate",
    )
    conv = case("conv2d/naive_grid3d", "(n=16,c=256,h=56,w=56,k=64,r=3,s=3,padding=1)")
    assert floor.floor_s(conv, ROOF)[1] == "measured DRAM bandwidth", (
        "fewer operations than the textbook's are possible"
    )
    assert floor.floor_s(copy, None) == (0.0, "")
    small = floor.floor_s(case("copy/vec4", "(n=1000000)"), {**ROOF, "l2_bytes_per_s": 1e13})
    assert small == (pytest.approx(floor.L2_MARGIN * 8e6 / 1e13), "measured L2 bandwidth"), "all of it passes the L2"
    halves = replace(matmul, variant=replace(matmul.variant, precision="bf16"))
    rate = 989.5e12
    assert floor.floor_s(halves, {**ROOF, "gpu": "NVIDIA H200"}) == (
        pytest.approx(floor.FLOOR_MARGIN * 2 * 4096**3 / rate),
        "datasheet's bf16 rate",
    )


def test_exit_codes_follow_the_worst_case() -> None:
    results = [Result("a", "relu", "a", {}, "(n=1)", {}, "f32", "cpu", "right")]
    assert exit_code(results) == 0
    assert exit_code([*results, replace(results[0], status="unsupported", reason="x")]) == 0
    assert exit_code([replace(results[0], status="unsupported", reason="x")]) == 3, "the machine lacks what it takes"
    for status in ("wrong", "failed", "invalid"):
        assert exit_code([*results, replace(results[0], status=status, reason="x")]) == 1  # type: ignore[arg-type]


def test_a_log_of_gigabytes_is_quoted_by_its_end(tmp_path: Path) -> None:
    worker = Worker(Open("cpu"), tmp_path / "worker.log")
    try:
        worker.start()
        with worker.log.open("r+b") as log:
            log.seek(1 << 36)  # sparse: reading it whole would take all memory
            log.write(b"\nthe last words\n")
        assert worker._process
        worker._process.kill()
        with pytest.raises(WorkerLost, match=r"died \(signal SIGKILL\): the last words"):
            worker.ask(Check(pack(case_named("relu/scalar(n=7)"))), 10)
    finally:
        worker.stop()


def test_a_worker_is_replaced_after_it_was_lost(tmp_path: Path) -> None:
    worker = Worker(Open("cpu"), tmp_path / "worker.log")
    catalog = Catalog()
    right = pack(case_named("relu/scalar(n=7)"))
    hanging = Case(catalog.variant_file(CHEATS / "loops_forever.cu"), {}, catalog.operator("relu").from_axes({"n": 7}))
    try:
        assert worker.ask(Check(right), 60).verdict.right
        with pytest.raises(WorkerLost, match="stopped after 1 s"):
            worker.ask(Check(pack(hanging)), 1.0)
        assert worker._process is None
        assert worker.ask(Check(right), 60).verdict.right
    finally:
        worker.stop()
    nowhere = Worker(Open("nothing"), tmp_path / "worker.log")
    with pytest.raises(OpbenchError, match="unknown backend 'nothing'"):
        nowhere.start()
    nowhere.stop()


def test_a_suite_without_cases_is_a_run_without_results(tmp_path: Path) -> None:
    run: Run = run_suite(Suite("none", "none", (), TimingOptions()), RunOptions("cpu", tmp_path))
    assert run.finished and run.results == []
