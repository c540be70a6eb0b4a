"""Names that several tests share; fixtures stand in conftest.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHEATS = ROOT / "tests" / "cheats"

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

RELU = """\
// /// opbench
// operator = "relu"
// title = "a kernel of a test"
// launch = [{ kernel = "mine", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Why.
extern "C" __global__ void mine(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
"""
