"""Half precision, bfloat16 and tf32 on the cpu backend against a GPU's own arithmetic, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.backend.base import Backend
from opbench.emulator import CpuBackend
from opbench.gpu.driver import CudaBackend, why_missing
from opbench.kernels.launch import BuildRequest, KernelLaunch

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

KERNELS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
// From float: one output of each format an input.
extern "C" __global__ void narrow(const float* x, unsigned short* h, unsigned short* b, unsigned* t, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = __half_as_ushort(__float2half(x[i]));
  b[i] = __bfloat16_as_ushort(__float2bfloat16(x[i]));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(t[i]) : "f"(x[i]));
}
extern "C" __global__ void widen(const unsigned short* x, float* from_half, float* from_bfloat, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  from_half[i] = __half2float(__ushort_as_half(x[i]));
  from_bfloat[i] = __bfloat162float(__ushort_as_bfloat16(x[i]));
}
template <class T>
__device__ void all(T a, T b, T c, T* sum, T* product, T* fused, T* root, T* larger) {
  *sum = __hadd(a, b);
  *product = __hmul(a, b);
  *fused = __hfma(a, b, c);
  *root = hsqrt(__habs(a));
  *larger = __hmax(a, b);
}
extern "C" __global__ void halves(const unsigned short* x, unsigned short* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  half v[5], a = __ushort_as_half(x[i]), b = __ushort_as_half(x[n + i]), c = __ushort_as_half(x[2 * n + i]);
  all(a, b, c, v, v + 1, v + 2, v + 3, v + 4);
  for (int k = 0; k < 5; ++k) out[k * n + i] = __half_as_ushort(v[k]);
}
extern "C" __global__ void bfloats(const unsigned short* x, unsigned short* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __nv_bfloat16 v[5], a = __ushort_as_bfloat16(x[i]), b = __ushort_as_bfloat16(x[n + i]),
                      c = __ushort_as_bfloat16(x[2 * n + i]);
  all(a, b, c, v, v + 1, v + 2, v + 3, v + 4);
  for (int k = 0; k < 5; ++k) out[k * n + i] = __bfloat16_as_ushort(v[k]);
}
"""
NAMES = ("narrow", "widen", "halves", "bfloats")
OPERATIONS = ("sum", "product", "fused", "root", "larger")


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> BuildRequest:
    """The kernels above, from sm_80 on."""
    source = tmp_path_factory.mktemp("kernels") / "formats.cu"
    source.write_text(KERNELS)
    return BuildRequest(source, NAMES, compute_capability="8.0")


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Backend, Backend]:
    """The CPU and the GPU."""
    return CpuBackend(tmp_path_factory.mktemp("cache"), workers=1), CudaBackend()


def run(
    backend: Backend, request: BuildRequest, kernel: str, given: np.ndarray, **outputs: tuple[int, str]
) -> dict[str, np.ndarray]:
    """The outputs' bits; each is named with its size and dtype."""
    kind = {"float32": "f32", "float16": "f16"}[str(given.dtype)]
    buffers = {"x": backend.allocate("x", given.shape, kind)}
    buffers |= {name: backend.allocate(name, (size,), dtype) for name, (size, dtype) in outputs.items()}
    buffers["x"].write(given)
    n = min(size for size, _ in outputs.values()) if kernel not in {"halves", "bfloats"} else given.size // 3
    launch = KernelLaunch(kernel, ((n + 255) // 256, 1, 1), (256, 1, 1), 0, (*buffers, n))
    backend.load(request).bind([launch], buffers)()
    assert backend.synchronize() == []
    found = {name: buffers[name].read() for name in outputs}
    backend.free(buffers)
    return {name: values.view(f"u{values.itemsize}") for name, values in found.items()}


def floats(count: int) -> np.ndarray:
    """Every half, every point halfway between two, and any bits at all, as float32."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        between = ((every[:-1].astype(np.float64) + every[1:]) / 2).astype(np.float32)
    anything = np.random.default_rng(7).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    return np.concatenate([every, between, anything])


def is_nan(bits: np.ndarray, exponent: int) -> np.ndarray:
    """Whether 16- or 32-bit patterns are NaN, given the pattern of infinity."""
    return (bits & (0x7FFFFFFF if bits.itemsize == 4 else 0x7FFF)) > exponent


def test_narrowing_equals_the_gpu(backends: tuple[Backend, Backend], request_: BuildRequest) -> None:
    x = floats(2_000_000)
    outputs = {"h": (x.size, "f16"), "b": (x.size, "f16"), "t": (x.size, "i32")}
    cpu, gpu = (run(backend, request_, "narrow", x, **outputs) for backend in backends)
    for name in ("h", "b"):
        np.testing.assert_array_equal(cpu[name], gpu[name], err_msg=name)
    known = ~np.isnan(x)
    np.testing.assert_array_equal(cpu["t"][known], gpu["t"][known])


def test_widening_equals_the_gpu(backends: tuple[Backend, Backend], request_: BuildRequest) -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    cpu, gpu = (run(b, request_, "widen", x, h=(x.size, "f32"), b=(x.size, "f32")) for b in backends)
    for name in ("h", "b"):
        known = ~is_nan(gpu[name], 0x7F800000)
        np.testing.assert_array_equal(cpu[name][known], gpu[name][known], err_msg=name)
        assert is_nan(cpu[name][~known], 0x7F800000).all()


@pytest.mark.parametrize(("kernel", "infinity"), [("halves", 0x7C00), ("bfloats", 0x7F80)])
def test_arithmetic_equals_the_gpu(
    backends: tuple[Backend, Backend], request_: BuildRequest, kernel: str, infinity: int
) -> None:
    n = 1_000_000
    generator = np.random.default_rng(11)
    bits = generator.integers(0, 65536, (3, n), dtype=np.uint16)
    # Half of them of like size, so that sums round and cancel.
    bits[:, : n // 2] = (bits[:, : n // 2] & 0x83FF) | np.uint16(infinity // 2 & ~0x3FF)
    x = bits.reshape(-1).view(np.float16)
    cpu, gpu = (run(b, request_, kernel, x, out=(5 * n, "f16"))["out"].reshape(5, n) for b in backends)
    for row, name in enumerate(OPERATIONS):
        known = ~is_nan(gpu[row], infinity)
        wrong = np.flatnonzero(known & (cpu[row] != gpu[row]))
        shown = [[hex(int(v)) for v in (*bits[:, i], cpu[row][i], gpu[row][i])] for i in wrong[:5]]
        assert not wrong.size, f"{name}: {wrong.size} of {n} differ, such as (a, b, c, cpu, gpu) {shown}"
        assert is_nan(cpu[row][~known], infinity).all(), name
