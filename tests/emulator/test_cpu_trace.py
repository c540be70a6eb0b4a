"""Memory checks of traced launches: each wrong kernel is found with kind, line and place, and its right twin is not."""

from __future__ import annotations

import re

import numpy as np

from opbench.backend.base import TraceOptions
from opbench.kernels.launch import BuildRequest
from support.builders.on_cpu import ADD, UNINITIALISED, Tracer, floats


def test_a_misaligned_vector(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const float* a, float4* out, int shift) {
  out[threadIdx.x] = *(const float4*)(a + shift + 4 * threadIdx.x);  // here
}"""
    tracer.clean(text, 1, 8, floats(64), floats(32), 4)
    found = tracer.only(text, 1, 8, floats(64), floats(32), 1)
    assert (found.kind, found.line, found.buffer, found.offset) == ("misaligned", tracer.line("here"), "arg0", 4)


def test_barriers_masks_and_deadlocks_are_seen_as_without_a_trace(tracer: Tracer) -> None:
    split = """\
extern "C" __global__ void k(float* out) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();  // here
  out[threadIdx.x] = 1.0f;
}"""
    found = tracer.only(split, 1, 32, floats(32))
    assert (found.kind, found.line) == ("divergent_barrier", tracer.line("here"))
    lacking = 'extern "C" __global__ void k(int* out) { out[threadIdx.x] = __shfl_sync(1u << 5, 1, 5); }'
    assert {f.kind for f in tracer.run(lacking, 1, 8, np.zeros(8, np.int32)).findings} == {"warp_mask"}
    stuck = """\
extern "C" __global__ void k(int* out) {
  if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0xffff, 1, 0);
  else if (threadIdx.x < 16) __shfl_sync(0xffffff, 1, 0);
  else __shfl_sync(0xffff00ff, 1, 0);
}"""
    trace = tracer.run(stuck, 1, 32, np.zeros(32, np.int32))
    assert "deadlock" in {f.kind for f in trace.findings}
    assert not trace.completed


def test_findings_of_one_line_are_one(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  #pragma unroll
  for (int i = 0; i < 4; ++i) out[threadIdx.x + i] = 1.0f;
}"""
    found = tracer.only(text, 1, 1, floats(1))
    assert (found.kind, found.count) == ("out_of_bounds", 3)


def test_checks_can_be_left_out(tracer: Tracer) -> None:
    options = TraceOptions(races=False)
    trace = tracer.clean(UNINITIALISED, 2, 64, floats(128), 63, options=options)
    assert trace.traffic.total("requests") > 0
    trace = tracer.run(UNINITIALISED, 2, 64, floats(128), 63, options=TraceOptions(count=False))
    assert [f.kind for f in trace.findings] == ["uninitialised_shared"]
    assert trace.traffic.lines == ()


def test_logs_stay_bounded_and_lanes_take_turns(tracer: Tracer) -> None:
    """Each lane logs far more than a log holds, and lanes end at different times."""
    text = """\
extern "C" __global__ void k(const float* a, float* out, int n) {
  const int i = threadIdx.x;
  float sum = 0.0f;
  for (int step = 0; step < n * (1 + i % 3); ++step) sum += a[(step * 40 + i) % 4096];  // here
  out[i] = sum;
}"""
    out = floats(40)
    trace = tracer.clean(text, 1, 40, np.ones(4096, np.float32), out, 3000, unwritten=(1,))
    assert out.tolist() == [3000 * (1 + i % 3) for i in range(40)]
    (load,) = trace.traffic.select(line=tracer.line("here"))
    assert load.lanes == sum(3000 * (1 + i % 3) for i in range(40))
    assert load.requests == 2 * 9000


def test_a_traced_build_is_cached_apart(tracer: Tracer) -> None:
    source = tracer.folder / "kernel.cu"
    source.write_text(ADD)
    request = BuildRequest(source, ("k",))
    fast, traced = tracer.backend.compile(request), tracer.backend.compile_traced(request)
    assert fast != traced
    before = traced.stat().st_mtime_ns
    assert tracer.backend.compile_traced(request) == traced
    assert traced.stat().st_mtime_ns == before
    assert not re.search(r"__tsan_", fast.read_bytes().decode("latin-1"))


def test_inline_ptx_and_matrix_instructions_are_seen(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const unsigned* in, unsigned* out) {
  __shared__ __align__(16) unsigned tile[32 * 4];
  const unsigned target = (unsigned)__cvta_generic_to_shared(tile + 4 * threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(in + 4 * threadIdx.x));  // copy
  asm volatile("cp.async.wait_all;");
  __syncthreads();
  unsigned a, b, c, d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(target));
  out[threadIdx.x] = a + b + c + d;
}"""
    trace = tracer.clean(text, 1, 32, np.arange(128, dtype=np.uint32), np.zeros(32, np.uint32), unwritten=(1,))
    copies = {(t.space, t.kind, t.width, t.requests) for t in trace.traffic.select(line=tracer.line("copy"))}
    assert copies == {("global", "load", 16, 1), ("shared", "store", 16, 1)}
    (load,) = trace.traffic.select(space="shared", kind="load")
    assert (load.width, load.requests, load.wavefronts, load.conflicts) == (16, 1, 4, 0)
