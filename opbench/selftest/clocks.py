"""Times the same kernels with several clocks: events, a graph, and reference timers that are no part of opbench."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opbench import units
from opbench.errors import OpbenchError
from opbench.results.selftest import Part
from opbench.selftest.checks import signed_time
from opbench.selftest.device import (
    Cell,
    SelftestClock,
    SelftestDevice,
    cycles_per_second,
    l2_bytes,
    size_text,
    untouched,
)  # fmt: skip
from opbench.timing import stats
from opbench.timing.clock import SecondsClock
from opbench.timing.sampling import TimingOptions, measure

RELATIVE = 0.02
LENGTHS_S = (1e-6, 3e-6, 10e-6, 100e-6, 1e-3, 10e-3)
SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)


@dataclass(frozen=True)
class ReferenceTimer:
    """A timer that is no part of opbench; it times the same cases, so that opbench's times can be compared."""

    name: str
    what: str
    """"span", the time between two events after a flush that leaves L2 dirty, or "kernel", the kernel's own time."""
    margin_s: float | None
    """Allowed difference, if 2 % is less; None if no agreement is claimed."""
    times: Callable[[Sequence[Cell]], Mapping[str, float]]
    """Return seconds by kernel name; raises OpbenchError with the reason, such as a missing package."""


def cells_for(device: SelftestDevice) -> list[Cell]:
    """Return kernels of 1 µs to 10 ms: one thread that computes, and all threads that read."""
    rate, max_bytes = cycles_per_second(device.clock()), 2 * l2_bytes(device)
    computing = [Cell("cycles", int(length * rate), f"computes {units.time(length)}") for length in LENGTHS_S]
    return computing + [Cell("read", size, f"reads {size_text(size)}") for size in SIZES if size <= max_bytes]


def clocks(
    device: SelftestDevice,
    budget_s: float,
    timers: Sequence[ReferenceTimer] = (),
    now_s: SecondsClock = time.perf_counter,
) -> Part:
    """Compare all clocks kernel by kernel, with a cold L2."""
    part = Part("clocks", "Other clocks")
    clock = device.clock("cold")
    cells, memory = cells_for(device), untouched(device)
    options = TimingOptions(budget_s=max(0.05, budget_s / 6 / len(cells)))
    times_by_timer: dict[str, Mapping[str, float]] = {}
    times_by_timer["events"] = _medians(clock, memory, cells, options, now_s)
    times_by_timer["dirty"] = _medians(device.clock("dirty"), memory, cells, options, now_s)
    times_by_timer["kernel"] = {name: span - clock.timing_offset_s() for name, span in times_by_timer["events"].items()}
    part.figures |= {f"{name}_s": dict(times) for name, times in times_by_timer.items()} | {
        "offset_s": clock.timing_offset_s()
    }
    missing: dict[str, str] = {}
    graph = ReferenceTimer(
        "graph", "kernel", None, lambda selected: _medians(device.clock("graph"), memory, selected, options, now_s)
    )
    all_timers = (graph, *timers)
    for timer in all_timers:
        try:
            times_by_timer[timer.name] = timer.times(cells)
            part.figures[f"{timer.name}_s"] = dict(times_by_timer[timer.name])
        except OpbenchError as error:
            missing[timer.name] = str(error)
        _judge(part, timer, times_by_timer, missing)
    part.notes.append(
        "A graph replays one kernel many times, so its data stays in L2 if it fits; all others are cold. "
        "cuda.bench flushes with a memset, whose lines are written back while the kernel runs. It is compared "
        "with spans after a flush that also leaves the L2 dirty."
    )
    part.notes += [f"{name}: {reason}" for name, reason in missing.items()]
    timers_with_times = [timer for timer in all_timers if timer.name in times_by_timer]
    headings = ["kernel", "span", "span, L2 dirty", "kernel time (span − offset)"]
    headings += [part_ for w in timers_with_times for part_ in (f"{w.name} ({w.what})", "ours − its")]
    part.add_table(
        "One kernel by all clocks", headings, [_row(cell, timers_with_times, times_by_timer) for cell in cells]
    )
    return part


def _medians(
    clock: SelftestClock, memory: SelftestClock, cells: Sequence[Cell], options: TimingOptions, now_s: SecondsClock
) -> dict[str, float]:
    launches = {cell.name: cell.launch(memory) for cell in cells}
    return {name: m.median_s for name, m in measure(clock, launches, options, now_s=now_s).items()}


def _ours(timer: ReferenceTimer, times_by_timer: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    return times_by_timer["dirty" if timer.what == "span" else "kernel"]


def _judge(
    part: Part, timer: ReferenceTimer, times_by_timer: Mapping[str, Mapping[str, float]], missing: Mapping[str, str]
) -> None:
    """Claim that every kernel agrees within 2 % or the margin, if the timer has a margin."""
    if timer.margin_s is None:
        return
    quantity = "spans" if timer.what == "span" else "kernel times"
    sentence, required = (
        f"{quantity} agree with {timer.name}",
        f"within {units.percent(RELATIVE)} or {timer.margin_s * 1e6:g} µs",
    )
    if timer.name in missing:
        part.add_claim(sentence, missing[timer.name].splitlines()[0], required, None)
        return
    timer_times, own_times = times_by_timer[timer.name], _ours(timer, times_by_timer)
    errors = {
        name: abs(own_times[name] - value) / max(RELATIVE * value, timer.margin_s)
        for name, value in timer_times.items()
    }
    if not errors:
        part.add_claim(sentence, "it timed no kernel", required, None)
        return
    worst = max(errors, key=lambda name: errors[name])
    outside = sum(share > 1 for share in errors.values())
    difference = signed_time(own_times[worst] - timer_times[worst])
    text = f"{len(errors) - outside} of {len(errors)} kernels; farthest: {worst}, {difference}"
    part.add_claim(sentence, text, required, outside == 0)


def _row(cell: Cell, timers: Sequence[ReferenceTimer], times_by_timer: Mapping[str, Mapping[str, float]]) -> list[str]:
    row = [cell.name, *(units.time(times_by_timer[column][cell.name]) for column in ("events", "dirty", "kernel"))]
    for timer in timers:
        timer_time = times_by_timer[timer.name].get(cell.name)
        row += [
            units.time(timer_time),
            signed_time(_ours(timer, times_by_timer)[cell.name] - timer_time) if timer_time is not None else "–",
        ]
    return row


def median_of(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each kernel's samples."""
    return {name: stats.median(values) for name, values in samples.items() if values}
