"""Correct a source's accesses by the machine code: wider instructions, and loads moved to where they are used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from opbench.backend.counts import COUNTS, ORIGIN_PREDICTED, LineTraffic, Traffic
from opbench.gpu.limits.resources import MachineCode

WIDTH_TOLERANCE = 0.05
"""Largest difference between a width's share of the requests and its share of the instructions."""
INSTRUCTIONS = {
    ("global", "load"): "LDG",
    ("global", "store"): "STG",
    ("shared", "load"): "LDS",
    ("shared", "store"): "STS",
}
MERGED_BYTES = (8, 16)
"""Bytes per lane to which neighbouring accesses may be merged."""
MAX_ACCESSES = 6
"""With more accesses than this in one line, widths are not assigned."""

KERNEL_SUFFIX = ".cu"
"""Suffix of kernel files: their lines in `Code` are plain numbers, lines of headers are like "tile.cuh:20"."""

Code = Mapping[str, MachineCode]
"""Machine code by kernel name."""
NO_CODE = MachineCode(0)


@dataclass(frozen=True)
class Note:
    """A difference between the machine code and the source's accesses of one line."""

    space: str
    kind: str
    applied: bool
    """False if the counts could not be corrected for it."""
    text: str


@dataclass(frozen=True)
class LoweredTraffic:
    """Traffic as the machine code causes it, with notes on the differences from the source."""

    traffic: Traffic
    notes: tuple[Note, ...]


def lower_traffic(traffic: Traffic, code: Code) -> LoweredTraffic:
    """Correct the counts of the source by the machine code of each line.

    Accesses are merged if some assignment of the machine code's widths matches; of several, the one with the fewest
    merged accesses is taken. If none matches, the counts are unchanged and a note describes the machine code. A
    corrected result has the source "predicted".
    """
    lines: list[LineTraffic] = []
    notes: list[Note] = []
    access_key = lambda entry: (entry.kernel, entry.file, entry.line, entry.space, entry.kind)  # noqa: E731
    for (kernel, file, line, space, kind), accesses in itertools.groupby(
        sorted(traffic.lines, key=access_key), access_key
    ):
        group = tuple(accesses)
        kernel_code = code.get(kernel, NO_CODE)
        line_key = str(line) if file.endswith(KERNEL_SUFFIX) else f"{PurePath(file).name}:{line}"
        widths = _instruction_widths(kernel_code.lines.get(line_key, {}), space, kind)
        merged, note = _merge_accesses(group, widths)
        if note is None:
            merged, note = _scale_sunk_loads(traffic, merged, kernel_code.sunk.get(line_key, 0))
        lines += merged
        notes += [note] if note else []
    changed = any(note.applied for note in notes)
    source = ORIGIN_PREDICTED if changed else traffic.source
    return LoweredTraffic(replace(traffic, lines=tuple(lines), source=source), tuple(notes))


def _instruction_widths(accesses: Mapping[str, int], space: str, kind: str) -> dict[int, int]:
    """Return the number of instructions by bytes per lane; empty if there are none or others may access this space."""
    name = INSTRUCTIONS.get((space, kind))
    counts = {key.partition("."): count for key, count in accesses.items()}
    if name is None or any(base in ("LD", "ST", "LDGSTS", "LDSM", "STSM") for base, _, _ in counts):
        return {}
    return {int(bits) // 8: count for (base, _, bits), count in counts.items() if base == name}


# Merged accesses --------------------------------------------------------------------------------------------------


def _merge_accesses(
    group: tuple[LineTraffic, ...], widths: Mapping[int, int]
) -> tuple[tuple[LineTraffic, ...], Note | None]:
    """Return the accesses of one line with the widths in the machine code, and a note on the change."""
    if not widths or {entry.width for entry in group} == set(widths) or len(group) > MAX_ACCESSES:
        return group, None
    space, kind = group[0].space, group[0].kind
    name = INSTRUCTIONS[space, kind]
    instructions_text = ", ".join(
        f"{count} {name}.{8 * width}" for width, count in sorted(widths.items(), reverse=True)
    )
    widths_text = " and ".join(f"{width}" for width in sorted({entry.width for entry in group}))
    text = f"{group[0].place}: {instructions_text} in the machine code for {widths_text}-byte accesses"
    for assignment in _width_assignments(group, widths):
        if _matches_widths(assignment, widths):
            return assignment, Note(space, kind, True, text)
    return group, Note(space, kind, False, text)


def _width_assignments(group: Sequence[LineTraffic], widths: Mapping[int, int]) -> Iterator[tuple[LineTraffic, ...]]:
    """Yield every assignment of the machine code's widths to the accesses, with the fewest merged accesses first."""
    options = []
    for entry in group:
        merged = [
            merge_neighbours(entry, width) for width in MERGED_BYTES if width in widths and can_merge(entry, width)
        ]
        options.append([entry, *merged] if entry.width in widths else merged)
    assignments = itertools.product(*options)
    yield from sorted(
        assignments, key=lambda assignment: sum(new is not old for new, old in zip(assignment, group, strict=True))
    )


def _matches_widths(traffic: Sequence[LineTraffic], widths: Mapping[int, int]) -> bool:
    """Return whether each width's share of requests equals that of instructions, as in code without branches."""
    requests = {width: sum(e.requests for e in traffic if e.width == width) for width in widths}
    total, instructions = sum(requests.values()), sum(widths.values())
    return bool(total) and all(abs(requests[w] / total - widths[w] / instructions) <= WIDTH_TOLERANCE for w in widths)


def can_merge(entry: LineTraffic, width: int) -> bool:
    """Return whether an access could be merged with its neighbours into instructions of `width` bytes per lane."""
    return width > entry.width and bool(getattr(entry, f"requests_saved_{width}"))


def merge_neighbours(entry: LineTraffic, width: int) -> LineTraffic:
    """Return an access whose neighbours are merged to `width` bytes per lane."""
    counter_names = ("requests", "sectors", "wavefronts", "ideal_wavefronts")
    saved = {name: getattr(entry, f"{name}_saved_{width}") for name in counter_names}
    counts = {name: getattr(entry, name) - saved_count for name, saved_count in saved.items()}
    upper = {f"upper_{name}": getattr(entry, f"upper_{name}") - saved[name] for name in counter_names[:3]}
    return replace(entry, **counts, **upper, width=width, lanes=entry.lanes * entry.width // width)


# Loads moved to where they are used -------------------------------------------------------------------------------


def _scale_sunk_loads(
    traffic: Traffic, group: tuple[LineTraffic, ...], guarding_line: int
) -> tuple[tuple[LineTraffic, ...], Note | None]:
    """Scale a load that the machine code executes only under the condition of a later line to that line's store.

    This is correct if the condition is uniform within each request; then both accesses have the same number of lanes
    per request. Otherwise the load is unchanged.
    """
    first = group[0]
    guarded = [
        entry
        for entry in traffic.select(kernel=first.kernel, line=guarding_line)
        if guarding_line and entry.file == first.file and entry.requests and entry.kind == "store"
    ]
    if first.kind != "load" or len(group) != 1 or len(guarded) != 1 or guarded[0].requests >= first.requests:
        return group, None
    text = f"{first.place}: loaded under the condition of line {guarding_line} in the machine code"
    if guarded[0].lanes * first.requests != first.lanes * guarded[0].requests:
        return group, Note(first.space, first.kind, False, text)
    factor = guarded[0].requests / first.requests
    scaled = {name: round(getattr(first, name) * factor) for name in COUNTS}
    return (replace(first, **scaled),), Note(first.space, first.kind, True, text)
