"""Races between blocks of traced launches: each is found, and its right twin is not."""

from __future__ import annotations

import numpy as np

from opbench.kernels.launch import BuildRequest, KernelLaunch
from support.builders.on_cpu import Tracer, floats


def test_blocks_that_write_one_location(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out, int apart) {
  out[blockIdx.x * apart + threadIdx.x] = 1.0f;  // here
}"""
    tracer.clean(text, 3, 32, floats(96), 32, unwritten=(0,))
    found = tracer.only(text, 3, 32, floats(96), 31)
    line = tracer.line("here")
    assert (found.kind, found.line, found.block, found.offset) == ("block_race", line, (1, 0, 0), 124)
    assert f"races with the write at line {line}" in found.message
    assert [(one.line, one.message) for one in found.related] == [(line, "write by block (0,0,0)")]
    assert found.count == 2


def test_blocks_that_read_what_others_write(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* values, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float left = values[i > 0 ? i - 1 : 0];  // read
  __syncthreads();
  values[i] = left + 1.0f;  // write
}"""
    tracer.clean(text, 1, 64, floats(64), 64)
    kinds = {(f.kind, f.line) for f in tracer.run(text, 2, 32, floats(64), 64).findings}
    assert kinds == {("block_race", tracer.line("read"))}


def test_blocks_that_write_what_others_have_read(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* values, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float right = values[i + 1 < n ? i + 1 : i];  // read
  __syncthreads();
  values[i] = right;  // write
}"""
    found = tracer.only(text, 2, 32, floats(64), 64)
    assert (found.kind, found.line) == ("block_race", tracer.line("write"))
    assert [(r.line, r.message) for r in found.related] == [(tracer.line("read"), "read by block (0,0,0)")]


def test_atomics_between_blocks_do_not_race(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* out) { atomicAdd(out, 1.0f); }'
    out = floats(1)
    tracer.clean(text, 8, 32, out)
    assert out[0] == 256


def test_neighbouring_halves_do_not_race(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(unsigned short* out, float* same) {
  out[blockIdx.x] = blockIdx.x;
  ((unsigned short*)same)[blockIdx.x] = 0;
}"""
    tracer.clean(text, 9, 1, np.zeros(9, np.uint16), floats(5), unwritten=(0, 1))


LAST_BLOCK = """\
extern "C" __global__ void k(float* part, unsigned* counter, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = blockIdx.x + 1.0f;
    if (FENCE) __threadfence();
    last = atomicAdd(counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.0f;
    for (int i = 0; i < gridDim.x; ++i) sum += part[i];  // here
    out[0] = sum;
  }
}"""


def test_the_last_block_reads_what_all_have_published(tracer: Tracer) -> None:
    out = floats(1)
    tracer.clean(LAST_BLOCK, 20, 32, floats(20), np.zeros(1, np.uint32), out, FENCE="1", unwritten=(0, 2))
    assert out[0] == 210


def test_without_the_fence_nothing_is_published(tracer: Tracer) -> None:
    found = tracer.only(LAST_BLOCK, 20, 32, floats(20), np.zeros(1, np.uint32), floats(1), FENCE="0")
    assert (found.kind, found.line, found.count) == ("block_race", tracer.line("here"), 19)


def test_a_write_after_the_publication_is_not_published(tracer: Tracer) -> None:
    text = LAST_BLOCK.replace(
        "  __syncthreads();", "  if (threadIdx.x == 0 && !last) part[blockIdx.x] = 0.0f;\n  __syncthreads();"
    )
    found = tracer.only(text, 4, 32, floats(4), np.zeros(1, np.uint32), floats(1), FENCE="1")
    assert found.kind == "block_race"


MANY_PLACES = """\
extern "C" __global__ void k(float* part, unsigned* places, unsigned* counter, float* out) {
  __shared__ bool last;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[i] = i % 7;
  __threadfence();
  atomicAdd(places + i, 1u);
  __syncthreads();
  if (threadIdx.x == 0) last = LAST;
  __syncthreads();
  if (!last || threadIdx.x > 0) return;
  float sum = 0.0f;
  for (int j = 0; j < gridDim.x * blockDim.x; ++j) sum += part[j];  // here
  out[0] = sum;
}"""


def test_blocks_are_ordered_by_one_place_among_a_hundred_thousand(tracer: Tracer) -> None:
    """Each atomic operation is followed: by a search from end to end, this took twenty seconds."""
    blocks, threads = 512, 256
    part, places, out = floats(blocks * threads), np.zeros(blocks * threads, np.uint32), floats(1)
    counted = {"LAST": "atomicAdd(counter, 1u) == gridDim.x - 1"}
    tracer.clean(MANY_PLACES, blocks, threads, part, places, np.zeros(1, np.uint32), out, **counted)
    assert out[0] == (np.arange(blocks * threads) % 7).sum() and (places == 1).all()
    arguments = (part, places, np.zeros(1, np.uint32), out)
    found = tracer.only(MANY_PLACES, blocks, threads, *arguments, LAST="blockIdx.x == gridDim.x - 1")
    assert (found.kind, found.line) == ("block_race", tracer.line("here"))


def test_kernels_follow_each_other(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* out) { out[0] += 1.0f; }'
    source = tracer.folder / "one.cu"
    source.write_text(text)
    buffers = {"out": tracer.backend.allocate("out", (1,), "f32")}
    buffers["out"].write(floats(1))
    launch = KernelLaunch("k", (1, 1, 1), (1, 1, 1), 0, ("out",))
    trace = tracer.backend.trace(BuildRequest(source, ("k",)), [launch] * 3, buffers)
    assert trace.findings == ()
    assert trace.traffic.kernel("k").launches == 3
    tracer.backend.free(buffers)
