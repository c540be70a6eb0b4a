"""What opbench itself costs, without any GPU: run with `make bench`; elsewhere each runs once, as a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report.fabricate import result
from report.fabricate import run as fabricated

from opbench import api
from opbench.backends import open_backend
from opbench.case import select
from opbench.catalog import Catalog
from opbench.comparison import compare_runs
from opbench.frame import frame
from opbench.report import write_report
from opbench.results import RunWriter, read_run
from opbench.session import Session
from opbench.suite import read_suite

Benchmark = Callable[..., Any]


def test_read_every_header(benchmark: Benchmark) -> None:
    """A list of all variants, each header parsed anew."""

    def read() -> int:
        catalog = Catalog()
        return sum(len(catalog.variants(name)) for name in catalog.operator_names())

    assert benchmark(read) > 40


def test_expand_a_suite_of_10_000_cases(benchmark: Benchmark, tmp_path: Path) -> None:
    suite = tmp_path / "large.toml"
    sizes = ", ".join(str(n) for n in range(1, 2501))
    tune = "tune = { BLOCK = [128, 256, 512, 1024] }"
    suite.write_text(f'[[run]]\noperator = "relu"\nvariants = ["scalar"]\n{tune}\nsweep = {{ n = [{sizes}] }}\n')
    catalog = Catalog()
    found = benchmark(read_suite, suite, catalog, "cpu")
    assert len({case.name for case in found.cases}) == 10_000


def test_select_one_case_of_10_000(benchmark: Benchmark, tmp_path: Path) -> None:
    suite = tmp_path / "large.toml"
    sizes = ", ".join(str(n) for n in range(1, 2501))
    suite.write_text(f'[[run]]\noperator = "relu"\nvariants = ["scalar"]\nsweep = {{ n = [{sizes}] }}\n')
    cases = read_suite(suite, Catalog(), "cpu").cases
    assert len(benchmark(select, cases, ["relu/scalar[BLOCK=256](n=2000)"])) == 1


@pytest.fixture(scope="module")
def session() -> Session:
    """A session on the cpu backend."""
    return Session(open_backend("cpu"))


@pytest.mark.parametrize(
    "name",
    [
        "relu/scalar[BLOCK=256](n=7)",
        "relu/scalar[BLOCK=256](n=1000003)",
        "matmul/shared_tile[TILE=16](m=256,n=256,k=256)",
    ],
)
def test_launch_on_the_cpu(benchmark: Benchmark, session: Session, name: str) -> None:
    """A warm launch: all of it is opbench's for 7 elements, almost none of it for a product of 256³."""
    launch = session.bind(api.case_named(name))
    launch()
    benchmark(launch)
    assert session.backend.synchronize() == []


def test_check_on_the_cpu(benchmark: Benchmark, session: Session) -> None:
    """A whole verdict: inputs on the device, poisoned outputs, two launches, two comparisons."""
    case = api.case_named("matmul/shared_tile[TILE=16](m=64,n=64,k=64)")
    verdict = benchmark(session.check, case).verdict
    assert verdict.right


RESULTS = [
    result(
        f"variant_{v}",
        1e-3 * (1 + 0.1 * v + 0.01 * p),
        problem=f"(n={10**7 + p})",
        operator=f"operator_{p % 10}",
        nbytes=8 * (10**7 + p),
        builds_on=f"variant_{v - 1}" if v else "",
    )
    for p in range(100)
    for v in range(10)
]


def test_frame_of_1000_results(benchmark: Benchmark) -> None:
    table = benchmark(frame, fabricated(RESULTS))
    assert len(table) == 1000 and table.time_s.notna().all()


def test_compare_two_runs_of_1000_results(benchmark: Benchmark) -> None:
    found = benchmark(compare_runs, fabricated(RESULTS), fabricated(RESULTS))
    assert len(found.cases) == 1000


def test_report_of_1000_results(benchmark: Any, tmp_path: Path) -> None:
    paths = benchmark.pedantic(write_report, args=(fabricated(RESULTS), tmp_path), rounds=1)
    assert paths[0].name == "report.html" and paths[0].stat().st_size > 10_000


def test_append_a_result(benchmark: Benchmark, tmp_path: Path) -> None:
    """One line, on disk before the next case begins."""
    writer = RunWriter(tmp_path)
    writer.write("run", {"format": 1})
    benchmark(writer.result, RESULTS[0])
    writer.close()
    assert len(read_run(tmp_path).results) == 1


def test_read_a_run_of_1000_results(benchmark: Benchmark, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.write("run", {"format": 1})
    for one in RESULTS:
        writer.result(one)
    writer.close()
    assert len(benchmark(read_run, tmp_path).results) == 1000
