"""What a device compiler makes of a source's accesses: wider instructions, and loads only where they are used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from opbench.backend.counts import COUNTS, PREDICTED, LineTraffic, Traffic
from opbench.gpu.limits.resources import MachineCode

NEAR = 0.05
"""How far the share of a width among the requests may lie from its share among the instructions."""
INSTRUCTIONS = {
    ("global", "load"): "LDG",
    ("global", "store"): "STG",
    ("shared", "load"): "LDS",
    ("shared", "store"): "STS",
}
MERGED = (8, 16)
"""Bytes a lane that neighbouring accesses are merged to."""
TOO_MANY = 6
"""Accesses of one line from which on no assignment of widths is looked for."""

KERNEL_SUFFIX = ".cu"
"""Of the files that hold kernels: their lines stand without a name in `Code`, those of headers as "tile.cuh:20"."""

Code = Mapping[str, MachineCode]
"""By kernel."""
NO_CODE = MachineCode(0)


@dataclass(frozen=True)
class Note:
    """What the machine code does with the accesses of one line."""

    space: str
    kind: str
    applied: bool
    """False when the counts could not be corrected for it."""
    words: str


@dataclass(frozen=True)
class Lowered:
    """Traffic as the machine code would cause it."""

    traffic: Traffic
    notes: tuple[Note, ...]


def lower(traffic: Traffic, code: Code) -> Lowered:
    """Correct the counts of the source by the machine code of each line.

    Accesses are merged only where the machine code's widths leave no other reading; where they leave none, or several
    widths do not add up, the count stays and a note says what the machine code has. The result is predicted.
    """
    lines: list[LineTraffic] = []
    notes: list[Note] = []
    place = lambda entry: (entry.kernel, entry.file, entry.line, entry.space, entry.kind)  # noqa: E731
    for (kernel, file, line, space, kind), found in itertools.groupby(sorted(traffic.lines, key=place), place):
        group = tuple(found)
        known = code.get(kernel, NO_CODE)
        at = str(line) if file.endswith(KERNEL_SUFFIX) else f"{PurePath(file).name}:{line}"
        widths = _widths(known.lines.get(at, {}), space, kind)
        made, note = _merge(group, widths)
        if note is None:
            made, note = _sink(traffic, made, known.sunk.get(at, 0))
        lines += made
        notes += [note] if note else []
    changed = any(note.applied for note in notes)
    source = PREDICTED if changed else traffic.source
    return Lowered(replace(traffic, lines=tuple(lines), source=source), tuple(notes))


def _widths(accesses: Mapping[str, int], space: str, kind: str) -> dict[int, int]:
    """Instructions by bytes a lane; empty where there are none or others serve this space too."""
    name = INSTRUCTIONS.get((space, kind))
    found = {key.partition("."): count for key, count in accesses.items()}
    if name is None or any(base in ("LD", "ST", "LDGSTS", "LDSM", "STSM") for base, _, _ in found):
        return {}
    return {int(bits) // 8: count for (base, _, bits), count in found.items() if base == name}


# Merged accesses --------------------------------------------------------------------------------------------------


def _merge(group: tuple[LineTraffic, ...], widths: Mapping[int, int]) -> tuple[tuple[LineTraffic, ...], Note | None]:
    """The accesses of one line with the widths that the machine code has for them."""
    if not widths or {entry.width for entry in group} == set(widths) or len(group) > TOO_MANY:
        return group, None
    space, kind = group[0].space, group[0].kind
    name = INSTRUCTIONS[space, kind]
    has = ", ".join(f"{count} {name}.{8 * width}" for width, count in sorted(widths.items(), reverse=True))
    asked = " and ".join(f"{width}" for width in sorted({entry.width for entry in group}))
    words = f"{group[0].place}: {has} in the machine code for {asked}-byte accesses"
    for made in _readings(group, widths):
        if _matches(made, widths):
            return made, Note(space, kind, True, words)
    return group, Note(space, kind, False, words)


def _readings(group: Sequence[LineTraffic], widths: Mapping[int, int]) -> Iterator[tuple[LineTraffic, ...]]:
    """Every way to give the accesses widths of the machine code, the fewest merged first."""
    options = []
    for entry in group:
        merged = [widened(entry, width) for width in MERGED if width in widths and saves(entry, width)]
        options.append([entry, *merged] if entry.width in widths else merged)
    found = itertools.product(*options)
    yield from sorted(found, key=lambda made: sum(new is not old for new, old in zip(made, group, strict=True)))


def _matches(made: Sequence[LineTraffic], widths: Mapping[int, int]) -> bool:
    """Whether each width's share of the requests is that of the instructions, as it is in code without branches."""
    requests = {width: sum(e.requests for e in made if e.width == width) for width in widths}
    total, instructions = sum(requests.values()), sum(widths.values())
    return bool(total) and all(abs(requests[w] / total - widths[w] / instructions) <= NEAR for w in widths)


def saves(entry: LineTraffic, width: int) -> bool:
    """Whether some accesses have neighbours that an instruction of that width could take along."""
    return width > entry.width and bool(getattr(entry, f"requests_saved_{width}"))


def widened(entry: LineTraffic, width: int) -> LineTraffic:
    """An access whose neighbours are merged to `width` bytes a lane."""
    parts = ("requests", "sectors", "wavefronts", "ideal_wavefronts")
    saved = {name: getattr(entry, f"{name}_saved_{width}") for name in parts}
    counts = {name: getattr(entry, name) - less for name, less in saved.items()}
    upper = {f"upper_{name}": getattr(entry, f"upper_{name}") - saved[name] for name in parts[:3]}
    return replace(entry, **counts, **upper, width=width, lanes=entry.lanes * entry.width // width)


# Loads moved to where they are used -------------------------------------------------------------------------------


def _sink(traffic: Traffic, group: tuple[LineTraffic, ...], under: int) -> tuple[tuple[LineTraffic, ...], Note | None]:
    """Loads that happen only under the condition of a later line, scaled to what that line's accesses ask for.

    Sound where the condition holds for all lanes of a request or for none: then both have as many lanes.
    """
    first = group[0]
    guarded = [
        entry
        for entry in traffic.select(kernel=first.kernel, line=under)
        if under and entry.file == first.file and entry.requests and entry.kind == "store"
    ]
    if first.kind != "load" or len(group) != 1 or len(guarded) != 1 or guarded[0].requests >= first.requests:
        return group, None
    words = f"{first.place}: loaded under the condition of line {under} in the machine code"
    if guarded[0].lanes * first.requests != first.lanes * guarded[0].requests:
        return group, Note(first.space, first.kind, False, words)
    factor = guarded[0].requests / first.requests
    scaled = {name: round(getattr(first, name) * factor) for name in COUNTS}
    return (replace(first, **scaled),), Note(first.space, first.kind, True, words)
