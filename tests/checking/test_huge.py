"""`check --huge`: indices that no `int` holds are found at their line, on a few blocks and memory that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.checking import huge_values
from opbench.checking.huge import huge_problems, is_huge
from support.common import CATALOG

pytestmark = pytest.mark.usefixtures("forked_workers")

COPIES = """\
// /// opbench
// operator = "transpose"
// launch = [{ kernel = "moves", grid = ["cdiv(cols, 32)", "min(cdiv(rows, 8), 65535)"], block = ["32", "8"] }]
// ///
extern "C" __global__ void moves(const float* x, float* out, int rows, int cols) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    for (int row = blockIdx.y * 8 + threadIdx.y; row < rows; row += gridDim.y * 8) {
        if (col >= cols) continue;
        const WIDTH from = (WIDTH)row * cols + col;
        out[(long long)col * rows + row] = x[from];
    }
}
"""


SQUARES = """\
// /// opbench
// operator = "relu"
// launch = [{ kernel = "rectifies", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
extern "C" __global__ void rectifies(const float* x, float* out, int n) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < n) out[i] = x[INDEX] > 0.0f ? x[i] : 0.0f;
}
"""


SAID: dict[str, str] = {}
"""What was judged, by problem."""


def tried(path: Path) -> dict[str, str]:
    """Each huge problem's outcome."""
    results = api.check([path], backend="cpu", random_shapes=0, cpu_only=True, huge=True, time_limit_s=60.0)
    huge = [r for r in results if is_huge(CATALOG.operator(r.operator).parse(r.problem))]
    SAID.update({r.problem: r.verdict.integers for r in huge if r.verdict and r.status == "right"})
    return {r.problem: f"{r.status}: {r.reason}" for r in huge}


def require_outcomes(path: Path, kernel: str, index: str, text: str) -> None:
    """The kernel is right with the index i; with another index, each outcome has the text."""
    path.write_text(kernel.replace("INDEX", index))
    outcomes = tried(path)
    assert outcomes
    if index == "i":
        assert set(outcomes.values()) == {"right: "}
    else:
        assert all(text in outcome for outcome in outcomes.values()), outcomes


@pytest.mark.parametrize("width", ["int", "long long"])
def test_indices_too_narrow_are_found_at_their_line(tmp_path: Path, width: str) -> None:
    path = tmp_path / "moves.cu"
    path.write_text(COPIES.replace("WIDTH", width))
    found = tried(path)
    assert len(found) == 2, found
    if width == "long long":
        assert set(found.values()) == {"right: "}
        assert {said.partition(", ")[0] for said in SAID.values()} == {"a sample of blocks"}, SAID
        assert all(int(said.split()[4]) > 1000 for said in SAID.values()), SAID
    else:
        assert any("moves.cu:9: index-overflow: " in reason for reason in found.values()), found


@pytest.mark.parametrize("index", ["i", "(i & 0x7ffffff)"])
def test_values_of_the_blocks_that_ran_are_judged(tmp_path: Path, index: str) -> None:
    """An index that wraps without a sign is in bounds everywhere: only what is written gives it away."""
    require_outcomes(tmp_path / "rectifies.cu", SQUARES, index, "out[")


BY_BLOCK = """\
// /// opbench
// operator = "relu"
// workspace = { numbers = "cdiv(n, 256)" }
// [[launch]]
// kernel = "count_blocks"
// grid = ["cdiv(n, 65536)"]
// block = ["256"]
// args = ["numbers", "n"]
// [[launch]]
// kernel = "rectify"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "numbers", "out", "n"]
// ///
extern "C" __global__ void count_blocks(int* numbers, int n) {
    const int block = blockIdx.x * 256 + threadIdx.x;
    if (block <= (n - 1) / 256) numbers[block] = block + 1;
}
extern "C" __global__ void rectify(const float* x, const int* numbers, float* out, int n) {
    const long long i = (numbers[blockIdx.x] - 1) * 256LL + threadIdx.x;
    if (i >= n) return;
    out[i] = fmaxf(x[INDEX], 0.0f);
}
"""


@pytest.mark.parametrize("index", ["i", "(int)(i * 2) / 2"])
def test_an_index_from_a_block_that_did_not_run_is_no_fault(tmp_path: Path, index: str) -> None:
    require_outcomes(tmp_path / "by_block.cu", BY_BLOCK, index, "by_block.cu:22: ")


def test_a_single_mode_has_a_huge_problem_for_each_of_its_values() -> None:
    problems = list(huge_problems(list(CATALOG.operator("relu").examples())))
    assert {problem.axes["dtype"] for problem in problems} == {"f32", "bf16"}


def test_one_axis_grows_at_a_time() -> None:
    """Rows and columns of a transpose; of a matmul the rows of either side, as k is how long its sums are."""
    transposes = [problem.axes for problem in huge_problems(list(CATALOG.operator("transpose").examples()))]
    assert [axes["rows"] > 10**6 for axes in transposes] == [True, False]
    products = [problem.axes for problem in huge_problems(list(CATALOG.operator("matmul").examples()))]
    assert products and all(axes["k"] < 10**6 for axes in products)


@pytest.mark.parametrize("width", ["short", "long long"])
def test_indices_of_16_bits_are_found_where_a_grid_allows_no_more_rows(tmp_path: Path, width: str) -> None:
    path = tmp_path / "moves.cu"
    limited = COPIES.replace("WIDTH from = (WIDTH)", f"long long from = ({width})")
    path.write_text(limited.replace("// launch", '// requires = ["rows <= 65535", "cols <= 65535"]\n// launch'))
    results = api.check([path], backend="cpu", random_shapes=0, cpu_only=True, huge=True, time_limit_s=60.0)
    statuses = {r.problem: r.status for r in results}
    assert not any(is_huge(CATALOG.operator("transpose").parse(problem)) for problem in statuses)
    assert statuses.pop("(rows=65535,cols=1)") == ("wrong" if width == "short" else "right")
    assert set(statuses.values()) == {"right"}


@pytest.mark.parametrize(
    "axes", ["(items=2088994,features=1028,rows=7,total=20)", "(items=20,features=1028,rows=7,total=2147483640)"]
)
def test_small_inputs_of_a_huge_problem_have_content_that_they_may_have(axes: str) -> None:
    """A step counts from 1, so that zeros everywhere would be read in front of the order's first element."""
    (result,) = api.check([], cases=[f"gather/flat_divmod[BLOCK=256]{axes}"], huge=True, cpu_only=True, random_shapes=0)
    assert result.status == "right", result.reason


def test_an_element_that_a_number_singles_out_makes_slices_depend() -> None:
    """Of a few draws of the step most are beyond the slices, and would not show it."""
    problem = CATALOG.operator("record").parse("(steps=2147483640)")
    assert huge_values._independent_slices(problem, "steps") is None


def test_a_number_for_many_slices_makes_them_depend_on_each_other() -> None:
    """A small problem has one scale for all columns, and thus does not show it."""
    problem = CATALOG.operator("scaled_matmul").from_axes({"m": 8, "n": 1 << 20, "k": 16, "scaling": "block"})
    assert huge_values._independent_slices(problem, "n") is None
    assert huge_values._independent_slices(problem.from_axes({**problem.axes, "scaling": "row"}), "n") is not None
