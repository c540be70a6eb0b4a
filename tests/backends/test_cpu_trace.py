"""Memory checks of traced launches: each wrong kernel is found with kind, line and place, and its right twin is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cpu_kernels import TYPES, cache  # noqa: F401 (a fixture)

from opbench.backends.base import Trace, TraceOptions
from opbench.backends.cpu import CpuBackend
from opbench.catalog.launch import BuildRequest, Dim3, KernelLaunch
from opbench.traffic.findings import Finding


class Tracer:
    """Traces one kernel of CUDA text on NumPy arrays; `// here` and `// there` mark lines that tests name."""

    def __init__(self, folder: Path, backend: CpuBackend) -> None:
        self.folder = folder
        self.backend = backend
        self.text = ""

    def line(self, mark: str) -> int:
        """The line that ends in `// mark`."""
        return next(i for i, line in enumerate(self.text.splitlines(), 1) if line.endswith(f"// {mark}"))

    def run(
        self,
        text: str,
        grid: int | Dim3,
        block: int | Dim3,
        *args: Any,
        shared: int = 0,
        kernel: str = "k",
        unwritten: tuple[int, ...] = (),
        options: TraceOptions = TraceOptions(),  # noqa: B008 (frozen)
        **macros: str,
    ) -> Trace:
        """Trace once; arrays are copied in and out, those at the positions `unwritten` left poisoned."""
        self.text = text
        source = self.folder / "kernel.cu"
        source.write_text(text)
        arrays = {f"arg{i}": a for i, a in enumerate(args) if isinstance(a, np.ndarray)}
        buffers = {key: self.backend.allocate(key, a.shape, TYPES[a.dtype.name]) for key, a in arrays.items()}
        for i, (key, array) in enumerate(arrays.items()):
            if i not in unwritten:
                buffers[key].write(array)
        launch_args = tuple(f"arg{i}" if f"arg{i}" in arrays else value for i, value in enumerate(args))
        launch = KernelLaunch(kernel, _three(grid), _three(block), shared, launch_args)
        request = BuildRequest(source, (kernel,), tuple(macros.items()))
        trace = self.backend.trace(request, [launch], buffers, options)
        for key, array in arrays.items():
            array[...] = buffers[key].read()
        self.backend.free(buffers)
        return trace

    def only(self, *args: Any, **kwargs: Any) -> Finding:
        """Trace, and return the one finding."""
        found = self.run(*args, **kwargs).findings
        assert len(found) == 1, found
        return found[0]

    def clean(self, *args: Any, **kwargs: Any) -> Trace:
        """Trace, and demand that nothing is found."""
        trace = self.run(*args, **kwargs)
        assert trace.findings == ()
        assert trace.completed
        return trace


def _three(size: int | Dim3) -> Dim3:
    return (size, 1, 1) if isinstance(size, int) else size


@pytest.fixture
def tracer(tmp_path: Path, cache: Path) -> Tracer:  # noqa: F811
    return Tracer(tmp_path, CpuBackend(cache))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


# ---- bounds

ADD = """\
extern "C" __global__ void k(const float* a, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i];  // here
}"""


def test_reading_one_past_the_end(tracer: Tracer) -> None:
    tracer.clean(ADD, 2, 64, floats(100), floats(100), 100)
    found = tracer.only(ADD, 2, 64, floats(99), floats(100), 100)
    assert (found.kind, found.line, found.kernel) == ("out_of_bounds", tracer.line("here"), "k")
    assert (found.block, found.thread, found.buffer, found.offset) == ((1, 0, 0), (35, 0, 0), "arg0", 4 * 99)
    assert found.message == "reads 4 bytes at byte 396 of buffer 'arg0', which has 396"
    assert Path(found.file).name == "kernel.cu"


def test_writing_outside_at_both_ends(tracer: Tracer) -> None:
    text = 'extern "C" __global__ void k(float* out, int i) {\n  out[i] = 1.0f;  // here\n}'
    for index in (-1, -100, 7, 5000):
        found = tracer.only(text, 1, 1, floats(7), index)
        assert (found.kind, found.line, found.offset) == ("out_of_bounds", 2, 4 * index)
        assert found.message.startswith("writes 4 bytes at byte")


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
    assert f"writes 4 bytes at byte 128 of shared array '{array}', which has 128" in found.message


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
    where = "shared array 'tile'" if array == "tile" else "the dynamic shared array 'extern __shared__'"
    assert found.message == f"writes 4 bytes at byte {offset} of {where}, which has 256"
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
    assert found.message == "reads 4 bytes at byte 20 of variable 'table', which has 20"


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

UNINITIALISED = """\
extern "C" __global__ void k(float* out, int n) {
  __shared__ float tile[64];
  if (threadIdx.x < n) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x];  // here
}"""


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
    assert f"at line {tracer.line('write')}, which" in first.message
    assert f"at line {tracer.line('read')} with no" in first.message
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
    assert any(f"at line {tracer.line('read')}" in f.message for f in found)
    assert any("with no __syncwarp() or __syncthreads() between" in f.message for f in found)
    assert tracer.line("write") in {f.line for f in found}


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
    assert f"0, 0) at line {tracer.line('copy')} may still be filling; that thread has not waited" in found.message


def test_copies_of_one_block_are_none_of_the_next(tracer: Tracer) -> None:
    found = tracer.run(COPY, 3, 64, floats(512), floats(512), WAIT="", BARRIER="__syncthreads();").findings
    kinds = {f.kind for f in found}
    assert kinds == {"unfinished_copy", "block_race"}


# ---- races between blocks


def test_blocks_that_write_one_location(tracer: Tracer) -> None:
    text = """\
extern "C" __global__ void k(float* out, int apart) {
  out[blockIdx.x * apart + threadIdx.x] = 1.0f;  // here
}"""
    tracer.clean(text, 3, 32, floats(96), 32, unwritten=(0,))
    found = tracer.only(text, 3, 32, floats(96), 31)
    line = tracer.line("here")
    assert (found.kind, found.line, found.block, found.offset) == ("block_race", line, (1, 0, 0), 124)
    assert f"at line {line}, which block (0, 0, 0) writes at line {line}; nothing orders" in found.message
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
    assert f"block (0, 0, 0) reads at line {tracer.line('read')}" in found.message


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


# ---- the rest


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
