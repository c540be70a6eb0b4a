"""Kernels that do wrong: the process survives, and a finding says what happened where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbench.backend.findings import Finding
from opbench.errors import EnvironmentFault, LaunchError
from opbench.kernels.launch import KernelLaunch
from support.builders.on_cpu import Bench
from support.checks.errors import Refusal, refuses, refuses_name


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_far_out_of_bounds(bench: Bench) -> None:
    text = """\
extern "C" __global__ void far(float* a, float* out, int n) {
  const long long i = threadIdx.x;
  if (blockIdx.x == 1 && i == 5)
    out[i + n] = 1.0f;
  a[i] = 2.0f;
}"""
    a, out = np.zeros(32, np.float32), np.zeros(32, np.float32)
    bench.run(text, "far", (2, 1, 1), (32, 1, 1), a, out, 50_000)
    found = only(bench.findings)
    assert (found.kind, found.buffer, found.kernel) == ("out_of_bounds", "arg1", "far")
    assert found.offset == 4 * 50_005
    assert (found.block, found.thread) == ((1, 0, 0), (5, 0, 0))
    assert "byte 200020 of buffer 'arg1'" in found.message
    assert (Path(found.file).name, found.line) == ("kernel.cu", 4)
    bench.check(text, "far", (1, 1, 1), (32, 1, 1), a, out, 0)


def test_an_address_from_nowhere(bench: Bench) -> None:
    text = 'extern "C" __global__ void far(float* a) { a[3LL << 40] = 1.0f; }'
    bench.run(text, "far", (1, 1, 1), (1, 1, 1), np.zeros(1, np.float32))
    found = only(bench.findings)
    assert (found.kind, found.buffer, found.offset) == ("out_of_bounds", "", None)


@pytest.mark.parametrize(("index", "offset"), [(-1, -1), (-3000, -11997), (7, 28), (5000, 20000)])
def test_near_out_of_bounds_damages_the_guards(bench: Bench, index: int, offset: int) -> None:
    text = 'extern "C" __global__ void near(float* out, int i) { out[i] = 0.0f; }'
    bench.run(text, "near", (1, 1, 1), (1, 1, 1), np.zeros(7, np.float32), index)
    assert bench.findings == []
    assert bench.damage == {"arg0": offset}


def test_damage_names_the_nearest_byte(bench: Bench) -> None:
    buffer = bench.backend.allocate("odd", (3,), "u8")
    assert buffer.changed_guard_offset() is None
    assert buffer.read().tolist() == [255, 255, 255]
    buffer._all[(64 << 10) + 3 + 2] ^= 1  # type: ignore[attr-defined]
    assert buffer.changed_guard_offset() == 5
    buffer._all[(64 << 10) - 2] ^= 1  # type: ignore[attr-defined]
    assert buffer.changed_guard_offset() == -2
    bench.backend.free({"odd": buffer})


def test_a_divergent_barrier_within_a_warp(bench: Bench) -> None:
    text = """\
extern "C" __global__ void split(float* out) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
  out[threadIdx.x] = 1.0f;
}"""
    bench.run(text, "split", (1, 1, 1), (32, 1, 1), np.zeros(32, np.float32))
    found = only(bench.findings)
    assert (found.kind, found.line, Path(found.file).name) == ("divergent_barrier", 5, "kernel.cu")
    assert "lines 3 and 5" in found.message


def test_warps_may_wait_at_different_barriers(bench: Bench) -> None:
    text = """
    extern "C" __global__ void roles(float* out) {
      if (threadIdx.x < 32) { __syncthreads(); out[threadIdx.x] = 1.0f; }
      else { out[threadIdx.x] = 2.0f; __syncthreads(); }
    }"""
    out = np.zeros(64, np.float32)
    bench.check(text, "roles", (1, 1, 1), (64, 1, 1), out)
    assert out.tolist() == [1.0] * 32 + [2.0] * 32


def test_a_barrier_does_not_wait_for_threads_that_left(bench: Bench) -> None:
    """Lanes of waiting warps, and whole warps; before the others arrive, and after."""
    text = """
    extern "C" __global__ void leave(float* out, int n) {
      __shared__ float kept[96];
      const int t = threadIdx.x;
      if (t >= n && t % 2) return;
      kept[t] = t;
      if (t < n) { __syncthreads(); out[t] = kept[n - 1 - t]; }
    }"""
    for n in (20, 32, 50, 96):
        out = np.zeros(96, np.float32)
        bench.check(text, "leave", (1, 1, 1), (96, 1, 1), out, n)
        assert out[:n].tolist() == list(range(n - 1, -1, -1))


def test_barriers_with_and_without_a_result_do_not_meet(bench: Bench) -> None:
    text = """\
extern "C" __global__ void kinds(int* out) {
  if (threadIdx.x < 32)
    out[threadIdx.x] = FIRST(1);
  else
    out[threadIdx.x] = __syncthreads_or(1);
}"""
    out = np.zeros(64, np.int32)
    bench.check(text, "kinds", (1, 1, 1), (64, 1, 1), out, FIRST="__syncthreads_or")
    bench.run(text, "kinds", (1, 1, 1), (64, 1, 1), out, FIRST="__syncthreads_count")
    found = only(bench.findings)
    assert (found.kind, found.line, found.count) == ("divergent_barrier", 5, 32)
    assert found.message == "threads wait for different results at the barriers of lines 3 and 5"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("o[t] = __shfl_sync(0xfffffffe, t, 1);", ("__shfl_sync", "0xfffffffe lacks the calling lane", "0")),
        (
            "if (t < 16) o[t] = __shfl_up_sync(~0u, t, 1); else __syncthreads();",
            ("__shfl_up_sync", "0xffffffff", "lanes 16-31", "block barrier"),
        ),
        (
            "if (t < 16) o[t] = __any_sync(~0u, 1); else __syncwarp();",
            ("0xffffffff", "different warp operations", "__any_sync in lanes 0-15", "__syncwarp in lane 16"),
        ),
        (
            "if (t >= 16) return; o[t] = __shfl_down_sync(~0u, t, 8);",
            ("__shfl_down_sync", "0xffffffff", "lane 8 reads lane 16", "lanes 16-31 exited"),
        ),
    ],
)
def test_wrong_masks(bench: Bench, body: str, parts: tuple[str, ...]) -> None:
    text = f'extern "C" __global__ void mask(int* o) {{\n  const int t = threadIdx.x;\n  {body}\n}}'
    bench.run(text, "mask", (1, 1, 1), (32, 1, 1), np.zeros(32, np.int32))
    found = bench.findings[0]
    assert (found.kind, found.line) == ("warp_mask", 3)
    assert all(part in found.message for part in parts)


def test_exited_lanes_may_be_named_in_a_mask(bench: Bench) -> None:
    text = """
    extern "C" __global__ void early(int* out, int n) {
      if (threadIdx.x >= n) return;
      __syncwarp();
      out[threadIdx.x] = __ballot_sync(~0u, 1);
    }"""
    out = np.zeros(32, np.int32)
    bench.check(text, "early", (1, 1, 1), (32, 1, 1), out, 20)
    assert out[0] == (1 << 20) - 1


def test_a_deadlock_ends(bench: Bench) -> None:
    text = """\
extern "C" __global__ void stuck(int* out) {
  if (threadIdx.x == 0)
    out[0] = __shfl_sync(0x3, 1, 0);
  else if (threadIdx.x == 1)
    out[1] = __shfl_sync(0x7, 1, 0);
  else
    __syncthreads();
}"""
    bench.run(text, "stuck", (1, 1, 1), (32, 1, 1), np.zeros(32, np.int32))
    found = only(bench.findings)
    assert (found.kind, found.message) == ("deadlock", "every live thread of the block waits")
    assert found.line == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (threadIdx.x == 9) __trap();", "__trap()"),
        ("assert(threadIdx.x != 9);", "assertion failed: threadIdx.x != 9"),
    ],
)
def test_traps_and_assertions(bench: Bench, body: str, message: str) -> None:
    text = f'extern "C" __global__ void trap(int* out) {{\n  {body}\n  out[threadIdx.x] = 1;\n}}'
    out = np.zeros(32, np.int32)
    bench.run(text, "trap", (1, 1, 1), (32, 1, 1), out)
    found = only(bench.findings)
    assert (found.kind, found.message, found.line, found.thread) == ("trap", message, 2, (9, 0, 0))
    assert out.sum() == 9


def test_integer_division_by_zero(bench: Bench) -> None:
    text = 'extern "C" __global__ void divide(int* out, int n) { out[threadIdx.x] = 100 / ((int)threadIdx.x - n); }'
    bench.run(text, "divide", (1, 1, 1), (32, 1, 1), np.zeros(32, np.int32), 3)
    found = only(bench.findings)
    assert (found.kind, found.thread) == ("trap", (3, 0, 0))
    assert "division by zero" in found.message


def test_stack_overflow(bench: Bench) -> None:
    text = """
    __device__ __noinline__ int deep(int n) {
      volatile int kept[256];
      kept[n % 256] = n;
      return n == 0 ? 0 : deep(n - 1) + kept[n % 256];
    }
    extern "C" __global__ void recurse(int* out, int n) { __syncthreads(); out[threadIdx.x] = deep(n); }"""
    out = np.zeros(32, np.int32)
    bench.run(text, "recurse", (1, 1, 1), (32, 1, 1), out, 100_000)
    assert only(bench.findings).kind == "stack_overflow"
    bench.check(text, "recurse", (1, 1, 1), (32, 1, 1), out, 100)


def test_writing_behind_the_dynamic_shared_array(bench: Bench) -> None:
    text = """
    extern "C" __global__ void overrun(float* out) {
      extern __shared__ float kept[];
      kept[threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = kept[31 - threadIdx.x];
    }"""
    bench.run(text, "overrun", (1, 1, 1), (32, 1, 1), np.zeros(32, np.float32), shared=64)
    found = only(bench.findings)
    assert found.kind == "out_of_bounds"
    assert "byte 64" in found.message


def test_an_abandoned_launch_ends_the_sequence(bench: Bench) -> None:
    text = """
    extern "C" __global__ void bad(int* a) { __trap(); }
    extern "C" __global__ void good(int* a) { a[0] = 1; }"""
    program = bench.backend.load(bench.request(text, "bad", "good"))
    buffers = {"a": bench.backend.allocate("a", (1,), "i32")}
    clear = KernelLaunch("", (1, 1, 1), (1, 1, 1), 0, (), zero="a")
    steps = [KernelLaunch(name, (1, 1, 1), (1, 1, 1), 0, ("a",)) for name in ("good", "bad", "good")]
    program.bind([steps[0]], buffers)()
    assert buffers["a"].read()[0] == 1
    program.bind([clear, steps[1], steps[2]], buffers)()
    assert buffers["a"].read()[0] == 0
    assert [found.kind for found in bench.backend.synchronize()] == ["trap"]
    assert bench.backend.synchronize() == []


@pytest.mark.parametrize(
    ("grid", "block", "shared", "refusal"),
    [
        ((1, 1, 1), (2048, 1, 1), 0, Refusal("launch-limit", "block", value=2048, allowed=1024)),
        ((1, 1, 1), (1, 1, 65), 0, Refusal("launch-limit", "block.z", value=65, allowed=64)),
        ((1, 65536, 1), (1, 1, 1), 0, Refusal("launch-limit", "grid.y", value=65536, allowed=65535)),
        ((1, 1, 65536), (1, 1, 1), 0, Refusal("launch-limit", "grid.z", value=65536, allowed=65535)),
        ((2**31, 1, 1), (1, 1, 1), 0, Refusal("launch-limit", "grid.x", value=2**31, allowed=2**31 - 1)),
        ((0, 1, 1), (1, 1, 1), 0, Refusal("launch-limit", "grid", value=(0, 1, 1), allowed=1)),
        ((1, 1, 1), (0, 1, 1), 0, Refusal("launch-limit", "block", value=(0, 1, 1), allowed=1)),
        ((1, 1, 1), (1, 1, 1), 232449, Refusal("launch-limit", "shared", value=232449, allowed=232448)),
    ],
)
def test_launch_limits(
    bench: Bench, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, refusal: Refusal
) -> None:
    with refuses(refusal, error=LaunchError):
        bench.run('extern "C" __global__ void none() {}', "none", grid, block, shared=shared)


def test_the_largest_launch_runs(bench: Bench) -> None:
    text = """
    extern "C" __global__ void full(int* out) {
      extern __shared__ int kept[];
      kept[58111 - threadIdx.x] = threadIdx.x;
      __syncthreads();
      out[threadIdx.x] = kept[58111 - (threadIdx.x ^ 1)];
    }"""
    out = np.zeros(1024, np.int32)
    bench.check(text, "full", (1, 1, 1), (1024, 1, 1), out, shared=227 << 10)
    assert out.tolist() == [i ^ 1 for i in range(1024)]


def test_wrong_arguments(bench: Bench) -> None:
    text = 'extern "C" __global__ void three(float* a, int n, float scale) {}'
    a = np.zeros(1, np.float32)
    with refuses("argument-count", "three", value=2, allowed=3, error=LaunchError):
        bench.run(text, "three", (1, 1, 1), (1, 1, 1), a, 5)
    with refuses("argument-type", "three", value=(3, "int"), allowed="float", error=LaunchError):
        bench.run(text, "three", (1, 1, 1), (1, 1, 1), a, 5, 7)
    wide = 'extern "C" __global__ void wide(long long n, double scale) {}'
    with refuses("argument-type", "wide", value=(2, "int"), allowed="double", error=LaunchError):
        bench.run(wide, "wide", (1, 1, 1), (1, 1, 1), 7, 7)
    with refuses_name("buffer", "b", error=LaunchError):
        program = bench.backend.load(bench.request(text, "three"))
        program.bind([KernelLaunch("three", (1, 1, 1), (1, 1, 1), 0, ("b", 1, 1.0))], {})


def test_buffers_refuse_what_they_cannot_hold(bench: Bench) -> None:
    with pytest.raises(EnvironmentFault, match=r"buffer 'huge' .* needs 4503599.63 GB of memory"):
        bench.backend.allocate("huge", (1 << 50,), "f32")
    with refuses_name("dtype", "f8"):
        bench.backend.allocate("odd", (1,), "f8")
    buffer = bench.backend.allocate("small", (2, 3), "f16")
    with pytest.raises(ValueError, match=r"holds float16\[2, 3\], not float32\[6\]"):
        buffer.write(np.zeros(6, np.float32))
    assert np.isnan(buffer.read()).all()
    bench.backend.free({"small": buffer})


def test_unknown_orders_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBENCH_CPU_ORDER", "sideways")
    with refuses("not-allowed", "OPBENCH_CPU_ORDER", value="sideways"):
        bench.run('extern "C" __global__ void none() {}', "none", (1, 1, 1), (1, 1, 1))


@pytest.mark.parametrize(("more", "given"), [(232, True), (240, False)])
def test_warpgroups_share_the_registers_of_the_launch(bench: Bench, more: int, given: bool) -> None:
    """384 threads get 168 registers each, the largest multiple of 8 that fits: 64512 and not 65536."""
    text = f"""\
extern "C" __global__ void k(int* out) {{
  if (threadIdx.x < 128) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  }} else {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 {more};");
  }}
  out[threadIdx.x] = 1;
}}
"""
    out = bench.backend.allocate("out", (384,), "i32")
    found = bench.backend.trace(
        bench.request(text, "k"), [KernelLaunch("k", (1, 1, 1), (384, 1, 1), 0, ("out",))], {"out": out}
    ).findings
    assert [one.kind for one in found] == ([] if given else ["deadlock"])
