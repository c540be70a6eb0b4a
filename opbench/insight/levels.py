"""Bytes that a case moves at each memory level, counted or modelled without a GPU, and the least time they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opbench.backend.counts import SECTOR_BYTES, Traffic
from opbench.gpu.limits.ceilings import Ceilings, datasheet
from opbench.gpu.limits.resources import LaunchResources

LAUNCH_BYTES = 2400
"""What a cold launch reads beside code and data: its descriptor, parameters and constants. On an H200 2,100 to 2,700
bytes in 53 cases (`reports/h200/counters`, the two thirds that models are built on)."""
WAVEFRONT_BYTES = 128


@dataclass(frozen=True)
class Levels:
    """Traffic of all launches of a case. `l1_bytes` is counted, the rest predicted."""

    l1_bytes: int
    """Sectors of global requests and wavefronts of shared memory, wgmma's operands included, in bytes; not what bulk
    copies write to shared memory, whose passes are not known."""
    l2_bytes: int
    """Between the L1 caches and L2."""
    dram_bytes: int
    """From cold caches, code and launches included."""
    profiled_dram_bytes: int
    """The same with caches cold before each launch, as profilers have them."""
    code_missing: bool = False
    """Whether the size of some kernel's code is not known, so that the DRAM bytes lack it."""


LIMIT_NAMES = {
    "dram": "DRAM", "l2": "L2", "l1": "L1 and shared", "compute": "arithmetic", "launch": "launch",
    "compulsory": "compulsory bytes",
}  # fmt: skip
"""Words for `Bound.limit`."""


@dataclass(frozen=True)
class Bound:
    """What one limit of a GPU demands."""

    limit: str
    """"compute", "launch", "compulsory" (each byte of the problem once), or a memory level: "dram", "l2", "l1"."""
    time_s: float
    source: str
    """Whether the limit was "measured" or is the "datasheet"'s."""
    moved_bytes: int | None = None
    intensity: float | None = None
    """FLOP per byte at that level."""


def levels(traffic: Traffic, resources: Mapping[str, LaunchResources]) -> Levels | None:
    """Bytes at each level; None when a launch was abandoned, not counted whole, or counted for no GPU's caches.

    `resources` tell how much code each kernel has, as in `Result.resources`.
    """
    if not traffic.complete or not traffic.kernels or any(kernel.caches is None for kernel in traffic.kernels):
        return None
    dram = profiled = l2 = 0
    missing = False
    for kernel in traffic.kernels:
        caches = kernel.caches
        assert caches is not None
        taken = resources.get(kernel.kernel)
        code = taken.code_bytes if taken else None
        missing |= code is None
        l2 += (caches.l2_loads + caches.l2_stores + caches.l2_atomics) * SECTOR_BYTES
        data = (caches.dram_loads + caches.dram_stores) * SECTOR_BYTES
        dram += data + (code or 0) + kernel.launches * LAUNCH_BYTES
        profiled += data + caches.carried * SECTOR_BYTES + kernel.launches * ((code or 0) + LAUNCH_BYTES)
    wavefronts = sum(traffic.total("wavefronts", space=space) for space in ("shared", "operand"))
    l1 = traffic.total("moved_bytes", space="global") + wavefronts * WAVEFRONT_BYTES
    return Levels(l1, l2, dram, profiled, missing)


def bounds(
    found: Levels, flops: int, precision: str, ceilings: Ceilings, compulsory_bytes: int = 0, memory_level: str = "dram"
) -> list[Bound]:
    """Return what each limit of a GPU demands of a case, the tightest first; the first is the case's lower bound.

    The problem's own limits are among them: a launch, its compulsory bytes at their memory level and its FLOPs. So no
    case has a lower bound below that of its problem. The datasheet says what nobody measured.
    """
    sheet = datasheet(ceilings.gpu) or Ceilings()
    limits = []
    for level, moved in (("dram", found.dram_bytes), ("l2", found.l2_bytes), ("l1", found.l1_bytes)):
        for known in (ceilings, sheet):
            rate = getattr(known, f"{level}_bytes_per_s")
            if rate:
                limits.append(
                    Bound(level, moved / rate, known.source, moved, flops / moved if flops and moved else None)
                )
                break
    bandwidth = ceilings.at_level(memory_level).dram_bytes_per_s
    if compulsory_bytes and bandwidth:
        intensity = flops / compulsory_bytes if flops else None
        limits.append(Bound("compulsory", compulsory_bytes / bandwidth, ceilings.source, compulsory_bytes, intensity))
    arithmetic = ceilings.flops_per_s(precision)
    if flops and arithmetic:
        limits.append(Bound("compute", flops / arithmetic, ceilings.source))
    if ceilings.launch_floor_s:
        limits.append(Bound("launch", ceilings.launch_floor_s, ceilings.source))
    return sorted(limits, key=lambda bound: -bound.time_s)
