"""Half precision, bfloat16 and tensor-core instructions against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.kernels.tensors import from_storage, to_storage
from support.builders.on_cpu import Bench


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to nearest even, as 16-bit patterns."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


WIDEN = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void widen(const half* h, const __nv_bfloat16* b, float* from_half, float* from_bfloat) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  from_half[i] = __half2float(h[i]);
  from_bfloat[i] = __bfloat162float(b[i]);
}
extern "C" __global__ void narrow(const float* x, half* h, __nv_bfloat16* b) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  h[i] = __float2half(x[i]);
  b[i] = __float2bfloat16(x[i]);
}"""


def test_all_65536_values_widen_exactly(bench: Bench) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    from_half, from_bfloat = np.zeros(65536, np.float32), np.zeros(65536, np.float32)
    bench.check(WIDEN, "widen", (256, 1, 1), (256, 1, 1), bits.view(np.float16), bits, from_half, from_bfloat)
    np.testing.assert_array_equal(from_half, bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(from_bfloat, from_bfloat16(bits))


def test_narrowing_rounds_to_nearest_even(bench: Bench) -> None:
    generator = np.random.default_rng(0)
    every = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        between = ((every[:-1].astype(np.float64) + every[1:]) / 2).astype(np.float32)
    anything = generator.integers(0, 2**32, 65536 * 2 + 1, dtype=np.uint32).view(np.float32)
    x = np.concatenate([every, between, anything])
    half, bfloat = np.zeros(x.size, np.float16), np.zeros(x.size, np.uint16)
    bench.check(WIDEN, "narrow", (x.size // 256, 1, 1), (256, 1, 1), x, half, bfloat)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16)
    known = ~np.isnan(x)
    np.testing.assert_array_equal(half.view(np.uint16)[known], expected.view(np.uint16)[known])
    assert np.isnan(half[~known]).all()
    np.testing.assert_array_equal(bfloat, to_bfloat16(x))


ARITHMETIC = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T>
__device__ void all(const T* a, const T* b, const T* c, T* out, int i, int n) {
  out[i] = a[i] + b[i];
  out[n + i] = __hmul(a[i], b[i]);
  out[2 * n + i] = a[i] / b[i];
  out[3 * n + i] = __hfma(a[i], b[i], c[i]);
  T sum = a[i];
  sum -= b[i];
  out[4 * n + i] = __hlt(sum, c[i]) ? hsqrt(__habs(sum)) : __hmax(sum, -c[i]);
}
extern "C" __global__ void halves(const half* a, const half* b, const half* c, half* out, int n) {
  all(a, b, c, out, blockIdx.x * blockDim.x + threadIdx.x, n);
}
extern "C" __global__ void bfloats(const nv_bfloat16* a, const nv_bfloat16* b, const nv_bfloat16* c, nv_bfloat16* out,
                                   int n) {
  all(a, b, c, out, blockIdx.x * blockDim.x + threadIdx.x, n);
}
extern "C" __global__ void pairs(const half2* a, const half2* b, half2* out) {
  const int i = threadIdx.x;
  out[i] = __hadd2(__hfma2(a[i], b[i], __float2half2_rn(1.0f)), make_half2(__low2half(a[i]), __high2half(b[i])));
}"""


@pytest.mark.parametrize("kernel", ["halves", "bfloats"])
def test_each_operation_rounds_to_the_storage_type(bench: Bench, kernel: str) -> None:
    generator = np.random.default_rng(1)
    n = 4096
    values = (
        (0.1 + generator.random((3, n)))
        * generator.choice([-1, 1], (3, n))
        * np.exp2(generator.integers(-4, 4, (3, n)))
    ).astype(np.float32)
    is_half = kernel == "halves"
    stored = values.astype(np.float16) if is_half else to_bfloat16(values)
    out = np.zeros((5, n), stored.dtype)
    bench.check(ARITHMETIC, kernel, (16, 1, 1), (256, 1, 1), *map(np.ascontiguousarray, stored), out, n)
    a, b, c = (stored if is_half else from_bfloat16(stored)).astype(np.float64)

    def rounded(exact: np.ndarray) -> np.ndarray:
        return exact.astype(np.float16) if is_half else to_bfloat16(exact.astype(np.float32))

    wide = rounded if is_half else lambda x: from_bfloat16(to_bfloat16(x.astype(np.float32)))
    difference = wide(a - b).astype(np.float64)
    last = np.where(difference < c, np.sqrt(np.abs(difference)), np.maximum(difference, -c))
    for row, exact in zip(out, [a + b, a * b, a / b, a * b + c, last], strict=True):
        np.testing.assert_array_equal(row, rounded(exact))


def test_pairs(bench: Bench) -> None:
    a = np.arange(64, dtype=np.float16).reshape(32, 2)
    b = (np.arange(64, dtype=np.float16) / 8).reshape(32, 2)
    out = np.zeros((32, 2), np.float16)
    bench.check(ARITHMETIC, "pairs", (1, 1, 1), (32, 1, 1), a, b, out)
    fused = (a.astype(np.float64) * b + 1).astype(np.float16)
    np.testing.assert_array_equal(out, fused + np.stack([a[:, 0], b[:, 1]], axis=1))


def test_a_fused_operation_rounds_once(bench: Bench) -> None:
    text = """
    #include <cuda_fp16.h>
    extern "C" __global__ void fused(const half* x, half* out) { out[0] = __hfma(x[0], x[1], x[2]); }"""
    # 1 + 2^-10 + a tail far beyond float64's last digit decides a tie.
    x = np.array([2.0**-24, 2.0**-24, 0], np.float16)
    base = np.array([0x3C00], np.uint16).view(np.float16)[0]
    x[2] = base
    out = np.zeros(1, np.float16)
    bench.check(text, "fused", (1, 1, 1), (1, 1, 1), x, out)
    assert out[0] == 1
    x = np.array([1 + 2.0**-10, 2.0**-11, 1], np.float16)  # just above the tie between 1 and 1 + 2^-10
    bench.check(text, "fused", (1, 1, 1), (1, 1, 1), x, out)
    assert out[0] == np.float16(1 + 2.0**-10)


def test_wmma(bench: Bench) -> None:
    text = """
    #include <mma.h>
    using namespace nvcuda;
    template <class T>
    __global__ void multiply(const T* a, const T* b, float* out, int n) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right;
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
      wmma::fill_fragment(sum, 0.0f);
      for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(left, a + blockIdx.y * 16 * n + k, n);
        wmma::load_matrix_sync(right, b + blockIdx.x * 16 * n + k, n);
        wmma::mma_sync(sum, left, right, sum);
      }
      for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2.0f;
      wmma::store_matrix_sync(out + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
    }"""
    a, b = np.random.default_rng(2).standard_normal((2, 32, 32)).astype(np.float16)
    out = np.zeros((32, 32), np.float32)
    bench.check(text, "multiply<half>", (2, 2, 1), (32, 1, 1), a, b, out, 32)
    np.testing.assert_allclose(out, 2 * a.astype(np.float64) @ b.T.astype(np.float64), atol=1e-3)


MMA = """
#include <cuda_fp16.h>
extern "C" __global__ void tile(const half* a, const half* b, float* out) {
  __shared__ __align__(16) half left[16][16];
  __shared__ __align__(16) half right[16][8];
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  const unsigned to = (unsigned)__cvta_generic_to_shared(&left[lane / 2][lane % 2 * 8]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\\n" ::"r"(to), "l"(a + lane * 8));
  if (lane < 16) {
    const unsigned also = (unsigned)__cvta_generic_to_shared(&right[lane][0]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\\n" ::"r"(also), "l"(b + lane * 8));
  }
  asm volatile("cp.async.commit_group;\\n" ::);
  asm volatile("cp.async.wait_group %0;\\n" ::"n"(0));
  __syncthreads();
  unsigned x[4], y[2];
  const unsigned from = (unsigned)__cvta_generic_to_shared(&left[lane % 16][lane / 16 * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
  const unsigned row = (unsigned)__cvta_generic_to_shared(&right[lane % 16][0]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\\n" : "=r"(y[0]), "=r"(y[1]) : "r"(row));
  float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}"""


def test_ldmatrix_and_mma(bench: Bench) -> None:
    generator = np.random.default_rng(3)
    a, b = generator.standard_normal((16, 16)).astype(np.float16), generator.standard_normal((16, 8)).astype(np.float16)
    out = np.zeros((16, 8), np.float32)
    bench.check(MMA, "tile", (1, 1, 1), (32, 1, 1), a, b, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64) + 1, atol=1e-4)


def test_tf32_mma_drops_thirteen_digits(bench: Bench) -> None:
    text = """
    extern "C" __global__ void tile(const float* a, const float* b, float* out) {
      const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
      unsigned x[4], y[2];
      for (int i = 0; i < 4; ++i) {
        const float value = a[(g + i % 2 * 8) * 8 + t + i / 2 * 4];
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(value));
      }
      for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[i]) : "f"(b[(t + i * 4) * 8 + g]));
      float c[4];
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                   "{%10,%11,%12,%13};"
                   : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "f"(0.0f), "f"(0.0f),
                     "f"(0.0f), "f"(0.0f));
      for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = c[i];
    }"""
    generator = np.random.default_rng(4)
    a, b = generator.standard_normal((16, 8)).astype(np.float32), generator.standard_normal((8, 8)).astype(np.float32)
    out = np.zeros((16, 8), np.float32)
    bench.check(text, "tile", (1, 1, 1), (32, 1, 1), a, b, out)

    def tf32(x: np.ndarray) -> np.ndarray:
        return ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64)

    np.testing.assert_allclose(out, tf32(a) @ tf32(b), atol=1e-5)


def matrix_instruction(kind: str, left: str, right: str) -> str:
    """A kernel in which a warp adds a [16][32] . b [8][32], of one byte a number, to 1; `kind` is f32 or s32."""
    total, letter = {"f32": ("float", "f"), "s32": ("int", "r")}[kind]
    outputs = ", ".join(f'"+{letter}"(c[{i}])' for i in range(4))
    return f"""
    extern "C" __global__ void tile(const unsigned char* a, const unsigned char* b, {total}* out) {{
      const int lane = threadIdx.x, g = lane / 4, t = lane % 4 * 4;
      unsigned x[4], y[2];
      for (int i = 0; i < 4; ++i)
        x[i] = *reinterpret_cast<const unsigned*>(a + (g + i % 2 * 8) * 32 + t + i / 2 * 16);
      for (int i = 0; i < 2; ++i) y[i] = *reinterpret_cast<const unsigned*>(b + g * 32 + t + i * 16);
      {total} c[4] = {{1, 1, 1, 1}};
      asm volatile("mma.sync.aligned.m16n8k32.row.col.{kind}.{left}.{right}.{kind} {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, "
                   "{{%8,%9}}, {{%0,%1,%2,%3}};" : {outputs}
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
    }}"""


@pytest.mark.parametrize("right", ["e4m3", "e5m2"])
@pytest.mark.parametrize("left", ["e4m3", "e5m2"])
def test_mma_of_8_bit_floats_takes_every_pair_of_formats(bench: Bench, left: str, right: str) -> None:
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal((rows, 32)).astype(np.float32) for rows in (16, 8))
    stored = to_storage(a, left), to_storage(b, right)
    out = np.zeros((16, 8), np.float32)
    bench.check(matrix_instruction("f32", left, right), "tile", (1, 1, 1), (32, 1, 1), *stored, out)
    wide = (from_storage(array, kind).astype(np.float64) for array, kind in zip(stored, (left, right), strict=True))
    np.testing.assert_allclose(out, 1 + next(wide) @ next(wide).T, rtol=1e-6, atol=1e-6)


def test_mma_of_whole_numbers_of_8_bits_is_exact(bench: Bench) -> None:
    generator = np.random.default_rng(6)
    a, b = (generator.integers(-128, 128, (rows, 32), np.int8) for rows in (16, 8))
    out = np.zeros((16, 8), np.int32)
    stored = a.view(np.uint8), b.view(np.uint8)
    bench.check(matrix_instruction("s32", "s8", "s8"), "tile", (1, 1, 1), (32, 1, 1), *stored, out)
    np.testing.assert_array_equal(out, 1 + a.astype(np.int64) @ b.T.astype(np.int64))
