"""Copies of memory in traced kernels (memcpy and the like, structures): every compiler sees every byte."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders.on_cpu import Tracer, compilers, floats

pytestmark = pytest.mark.parametrize("compiler", compilers())


OVERLAPPING = """\
__device__ char part[260];
extern "C" __global__ void k(float* out, int bytes) {
  char own[8];
  for (int i = 0; i < 8; ++i) own[i] = (char)(threadIdx.x + i * i);
  COPY(part + 4 * threadIdx.x, own, BYTES);  // here
  out[threadIdx.x] = 1.0f;
}"""


@pytest.mark.parametrize("copy", ["memcpy", "__builtin_memcpy", "memmove", "__builtin_memmove", "std::memcpy"])
@pytest.mark.parametrize("size", ["7", "bytes"])
def test_threads_that_copy_to_overlapping_pieces_race(tracer: Tracer, copy: str, size: str) -> None:
    text = "#include <cstring>\n" + OVERLAPPING
    found = tracer.run(text, 1, 64, floats(64), 7, COPY=copy, BYTES=size).findings
    assert {(f.kind, f.line, f.buffer) for f in found} == {("global_race", tracer.line("here"), "part")}
    if size == "bytes":
        tracer.clean(text, 1, 64, floats(64), 4, COPY=copy, BYTES=size)


def test_one_thread_clears_shared_memory_that_all_read(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  __shared__ float part[64];
  if (threadIdx.x == 0) memset(part, 0, sizeof part);  // clears
  MEET;
  out[threadIdx.x] = part[63 - threadIdx.x];  // reads
}"""
    out = floats(64) + 5
    tracer.clean(text, 1, 64, out, MEET="__syncthreads()")
    assert not out.any()
    found = tracer.run(text, 1, 64, out, MEET="").findings
    assert {(f.kind, f.line, f.buffer) for f in found} == {("shared_race", tracer.line("reads"), "part")}


def test_memory_that_a_copy_fills_is_written(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const char* a, char* out) {
  __shared__ char part[64 * 7];
  memcpy(part + 7 * threadIdx.x, a + 7 * threadIdx.x, 7);
  __syncthreads();
  for (int i = 0; i < 7; ++i) out[7 * threadIdx.x + i] = part[7 * (63 - threadIdx.x) + i];
}"""
    a, out = np.arange(448).astype("u1"), np.zeros(448, np.uint8)
    tracer.clean(text, 1, 64, a, out)
    np.testing.assert_array_equal(out.reshape(64, 7), a.reshape(64, 7)[::-1])


@pytest.mark.parametrize("form", ["memcpy(&own, a + 13 + at, 24)", "own = *(const Own*)(a + 13 + at)"])
def test_a_copy_that_reads_past_the_end(tracer: Tracer, form: str) -> None:
    text = f"""\
struct Own {{ int values[6]; }};
extern "C" __global__ void k(const int* a, int* out, int at) {{
  Own own;
  {form};  // here
  out[threadIdx.x] = own.values[threadIdx.x % 6];
}}"""
    a, out = np.arange(20).astype("i4"), np.zeros(32, np.int32)
    tracer.clean(text, 1, 32, a, out, 1)
    np.testing.assert_array_equal(out, 14 + np.arange(32) % 6)
    found = tracer.run(text, 1, 32, a, out, 3).findings
    assert {(f.kind, f.line, f.buffer) for f in found} == {("out_of_bounds", tracer.line("here"), "arg0")}
    assert min(f.offset for f in found if f.offset is not None) >= 80


def test_a_structure_that_is_stored_past_the_end(tracer: Tracer) -> None:
    text = """\
struct Own { int values[6]; };
extern "C" __global__ void k(int* out, int at) {
  Own own;
  for (int i = 0; i < 6; ++i) own.values[i] = i + at;
  ((Own*)out)[at] = own;  // here
}"""
    tracer.clean(text, 1, 1, np.zeros(20, np.int32), 2)
    found = tracer.run(text, 1, 1, np.zeros(20, np.int32), 3).findings
    assert {(f.kind, f.line, f.buffer) for f in found} == {("out_of_bounds", tracer.line("here"), "arg0")}


def test_a_library_function_that_copies(tracer: Tracer) -> None:
    """std::copy calls __builtin_memmove in a system header."""
    text = """\
#include <cuda/std/algorithm>
extern "C" __global__ void k(const int* a, int* out) {
  __shared__ int part[96];
  if (threadIdx.x == 0) cuda::std::copy(a, a + 96, part);
  MEET;
  out[threadIdx.x] = part[95 - threadIdx.x];  // reads
}"""
    a, out = np.arange(96).astype("i4"), np.zeros(96, np.int32)
    tracer.clean(text, 1, 96, a, out, MEET="__syncthreads()")
    np.testing.assert_array_equal(out, a[::-1])
    found = tracer.run(text, 1, 96, a, out, MEET="").findings
    assert {(f.kind, f.line) for f in found} == {("shared_race", tracer.line("reads"))}
    found = tracer.run(text, 1, 96, a[:90], out, MEET="__syncthreads()").findings
    assert {f.kind for f in found} == {"out_of_bounds"}


def test_comparing_memory_reads_it(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(const char* a, int* out, int at) {
  char own[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  out[0] = memcmp(a + at, own, 9) == 0;  // here
}"""
    a, out = np.arange(20).astype("u1"), np.zeros(1, np.int32)
    tracer.clean(text, 1, 1, a, out, 1)
    assert out[0] == 1
    found = tracer.run(text, 1, 1, a, out, 14).findings
    assert {(f.kind, f.line, f.buffer) for f in found} == {("out_of_bounds", tracer.line("here"), "arg0")}


def test_a_copy_within_one_array_may_overlap(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(char* a, int n) { memmove(a + 1, a, n - 1); }'
    a = np.arange(50).astype("u1")
    tracer.clean(text, 1, 1, a, 50)
    np.testing.assert_array_equal(a, [0, *range(49)])


def test_a_structure_is_counted_once(tracer: Tracer) -> None:
    """The compiler's instrumentation sees a structure's copy, and no second time the call that carries it out."""
    text = """\
struct Own { float4 values[16]; };
extern "C" __global__ void k(const Own* a, Own* out) { out[threadIdx.x] = a[threadIdx.x]; }"""
    a, out = np.arange(128).astype("f4"), floats(128)
    traffic = tracer.clean(text, 1, 2, a, out).traffic
    np.testing.assert_array_equal(a, out)
    requested = {line.kind: line.bytes for line in traffic.lines}
    assert requested == {"load": 512, "store": 512}
