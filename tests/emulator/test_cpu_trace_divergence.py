"""Lanes that part and meet, and blocks that stand for others, in traced launches: the same from every compiler."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.backend.counts import Traffic
from support.builders.on_cpu import Tracer, compilers, floats

pytestmark = pytest.mark.parametrize("compiler", compilers())


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
        lines[b.line - 1].partition("// ")[2]: (b.executions, b.divergent, b.mean_fewest_lanes)
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
