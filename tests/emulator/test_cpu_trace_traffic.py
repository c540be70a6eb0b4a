"""Counts of traced launches: what an H200's counters show for the same kernels, and the same from every compiler."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.backend.counts import LineTraffic
from support.builders.on_cpu import STRIDED, Tracer, compilers, floats

pytestmark = pytest.mark.parametrize("compiler", compilers())


def per_request(line: LineTraffic) -> tuple[int, float, float]:
    return line.requests, line.sectors_per_request, line.lanes_per_request


# ---- sectors


@pytest.mark.parametrize(("stride", "sectors"), [(0, 1), (1, 4), (2, 8), (3, 12), (4, 16), (8, 32), (33, 32)])
def test_sectors_of_strides(tracer: Tracer, stride: int, sectors: int) -> None:
    trace = tracer.clean(STRIDED, 4, 256, floats(1024 * 33), floats(1024), 1024, stride)
    (load,) = trace.traffic.select(kind="load")
    (store,) = trace.traffic.select(kind="store")
    assert per_request(load) == (32, sectors, 32)
    assert per_request(store) == (32, 4, 32)
    assert (load.width, load.ideal_sectors_per_request, load.bytes) == (4, 4, 4096)
    assert trace.accesses == 2048


def test_vectors_are_one_request_each(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float4* a, const float2* b, float4* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float4 x = a[i];
  const float2 y = __ldg(b + i);
  out[i] = make_float4(x.x + y.x, x.y + y.y, x.z, x.w);
}"""
    traffic = tracer.clean(text, 1, 64, floats(256), floats(128), floats(256)).traffic
    assert [(t.width, *per_request(t)) for t in traffic.lines] == [(16, 2, 16, 32), (8, 2, 8, 32), (16, 2, 16, 32)]


def test_half_vectors_are_one_request_each(tracer: Tracer) -> None:
    text = """\
#include <cuda_fp16.h>
extern "C" __global__ void k(const __half2* a, __half2* out) {
  const __half2 x = a[threadIdx.x];
  out[threadIdx.x] = __hadd2(x, x);
}"""
    traffic = tracer.clean(text, 1, 32, np.zeros(64, np.float16), np.zeros(64, np.float16)).traffic
    assert [(t.kind, t.width, *per_request(t)) for t in traffic.lines] == [
        ("load", 4, 1, 4, 32),
        ("store", 4, 1, 4, 32),
    ]


def test_reading_and_writing_back_is_two_requests(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* y) {\n  y[threadIdx.x] += 2.0f;\n}'
    traffic = tracer.clean(text, 1, 32, floats(32)).traffic
    assert [(t.kind, t.requests) for t in traffic.lines] == [("load", 1), ("store", 1)]


def test_offsets_straddle_one_sector_more(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(const float* a, float* out) { out[threadIdx.x] = a[threadIdx.x + 1]; }'
    (load,) = tracer.clean(text, 1, 32, floats(33), floats(32)).traffic.select(kind="load")
    assert load.sectors == 5


# ---- banks


TRANSPOSE = """\
extern "C" __global__ void k(const float* in, float* out, int n) {
  __shared__ float tile[32][32 + PAD];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}"""


@pytest.mark.parametrize(("pad", "conflicts"), [("0", 31), ("1", 0), ("2", 1), ("4", 3)])
def test_bank_conflicts_of_a_transpose(tracer: Tracer, pad: str, conflicts: int) -> None:
    a, out = np.arange(64 * 64, dtype=np.float32).reshape(64, 64), floats(64, 64)
    traffic = tracer.clean(TRANSPOSE, (2, 2, 1), (32, 8, 1), a, out, 64, PAD=pad).traffic
    assert (out == a.T).all()
    (load,) = traffic.select(space="shared", kind="load")
    (store,) = traffic.select(space="shared", kind="store")
    assert (load.requests, load.conflicts_per_request, store.conflicts) == (128, conflicts, 0)
    assert {per_request(t) for t in traffic.select(space="global")} == {(128, 4, 32)}
    assert traffic.kernel("k").barriers_per_block == 1


WIDE = """\
extern "C" __global__ void k(float* out, int lanes) {
  __shared__ TYPE tile[64];
  const int t = threadIdx.x;
  for (int i = t; i < 64; i += 32) tile[i].x = 0.0f;
  __syncthreads();
  if (t < lanes) out[t] = FIRST(tile[INDEX]);  // here
}"""


@pytest.mark.parametrize(
    ("vector", "index", "wavefronts"),
    [
        # As an H200 counts them: neighbouring groups merge when every lane shares its address with lane^1 or lane^2.
        ("float2", "t", 2),
        ("float2", "0", 1),
        ("float2", "t/2", 1),
        ("float2", "t%2", 1),
        ("float2", "t%4", 2),
        ("float4", "t", 4),
        ("float4", "0", 2),
        ("float4", "t/2", 2),
        ("float4", "t/4", 2),
        ("float4", "t%4", 4),
        ("float4", "t*2", 8),
    ],
)
def test_wavefronts_of_wide_loads(tracer: Tracer, vector: str, index: str, wavefronts: int) -> None:
    text = f"__device__ float first({vector} v) {{ return v.x; }}\n" + WIDE.replace("TYPE", vector).replace(
        "FIRST", "first"
    ).replace("INDEX", index)
    text = text.replace("tile[i].x = 0.0f", f"tile[i] = {vector}{{}}")
    traffic = tracer.clean(text, 1, 32, floats(32), 32).traffic
    (load,) = traffic.select(space="shared", kind="load", line=tracer.line("here"))
    assert (load.requests, load.wavefronts) == (1, wavefronts)


WMMA = """\
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const TYPE* a, SUM* out) {
  __shared__ __align__(32) TYPE tile[32 * STRIDE];
  for (int i = threadIdx.x; i < 32 * STRIDE; i += 32) tile[i] = a[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, SHAPE, KIND, wmma::LAYOUT> left;
  wmma::fragment<wmma::accumulator, SHAPE, SUM> sum;
  wmma::load_matrix_sync(left, a, 32);  // global
  wmma::load_matrix_sync(left, tile, STRIDE);  // shared
  wmma::fill_fragment(sum, left.x[0]);
  wmma::store_matrix_sync(out, sum, 32, wmma::mem_LAYOUT);  // store
}"""


@pytest.mark.parametrize(
    ("kind", "shape", "layout", "from_global", "from_shared", "stores"),
    [
        # Width and number of the instructions that NVRTC 13.5 makes of it for compute capability 9.0.
        ("half", "16,16,16", "row_major", (4, 4), (16, 1), (8, 4)),
        ("half", "16,16,16", "col_major", (4, 4), (16, 1), (4, 8)),
        ("half", "32,8,16", "row_major", (4, 8), (16, 2), (8, 4)),
        ("wmma::precision::tf32", "16,16,8", "row_major", (4, 4), (4, 4), (8, 4)),
        ("wmma::precision::tf32", "16,16,8", "col_major", (4, 4), (4, 4), (4, 8)),
        ("signed char", "16,16,16", "row_major", (4, 2), (16, 1), (8, 4)),
        ("signed char", "16,16,16", "col_major", (1, 8), (1, 8), (4, 8)),
    ],
)
def test_wmma_reaches_memory_as_the_hardware_does(
    tracer: Tracer,
    kind: str,
    shape: str,
    layout: str,
    from_global: tuple[int, int],
    from_shared: tuple[int, int],
    stores: tuple[int, int],
) -> None:
    types = {"half": ("half", "float", np.float16), "signed char": ("signed char", "int", np.uint8)}
    element, total, array = types.get(kind, ("float", "float", np.float32))
    text = WMMA.replace("TYPE", element).replace("SUM", total).replace("SHAPE", shape).replace("KIND", kind)
    text = text.replace("LAYOUT", layout)
    out = np.zeros(1024, np.int32 if total == "int" else np.float32)
    traffic = tracer.clean(text, 1, 32, np.zeros(32 * 40, array), out, STRIDE="32").traffic
    expected = {"global": from_global, "shared": from_shared, "store": stores}
    for mark, (width, requests) in expected.items():
        (entry,) = traffic.select(line=tracer.line(mark))
        assert (entry.width, entry.requests) == (width, requests), mark


@pytest.mark.parametrize(("stride", "conflicts"), [("16", 4), ("24", 0), ("32", 12), ("40", 0), ("64", 28)])
def test_ldmatrix_reads_eight_rows_of_16_bytes_at_once(tracer: Tracer, stride: str, conflicts: int) -> None:
    text = """\
extern "C" __global__ void k(const unsigned short* a, unsigned* out) {
  __shared__ __align__(16) unsigned short tile[16 * STRIDE];
  for (int i = threadIdx.x; i < 16 * STRIDE; i += 32) tile[i] = a[i];
  __syncwarp();
  unsigned q, r, s, t;
  const unsigned row = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x % 16 * STRIDE + threadIdx.x / 16 * 8]);
  asm("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(q), "=r"(r), "=r"(s), "=r"(t) : "r"(row));
  out[threadIdx.x] = q + r + s + t;
}"""
    traffic = tracer.clean(text, 1, 32, np.zeros(1024, np.uint16), np.zeros(32, np.uint32), STRIDE=stride).traffic
    (load,) = traffic.select(space="shared", kind="load")
    assert (load.width, load.requests, load.conflicts) == (16, 1, conflicts)


def test_atomics_and_their_collisions(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out, int spread) {
  atomicAdd(&out[threadIdx.x % spread], 1.0f);
}"""
    out = floats(32)
    for spread, collisions in ((32, 0), (8, 24), (1, 31)):
        (add,) = tracer.clean(text, 1, 32, out, spread).traffic.lines
        assert (add.kind, add.line, add.requests, add.lanes, add.collisions) == ("atomic", 2, 1, 32, collisions)
        assert add.sectors == max(1, spread // 8)
