"""The same kernels by several clocks: events, a graph, and witnesses that opbench did not write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opbench import units
from opbench.errors import OpbenchError
from opbench.results.selftest import Part
from opbench.selftest.checks import signed
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
class Witness:
    """Another clock for the same cells."""

    name: str
    what: str
    """"span", what two events see after a flush that leaves the L2 dirty, or "kernel", the kernel's own time."""
    margin_s: float | None
    """Beside 2 %, what it may differ by to agree; None where nothing is claimed."""
    times: Callable[[Sequence[Cell]], Mapping[str, float]]
    """Seconds by cell's name; raises OpbenchError with the reason when it cannot, such as that it is not installed."""


def cells_for(device: SelftestDevice) -> list[Cell]:
    """Kernels from 1 µs to 10 ms: one thread computing, and all reading."""
    rate, most = cycles_per_second(device.clock()), 2 * l2_bytes(device)
    computing = [Cell("cycles", int(length * rate), f"computes {units.time(length)}") for length in LENGTHS_S]
    return computing + [Cell("read", size, f"reads {size_text(size)}") for size in SIZES if size <= most]


def clocks(
    device: SelftestDevice, budget_s: float, witnesses: Sequence[Witness] = (), now: Now = time.perf_counter
) -> Part:
    """Agreement per cell, cold with cold."""
    part = Part("clocks", "Other clocks")
    clock = device.clock("cold")
    cells, memory = cells_for(device), untouched(device)
    options = TimingOptions(budget_s=max(0.05, budget_s / 6 / len(cells)))
    seen: dict[str, Mapping[str, float]] = {}
    seen["events"] = _medians(clock, memory, cells, options, now)
    seen["dirty"] = _medians(device.clock("dirty"), memory, cells, options, now)
    seen["kernel"] = {name: span - clock.offset() for name, span in seen["events"].items()}
    part.figures |= {f"{name}_s": dict(times) for name, times in seen.items()} | {"offset_s": clock.offset()}
    missing: dict[str, str] = {}
    graph = Witness("graph", "kernel", None, lambda some: _medians(device.clock("graph"), memory, some, options, now))
    asked = (graph, *witnesses)
    for witness in asked:
        try:
            seen[witness.name] = witness.times(cells)
            part.figures[f"{witness.name}_s"] = dict(seen[witness.name])
        except OpbenchError as error:
            missing[witness.name] = str(error)
        _judge(part, witness, seen, missing)
    part.notes.append(
        "A graph replays one kernel many times, so that what it reads stays in L2 if it fits; all others are cold. "
        "cuda.bench flushes with a memset, whose lines have to be written back while the kernel runs: it is compared "
        "with spans after a flush that leaves the L2 dirty, too."
    )
    part.notes += [f"{name}: {reason}" for name, reason in missing.items()]
    there = [witness for witness in asked if witness.name in seen]
    head = ["kernel", "span", "span, L2 dirty", "kernel time (span − offset)"]
    head += [part_ for w in there for part_ in (f"{w.name} ({w.what})", "ours − its")]
    part.table("One kernel by all clocks", head, [_row(cell, there, seen) for cell in cells])
    return part


def _medians(
    clock: SelftestClock, memory: SelftestClock, cells: Sequence[Cell], options: TimingOptions, now: Now
) -> dict[str, float]:
    launches = {cell.name: cell.launch(memory) for cell in cells}
    return {name: m.median_s for name, m in measure(clock, launches, options, now=now).items()}


def _ours(witness: Witness, seen: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    return seen["dirty" if witness.what == "span" else "kernel"]


def _judge(part: Part, witness: Witness, seen: Mapping[str, Mapping[str, float]], missing: Mapping[str, str]) -> None:
    """One claim a witness that a target is set for: every cell within 2 % or the margin."""
    if witness.margin_s is None:
        return
    what = "spans" if witness.what == "span" else "kernel times"
    sentence, wanted = (
        f"{what} agree with {witness.name}",
        f"within {units.percent(RELATIVE)} or {witness.margin_s * 1e6:g} µs",
    )
    if witness.name in missing:
        part.claim(sentence, missing[witness.name].splitlines()[0], wanted, None)
        return
    its, ours = seen[witness.name], _ours(witness, seen)
    off = {name: abs(ours[name] - value) / max(RELATIVE * value, witness.margin_s) for name, value in its.items()}
    if not off:
        part.claim(sentence, "it timed no cell", wanted, None)
        return
    worst = max(off, key=lambda name: off[name])
    outside = sum(share > 1 for share in off.values())
    text = f"{len(off) - outside} of {len(off)} cells; farthest: {worst}, {signed(ours[worst] - its[worst])}"
    part.claim(sentence, text, wanted, outside == 0)


def _row(cell: Cell, witnesses: Sequence[Witness], seen: Mapping[str, Mapping[str, float]]) -> list[str]:
    row = [cell.name, *(units.time(seen[which][cell.name]) for which in ("events", "dirty", "kernel"))]
    for witness in witnesses:
        its = seen[witness.name].get(cell.name)
        row += [units.time(its), signed(_ours(witness, seen)[cell.name] - its) if its is not None else "–"]
    return row


def median_of(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each cell's samples."""
    return {name: stats.median(values) for name, values in samples.items() if values}
