"""How long measuring takes: ours against `cuda.bench` on the same launches, and a run against a process per case."""

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
"""Our stop rule with nvbench's own limit of time, so that it ends for its own reason as nvbench does."""
MOST_CELLS, SAMPLED = 40, 8
RACE_LIMIT_S = 180.0
"""No further cell is begun after so long: nvbench takes up to 15 s for one."""
WANTED_RATIO, WANTED_RUN = 1.0, 5.0


@dataclass(frozen=True)
class Lap:
    """One cell by both engines on the same launch, one right after the other."""

    case: str
    ours_s: float
    """Wall time from the first warm-up to the last sample."""
    ours_half_width: float
    """Of the median's 95 % interval, over the median."""
    ours_samples: int
    ours_stop: str
    bench_s: float
    """What nvbench says that its cold measurement took, its warm-up not included."""
    bench_half_width: float | None
    """The same interval over nvbench's samples; None where it left none."""
    bench_samples: int


@dataclass(frozen=True)
class Alone:
    """One cell measured by `cuda.bench` at its defaults in a process of its own."""

    case: str
    process_s: float
    """Wall time of the whole process."""
    bench_s: float
    """Of these, what nvbench measured for: cold samples, then batches."""


def spread(names: Iterable[str], most: int) -> list[str]:
    """At most so many names, chosen by a checksum of the name alone, in their order."""
    names = list(names)
    chosen = set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:most])
    return [name for name in names if name in chosen]


def interval_half_width(samples_s: Sequence[float]) -> float | None:
    """Half the width of the median's 95 % interval over the median; None of fewer samples than one can be had of."""
    return half_width(samples_s, stats.median_interval(samples_s)) if len(samples_s) > 5 else None


def wall_time(
    race: Callable[[], tuple[Sequence[Lap], Sequence[str]]],
    alone: Callable[[Sequence[str]], Sequence[Alone]],
    run: Run | None = None,
) -> Part:
    """Race both engines over the quick suite's cells, then measure a few of them in a process each.

    `race` gives the laps, and in words what it left out; `run` is compared with as many processes as it has cases.
    """
    part = Part("wall", "Wall time against cuda.bench")
    sentence = "a cell is measured in no more wall time than by cuda.bench"
    try:
        laps, left_out = race()
    except OpbenchError as error:
        part.claim(sentence, str(error).splitlines()[0], f"ratio ≤ {WANTED_RATIO:g}", None)
        return part
    part.notes += left_out
    if not laps:
        part.claim(sentence, "no cell was measured by both", f"ratio ≤ {WANTED_RATIO:g}", None)
        return part
    _judge_race(part, sentence, laps)
    try:
        found = list(alone(spread((lap.case for lap in laps), SAMPLED)))
    except OpbenchError as error:
        part.notes.append(f"a process per cell: {str(error).splitlines()[0]}")
        return part
    if found:
        _judge_alone(part, found, run, laps)
    return part


def _judge_race(part: Part, sentence: str, laps: Sequence[Lap]) -> None:
    ours, theirs = sum(lap.ours_s for lap in laps), sum(lap.bench_s for lap in laps)
    ratios = sorted(lap.ours_s / lap.bench_s for lap in laps)
    below = sum(ratio <= WANTED_RATIO for ratio in ratios)
    text = (
        f"{ours / theirs:.3g} ({units.duration(ours)} of {units.duration(theirs)} over {len(laps)} cells; "
        f"{below} of {len(laps)} cells ≤ {WANTED_RATIO:g}; median {stats.median(ratios):.3g}, worst {ratios[-1]:.3g})"
    )
    part.claim(sentence, text, f"ratio ≤ {WANTED_RATIO:g} over the sum", ours <= WANTED_RATIO * theirs)
    reached = sum(lap.ours_stop == "target" for lap in laps)
    part.notes.append(
        f"{reached} of {len(laps)} of our cells end at the target of {units.percent(RACE.target)}, the others as their "
        "row says. Ours is the wall time from the first warm-up to the last sample; of cuda.bench it is what nvbench "
        "itself says that its cold measurement took, at its default stopping criterion, without its warm-up. Building, "
        "judging, and what either does once a process is in neither."
    )
    rows = [
        (
            lap.case, units.duration(lap.ours_s), units.duration(lap.bench_s), f"{lap.ours_s / lap.bench_s:.3g}",
            f"{reach(lap.ours_half_width)} ({lap.ours_samples}, {lap.ours_stop})",
            f"{reach(lap.bench_half_width)} ({lap.bench_samples})" if lap.bench_half_width is not None else "–",
        )
        for lap in laps
    ]  # fmt: skip
    head = ("cell", "ours", "cuda.bench", "ratio", "our interval (samples, why it ended)", "its interval (samples)")
    part.table("Wall time of one cell's cold samples, and the median's 95 % interval that they give", head, rows)
    part.figures["laps"] = [vars(lap) for lap in laps]


def _judge_alone(part: Part, found: Sequence[Alone], run: Run | None, laps: Sequence[Lap]) -> None:
    mean = sum(cell.process_s for cell in found) / len(found)
    part.figures |= {"alone": [vars(cell) for cell in found], "alone_mean_s": mean}
    rows = [(cell.case, units.duration(cell.process_s), units.duration(cell.bench_s)) for cell in found]
    rows.append(("mean", units.duration(mean), units.duration(sum(cell.bench_s for cell in found) / len(found))))
    head = ("cell", "whole process", "of it measured")
    part.table("One process a cell: cuda.bench at its defaults, machine code compiled before", head, rows)
    part.notes.append(
        f"One process a cell takes {units.duration(mean)} in the mean; times a run's cases, that is what these take."
    )
    if run is None:
        return
    sentence = f"the run in {run.folder} is faster than a process of cuda.bench a case"
    cases = sum(1 for result in run.results if result.measurement)
    if not run.wall_s or not cases:
        part.claim(sentence, "the run does not say how long it took, or measured nothing", f"≥ {WANTED_RUN:g}×", None)
        return
    widths = [interval_half_width(r.samples_s) for r in run.results if r.measurement]
    known = [width for width in widths if width is not None]
    theirs = [lap.bench_half_width for lap in laps if lap.bench_half_width is not None]
    text = (
        f"{units.ratio(cases * mean / run.wall_s)} ({units.duration(run.wall_s)}, checks included, where {cases} "
        f"processes take {units.duration(cases * mean)})"
    )
    if known and theirs:
        text += f"; median interval {reach(stats.median(known))}, its {reach(stats.median(theirs))}"
    part.claim(sentence, text, f"≥ {WANTED_RUN:g}×", cases * mean >= WANTED_RUN * run.wall_s)
    part.figures["run"] = {"wall_s": run.wall_s, "cases": cases, "times_faster": cases * mean / run.wall_s}


def reach(half_width_: float) -> str:
    """A relative half-width, such as "±0.32 %"."""
    return f"±{100 * half_width_:.2g} %"
