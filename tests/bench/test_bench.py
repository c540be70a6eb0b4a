"""What opbench itself costs, without any GPU: run with `make bench`; elsewhere each runs once, as a test."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opbench.cage import facts
from opbench.cage.confine import Confinement
from opbench.cage.fork_server import ForkServer
from opbench.cage.program import run_program
from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.emulator import CpuBackend, caged
from opbench.emulator.build import KernelBuilder
from opbench.emulator.caged import KernelProcess
from opbench.emulator.caged_build import SYSTEM_FOLDERS
from opbench.emulator.kernel_process import Module, preload
from opbench.emulator.toolchain import FAST, find_toolchain
from opbench.judging.judge import judge
from opbench.judging.options import JudgeOptions
from opbench.kernels.case import Case, select
from opbench.kernels.folders import Catalog, case_named
from opbench.paths import cache_folder
from opbench.report import write_report
from opbench.results.comparison import compare_runs
from opbench.results.files import RunWriter, read_run
from opbench.results.result import Result
from opbench.results.rows import frame
from opbench.running.suite import read_suite
from support.builders.runs import result
from support.builders.runs import run as fabricated

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


needs_cage = pytest.mark.skipif(bool(facts.available().missing_feature), reason=facts.available().missing_feature)


@needs_cage
def test_start_a_fork_server(benchmark: Benchmark) -> None:
    """What a worker of `--untrusted` costs in addition, before its first kernel."""
    caged.import_all()

    def start() -> None:
        ForkServer().close()

    benchmark(start)


@needs_cage
def test_confine_a_kernels_process(benchmark: Benchmark, tmp_path: Path) -> None:
    """A new process for one module that is compiled already: forked, confined, loaded, asked once."""
    case = case_named("relu/scalar[BLOCK=256](n=31)")
    path, request = CpuBackend().compile(case.request()), case.request()
    with ForkServer() as server:
        server.call(preload, KernelBuilder(find_toolchain(), cache_folder("cpu"), FAST).runtime())

        def start() -> None:
            KernelProcess(server, Module(path, request, (case.variant.path,), 1, 1 << 30, 60)).stop()

        benchmark(start)


@needs_cage
def test_confine_a_compiler(benchmark: Benchmark, tmp_path: Path) -> None:
    """A program that does nothing, in a cage; a module needs three compiler calls."""
    confinement = Confinement((), (tmp_path,), tuple(map(Path, SYSTEM_FOLDERS)))
    with ForkServer() as server:
        assert benchmark(run_program, server, confinement, ["/bin/true"], {}, 60.0).code == 0


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
    launch = session.launch(case_named(name))
    launch()
    benchmark(launch)
    assert session.backend.synchronize() == []


TILED = "matmul/shared_tile[TILE={tile}](m={n},n={n},k={n})"


@pytest.fixture(scope="module")
def one_core() -> Session:
    """A session on one core, which is what targets speak of."""
    return Session(CpuBackend(workers=1))


@pytest.mark.parametrize(
    "name", [TILED.format(tile=32, n=512), "matmul/register_tile_2d(m=512,n=512,k=512)"], ids=["shared", "register"]
)
def test_untraced_tiled_matmul(benchmark: Any, one_core: Session, name: str) -> None:
    """A product of 512³ on one core. Target: 1 GFLOP/s."""
    case = case_named(name)
    launch = one_core.launch(case)
    launch()
    benchmark.pedantic(launch, rounds=3)
    assert one_core.backend.synchronize() == []
    _note_rate(benchmark, "flops_per_s", case.problem.flops())


@pytest.mark.parametrize(
    "name",
    [
        TILED.format(tile=16, n=128),
        "matmul/register_tile_2d(m=128,n=128,k=128)",
        "relu/scalar[BLOCK=256](n=1000003)",
        "transpose/padded(rows=512,cols=512)",
        "sum/shuffle(n=1000003)",
    ],
)
def test_traced_accesses(benchmark: Any, one_core: Session, name: str) -> None:
    """Races, bounds, uninitialised reads and counts at every access, on one core. Target: 30 M accesses/s."""
    case = case_named(name)
    one_core.trace(case)  # compiles
    trace = benchmark.pedantic(one_core.trace, args=(case,), rounds=3)
    assert trace.completed and trace.accesses > case.problem.bytes() / 16
    _note_rate(benchmark, "accesses_per_s", trace.accesses)


COMPILED = ["relu/scalar", "matmul/shared_tile", "matmul/column_major_b", "conv2d/pointwise_gemm"]


@pytest.mark.parametrize("traced", [False, True], ids=["untraced", "traced"])
@pytest.mark.parametrize("name", COMPILED)
def test_compile_one_file(benchmark: Any, tmp_path: Path, name: str, traced: bool) -> None:
    """One module that no cache holds, the shim having been parsed. Target: 0.6 s, traced or not."""
    backend = CpuBackend(tmp_path)
    variant = Catalog().variant(*name.split("/"))
    text = variant.path.read_text()
    problem = next(
        p
        for p in Catalog().operator(variant.operator).examples()
        if not variant.unmet_requirement(p, variant.configs[0])
    )
    request = Case(variant, variant.configs[0], problem).request()
    compile_one = backend.compile_traced if traced else backend.compile
    compile_one(replace(request, source=_copy(tmp_path / "first.cu", text)))
    numbers = itertools.count()

    def another() -> tuple[tuple[Any, ...], dict[str, Any]]:
        source = _copy(tmp_path / f"another_{next(numbers)}.cu", text)
        return (replace(request, source=source),), {}

    assert benchmark.pedantic(compile_one, setup=another, rounds=3).suffix == ".so"


def _copy(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _note_rate(benchmark: Any, name: str, amount: float) -> None:
    """Amount per second of the best round; there is no time where benchmarks only run as tests."""
    if benchmark.stats is not None:
        benchmark.extra_info[name] = amount / benchmark.stats.stats.min


def test_check_on_the_cpu(benchmark: Benchmark, session: Session) -> None:
    """A whole verdict: inputs on the device, poisoned outputs, two launches, two comparisons."""
    case = case_named("matmul/shared_tile[TILE=16](m=64,n=64,k=64)")
    verdict = benchmark(session.check, case).verdict
    assert verdict.right


@functools.cache
def thousand_results() -> list[Result]:
    return [
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
    table = benchmark(frame, fabricated(thousand_results()))
    assert len(table) == 1000 and table.time_s.notna().all()


def test_compare_two_runs_of_1000_results(benchmark: Benchmark) -> None:
    found = benchmark(compare_runs, fabricated(thousand_results()), fabricated(thousand_results()))
    assert len(found.cases) == 1000


def test_report_of_1000_results(benchmark: Any, tmp_path: Path) -> None:
    paths = benchmark.pedantic(write_report, args=(fabricated(thousand_results()), tmp_path), rounds=1)
    assert paths[0].name == "report.html" and paths[0].stat().st_size > 10_000


def test_append_a_result(benchmark: Benchmark, tmp_path: Path) -> None:
    """One line, on disk before the next case begins."""
    writer = RunWriter(tmp_path)
    writer.write("run", {"format": 1})
    benchmark(writer.result, result("a_variant", 1e-3))
    writer.close()
    assert len(read_run(tmp_path).results) == 1


def test_read_a_run_of_1000_results(benchmark: Benchmark, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.write("run", {"format": 1})
    for one in thousand_results():
        writer.result(one)
    writer.close()
    assert len(benchmark(read_run, tmp_path).results) == 1000


def test_judge_a_small_kernel(benchmark: Benchmark, relu_file: Path) -> None:
    """A whole judgement on the CPU with warm caches, in new processes: at most 5 seconds on two idle cores."""
    options = JudgeOptions(backend="cpu", seed=1)
    judge([relu_file], options)
    assert benchmark.pedantic(judge, args=([relu_file], options), rounds=1).overall == "accepted"
