"""Names that several tests share; fixtures stand in conftest.py."""

from __future__ import annotations

import re
import subprocess
import time
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
WRONG = RELU.replace(": 0.0f", ": 1.0f")
HANGS = RELU.replace("const int i", "for (volatile int go = 1; go;) {}\n    const int i")


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def said(path: Path, key: str) -> str:
    """What the file itself says behind a key, such as `// expect: …`."""
    line = re.search(rf"^// {key}: (.*)$", path.read_text(), re.MULTILINE)
    assert line, f"{path.name} has no line '// {key}: …'"
    return line[1]
