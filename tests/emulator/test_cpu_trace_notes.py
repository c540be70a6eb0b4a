"""What several threads store alike is a note and no finding; what old warp code took for granted is told as such."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders.on_cpu import Tracer, floats

FLAG = """\
extern "C" __global__ void k(const int* in, int* out) {
  __shared__ int found[2];
  if (threadIdx.x < 2) found[threadIdx.x] = 0;
  __syncthreads();
  if (in[threadIdx.x] > 0) found[0] = VALUE;  // here
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = found[0];
}"""


def test_threads_that_store_one_value_are_a_note(tracer: Tracer) -> None:
    values, out = np.ones(64, np.int32), np.zeros(1, np.int32)
    trace = tracer.clean(FLAG, 1, 64, values, out, VALUE="1")
    (note,) = trace.notes
    assert (note.kind, note.line, note.buffer, note.count) == ("same_value", tracer.line("here"), "found", 63)
    assert "stores the same value at line 5" in note.message and "write by thread (" in note.related[0].message
    trace = tracer.run(FLAG, 1, 64, values, out, VALUE="threadIdx.x")
    assert {f.kind for f in trace.findings} == {"shared_race"} and not trace.notes
    values[1:] = 0
    assert tracer.clean(FLAG, 1, 64, values, out, VALUE="1").notes == ()


def test_blocks_that_raise_one_flag_are_a_note(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(int* out) {
  if (threadIdx.x == 0) out[0] = VALUE;  // here
}"""
    out = np.zeros(1, np.int32)
    (note,) = tracer.clean(text, 5, 32, out, VALUE="1", unwritten=(0,)).notes
    assert note.count == 4 and "block (" in note.message and note.buffer == "arg0"
    assert [f.kind for f in tracer.run(text, 5, 32, out, VALUE="blockIdx.x").findings] == ["block_race"]


@pytest.mark.parametrize("type_", ["float4", "Eight", "Thirty"])
def test_wide_stores_of_one_value_are_a_note_too(tracer: Tracer, type_: str) -> None:
    """A small store elsewhere in the array makes each wide one meet many cells."""
    text = """\
struct Eight { double v[4]; };
struct Thirty { float v[30]; };
extern "C" __global__ void k(float* out) {
  __shared__ __align__(16) char memory[sizeof(TYPE) + 16];
  memory[sizeof(TYPE) + threadIdx.x % 16] = 1;
  TYPE value;
  for (int i = 0; i < sizeof(TYPE) / 4; ++i) reinterpret_cast<float*>(&value)[i] = 1.5f + i + (OTHER ? threadIdx.x : 0);
  *reinterpret_cast<TYPE*>(memory) = value;  // here
  __syncthreads();
  if (threadIdx.x == 0) out[0] = reinterpret_cast<float*>(memory)[2];
}"""
    out = floats(1)
    trace = tracer.clean(text, 1, 32, out, TYPE=type_, OTHER="0")
    assert {note.line for note in trace.notes} == {tracer.line("here"), 5} and out[0] == 3.5
    found = tracer.run(text, 1, 32, out, TYPE=type_, OTHER="1").findings
    assert {f.kind for f in found} == {"shared_race"} and {f.line for f in found} == {tracer.line("here")}


OLD_TAIL = """\
extern "C" __global__ void k(const float* in, float* out) {
  __shared__ float part[64];
  const int t = threadIdx.x;
  part[t] = in[t];
  __syncthreads();
  if (t < 32) {
    KIND float* last = part;
    for (int k = 32; k > 0; k /= 2) {
      const float other = last[t + k & 63];
      MEET;
      last[t] = last[t] + other;  // here
      MEET;
    }
  }
  if (t == 0) out[0] = part[0];
}"""
LOCKSTEP = "so volatile does not suffice"


def test_volatile_words_of_old_warp_code_say_what_has_changed(tracer: Tracer) -> None:
    values, out = np.arange(64, dtype=np.float32), floats(1)
    tracer.clean(OLD_TAIL, 1, 64, values, out, KIND="volatile", MEET="__syncwarp()")
    old = tracer.run(OLD_TAIL, 1, 64, values, out, KIND="volatile", MEET="").findings
    assert {f.kind for f in old} == {"shared_race"} and any(LOCKSTEP in " ".join(f.details) for f in old), old
    plain = tracer.run(OLD_TAIL, 1, 64, values, out, KIND="", MEET="").findings
    assert {f.kind for f in plain} == {"shared_race"} and not any(LOCKSTEP in " ".join(f.details) for f in plain)


def test_volatile_words_are_not_said_of_two_warps(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  __shared__ float part[64];
  volatile float* all = part;
  all[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = part[63 - threadIdx.x];
}"""
    found = tracer.run(text, 1, 64, floats(64), unwritten=(0,)).findings
    assert {f.kind for f in found} == {"shared_race"} and not any(LOCKSTEP in " ".join(f.details) for f in found)
