"""Traced launches that reach outside their memory or read what nobody wrote; their right twins are clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.kernels.launch import BuildRequest, KernelLaunch
from support.builders.on_cpu import ADD, UNINITIALISED, Tracer, floats

# ---- bounds


def test_reading_one_past_the_end(tracer: Tracer) -> None:
    tracer.clean(ADD, 2, 64, floats(100), floats(100), 100)
    found = tracer.only(ADD, 2, 64, floats(99), floats(100), 100)
    assert (found.kind, found.line, found.kernel) == ("out_of_bounds", tracer.line("here"), "k")
    assert (found.block, found.thread, found.buffer, found.offset) == ((1, 0, 0), (35, 0, 0), "arg0", 4 * 99)
    assert found.message == "read of 4 bytes at byte 396 of buffer 'arg0', which has 396 bytes"
    assert Path(found.file).name == "kernel.cu"


def test_writing_outside_at_both_ends(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* out, int i) {\n  out[i] = 1.0f;  // here\n}'
    for index in (-1, -100, 7, 5000):
        found = tracer.only(text, 1, 1, floats(7), index)
        assert (found.kind, found.line, found.offset) == ("out_of_bounds", 2, 4 * index)
        assert found.message.startswith("write of 4 bytes at byte")


def test_the_second_half_of_a_vector_outside(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(const float2* a, float* out) { out[0] = a[1].x + a[1].y; }'
    assert tracer.run(text, 1, 1, floats(3), floats(1)).findings[0].offset in (8, 12)


def test_far_outside_stops_before_it_happens(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* out) { out[3LL << 40] = 1.0f; out[0] = 2.0f; }'
    out = floats(1)
    trace = tracer.run(text, 1, 1, out)
    assert [f.kind for f in trace.findings] == ["out_of_bounds"]
    assert not trace.completed
    assert not trace.traffic.complete
    assert out[0] == 0


def test_dynamic_shared_memory_too_small(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  extern __shared__ float kept[];
  kept[threadIdx.x] = threadIdx.x;  // here
  __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x / 2];
}"""
    tracer.clean(text, 1, 64, floats(64), shared=256)
    found = tracer.only(text, 1, 64, floats(64), shared=252)
    assert (found.kind, found.line, found.offset) == ("out_of_bounds", tracer.line("here"), 252)
    assert "dynamic shared" in found.message


@pytest.mark.parametrize("array", ["first", "second"])
def test_past_a_static_shared_array_is_not_the_next_one(tracer: Tracer, array: str) -> None:
    text = """\
template <int Size> __device__ void work(float* out, int over) {
  __shared__ float first[Size];
  __shared__ float second[Size];
  first[threadIdx.x] = second[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 3) ARRAY[Size - 1 + over] = 2.0f;  // here
  __syncthreads();
  out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}
extern "C" __global__ void k(float* out, int over) { work<32>(out, over); }"""
    tracer.clean(text, 1, 32, floats(32), 0, ARRAY=array)
    found = tracer.only(text, 1, 32, floats(32), 1, ARRAY=array)
    assert (found.kind, found.line, found.buffer, found.offset) == ("out_of_bounds", tracer.line("here"), array, 128)
    assert f"write of 4 bytes at byte 128 of shared array '{array}', which has 128" in found.message


@pytest.mark.parametrize(("index", "offset"), [(-1, -4), (-40, -160), (64, 256), (100, 400)])
@pytest.mark.parametrize("array", ["kept", "tile"])
def test_outside_of_a_shared_array_at_both_ends(tracer: Tracer, array: str, index: int, offset: int) -> None:
    text = """\
extern "C" __global__ void k(float* out, int i) {
  extern __shared__ float kept[];
  __shared__ float tile[64];
  tile[threadIdx.x] = kept[threadIdx.x] = 1.0f;
  ARRAY[i] = 2.0f;  // here
  out[threadIdx.x] = tile[threadIdx.x] + kept[threadIdx.x];
}"""
    found = tracer.only(text, 1, 1, floats(64), index, shared=256, ARRAY=array)
    where = "shared array 'tile'" if array == "tile" else "the dynamic shared array"
    assert found.message == f"write of 4 bytes at byte {offset} of {where}, which has 256 bytes"
    assert (found.kind, found.line, found.offset) == ("out_of_bounds", tracer.line("here"), offset)


@pytest.mark.parametrize(("space", "first"), [("__device__", ""), ("__constant__", ""), ("__device__", " = {1.0f}")])
def test_outside_of_a_variable(tracer: Tracer, space: str, first: str) -> None:
    text = """\
SPACE float last[3], table[5]FIRST, other[4];
extern "C" __global__ void k(float* out, int i) {
  out[threadIdx.x] = table[i] + last[0] + other[0];  // here
  if (i > 9) table[i] = last[i] = other[i] = 1.0f;
}""".replace("SPACE", space).replace("FIRST", first)
    trace = tracer.clean(text, 1, 1, floats(1), 4)
    assert {t.space for t in trace.traffic.lines} == {"global"}
    assert trace.traffic.select(kind="load") == []  # said in Tracing: variables are checked, not counted
    found = tracer.only(text, 1, 1, floats(1), 5)
    assert (found.kind, found.line, found.buffer, found.offset) == ("out_of_bounds", tracer.line("here"), "table", 20)
    assert found.message == "read of 4 bytes at byte 20 of variable 'table', which has 20 bytes"


def test_a_race_explains_what_nobody_wrote_yet(tracer: Tracer) -> None:
    """The first thread reads before the others have written: one mistake, named by its cause."""
    text = """\
extern "C" __global__ void k(float* out) {
  __shared__ float tile[64], alone[64];
  tile[threadIdx.x] = 1.0f;
  if (threadIdx.x < 8) alone[threadIdx.x] = 1.0f;
  BARRIER
  out[threadIdx.x] = tile[63 - threadIdx.x];
  out[threadIdx.x] += alone[threadIdx.x];
}"""
    alone = [("uninitialised_shared", 7)]
    found = [(f.kind, f.line) for f in tracer.run(text, 1, 64, floats(64), BARRIER="").findings]
    assert found[-1:] == alone and set(found[:-1]) == {("shared_race", 3), ("shared_race", 6)}
    found = [(f.kind, f.line) for f in tracer.run(text, 1, 64, floats(64), BARRIER="__syncthreads();").findings]
    assert found == alone


# ---- never written


def test_shared_memory_that_nobody_wrote(tracer: Tracer) -> None:
    tracer.clean(UNINITIALISED, 2, 64, floats(128), 64)
    found = tracer.only(UNINITIALISED, 2, 64, floats(128), 63)
    assert (found.kind, found.line, found.thread) == ("uninitialised_shared", tracer.line("here"), (63, 0, 0))
    assert (found.buffer, found.offset, found.count) == ("tile", 252, 2)


def test_shared_memory_that_no_line_writes(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  __shared__ float tile[32];
  out[threadIdx.x] = tile[threadIdx.x];
}"""
    found = tracer.only(text, 1, 32, floats(32))
    assert (found.kind, found.line, found.count) == ("uninitialised_shared", 3, 32)


def test_another_blocks_shared_memory_counts_as_never_written(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out) {
  __shared__ float kept;
  if (blockIdx.x == 0) kept = 1.0f;
  __syncwarp();
  out[blockIdx.x] = kept;
}"""
    found = tracer.only(text, 2, 1, floats(2))
    assert (found.kind, found.block) == ("uninitialised_shared", (1, 0, 0))


def test_reading_an_output_before_writing_it(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* out) {\n  out[threadIdx.x] += 1.0f;\n}'
    tracer.clean(text, 1, 32, floats(32))
    found = tracer.only(text, 1, 32, floats(32), unwritten=(0,))
    assert (found.kind, found.line, found.buffer, found.offset) == ("uninitialised_global", 2, "arg0", 0)
    assert found.count == 32


def test_a_workspace_that_an_earlier_kernel_wrote(tracer: Tracer) -> None:
    source = tracer.folder / "two.cu"
    source.write_text(
        'extern "C" __global__ void first(float* part) { part[threadIdx.x] = 1.0f; }\n'
        'extern "C" __global__ void second(const float* part, float* out) { out[threadIdx.x] = part[threadIdx.x]; }\n'
    )
    request = BuildRequest(source, ("first", "second"))
    backend = tracer.backend
    buffers = {name: backend.allocate(name, (32,), "f32") for name in ("part", "out")}
    first = KernelLaunch("first", (1, 1, 1), (32, 1, 1), 0, ("part",))
    second = KernelLaunch("second", (1, 1, 1), (32, 1, 1), 0, ("part", "out"))
    alone = backend.trace(request, [second], buffers)
    assert [(f.kind, f.kernel, f.buffer) for f in alone.findings] == [("uninitialised_global", "second", "part")]
    for buffer in buffers.values():
        buffer.poison()
    assert backend.trace(request, [first, second], buffers).findings == ()
    for buffer in buffers.values():
        buffer.poison()
    cleared = KernelLaunch("", (1, 1, 1), (1, 1, 1), 0, (), zero="part")
    assert backend.trace(request, [cleared, second], buffers).findings == ()
    backend.free(buffers)
