"""cuda::pipeline::quit(): the last thread sets the state free, and a thread that has quit takes no further part."""

from __future__ import annotations

import numpy as np

from support.builders.on_cpu import Tracer

TEXT = """\
#include <cooperative_groups.h>
#include <cuda/pipeline>
extern "C" __global__ void k(const int* in, int* out, int* last) {
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  __shared__ int stage[2][64];
  auto block = cooperative_groups::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  int sum = 0;
  for (int step = 0; step < 4; ++step) {
    pipe.producer_acquire();
    cuda::memcpy_async(&stage[step % 2][threadIdx.x], in + threadIdx.x, sizeof(int), pipe);
    pipe.producer_commit();
    pipe.consumer_wait();
    sum += stage[step % 2][63 - threadIdx.x];
    pipe.consumer_release();
  }
  if (pipe.quit()) atomicAdd(last, 1);
  out[threadIdx.x] = sum;
  AFTER;  // here
}"""


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arange(64, dtype=np.int32), np.zeros(64, np.int32), np.zeros(1, np.int32)


def test_one_thread_is_the_last_to_quit(tracer: Tracer) -> None:
    numbers, out, last = arrays()
    tracer.clean(TEXT, 1, 64, numbers, out, last, AFTER="")
    assert last[0] == 1
    np.testing.assert_array_equal(out, 4 * numbers[::-1])


def test_a_thread_that_has_quit_takes_no_part(tracer: Tracer) -> None:
    found = tracer.run(TEXT, 1, 64, *arrays(), AFTER="pipe.producer_acquire()").findings[0]
    assert (found.kind, found.line) == ("trap", tracer.line("here"))
    assert "quit()" in found.message
