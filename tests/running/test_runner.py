"""Pieces of a run: packed cases, their order, lower bounds, exit codes and workers."""

from __future__ import annotations

import random
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from opbench.errors import LaunchError, Location, OpbenchError
from opbench.gpu.limits import lower_bound
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.kernels.launch import BuildRequest
from opbench.results.files import Run
from opbench.results.result import Result, exit_code
from opbench.running.protocol import (
    CheckCase,
    OpenBackend,
    iterate_problems,
    pack,
    unpack,
)
from opbench.running.runner import RunSetup, run_suite
from opbench.running.suite import Suite, read_suite
from opbench.running.worker import Worker, WorkerLost
from opbench.timing.sampling import TimingOptions
from support.checks.errors import refuses
from support.common import CATALOG, CHEATS, RELU
from support.fakes.worker import PEAKS


def test_a_packed_case_is_plain_data_and_comes_back() -> None:
    catalog = CATALOG
    for case in read_suite(Path("quick"), catalog, "cpu").cases[::5]:
        again = unpack(CATALOG, pack(case))
        assert (again.name, asdict(again.problem)) == (case.name, asdict(case.problem))
        assert isinstance(again.request(), BuildRequest)


def test_cases_of_one_problem_come_together_in_order_of_mention() -> None:
    cases = list(read_suite(Path("quick"), CATALOG, "cpu").cases)
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
    seconds, bound = lower_bound.lower_bound_s(copy, replace(PEAKS, l2_bytes=0))
    assert bound == "measured DRAM bandwidth" and seconds == pytest.approx(lower_bound.BOUND_MARGIN * 2**31 / 4e12)
    few = case("copy/vec4", "(n=1000)")
    assert lower_bound.lower_bound_s(few, PEAKS, "hot")[0] == 0.0, "it may never leave the L2 cache"
    assert lower_bound.lower_bound_s(few, PEAKS)[0] == pytest.approx(4000 / 4e12 / lower_bound.COLD_TOLERANCE), (
        "what is read comes from DRAM"
    )
    matmul = case("matmul/coalesced", "(m=4096,n=4096,k=4096)")
    assert lower_bound.lower_bound_s(matmul, PEAKS) == (
        pytest.approx(lower_bound.BOUND_MARGIN * 2 * 4096**3 / 5e13),
        "measured fp32 rate",
    )
    conv = case("conv2d/naive_grid3d", "(n=16,c=256,h=56,w=56,k=64,r=3,s=3,padding=1)")
    assert lower_bound.lower_bound_s(conv, PEAKS, "hot")[1] == "measured DRAM bandwidth", (
        "fewer operations than the textbook's are possible"
    )
    assert lower_bound.lower_bound_s(copy, None) == (0.0, "")
    small = lower_bound.lower_bound_s(case("copy/vec4", "(n=1000000)"), replace(PEAKS, l2_bytes_per_s=1e13), "hot")
    assert small == (pytest.approx(lower_bound.L2_MARGIN * 8e6 / 1e13), "measured L2 bandwidth"), (
        "all of it passes the L2"
    )
    halves = replace(matmul, variant=replace(matmul.variant, precision="bf16"))
    rate = 989.5e12
    assert lower_bound.lower_bound_s(halves, replace(PEAKS, gpu="NVIDIA H200")) == (
        pytest.approx(lower_bound.BOUND_MARGIN * 2 * 4096**3 / rate),
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
    worker = Worker(OpenBackend("cpu"), tmp_path / "worker.log")
    try:
        worker.start()
        with worker.log.open("r+b") as log:
            log.seek(1 << 36)  # sparse: reading it whole would take all memory
            log.write(b"\nthe last words\n")
        assert worker._process
        worker._process.kill()
        with refuses("worker-died", value="signal SIGKILL", error=WorkerLost) as raised:
            worker.ask(CheckCase(pack(case_named("relu/scalar(n=7)"))), 10)
        assert str(raised.value).endswith(": the last words"), "what the worker printed last"
    finally:
        worker.stop()


def test_a_worker_is_replaced_after_it_was_lost(tmp_path: Path) -> None:
    worker = Worker(OpenBackend("cpu"), tmp_path / "worker.log")
    catalog = CATALOG
    right = pack(case_named("relu/scalar(n=7)"))
    hanging = Case(
        catalog.variant_file(CHEATS / "counts_without_end.cu"), {}, catalog.operator("relu").from_axes({"n": 7})
    )
    try:
        assert worker.ask(CheckCase(right), 60).verdict.right
        with refuses("worker-hung", value=1.0, error=WorkerLost):
            worker.ask(CheckCase(pack(hanging)), 1.0)
        assert worker._process is None
        assert worker.ask(CheckCase(right), 60).verdict.right
    finally:
        worker.stop()
    nowhere = Worker(OpenBackend("nothing"), tmp_path / "worker.log")
    with refuses("unknown-name", error=OpbenchError):
        nowhere.start()
    nowhere.stop()


def test_an_error_of_a_worker_keeps_its_location(tmp_path: Path) -> None:
    path = tmp_path / "wide.cu"
    path.write_text(RELU.replace('["256"]', '["2048"]'))
    case = Case(CATALOG.variant_file(path), {}, CATALOG.operator("relu").from_axes({"n": 7}))
    line = next(n for n, text in enumerate(RELU.splitlines(), 1) if "__global__" in text)
    worker = Worker(OpenBackend("cpu"), tmp_path / "worker.log")
    try:
        with pytest.raises(LaunchError) as caught:
            worker.ask(CheckCase(pack(case)), 60)
    finally:
        worker.stop()
    assert caught.value.location == Location(path, line)


def test_a_worker_that_another_thread_ends_is_not_started_again(tmp_path: Path) -> None:
    worker = Worker(OpenBackend("cpu"), tmp_path / "worker.log")
    variant = CATALOG.variant_file(CHEATS / "counts_without_end.cu")
    hanging = CheckCase(pack(Case(variant, {}, CATALOG.operator("relu").from_axes({"n": 7}))))
    worker.start()
    process = worker._process
    assert process
    ender = threading.Timer(0.5, worker.end)
    ender.start()
    with refuses("worker-died", value="signal SIGKILL", error=WorkerLost):
        worker.ask(hanging, 60)
    ender.join()
    assert process.poll() is not None
    with refuses("run-ended", error=WorkerLost):
        worker.ask(hanging, 60)


def test_a_suite_without_cases_is_a_run_without_results(tmp_path: Path) -> None:
    run: Run = run_suite(Suite("none", "none", (), TimingOptions()), RunSetup("cpu", tmp_path))
    assert run.finished and run.results == []
