"""Compiled without a GPU: what cannot fit is known, what is the same is known to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.runs.protocol import pack
from opbench.runs.targets import own_variants
from opbench.tuning.compiling import Compilers, GpuTarget, compile_case

pytest.importorskip("nvidia", reason="needs NVRTC's wheel")

H200 = GpuTarget((9, 0), 132)
KERNEL = """// /// opbench
// operator = "relu"
// tune     = { BLOCK = [128, 512, 1024, 2048], LIVE = [1, 200], TILE = [1, 400], SPELLING = [1, 2], FAULT = [0, 1] }
// launch   = [{ kernel = "relu", grid = ["cdiv(n, BLOCK)"], block = ["BLOCK"], shared = "TILE * 1024" }]
// ///
extern "C" __global__ void relu(const float* x, float* out, int n) {
    extern __shared__ float tile[];
#if FAULT
    does not compile
#endif
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float live[LIVE];
#pragma unroll
    for (int k = 0; k < LIVE; ++k) live[k] = x[(i + k * 97) % n];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < LIVE; ++k) sum += live[LIVE - 1 - k] * live[k];
    tile[threadIdx.x % 32] = sum;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) + 0.0f * tile[threadIdx.x % 32];
}
"""


def case(folder: Path, **config: int) -> Case:
    path = folder / "fits.cu"
    path.write_text(KERNEL)
    default = {"BLOCK": 128, "LIVE": 1, "TILE": 1, "SPELLING": 1, "FAULT": 0}
    return Case(own_variants(path, Catalog())[0], {**default, **config}, Catalog().operator("relu").parse("(n=1000)"))


def test_what_a_block_may_not_have_is_known_and_why(tmp_path: Path) -> None:
    right = compile_case(case(tmp_path), H200)
    assert not right.refused and not right.unfit and right.identity and right.registers and right.occupancy == 1.0
    assert compile_case(case(tmp_path, BLOCK=2048), H200).unfit == (
        "relu: a block of 2048 threads; 1 to 1024 are allowed"
    )
    assert "409600 bytes of shared memory; a block has 232448" in compile_case(case(tmp_path, TILE=400), H200).unfit
    found = compile_case(case(tmp_path, BLOCK=1024, LIVE=200), H200)
    assert f"a block of 1024 threads at {found.registers} registers" in found.unfit and (found.registers or 0) > 64
    assert "fits.cu:9" in compile_case(case(tmp_path, FAULT=1), H200).refused


def test_two_spellings_of_one_code_share_an_identity_and_two_launches_do_not(tmp_path: Path) -> None:
    first, second, third = (
        compile_case(case(tmp_path, **c), H200).identity for c in ({}, {"SPELLING": 2}, {"BLOCK": 512})
    )
    assert first == second != third


def test_compilers_in_processes_of_their_own_answer_by_number_and_end(tmp_path: Path) -> None:
    compilers = Compilers((), H200, workers=1)
    try:
        for number, config in ((7, {}), (8, {"FAULT": 1})):
            compilers.begin(number, pack(case(tmp_path, **config)))
        found = dict(compilers.done(wait=True))
        while len(found) < 2:
            found |= dict(compilers.done(wait=True))
        assert found[7] == compile_case(case(tmp_path), H200) and found[8].refused
        assert compilers.done(wait=True) == [], "nothing is under way"
    finally:
        compilers.close()
