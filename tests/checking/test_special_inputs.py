"""Ties, zeros, tiny, far and infinite inputs: kernels that only normals let pass are found, and what made them fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench import api
from opbench.checking.verdict import judge
from opbench.kernels.special_inputs import SPECIAL_INPUTS, with_special_inputs
from opbench.kernels.tensors import from_storage, lowest_number
from support.common import CATALOG, ROOT

pytestmark = pytest.mark.usefixtures("forked_workers")

CASES = Path(__file__).parent / "cases"
ONE_A_THREAD = """\
// /// opbench
// operator = "{operator}"
// supports = {supports}
// launch = [{{ kernel = "own", grid = ["cdiv({count}, 128)"], block = ["128"] }}]
// ///
extern "C" __global__ void own({arguments}) {{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= {count}) return;
    {body}
}}
"""
RELU = {"operator": "relu", "count": "n", "arguments": "const float* x, float* out, int n"}
SORT = {"operator": "sort", "count": "1", "arguments": "const float* x, float* out, int n"}
HARDTANH = {
    "operator": "elementwise",
    "supports": '{ op = ["hardtanh"] }',
    "count": "inner",
    "arguments": "const float* a, float* out, int outer, int channels, int inner",
}
SOFTMAX = {"operator": "softmax", "count": "rows", "arguments": "const float* x, float* out, int rows, int cols"}
ROW = "const float* row = x + i * cols; float* target = out + i * cols; float most = {first}, sum = 0.0f;"
FIND = "for (int c = 0; c < cols; ++c) most = fmaxf(most, row[c]);"
DIVIDE = "for (int c = 0; c < cols; ++c) target[c] = expf(row[c] - most) / sum;"
ADD = "for (int c = 0; c < cols; ++c) sum += expf(row[c] - most);"
ONLINE = """for (int c = 0; c < cols; ++c) {
        const float larger = fmaxf(most, row[c]);
        sum = sum * expf(most - larger) + expf(row[c] - larger);
        most = larger;
    }"""
INSERT = """for (int c = 0; c < n; ++c) {
        const float value = x[c];
        int at = c;
        for (; at > FIRST && !(out[at - 1] <= value || value != value); --at) out[at] = out[at - 1];
        out[at] = value;
    }"""
KERNELS = {
    "relu": (RELU, "(n=1021)", "out[i] = fmaxf(x[i], 0.0f);", ""),
    "relu by a mask": (RELU, "(n=1021)", "out[i] = x[i] * (x[i] > 0.0f);", "with infinities of both signs"),
    "relu that flushes": (
        RELU,
        "(n=1021)",
        "out[i] = x[i] > 1.17549435e-38f ? x[i] : 0.0f;",
        "with inputs below the least normal number",
    ),
    "hardtanh": (
        HARDTANH,
        "(outer=1,channels=1,inner=1021,op=hardtanh)",
        "out[i] = fabsf(a[i]) > 1.0f ? copysignf(1.0f, a[i]) : a[i];",
        "",
    ),
    "hardtanh that loses NaN": (
        HARDTANH,
        "(outer=1,channels=1,inner=1021,op=hardtanh)",
        "out[i] = fminf(fmaxf(a[i], -1.0f), 1.0f);",
        "with NaN in one of 64 inputs",
    ),
    "softmax": (SOFTMAX, "(rows=13,cols=64)", "\n".join((ROW.format(first="-INFINITY"), FIND, ADD, DIVIDE)), ""),
    "softmax from -500 on": (
        SOFTMAX,
        "(rows=13,cols=64)",
        "\n".join((ROW.format(first="-500.0f"), FIND, ADD, DIVIDE)),
        "with inputs 1000 above or below 0",
    ),
    "softmax whose first infinity is no number": (
        SOFTMAX,
        "(rows=13,cols=64)",
        "\n".join((ROW.format(first="-INFINITY"), ONLINE, DIVIDE)),
        "with -infinity in half of the inputs",
    ),
    "sort": (SORT, "(n=256)", INSERT.replace("FIRST", "0"), ""),
    "sort that leaves the first element in its place": (
        SORT,
        "(n=256)",
        INSERT.replace("FIRST", "(x[0] > x[n / 2] && x[n / 2] > x[n - 1])"),
        "with inputs in descending order",
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_only_normals_let_pass_is_found_and_said(tmp_path: Path, name: str) -> None:
    words, problem, body, said = KERNELS[name]
    path = tmp_path / "own.cu"
    path.write_text(ONE_A_THREAD.format(**{"supports": "{}"} | words, body=body))
    (result,) = api.check([path], backend="cpu", problems=[problem], cpu_only=True)
    assert result.status == ("wrong" if said else "right"), result.reason
    assert said in result.reason


IN_TILES = """\
// /// opbench
// operator = "{operator}"
// launch = [{{ kernel = "own", grid = ["1"], block = ["128"] }}]
// ///
__global__ void own({arguments}) {{
    __shared__ float tile[128];
    const int t = threadIdx.x;
    for (int base = 0; base < {count}; base += 128) {{
        const float v = base + t < {count} ? x[base + t] : 1.5f;
        {body}
    }}
}}
"""
SHARED = "tile[t] = v; {barrier} const float got = tile[127 - t]; __syncthreads(); tile[t] = got; __syncthreads(); "
STORE = "if (base + t < n) out[base + t] = fmaxf(tile[127 - t], 0.0f); __syncthreads();"
SKIPS = SHARED.format(barrier="if (!__all_sync(0xffffffff, {rare})) __syncthreads();") + STORE
ONLY_ON_RARE_INPUTS = {
    "zeros": (SKIPS.replace("{rare}", "__any_sync(0xffffffff, v == 0.0f)"), "shared_race"),
    "infinities": (SKIPS.replace("{rare}", "__any_sync(0xffffffff, isinf(v))"), "shared_race"),
    "denormals": (SKIPS.replace("{rare}", "fabsf(v) < 1.1e-38f || base + t >= n"), "shared_race"),
    "whole numbers": (SKIPS.replace("{rare}", "v == rintf(v) || base + t >= n"), "shared_race"),
    "zeros read beyond": (
        "if (base + t < n) out[base + t] = v == 0.0f ? fmaxf(x[base + t + n] * 0.0f, 0.0f) : fmaxf(v, 0.0f);",
        "out_of_bounds",
    ),
    "zeros read what nobody wrote": (
        "if (base + t < n) out[base + t] = fmaxf(v == 0.0f ? tile[t] * 0.0f : v, 0.0f);",
        "uninitialised",
    ),
}


@pytest.mark.parametrize("name", ONLY_ON_RARE_INPUTS)
def test_paths_that_only_special_inputs_take_are_traced(tmp_path: Path, name: str) -> None:
    body, kind = ONLY_ON_RARE_INPUTS[name]
    path = tmp_path / "own.cu"
    path.write_text(IN_TILES.format(**RELU, body=body))
    (result,) = api.check([path], backend="cpu", problems=["(n=1021)"], cpu_only=True)
    assert result.status == "wrong" and result.verdict
    assert kind in result.verdict.findings[0].kind, result.reason
    assert "; only with " in result.reason, result.reason


def test_a_thread_that_sees_only_masked_elements_rescales_its_sum(tmp_path: Path) -> None:
    """A thread whose elements are all the lowest number took its maximum for the initial value."""
    source = (ROOT / "variants" / "softmax" / "online.cu").read_text()
    rescale = "    sum *= __expf(thread_max - largest);"
    assert source.count(rescale) == 1
    path = tmp_path / "guarded.cu"
    source = source.replace("// /// opbench\n", '// /// opbench\n// operator = "softmax"\n', 1)
    path.write_text(source.replace(rescale, rescale.replace("sum", "if (thread_max > lowest) sum", 1)))
    results = api.check([path], backend="cpu", problems=["(rows=2,cols=300)"], cpu_only=True)
    assert results and {result.status for result in results} == {"wrong"}
    assert {result.verdict.run for result in results if result.verdict} == {"finite_mask"}


def test_a_barrier_that_tiles_of_zeros_skip_is_a_race() -> None:
    results = api.check([CASES / "skips_tiles_of_zeros.cu"], backend="cpu", cpu_only=True)
    wrong = [result for result in results if result.status == "wrong"]
    assert wrong and all("nothing but zeros" in result.reason for result in wrong)
    findings = [result.verdict.findings[0] for result in wrong if result.verdict]
    assert {(finding.kind, finding.line) for finding in findings} == {("shared_race", 13)}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", SPECIAL_INPUTS)
def test_a_kind_is_what_it_says(kind: str, dtype: str) -> None:
    pooled = {"n": 2, "c": 3, "h": 8, "w": 9, "dtype": dtype}
    problem = CATALOG.operator("maxpool2d").from_axes(pooled)
    object.__setattr__(problem, "special_inputs", {"x": (kind,)})
    made = with_special_inputs(problem, problem.make_inputs(1), kind, 1)["x"]
    x = from_storage(made, dtype).astype(np.float64)
    finite = x[np.isfinite(x)]
    held = {
        "ties": len(np.unique(x)) < 12,
        "zeros": not x.any(),
        "level": len(np.unique(x)) == 1 and x.any(),
        "tiny": 0 < np.abs(x).max() < np.finfo(np.float32).tiny,
        "far": x[0].max() < -900 and x[1].min() > 900,
        "infinite": np.isposinf(x).any() and np.isneginf(x).any() and finite.size > x.size / 2,
        "masked": np.isneginf(x).any() and not np.isposinf(x).any() and np.isfinite(x).any(axis=-1).all(),
        "finite_mask": np.isfinite(x).all() and ((x == lowest_number(dtype)).mean(axis=-1) < 1).all(),
        "nan": 0 < np.isnan(x).sum() < x.size / 16 and not np.isinf(x).any(),
        "descending": (x[..., 1:] <= x[..., :-1]).all() and len(np.unique(x)) > 12,
    }
    assert held[kind]


@pytest.mark.parametrize(
    ("got", "want", "right"),
    [
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (1.0, np.inf, False),
        (np.nan, np.inf, False),
        (np.inf, 1.0, False),
        (np.nan, 1.0, False),
        (7.0, np.nan, True),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_an_infinity_is_wanted_as_it_is(got: float, want: float, right: bool, exact: bool) -> None:
    operator = CATALOG.operator("relu" if exact else "softmax").examples()[0]
    out = np.full(70, 1.0, np.float32)
    reference = np.full(70, 1.0)
    out[3], reference[3] = got, want
    found = judge("out", "f32", out, reference, None if exact else np.ones(70), operator.tolerance("f32"))
    assert (found.mismatch is None) == right


@pytest.mark.parametrize(("keeps_nan", "got", "right"), [(True, 7.0, False), (True, np.nan, True), (False, 7.0, True)])
@pytest.mark.parametrize("exact", [True, False])
def test_a_nan_is_wanted_only_where_it_must_be_kept(keeps_nan: bool, got: float, right: bool, exact: bool) -> None:
    operator = CATALOG.operator("relu" if exact else "softmax").examples()[0]
    out = np.full(70, 1.0, np.float32)
    reference = np.full(70, 1.0)
    out[3], reference[3] = got, np.nan
    tolerance = replace(operator.tolerance("f32"), keeps_nan=keeps_nan)
    found = judge("out", "f32", out, reference, None if exact else np.ones(70), tolerance)
    assert (found.mismatch is None) == right


def test_the_earlier_name_of_special_inputs_is_read() -> None:
    """An operator.py of earlier versions says `edges`; it is checked as one that says `special_inputs`."""
    operator = CATALOG.operator("relu")
    older = type("Older", (operator,), {"edges": {"x": ("far",)}})
    assert older.special_inputs == {"x": ("far",)}
    assert "far" not in operator.special_inputs["x"]
