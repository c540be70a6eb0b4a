"""Short kernels as strangers write them, each with one fault: the limit and the mechanism that come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.insight.advice import Advice
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.results.advice import CaseAdvice, over_bound
from opbench.results.files import read_run
from opbench.results.result import Result
from opbench.running.advising import advise_run
from opbench.running.targets import own_variants
from support.needs import needs_nvrtc

pytestmark = needs_nvrtc
RUN = Path(__file__).parent.parent.parent / "reports/h200/strangers"
Advisor = Callable[..., CaseAdvice]


@pytest.fixture
def advised(tmp_path: Path) -> Advisor:
    """Return the advice on a kernel of an operator that takes a multiple of its lower bound on an H200."""

    def advise_on(operator: str, header: str, kernel: str, axes: dict[str, int | str], distance: float) -> CaseAdvice:
        path = tmp_path / "mine.cu"
        title = f'operator = "{operator}"\ntitle = "a kernel with one fault"\n'
        lines = "".join(f"// {line}\n" for line in f"/// opbench\n{title}{header.strip()}\n///".splitlines())
        path.write_text(lines + kernel.strip() + "\n")
        catalog = Catalog()
        (variant,) = own_variants(path, catalog)
        case = Case(variant, variant.configs[0], catalog.operator(operator).from_axes(axes))
        run = read_run(RUN)
        measured = _at(run.results[0], case)
        bound = measured.measurement.median_s / (over_bound(measured, run.ceilings_of(measured)) or 0.0)  # type: ignore[union-attr]
        timed = replace(measured.measurement, median_s=distance * bound)  # type: ignore[type-var]
        run.results = [replace(measured, measurement=timed)]
        run.header = replace(run.header, targets=(str(path),))
        (found,) = advise_run(RUN, [str(path)], catalog, "h200", lambda _: run)
        assert found.share_of_bound == pytest.approx(1 / distance)
        return found

    return advise_on


def _at(measured: Result, case: Case) -> Result:
    """Return a result with another case; its launch is compiled when advice needs it."""
    return replace(
        measured,
        case=case.name,
        operator=case.variant.operator,
        variant=case.variant.name,
        config=dict(case.config),
        problem=str(case.problem),
        axes=dict(case.problem.axes),
        resources={},
        flops=case.problem.flops(),
        compulsory_bytes=case.problem.bytes(),
        unit=case.unit,
        precision=case.unit,
    )


def by_mechanism(found: CaseAdvice) -> dict[str, Advice]:
    return {one.mechanism: one for one in found.advice}


ROW_PER_THREAD = """
launch = [{ kernel = "normalise", grid = ["cdiv(rows, 128)"], block = ["128"], args = ["x", "out", "rows", "cols"] }]
"""


@pytest.mark.parametrize("rows", [1 << 14, 1 << 18])
def test_a_thread_for_each_row_is_uncoalesced(advised: Advisor, rows: int) -> None:
    kernel = """
__global__ void normalise(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float largest = x[row * cols], sum = 0.0f;
    for (int j = 1; j < cols; j++) largest = fmaxf(largest, x[row * cols + j]);
    for (int j = 0; j < cols; j++) sum += expf(x[row * cols + j] - largest);
    for (int j = 0; j < cols; j++) out[row * cols + j] = expf(x[row * cols + j] - largest) / sum;
}
"""
    found = advised("softmax", ROW_PER_THREAD, kernel, {"rows": rows, "cols": 1024}, 12.0)
    assert (found.advice[0].mechanism, found.advice[0].binds) == ("coalesced", "coalescing")


def test_atomics_to_scattered_bins_are_no_uncoalesced_loads(advised: Advisor) -> None:
    header = """
define = { BINS = "bins", LOW = "lower_edge", WIDTH = "width" }
launch = [{ zero = "counts" },
          { kernel = "count", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "n", "counts"] }]
"""
    kernel = """
__global__ void count(const float* x, int n, int* counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || !(x[i] >= (float)LOW && x[i] <= (float)LOW + (float)WIDTH)) return;
    int bin = (int)((x[i] - (float)LOW) * (BINS / (float)WIDTH));
    atomicAdd(&counts[bin < BINS ? bin : BINS - 1], 1);
}
"""
    found = advised("histogram", header, kernel, {"n": 1 << 24, "bins": 4096}, 60.0)
    assert (found.advice[0].mechanism, found.advice[0].binds) == ("block_reduction", "atomics")
    assert "coalesced" not in by_mechanism(found)


def test_atomics_of_all_lanes_to_one_sum_in_shared_memory(advised: Advisor) -> None:
    header = """
reproducible = false
launch = [{ kernel = "rms_norm", grid = ["rows"], block = ["256"] }]
"""
    kernel = """
__global__ void rms_norm(const float* x, const float* weight, float* out, float* rstd, int rows, int cols) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    const float* row = x + (size_t)blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) atomicAdd(&sum, row[i] * row[i]);
    __syncthreads();
    float scale = rsqrtf(sum / cols + 1e-5f);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    float* y = out + (size_t)blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) y[i] = row[i] * scale * weight[i];
}
"""
    found = advised("rmsnorm", header, kernel, {"rows": 16384, "cols": 1024}, 18.0)
    assert (found.advice[0].mechanism, found.advice[0].binds) == ("block_reduction", "atomics")


GELU = """
supports = { op = ["gelu"] }
launch = [{ kernel = "gelu", grid = ["cdiv(elements, 256)"], block = ["256"], args = ["a", "out", "elements"] }]
"""
GELU_AXES: dict[str, int | str] = {"outer": 1, "channels": 1, "inner": 1 << 24, "op": "gelu"}


def test_double_literals_are_named_and_are_no_divisions(advised: Advisor) -> None:
    kernel = """
__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.5 * x[i] * (1.0 + erf(x[i] * 0.7071067811865475));
}
"""
    found = advised("elementwise", GELU, kernel, GELU_AXES, 2.2)
    assert (found.advice[0].mechanism, found.advice[0].binds) == ("single_precision", "arithmetic units")
    assert "no_division" not in by_mechanism(found)


def test_a_second_launch_of_one_thread_leaves_the_gpu_idle(advised: Advisor) -> None:
    header = """
workspace = { partial = "cdiv(n, 256)" }
launch = [{ kernel = "partial_sums", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "partial", "n"] },
          { kernel = "last_sum", grid = ["1"], block = ["1"], args = ["partial", "out", "cdiv(n, 256)"] }]
"""
    kernel = """
__global__ void partial_sums(const float* x, float* partial, int n) {
    __shared__ float sums[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = i < n ? x[i] : 0.0f;
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffff, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < 8; warp++) sum += sums[warp];
    partial[blockIdx.x] = sum;
}
__global__ void last_sum(const float* partial, float* out, int blocks) {
    float sum = 0.0f;
    for (int i = 0; i < blocks; i++) sum += partial[i];
    *out = sum;
}
"""
    found = advised("sum", header, kernel, {"n": 1 << 26}, 40.0)
    assert found.advice[0].binds in ("idle multiprocessors", "wasted work")
    assert {one.binds for one in found.advice[:3]} >= {"idle multiprocessors", "wasted work"}


@pytest.mark.parametrize(("term", "first"), [("log1pf(expm1f(other))", False), ("other", True)])
def test_barriers_with_much_work_between_them_are_not_first(advised: Advisor, term: str, first: bool) -> None:
    header = """
reproducible = false
launch = [{ zero = "out" }, { kernel = "tree", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "n"] }]
"""
    kernel = f"""
__global__ void tree(const float* x, float* out, int n) {{
    __shared__ float sums[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    sums[threadIdx.x] = i < n ? x[i] : 0.0f;
    for (int s = 128; s > 0; s >>= 1) {{
        __syncthreads();
        float other = sums[threadIdx.x ^ s];
        __syncthreads();
        if (threadIdx.x < s) sums[threadIdx.x] += {term};
    }}
    if (threadIdx.x == 0) atomicAdd(out, sums[0]);
}}
"""
    found = advised("sum", header, kernel, {"n": 1 << 26}, 4.0)
    assert (found.advice[0].mechanism == "fewer_barriers") == first


def test_reads_of_the_whole_row_for_each_element_bind_before_integers(advised: Advisor) -> None:
    header = """
launch = [{ kernel = "softmax", grid = ["cdiv(cols, 32)", "cdiv(rows, 8)"], block = ["32", "8"] }]
"""
    kernel = """
__global__ void softmax(const float* x, float* y, int rows, int cols) {
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    if (row >= rows || col >= cols) return;
    float largest = x[row * cols], sum = 0.0f;
    for (int i = 1; i < cols; i++) largest = fmaxf(largest, x[row * cols + i]);
    for (int i = 0; i < cols; i++) sum += expf(x[row * cols + i] - largest);
    y[row * cols + col] = expf(x[row * cols + col] - largest) / sum;
}
"""
    found = advised("softmax", header, kernel, {"rows": 8192, "cols": 256}, 50.0)
    assert (found.advice[0].mechanism, found.advice[0].binds) == ("shared_memory_tile", "reuse")
