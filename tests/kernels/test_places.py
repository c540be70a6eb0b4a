"""Refusals of a launch begin with the line that they are about: the kernel's, else the header's."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api

LAUNCH = 'launch   = [{ kernel = "k", grid = ["cdiv(n, 256)"], block = ["256"] }]'
KERNEL = "__global__ void __launch_bounds__(256)\nk(const float* x, float* out, int n) {"
FILE = f"""// /// opbench
// operator = "relu"
// title    = "launches of k, of out and of x"
// {LAUNCH}
// constants = {{ table = {{ f32 = [1] }} }}
// ///
// __global__ void k( in a comment is none
__constant__ float table[1];
const char* said = "__global__ void k(";
extern "C" {KERNEL}
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[0] * fmaxf(x[i], 0.0f);
}}
"""
DECLARED = 11

CASES = {
    "threads": (('["256"] }', '["2048"] }'), DECLARED, "kernel k: block of 2048 threads; the limit is 1024"),
    "bounds": (('["256"] }', '["512"] }'), DECLARED, "its __launch_bounds__(256) allows 256"),
    "grid": (('["cdiv(n, 256)"]', '["0"]'), DECLARED, "kernel k: grid of 0×1×1 blocks"),
    "shared": (('["256"] }', '["256"], shared = "999999" }'), DECLARED, "999999 bytes of dynamic shared memory"),
    "cluster": (('["256"] }', '["256"], cluster = ["32"] }'), DECLARED, "a cluster of 32"),
    "count": ((", int n)", ", int n, int m)"), DECLARED, "kernel k takes 4 arguments; the launch gives 3"),
    "type": ((", int n)", ", float n)"), DECLARED, "argument 3"),
    "wide": (('["256"] }', '["256"], args = ["x", "out", "n * 4294967296"] }'), DECLARED, "argument"),
    "misnamed": (('kernel = "k"', 'kernel = "kk"'), 4, "no kernel 'kk'; defined: k"),
    "unknown name": (("cdiv(n, 256)", "cdiv(m, 256)"), 4, "unknown name 'm'"),
    "filled": (("launch   = [", 'launch   = [{ zero = "q" }, '), 4, "zero = 'q' names no buffer"),
    "constant": (("f32 = [1]", "f32 = [1, 2]"), 5, "constants.table: 8 bytes"),
    "no constant": (("constants = { table", "constants = { tables"), 5, "no __constant__ variable 'tables'"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_names_its_line(name: str, tmp_path: Path) -> None:
    (old, new), line, words = CASES[name]
    assert FILE.count(old) == 1 and FILE.splitlines()[DECLARED - 1].startswith("k(")
    path = tmp_path / "mine.cu"
    path.write_text(FILE.replace(old, new))
    (result,) = api.check([path], backend="cpu", problems=["(n=300)"], cpu_only=True)
    assert result.status == "failed" and words in result.reason
    assert result.reason.startswith(f"{path}:{line}: "), result.reason


def test_without_the_fault_it_is_right(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(FILE)
    (result,) = api.check([path], backend="cpu", problems=["(n=300)"], cpu_only=True)
    assert result.status == "right", result.reason
