"""Host compilers must keep a mask of a float's bits in a branch; GCC 12 removed it with -O1."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.checking.backends import open_backend
from opbench.checking.checking import MAX_TRACED_WORK, Session
from opbench.kernels.case import Case
from opbench.running.targets import own_variants
from support.common import CATALOG

KERNEL = """\
// /// opbench
// operator = "matmul"
// title = "factors that are cut in a branch"
// launch = [{ kernel = "cut", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
//
// Why.
extern "C" __global__ void cut(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) {
        float p = a[i / n * k + j];
        CUT
        sum += p * b[j * n + i % n];
    }
    out[i] = sum;
}
"""
CUTS = {
    "branch": "if (p != 0.0f) p = __uint_as_float(__float_as_uint(p) & 0xffff0000u);",
    "choice": "p = p > -100.0f ? __uint_as_float(__float_as_uint(p) & 0xffff0000u) : p;",
    "always": "p = __uint_as_float(__float_as_uint(p) & 0xffff0000u);",
}


@pytest.mark.parametrize("traced_work", [0.0, MAX_TRACED_WORK], ids=["fast", "traced"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_mask_of_bits_stays(tmp_path: Path, cut: str, traced_work: float) -> None:
    path = tmp_path / "cut.cu"
    path.write_text(KERNEL.replace("CUT", CUTS[cut]))
    (variant,) = own_variants(path, CATALOG)
    session = Session(open_backend("cpu"), traced_work=traced_work)
    case = Case(variant, {}, CATALOG.operator("matmul").parse("(m=2,n=3,k=5)"))
    assert not session.check(case).verdict.right
