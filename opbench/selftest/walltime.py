"""Compares the wall time of measuring: opbench against `cuda.bench`, and a run against one process per case."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opbench import units
from opbench.errors import OpbenchError
from opbench.results.files import Run
from opbench.results.selftest import Part
from opbench.timing import stats
from opbench.timing.sampling import TimingOptions
from opbench.timing.stopping import half_width

RACE = TimingOptions(budget_s=15.0, max_samples=5000)
"""Our stopping rule with nvbench's time limit, so that both engines have the same limit."""
MOST_CELLS, SAMPLED = 40, 8
RACE_LIMIT_S = 180.0
"""No case starts after this time; nvbench takes up to 15 s for one."""
WANTED_RATIO, WANTED_RUN = 1.0, 5.0


@dataclass(frozen=True)
class OwnTime:
    """One case, measured by opbench's engine."""

    spent_s: float
    """Wall time from the first warm-up to the last sample."""
    half_width: float
    """Half-width of the median's 95 % interval, divided by the median."""
    samples: int
    stop_reason: str


@dataclass
class ComparedCell:
    """One case as the child process measured it by both engines, or why it was left out."""

    left_out: str = ""
    own: OwnTime | None = None
    bench_s: float = 0.0
    """Wall time of nvbench's cold samples."""
    bench_samples_s: Sequence[float] = ()


@dataclass(frozen=True)
class Comparison:
    """One case, measured by both engines on the same launch, one directly after the other."""

    case: str
    ours_s: float
    """Wall time from the first warm-up to the last sample."""
    ours_half_width: float
    """Half-width of the median's 95 % interval, divided by the median."""
    ours_samples: int
    ours_stop: str
    bench_s: float
    """Wall time of nvbench's cold measurement as nvbench reports it, without its warm-up."""
    bench_half_width: float | None
    """Half-width of the 95 % interval of nvbench's samples, divided by their median; None without samples."""
    bench_samples: int


@dataclass(frozen=True)
class SingleProcessTime:
    """One case measured by `cuda.bench` at its defaults in a process of its own."""

    case: str
    process_s: float
    """Wall time of the whole process."""
    bench_s: float
    """The part of `process_s` in which nvbench measured cold samples, then batches."""


def spread(names: Iterable[str], max_count: int) -> list[str]:
    """Choose at most `max_count` names by a checksum of each name; keep their order."""
    names = list(names)
    sampled_names = set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:max_count])
    return [name for name in names if name in sampled_names]


def interval_half_width(samples_s: Sequence[float]) -> float | None:
    """Return the half-width of the median's 95 % interval over the median; None for fewer than six samples."""
    return half_width(samples_s, stats.median_interval(samples_s)) if len(samples_s) > 5 else None


def wall_time(
    compare_engines: Callable[[], tuple[Sequence[Comparison], Sequence[str]]],
    time_alone: Callable[[Sequence[str]], Sequence[SingleProcessTime]],
    run: Run | None = None,
) -> Part:
    """Compare both engines on the quick suite's cases, then measure a few cases in one process each.

    `compare_engines` returns the comparisons and a note for each skipped case. The wall time of `run` is compared with
    one process for each of its cases.
    """
    part = Part("wall", "Wall time against cuda.bench")
    claim = "a case is measured in no more wall time than by cuda.bench"
    try:
        comparisons, left_out = compare_engines()
    except OpbenchError as error:
        part.add_claim(claim, str(error).splitlines()[0], f"ratio ≤ {WANTED_RATIO:g}", None)
        return part
    part.notes += left_out
    if not comparisons:
        part.add_claim(claim, "no case was measured by both", f"ratio ≤ {WANTED_RATIO:g}", None)
        return part
    _judge_comparisons(part, claim, comparisons)
    try:
        alone_times = list(time_alone(spread((c.case for c in comparisons), SAMPLED)))
    except OpbenchError as error:
        part.notes.append(f"a process per case: {str(error).splitlines()[0]}")
        return part
    if alone_times:
        _judge_processes(part, alone_times, run, comparisons)
    return part


def _judge_comparisons(part: Part, claim: str, comparisons: Sequence[Comparison]) -> None:
    own_s, bench_s = sum(c.ours_s for c in comparisons), sum(c.bench_s for c in comparisons)
    ratios = sorted(c.ours_s / c.bench_s for c in comparisons)
    cells = len(comparisons)
    within_ratio = sum(ratio <= WANTED_RATIO for ratio in ratios)
    text = (
        f"{own_s / bench_s:.3g} ({units.duration(own_s)} of {units.duration(bench_s)} over {cells} cases; "
        f"{within_ratio} of {cells} cases ≤ {WANTED_RATIO:g}; "
        f"median {stats.median(ratios):.3g}, worst {ratios[-1]:.3g})"
    )
    part.add_claim(claim, text, f"ratio ≤ {WANTED_RATIO:g} over the sum", own_s <= WANTED_RATIO * bench_s)
    reached_target = sum(c.ours_stop == "target" for c in comparisons)
    part.notes.append(
        f"{reached_target} of {cells} of our cases end at the target of {units.percent(RACE.target)}, the others as "
        "their row says. Our time runs from the first warm-up to the last sample. For cuda.bench it is what nvbench "
        "reports for its cold measurement, at its default stopping criterion, without its warm-up. Neither time "
        "includes building, judging or the start of the processes."
    )
    rows = [
        (
            c.case, units.duration(c.ours_s), units.duration(c.bench_s), f"{c.ours_s / c.bench_s:.3g}",
            f"{half_width_text(c.ours_half_width)} ({c.ours_samples}, {c.ours_stop})",
            f"{half_width_text(c.bench_half_width)} ({c.bench_samples})" if c.bench_half_width is not None else "–",
        )
        for c in comparisons
    ]  # fmt: skip
    headings = ("case", "ours", "cuda.bench", "ratio", "our interval (samples, why it ended)", "its interval (samples)")
    part.add_table(
        "Wall time of one case's cold samples, and the median's 95 % interval that they give", headings, rows
    )
    part.figures["laps"] = [vars(c) for c in comparisons]


def _judge_processes(
    part: Part, times: Sequence[SingleProcessTime], run: Run | None, comparisons: Sequence[Comparison]
) -> None:
    mean = sum(cell.process_s for cell in times) / len(times)
    part.figures |= {"alone": [vars(cell) for cell in times], "alone_mean_s": mean}
    rows = [(cell.case, units.duration(cell.process_s), units.duration(cell.bench_s)) for cell in times]
    rows.append(("mean", units.duration(mean), units.duration(sum(cell.bench_s for cell in times) / len(times))))
    headings = ("case", "whole process", "of it measured")
    part.add_table("One process a case: cuda.bench at its defaults, machine code compiled before", headings, rows)
    part.notes.append(f"One process a case takes {units.duration(mean)} on average; a run's cases take this time each.")
    if run is None:
        return
    claim = f"the run in {run.folder} is faster than a process of cuda.bench a case"
    cases = sum(1 for result in run.results if result.measurement)
    if not run.wall_s or not cases:
        part.add_claim(claim, "the run has no wall time or no measurement", f"≥ {WANTED_RUN:g}×", None)
        return
    widths = [interval_half_width(r.samples_s) for r in run.results if r.measurement]
    known_widths = [width for width in widths if width is not None]
    bench_widths = [c.bench_half_width for c in comparisons if c.bench_half_width is not None]
    text = (
        f"{units.ratio(cases * mean / run.wall_s)} ({units.duration(run.wall_s)}, checks included, where {cases} "
        f"processes take {units.duration(cases * mean)})"
    )
    if known_widths and bench_widths:
        own_width, bench_width = (half_width_text(stats.median(widths)) for widths in (known_widths, bench_widths))
        text += f"; median interval {own_width}, its {bench_width}"
    part.add_claim(claim, text, f"≥ {WANTED_RUN:g}×", cases * mean >= WANTED_RUN * run.wall_s)
    part.figures["run"] = {"wall_s": run.wall_s, "cases": cases, "times_faster": cases * mean / run.wall_s}


def half_width_text(half_width_: float) -> str:
    """Format a relative half-width, such as "±0.32 %"."""
    return f"±{100 * half_width_:.2g} %"
