"""Patterns of wrong elements: each is named for a kernel that has its fault, and for no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbench import api
from opbench.backend.findings import Finding
from opbench.checking.patterns import Evidence, pattern_of

pytestmark = pytest.mark.usefixtures("forked_workers")

HEAD = """\
// /// opbench
// operator = "{operator}"
// launch = [{launch}]
// ///
{body}
"""
ONE = '{{ kernel = "k", grid = ["cdiv(n, {block})"], block = ["{block}"] }}'
ROWS = '{ kernel = "k", grid = ["rows"], block = ["BLOCK"] }'
INDEX = "const int i = blockIdx.x * 64 + threadIdx.x;"


def elementwise(body: str, block: int = 64, operator: str = "copy") -> tuple[str, str]:
    """A kernel over a vector, and its problem."""
    code = f"__global__ void k(const float* x, float* out, int n) {{\n    {body}\n}}"
    return HEAD.format(operator=operator, launch=ONE.format(block=block), body=code), "(n=1000)"


def softmax(block: int, reduce: str) -> tuple[str, str]:
    """A softmax of rows of which one step is `reduce`, and its problem."""
    code = f"""__global__ void k(const float* x, float* out, int rows, int cols) {{
    x += blockIdx.x * cols, out += blockIdx.x * cols;
    float most = x[0], total = 0.0f;
    for (int i = 0; i < cols; ++i) most = fmaxf(most, x[i]);
    for (int i = threadIdx.x; i < cols; i += {block}) total += expf(x[i] - most);
    {reduce}
    for (int i = threadIdx.x; i < cols; i += {block}) out[i] = expf(x[i] - most) / total;
}}"""
    return HEAD.format(operator="softmax", launch=ROWS.replace("BLOCK", str(block)), body=code), "(rows=7,cols=500)"


MATMUL = """\
__global__ void k(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    for (int p = 0; p < %s; ++p) sum %s a[i / n * k + p] * b[p * n + i %% n];
    out[%s] = sum;
}"""
FLAT = '{ kernel = "k", grid = ["cdiv(m * n, 64)"], block = ["64"] }'


def matmul(end: str = "k", add: str = "+=", place: str = "i") -> tuple[str, str]:
    """A plain product with one part exchanged, and its problem."""
    body = MATMUL % (end, add, place)
    return HEAD.format(operator="matmul", launch=FLAT, body=body), "(m=40,n=40,k=100,b_order=row,dtype=f32)"


SHUFFLED = "for (int step = 16; step > 0; step /= 2) total += __shfl_down_sync(0xffffffff, total, step);"
IN_SHARED = """__shared__ float part[128];
    part[threadIdx.x] = total;
    __syncthreads();
    for (int step = 64; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) total = part[0];"""
LAST_BLOCK = """\
__global__ void k(const float* x, float* out, int n) {
    __shared__ float part[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int j = 0; j < 64; ++j) sum += part[j];
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) out[0] = sum;
}"""

FAULTS: dict[str, tuple[str, tuple[str, str]]] = {
    "not_broadcast_in_a_warp": ("lane-zero", softmax(32, SHUFFLED)),
    "not_broadcast_in_a_block": ("thread-zero", softmax(128, IN_SHARED)),
    "only_the_last_block": (
        "partial",
        (HEAD.format(operator="sum", launch=ONE.format(block=64), body=LAST_BLOCK), "(n=1000)"),
    ),
    "one_tile_of_k": ("partial", matmul(end="64")),
    "all_but_the_tail_of_k": ("partial", matmul(end="k / 32 * 32")),
    "transposed": ("transposed", matmul(place="i % n * m + i / n")),
    "added_twice": ("multiple", elementwise(f"{INDEX} if (i < n) out[i] = x[i] + x[i];")),
    "all_zero": ("all-zero", elementwise(f"{INDEX} if (i < n) out[i] = 0.0f;")),
    "tail_not_written": ("tail", elementwise(f"{INDEX} if (blockIdx.x < n / 64) out[i] = x[i];")),
    "tail_wrong": ("tail", elementwise(f"{INDEX} if (i < n) out[i] = i < n / 64 * 64 ? x[i] : -x[i];")),
    "first_element": ("first-element", elementwise(f"{INDEX} if (i < n) out[i] = i > 0 ? x[i] : 0.0f;")),
    "first_not_written": ("first-element", elementwise(f"{INDEX} if (i > 0 && i < n) out[i] = x[i];")),
    "repeated": ("repeated", elementwise(f"{INDEX} if (i < n) out[i] = x[0];")),
    "tail_of_a_tiny_output": ("", (elementwise(f"{INDEX} if (i < n) out[i] = i < 2 ? x[i] : -x[i];")[0], "(n=3)")),
    # No pattern: nothing but noise, a sign, another operand, a constant, a few elements.
    "rounded": ("", elementwise(f"{INDEX} if (i < n) out[i] = (int)(x[i] * 8.0f) / 8.0f;")),
    "negated": ("", elementwise(f"{INDEX} if (i < n) out[i] = -x[i];")),
    "constant": ("", elementwise(f"{INDEX} if (i < n) out[i] = 3.25f;")),
    "some_elements": ("", elementwise(f"{INDEX} if (i < n) out[i] = i % 37 == 5 ? 0.5f : x[i];")),
    "shifted": ("", elementwise(f"{INDEX} if (i < n) out[i] = x[i > 0 ? i - 1 : 0];")),
    "product_of_other_rows": ("", matmul(place="(i + n) % (m * n)")),
    "last_term_alone": ("", matmul(add="=")),
    "wrong_but_shuffled": ("", softmax(32, SHUFFLED.replace("_down_", "_xor_") + " total *= 1.5f;")),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    """What a check says of each kernel."""
    folder = tmp_path_factory.mktemp("faults")
    problems: dict[str, list[Path]] = {}
    for name, (_, (text, problem)) in FAULTS.items():
        (folder / f"{name}.cu").write_text(text)
        problems.setdefault(problem, []).append(folder / f"{name}.cu")
    results = [r for p, paths in problems.items() for r in api.check(paths, problems=[p], cpu_only=True)]
    return {r.variant: list(r.verdict.findings) if r.verdict else [] for r in results}


@pytest.mark.parametrize("name", FAULTS)
def test_a_pattern_is_named_where_it_is_and_nowhere_else(found: dict[str, list[Finding]], name: str) -> None:
    first = found[name][0]
    assert first.rule in ("wrong-result", "unwritten-output"), first
    assert first.pattern == FAULTS[name][0], first
    if first.pattern:
        assert first.details and first.remedy


def test_a_pattern_of_the_axis_names_its_terms(found: dict[str, list[Finding]]) -> None:
    assert "k = 0 to 63 of 100" in found["one_tile_of_k"][0].details[-1]
    assert "k = 0 to 95 of 100" in found["all_but_the_tail_of_k"][0].details[-1]
    assert "n = 960 to 999 of 1000" in found["only_the_last_block"][0].details[-1]


def test_special_inputs_are_named(tmp_path: Path) -> None:
    body = "float sum = x[0] == 0.0f ? 1.0f : 0.0f; for (int i = 0; i < n; ++i) sum += x[i]; out[0] = sum;"
    (tmp_path / "zeros.cu").write_text(elementwise(body, block=1, operator="sum")[0].replace("cdiv(n, 1)", "1"))
    results = api.check([tmp_path / "zeros.cu"], problems=["(n=1000)"], cpu_only=True)
    (first, *_) = results[0].verdict.findings if results[0].verdict else ()
    assert any("Wrong only with special inputs" in detail for detail in first.details), first


def evidence(got: np.ndarray, expected: np.ndarray, **more: object) -> Evidence:
    """Evidence from two arrays, of which unequal elements are wrong."""
    wrong = ~(got == expected)
    return Evidence(got, expected, wrong, np.zeros_like(wrong), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bits", "pattern"), [(0xFFFFFFFF, "uninitialised-nan"), (0x7FFFFFFF, "uninitialised-nan"), (0xFFC00000, "")]
)
def test_a_nan_of_unwritten_memory_is_told_from_one_of_arithmetic(bits: int, pattern: str) -> None:
    stored = np.array([1.0, 2.0, 3.0, 4.0], np.float32).view(np.uint32)
    stored[2] = bits
    got, expected = stored.view(np.float32).astype(np.float64), np.array([1.0, 2.0, 3.0, 4.0])
    named = pattern_of(evidence(got, expected, bits=stored))
    assert (named.name if named else "") == pattern


def test_noise_forms_no_pattern() -> None:
    rng = np.random.default_rng(1)
    for shape in ((1000,), (33, 64), (64, 64), (5, 7, 9)):
        expected = rng.standard_normal(shape)
        for share in (0.01, 0.3, 1.0):
            got = np.where(rng.random(shape) < share, rng.standard_normal(shape), expected)
            made = evidence(got, expected, source="__shfl_down_sync __shared__", block=(128, 1, 1))
            assert pattern_of(made) is None, (shape, share)
