"""The wall time of the harness beside that of cuda-bench."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from opbench import selftest
from opbench.errors import EnvironmentFault
from opbench.gpu.driver import CudaBackend
from opbench.records import to_json
from opbench.report.selftest import part_lines
from opbench.results.files import Run
from opbench.selftest import race, walltime
from opbench.selftest.walltime import Comparison, SingleProcessTime
from opbench.timing.sampling import TimingOptions
from support.builders.runs import measurement, result
from support.checks.errors import refuses
from support.common import CATALOG
from support.fakes.bench import FakeBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """In the place of cuda-bench, on a driver that does not tell what kernels take: the fake's are its own."""
    from opbench.gpu.driver.driver import Driver

    monkeypatch.setattr(Driver, "has", lambda self, name: False)
    package = types.ModuleType("cuda")
    package.bench = FakeBench()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    return package.bench  # type: ignore[attr-defined, no-any-return]


OWN = walltime.OwnTime(0.1, 0.003, 10, "stable")
CELLS = ("copy/scalar(n=1000)", "relu/scalar(n=1000)", "relu/nothing(n=1000)")


def test_both_engines_run_on_one_launch_of_each_case(backend: CudaBackend, bench: FakeBench) -> None:
    from opbench.selftest.engine_comparison_process import compare_cells

    found = compare_cells(backend, CELLS)
    assert list(found) == list(CELLS) and "unknown variant" in found[CELLS[2]].left_out == bench.skipped[0]
    assert bench.modes == [False, False]
    for case in CELLS[:2]:
        own = found[case].own
        assert own and own.stop_reason == "target" and own.half_width == 0 < own.spent_s
        assert found[case].bench_samples_s == pytest.approx([2e-3] * 7)
    assert found[CELLS[1]].bench_s == 0.75 > found[CELLS[0]].bench_s > 0, "without its own figure, what exec took"


def test_no_cell_is_begun_after_the_limit(bench: FakeBench) -> None:
    from opbench.selftest.nvbench import compare_engines

    times = iter([0.0, 1.0, 2.0, 2.5, 9.0])
    found = compare_engines(
        1, {"a": lambda: lambda: None, "b": pytest.fail}, lambda launch: OWN, 5.0, lambda: next(times)
    )
    assert found["a"].own == OWN and found["a"].bench_s == 0.5
    assert found["b"] == walltime.ComparedCell(left_out="the measurement of this case did not start within 5 s")


def test_a_cell_alone_is_measured_at_every_default(
    backend: CudaBackend,
    bench: FakeBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from click.testing import CliRunner

    from opbench.cli import cli as commands
    from opbench.gpu import driver as cuda

    monkeypatch.setattr(cuda, "CudaBackend", lambda: backend)
    words = ["selftest-race", "alone", "--case", CELLS[0], "--out", str(tmp_path / "found.json")]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "found.json").read_text())["bench_s"] > 0 and bench.modes == [None]


def test_the_worker_measures_a_canary_without_a_check(backend: CudaBackend, bench: FakeBench) -> None:
    from opbench.kernels.folders import case_named
    from opbench.running.protocol import Probe, pack
    from opbench.running.server import Server

    server = Server.__new__(Server)
    server.catalog, server.backend = CATALOG, backend  # type: ignore[assignment]
    request = Probe([pack(case_named(CELLS[0]))], TimingOptions(warmup_s=0, max_samples=10))
    assert server.serve(request, lambda told: None) == {case_named(CELLS[0]).name: pytest.approx(2e-3)}


def comparison(case: str, ours_s: float, bench_s: float, width: float | None = 0.001) -> Comparison:
    """One cell by both engines."""
    return Comparison(case, ours_s, 0.004, 12, "target", bench_s, width, 900)


def test_the_wall_time_claim_is_over_the_sum_and_counts_the_cells() -> None:
    asked: list[Sequence[str]] = []

    def alone(names: Sequence[str]) -> list[SingleProcessTime]:
        asked.append(names)
        return [SingleProcessTime(name, 5.0, 2.0) for name in names]

    comparisons = [comparison(f"cell {n}", 0.1, 1.0) for n in range(20)] + [comparison("slow", 1.5, 1.0, None)]
    part = selftest.wall_time(lambda: (comparisons, ["left out: x: not begun"]), alone)
    (claim,) = part.claims
    assert claim.holds and claim.seen.startswith("0.167 (3.5 s of 21 s over 21 cases; 20 of 21 cases ≤ 1")
    assert "worst 1.5)" in claim.seen and "left out: x: not begun" in part.notes
    assert len(asked[0]) == walltime.SAMPLED and part.figures["alone_mean_s"] == 5.0
    assert part.tables[0].rows[-1][-1] == "–" and part.tables[0].rows[0][-1] == "±0.1 % (900)"
    assert any("One process a case takes 5 s" in line for line in part_lines(part))
    slower = selftest.wall_time(lambda: ([comparison("a", 2.0, 1.0)], []), lambda names: [])
    assert [claim.sentence for claim in slower.claims if claim.holds is False] == [
        "a case is measured in no more wall time than by cuda.bench"
    ]


@pytest.mark.parametrize(("wall_s", "holds"), [(9.0, True), (11.0, False), (None, None)])
def test_a_run_is_compared_with_a_process_a_case(wall_s: float | None, holds: bool | None) -> None:
    measured = replace(result("scalar"), measurement=replace(measurement(1e-3), samples_s=(1e-3,) * 10))
    run = Run(
        Path("reports/full"),
        {},
        [measured] * 10 + [result("torch", status="unsupported", reason="no cupy")],
        wall_s=wall_s,
    )
    part = selftest.wall_time(
        lambda: ([comparison("a", 1.0, 1.0)], []), lambda names: [SingleProcessTime("a", 5.0, 2.0)], run
    )
    assert [claim.holds for claim in part.claims[1:]] == [holds]
    if holds:
        assert part.claims[1].seen.startswith("5.56× (9 s, checks included, where 10 processes take 50 s)")


def test_without_cuda_bench_no_wall_time_is_claimed() -> None:
    with refuses("missing-package", "cuda-bench", error=EnvironmentFault):
        race.compare_engines_in_child()

    def absent() -> tuple[list[Comparison], list[str]]:
        raise EnvironmentFault("cuda-bench is not installed; pip install")

    part = selftest.wall_time(absent, lambda names: [])
    assert [(c.holds, c.seen) for c in part.claims] == [(None, "cuda-bench is not installed; pip install")]
    assert not part.failed


def test_the_cells_raced_are_kernels_of_quick_chosen_by_name_alone() -> None:
    names = [case.name for case in race.compared_cases()]
    assert len(names) == len(set(names)) == walltime.MOST_CELLS and not any("cublas" in name for name in names)
    assert walltime.spread(reversed(names), 3) == list(reversed(walltime.spread(names, 3)))


def test_laps_are_read_from_what_the_child_told() -> None:
    measured = {"own": to_json(OWN), "bench_s": 0.7}
    samples = {"bench_samples_s": [1e-6, 2e-6, 3e-6] * 5}
    comparisons, left_out = race.comparisons(
        {"a": measured | samples, "b": {"left_out": "late"}, "c": measured | {"bench_samples_s": []}}
    )
    assert [comparison.case for comparison in comparisons] == ["a", "c"] and left_out == ["left out: b: late"]
    assert comparisons[0].bench_half_width == pytest.approx(0.5) and comparisons[1].bench_half_width is None
