"""Kernels on int and double: right ones are right on all shapes, wrong ones are wrong, and adopt writes the type."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from opbench import api, matrix_product
from opbench.adopting.adopting import propose
from opbench.adopting.parsed_file import read_file
from opbench.gpu.limits.ceilings import bound_and_limit, committed_ceilings
from opbench.kernels.case import Case
from opbench.kernels.operator import MAX_I32, Operator
from opbench.kernels.special_inputs import special_inputs_of, with_special_inputs
from opbench.results.result import Result
from opbench.running.suite import read_suite
from opbench.source.precision import UNIT_ROUNDOFF
from support.checks.errors import refuses
from support.common import CATALOG

pytestmark = pytest.mark.usefixtures("forked_workers")

OPERATORS = {name: CATALOG.operator(name) for name in CATALOG.operator_names()}

ADD = """
__global__ void vectorAdd(const T* a, const T* b, T* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = (T)((ACC)a[i] + (ACC)b[i]);
}
"""
MATMUL = """
__global__ void matrixMul(const T* a, const T* b, T* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || col >= n) return;
    ACC total = 0;
    for (int i = 0; i < k; ++i) total += (ACC)(a[row * k + i] * b[i * n + col]);
    c[row * n + col] = total;
}
"""
TILED = """
#define TILE 16
__global__ void matmul_tiled(const T* a, const T* b, T* c, int m, int n, int k) {
    __shared__ T as[TILE][TILE], bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    ACC total = 0;
    for (int start = 0; start < k; start += TILE) {
        as[y][x] = row < m && start + x < k ? a[row * k + start + x] : (T)0;
        bs[y][x] = col < n && start + y < k ? b[(start + y) * n + col] : (T)0;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) total += (ACC)(as[y][i] * bs[i][x]);
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = total;
}
"""
SUM = """
__global__ void reduce_sum(const T* x, T* out, int n) {
    __shared__ ACC part[256];
    ACC total = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x * gridDim.x) total += x[i];
    part[threadIdx.x] = total;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[0] = part[0];
}
int main() { T *x, *out; int n = 4096; reduce_sum<<<1, 256>>>(x, out, n); }
"""
ATOMIC = """
__global__ void sum_atomic(const T* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(out, x[i]);
}
"""
TRANSPOSE = """
__global__ void transpose(const T* x, T* out, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < cols) out[c * rows + r] = (T)(ACC)x[r * cols + c];
}
"""
COPY = """
__global__ void copy(const T* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (T)(ACC)x[i];
}
"""
RELU = """
__global__ void relu(const T* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (T)((ACC)x[i] > 0 ? (ACC)x[i] : (ACC)0);
}
"""
SOFTMAX = """
__global__ void softmax(const T* x, T* out, int rows, int cols) {
    int r = blockIdx.x;
    ACC most = x[r * cols], total = 0;
    for (int c = 1; c < cols; ++c) most = x[r * cols + c] > most ? (ACC)x[r * cols + c] : most;
    for (int c = 0; c < cols; ++c) total += EXP((ACC)x[r * cols + c] - most);
    for (int c = threadIdx.x; c < cols; c += 32) out[r * cols + c] = EXP((ACC)x[r * cols + c] - most) / total;
}
int main() { T *x, *out; int rows = 64, cols = 64; softmax<<<rows, 32>>>(x, out, rows, cols); }
"""
KERNELS = {
    "vectorAdd": ADD, "matrixMul": MATMUL, "matmul_tiled": TILED, "reduce_sum": SUM, "sum_atomic": ATOMIC,
    "transpose": TRANSPOSE, "copy": COPY, "relu": RELU, "softmax": SOFTMAX,
}  # fmt: skip
OF = {"vectorAdd": "add", "matrixMul": "matmul", "matmul_tiled": "matmul", "reduce_sum": "sum", "sum_atomic": "sum"}
RIGHT = [(kernel, kind) for kernel in KERNELS for kind in ("int", "double") if (kernel, kind) != ("softmax", "int")]
DTYPES = {"int": "i32", "double": "f64", "float": "f32"}


def written(folder: Path, kernel: str, element: str, accumulator: str = "", change: tuple[str, str] = ("", "")) -> Path:
    """Write a kernel on an element type, with an accumulator of another type, and one part of its text replaced."""
    text = KERNELS[kernel]
    assert change[0] in text
    text = text.replace(*change) if change[0] else text
    text = text.replace("ACC", accumulator or element).replace("EXP", "expf" if accumulator == "float" else "exp")
    path = folder / f"{kernel}.cu"
    path.write_text(text.replace("T*", f"{element}*").replace("(T)", f"({element})").replace(" T ", f" {element} "))
    return path


def checked(path: Path, seed: int = 20260) -> list[Result]:
    return api.check([path], cpu_only=True, random_shapes=5, seed=seed)


@pytest.mark.parametrize(("kernel", "element"), RIGHT)
def test_a_right_kernel_is_right_on_examples_and_on_drawn_shapes(tmp_path: Path, kernel: str, element: str) -> None:
    results = checked(written(tmp_path, kernel, element), seed=len(kernel))
    assert {r.status for r in results} == {"right"}, [r.reason for r in results]
    assert all(f"dtype={DTYPES[element]}" in r.problem for r in results) and len(results) > 10
    assert {r.operator for r in results} == {OF.get(kernel, kernel)}
    worst = [r.verdict.worst_error or 0.0 for r in results if r.verdict]
    assert max(worst) < (1e-13 if element == "double" else 1e-300)


@pytest.mark.parametrize(
    ("kernel", "element", "accumulator", "change"),
    [
        ("vectorAdd", "int", "", ("i < n", "i < n - 1")),
        ("vectorAdd", "int", "", ("c[i] = (T)((ACC)a[i] + (ACC)b[i])", "c[i] = a[i] + b[i] + (i == 7)")),
        ("vectorAdd", "int", "short", ("", "")),
        ("vectorAdd", "int", "float", ("", "")),
        ("vectorAdd", "double", "float", ("", "")),
        ("vectorAdd", "double", "", ("i < n", "i < n - 1")),
        ("matrixMul", "int", "short", ("", "")),
        ("matrixMul", "int", "float", ("", "")),
        ("matrixMul", "int", "", ("i < k", "i < k - (k > 16)")),
        ("matrixMul", "double", "float", ("", "")),
        ("matmul_tiled", "double", "float", ("", "")),
        ("matmul_tiled", "int", "", ("start < k", "start + TILE <= k")),
        ("reduce_sum", "int", "short", ("", "")),
        ("reduce_sum", "int", "float", ("", "")),
        ("reduce_sum", "int", "", ("half = 128", "half = 64")),
        ("reduce_sum", "double", "float", ("", "")),
        ("transpose", "double", "float", ("", "")),
        ("transpose", "int", "", ("out[c * rows + r]", "out[r * cols + c]")),
        ("copy", "int", "short", ("", "")),
        ("copy", "double", "float", ("", "")),
        ("relu", "int", "", ("> 0", "> 1")),
        ("relu", "double", "float", ("", "")),
        ("softmax", "double", "float", ("", "")),
        ("softmax", "double", "", ("ACC most = x[r * cols]", "ACC most = 0")),
    ],
)  # fmt: skip
def test_a_wrong_kernel_is_wrong(
    tmp_path: Path, kernel: str, element: str, accumulator: str, change: tuple[str, str]
) -> None:
    results = checked(written(tmp_path, kernel, element, accumulator, change))
    if change == ("> 0", "> 1"):  # 1 must be among the inputs: it is where they are small
        assert "wrong" in {r.status for r in results}
        return
    wrong = [r for r in results if r.status == "wrong"]
    assert len(wrong) > len(results) / 3, [(r.problem, r.status) for r in results]


def test_float_accumulation_in_a_double_kernel_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    results = checked(written(tmp_path, "matrixMul", "double", "float"))
    details = [d for r in results if r.verdict for f in r.verdict.findings for d in f.details]
    assert any("float variable" in detail for detail in details)


def test_a_race_of_an_int_kernel_is_found(tmp_path: Path) -> None:
    results = checked(written(tmp_path, "reduce_sum", "int", "", ("__syncthreads();", "")))
    found = {f.rule for r in results if r.verdict for f in r.verdict.findings}
    assert any("rac" in rule or "hazard" in rule for rule in found), found


@pytest.mark.parametrize("element", ["int", "double", "float"])
@pytest.mark.parametrize("kernel", ["vectorAdd", "matrixMul", "reduce_sum", "transpose", "copy"])
def test_adopt_writes_the_element_type(tmp_path: Path, kernel: str, element: str) -> None:
    proposal = propose(read_file(written(tmp_path, kernel, element)), OPERATORS)
    assert (proposal.operator, proposal.contradictions) == (OF.get(kernel, kernel), [])
    listed = f'supports = {{ dtype = ["{DTYPES[element]}"] }}'
    assert (listed in proposal.lines) == (element != "float")
    assert any("supports" in line for line in proposal.lines) == (element != "float")


def test_a_header_of_the_wrong_type_is_refused_with_the_pointer(tmp_path: Path) -> None:
    path = written(tmp_path, "copy", "int")
    header = propose(read_file(path), OPERATORS).text.replace("i32", "f64")
    path.write_text(header + path.read_text())
    results = api.check([path], cpu_only=True, random_shapes=0)
    assert {r.status for r in results} == {"wrong"}
    assert all(r.verdict and r.verdict.findings[0].rule == "pointer-type" for r in results)


STORED = [
    (name, dtype)
    for name, operator in OPERATORS.items()
    for dtype in ("i32", "f64")
    if dtype in operator.choices.get("dtype", ())
]


def problems_of(name: str, dtype: str) -> list[Operator]:
    return [p for p in OPERATORS[name].all_examples([dtype]) if p.storage == dtype]


def test_the_simple_operators_have_both_types() -> None:
    simple = {"add", "matmul", "sum", "transpose", "copy", "elementwise", "relu"}
    assert {(name, dtype) for name in simple for dtype in ("i32", "f64")} | {("softmax", "f64")} <= set(STORED)


@pytest.mark.parametrize(("name", "dtype"), STORED)
def test_inputs_and_special_inputs_are_numbers_of_the_type(name: str, dtype: str) -> None:
    for problem in problems_of(name, dtype):
        kinds = special_inputs_of(problem)
        assert dtype == "f64" or set(kinds) <= {"zeros"}
        for kind in ("", *kinds):
            normal = problem.make_inputs(3)
            made = with_special_inputs(problem, normal, kind, 3) if kind else normal
            for tensor in problem.input_tensors():
                assert tensor.dtype == dtype or (name, tensor.dtype) == ("mma", "i8")  # whose sums are i32
                assert made[tensor.name].dtype == {"i8": np.int8, "i32": np.int32, "f64": np.float64}[tensor.dtype]
                assert kind == "nan" or not np.isnan(made[tensor.name]).any()
        if dtype == "f64":
            wide = [array for array in problem.make_inputs(3).values() if array.size > 8]
            assert all((array != array.astype(np.float32)).any() for array in wide)


@pytest.mark.parametrize("name", [name for name, dtype in STORED if dtype == "i32"])
def test_sums_of_whole_numbers_stay_within_32_bits_and_are_judged_exactly(name: str) -> None:
    for problem in problems_of(name, "i32"):
        assert problem.allowance("f32").exact
        for seed in range(4):
            inputs = problem.make_inputs(seed)
            reference = problem.reference_outputs(inputs)
            assert all(np.abs(array).max() <= MAX_I32 for array in reference.values())


def test_a_reference_beyond_32_bits_is_refused() -> None:
    problem = OPERATORS["sum"].from_axes({"n": 4, "dtype": "i32"})
    with refuses("beyond-i32", "out"):
        problem.reference_outputs({"x": np.full(4, MAX_I32, np.int32)})


def test_partial_sums_in_any_order_of_blocks_stay_within_32_bits() -> None:
    problem = OPERATORS["sum"].from_axes({"n": 300007, "dtype": "i32"})
    x = problem.make_inputs(1)["x"].astype(np.int64)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(x.size)
        assert np.abs(np.cumsum(x[order])).max() <= MAX_I32


@pytest.mark.parametrize("shape", [(3, 5, 4), (17, 64, 9), (8, 1000, 8), (1, 4099, 1), (5, 1, 6)])
def test_the_product_of_long_doubles_is_exact_to_far_below_what_is_allowed(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, k)), rng.standard_normal((k, n))
    found = matrix_product(a.astype(np.longdouble), b.astype(np.longdouble))
    size = np.abs(a) @ np.abs(b)
    for i in range(m):
        for j in range(n):
            exact = sum((Fraction(p) * Fraction(q) for p, q in zip(a[i], b[:, j], strict=True)), Fraction(0))
            head = float(found[i, j])
            error = abs(Fraction(head) + Fraction(float(found[i, j] - np.longdouble(head))) - exact)
            assert error <= Fraction(UNIT_ROUNDOFF["f64"]) * Fraction(float(size[i, j])) / 100


@pytest.mark.parametrize("name", [name for name, dtype in STORED if dtype == "f64"])
def test_a_double_reference_is_finer_than_what_it_allows(name: str) -> None:
    assert np.finfo(np.longdouble).nmant >= 63
    for problem in problems_of(name, "f64"):
        reference = problem.reference_outputs(problem.make_inputs(1))
        assert all(array.dtype == np.longdouble for array in reference.values())
        allowed = problem.allowance("f32")
        assert allowed.exact or UNIT_ROUNDOFF["f64"] <= allowed.elementwise < 1e-3 * UNIT_ROUNDOFF["f32"]


def case_of(name: str, dtype: str, **axes: int) -> Case:
    return Case(CATALOG.variants(name)[0], {}, OPERATORS[name].from_axes({**axes, "dtype": dtype}))


@pytest.mark.parametrize("dtype", ["i32", "f64"])
def test_no_peak_of_floats_stands_for_another_type(dtype: str) -> None:
    ceilings = committed_ceilings("h200")
    add, product = case_of("add", dtype, n=1 << 24), case_of("matmul", dtype, m=4096, n=4096, k=4096)
    assert add.precision == add.unit == dtype
    assert ceilings.flops_per_s(dtype) is None
    assert bound_and_limit(ceilings, product.problem.flops(), product.problem.bytes(), product.unit) is None
    best = bound_and_limit(ceilings, add.problem.flops(), add.problem.bytes(), add.unit)
    assert add.problem.bytes() == (1 << 24) * 3 * {"i32": 4, "f64": 8}[dtype]
    assert best and best[1] == "memory"
    assert best[0] == pytest.approx(add.problem.bytes() / (ceilings.dram_bytes_per_s or 1.0))


@pytest.mark.parametrize(("kernel", "element"), [("vectorAdd", "int"), ("matrixMul", "double"), ("reduce_sum", "int")])
def test_a_run_takes_the_ladders_problems_in_the_files_type(tmp_path: Path, kernel: str, element: str) -> None:
    path = written(tmp_path, kernel, element)
    run = api.run([path], backend="cpu", out=tmp_path / "out", cpu_only=True)
    assert {r.status for r in run.results} == {"right"} and run.results
    assert all(r.precision == r.unit == DTYPES[element] for r in run.results)
    quick = read_suite(Path("quick"), CATALOG, "cpu", only=OF[kernel]).cases
    assert {r.problem for r in run.results} <= {str(c.problem.stored_as(DTYPES[element])) for c in quick}
