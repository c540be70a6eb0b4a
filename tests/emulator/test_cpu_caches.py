"""The model of a GPU's caches, on kernels whose misses are known by counting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import TraceOptions
from opbench.backend.counts import CacheTraffic
from opbench.emulator import CpuBackend
from opbench.gpu.limits.products import PRODUCTS
from opbench.kernels.launch import BuildRequest, KernelLaunch

KERNELS = """
extern "C" __global__ void copy(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];
}
extern "C" __global__ void reread(const float* x, float* y, int n) {
  float sum = 0;
  for (int round = 0; round < 4; ++round)
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void around(const float* x, float* y, int n) {
  float sum = 0;
  for (int round = 0; round < 4; ++round)
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __ldcg(x + i);
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void column(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i * 8];
}
extern "C" __global__ void total(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(y, x[i]);
}
"""
NAMES = ("copy", "reread", "around", "column", "total")
LIMITS = replace(PRODUCTS["h200"].limits, sm_count=4, l2_bytes=1 << 20)
SECTOR = 32

Trace = Callable[..., list[CacheTraffic]]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Trace:
    """Runs launches of (kernel, grid, block, x, y, n) on arrays of some sizes and returns their caches' traffic."""
    folder = tmp_path_factory.mktemp("caches")
    source = folder / "caches.cu"
    source.write_text(KERNELS)
    request = BuildRequest(source, NAMES)
    backend = CpuBackend(cache, workers=1)

    def run(sizes: dict[str, int], *steps: tuple[object, ...], limits: object = LIMITS) -> list[CacheTraffic]:
        buffers = {name: backend.allocate(name, (size,), "f32") for name, size in sizes.items()}
        for buffer in buffers.values():
            buffer.write(np.zeros(buffer.shape, np.float32))
        launches = [
            KernelLaunch(str(kernel), (int(grid), 1, 1), (int(block), 1, 1), 0, tuple(args))  # type: ignore[arg-type, call-overload]
            for kernel, grid, block, *args in steps
        ]
        found = backend.trace(request, launches, buffers, TraceOptions(limits=limits))  # type: ignore[arg-type]
        backend.free(buffers)
        assert found.completed and not found.findings
        return [kernel.caches for kernel in found.traffic.kernels if kernel.caches]

    return run


def test_a_copy_reads_each_sector_once(trace: Trace) -> None:
    n = 8192
    (found,) = trace({"x": n, "y": n}, ("copy", n // 256, 256, "x", "y", n))
    assert found == CacheTraffic(l2_loads=n * 4 // SECTOR, l2_stores=n * 4 // SECTOR, dram_loads=n * 4 // SECTOR)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1021])
def test_a_sector_begun_is_a_sector_moved(trace: Trace, n: int) -> None:
    (found,) = trace({"x": n, "y": n}, ("copy", 1, 1024, "x", "y", n))
    assert found.dram_loads == found.l2_stores == -(-n * 4 // SECTOR)


def test_what_fits_into_l1_is_fetched_once_per_multiprocessor(trace: Trace) -> None:
    n, blocks = 4096, 8
    (found,) = trace({"x": n, "y": blocks * 256}, ("reread", blocks, 256, "x", "y", n))
    assert found.l2_loads == 4 * n * 4 // SECTOR
    assert found.dram_loads == n * 4 // SECTOR


def test_loads_around_l1_reach_l2_each_time(trace: Trace) -> None:
    n, blocks = 4096, 8
    (found,) = trace({"x": n, "y": blocks * 256}, ("around", blocks, 256, "x", "y", n))
    assert found.l2_loads == 4 * blocks * n * 4 // SECTOR
    assert found.dram_loads == n * 4 // SECTOR


def test_what_exceeds_l1_comes_again_each_round(trace: Trace) -> None:
    n = 1 << 17  # 512 KiB: twice the L1 cache, half of the L2
    (found,) = trace({"x": n, "y": 256}, ("reread", 1, 256, "x", "y", n))
    assert found.l2_loads > 0.9 * 4 * n * 4 // SECTOR
    assert found.dram_loads == n * 4 // SECTOR


def test_what_exceeds_l2_comes_again_and_pushes_written_lines_out(trace: Trace) -> None:
    n = 1 << 20  # 4 MiB into an L2 of 1 MiB
    first, second = trace({"x": n, "y": n}, ("copy", 64, 256, "x", "y", n), ("copy", 64, 256, "x", "y", n))[:1] + trace(
        {"x": n, "y": n}, ("copy", 64, 256, "x", "y", n)
    )
    whole = n * 4 // SECTOR
    assert first.dram_loads > 1.9 * whole, "two launches: next to nothing of the first is left for the second"
    assert second.dram_loads == whole
    # About half of a full L2 is what was read, so half of its 1 MiB stays unwritten at the end.
    assert second.dram_stores == pytest.approx(whole - LIMITS.l2_bytes / 2 / SECTOR, rel=0.05)


def test_a_second_launch_finds_what_the_first_left_in_l2_but_not_in_l1(trace: Trace) -> None:
    n = 4096
    step = ("copy", 16, 256, "x", "y", n)
    (found,) = trace({"x": n, "y": n}, step, step)
    sectors = n * 4 // SECTOR
    assert found.l2_loads == 2 * sectors and found.dram_loads == sectors and found.carried == sectors


def test_strided_reads_move_whole_sectors_and_atomics_go_to_l2(trace: Trace) -> None:
    n = 1024
    (strided,) = trace({"x": 8 * n, "y": n}, ("column", 4, 256, "x", "y", n))
    assert strided.dram_loads == n
    (total,) = trace({"x": n, "y": 1}, ("total", 4, 256, "x", "y", n))
    assert total.l2_atomics == n // 32  # one sector a warp
    assert total.dram_loads == n * 4 // SECTOR + 1


def test_without_a_gpu_nothing_is_modelled(trace: Trace) -> None:
    assert trace({"x": 64, "y": 64}, ("copy", 1, 64, "x", "y", 64), limits=None) == []


@pytest.mark.parametrize(
    ("shared", "resident", "left"),
    [(0, 8, 256), (4096, 2, 256 - 16), (48 * 1024, 4, 256 - 196), (100 * 1024, 2, 256 - 228)],
)
def test_shared_memory_takes_from_l1(shared: int, resident: int, left: int) -> None:
    assert PRODUCTS["h200"].limits.l1_size(shared, resident) == left * 1024
