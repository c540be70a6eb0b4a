"""Several files of a user's own: run and explained together, and the runs of two files compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opbench import api
from opbench.report import own_variants
from opbench.results.comparison import Change, compare_runs
from opbench.results.files import Run
from opbench.results.own_variants import compare_own_variants
from opbench.results.rows import rows
from support.builders.runs import measured, noisy, run
from support.checks.errors import refuses
from support.common import ROOT, Cli

pytestmark = pytest.mark.usefixtures("forked_workers")

CASES = ROOT / "tests" / "cases" / "side_by_side"
FILES = [str(CASES / "soft_a.cu"), str(CASES / "soft_b.cu")]
PROBLEM = "(rows=64,cols=256)"


def run_files(folder: Path, files: list[str]) -> Run:
    """Run files of one's own on the CPU, without the other variants of their operators."""
    named = [f"*/{Path(file).stem}*" for file in files]
    options = {"backend": "cpu", "cases": named, "problems": [PROBLEM], "cpu_only": True, "out": folder}
    return api.run(files, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_files(tmp_path_factory.mktemp("both"), FILES)


def test_two_files_are_cases_of_one_run(both: Run) -> None:
    assert [(r.variant, r.status) for r in both.results] == [("soft_a", "right"), ("soft_b", "right")]
    assert both.header.targets == tuple(FILES) and both.header.own == ("softmax/soft_a", "softmax/soft_b")
    assert all(row.own for row in rows(both))


def test_the_difference_of_their_counts_is_the_row_length(both: Run) -> None:
    """A row of 256 floats: a warp of soft_a touches 32 sectors a request, one of soft_b the ideal 4."""
    (found,) = compare_own_variants(both)
    assert (found.base, found.new, found.time) == ("soft_a", "soft_b", None)
    assert found.base_traffic and found.new_traffic
    assert found.base_traffic.sectors_per_load == pytest.approx(32, rel=0.05)
    assert (found.new_traffic.sectors_per_load, found.new_traffic.ideal_sectors_per_load) == (4, 4)
    assert found.traffic_ratio == pytest.approx(1 / 8, rel=0.05)
    (sentence,) = own_variants.sentences(found)
    page = (both.folder / "report.html").read_text()
    assert "fewer bytes" in sentence and "fewer bytes" in page and "soft_a.cu" in page


def test_two_runs_of_one_file_each_are_compared(tmp_path: Path) -> None:
    base, new = (run_files(tmp_path / Path(file).stem, [file]) for file in FILES)
    found = compare_runs(base, new)
    (case,) = found.cases
    assert (case.change, case.base_case, case.case) == (
        Change.LESS_TRAFFIC, f"softmax/soft_a{PROBLEM}", f"softmax/soft_b{PROBLEM}",
    )  # fmt: skip
    assert case.traffic_ratio == pytest.approx(1 / 8, rel=0.05) and (found.left_out, found.exit_code) == ({}, 0)
    assert compare_runs(new, base).cases[0].change is Change.MORE_TRAFFIC
    assert compare_runs(new, new).cases[0].change is Change.RIGHT


def test_files_of_several_operators_are_tables_of_their_own(tmp_path: Path, relu_file: Path) -> None:
    suite, _, _ = api.expand_target([*FILES, relu_file], "cpu")
    assert suite.own_variant_ids == ("softmax/soft_a", "softmax/soft_b", "relu/mine")
    assert {case.problem.name for case in suite.cases} == {"softmax", "relu"}
    softmax = [case.variant.name for case in suite.cases if case.problem.name == "softmax"]
    assert softmax[:2] == ["soft_a", "soft_b"] and "online" in softmax


def test_several_targets_must_be_files_with_names_of_their_own(tmp_path: Path) -> None:
    with refuses("not-a-kernel-file", "relu"):
        api.expand_target([FILES[0], "relu"], "cpu")
    twin = tmp_path / "soft_a.cu"
    twin.write_text(Path(FILES[0]).read_text())
    with refuses("duplicate-variant", value="softmax/soft_a"):
        api.expand_target([FILES[0], twin], "cpu")


def test_explain_puts_files_side_by_side(cli: Cli) -> None:
    done = cli("explain", *FILES, "--case", PROBLEM, "--json")
    found = json.loads(done.stdout)
    assert [case["case"] for case in found["cases"]] == [f"softmax/soft_{x}{PROBLEM}" for x in "ab"]
    (comparison,) = found["comparisons"]
    assert comparison["new_traffic"]["sectors_per_load"] == 4
    assert {p["mechanism"] for p in found["cases"][0]["problems"]} == {"coalesced"}
    assert found["cases"][1]["problems"] == []
    table = cli("explain", *FILES, "--case", PROBLEM).stdout
    assert "4.0 / 4.0" in table and "soft_b compared with soft_a" in table


# With times -------------------------------------------------------------------------------------------------------


def timed(ratio: float) -> Run:
    """A run of two files whose medians differ by a factor."""
    results = [measured("a", noisy(1)), measured("b", noisy(2, ratio * 1e-3))]
    return run(results, own=["relu/a", "relu/b"])


@pytest.mark.parametrize(("ratio", "word"), [(0.5, "faster"), (2.0, "slower"), (1.0, "tie")])
def test_times_are_compared_with_their_interval(ratio: float, word: str) -> None:
    (found,) = compare_own_variants(timed(ratio))
    assert found.time and found.time.low < ratio < found.time.high
    assert word in own_variants.sentences(found)[0]


def test_runs_of_different_variants_say_which_is_faster() -> None:
    shared = measured("shared", noisy(5))
    base, new = (run([measured(name, noisy(i, s)), shared]) for i, (name, s) in enumerate([("a", 1e-3), ("b", 5e-4)]))
    found = compare_runs(base, new)
    case = next(case for case in found.cases if case.base_case)
    assert (case.change, case.base_case.split("(")[0], case.case.split("(")[0]) == (Change.FASTER, "relu/a", "relu/b")
    assert case.time and case.time.high < 0.6 and "a → b" in case.reason
    several = run([measured("a", noisy(1)), measured("c", noisy(2)), shared])
    assert set(compare_runs(several, new).left_out) == {r.case for r in (*several.results[:2], new.results[0])}


def test_a_file_that_no_operator_fits_is_explained(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "stencil.cu"
    path.write_text(
        "__global__ void stencil(const float* x, float* y, int rows, int cols) {\n"
        "    const int r = blockIdx.x * 128 + threadIdx.x;\n"
        "    if (r < rows) for (int c = 1; c < cols - 1; ++c)\n"
        "        y[r * cols + c] = x[r * cols + c - 1] + x[r * cols + c + 1];\n"
        "}\n"
        "int main() { float *x, *y; int rows = 256, cols = 64; cudaMalloc(&x, rows * cols * 4);\n"
        "cudaMalloc(&y, rows * cols * 4); cudaMemset(x, 0, rows * cols * 4); stencil<<<2, 128>>>(x, y, rows, cols); }\n"
    )
    done = cli("explain", str(path), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["case"].startswith("memory/stencil(")
    first, *_ = found["problems"]
    assert (first["kind"], first["line"], first["remedies"]) == ("uncoalesced", 4, [])
    printed = cli("explain", str(path)).stdout
    assert printed.count("! line 4: uncoalesced") == 1
