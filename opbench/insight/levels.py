"""Compute the bytes that a case moves at each memory level and the lower bounds of time that follow, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opbench.backend.counts import SECTOR_BYTES, Traffic
from opbench.gpu.limits.ceilings import Peaks, datasheet
from opbench.gpu.limits.products import product
from opbench.gpu.limits.resources import LaunchResources
from opbench.gpu.limits.unit_rates import UNIT_RATES, cycles_per_s
from opbench.insight.instructions import MEMORY_CLASSES, ExecutedInstructions
from opbench.kernels.case import Case

LAUNCH_BYTES = 2400
"""Bytes that a cold launch reads besides code and data: descriptor, parameters and constants. On an H200 2,100 to 2,700
bytes in 53 cases of small kernels, counted by Nsight Compute; a third of the cases was used only to verify."""
WAVEFRONT_BYTES = 128
LEVEL_RATES = {"dram": ("dram", "dram_read", "dram_write")}
"""The measured rates of a level that has several."""


@dataclass(frozen=True)
class Levels:
    """Traffic of all launches of a case; `l1_bytes` is counted, the other levels are predicted."""

    l1_bytes: int
    """Sectors of global requests and wavefronts of shared memory, including wgmma's operands, in bytes; without writes
    of bulk copies to shared memory, whose wavefronts are unknown."""
    l2_bytes: int
    """Bytes between the L1 caches and L2."""
    dram_bytes: int
    """Bytes between L2 and DRAM from cold caches, including code and launches."""
    profiled_dram_bytes: int
    """DRAM bytes with cold caches before each launch, as in profilers."""


LIMIT_NAMES = {
    "dram": "DRAM", "l2": "L2", "l1": "L1 and shared", "compute": "arithmetic", "launch": "launch",
    "compulsory": "compulsory bytes", "issue": "issue slots", "fma": "FMA pipe", "integer": "integer pipe",
    "special": "MUFU pipe", "fp64": "fp64 pipe", "tensor": "tensor cores", "lsu": "load-store unit",
}  # fmt: skip
"""The name of each `Bound.limit` in reports."""


@dataclass(frozen=True)
class Bound:
    """The least time that one limit of a GPU allows."""

    limit: str
    """"compute", "launch", "compulsory" (each byte of the problem once), a memory level ("dram", "l2", "l1"), or a unit
    of the multiprocessors ("issue", "fma", "integer", "special", "fp64", "tensor", "lsu")."""
    time_s: float
    source: str
    """Source of the limit: "measured" or "datasheet"."""
    moved_bytes: int | None = None
    intensity: float | None = None
    """FLOP per byte at this level; None where it does not apply."""
    instructions: float | None = None
    """Warp instructions of a unit; FLOPs for "tensor"."""
    counts: str = ""
    """For a unit: "counted" if its instructions were counted, "approximate" if only a lower bound is known."""


def levels(traffic: Traffic, resources: Mapping[str, LaunchResources]) -> Levels | None:
    """Return the bytes at each level; None if a launch was abandoned, not fully counted, or counted without caches.

    `resources` contain each kernel's code size, as in `Result.resources`.
    """
    if not traffic.complete or not traffic.kernels or any(kernel.caches is None for kernel in traffic.kernels):
        return None
    dram = profiled = l2 = 0
    for kernel in traffic.kernels:
        caches = kernel.caches
        assert caches is not None
        resource = resources.get(kernel.kernel)
        code = resource.code_bytes if resource else None
        l2 += (caches.l2_loads + caches.l2_stores + caches.l2_atomics) * SECTOR_BYTES
        data = (caches.dram_loads + caches.dram_stores) * SECTOR_BYTES
        dram += data + (code or 0) + kernel.launches * LAUNCH_BYTES
        profiled += data + caches.carried * SECTOR_BYTES + kernel.launches * ((code or 0) + LAUNCH_BYTES)
    return Levels(l1_bytes(traffic), l2, dram, profiled)


def l1_bytes(traffic: Traffic) -> int:
    """Return the bytes that go through the L1 caches and shared memory; they need no model of caches."""
    wavefronts = sum(traffic.total("wavefronts", space=space) for space in ("shared", "operand"))
    return traffic.total("moved_bytes", space="global") + wavefronts * WAVEFRONT_BYTES


def bounds(
    traffic_levels: Levels,
    flops: int,
    precision: str,
    ceilings: Peaks,
    compulsory_bytes: int = 0,
    memory_level: str = "dram",
    executed: ExecutedInstructions | None = None,
) -> list[Bound]:
    """Return the lower bound of each limit for a case, the tightest first; the first is the case's lower bound.

    The problem's own limits are included: a launch, its compulsory bytes at their memory level, and its FLOPs. So no
    case has a lower bound below that of its problem. A rate that was not measured comes from the datasheet. `executed`
    adds the units of the multiprocessors.
    """
    sheet = datasheet(ceilings.gpu) or Peaks()
    limits = []
    for level, moved_bytes in (
        ("dram", traffic_levels.dram_bytes),
        ("l2", traffic_levels.l2_bytes),
        ("l1", traffic_levels.l1_bytes),
    ):
        for peaks in (ceilings, sheet):
            # Which mix of reads and writes the kernel has is not known, so the fastest one sets the bound.
            rates = [getattr(peaks, f"{name}_bytes_per_s") or 0.0 for name in LEVEL_RATES.get(level, (level,))]
            rate = max(rates)
            if rate:
                limits.append(
                    Bound(
                        level,
                        moved_bytes / rate,
                        peaks.source,
                        moved_bytes,
                        flops / moved_bytes if flops and moved_bytes else None,
                    )
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
    limits += unit_bounds(executed, ceilings.gpu) if executed else []
    return sorted(limits, key=lambda bound: -bound.time_s)


def case_bounds(
    case: Case, traffic_levels: Levels, ceilings: Peaks, executed: ExecutedInstructions | None = None
) -> list[Bound]:
    """Return the bounds of a case with those of its problem, the tightest first.

    FLOPs set no bound for a library where an algorithm with fewer exists, such as Winograd's for convolutions.
    """
    problem = case.problem
    flops = case.flops() if problem.flops_are_a_floor or not case.variant.is_library else 0
    return bounds(traffic_levels, flops, case.unit, ceilings, problem.bytes(), problem.bandwidth(), executed)


def counted_bounds(
    counters: Mapping[str, Any], gpu: str, ceilings: Peaks, executed: ExecutedInstructions | None
) -> list[Bound]:
    """Return the bounds of what the hardware counted: bytes of each level, FLOPs, and instructions.

    `counters` are those of `opbench.insight.nsight.metrics.derive`. Without `executed`, only all instructions together
    and FLOPs are known.
    """
    bytes_by_level = {name: counters.get(f"{name}_bytes") for name in ("dram", "l2", "l1")}
    wavefronts = sum(counters.get(f"shared_{kind}_wavefronts") or 0 for kind in ("load", "store"))
    limits = []
    for level, count in bytes_by_level.items():
        rate = max(getattr(ceilings, f"{name}_bytes_per_s") or 0.0 for name in LEVEL_RATES.get(level, (level,)))
        if count and rate:
            moved_bytes = round(count) + (round(wavefronts) * WAVEFRONT_BYTES if level == "l1" else 0)
            limits.append(Bound(level, moved_bytes / rate, ceilings.source, moved_bytes))
    flops = counters.get("fp32_flops")
    if executed is None and flops and ceilings.fp32_flops_per_s:
        limits.append(Bound("compute", flops / ceilings.fp32_flops_per_s, ceilings.source))
    instructions = counters.get("instructions")
    if executed is None and instructions:
        executed = ExecutedInstructions({"all": instructions}, source="counted")
    limits += unit_bounds(executed, gpu) if executed else []
    return sorted(limits, key=lambda bound: -bound.time_s)


def unit_bounds(executed: ExecutedInstructions, gpu: str) -> list[Bound]:
    """Return the lower bound of each unit of the multiprocessors, the tightest first; [] for a GPU without known rates.

    The rates are those of the programming guide at the highest clock of the datasheet, with all multiprocessors busy.
    """
    gpu_product = product(gpu)
    rates = UNIT_RATES.get(gpu_product.capability) if gpu_product else None
    if gpu_product is None or rates is None:
        return []
    cycles = cycles_per_s(gpu_product)
    float_fmas, integer_fmas = executed.of("FFMA", "FADD/FMUL"), executed.of("IMAD")
    work = {
        "issue": (executed.total, executed.total / rates.issue),
        "fma": _fma_cycles(float_fmas, integer_fmas, rates.fma, rates.imad),
        "integer": _unit_cycles(executed.of("other integer", "other fp32"), rates.integer),
        "special": _unit_cycles(executed.of("MUFU"), rates.special),
        "fp64": _unit_cycles(executed.of("fp64"), rates.fp64),
        "lsu": _unit_cycles(executed.of(*MEMORY_CLASSES), rates.memory),
    }
    bounds_of_units = [
        Bound(name, unit_cycles / cycles, "datasheet", instructions=unit_instructions, counts=executed.source)
        for name, (unit_instructions, unit_cycles) in work.items()
        if unit_cycles
    ]
    sheet = datasheet(gpu) or Peaks()
    seconds = sum(work / rate for name, work in executed.product_flops.items() if (rate := sheet.flops_per_s(name)))
    if seconds:
        flops = sum(executed.product_flops.values())
        bounds_of_units.append(Bound("tensor", seconds, "datasheet", instructions=flops, counts=executed.source))
    return sorted(bounds_of_units, key=lambda bound: -bound.time_s)


def _unit_cycles(instructions: float, rate: float | None) -> tuple[float, float]:
    """Return instructions, and the cycles that they take on one multiprocessor; 0 if the rate is not known."""
    return instructions, instructions / rate if rate else 0.0


def _fma_cycles(
    float_instructions: float, integer_instructions: float, fma_rate: float | None, imad_rate: float | None
) -> tuple[float, float]:
    """Return the instructions of the multiply-add pipe and their cycles; a part of the pipe also executes integers."""
    if not fma_rate:
        return float_instructions, 0.0
    if not imad_rate:
        return float_instructions, float_instructions / fma_rate
    return float_instructions + integer_instructions, max(
        (float_instructions + integer_instructions) / fma_rate, integer_instructions / imad_rate
    )
