"""Counts of traced launches: what an H200's counters show for the same kernels, and the same from every compiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_cpu_kernels import cache, compilers  # noqa: F401 (a fixture)
from test_cpu_trace import Tracer, floats

from opbench.backends.base import TraceOptions
from opbench.backends.cpu import CpuBackend
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.catalog.launch import Dim3
from opbench.catalog.variant import Variant
from opbench.traffic.counts import LineTraffic, Traffic


@pytest.fixture(params=compilers())
def tracer(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Tracer:
    monkeypatch.setenv("OPBENCH_CXX", request.param)
    return Tracer(tmp_path, CpuBackend(cache))


def per_request(line: LineTraffic) -> tuple[int, float, float]:
    return line.requests, line.sectors_per_request, line.lanes_per_request


# ---- sectors

STRIDED = """\
extern "C" __global__ void k(const float* a, float* out, int n, int stride) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[(long long)i * stride];
}"""


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


# ---- divergence

PATTERNS = {
    "a loop whose length depends on data": (
        "int p = i, n = 0; while (in[p] != 0) { p = in[p] - 1; ++n; }\n out[i] = a[i] + n;  // x",
        {"x": (1, 32)},
    ),
    "both sides of a branch, and after it": (
        "float s = 0; if (i & 1) s += a[i];  // x\n else s += a[i + 64] * 2;  // y\n s += a[i + 128];  // z\n"
        " out[i] = s;",
        {"x": (1, 16), "y": (1, 16), "z": (1, 32)},
    ),
    "continue and break": (
        "float s = 0; for (int k = 0; k < 8; ++k) {\n if ((i + k) % 3 == 0) continue;\n s += a[k * 32 + i];  // x\n"
        " if (s > 1e30f) break;\n s += a[k * 32 + i + 32];  // y\n }\n out[i] = a[i] + s;  // z",
        {"x": (8, None), "y": (8, None), "z": (1, 32)},
    ),
    "switch": (
        "float s; switch (i & 3) { case 0: s = a[i]; break;\n case 1: s = a[i + 32]; break;\n"
        " case 2: s = a[i + 64]; break;\n default: s = a[i + 96]; }\n s += a[i + 128];  // y\n out[i] = s;",
        {"y": (1, 32)},
    ),
    "a call from both sides of a branch": (
        "float s; if (i < 16) { s = leaf(a, i); s = s * 2 + leaf(a, i + 32); }\n else s = leaf(a, i + 64);\n"
        " out[i] = s + a[i];  // x",
        {"leaf": (3, 16), "x": (1, 32)},
    ),
    "a loop that lanes leave early, in a loop": (
        "float s = 0; for (int r = 0; r < 4; ++r) {\n for (int k = 0; k < 8; ++k) {\n s += a[r * 8 + k + i];  // x\n"
        " if (k == ((i + r) & 7)) break;\n }\n s += a[100 + r * 32 + i];  // y\n }\n if (i == 5) return;\n"
        " out[i] = s + a[i];  // z",
        {"x": (32, None), "y": (4, 32), "z": (1, 31)},
    ),
    "short circuits and conditional expressions": (
        "float s = (a[i] > 0 && a[i + 32] > 0) || a[i + 64] > 0 ? a[i + 96] : 0.0f;\n s += i < 7 ? a[i] : a[i + 32];\n"
        " out[i] = s + a[i + 1];  // x",
        {"x": (1, 32)},
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_lanes_that_part_meet_again(tracer: Tracer, name: str) -> None:
    body, expected = PATTERNS[name]
    text = (
        "__device__ __noinline__ float leaf(const float* p, int i) {\n  return p[i];  // leaf\n}\n"
        'extern "C" __global__ void k(const int* in, const float* a, float* out) {\n'
        f" int i = threadIdx.x;\n {body}\n}}"
    )
    rng = np.random.default_rng(1)
    parents = np.array([0, *(rng.integers(0, i + 1) for i in range(1, 64))], np.int32)
    a = rng.standard_normal(512).astype(np.float32)
    traffic = tracer.clean(text, 1, 32, parents, a, floats(64)).traffic
    for mark, (requests, lanes) in expected.items():
        (load,) = traffic.select(line=tracer.line(mark), space="global", kind="load")
        assert load.requests == requests, mark
        assert lanes is None or load.lanes == lanes * requests, mark
        assert load.upper_requests >= load.requests


def test_the_upper_bound_never_lets_parted_lanes_meet(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float* a, float* out) {
  float s = 0.0f;
  if (threadIdx.x & 1) s = a[threadIdx.x];
  s += a[threadIdx.x + 32];  // parted
  __syncwarp();
  out[threadIdx.x] = s;  // met
}"""
    traffic = tracer.clean(text, 1, 32, floats(64), floats(32)).traffic
    (load,) = traffic.select(line=tracer.line("parted"))
    assert (load.requests, load.upper_requests, load.sectors, load.upper_sectors) == (1, 2, 4, 8)
    (store,) = traffic.select(line=tracer.line("met"))
    assert (store.requests, store.upper_requests) == (1, 1)


def branches(tracer: Tracer, traffic: Traffic) -> dict[str, tuple[int, int, float]]:
    """Executions, partings and lanes on the smaller way, by the mark of the line."""
    lines = tracer.text.splitlines()
    return {
        lines[b.line - 1].partition("// ")[2]: (b.executions, b.divergent, b.fewest_lanes_each)
        for b in traffic.branches
    }


def test_partings_are_counted_at_their_branch(tracer: Tracer) -> None:
    """Four blocks of two warps; lanes that wait at a barrier have met again."""
    text = """\
extern "C" __global__ void k(const float* a, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float s = a[i];
  if (threadIdx.x % 2) s += a[i + 32];  // parity
  if (blockIdx.x % 2) s += a[i + 64];  // uniform
  if (threadIdx.x < 32) s += a[i + 96];  // by warp
  for (int k = 0; k < (int)threadIdx.x / 8; ++k) s += a[k];  // trips
  __syncthreads();
  if (threadIdx.x < 48) s += a[i + 128];  // half of the second warp
  if (threadIdx.x % 32 == 0) out[i] = s;  // elected
}"""
    traffic = tracer.clean(text, 4, 64, floats(512), floats(512)).traffic
    assert branches(tracer, traffic) == {
        "parity": (8, 8, 16),
        "trips": (48, 24, 8),  # in each warp the lanes leave in four groups, the last of them alone
        "half of the second warp": (8, 4, 16),
        "elected": (8, 8, 1),
    }


def test_a_branch_after_a_call_is_the_callers(tracer: Tracer) -> None:
    text = """\
__device__ __noinline__ float leaf(const float* p, int i) {
  float s = p[i];
  if (i % 4 == 0) s += p[i + 64];  // leaf
  return s;
}
extern "C" __global__ void k(const float* a, float* out) {
  const int i = threadIdx.x;
  if (leaf(a, i) == 0.0f && i < 24) out[i] = a[i];  // caller
}"""
    traffic = tracer.clean(text, 1, 32, floats(128), floats(32)).traffic
    assert branches(tracer, traffic) == {"leaf": (1, 1, 8), "caller": (1, 1, 8)}


def test_a_switch_parts_a_warp_once(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float* a, float* out) {
  const int i = threadIdx.x;
  float s = 0.0f;
  switch (i & 3) {  // ways
    case 0: s = a[i]; out[i + 32] = s; break;
    case 1: s = a[i + 32] * 2; break;
    case 2: s = a[i + 64] - 1; out[i + 64] = s; break;
    default: s = a[i + 96] + a[i];
  }
  out[i] = s;
}"""
    found = tracer.clean(text, 1, 32, floats(128), floats(128)).traffic.branches
    assert found and sum(b.divergent for b in found) <= 3
    assert {tracer.text.splitlines()[b.line - 1].partition("// ")[2] for b in found} == {"ways"}


def test_partings_of_sampled_blocks_stand_for_all(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float* a, float* out) {
  if (threadIdx.x % 2) out[threadIdx.x] = a[blockIdx.x];  // odd
}"""
    one = np.zeros(10, np.float32)
    options = TraceOptions(max_blocks=2, races=False)
    traffic = tracer.run(text, 10, 32, one, floats(32), options=options).traffic
    assert branches(tracer, traffic) == {"odd": (2, 2, 16)}
    assert branches(tracer, traffic.estimated()) == {"odd": (10, 10, 16)}


# ---- blocks


@pytest.mark.parametrize(("grid", "limit", "counted"), [(10, 3, 3), (10, 10, 10), (7, 2, 2), (5, 1, 1), (1, 4, 1)])
def test_blocks_are_sampled_whole_and_all_are_checked(tracer: Tracer, grid: int, limit: int, counted: int) -> None:
    out = floats(32 * grid)
    options = TraceOptions(max_blocks=limit)
    traffic = tracer.clean(STRIDED, grid, 32, floats(32 * grid), out, 32 * grid, 1, options=options).traffic
    kernel = traffic.kernel("k")
    assert (kernel.blocks, kernel.counted_blocks) == (grid, counted)
    assert traffic.total("requests", kind="store") == counted
    assert traffic.estimated().total("requests", kind="store") == grid
    late = tracer.run(STRIDED, grid, 32, floats(32 * grid), floats(32 * grid - 1), 32 * grid, 1, options=options)
    assert [f.kind for f in late.findings] == ["out_of_bounds"]


def test_the_first_and_the_last_block_are_sampled(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  if (blockIdx.x == 0) out[0] = 1.0f;  // first
  if (blockIdx.x == 40) out[40] = 1.0f;  // last
}"""
    traffic = tracer.clean(text, 41, 1, floats(41), options=TraceOptions(max_blocks=4)).traffic
    assert [t.line for t in traffic.lines] == [tracer.line("first"), tracer.line("last")]


# ---- the tree

CATALOG = Catalog()
CUDA = [v for name in CATALOG.operator_names() for v in CATALOG.variants(name) if not v.is_library]


def smallest(variant: Variant, backend: CpuBackend, count: int) -> list[Case]:
    """The smallest examples that some config of the variant runs, with the first such config."""
    examples = sorted(CATALOG.operator(variant.operator).examples(), key=lambda p: (p.bytes(), p.flops()))
    for config in variant.configs:
        cases = [Case(variant, config, problem) for problem in examples]
        runs = [c for c in cases if c.unmet() is None and backend.unsupported(c.request()) is None]
        if runs:
            return runs[:count]
    return []


def test_blocks_of_three_dimensions_have_the_warps_of_a_gpu(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  out[threadIdx.x + 4 * (threadIdx.y + 4 * threadIdx.z)] = 1.0f;
}"""
    block: Dim3 = (4, 4, 3)
    (store,) = tracer.clean(text, 1, block, floats(48)).traffic.lines
    assert (store.requests, store.lanes, store.sectors) == (2, 48, 6)


# ---- accesses that a device compiler merges

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
