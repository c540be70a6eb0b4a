"""Tables of what a run rests on: the ceilings and the hardware counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opbench import units
from opbench.ceiling import Ceilings
from opbench.frame import Row
from opbench.report.sections import Section

COUNTERS = {
    "time_s": ("time under the profiler", units.time), "dram_bytes": ("DRAM", lambda v: units.si(v, "B")),
    "l2_bytes": ("L2", lambda v: units.si(v, "B")), "l1_bytes": ("L1", lambda v: units.si(v, "B")),
    "flops": ("FLOPs", lambda v: units.si(v, "FLOP")), "achieved_occupancy": ("achieved occupancy", units.percent),
    "sectors_per_request_load": ("sectors per load", lambda v: f"{v:.3g}"),
    "sectors_per_request_store": ("sectors per store", lambda v: f"{v:.3g}"),
    "bytes_per_sector_load": ("bytes used per loaded sector", lambda v: f"{v:.3g}"),
    "bank_conflicts_load": ("conflicts, shared loads", lambda v: f"{v:,.0f}"), "bank_conflicts_store": ("stores", lambda v: f"{v:,.0f}"),
}  # fmt: skip


def _counters(context: Context, part: Section) -> dict[str, Any] | None:
    """The hardware counters of a section's cases, columns that nobody counted left out."""
    counted = [(row, context.run.counters[row.case]) for row in part.rows if row.case in context.run.counters]
    keys = [key for key in COUNTERS if any(isinstance(values.get(key), (int, float)) for _, values in counted)]
    if not keys:
        return None
    body = []
    for row, values in counted:
        dram = values.get("dram_bytes")
        excess = (
            units.ratio(dram / row.compulsory_bytes) if isinstance(dram, (int, float)) and row.compulsory_bytes else "–"
        )
        cells = [
            COUNTERS[key][1](float(values[key])) if isinstance(values.get(key), (int, float)) else "–" for key in keys
        ]
        body.append([row.name, *cells, excess, _main_stall(values)])
    return {
        "head": ["variant", *(COUNTERS[key][0] for key in keys), "DRAM over compulsory", "main stall"],
        "body": body,
    }


def _main_stall(values: Mapping[str, Any]) -> str:
    """What warps wait for most."""
    shares: Mapping[str, float] = values.get("stall_shares") or {}
    if not shares:
        return "–"
    reason = max(shares, key=lambda name: shares[name])
    return f"{reason.replace('_', ' ')} {units.percent(shares[reason])}"


LIMITS = (
    ("dram_bytes_per_s", "DRAM, reads and writes", units.byte_rate), ("l2_bytes_per_s", "L2 cache, reads", units.byte_rate),
    ("fp32_flops_per_s", "fp32 units, multiply-add", units.flop_rate), ("launch_floor_s", "an empty kernel", units.time),
    ("sm_clock_hz", "multiprocessor clock", lambda v: units.si(v, "Hz")), ("l2_bytes", "size of the L2 cache", lambda v: units.si(v, "B")),
)  # fmt: skip


def _ceilings(context: Context) -> dict[str, Any]:
    """Each limit as measured, as the datasheet has it, and how it was found."""
    used = context.measured or context.predicting
    sheet = context.sheet if used is None or used.source == "measured" else used
    measured = used if used is not None and used.source == "measured" else None
    body = []
    for key, label, show in LIMITS:
        ours, theirs = getattr(measured, key, None), getattr(sheet, key, None)
        if ours is None and theirs is None:
            continue
        share = units.percent(ours / theirs) if ours and theirs and key.endswith("per_s") else "–"
        how = measured.cases.get(key, "") if measured else ""
        body.append([label, show(ours) if ours else "–", show(theirs) if theirs else "–", share, how])
    return {
        "gpu": (used or sheet or Ceilings()).gpu,
        "body": body,
        "origin": sheet.origin if sheet else "",
        "measured": measured is not None,
    }


