"""Races within a block of traced launches: each is found, and its right twin is not."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders.on_cpu import Tracer, floats

# ---- races within a block


TILED = """\
extern "C" __global__ void k(const float* a, const float* b, float* out, int n) {
  __shared__ float left[16][16], right[16][16];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0.0f;
  for (int step = 0; step < n; step += 16) {
    left[y][x] = a[row * n + step + x];  // write
    right[y][x] = b[(step + y) * n + column];
    if (FIRST) __syncthreads();
    for (int i = 0; i < 16; ++i)
      sum += left[y][i] * right[i][x];  // read
    if (SECOND) __syncthreads();
  }
  out[row * n + column] = sum;
}"""


def test_a_tiled_product_and_its_missing_barriers(tracer: Tracer, rng: np.random.Generator) -> None:
    a, b, out = rng.normal(size=(48, 48)).astype("f4"), rng.normal(size=(48, 48)).astype("f4"), floats(48, 48)
    arguments = (TILED, (3, 3, 1), (16, 16, 1), a, b, out, 48)
    tracer.clean(*arguments, FIRST="1", SECOND="1")
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
    second = tracer.run(*arguments, FIRST="1", SECOND="0").findings
    assert {f.kind for f in second} == {"shared_race"}
    assert {f.line for f in second} >= {tracer.line("write"), tracer.line("write") + 1}
    first = next(f for f in second if f.line == tracer.line("write"))
    assert first.buffer == "left"
    assert first.line == tracer.line("write")
    assert first.related[0].line == tracer.line("read") and "__syncthreads()" in first.remedy
    lines = {f.line for f in tracer.run(*arguments, FIRST="0", SECOND="1").findings}
    assert tracer.line("read") in lines


WARP_TAIL = """\
extern "C" __global__ void k(const float* in, float* out) {
  __shared__ float part[64];
  const int t = threadIdx.x;
  part[t] = in[t];
  __syncthreads();
  if (t < 32) {
    part[t] += part[t + 32];
    for (int k = 16; k > 0; k /= 2) {
      MEET;
      const float other = part[(t + k) & 63];  // read
      MEET;
      part[t] += other;  // write
    }
  }
  if (t == 0) out[0] = part[0];
}"""


def test_a_warp_synchronous_tail(tracer: Tracer, rng: np.random.Generator) -> None:
    values, out = rng.normal(size=64).astype("f4"), floats(1)
    tracer.clean(WARP_TAIL, 1, 64, values, out, MEET="__syncwarp()")
    np.testing.assert_allclose(out[0], values.sum(), rtol=1e-4)
    found = tracer.run(WARP_TAIL, 1, 64, values, out, MEET="").findings
    assert {f.kind for f in found} == {"shared_race"}
    assert any(tracer.line("read") in (f.line, *(r.line for r in f.related)) for f in found)
    assert any("__syncwarp() or __syncthreads()" in f.remedy for f in found)
    assert tracer.line("write") in {f.line for f in found}


HALO = """\
extern "C" __global__ void k(const float* x, float* out) {
  __shared__ float tile[BLOCK + 1];
  const int t = threadIdx.x;
  tile[t + 1] = x[t];  // store
  if (t == 0) tile[0] = 0.0f;
  MEET;
  out[t] = tile[t] + tile[t + 1];  // read
}"""


def test_a_race_that_only_a_barrier_cures_is_shown_between_warps(tracer: Tracer) -> None:
    x, out = floats(64), floats(64)
    tracer.clean(HALO, 1, 64, x, out, BLOCK="64", MEET="__syncthreads()")
    for meet in ("", "__syncwarp()"):
        found = tracer.run(HALO, 1, 64, x, out, BLOCK="64", MEET=meet).findings
        (read,) = [finding for finding in found if finding.line == tracer.line("read")]
        assert read.thread and read.thread[0] // 32 == 1
        assert "thread (31,0,0)" in read.details[0] and "__syncwarp()" not in read.remedy
    in_a_warp = tracer.run(HALO, 1, 32, x, out, BLOCK="32", MEET="").findings
    assert in_a_warp and all("__syncwarp()" in finding.remedy for finding in in_a_warp)


REUSED = """\
extern "C" __global__ void k(float* out) {
  __shared__ float part[2];
  const int t = threadIdx.x;
  if (t % 32 == 0) part[t / 32] = t;
  __syncthreads();
  const float most = part[0] + part[1];
  if (t % 32 == 0) part[t / 32] = most;  // store
  __syncthreads();
  out[t] = part[0] + part[1];
}"""


def test_a_write_that_readers_of_several_warps_race_with_names_one_of_another_warp(tracer: Tracer) -> None:
    found = tracer.run(REUSED, 1, 64, floats(64)).findings
    (store,) = [finding for finding in found if finding.line == tracer.line("store")]
    assert "__syncwarp()" not in store.remedy


def test_half_a_warp_that_meets_orders_only_itself(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(int* out) {
  __shared__ int kept[32];
  const int t = threadIdx.x;
  kept[t] = t;
  if (t < 16) __syncwarp(0xffff);
  out[t] = kept[t ^ DISTANCE];
  if (t >= 16) __syncwarp(0xffff0000);
}"""
    out = np.zeros(32, np.int32)
    found = tracer.run(text, 1, 32, out, DISTANCE="1").findings
    assert "shared_race" in {f.kind for f in found}
    assert all(f.thread is not None and f.thread[0] >= 16 for f in found)


def test_atomics_in_shared_memory_do_not_race(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const int* in, unsigned* out) {
  __shared__ unsigned bins[8];
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  __syncthreads();
  ADD(&bins[in[threadIdx.x]]);
  __syncthreads();
  if (threadIdx.x < 8) out[threadIdx.x] = bins[threadIdx.x];
}
"""
    values, out = (np.arange(64) % 8).astype(np.int32), np.zeros(8, np.uint32)
    tracer.clean("#define ADD(p) atomicAdd(p, 1u)\n" + text, 1, 64, values, out)
    assert out.tolist() == [8] * 8
    found = tracer.run("#define ADD(p) ++*p\n" + text, 1, 64, values, out).findings
    assert {f.kind for f in found} == {"shared_race"}


def test_neighbouring_bytes_do_not_race(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(unsigned char* out) {
  __shared__ unsigned char bytes[64];
  __shared__ float words[64];
  words[threadIdx.x] = 0.0f;
  bytes[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = bytes[63 - threadIdx.x];
}"""
    out = np.zeros(64, np.uint8)
    tracer.clean(text, 1, 64, out, unwritten=(0,))
    assert out.tolist() == list(range(63, -1, -1))


# ---- asynchronous copies


COPY = """\
extern "C" __global__ void k(const float4* in, float4* out) {
  __shared__ float4 tile[2][64];
  const int t = threadIdx.x;
  for (int step = 0; step < 2; ++step) {
    const unsigned target = (unsigned)__cvta_generic_to_shared(&tile[step][t]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(in + 64 * step + t));  // copy
    asm volatile("cp.async.commit_group;");
  }
  for (int step = 0; step < 2; ++step) {
    WAIT
    BARRIER
    out[64 * step + t] = tile[step][63 - t];  // read
  }
}"""


def test_copies_land_at_the_wait(tracer: Tracer) -> None:
    values, out = np.arange(512, dtype=np.float32), floats(512)
    waits = 'if (step == 0) asm volatile("cp.async.wait_group 1;"); else asm volatile("cp.async.wait_group 0;");'
    tracer.clean(COPY, 1, 64, values, out, WAIT=waits, BARRIER="__syncthreads();")
    assert (out.reshape(2, 64, 4) == values.reshape(2, 64, 4)[:, ::-1]).all()
    every = 'asm volatile("cp.async.wait_all;");'
    tracer.clean(COPY, 1, 64, values, out, WAIT=every, BARRIER="__syncthreads();")
    race = tracer.run(COPY, 1, 64, values, out, WAIT=every, BARRIER="").findings
    assert {(f.kind, f.line) for f in race} >= {("shared_race", tracer.line("read"))}


@pytest.mark.parametrize("wait", ["", 'asm volatile("cp.async.wait_group 1;");'])
def test_reading_what_a_copy_may_still_fill(tracer: Tracer, wait: str) -> None:
    """With one group allowed to be in flight the second step reads too early."""
    found = tracer.only(COPY, 1, 64, floats(512), floats(512), WAIT=wait, BARRIER="__syncthreads();")
    assert (found.kind, found.line, found.buffer) == ("unfinished_copy", tracer.line("read"), "tile")
    assert f"the cp.async at line {tracer.line('copy')} may still be filling" in found.message
    assert found.related[0].line == tracer.line("copy") and "has not waited" in found.details[0]


def test_copies_of_one_block_are_none_of_the_next(tracer: Tracer) -> None:
    found = tracer.run(COPY, 3, 64, floats(512), floats(512), WAIT="", BARRIER="__syncthreads();").findings
    kinds = {f.kind for f in found}
    assert kinds == {"unfinished_copy", "block_race"}
