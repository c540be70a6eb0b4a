"""Accesses that a device compiler merges are counted so, and thread blocks have the warps of a GPU."""

from __future__ import annotations

import pytest

from opbench.kernels.launch import Dim3
from support.builders.on_cpu import Tracer, compilers, floats

pytestmark = pytest.mark.parametrize("compiler", compilers())


def test_blocks_of_three_dimensions_have_the_warps_of_a_gpu(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  out[threadIdx.x + 4 * (threadIdx.y + 4 * threadIdx.z)] = 1.0f;
}"""
    block: Dim3 = (4, 4, 3)
    (store,) = tracer.clean(text, 1, block, floats(48)).traffic.lines
    assert (store.requests, store.lanes, store.sectors) == (2, 48, 6)


NEIGHBOURS = """\
extern "C" __global__ void k(float* out) {
  __shared__ __align__(16) float tile[32][40];
  for (int i = 0; i < 32; ++i) tile[i][threadIdx.x] = i;
  __syncthreads();
  float sum = 0.0f;
  for (int i = FIRST; i < LAST; ++i) sum += tile[ROW][i] * tile[i][threadIdx.x];
  out[threadIdx.x] = sum;
}"""


@pytest.mark.parametrize(
    ("row", "first", "last", "saved_8", "saved_16"),
    [("0", 0, 16, (8, 8), (12, 8)), ("0", 1, 8, (3, 3), (5, 3)), ("threadIdx.x", 0, 16, (8, 64), (12, 96))],
)
def test_neighbours_in_shared_memory(
    tracer: Tracer, row: str, first: int, last: int, saved_8: tuple[int, int], saved_16: tuple[int, int]
) -> None:
    """A broadcast of 4 floats takes 2 wavefronts, as measured on an H200; rows 40 floats apart conflict 8-fold."""
    text = NEIGHBOURS.replace("ROW", row)
    traffic = tracer.clean(text, 1, 32, floats(32), FIRST=str(first), LAST=str(last)).traffic
    across, down = traffic.select(space="shared", kind="load")
    assert 0 < across.column < down.column and across.line == down.line
    assert (across.requests, down.requests) == (last - first, last - first)
    assert (across.requests_saved_8, across.wavefronts_saved_8) == saved_8
    assert (across.requests_saved_16, across.wavefronts_saved_16) == saved_16
    assert down.requests_saved_8 == down.requests_saved_16 == 0


def test_neighbours_on_both_sides_of_a_barrier_are_not_merged(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float4* a, float* out) {
  const float* p = (const float*)(a + threadIdx.x);
  float sum = p[0];
  SYNC;
  out[threadIdx.x] = sum + p[1];
}"""
    for sync, saved in (("__syncthreads()", 0), ("", 1)):
        loads = tracer.clean(text.replace("SYNC", sync), 1, 32, floats(128), floats(32)).traffic.select(kind="load")
        assert sum(load.requests_saved_8 for load in loads) == saved
        assert sum(load.sectors_saved_8 for load in loads) == 16 * saved


def test_copies_of_an_access_are_one(tracer: Tracer) -> None:
    text = """\
__device__ __forceinline__ float twice(const float* a, int i) { return a[i] + a[i + 32]; }
extern "C" __global__ void k(const float* a, float* out) {
  out[threadIdx.x] = twice(a, threadIdx.x);
  out[threadIdx.x + 32] = twice(a, threadIdx.x + 64);
}"""
    loads = tracer.clean(text, 1, 32, floats(128), floats(64)).traffic.select(kind="load")
    assert [(load.line, load.requests) for load in loads] == [(1, 2), (1, 2)]


def test_lanes_that_part_in_an_unrolled_loop_meet_in_each_step(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float* a, float* out, int n) {
  float sum = 0.0f;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int left = n - threadIdx.x;
    const float4 v = make_float4(left > 0 ? a[step] : 0.0f, left > 1 ? a[step + 1] : 0.0f,
                                 left > 2 ? a[step + 2] : 0.0f, left > 3 ? a[step + 3] : 0.0f);
    sum += v.x + v.y + v.z + v.w;
  }
  out[threadIdx.x] = sum;
}"""
    traffic = tracer.clean(text, 1, 32, floats(8), floats(32), 20).traffic
    assert traffic.total("requests", kind="load") == 16
