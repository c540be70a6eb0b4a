"""A kernel sees the macros that NVRTC defines, and none of the host's, wherever in its text it looks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbench import api
from opbench.emulator import CpuBackend
from opbench.errors import UsageError
from support.builders.on_cpu import Bench, Tracer, compilers

pytestmark = pytest.mark.usefixtures("forked_workers")

HOST = [
    "__x86_64__",
    "__amd64__",
    "__aarch64__",
    "__GNUC__",
    "__GNUC_MINOR__",
    "__GNUG__",
    "__clang__",
    "__llvm__",
    "__linux__",
    "__linux",
    "__unix__",
    "__gnu_linux__",
    "__ELF__",
    "__PIC__",
    "__OPTIMIZE__",
    "__SANITIZE_THREAD__",
    "__SSE2__",
    "__FMA__",
    "__VERSION__",
    "__GLIBC__",
    "__GXX_ABI_VERSION",
    "__CHAR_UNSIGNED__",
    "_GNU_SOURCE",
    "__OPBENCH_CPU__",
    "OPB_TRACE",
    "OPB_SITE",
    "OPB_MACROS_SHOWN",
    "OPB_CONSTINIT",
    "OPB_OPERATION",
]
NVRTC = ["__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__cplusplus", "__STDC__", "__LP64__", "__cpp_constexpr"]
HEADERS = [
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "mma.h",
    "cooperative_groups.h",
    "cooperative_groups/reduce.h",
    "cuda/atomic",
    "cuda/barrier",
    "cuda/pipeline",
    "cuda/std/cmath",
    "cuda/std/limits",
    "cuda/std/type_traits",
    "cub/cub.cuh",
    "cmath",
    "math.h",
    "stdint.h",
    "cstdint",
    "climits",
    "cfloat",
    "type_traits",
    "algorithm",
    "utility",
    "limits",
    "tuple",
    "array",
    "assert.h",
    "stdio.h",
    "string.h",
]


def kernel(before: str = "") -> str:
    """Text that tells which macros are defined, one element each."""
    lines = [f"#ifdef {name}\n  out[{at}] = 1;\n#endif" for at, name in enumerate([*HOST, *NVRTC])]
    return "\n".join([before, 'extern "C" __global__ void k(int* out) {', *lines, "}"])


def seen(bench: Bench, text: str) -> set[str]:
    """The macros that a kernel saw."""
    out = np.zeros(len(HOST) + len(NVRTC), np.int32)
    bench.run(text, "k", (1, 1, 1), (1, 1, 1), out)
    return {name for name, flag in zip([*HOST, *NVRTC], out, strict=True) if flag}


@pytest.fixture(params=compilers())
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPBENCH_CXX", str(request.param))
    return str(request.param)


def test_a_kernel_sees_the_macros_of_nvrtc_alone(bench: Bench, compiler: str) -> None:
    assert seen(bench, kernel()) == set(NVRTC)


def test_headers_hide_what_they_need(bench: Bench, compiler: str) -> None:
    includes = "\n".join(f"#include <{name}>" for name in HEADERS)
    assert seen(bench, kernel(includes)) == set(NVRTC)


def test_a_header_of_the_users_own_is_kernel_text(bench: Bench, compiler: str) -> None:
    (bench.folder / "own.cuh").write_text("#include <mma.h>\n" + kernel().replace("void k(", "void from_header("))
    text = '#include "own.cuh"\n#include "cuda_fp16.h"\n' + kernel()
    assert seen(bench, text) == set(NVRTC)


def test_headers_in_the_middle_of_a_file(bench: Bench, compiler: str) -> None:
    text = """\
#include <cmath>
__device__ float of(float x) { return std::sqrt(x); }
#include <mma.h>
#include <cuda/std/limits>
#ifdef __GNUC__
#error visible
#endif
extern "C" __global__ void k(float* out) {
  __shared__ float part[4];
  part[threadIdx.x] = of(4.0f) + FLT_MIN + (INT_MAX > 0) + (float)(UINT64_C(1) >> 1) + CHAR_BIT * 0.0f;
  __syncthreads();
  assert(DBL_EPSILON < 1 && INT64_MAX > 0 && SIZE_MAX > 0 && LLONG_MIN < 0);
  const bool known = cuda::std::numeric_limits<int>::digits == 31 && isnan(NAN) && isinf(INFINITY);
  out[threadIdx.x] = part[3 - threadIdx.x] + known;
}"""
    out = np.zeros(4, np.float32)
    bench.check(text, "k", (1, 1, 1), (4, 1, 1), out)
    np.testing.assert_allclose(out, 4)


def test_a_barrier_for_the_cpu_alone_is_no_barrier(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  __shared__ float part[64];
  part[threadIdx.x] = out[threadIdx.x];
#if defined(__x86_64__) || defined(__aarch64__) || defined(__linux__) || defined(OPB_TRACE)
  __syncthreads();
#endif
  out[threadIdx.x] = part[63 - threadIdx.x];  // here
}"""
    found = tracer.run(text, 1, 64, np.zeros(64, np.float32)).findings
    assert {(f.kind, f.line) for f in found} >= {("shared_race", tracer.line("here"))}


def test_the_key_of_a_module_is_the_same_in_every_build(bench: Bench) -> None:
    request = bench.request("#include <mma.h>\n" + kernel(), "k")
    again = {bench.backend._builder.preprocess(request).text for _ in range(2)}
    assert len(again) == 1


BRANCHES = """\
extern "C" __global__ void k(int* out) {
#if __CUDA_ARCH__ >= 900
  out[0] = 90;
#elif __CUDA_ARCH__ >= 800
  out[0] = 80;
#endif
}"""


def test_the_backend_says_whose_branch_it_compiles(bench: Bench) -> None:
    out = np.zeros(1, np.int32)
    bench.run(BRANCHES, "k", (1, 1, 1), (1, 1, 1), out)
    assert (out[0], bench.backend.architecture(bench.request(BRANCHES, "k"))) == (90, "sm_90")
    other = bench.request(BRANCHES, "k", __CUDA_ARCH__="800")
    bench.run(BRANCHES, "k", (1, 1, 1), (1, 1, 1), out, __CUDA_ARCH__="800")
    assert (out[0], bench.backend.architecture(other)) == (80, "sm_80")
    assert bench.backend.architecture(bench.request(kernel().replace("__CUDA_ARCH__", "OTHER"), "k")) == ""


def test_a_verdict_has_the_architecture(tmp_path: Path) -> None:
    file = tmp_path / "branches.cu"
    file.write_text(
        """\
// /// opbench
// operator = "copy"
// launch = [{ kernel = "k", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    if (i < n) out[i] = x[i];
#endif
}
"""
    )
    results = api.check([file], backend="cpu", random_shapes=0, cases=["*(n=1021)"], cpu_only=True)
    assert [(r.status, r.verdict.architecture) for r in results if r.verdict] == [("right", "sm_90")]
    assert [r.to_json()["verdict"]["architecture"] for r in results] == ["sm_90"]  # type: ignore[index]


@pytest.mark.parametrize(("gpu", "architecture", "status"), [("rtx3080", "sm_86", "wrong"), ("9.0", "sm_90", "right")])
def test_check_compiles_the_branch_of_the_gpu(tmp_path: Path, gpu: str, architecture: str, status: str) -> None:
    file = tmp_path / "old_branch.cu"
    file.write_text(HALF_RIGHT)
    results = api.check([file], random_shapes=0, cases=["*(n=1021)"], gpu=gpu, cpu_only=True)
    assert [(r.status, r.verdict.architecture) for r in results if r.verdict] == [(status, architecture)]


def test_a_gpu_without_a_compute_capability_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "old_branch.cu"
    file.write_text(HALF_RIGHT)
    with pytest.raises(UsageError, match="rtx3080"):
        api.check([file], gpu="rtx1", cpu_only=True)


HALF_RIGHT = """\
// /// opbench
// operator = "copy"
// launch = [{ kernel = "k", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    if (i < n) out[i] = x[i];
#else
    if (i < n) out[i] = x[i] + 1.0f;
#endif
}
"""

NEWER = {
    "cluster barrier": ('asm volatile("barrier.cluster.arrive;" ::: "memory");', "barrier.cluster.arrive"),
    "wait": (
        'asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; }" '
        ':: "r"(0u), "r"(0u) : "memory");',
        "mbarrier.try_wait.parity.shared::cta.b64",
    ),
    "group": ("cooperative_groups::this_cluster().sync();", "this_cluster"),
}


@pytest.mark.parametrize(("statement", "feature"), NEWER.values(), ids=list(NEWER))
def test_what_an_older_gpu_lacks_is_unsupported(bench: Bench, statement: str, feature: str) -> None:
    text = f'#include <cooperative_groups.h>\nextern "C" __global__ void k(int* out) {{ {statement} }}'
    older = CpuBackend(capability=(8, 6))
    reason = older.unsupported_reason(bench.request(text, "k"))
    assert reason and feature in reason and "9.0" in reason and "8.6" in reason and reason.startswith("line 2")
    guarded = text.replace(statement, f"\n#if __CUDA_ARCH__ >= 900\n{statement}\n#endif\n")
    assert older.unsupported_reason(bench.request(guarded, "k")) is None
    assert CpuBackend().unsupported_reason(bench.request(text, "k")) is None


def test_clusters_in_a_header_need_capability_9(tmp_path: Path) -> None:
    file = tmp_path / "clustered.cu"
    file.write_text(HALF_RIGHT.replace('block = ["64"]', 'block = ["64"], cluster = [2]').replace("64)", "128) * 2"))
    (result,) = api.check([file], random_shapes=0, cases=["*(n=1021)"], gpu="a100", cpu_only=True)
    assert (result.status, "9.0" in result.reason) == ("unsupported", True)
