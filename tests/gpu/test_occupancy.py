"""Occupancy against NVIDIA's own examples and against sums that fit in a comment."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.gpu.limits.occupancy import occupancy
from opbench.gpu.limits.products import PRODUCTS

H200, A100, RTX_3090, RTX_4090 = (PRODUCTS[name].limits for name in ("h200", "a100", "rtx3090", "rtx4090"))


@pytest.mark.parametrize(("threads", "blocks", "fraction"), [(128, 12, 0.75), (320, 4, 0.625)])
def test_example_of_the_best_practices_guide(threads: int, blocks: int, fraction: float) -> None:
    # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers give 75 % with blocks of 128 threads and 63 %
    # with blocks of 320, on multiprocessors with 65,536 registers and 2048 threads.
    found = occupancy(A100, 37, 0, threads, 1)
    assert (found.blocks_per_sm, found.occupancy, found.limiter) == (blocks, fraction, "registers")


def test_thirty_two_registers_fill_the_multiprocessor() -> None:
    found = occupancy(H200, 32, 0, 256, 132 * 8)
    assert (found.blocks_per_sm, found.warps_per_sm, found.occupancy) == (8, 64, 1.0)
    assert (found.waves, found.tail) == (1.0, 0.0)
    assert found.limiter == "registers and warps"


def test_shared_memory_limits() -> None:
    # (100 + 1) KiB twice is 202 of 228 KiB.
    found = occupancy(H200, 32, 100 * 1024, 256, 1)
    assert (found.blocks_per_sm, found.limiter) == (2, "shared memory")
    # 16 KiB + 1 KiB goes 13 times into 228 KiB.
    assert occupancy(H200, 16, 16 * 1024, 64, 1).blocks_per_sm == 13
    # All that one block may have leaves room for no other; one byte more cannot be launched.
    assert occupancy(H200, 32, 227 * 1024, 256, 1).blocks_per_sm == 1
    assert occupancy(H200, 32, 227 * 1024 + 1, 256, 1).blocks_per_sm == 0


@pytest.mark.parametrize(("limits", "blocks"), [(A100, 32), (RTX_3090, 16), (RTX_4090, 24), (H200, 32)])
def test_small_blocks_run_into_the_number_of_blocks(limits: object, blocks: int) -> None:
    found = occupancy(limits, 16, 0, 32, 1)  # type: ignore[arg-type]
    assert (found.blocks_per_sm, found.limiter) == (blocks, "blocks")


def test_large_blocks_leave_a_third_empty_where_1536_threads_fit() -> None:
    found = occupancy(RTX_3090, 32, 0, 1024, 1)
    assert found.blocks_per_sm == 1 and found.occupancy == pytest.approx(2 / 3)
    assert found.limiter == "warps"


def test_most_registers() -> None:
    # 255 registers take 8192 of a partition's 16384 per warp: two warps each, eight in all.
    found = occupancy(H200, 255, 0, 256, 1)
    assert (found.blocks_per_sm, found.warps_per_sm) == (1, 8)


def test_waves_and_tail() -> None:
    # 8 resident blocks on each of 132 multiprocessors: 1056 at once; 1057 need a second, almost empty wave.
    found = occupancy(H200, 32, 0, 256, 1057)
    assert found.waves == pytest.approx(1057 / 1056) and found.tail == 0.5
    assert occupancy(H200, 32, 0, 256, 3 * 1056).tail == 0.0


def test_zero_registers_of_an_empty_kernel() -> None:
    assert occupancy(H200, 0, 0, 1024, 1).blocks_per_sm == 2


@given(
    limits=st.sampled_from([known.limits for known in PRODUCTS.values()]),
    registers=st.integers(1, 255),
    shared=st.integers(0, 240_000),
    threads=st.integers(1, 1024),
    blocks=st.integers(1, 10**7),
)
def test_no_resource_is_overspent(limits: object, registers: int, shared: int, threads: int, blocks: int) -> None:
    found = occupancy(limits, registers, shared, threads, blocks)  # type: ignore[arg-type]
    device = dataclasses.asdict(limits)  # type: ignore[call-overload]
    assert 0 <= found.occupancy <= 1 and found.blocks_per_sm <= device["blocks_per_sm"]
    assert found.blocks_per_sm * threads * registers <= device["registers_per_sm"]
    assert found.blocks_per_sm * (shared + 1024) <= device["shared_per_sm"]
    assert found.warps_per_sm * 32 <= device["threads_per_sm"]
    assert 0 <= found.tail <= 1 and found.limiter
    assert found.blocks_per_sm == min(found.blocks_by.values())
    worse = occupancy(limits, registers, shared + 1000, threads, blocks)  # type: ignore[arg-type]
    assert worse.blocks_per_sm <= found.blocks_per_sm
