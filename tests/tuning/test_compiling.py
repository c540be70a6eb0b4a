"""Compiled without a GPU: what cannot fit is known, what is the same is known to be."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.gpu.compile.fitting import CompiledCase, GpuTarget, compile_case
from opbench.kernels.case import Case
from opbench.running.protocol import pack
from opbench.running.targets import own_variants
from opbench.tuning.compiling import Compilers
from support.common import CATALOG

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


ENDLESS = """// /// opbench
// operator = "relu"
// tune     = { DEPTH = [1, 200] }
// launch   = [{ kernel = "relu", grid = ["cdiv(n, 128)"], block = [128] }]
// ///
template <int N, int M> struct Sum {
    static __device__ float of(float x) { return Sum<N - 1, 2 * M>::of(x) + Sum<N - 1, 2 * M + 1>::of(x); }
};
template <int M> struct Sum<0, M> { static __device__ float of(float x) { return x * M; } };
extern "C" __global__ void relu(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) + 0.0f * Sum<DEPTH == 1 ? 1 : 24, 1>::of(x[i]);
}
"""


def case(folder: Path, **config: int) -> Case:
    path = folder / "fits.cu"
    path.write_text(KERNEL)
    default = {"BLOCK": 128, "LIVE": 1, "TILE": 1, "SPELLING": 1, "FAULT": 0}
    return Case(own_variants(path, CATALOG)[0], {**default, **config}, CATALOG.operator("relu").parse("(n=1000)"))


def test_what_a_block_may_not_have_is_known_and_why(tmp_path: Path) -> None:
    right = compile_case(case(tmp_path), H200)
    assert (
        not right.compile_error
        and not right.launch_obstacle
        and right.identity
        and right.registers
        and right.occupancy == 1.0
    )
    assert compile_case(case(tmp_path, BLOCK=2048), H200).launch_obstacle == (
        "relu: a block of 2048 threads is not allowed; use 1 to 1024"
    )
    assert (
        "409600 bytes of shared memory; a block can use 232448"
        in compile_case(case(tmp_path, TILE=400), H200).launch_obstacle
    )
    found = compile_case(case(tmp_path, BLOCK=1024, LIVE=200), H200)
    assert (
        f"a block of 1024 threads at {found.registers} registers" in found.launch_obstacle
        and (found.registers or 0) > 64
    )
    assert "fits.cu:9" in compile_case(case(tmp_path, FAULT=1), H200).compile_error


def test_two_spellings_of_one_code_share_an_identity_and_two_launches_do_not(tmp_path: Path) -> None:
    first, second, third = (
        compile_case(case(tmp_path, **c), H200).identity for c in ({}, {"SPELLING": 2}, {"BLOCK": 512})
    )
    assert first == second != third


def unmeasured(found: CompiledCase) -> CompiledCase:
    return replace(found, compile_s=0.0)


def all_done(compilers: Compilers, count: int, within_s: float = 60) -> dict[int, CompiledCase]:
    found: dict[int, CompiledCase] = {}
    until_s = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < until_s:
        found |= dict(compilers.done(wait_s=until_s - time.monotonic()))
    return found


def test_compilers_in_processes_of_their_own_answer_by_number_and_end(tmp_path: Path) -> None:
    compilers = Compilers((), tmp_path, count=1)
    try:
        assert compilers.done(wait_s=60) == [], "nothing is under way, so nothing is waited for"
        for number, config in ((7, {}), (8, {"FAULT": 1})):
            compilers.begin(number, pack(case(tmp_path, **config)), H200)
        found = all_done(compilers, 2)
        assert unmeasured(found[7]) == unmeasured(compile_case(case(tmp_path), H200)) and found[8].compile_error
        assert found[7].compile_s > 0
    finally:
        compilers.close()


def test_a_config_that_compiles_for_too_long_is_given_up_and_holds_up_no_other(tmp_path: Path) -> None:
    """Recursive templates keep NVRTC busy far beyond the limit; the same compiler's next config is compiled."""
    path = tmp_path / "endless.cu"
    path.write_text(ENDLESS)
    variant, problem = own_variants(path, CATALOG)[0], CATALOG.operator("relu").parse("(n=1000)")
    compilers = Compilers((), tmp_path, limit_s=4.0, count=1)
    try:
        for number, depth in enumerate((200, 1)):
            compilers.begin(number, pack(Case(variant, {"DEPTH": depth}, problem)), H200)
        began = time.monotonic()
        found = all_done(compilers, 2)
        assert found[0].timeout_message == "not compiled within 4 s" and found[0].compile_s == 4.0
        assert found[1].identity and not found[1].timeout_message
        assert time.monotonic() - began < 120
    finally:
        compilers.close()


def test_a_compiler_that_dies_costs_its_config_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = Compilers((), tmp_path, count=1)
    try:
        compilers.begin(0, pack(case(tmp_path)), H200)
        assert all_done(compilers, 1)[0].identity
        process = compilers._workers[0]._process
        assert process is not None
        process.send_signal(signal.SIGSEGV)
        compilers.begin(1, pack(case(tmp_path, BLOCK=512)), H200)
        assert (
            "the compiler died" in (found := all_done(compilers, 1)[1]).compile_error
            and "SIGSEGV" in found.compile_error
        )
        compilers.begin(2, pack(case(tmp_path, BLOCK=512)), H200)
        assert all_done(compilers, 1)[2].identity, "another compiler took its place"
    finally:
        compilers.close()
