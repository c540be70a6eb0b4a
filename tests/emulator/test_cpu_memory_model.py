"""Which orders of threads are tried, what a plain read of a counter is, and sets of readers that stay small."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.kernels.launch import BuildRequest
from support.builders.on_cpu import Tracer, floats

PLAIN = 'extern "C" __global__ void k(float* out) { out[threadIdx.x] = 1.0f; }  // mbarrier, atomicAdd, volatile'
ATOMIC = 'extern "C" __global__ void k(int* out) { atomicAdd(out, 1); }'
VOLATILE = 'extern "C" __global__ void k(volatile int* out) { if (out[1] == 0) out[0] = 1; }'
BARRIER = """\
#include <cuda/barrier>
extern "C" __global__ void k(int* out) {
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  if (threadIdx.x == 0) init(&bar, 32);
  __syncthreads();
  bar.arrive_and_wait();
  out[threadIdx.x] = 1;
}"""


@pytest.mark.parametrize(("text", "orders"), [(PLAIN, 1), (ATOMIC, 4), (VOLATILE, 4), (BARRIER, 4)])
def test_orders_follow_from_what_the_module_calls(tracer: Tracer, text: str, orders: int) -> None:
    source = tracer.folder / "orders.cu"
    source.write_text(text)
    assert tracer.backend.order_count(BuildRequest(source, ("k",))) == orders


def test_a_guess_by_a_plain_read_is_a_note(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(int* most) {
  if (*most < (int)blockIdx.x) atomicMax(most, (int)blockIdx.x);  // here
}"""
    trace = tracer.clean(text, 4, 1, np.zeros(1, np.int32))
    assert {(note.kind, note.line) for note in trace.notes} == {("unordered_read", tracer.line("here"))}


def test_a_read_back_of_an_addition_is_a_race(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(int* count, int* last) {
  if (blockIdx.x < LAST) { atomicAdd(count, 1); return; }
  atomicAdd(count, 1);
  if (*count == gridDim.x) *last = blockIdx.x;  // here
}"""
    arguments = (np.zeros(1, np.int32), np.zeros(1, np.int32))
    found = tracer.only(text, 4, 1, *arguments, LAST="3")
    assert (found.kind, found.line) == ("block_race", tracer.line("here"))
    tracer.clean(text, 1, 1, *arguments, LAST="0")


def test_readers_are_kept_however_many_read(tracer: Tracer) -> None:
    """The first of 200 blocks is the only one that does not publish its read."""
    text = """\
extern "C" __global__ void k(float* data, unsigned* count, float* out) {
  if (blockIdx.x == gridDim.x - 1) {
    if (atomicAdd(count, 0u) < gridDim.x - 1 - FIRST) return;
    __threadfence();
    data[threadIdx.x] = 1.0f;  // here
    return;
  }
  out[blockIdx.x * 32 + threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  if (threadIdx.x || blockIdx.x < FIRST) return;
  __threadfence();
  atomicAdd(count, 1u);
}"""

    def arguments() -> tuple[object, ...]:
        return floats(32), np.zeros(1, np.uint32), floats(200 * 32)

    tracer.clean(text, 201, 32, *arguments(), FIRST="0")
    found = tracer.only(text, 201, 32, *arguments(), FIRST="1")
    assert (found.kind, found.line) == ("block_race", tracer.line("here"))
    assert any("block (0,0,0)" in line for line in (found.message, *found.details))


LOCK = """\
__device__ int lock, total;
extern "C" __global__ void k() {
  if (threadIdx.x) return;
  while (atomicCAS(&lock, 0, 1) != 0) {}
  TAKEN;
  total += 1;  // here
  GIVEN;
  atomicExch(&lock, 0);
}"""
FENCE = "__threadfence()"


@pytest.mark.parametrize(
    ("taken", "given", "words"), [("", FENCE, ("acquire order",)), (FENCE, "", ("before it is given back", FENCE))]
)
def test_a_lock_without_a_fence_needs_a_fence(tracer: Tracer, taken: str, given: str, words: tuple[str, ...]) -> None:
    findings = tracer.run(LOCK, 4, 32, TAKEN=taken, GIVEN=given).findings
    assert {(found.kind, found.line) for found in findings} == {("block_race", tracer.line("here"))}
    assert all(word in found.remedy for word in words for found in findings)
    tracer.clean(LOCK, 4, 32, TAKEN=FENCE, GIVEN=FENCE)


def test_an_update_without_a_lock_needs_an_atomic_operation(tracer: Tracer) -> None:
    text = """\
__device__ int total;
extern "C" __global__ void k() {
  if (threadIdx.x == 0) total += 1;
}"""
    for kernel in (text, text.replace("int total", "volatile int total")):
        assert "Use atomicAdd" in tracer.run(kernel, 4, 32).findings[0].remedy
