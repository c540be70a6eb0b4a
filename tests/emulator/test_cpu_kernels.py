"""Kernels that must give the right result on the cpu backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from opbench.emulator import CpuBackend
from opbench.kernels.launch import KernelLaunch
from support.builders.on_cpu import Bench

Random = Callable[..., np.ndarray]


@pytest.fixture
def normal() -> Random:
    generator = np.random.default_rng(7)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)


def test_elementwise(bench: Bench, normal: Random) -> None:
    text = """
    extern "C" __global__ void add(const float* __restrict__ a, const float* b, float* out, int n, float scale) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = a[i] + scale * b[i];
    }"""
    a, b, out = normal(1000), normal(1000), np.zeros(1000, np.float32)
    bench.check(text, "add", (4, 1, 1), (256, 1, 1), a, b, out, 1000, 2.0)
    np.testing.assert_allclose(out, a + 2 * b, rtol=1e-6, atol=1e-6)


def test_tiled_matmul_with_barriers(bench: Bench, normal: Random) -> None:
    text = """
    extern "C" __global__ void __launch_bounds__(TILE * TILE)
    matmul(const float* a, const float* b, float* out, int n) {
      __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
      const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
      float sum = 0.0f;
      for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
    #pragma unroll TILE
        for (int j = 0; j < TILE; ++j) sum = fmaf(left[threadIdx.y][j], right[j][threadIdx.x], sum);
        __syncthreads();
      }
      out[row * n + column] = sum;
    }"""
    a, b, out = normal(64, 64), normal(64, 64), np.zeros((64, 64), np.float32)
    bench.check(text, "matmul", (4, 4, 1), (16, 16, 1), a, b, out, 64, TILE="16")
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, atol=1e-4)


def test_a_thread_may_leave_before_a_barrier(bench: Bench) -> None:
    text = """
    extern "C" __global__ void reverse(int* out, int n) {
      __shared__ int kept[64];
      if (threadIdx.x >= n) return;
      kept[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = kept[n - 1 - threadIdx.x];
    }"""
    out = np.full(64, -1, np.int32)
    bench.check(text, "reverse", (1, 1, 1), (64, 1, 1), out, 40)
    assert out.tolist() == [*range(39, -1, -1), *[-1] * 24]


def test_reduction_by_shuffles(bench: Bench, normal: Random) -> None:
    text = """
    extern "C" __global__ void sum(const float* x, float* out, int n) {
      __shared__ float partial[32];
      float value = 0.0f;
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += x[i];
      for (int delta = 16; delta > 0; delta /= 2) value += __shfl_down_sync(0xffffffff, value, delta);
      const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
      if (lane == 0) partial[warp] = value;
      __syncthreads();
      if (warp == 0) {
        value = lane < blockDim.x / 32 ? partial[lane] : 0.0f;
        for (int delta = 16; delta > 0; delta /= 2) value += __shfl_xor_sync(0xffffffff, value, delta);
        if (lane == 0) atomicAdd(out, value);
      }
    }"""
    x, out = normal(10_000), np.zeros(1, np.float32)
    bench.check(text, "sum", (8, 1, 1), (256, 1, 1), x, out, x.size)
    assert out[0] == pytest.approx(x.astype(np.float64).sum(), abs=1e-2)


def test_dynamic_shared_memory_in_namespaces_and_templates(bench: Bench) -> None:
    text = """
    namespace inner {
    extern __shared__ double scratch[];
    template <int Factor>
    __global__ void reverse(double* out) {
      __shared__ int offset;
      if (threadIdx.x == 0) offset = 100;
      scratch[threadIdx.x] = Factor * (int)threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x] + offset;
    }
    }
    extern "C" __global__ void other(float* out) {
      extern __shared__ __align__(16) unsigned char raw[];
      float* values = reinterpret_cast<float*>(raw);
      values[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = values[threadIdx.x ^ 1];
    }"""
    out = np.zeros(64)
    bench.check(text, "inner::reverse<3>", (1, 1, 1), (64, 1, 1), out, shared=512)
    assert out.tolist() == [100.0 + 3 * i for i in range(63, -1, -1)]
    floats = np.zeros(64, np.float32)
    bench.check(text, "other", (1, 1, 1), (64, 1, 1), floats, shared=256)
    assert floats.tolist() == [float(i ^ 1) for i in range(64)]


def test_two_modules_keep_their_own_template_statics(bench: Bench) -> None:
    text = """
    template <class T>
    __global__ void shift(T* out) {
      __shared__ T kept[SIZE];
      kept[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = kept[(threadIdx.x + 1) % SIZE];
    }"""
    for size in (16, 1024, 16):
        out = np.zeros(size, np.float32)
        bench.check(text, "shift<float>", (1, 1, 1), (size, 1, 1), out, SIZE=str(size))
        assert out.tolist() == [float((i + 1) % size) for i in range(size)]


def test_shared_memory_starts_poisoned(bench: Bench) -> None:
    text = """
    extern "C" __global__ void peek(float* out) {
      __shared__ float kept[32];
      extern __shared__ float more[];
      if (threadIdx.x == 31) kept[7] = more[7] = 1.0f;
      __syncthreads();
      out[threadIdx.x] = kept[threadIdx.x];
      out[32 + threadIdx.x] = more[threadIdx.x];
    }"""
    out = np.zeros(64, np.float32)
    bench.check(text, "peek", (2, 1, 1), (32, 1, 1), out, shared=128)
    assert np.flatnonzero(~np.isnan(out)).tolist() == [7, 39]


def test_atomics_from_many_blocks_on_two_workers(bench: Bench) -> None:
    text = """
    __device__ unsigned arrived;
    extern "C" __global__ void count(float* sum, int* least, unsigned* bits, unsigned long long* wide, float* last) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(sum, 1);
      atomicMin(least, -i);
      atomicOr(bits, 1u << (i % 32));
      atomicAdd(wide, 1ull << 33);
      __shared__ bool is_last;
      __syncthreads();  // the block arrives once all its threads have added
      if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
      }
      __syncthreads();
      if (is_last && threadIdx.x == 0) *last = *(volatile float*)sum;
    }"""
    total, least, bits = np.zeros(1, np.float32), np.zeros(1, np.int32), np.zeros(1, np.uint32)
    wide, last = np.zeros(1, np.int64), np.zeros(1, np.float32)
    for _ in range(2):
        total[:] = 0
        wide[:] = 0
        bench.check(
            text.replace("unsigned long long* wide", "long long* wide").replace("1ull", "1ll"),
            "count",
            (500, 1, 1),
            (64, 1, 1),
            total,
            least,
            bits,
            wide,
            last,
        )
        assert (total[0], least[0], bits[0], wide[0], last[0]) == (32000, -31999, 0xFFFFFFFF, 32000 << 33, 32000)


def test_three_dimensional_grids_and_blocks(bench: Bench) -> None:
    text = """
    extern "C" __global__ void where(int* out) {
      const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
      const int z = blockIdx.z * blockDim.z + threadIdx.z;
      const int width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
      out[(z * height + y) * width + x] = 10000 * z + 100 * y + x;
    }"""
    out = np.zeros((6, 8, 9), np.int32)
    bench.check(text, "where", (3, 2, 2), (3, 4, 3), out)
    z, y, x = np.indices(out.shape)
    assert (out == 10000 * z + 100 * y + x).all()


def test_vector_types(bench: Bench, normal: Random) -> None:
    text = """
    extern "C" __global__ void scale(const float4* in, float4* out, int n4) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n4) return;
      const float4 v = __ldg(in + i);
      float4 w = make_float4(v.w, v.z, v.y, v.x);
      w.x *= 2.0f;
      __stcs(out + i, w);
      static_assert(sizeof(float3) == 12 && alignof(float4) == 16 && alignof(double2) == 16, "");
    }"""
    x, out = normal(64, 4), np.zeros((64, 4), np.float32)
    bench.check(text, "scale", (2, 1, 1), (32, 1, 1), x, out, 64)
    assert (out == x[:, ::-1] * np.array([2, 1, 1, 1], np.float32)).all()


def test_constant_memory_and_device_functions(bench: Bench) -> None:
    text = """
    __constant__ float weights[3] = {1.0f, 2.0f, 4.0f};
    static __device__ __forceinline__ float weight(int i) { return weights[i % 3]; }
    __device__ __noinline__ float twice(float x) { return x + x; }
    extern "C" __global__ void apply(float* out) { out[threadIdx.x] = twice(weight(threadIdx.x)); }"""
    out = np.zeros(6, np.float32)
    bench.check(text, "apply", (1, 1, 1), (6, 1, 1), out)
    assert out.tolist() == [2, 4, 8, 2, 4, 8]


def test_votes_matches_and_reductions(bench: Bench) -> None:
    text = """
    extern "C" __global__ void votes(unsigned* out) {
      const int t = threadIdx.x;
      out[t] = __ballot_sync(~0u, t & 1);
      out[32 + t] = __any_sync(~0u, t == 3) + 2 * __all_sync(~0u, t < 32) + 4 * __all_sync(~0u, t < 31);
      out[64 + t] = __match_any_sync(~0u, t / 8);
      out[96 + t] = __reduce_add_sync(~0u, t);
      out[128 + t] = (unsigned)__reduce_min_sync(~0u, t - 5);
      out[160 + t] = __reduce_max_sync(~0u, (unsigned)t);
      out[192 + t] = __syncthreads_count(t % 4 == 0);
      out[224 + t] = __shfl_sync(0xffu << (t & 24), t, 1, 8);
      int equal;
      out[256 + t] = __match_all_sync(~0u, t / 32, &equal) + equal;
      out[288 + t] = t < 7 ? __activemask() : 0u;
      out[320 + t] = __syncthreads_or(t == 9) + 2 * __syncthreads_and(t < 9);
      out[352 + t] = __shfl_up_sync(~0u, t, 1);
    }"""
    out = np.zeros((12, 32), np.uint32)
    bench.check(text, "votes", (1, 1, 1), (32, 1, 1), out)
    lane = np.arange(32)
    expected = [0xAAAAAAAA, 3, 0xFF << (lane & 24), 496, 2**32 - 5, 31, 8, (lane & 24) + 1, 0, (lane < 7) * 0x7F, 1]
    expected.append(np.maximum(lane - 1, 0))
    for row, (seen, wanted) in enumerate(zip(out, expected, strict=True)):
        assert (seen == np.broadcast_to(wanted, 32).astype(np.uint32)).all(), row


def test_cooperative_groups(bench: Bench) -> None:
    text = """
    #include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void groups(int* out) {
      cg::thread_block block = cg::this_thread_block();
      auto tile = cg::tiled_partition<8>(block);
      int sum = tile.thread_rank();
      for (int delta = tile.size() / 2; delta > 0; delta /= 2) sum += tile.shfl_down(sum, delta);
      out[block.thread_rank()] = tile.shfl(sum, 0) + cg::reduce(tile, 1, cg::plus<int>());
      block.sync();
      if (threadIdx.x % 3 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        out[block.thread_rank()] = 1000 * active.size() + active.thread_rank();
      }
    }"""
    out = np.zeros(64, np.int32)
    bench.check(text, "groups", (1, 1, 1), (64, 1, 1), out)
    assert (out[np.arange(64) % 3 != 0] == 36).all()
    assert out[0:32:3].tolist() == [11000 + i for i in range(11)]


def test_integer_and_float_intrinsics(bench: Bench) -> None:
    text = """
    extern "C" __global__ void intrinsics(int* i, float* f) {
      int n = 0, m = 0;
      i[n++] = __popc(0xf0f0u); i[n++] = __clz(1); i[n++] = __ffs(8); i[n++] = (int)__brev(1u);
      i[n++] = __umulhi(0x80000000u, 6u); i[n++] = __float2int_rn(2.5f); i[n++] = __float2int_rz(-2.9f);
      i[n++] = __float2int_rd(-2.1f); i[n++] = __float2int_rz(1e20f); i[n++] = __float2int_rn(nanf(""));
      i[n++] = __byte_perm(0x33221100, 0x77665544, 0x7250); i[n++] = __dp4a(0x01020304, 0x01010101, 5);
      i[n++] = min(3, 5) + max(7u, 2u); i[n++] = __mul24(-3, 5); i[n++] = __funnelshift_l(0x80000000u, 0u, 1);
      i[n++] = (int)__float2uint_rz(-0.5f); i[n++] = __float2int_rz(-3e9f); i[n++] = isnan(max(nanf(""), 1.0f));
      f[m++] = __fmul_rn(3.0f, 0.5f); f[m++] = __fdividef(1.0f, 4.0f); f[m++] = rsqrtf(4.0f); f[m++] = __expf(0.0f);
      f[m++] = __powf(2.0f, 3.0f); f[m++] = __saturatef(1.5f); f[m++] = fmaxf(1.0f, nanf("")); f[m++] = sqrt(9.0f);
      f[m++] = __int_as_float(0x3f800000); f[m++] = abs(-2.5f); f[m++] = fmaf(2.0f, 3.0f, 1.0f); f[m++] = exp2f(3.0f);
      float s, c; sincosf(0.0f, &s, &c); f[m++] = s + c; __sincosf(0.0f, &s, &c); f[m++] = c;
      f[m++] = __frcp_rn(8.0f); f[m++] = pow(2.0f, 2); f[m++] = clock64() > 0; f[m++] = tanhf(0.0f) + erff(0.0f);
    }"""
    integers, floats = np.zeros(18, np.int32), np.zeros(18, np.float32)
    bench.check(text, "intrinsics", (1, 1, 1), (1, 1, 1), integers, floats)
    largest, least = 2**31 - 1, -(2**31)
    expected = [8, 31, 4, least, 3, 2, -2, -3, largest, 0, 0x77225500, 15, 10, -15, 1, 0, least, 0]
    assert integers.tolist() == expected
    assert floats.tolist() == [1.5, 0.25, 0.5, 1, 8, 1, 1, 3, 1, 2.5, 7, 8, 1, 1, 0.125, 4, 1, 0]


def test_an_intrinsic_takes_a_call_with_two_template_arguments(bench: Bench) -> None:
    text = """
    template <int a, int b> __device__ float sum() { return float(a + b); }
    extern "C" __global__ void compound(float* f) {
      f[0] = rsqrtf(sum<1, 3>()); f[1] = __expf(sum<1, -1>()); f[2] = __powf(sum<1, 1>(), 3.0f);
      f[3] = rsqrt(sum<8, 8>());
    }"""
    floats = np.zeros(4, np.float32)
    bench.check(text, "compound", (1, 1, 1), (1, 1, 1), floats)
    assert floats.tolist() == [0.5, 1, 8, 0.25]


@pytest.mark.parametrize("order", ["reverse", "random:3"])
def test_the_order_of_blocks_can_be_changed(bench: Bench, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    text = """
    extern "C" __global__ void stamp(int* next, int* out) { out[blockIdx.x] = atomicAdd(next, 1); }"""
    bench.backend = CpuBackend(bench.backend._folder, workers=1)
    monkeypatch.setenv("OPBENCH_CPU_ORDER", order)
    counter, out = np.zeros(1, np.int32), np.zeros(100, np.int32)
    bench.check(text, "stamp", (100, 1, 1), (1, 1, 1), counter, out)
    assert sorted(out) == list(range(100))
    assert out.tolist() != list(range(100))
    assert order != "reverse" or out.tolist() == list(range(99, -1, -1))


def test_many_short_launches_of_different_widths(bench: Bench) -> None:
    """A worker that a one-block launch does not need may wake after its end."""
    text = 'extern "C" __global__ void mark(int* out) { atomicAdd(out, 1); }'
    bench.backend = CpuBackend(bench.backend._folder, workers=4)
    program = bench.backend.load(bench.request(text, "mark"))
    buffers = {"out": bench.backend.allocate("out", (1,), "i32")}
    buffers["out"].write(np.zeros(1, np.int32))
    for width in [1, 4, 1, 2] * 200:
        program.bind([KernelLaunch("mark", (width, 1, 1), (1, 1, 1), 0, ("out",))], buffers)()
    assert buffers["out"].read()[0] == 1600
    bench.backend.free(buffers)


def test_printf_reaches_standard_output(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    text = """
    extern "C" __global__ void hello(int n) { if (threadIdx.x == n) printf("hello from %d\\n", (int)blockIdx.x); }"""
    bench.check(text, "hello", (2, 1, 1), (32, 1, 1), 3)
    assert sorted(capfd.readouterr().out.splitlines()) == ["hello from 0", "hello from 1"]


def test_waiting_for_another_thread_with_nanosleep(bench: Bench) -> None:
    text = """
    extern "C" __global__ void relay(int* out) {
      __shared__ volatile int flag;
      if (threadIdx.x == 0) flag = 0;
      __syncthreads();
      if (threadIdx.x == 0) while (flag == 0) __nanosleep(100);
      if (threadIdx.x == 63) flag = 5;
      __syncthreads();
      out[threadIdx.x] = flag;
    }"""
    out = np.zeros(64, np.int32)
    bench.check(text, "relay", (1, 1, 1), (64, 1, 1), out)
    assert (out == 5).all()


@pytest.mark.parametrize("waiting", [1, 64])
@pytest.mark.parametrize("loop", ["continue", "__nanosleep(100)"])
def test_blocks_of_a_cooperative_launch_wait_for_each_other(bench: Bench, loop: str, waiting: int) -> None:
    """Each block is the last to arrive at some turns and waits at others, with one thread or with all of its warps."""
    text = f"""
    extern "C" __global__ void meet(unsigned* arrived, int* out) {{
      for (unsigned turn = 1; turn <= 6; ++turn) {{
        __syncthreads();
        if (threadIdx.x == 0) {{ __threadfence(); atomicAdd(arrived, 1u); }}
        if (threadIdx.x < {waiting}) while (*(volatile unsigned*)arrived < turn * gridDim.x) {loop};
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) out[blockIdx.x] += turn;
      }}
    }}"""
    arrived, out = np.zeros(1, np.uint32), np.zeros(3, np.int32)
    bench.check(text, "meet", (3, 1, 1), (64, 1, 1), arrived, out, cooperative=True)
    assert arrived.tolist() == [18]
    assert out.tolist() == [21, 21, 21]
