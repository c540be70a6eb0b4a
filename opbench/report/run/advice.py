"""Advice on the fastest variant: each line states a finding with its evidence from the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from opbench import units
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.stalls import find_stall
from opbench.results.rows import Row

WARP = 32


def advice(
    row: Row, resources: Mapping[str, LaunchResources], counters: Mapping[str, object], sm_count: int | None
) -> list[str]:
    """Return findings for one measured row, by the rules of NVIDIA's profilers and of the roofline papers."""
    return [
        *_launch(resources, sm_count),
        *_spills(row),
        *_traffic(row, counters),
        # A kernel near its peak stalls because of that limit, so there is no advice about stalls.
        *(_stalls(counters) if (row.peak_share or 0.0) < 0.9 else ()),
        *_occupancy(row),
        *_near_peak(row),
    ]


def _launch(resources: Mapping[str, LaunchResources], sm_count: int | None) -> Iterator[str]:
    sizes = {kernel: math.prod(r.grid or ()) * math.prod(r.block or ()) for kernel, r in resources.items()}
    for kernel, found in resources.items():
        blocks, threads = math.prod(found.grid or ()), math.prod(found.block or ())
        if sizes[kernel] < max(sizes.values()) / 2:
            continue  # a helper, such as one that packs weights, is small for good reason
        if sm_count and found.grid and blocks < sm_count:
            yield (
                f"`{kernel}` launches {blocks} blocks for {sm_count} multiprocessors, so some stay idle: "
                "smaller tiles, or split the reduction over more blocks."
            )
        if threads % WARP and found.block:
            yield (
                f"`{kernel}` has {threads} threads a block, no multiple of {WARP}: "
                "the last warp of every block runs with dead lanes."
            )


def _spills(row: Row) -> Iterator[str]:
    if row.resources and row.resources.local_bytes:
        yield (
            f"{row.resources.local_bytes} bytes of local memory a thread: registers spill, or an array is indexed by a "
            "run-time value; use constant indices or a smaller tile per thread."
        )


def _traffic(row: Row, counters: Mapping[str, Any]) -> Iterator[str]:
    dram = counters.get("dram_bytes")
    if dram and row.compulsory_bytes and float(dram) > 1.3 * row.compulsory_bytes:
        yield (
            f"DRAM moved {units.ratio(float(dram) / row.compulsory_bytes)} the compulsory bytes (counted): "
            "data is read again after it left the caches; tile, or change the order of blocks."
        )
    for operation in ("load", "store"):
        share, width = counters.get(f"bank_conflict_share_{operation}"), counters.get(f"bytes_per_sector_{operation}")
        if share and share >= 0.1:
            yield (
                f"{units.percent(share)} of shared-memory {operation} wavefronts are bank conflicts (counted): "
                "pad the rows by one element or swizzle the index."
            )
        if width and width < 24:
            yield (
                f"Global {operation}s use {width:.3g} of every 32 bytes that they move (counted): let threadIdx.x "
                "run along the contiguous axis, or transpose through shared memory."
            )


def _stalls(counters: Mapping[str, Any]) -> Iterator[str]:
    shares = counters.get("stall_shares") or {}
    for reason, share in sorted(shares.items(), key=lambda item: -item[1]):
        stall = find_stall(reason)
        if share > 0.3 and stall is not None and not stall.works:
            yield f"Warps stall {units.percent(share)} of the time on {stall.title} (counted): {stall.phrase}."


def _occupancy(row: Row) -> Iterator[str]:
    used = row.resources
    if used is None or used.occupancy is None or row.peak_share is None:
        return
    if used.occupancy < 0.5 and row.peak_share < 0.6:
        by = f", limited by {used.limiter}" if used.limiter else ""
        yield (
            f"Occupancy is {units.percent(used.occupancy)}{by}, at {units.percent(row.peak_share)} of peak: "
            "more warps, or more independent work per thread, would hide more latency."
        )


def _near_peak(row: Row) -> Iterator[str]:
    if row.peak_share is not None and 0.9 <= row.peak_share <= 1.05:
        if row.bound == "memory":
            what = "fuse it with its neighbours or store fewer bits"
        else:
            what = f"use fewer FLOPs{' or the matrix units' if row.unit == 'f32' else ''}"
        share = units.percent(row.peak_share)
        yield f"At {share} of the measured peak there is little left to win in this kernel alone: {what}."
