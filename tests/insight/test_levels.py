"""Bytes at each memory level and what they cost at least."""

from __future__ import annotations

import dataclasses

import pytest

from opbench.backend.counts import CacheTraffic, KernelTraffic, LineTraffic, gather
from opbench.gpu.limits.ceilings import Peaks
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.levels import LAUNCH_BYTES, bounds, counted_bounds, levels

LOAD = LineTraffic("k", "k.cu", 7, "global", "load", 4, requests=10, lanes=320, sectors=40, ideal_sectors=40)
SHARED = LineTraffic("k", "k.cu", 8, "shared", "load", 4, requests=10, lanes=320, wavefronts=30, ideal_wavefronts=10)
CACHES = CacheTraffic(l2_loads=20, l2_stores=5, l2_atomics=1, dram_loads=10, dram_stores=2, carried=4)
KERNEL = KernelTraffic("k", 2, 8, 8, 256, 0, CACHES)
TRAFFIC = gather([LOAD, SHARED], [KERNEL])
CODE = {"k": LaunchResources(32, 0, 0, code_bytes=1000)}


def test_bytes_at_each_level() -> None:
    found = levels(TRAFFIC, CODE)
    assert found is not None
    assert found.l1_bytes == 40 * 32 + 30 * 128
    assert found.l2_bytes == 26 * 32
    assert found.dram_bytes == 12 * 32 + 1000 + 2 * LAUNCH_BYTES
    # A profiler empties the caches before each launch: what was carried over, and the code, come again.
    assert found.profiled_dram_bytes == 16 * 32 + 2 * (1000 + LAUNCH_BYTES)


def test_code_that_nobody_compiled_is_not_in_the_bytes() -> None:
    found = levels(TRAFFIC, {})
    assert found is not None and found.dram_bytes == 12 * 32 + 2 * LAUNCH_BYTES


@pytest.mark.parametrize(
    "traffic",
    [
        dataclasses.replace(TRAFFIC, complete=False),
        dataclasses.replace(TRAFFIC, kernels=(dataclasses.replace(KERNEL, caches=None),)),
        dataclasses.replace(TRAFFIC, kernels=()),
    ],
)
def test_what_was_not_modelled_whole_has_no_levels(traffic: object) -> None:
    assert levels(traffic, CODE) is None  # type: ignore[arg-type]


def test_one_sampled_launch_spoils_the_kernel() -> None:
    assert (KERNEL + dataclasses.replace(KERNEL, caches=None)).caches is None
    both = (KERNEL + KERNEL).caches
    assert both is not None and both.l2_loads == 40 and both.carried == 8


def test_traffic_with_caches_survives_its_json() -> None:
    assert type(TRAFFIC).from_json(TRAFFIC.to_json()) == TRAFFIC


def test_the_tightest_limit_comes_first() -> None:
    found = levels(TRAFFIC, CODE)
    assert found is not None
    ceilings = Peaks(gpu="H200", dram_bytes_per_s=1e9, l2_bytes_per_s=1e9, fp32_flops_per_s=1e6, launch_floor_s=3e-6)
    limits = bounds(found, 10, "f32", ceilings)
    assert [limit.limit for limit in limits] == ["compute", "dram", "launch", "l2", "l1"]
    assert limits[0].time_s == 10 / 1e6
    dram = limits[1]
    assert dram.time_s == found.dram_bytes / 1e9 and dram.intensity == 10 / found.dram_bytes
    assert {limit.limit: limit.source for limit in limits}["l1"] == "datasheet"


def test_limits_that_nobody_knows_are_left_out() -> None:
    found = levels(TRAFFIC, CODE)
    assert found is not None
    assert [limit.limit for limit in bounds(found, 0, "f32", Peaks(dram_bytes_per_s=1e9))] == ["dram"]


def test_bounds_of_counted_bytes_and_instructions() -> None:
    """As a profile has them: shared wavefronts count for L1, and the fastest rate of DRAM sets its bound."""
    counters = {
        "dram_bytes": 4e9, "l2_bytes": 2e9, "l1_bytes": 1e9, "shared_load_wavefronts": 1e6, "instructions": 132 * 4e6,
        "fp32_flops": 1e9, "shared_store_wavefronts": None,
    }  # fmt: skip
    peaks = Peaks(
        dram_bytes_per_s=1e12, dram_read_bytes_per_s=2e12, l2_bytes_per_s=1e12, l1_bytes_per_s=1e12,
        fp32_flops_per_s=1e12,
    )  # fmt: skip
    found = {bound.limit: bound.time_s for bound in counted_bounds(counters, "h100", peaks, None)}
    assert found == pytest.approx({"dram": 2e-3, "l2": 2e-3, "l1": 1.128e-3, "compute": 1e-3, "issue": 1e6 / 1980e6})
    assert counted_bounds({"dram_bytes": None}, "h100", peaks, None) == []
