"""How many warp instructions the units of one multiprocessor can start per cycle."""

from __future__ import annotations

from dataclasses import dataclass

from opbench.gpu.limits.products import GpuProduct

Capability = tuple[int, int]


@dataclass(frozen=True)
class UnitRates:
    """Warp instructions per cycle and multiprocessor, for each unit; None for an unknown rate."""

    issue: float = 4.0
    """Issue slots: one for each of four schedulers."""
    fma: float | None = None
    """Multiply-adds, sums and products in float32."""
    imad: float | None = None
    """Integer multiply-adds, which use the same pipe."""
    integer: float | None = None
    """Shifts, logic, comparisons and selections."""
    special: float | None = None
    """Special functions (MUFU)."""
    fp64: float | None = None
    memory: float = 1.0
    """Loads and stores of the load-store unit, 32 lanes at a time, and shuffles."""


UNIT_RATES: dict[Capability, UnitRates] = {
    (6, 1): UnitRates(issue=8.0, fma=4.0, special=1.0),
    (8, 0): UnitRates(fma=2.0, imad=2.0, integer=2.0, special=0.5, fp64=1.0),
    (8, 6): UnitRates(fma=4.0, imad=2.0, integer=2.0, special=0.5, fp64=0.0625),
    (8, 9): UnitRates(fma=4.0, imad=2.0, integer=2.0, special=0.5, fp64=0.0625),
    (9, 0): UnitRates(fma=4.0, imad=2.0, integer=2.0, special=0.5, fp64=2.0),
}
"""CUDA C++ Programming Guide, throughput of native arithmetic instructions, divided by 32 lanes; a scheduler of compute
capability 6.1 issues up to two instructions per cycle."""


def cycles_per_s(product: GpuProduct) -> float:
    """Return the cycles per second of all multiprocessors together at the highest clock."""
    return product.sm_count * product.boost_hz
