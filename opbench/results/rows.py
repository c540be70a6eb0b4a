"""A run as rows, one per case, with rates, shares of peak, speedups and ranks; also as a pandas frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import Ceilings, best_time, committed
from opbench.gpu.limits.floor import why_above
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.levels import Levels, bounds, levels
from opbench.insight.summary import summarise
from opbench.kernels.variant import print_config
from opbench.results.result import Result
from opbench.results.run_data import RunData
from opbench.source.precision import UNIT_ROUNDOFF
from opbench.timing.measurement import Measurement

if TYPE_CHECKING:
    import pandas


@dataclass
class Row:
    """One case; None for a value that was not measured, counted or computed."""

    operator: str
    variant: str
    config: str
    problem: str
    case: str
    status: str
    reason: str
    precision: str
    backend: str
    library: bool
    unit: str = "f32"
    """The arithmetic unit of its multiplications: "f32", "tf32", "bf16", or "tf32/3" for three products instead of one.
    """
    title: str = ""
    builds_on: str = ""
    time_s: float | None = None
    """Median time between the events around the launch, in seconds."""
    time_low_s: float | None = None
    time_high_s: float | None = None
    spread: float | None = None
    """Interquartile range divided by the median."""
    samples: int | None = None
    mode: str | None = None
    """The timing mode: one of `opbench.timing.clock.MODES`."""
    kernel_s: float | None = None
    """The kernel's own time in seconds: `time_s` minus the clock's calibrated offset."""
    throttled: int | None = None
    """Samples excluded because the GPU's clock was throttled."""
    flops: int | None = None
    compulsory_bytes: int | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    bound: str | None = None
    """What limits the lower bound: "memory", "compute", or in a prediction "launch"."""
    roof_share: float | None = None
    """Rate divided by the rate that the measured peaks allow at the problem's arithmetic intensity."""
    above_roof: str | None = None
    """Why `roof_share` exceeds 100 %, one of `opbench.gpu.limits.floor.Above`; None if it does not."""
    memory_level: str = "dram"
    speedup_over_rung: float | None = None
    speedup_over_library: float | None = None
    speedup_over_first: float | None = None
    speedup_over_first_low: float | None = None
    speedup_over_first_high: float | None = None
    rank: str | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    local_bytes: int | None = None
    occupancy: float | None = None
    limiter: str | None = None
    spill_bytes: int | None = None
    """Bytes of local memory for spilled registers."""
    resources_source: str | None = None
    """The source of registers and occupancy in a cpu run; None on a GPU, whose driver reports them."""
    sectors_per_request_load: float | None = None
    """32-byte sectors per global load of a warp; None without such loads or without traffic."""
    sectors_per_request_store: float | None = None
    ideal_sectors_per_request_load: float | None = None
    """Sectors per load if the requested bytes were contiguous."""
    ideal_sectors_per_request_store: float | None = None
    moved_bytes: int | None = None
    """Bytes of the sectors of global memory that were accessed."""
    asked_bytes: int | None = None
    """Bytes of global memory that the lanes request."""
    bank_conflict_share: float | None = None
    """Share of the shared-memory wavefronts that bank conflicts add; None without shared memory."""
    atomic_collision_share: float | None = None
    """Share of the atomics' lanes whose address another lane of the warp also has; None without atomics."""
    barriers_per_block: float | None = None
    """Block-wide barriers of the kernel with the most."""
    traffic_source: str | None = None
    """"counted", or "predicted" if some blocks represent all."""
    l2_bytes: int | None = None
    """Predicted traffic between the L1 caches and L2 of a named GPU."""
    dram_bytes: int | None = None
    """Predicted DRAM traffic, starting with cold caches."""
    least_s: float | None = None
    """The lower bound of the case on a named GPU: the largest of the times that a launch, the problem's compulsory
    bytes and FLOPs, and the case's own traffic take at peak. No time was measured.
    """
    least_limit: str | None = None
    """What limits it: a name of `opbench.insight.levels.LIMIT_NAMES`."""
    least_alone_s: float | None = None
    """The lower bound without the launch, whose time is the same for every small case and hides their differences."""
    least_alone_limit: str | None = None
    worst_error: float | None = None
    allowed_error: float | None = None
    predicted_best_s: float | None = None
    """The lower bound of the problem on a named GPU, for cases that ran without a GPU: the largest of the times that a
    launch, the compulsory bytes and the FLOPs take at peak. No time was measured.
    """
    predicted_roof_s: float | None = None
    """The lower bound of the problem without the launch."""
    predicted_limit: str | None = None
    """Which peak sets `predicted_roof_s`: "memory" or "compute"."""
    predicted_on: str | None = None
    """The GPU whose peaks are used for predictions."""
    device: str = ""
    """Such as "GPU 1", in a run on several devices; empty in a run on one."""
    warnings: tuple[str, ...] = ()
    """Names of `opbench.timing.measurement.Warn`."""
    own: bool = False
    """Whether its variant is a file that the user named, not one of the catalog."""

    @property
    def name(self) -> str:
        """Return variant and config as printed."""
        return self.variant + self.config

    @property
    def ranked(self) -> bool:
        """Return whether it is right and has a time."""
        return self.status == "right" and self.time_s is not None


COLUMNS = [f.name for f in fields(Row)]


def rows(run: RunData, gpu: str = "h200") -> list[Row]:
    """Return one row per result, in the run's order.

    `gpu` names the model whose peaks predict for a run without a GPU.
    """
    limits: dict[str, Ceilings | None] = {}  # of each device, read once
    for result in run.results:
        if result.device not in limits:
            limits[result.device] = run.ceilings_of(result)
    predicting = committed(gpu) if any(result.backend == "cpu" for result in run.results) else None
    found = [_row(r, predicting if r.backend == "cpu" else limits[r.device]) for r in run.results]
    own = set(run.header.own)
    for row, result in zip(found, run.results, strict=True):
        row.own = f"{row.operator}/{row.variant}" in own
        row.device = run.device_name(result)
        if row.case in run.traffic:
            traffic = Traffic.from_json(run.traffic[row.case])
            _set_traffic(row, traffic)
            _set_levels(row, levels(traffic, result.resources), predicting)
    problems: dict[tuple[str, str], list[Row]] = {}
    for row in [] if run.of_network else found:
        problems.setdefault((row.operator, row.problem), []).append(row)
    for group in problems.values():
        _compare(group)
        for precision in dict.fromkeys(row.precision for row in group):
            assign_ranks([row for row in group if row.precision == precision])
    return found


def frame(run: RunData, gpu: str = "h200") -> pandas.DataFrame:
    """Return the rows as a pandas frame; missing values are NaN or None, never 0."""
    import pandas

    found = rows(run, gpu)
    table = pandas.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in found], columns=COLUMNS)
    numbers = [f.name for f in fields(Row) if "float | None" in str(f.type) or "int | None" in str(f.type)]
    return table.astype(dict.fromkeys(numbers, "float64"))


def rows_of_frame(table: pandas.DataFrame) -> list[Row]:
    """Return the rows of a frame, or those that the user left in it."""
    found = []
    for record in table.to_dict("records"):
        values: dict[str, Any] = {
            str(k): None if isinstance(v, float) and math.isnan(v) else v for k, v in record.items()
        }
        found.append(Row(**{k: v for k, v in values.items() if k in COLUMNS}))
    return found


def _row(result: Result, ceilings: Ceilings | None) -> Row:
    row = Row(
        result.operator,
        result.variant,
        print_config(result.config),
        result.problem,
        result.case,
        result.status,
        result.reason,
        result.precision,
        result.backend,
        result.library,
        result.unit or result.precision,
        result.title,
        result.builds_on,
    )
    row.flops = result.flops
    row.memory_level = result.memory_level
    ceilings = ceilings.at_level(result.memory_level) if ceilings else None
    row.compulsory_bytes = result.compulsory_bytes or None
    _set_resources(row, list(result.resources.values()))
    if result.verdict:
        row.worst_error, row.allowed_error = result.verdict.worst_error, result.verdict.allowed_error
    if result.measurement is not None and result.backend != "cpu":
        _set_times(row, result.measurement)
    best = (
        best_time(ceilings, result.flops, result.compulsory_bytes, result.unit or result.precision)
        if ceilings
        else None
    )
    if best and ceilings:
        row.bound = best[1]
        if result.backend == "cpu":
            floor = ceilings.launch_floor_s or 0.0
            row.predicted_best_s, row.bound = (floor, "launch") if floor > best[0] else best
            row.predicted_roof_s, row.predicted_limit = best
            row.predicted_on = ceilings.gpu.removeprefix("NVIDIA ")
        elif row.time_s:
            row.roof_share = best[0] / row.time_s
            nbytes, is_floor = result.compulsory_bytes, result.flops_are_a_floor
            row.above_roof = why_above(
                row.roof_share,
                best[1],
                result.memory_level,
                nbytes,
                is_floor,
                ceilings,
                row.mode or "",
                result.written_bytes,
            )
    return row


def _set_times(row: Row, measurement: Measurement) -> None:
    row.time_s = measurement.median_s or None
    row.samples = len(measurement.samples_s) or None
    if row.samples:  # a node of an older network's run has only a median
        row.time_low_s, row.time_high_s = measurement.low_s, measurement.high_s
    row.mode, row.kernel_s = measurement.mode, measurement.kernel_s
    row.throttled = len(measurement.throttled)
    row.warnings = tuple(str(warning) for warning in measurement.warnings)
    if row.time_s is None:
        return
    first, third = measurement.quartiles_s
    row.spread = (third - first) / row.time_s if row.samples else None
    row.bytes_per_s = row.compulsory_bytes / row.time_s if row.compulsory_bytes else None
    row.flops_per_s = row.flops / row.time_s if row.flops else None


def _set_resources(row: Row, kernels: Sequence[LaunchResources]) -> None:
    """Set the maximum of each resource over a case's kernels, and the least occupancy with its limiter."""
    row.registers = max((k.registers for k in kernels), default=None)
    row.local_bytes = max((k.local_bytes for k in kernels), default=None)
    row.spill_bytes = max((k.spill_bytes for k in kernels if k.spill_bytes is not None), default=None)
    row.shared_bytes = max((k.shared_bytes + (k.dynamic_shared_bytes or 0) for k in kernels), default=None)
    row.resources_source = next((k.source for k in kernels if k.source), None)
    known = [(k.occupancy, k.limiter) for k in kernels if k.occupancy is not None]
    if known:
        least = min(known)
        row.occupancy, row.limiter = least[0], least[1] or None


def _set_traffic(row: Row, traffic: Traffic) -> None:
    """Set ratios over all kernels; none are set if a launch was abandoned, because its counts are incomplete."""
    summary = summarise(traffic)
    if summary is None:
        return
    row.sectors_per_request_load = summary.sectors_per_load
    row.sectors_per_request_store = summary.sectors_per_store
    row.ideal_sectors_per_request_load = summary.ideal_sectors_per_load
    row.ideal_sectors_per_request_store = summary.ideal_sectors_per_store
    row.moved_bytes, row.asked_bytes = summary.moved_bytes, summary.asked_bytes
    row.bank_conflict_share = summary.bank_conflict_share
    row.atomic_collision_share = summary.atomic_collision_share
    row.barriers_per_block = summary.barriers_per_block
    row.traffic_source = summary.source


def _set_levels(row: Row, found: Levels | None, ceilings: Ceilings | None) -> None:
    """Set the predicted bytes at L2 and DRAM, and the lower bound from them and the arithmetic."""
    if found is None or ceilings is None:
        return
    row.l2_bytes, row.dram_bytes = found.l2_bytes, found.dram_bytes
    limits = bounds(found, row.flops or 0, row.unit, ceilings, row.compulsory_bytes or 0, row.memory_level)
    if limits:
        row.least_s, row.least_limit = limits[0].time_s, limits[0].limit
    if alone := next((bound for bound in limits if bound.limit != "launch"), None):
        row.least_alone_s, row.least_alone_limit = alone.time_s, alone.limit


def _fastest(group: Iterable[Row]) -> Row | None:
    return min((row for row in group if row.ranked), key=lambda row: row.time_s or math.inf, default=None)


def _compare(group: Sequence[Row]) -> None:
    """Set the speedups of one problem's rows."""
    best = {name: _fastest(row for row in group if row.variant == name) for name in {row.variant for row in group}}
    below = {row.variant: row.builds_on for row in group}
    for row in group:
        if not row.ranked:
            continue
        libraries = [r for r in group if r.library and r.precision == row.precision]
        row.speedup_over_library = _speedup(_fastest(libraries), row)
        row.speedup_over_rung = _speedup(best.get(row.builds_on), row)
        base = best.get(first_variant(row.variant, below)) if not row.library else None
        if base is not None and UNIT_ROUNDOFF.get(base.precision, 0.0) > UNIT_ROUNDOFF.get(row.precision, 0.0):
            base = None  # Without measured lower variants, the ladder starts with one of a less precise class.
        row.speedup_over_first = _speedup(base, row)
        if base is not None:
            row.speedup_over_first_low, row.speedup_over_first_high = speedup_interval(base, row)


def first_variant(variant: str, below: Mapping[str, str]) -> str:
    """Return the lowest variant below another on its ladder that the run has."""
    seen = {variant}
    while (lower := below.get(variant, "")) and lower in below and lower not in seen:
        seen.add(lower)
        variant = lower
    return variant


def _speedup(base: Row | None, row: Row) -> float | None:
    return base.time_s / row.time_s if base and base.time_s and row.time_s else None


def speedup_interval(base: Row, row: Row) -> tuple[float | None, float | None]:
    """Return a conservative interval of base's time divided by row's, from opposite ends of the 95 % intervals."""
    ends = (base.time_low_s, base.time_high_s, row.time_low_s, row.time_high_s)
    if not all(ends) or base is row:
        return None, None
    base_low, base_high, low, high = (float(end or 0) for end in ends)
    return base_low / high, base_high / low


def tied(leader: Row, row: Row) -> bool:
    """Return whether the 95 % intervals of two medians overlap."""
    if row.time_low_s is None or leader.time_high_s is None:
        return row.time_s == leader.time_s
    return row.time_low_s <= leader.time_high_s


def tie_groups(group: Iterable[Row]) -> list[list[Row]]:
    """Return ranked rows by time, in groups: a row whose interval overlaps the one of the group's fastest joins the
    group.
    """
    groups: list[list[Row]] = []
    for row in sorted((r for r in group if r.ranked), key=lambda r: (r.time_s, r.name)):
        if groups and tied(groups[-1][0], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def assign_ranks(group: Iterable[Row]) -> None:
    """Set ranks such as "1=", "1=", "3" in rows of one problem and precision."""
    for row, rank in ranks(group):
        row.rank = rank


def ranks(group: Iterable[Row]) -> list[tuple[Row, str]]:
    """Return rows in order of rank with their printed ranks."""
    found, position = [], 1
    for tie in tie_groups(group):
        found += [(row, f"{position}=" if len(tie) > 1 else str(position)) for row in tie]
        position += len(tie)
    return found
