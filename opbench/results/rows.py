"""A run as a table with one row per case: rates, shares of peak, speedups and ranks; also as a pandas frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import Peaks, bound_and_limit, committed_ceilings
from opbench.gpu.limits.lower_bound import why_above_peak
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.levels import Bound, bounds, levels
from opbench.insight.summary import TrafficSummary, summarise
from opbench.kernels.variant import print_config
from opbench.results.result import Result, Verdict
from opbench.results.run_data import RunData
from opbench.source.precision import UNIT_ROUNDOFF
from opbench.timing.measurement import Measurement

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Times:
    """The measured time of a case, with its interval and rates."""

    time_s: float
    """Median time between the events around the launch."""
    time_low_s: float | None = None
    time_high_s: float | None = None
    """95 % interval of the median; None in runs of networks by older versions."""
    spread: float | None = None
    """Interquartile range divided by the median."""
    samples: int | None = None
    mode: str = ""
    """The timing mode: one of `opbench.timing.clock.TIMING_MODES`."""
    kernel_s: float | None = None
    """The kernel's own time: `time_s` minus the clock's calibrated offset."""
    throttled: int = 0
    """Samples excluded because the GPU's clock was throttled."""
    bytes_per_s: float | None = None
    flops_per_s: float | None = None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Return both ends of the 95 % interval; None if unknown."""
        return (self.time_low_s, self.time_high_s) if self.time_low_s and self.time_high_s else None


@dataclass(frozen=True)
class PeakShare:
    """The share of the GPU's measured peak that a case reaches, and what bounds it."""

    bound: str
    """What limits the lower bound: "memory", "compute", or in a prediction "launch"."""
    peak_share: float | None = None
    """Rate divided by the rate that the measured peaks allow at the problem's arithmetic intensity."""
    above_peak: str | None = None
    """Why `peak_share` exceeds 100 %, one of `opbench.gpu.limits.lower_bound.AbovePeak`; None if it does not."""


@dataclass(frozen=True)
class Speedups:
    """Speedups of a case over the previous variant, the library and the first variant; None without that case."""

    over_previous: float | None = None
    """Speedup over the previous variant, on which the variant builds."""
    over_library: float | None = None
    over_first: float | None = None
    """Speedup over the first variant of its ladder, with a conservative 95 % interval."""
    over_first_low: float | None = None
    over_first_high: float | None = None


@dataclass(frozen=True)
class CompiledResources:
    """The resources of a compiled case: each one's maximum over the kernels, and the lowest occupancy."""

    registers: int
    shared_bytes: int
    local_bytes: int
    occupancy: float | None = None
    limiter: str | None = None
    spill_bytes: int | None = None
    """Bytes of local memory for spilled registers."""
    source: str | None = None
    """The source of registers and occupancy in a cpu run; None on a GPU, whose driver reports them."""


@dataclass(frozen=True)
class PredictedTraffic:
    """The traffic that is predicted on a GPU model, and the lower bound of the time that follows."""

    l2_bytes: int
    """Traffic between the L1 caches and L2."""
    dram_bytes: int
    """DRAM traffic, starting with cold caches."""
    least: Bound | None = None
    """The largest of the times that a launch, the problem's compulsory bytes and FLOPs, and the case's own traffic take
    at peak.
    """
    least_alone: Bound | None = None
    """The lower bound without the launch, whose time is the same for every small case and hides their differences."""


@dataclass(frozen=True)
class PredictedBest:
    """The lower bound of a problem on a GPU model, for cases that ran without a GPU."""

    best_s: float
    """The largest of the times that a launch, the compulsory bytes and the FLOPs take at peak."""
    without_launch_s: float
    """The lower bound without the launch."""
    limit: str
    """Which peak sets `without_launch_s`: "memory" or "compute"."""
    gpu: str
    """The GPU whose peaks are used."""


@dataclass(frozen=True)
class Row:
    """One case of a run; a part is None if it was not measured, counted or computed."""

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
    flops: int | None = None
    compulsory_bytes: int | None = None
    memory_level: str = "dram"
    device: str = ""
    """Such as "GPU 1", in a run on several devices; empty in a run on one."""
    own: bool = False
    """Whether its variant is a file that the user named, not one of the catalog."""
    warnings: tuple[str, ...] = ()
    """Names of `opbench.timing.measurement.TimingWarning`."""
    verdict: Verdict | None = None
    times: Times | None = None
    peak: PeakShare | None = None
    speedups: Speedups = Speedups()
    rank: str | None = None
    resources: CompiledResources | None = None
    traffic: TrafficSummary | None = None
    predicted_traffic: PredictedTraffic | None = None
    predicted: PredictedBest | None = None

    @property
    def name(self) -> str:
        """Return the name of the variant with its config."""
        return self.variant + self.config

    @property
    def ranked(self) -> bool:
        """Return whether the case is right and has a time."""
        return self.status == "right" and self.times is not None

    @property
    def time_s(self) -> float | None:
        """Return the median time in seconds; None without times."""
        return self.times.time_s if self.times else None

    @property
    def peak_share(self) -> float | None:
        """Return the share of peak; None without times or peaks."""
        return self.peak.peak_share if self.peak else None

    @property
    def above_peak(self) -> str | None:
        """Return why the share of peak exceeds 100 %; None if it does not exceed that."""
        return self.peak.above_peak if self.peak else None

    @property
    def bound(self) -> str | None:
        """Return the resource that limits the lower bound; None without peaks."""
        return self.peak.bound if self.peak else None


def rows(run: RunData, gpu: str = "h200") -> list[Row]:
    """Return one row per result, in the run's order.

    For a run without a GPU, times are predicted from the peaks of the GPU model `gpu`.
    """
    peaks_of_device: dict[str, Peaks | None] = {}  # the peaks of each device are read once
    for result in run.results:
        if result.device not in peaks_of_device:
            peaks_of_device[result.device] = run.ceilings_of(result)
    predicting = committed_ceilings(gpu) if any(result.backend == "cpu" for result in run.results) else None
    own_variants = set(run.header.own)
    table = []
    for result in run.results:
        row = _row(result, predicting if result.backend == "cpu" else peaks_of_device[result.device])
        row = replace(row, own=f"{row.operator}/{row.variant}" in own_variants, device=run.device_name(result))
        if row.case in run.traffic:
            traffic = run.traffic[row.case]
            row = replace(
                row,
                traffic=summarise(traffic),
                predicted_traffic=_predicted_traffic(row, traffic, result.resources, predicting),
            )
        table.append(row)
    problems: dict[tuple[str, str], list[Row]] = {}
    for row in [] if run.of_network else table:
        problems.setdefault((row.operator, row.problem), []).append(row)
    speedups: dict[str, Speedups] = {}
    rank_of_case: dict[str, str] = {}
    for group in problems.values():
        speedups |= _speedups_by_case(group)
        for precision in dict.fromkeys(row.precision for row in group):
            rank_of_case |= {
                row.case: rank for row, rank in ranked_rows(row for row in group if row.precision == precision)
            }
    return [
        replace(row, speedups=speedups.get(row.case, row.speedups), rank=rank_of_case.get(row.case)) for row in table
    ]


COLUMNS = {
    "operator": "operator",
    "variant": "variant",
    "config": "config",
    "problem": "problem",
    "case": "case",
    "status": "status",
    "reason": "reason",
    "precision": "precision",
    "backend": "backend",
    "library": "library",
    "unit": "unit",
    "title": "title",
    "builds_on": "builds_on",
    "time_s": "times.time_s",
    "time_low_s": "times.time_low_s",
    "time_high_s": "times.time_high_s",
    "spread": "times.spread",
    "samples": "times.samples",
    "mode": "times.mode",
    "kernel_s": "times.kernel_s",
    "throttled": "times.throttled",
    "flops": "flops",
    "compulsory_bytes": "compulsory_bytes",
    "bytes_per_s": "times.bytes_per_s",
    "flops_per_s": "times.flops_per_s",
    "bound": "peak.bound",
    "peak_share": "peak.peak_share",
    "above_peak": "peak.above_peak",
    "memory_level": "memory_level",
    "speedup_over_previous": "speedups.over_previous",
    "speedup_over_library": "speedups.over_library",
    "speedup_over_first": "speedups.over_first",
    "speedup_over_first_low": "speedups.over_first_low",
    "speedup_over_first_high": "speedups.over_first_high",
    "rank": "rank",
    "registers": "resources.registers",
    "shared_bytes": "resources.shared_bytes",
    "local_bytes": "resources.local_bytes",
    "occupancy": "resources.occupancy",
    "limiter": "resources.limiter",
    "spill_bytes": "resources.spill_bytes",
    "resources_source": "resources.source",
    "sectors_per_request_load": "traffic.sectors_per_load",
    "sectors_per_request_store": "traffic.sectors_per_store",
    "ideal_sectors_per_request_load": "traffic.ideal_sectors_per_load",
    "ideal_sectors_per_request_store": "traffic.ideal_sectors_per_store",
    "moved_bytes": "traffic.moved_bytes",
    "asked_bytes": "traffic.asked_bytes",
    "bank_conflict_share": "traffic.bank_conflict_share",
    "atomic_collision_share": "traffic.atomic_collision_share",
    "barriers_per_block": "traffic.barriers_per_block",
    "traffic_source": "traffic.source",
    "l2_bytes": "predicted_traffic.l2_bytes",
    "dram_bytes": "predicted_traffic.dram_bytes",
    "least_s": "predicted_traffic.least.time_s",
    "least_limit": "predicted_traffic.least.limit",
    "least_alone_s": "predicted_traffic.least_alone.time_s",
    "least_alone_limit": "predicted_traffic.least_alone.limit",
    "worst_error": "verdict.worst_error",
    "allowed_error": "verdict.allowed_error",
    "predicted_best_s": "predicted.best_s",
    "predicted_without_launch_s": "predicted.without_launch_s",
    "predicted_limit": "predicted.limit",
    "predicted_on": "predicted.gpu",
    "device": "device",
    "warnings": "warnings",
    "own": "own",
}
"""The columns of a frame, and where a row has their values."""

FORMER_COLUMNS = {
    "roof_share": "peak_share",
    "above_roof": "above_peak",
    "speedup_over_rung": "speedup_over_previous",
    "predicted_roof_s": "predicted_without_launch_s",
}
"""Names of columns in earlier versions, which a frame has too, after the others."""

TEXT_COLUMNS = (
    "mode", "bound", "above_peak", "limiter", "resources_source", "traffic_source", "least_limit", "least_alone_limit",
    "predicted_limit", "predicted_on",
)  # fmt: skip
"""Columns that are text where a row has a value; other columns of parts are numbers."""


def frame(run: RunData, gpu: str = "h200") -> pandas.DataFrame:
    """Return the results of a run as a pandas frame, one row per result; missing values are NaN or None, never 0.

    Without a GPU, times are predicted for the GPU model `gpu`.
    """
    import pandas

    all_rows = rows(run, gpu)
    table = pandas.DataFrame(
        [{column: _value_at_path(row, path) for column, path in COLUMNS.items()} for row in all_rows],
        columns=list(COLUMNS),
    )
    numeric_columns = [name for name, path in COLUMNS.items() if "." in path and name not in TEXT_COLUMNS]
    table = table.astype(dict.fromkeys(["flops", "compulsory_bytes", *numeric_columns], "float64"))
    return table.assign(**{former: table[column] for former, column in FORMER_COLUMNS.items()})


def _value_at_path(row: Row, path: str) -> object:
    """Return the value at a path of attributes; None if an attribute on the path is None."""
    value: object = row
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _row(result: Result, ceilings: Peaks | None) -> Row:
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
        result.flops,
        result.compulsory_bytes or None,
        result.memory_level,
        verdict=result.verdict,
        resources=_resources(list(result.resources.values())),
    )
    if result.measurement is not None and result.backend != "cpu":
        warnings = tuple(str(warning) for warning in result.measurement.warnings)
        row = replace(row, warnings=warnings, times=_times(row, result.measurement))
    ceilings = ceilings.at_level(result.memory_level) if ceilings else None
    best = bound_and_limit(ceilings, result.flops, result.compulsory_bytes, row.unit) if ceilings else None
    if best is None or ceilings is None:
        return row
    without_launch_s, limit = best
    if result.backend == "cpu":
        launch_s = ceilings.launch_floor_s or 0.0
        best_s, bound = (launch_s, "launch") if launch_s > without_launch_s else best
        predicted = PredictedBest(best_s, without_launch_s, limit, ceilings.gpu.removeprefix("NVIDIA "))
        return replace(row, peak=PeakShare(bound), predicted=predicted)
    if row.times is None:
        return replace(row, peak=PeakShare(limit))
    peak_share = without_launch_s / row.times.time_s
    reason_above = why_above_peak(
        peak_share,
        limit,
        result.memory_level,
        result.compulsory_bytes,
        result.flops_are_a_floor,
        ceilings,
        row.times.mode,
        result.written_bytes,
    )
    return replace(row, peak=PeakShare(limit, peak_share, reason_above))


def _times(row: Row, measurement: Measurement) -> Times | None:
    """Return the times of a measurement, and the rates of the row's work; None for a median of 0."""
    median_s = measurement.median_s
    if not median_s:
        return None
    times = Times(
        median_s,
        mode=measurement.mode,
        kernel_s=measurement.kernel_s,
        throttled=len(measurement.throttled),
        bytes_per_s=row.compulsory_bytes / median_s if row.compulsory_bytes else None,
        flops_per_s=row.flops / median_s if row.flops else None,
    )
    if not measurement.samples_s:  # in older records, a node of a network has only a median
        return times
    first_quartile, third_quartile = measurement.quartiles_s
    return replace(
        times,
        time_low_s=measurement.low_s,
        time_high_s=measurement.high_s,
        spread=(third_quartile - first_quartile) / median_s,
        samples=len(measurement.samples_s),
    )


def _resources(kernels: Sequence[LaunchResources]) -> CompiledResources | None:
    if not kernels:
        return None
    known_occupancies = [(k.occupancy, k.limiter) for k in kernels if k.occupancy is not None]
    occupancy, limiter = min(known_occupancies, default=(None, ""))
    return CompiledResources(
        max(k.registers for k in kernels),
        max(k.shared_bytes + (k.dynamic_shared_bytes or 0) for k in kernels),
        max(k.local_bytes for k in kernels),
        occupancy,
        limiter or None,
        max((k.spill_bytes for k in kernels if k.spill_bytes is not None), default=None),
        next((k.source for k in kernels if k.source), None),
    )


def _predicted_traffic(
    row: Row, traffic: Traffic, resources: Mapping[str, LaunchResources], ceilings: Peaks | None
) -> PredictedTraffic | None:
    """Return the predicted bytes at L2 and DRAM, and the lower bound from these bytes and the arithmetic."""
    traffic_by_level = levels(traffic, resources)
    if traffic_by_level is None or ceilings is None:
        return None
    limits = bounds(traffic_by_level, row.flops or 0, row.unit, ceilings, row.compulsory_bytes or 0, row.memory_level)
    without_launch = next((bound for bound in limits if bound.limit != "launch"), None)
    return PredictedTraffic(
        traffic_by_level.l2_bytes, traffic_by_level.dram_bytes, next(iter(limits), None), without_launch
    )


def _fastest_row(group: Iterable[Row]) -> Row | None:
    return min((row for row in group if row.ranked), key=lambda row: row.time_s or math.inf, default=None)


def _speedups_by_case(group: Sequence[Row]) -> dict[str, Speedups]:
    """Return the speedups of the cases of one problem, by case."""
    best = {name: _fastest_row(row for row in group if row.variant == name) for name in {row.variant for row in group}}
    previous_variant = {row.variant: row.builds_on for row in group}
    speedups_by_case: dict[str, Speedups] = {}
    for row in group:
        if not row.ranked:
            continue
        libraries = [r for r in group if r.library and r.precision == row.precision]
        base = best.get(first_variant(row.variant, previous_variant)) if not row.library else None
        if base is not None and UNIT_ROUNDOFF.get(base.precision, 0.0) > UNIT_ROUNDOFF.get(row.precision, 0.0):
            # The ladder's first variants were not measured, and the first measured one is less precise than this case:
            # a speedup over it would not be fair.
            base = None
        speedups_by_case[row.case] = Speedups(
            _speedup(best.get(row.builds_on), row),
            _speedup(_fastest_row(libraries), row),
            _speedup(base, row),
            *(speedup_interval(base, row) if base is not None else ()),
        )
    return speedups_by_case


def first_variant(variant: str, previous_variant: Mapping[str, str]) -> str:
    """Return the lowest variant of the run on the ladder below another variant."""
    visited = {variant}
    while (previous := previous_variant.get(variant, "")) and previous in previous_variant and previous not in visited:
        visited.add(previous)
        variant = previous
    return variant


def _speedup(base: Row | None, row: Row) -> float | None:
    return base.times.time_s / row.times.time_s if base and base.times and row.times else None


def speedup_interval(base: Row, row: Row) -> tuple[float | None, float | None]:
    """Return an interval of base's time divided by row's, from opposite ends of both 95 % intervals."""
    if base is row or not (base.times and row.times):
        return None, None
    base_interval, row_interval = base.times.interval_s, row.times.interval_s
    return (
        (base_interval[0] / row_interval[1], base_interval[1] / row_interval[0])
        if base_interval and row_interval
        else (None, None)
    )


def is_tie(leader: Row, row: Row) -> bool:
    """Return whether the 95 % intervals of two medians overlap."""
    row_interval, leader_interval = (
        compared.times.interval_s if compared.times else None for compared in (row, leader)
    )
    return row_interval[0] <= leader_interval[1] if row_interval and leader_interval else row.time_s == leader.time_s


def tie_groups(group: Iterable[Row]) -> list[list[Row]]:
    """Return ranked rows by time, in groups of ties: each row's interval overlaps that of the group's fastest."""
    groups: list[list[Row]] = []
    for row in sorted((r for r in group if r.ranked), key=lambda r: (r.time_s, r.name)):
        if groups and is_tie(groups[-1][0], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def ranked_rows(group: Iterable[Row]) -> list[tuple[Row, str]]:
    """Return rows ordered by rank, with the ranks as printed."""
    ranked, position = [], 1
    for tie in tie_groups(group):
        ranked += [(row, f"{position}=" if len(tie) > 1 else str(position)) for row in tie]
        position += len(tie)
    return ranked
