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
from opbench.timing.clock import Now
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
    """Return seconds by cell name; raises OpbenchError with the reason, such as a missing package."""


def cells_for(device: SelftestDevice) -> list[Cell]:
    """Return kernels of 1 µs to 10 ms: one thread that computes, and all threads that read."""
    rate, most = cycles_per_second(device.clock()), 2 * l2_bytes(device)
    computing = [Cell("cycles", int(length * rate), f"computes {units.time(length)}") for length in LENGTHS_S]
    return computing + [Cell("read", size, f"reads {size_text(size)}") for size in SIZES if size <= most]


def clocks(
    device: SelftestDevice, budget_s: float, timers: Sequence[ReferenceTimer] = (), now: Now = time.perf_counter
) -> Part:
    """Compare all clocks cell by cell, with a cold L2."""
    part = Part("clocks", "Other clocks")
    clock = device.clock("cold")
    cells, memory = cells_for(device), untouched(device)
    options = TimingOptions(budget_s=max(0.05, budget_s / 6 / len(cells)))
    seen: dict[str, Mapping[str, float]] = {}
    seen["events"] = _medians(clock, memory, cells, options, now)
    seen["dirty"] = _medians(device.clock("dirty"), memory, cells, options, now)
    seen["kernel"] = {name: span - clock.timing_offset_s() for name, span in seen["events"].items()}
    part.figures |= {f"{name}_s": dict(times) for name, times in seen.items()} | {"offset_s": clock.timing_offset_s()}
    missing: dict[str, str] = {}
    graph = ReferenceTimer(
        "graph", "kernel", None, lambda some: _medians(device.clock("graph"), memory, some, options, now)
    )
    asked = (graph, *timers)
    for timer in asked:
        try:
            seen[timer.name] = timer.times(cells)
            part.figures[f"{timer.name}_s"] = dict(seen[timer.name])
        except OpbenchError as error:
            missing[timer.name] = str(error)
        _judge(part, timer, seen, missing)
    part.notes.append(
        "A graph replays one kernel many times, so its data stays in L2 if it fits; all others are cold. "
        "cuda.bench flushes with a memset, whose lines are written back while the kernel runs. It is compared "
        "with spans after a flush that also leaves the L2 dirty."
    )
    part.notes += [f"{name}: {reason}" for name, reason in missing.items()]
    there = [timer for timer in asked if timer.name in seen]
    head = ["kernel", "span", "span, L2 dirty", "kernel time (span − offset)"]
    head += [part_ for w in there for part_ in (f"{w.name} ({w.what})", "ours − its")]
    part.table("One kernel by all clocks", head, [_row(cell, there, seen) for cell in cells])
    return part


def _medians(
    clock: SelftestClock, memory: SelftestClock, cells: Sequence[Cell], options: TimingOptions, now: Now
) -> dict[str, float]:
    launches = {cell.name: cell.launch(memory) for cell in cells}
    return {name: m.median_s for name, m in measure(clock, launches, options, now=now).items()}


def _ours(timer: ReferenceTimer, seen: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    return seen["dirty" if timer.what == "span" else "kernel"]


def _judge(
    part: Part, timer: ReferenceTimer, seen: Mapping[str, Mapping[str, float]], missing: Mapping[str, str]
) -> None:
    """Claim that every cell agrees within 2 % or the margin, if the timer has a margin."""
    if timer.margin_s is None:
        return
    quantity = "spans" if timer.what == "span" else "kernel times"
    sentence, wanted = (
        f"{quantity} agree with {timer.name}",
        f"within {units.percent(RELATIVE)} or {timer.margin_s * 1e6:g} µs",
    )
    if timer.name in missing:
        part.claim(sentence, missing[timer.name].splitlines()[0], wanted, None)
        return
    its, ours = seen[timer.name], _ours(timer, seen)
    off = {name: abs(ours[name] - value) / max(RELATIVE * value, timer.margin_s) for name, value in its.items()}
    if not off:
        part.claim(sentence, "it timed no cell", wanted, None)
        return
    worst = max(off, key=lambda name: off[name])
    outside = sum(share > 1 for share in off.values())
    text = f"{len(off) - outside} of {len(off)} cells; farthest: {worst}, {signed_time(ours[worst] - its[worst])}"
    part.claim(sentence, text, wanted, outside == 0)


def _row(cell: Cell, timers: Sequence[ReferenceTimer], seen: Mapping[str, Mapping[str, float]]) -> list[str]:
    row = [cell.name, *(units.time(seen[which][cell.name]) for which in ("events", "dirty", "kernel"))]
    for timer in timers:
        its = seen[timer.name].get(cell.name)
        row += [units.time(its), signed_time(_ours(timer, seen)[cell.name] - its) if its is not None else "–"]
    return row


def median_of(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each cell's samples."""
    return {name: stats.median(values) for name, values in samples.items() if values}
