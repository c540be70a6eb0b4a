"""Which cases a file of one's own is checked on."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.errors import UsageError
from opbench.kernels.folders import Catalog
from opbench.running.suite import read_suite
from opbench.running.targets import case_of, cases_to_check
from support.common import CATALOG, RELU, ROOT

CASES = ROOT / "tests" / "running" / "cases"

SQUARE = """\
// /// opbench
// operator = "matmul"
// title = "a kernel of square matrices"
// requires = ["m == n", "n == k"]
// launch = [{ kernel = "mine", grid = ["m"], block = ["n"], args = ["a", "b", "out", "n"] }]
// ///
__global__ void mine(const float* a, const float* b, float* c, int n) {}
"""


@pytest.mark.parametrize("rule", ["n % 4 == 0", "n > 1000", "n % 16 == 8"])
def test_what_a_file_requires_leaves_it_random_shapes(tmp_path: Path, rule: str) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(RELU.replace("title =", f'requires = ["{rule}"]\n// title ='))
    catalog = CATALOG
    examples = catalog.operator("relu").examples()
    cases = cases_to_check(catalog, path, random_shapes=3, seed=20260)
    assert len([case for case in cases if case.problem not in examples]) == 3


def test_axes_that_must_be_alike_are_drawn_alike(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(SQUARE)
    catalog = CATALOG
    cases = cases_to_check(catalog, path, random_shapes=3, seed=20260)
    sizes = [tuple(case.problem.axes[axis] for axis in "mnk") for case in cases]
    assert all(m == n == k for m, n, k in sizes)
    assert len([size for size in sizes if size != (1, 1, 1)]) >= 2


@pytest.mark.parametrize(("suite", "problem"), [("", "(rows=1,cols=4099)"), ("quick", "quick")])
def test_a_variant_is_a_case_on_a_problem_that_shows_its_accesses(suite: str, problem: str) -> None:
    catalog = CATALOG
    case = case_of("softmax/thread_per_row", "", catalog, suite=suite)
    quick = read_suite(Path("quick"), catalog, "cpu", only="softmax").cases[0].problem
    assert case.variant.name == "thread_per_row" and str(case.problem) == (str(quick) if suite else problem)
    assert str(case_of("softmax/thread_per_row", "(rows=5,cols=7)", catalog, suite).problem) == "(rows=5,cols=7)"


def test_the_race_of_a_second_pass_is_found_where_sizes_are_multiples() -> None:
    results = api.check([CASES / "loops_over_tiles_of_multiples.cu"], cpu_only=True)
    kinds = {finding.kind for result in results if result.verdict for finding in result.verdict.findings}
    assert len(results) >= 4 and kinds == {"shared_race"}
    assert {result.status for result in results if int(result.axes["k"]) >= 64} == {"wrong"}


def test_a_kernel_of_one_fixed_size_is_checked_on_it() -> None:
    (result,) = api.check([CASES / "adds_one_fixed_size.cu"], cpu_only=True)
    assert (result.status, result.axes["n"]) == ("right", 8 * 1024 * 1024)


def test_a_tensor_core_kernel_of_16_bits_and_multiples_of_16_is_checked() -> None:
    results = api.check([CASES / "wmma_of_bf16.cu"], cpu_only=True)
    assert [result.status for result in results] == ["right"] * 3
    assert {result.axes["dtype"] for result in results} == {"bf16"}
    assert any(int(result.axes["k"]) >= 32 for result in results)


def test_variants_in_a_folder_of_a_users_own_get_shapes_that_they_accept(tmp_path: Path) -> None:
    folder = tmp_path / "relu"
    folder.mkdir()
    rule = 'requires = ["n % 640 == 0"]\n// title ='
    (folder / "mine.cu").write_text(RELU.replace('// operator = "relu"\n', "").replace("title =", rule))
    catalog = Catalog((tmp_path,))
    assert len(cases_to_check(catalog, "relu/mine", random_shapes=3, seed=20260)) == 3


def test_kernels_without_parameters_are_launched() -> None:
    results = api.check([CASES / "kernels_without_parameters.cu"], cpu_only=True)
    assert {result.status for result in results} == {"right"} and len(results) >= 5
    case = cases_to_check(CATALOG, CASES / "kernels_without_parameters.cu", 0, 1)[0]
    assert case.launches(1)[0].args == ()


def test_a_printed_case_is_a_target_of_run_and_check(tmp_path: Path) -> None:
    name = "relu/scalar[BLOCK=128](n=1021)"
    run = api.run(name, backend="cpu", out=tmp_path / "run", report=False, cpu_only=True)
    assert [result.case for result in run.results] == [name]
    assert [result.case for result in api.check([name], cpu_only=True)] == [name]


@pytest.mark.parametrize("name", ["relu/nope(n=4)", "relu/scalar[BLOCK=7](n=4)", "relu/bf16_vectorised(n=4)"])
def test_a_case_that_does_not_exist_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        api.run(name, backend="cpu", out=tmp_path / "run", report=False)
    assert not (tmp_path / "run").exists()
