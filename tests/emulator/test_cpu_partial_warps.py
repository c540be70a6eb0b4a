"""Instructions of a whole warp where lanes are missing: the block is too small, or they have left or wait elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders.on_cpu import Bench, Tracer, floats
from support.common import CHEATS

SHUFFLE = """\
extern "C" __global__ void k(const float* a, float* out) {
  const float other = SHUFFLE;  // here
  out[threadIdx.x] = USE;
}"""
FROM_ABSENT = [
    "__shfl_down_sync(0xffffffffu, a[threadIdx.x], 16)",
    "__shfl_xor_sync(0xffffffffu, a[threadIdx.x], 16)",
    "__shfl_sync(0xffffffffu, a[threadIdx.x], 31)",
]


@pytest.mark.parametrize("shuffle", FROM_ABSENT)
@pytest.mark.parametrize("use", ["a[threadIdx.x] + 0 * other", "fminf(a[threadIdx.x], other)", "fmaxf(1.0f, other)"])
def test_a_value_from_a_lane_that_the_block_lacks_shows_in_the_result(tracer: Tracer, shuffle: str, use: str) -> None:
    a, out = np.ones(48, "f4"), floats(48)
    found = tracer.only(SHUFFLE, 1, 48, a, out, SHUFFLE=shuffle, USE=use)
    assert (found.kind, found.line, found.hint) == ("warp_mask", tracer.line("here"), True)
    assert "its last warp has 16 threads" in found.message
    assert (out[32:] != 1).any()


def test_a_value_from_an_absent_lane_that_nothing_uses_is_harmless(tracer: Tracer) -> None:
    a, out = np.arange(16).astype("f4"), floats(16)
    use = "threadIdx.x + 8 < blockDim.x ? other : 0.0f"
    trace = tracer.run(SHUFFLE, 1, 16, a, out, SHUFFLE="__shfl_down_sync(0xffffffffu, a[threadIdx.x], 8)", USE=use)
    assert all(f.hint for f in trace.findings)
    np.testing.assert_array_equal(out, [*range(8, 16), *[0] * 8])


VOTES = {
    "__ballot_sync(0xffffffffu, 1)": 0xFFFF,
    "__all_sync(0xffffffffu, 1)": 1,
    "__any_sync(0xffffffffu, threadIdx.x == 47)": 1,
    "__match_any_sync(0xffffffffu, 5)": 0xFFFF,
    "__reduce_add_sync(0xffffffffu, 1)": 16,
    "__reduce_max_sync(0xffffffffu, (int)threadIdx.x - 100)": -53,
}


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("exits", [False, True])
def test_votes_matches_and_reductions_are_of_the_lanes_that_are_there(tracer: Tracer, vote: str, exits: bool) -> None:
    """CUDA asks the lanes of the mask that have not exited; so a block of 48 threads may vote with a full mask."""
    text = """\
extern "C" __global__ void k(int* out, int threads) {
  if (threadIdx.x >= threads) return;
  out[threadIdx.x] = (int)VOTE;
}"""
    out = np.zeros(48, np.int32)
    tracer.clean(text, 1, 64 if exits else 48, out, 48, VOTE=vote)
    assert set(out[32:]) == {VOTES[vote]}


LDMATRIX = """\
extern "C" __global__ void k(int* out, int threads) {
  __shared__ __align__(16) unsigned short tile[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) tile[i] = i;
  __syncthreads();
  if (threadIdx.x >= threads) LEAVE;
  unsigned a;
  const unsigned row = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x % 8 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(row));  // here
  out[threadIdx.x] = a;
  __syncthreads();
}"""


@pytest.mark.parametrize(
    ("block", "threads", "leave", "words"),
    [
        (16, 16, "return", "the block has 16 threads"),
        (48, 48, "return", "the block has 48 threads"),
        (32, 24, "return", "8 lanes of the warp have exited"),
        (32, 24, "return (void)__syncthreads()", "8 lanes of the warp"),
    ],
)
def test_ldmatrix_needs_the_whole_warp(tracer: Tracer, block: int, threads: int, leave: str, words: str) -> None:
    found = tracer.only(LDMATRIX, 1, block, np.zeros(block, np.int32), threads, LEAVE=leave)
    assert (found.kind, found.line, found.hint) == ("partial_warp", tracer.line("here"), False)
    assert words in found.message


def test_ldmatrix_in_the_whole_warp(tracer: Tracer) -> None:
    tracer.clean(LDMATRIX, 1, 32, np.zeros(32, np.int32), 32, LEAVE="return")


MMA = """\
extern "C" __global__ void k(float* out) {
  float d0, d1, d2, d3;
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, "
               "{%5, %5, %5, %5};" : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3) : "r"(__float_as_uint(1.0f)), "f"(0.0f));
  out[threadIdx.x] = d0;
}"""
WMMA = """\
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const float* a, float* out) {
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> part;
  wmma::load_matrix_sync(part, a, 16, wmma::mem_row_major);
  wmma::store_matrix_sync(out, part, 16, wmma::mem_row_major);
}"""


@pytest.mark.parametrize("traced", [True, False])
def test_products_in_half_a_warp(tracer: Tracer, bench: Bench, traced: bool) -> None:
    if traced:
        found = tracer.run(MMA, 1, 16, floats(32)).findings[0]
        wmma = tracer.run(WMMA, 1, 16, floats(256), floats(256)).findings[0]
    else:
        bench.run(MMA, "k", (1, 1, 1), (16, 1, 1), floats(32))
        found = bench.findings[0]
        bench.run(WMMA, "k", (1, 1, 1), (16, 1, 1), floats(256), floats(256))
        wmma = bench.findings[0]
    assert found.kind == wmma.kind == "partial_warp"
    assert found.line in (3, 4)
    assert wmma.line == 5


WMMA_STORE = """\
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const float* a, float* out) {
  __shared__ __align__(32) float tile[256];
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> part;
  wmma::load_matrix_sync(part, a, 16, wmma::mem_row_major);
  wmma::store_matrix_sync(tile, part, 16, wmma::mem_row_major);  // stores
  MEET;
  for (int i = threadIdx.x; i < 256; i += 32) out[i] = tile[i];  // reads
}"""


def test_a_stored_fragment_needs_a_barrier_before_other_lanes_read_it(tracer: Tracer) -> None:
    a, out = np.arange(256).astype("f4"), floats(256)
    tracer.clean(WMMA_STORE, 1, 32, a, out, MEET="__syncwarp()")
    np.testing.assert_array_equal(out, a)
    found = tracer.only(WMMA_STORE, 1, 32, a, out, MEET="")
    assert (found.kind, found.line, found.buffer) == ("shared_race", tracer.line("reads"), "tile")
    assert [related.line for related in found.related] == [tracer.line("stores")]


@pytest.mark.parametrize("meet", ["__ballot_sync(0xffffffffu, 1)", "__shfl_sync(0xffffffffu, threadIdx.x, 0)"])
def test_no_warp_operation_but_syncwarp_orders_memory(tracer: Tracer, meet: str) -> None:
    found = tracer.only(WMMA_STORE, 1, 32, floats(256), floats(256), MEET=meet)
    assert found.kind == "shared_race"


def test_mma_orders_no_memory(tracer: Tracer) -> None:
    text = MMA.replace(
        "float* out) {", "float* out) {\n  __shared__ float part[32];\n  part[threadIdx.x] = 1.0f;"
    ).replace("= d0;", "= d0 + part[31 - threadIdx.x];")
    assert [f.kind for f in tracer.run(text, 1, 32, floats(32)).findings] == ["shared_race"]


WGMMA = f"""\
#include "{CHEATS / "hopper" / "asynchronous.cuh"}"
extern "C" __global__ void k(float* out, int threads) {{
  __shared__ __align__(1024) unsigned short memory[8192];
  for (int i = threadIdx.x; i < 8192; i += blockDim.x) memory[i] = 0;
  proxy_fence();
  __syncthreads();
  if (threadIdx.x >= threads) return;
  float sum[8] = {{}};
  wgmma_fence();
  const u64 a = descriptor(address_of(memory)), b = descriptor(address_of(memory + 4096));
  wgmma(sum, a, b, 0);  // here
  wgmma_commit();
  wgmma_wait<0>();  // waits
  out[threadIdx.x] = sum[0];
}}"""


def test_wgmma_needs_the_whole_warpgroup(tracer: Tracer) -> None:
    tracer.clean(WGMMA, 1, 128, floats(128), 128)
    for block in (64, 192):
        found = tracer.only(WGMMA, 1, block, floats(192), block)
        assert (found.kind, found.called_from) == ("partial_warp", tracer.line("here"))
        assert f"the block has {block} threads" in found.message
    found = tracer.only(WGMMA, 1, 128, floats(128), 100)
    assert (found.kind, found.called_from) == ("deadlock", tracer.line("waits"))
    assert any("28 threads have exited" in detail for detail in found.details)


TILES = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(int* out) {
  auto tile = PARTITION;  // here
  out[threadIdx.x] = tile.size();
}"""


@pytest.mark.parametrize(
    "partition",
    ["cg::tiled_partition<32>(cg::this_thread_block())", "cg::tiled_partition(cg::this_thread_block(), 32)"],
)
def test_tiles_fill_the_block(tracer: Tracer, partition: str) -> None:
    tracer.clean(TILES, 1, 64, np.zeros(64, np.int32), PARTITION=partition)
    found = tracer.only(TILES, 1, 48, np.zeros(48, np.int32), PARTITION=partition)
    assert (found.kind, found.line) == ("partial_warp", tracer.line("here"))
    assert "multiple of 32 threads; the block has 48" in found.message


def test_tiles_of_tiles(tracer: Tracer) -> None:
    partition = "cg::tiled_partition<4>(cg::tiled_partition<16>(cg::this_thread_block()))"
    tracer.clean(TILES, 1, 48, np.zeros(48, np.int32), PARTITION=partition)
