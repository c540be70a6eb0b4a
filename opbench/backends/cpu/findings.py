"""The runtime's reports as findings: which buffer, which line, which thread."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.backends.cpu.buffer import CpuArray
from opbench.backends.cpu.elf import DYNAMIC, SharedArray, module_variables, shared_arrays
from opbench.backends.cpu.library import Report
from opbench.backends.cpu.lines import NOWHERE, Place, source_lines
from opbench.backends.cpu.toolchain import INCLUDE
from opbench.catalog.launch import Dim3
from opbench.traffic.findings import SAME_VALUE, Finding, place_words

OUT_OF_BOUNDS = "out_of_bounds"
UNINITIALISED_GLOBAL = "uninitialised_global"
UNINITIALISED_SHARED = "uninitialised_shared"
SHARED_RACE = "shared_race"
BLOCK_RACE = "block_race"
MISALIGNED = "misaligned"
UNFINISHED_COPY = "unfinished_copy"
DIVERGENT_BARRIER = "divergent_barrier"
WARP_MASK = "warp_mask"
DEADLOCK = "deadlock"
STACK_OVERFLOW = "stack_overflow"
TRAP = "trap"
UNFINISHED_PRODUCT = "unfinished_product"
EARLY_OVERWRITE = "early_overwrite"
MISSING_FENCE = "missing_fence"
MBARRIER = "mbarrier"
CLUSTER_EXIT = "cluster_exit"
ILLEGAL_INSTRUCTION = "illegal_instruction"
DIFFERENT_PRODUCTS = "different_products"
MISSING_WAIT = "missing_wait"
GLOBAL_RACE = "global_race"
UNINITIALISED_LOCAL = "uninitialised_local"
INDEX_OVERFLOW = "index_overflow"

# `ReportKind` of runtime/worker.hpp, in its order from 1 on.
(_FAULT, _STACK_OVERFLOW, _SHARED_OVERRUN, _DIVERGENT_BARRIER, _WARP_MASK, _DEADLOCK, _TRAP, _ARITHMETIC,
 _GLOBAL_BOUNDS, _SHARED_BOUNDS, _UNINITIALISED_SHARED, _UNINITIALISED_GLOBAL, _SHARED_RACE, _GLOBAL_RACE,
 _MISALIGNED, _UNFINISHED_COPY,
 _STUCK, _UNFINISHED_BULK, _UNFINISHED_PRODUCT, _EARLY_OVERWRITE, _MISSING_FENCE, _MBARRIER, _CLUSTER_EXIT,
 _ILLEGAL_INSTRUCTION, _BEYOND_SHARED, _DIFFERENT_PRODUCTS, _TOUCHED_SUMS,
 _MISSING_WAIT, _THREAD_RACE, _OUTSIDE_MASK, _INDEX, _OVERFLOW, _LOCAL,
 _SAME_VALUE) = range(1, 35)  # fmt: skip
KINDS = {
    _FAULT: OUT_OF_BOUNDS,
    _STACK_OVERFLOW: STACK_OVERFLOW,
    _SHARED_OVERRUN: OUT_OF_BOUNDS,
    _DIVERGENT_BARRIER: DIVERGENT_BARRIER,
    _WARP_MASK: WARP_MASK,
    _DEADLOCK: DEADLOCK,
    _TRAP: TRAP,
    _ARITHMETIC: TRAP,
    _GLOBAL_BOUNDS: OUT_OF_BOUNDS,
    _SHARED_BOUNDS: OUT_OF_BOUNDS,
    _UNINITIALISED_SHARED: UNINITIALISED_SHARED,
    _UNINITIALISED_GLOBAL: UNINITIALISED_GLOBAL,
    _SHARED_RACE: SHARED_RACE,
    _GLOBAL_RACE: BLOCK_RACE,
    _MISALIGNED: MISALIGNED,
    _UNFINISHED_COPY: UNFINISHED_COPY,
    _STUCK: DEADLOCK,
    _UNFINISHED_BULK: UNFINISHED_COPY,
    _UNFINISHED_PRODUCT: UNFINISHED_PRODUCT,
    _EARLY_OVERWRITE: EARLY_OVERWRITE,
    _MISSING_FENCE: MISSING_FENCE,
    _MBARRIER: MBARRIER,
    _CLUSTER_EXIT: CLUSTER_EXIT,
    _ILLEGAL_INSTRUCTION: ILLEGAL_INSTRUCTION,
    _BEYOND_SHARED: OUT_OF_BOUNDS,
    _DIFFERENT_PRODUCTS: DIFFERENT_PRODUCTS,
    _TOUCHED_SUMS: UNFINISHED_PRODUCT,
    _MISSING_WAIT: MISSING_WAIT,
    _THREAD_RACE: GLOBAL_RACE,
    _OUTSIDE_MASK: WARP_MASK,
    _INDEX: OUT_OF_BOUNDS,
    _OVERFLOW: INDEX_OVERFLOW,
    _LOCAL: OUT_OF_BOUNDS,
    _SAME_VALUE: SAME_VALUE,
}
HINTS = frozenset({_OUTSIDE_MASK, _SAME_VALUE})
"""What is undefined, and harmless where nobody uses it."""
BY_CELL = {
    _UNFINISHED_BULK: "which the copy that thread {thread} started at {other} may still be filling: this thread has "
    "not waited for the copy's mbarrier",
    _EARLY_OVERWRITE: "which thread {thread} may still be reading at {other}: nothing says that it has been read",
    _MISSING_FENCE: "which thread {thread} wrote at {other} and did not make known: no fence.proxy.async is between",
}
"""How a finding about one location of shared memory goes on."""
BOTH_VOLATILE, BETWEEN_BLOCKS = 4, 8
"""Bits of a report's `instructions`; see runtime/worker.hpp."""
VERBS = ("reads", "writes", "updates atomically")
MAX_DYNAMIC = 232 << 10
NEAR = 1 << 30
"""An address farther than this from every buffer is not said to belong to one."""
IN_SHARED = b"shared"
"""The text of a report whose address counts from the start of shared memory."""
IN_MODULE = b"module"
"""From the module's base."""
MENTIONED = re.compile(r"@([0-9a-f]+)@")
"""Where a text of the runtime names a place by the address that its call returns to."""
LOCATED = re.compile(r"#([smg])([0-9a-f]+)#")
"""Where it names a location of shared memory, of the module, or anywhere."""

FIRST_ROW = re.compile(r"\w\s*(?:\[[^\]]*\]\s*)*\[\s*0\s*\]\s*\[\s*(?!\d+\s*\])")
"""An index from an array's first row on."""


@dataclass
class LaunchLog:
    """What findings need to know of the launches: each tag's kernel and module, and the buffers in use."""

    tags: dict[tuple[str, Path], int] = field(default_factory=dict)
    buffers: list[CpuArray] = field(default_factory=list)

    def register(self, kernel: str, module: Path) -> int:
        """A number under which the runtime's reports name this kernel."""
        return self.tags.setdefault((kernel, module), len(self.tags))

    def launched(self, tag: int) -> tuple[str, Path]:
        """The kernel and module of a number."""
        return list(self.tags)[tag]


@dataclass(frozen=True)
class _Spot:
    """Where an access went: a buffer or shared array, and how far into it."""

    what: str = ""
    name: str = ""
    offset: int | None = None
    bytes: int = 0

    def phrase(self) -> str:
        """As in "byte 12 of buffer 'out'"."""
        return f"byte {self.offset} of {self.what} '{self.name}'" if self.name else "an address far from every buffer"


def to_findings(reports: Iterable[Report], log: LaunchLog) -> list[Finding]:
    """Name each report's buffer and line; reports of one kind at one line become one finding. A hang comes first."""
    reports = list(reports)
    lines = _all_lines(reports, log)
    reports = _without_rows(_causes_first(reports, log, lines), log, lines)
    merged: dict[tuple[object, ...], Finding] = {}
    for report in reports:
        finding = _finding(report, log, lines)
        line = (finding.file, finding.line, finding.called_from)
        where: object = line if finding.line else (finding.message, report.program_counter)
        key = (finding.kind, finding.kernel, where)
        known = merged.get(key)
        merged[key] = replace(known, count=known.count + finding.count) if known else finding
    return sorted(merged.values(), key=lambda finding: finding.kind != DEADLOCK)


def _call_site(report: Report) -> int:
    """A traced report holds return addresses; the call before them is what happened."""
    counter: int = report.program_counter
    return counter - 1 if report.kind >= _GLOBAL_BOUNDS else counter


def _all_lines(reports: Sequence[Report], log: LaunchLog) -> dict[tuple[Path, int], Place]:
    wanted: dict[Path, set[int]] = {}
    for report in reports:
        addresses = wanted.setdefault(log.launched(report.tag)[1], set())
        if not report.line and report.program_counter:
            addresses.add(_call_site(report))
        addresses.update(counter - 1 for counter in (report.other_program_counter, report.caller) if counter)
        addresses.update(int(number, 16) - 1 for number in MENTIONED.findall(_text(report)))
    return {
        (module, address): place
        for module, addresses in wanted.items()
        for address, place in source_lines(module, addresses).items()
    }


def _causes_first(reports: Sequence[Report], log: LaunchLog, lines: dict[tuple[Path, int], Place]) -> list[Report]:
    """Without what a race explains: a thread that reads an array before another has written it, for want of a
    barrier, reads what nobody has written. The races of an array come before its other reads of that kind."""

    def place(report: Report, counter: int) -> tuple[object, ...]:
        module = log.launched(report.tag)[1]
        return report.tag, _spot(report, log, module).name, lines.get((module, counter - 1), NOWHERE)[:2]

    races = [report for report in reports if report.kind in {_SHARED_RACE, _THREAD_RACE, _GLOBAL_RACE}]
    raced = {place(race, counter) for race in races for counter in (race.program_counter, race.other_program_counter)}
    early = [report for report in reports if report.kind in {_UNINITIALISED_SHARED, _UNINITIALISED_GLOBAL}]
    unexplained = [report for report in early if place(report, report.program_counter) not in raced]
    return [report for report in reports if report not in early] + unexplained if races else list(reports)


def _without_rows(reports: Sequence[Report], log: LaunchLog, lines: dict[tuple[Path, int], Place]) -> list[Report]:
    """Without indices that the address explains better, or that only run on through the rows of one array."""

    def place(report: Report) -> Place:
        return lines.get((log.launched(report.tag)[1], _call_site(report)), NOWHERE)

    bounds = {place(r)[:2] for r in reports if r.kind in {_GLOBAL_BOUNDS, _SHARED_BOUNDS}}
    return [
        report
        for report in reports
        if report.kind != _INDEX or (place(report)[:2] not in bounds and not _may_run_on(report, place(report)))
    ]


def _may_run_on(report: Report, place: Place) -> bool:
    """Whether an index is meant for all rows at once: from the first row on, its zero written, as in tile[0][i], on a
    line whose arrays all have rows."""
    if _text(report).count("[") > 1:
        return False
    try:
        text = Path(place.file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    code = [line.split("//")[0] for line in text.splitlines()]
    line = code[place.line - 1] if place.line <= len(code) else ""
    named = re.findall(r"(\w+)\s*\[", line)
    declared = [re.search(rf"^[^/\n]*\w[\w:<> ,*&]*\s{name}((?:\s*\[[^\]]*\])+)\s*[;=,]", text, re.M) for name in named]
    return bool(FIRST_ROW.search(line)) and all(match[1].count("[") > 1 for match in declared if match)


def _finding(report: Report, log: LaunchLog, lines: dict[tuple[Path, int], Place]) -> Finding:
    kernel, module = log.launched(report.tag)
    place = Place(report.file.decode(errors="replace"), report.line)
    if not place.line and report.program_counter:
        place = lines.get((module, _call_site(report)), NOWHERE)
    other = lines.get((module, report.other_program_counter - 1), NOWHERE)
    other = Place(place.file, report.other_line) if report.other_line else other
    if place.line and not place.called_from and report.caller:
        caller = lines.get((module, report.caller - 1), NOWHERE)
        itself = (caller.file, caller.line) == (place.file, place.line)  # an atomic's function has the line of its call
        if caller.line and not itself and INCLUDE not in Path(caller.file).parents:  # there the kernel's own is called
            place = place._replace(called_from=caller.entry or caller.line)
    # An instruction stands in a function of its own more often than not.
    place = place._replace(called_from=place.entry) if report.instructions & 1 else place
    other = other._replace(called_from=other.entry) if report.instructions & 2 else other
    spot = _spot(report, log, module)

    def mentioned(match: re.Match[str]) -> str:
        found = lines.get((module, int(match[1], 16) - 1), NOWHERE)
        return _words(found._replace(called_from=found.entry)) if found.line else "an unknown line"

    def located(match: re.Match[str]) -> str:
        return _location(match[1], int(match[2], 16), report, log, module).phrase()

    message = LOCATED.sub(located, MENTIONED.sub(mentioned, _message(report, spot, _words(place), _words(other))))
    return Finding(
        kind=KINDS[report.kind],
        message=message,
        hint=report.kind in HINTS,
        file=place.file if place.line else "",
        line=place.line,
        called_from=place.called_from,
        kernel=kernel,
        block=_dim3(report.block),
        thread=_dim3(report.thread),
        buffer=spot.name,
        offset=spot.offset,
        count=report.count,
    )


def _spot(report: Report, log: LaunchLog, module: Path) -> _Spot:
    if report.text == IN_SHARED:
        return _location("s", int(report.address), report, log, module)
    if report.text == IN_MODULE:
        return _location("m", int(report.address), report, log, module)
    if report.kind == _FAULT or (report.kind >= _GLOBAL_BOUNDS and report.kind not in {_INDEX, _OVERFLOW}):
        return _location("g", int(report.address), report, log, module)
    return _Spot()


def _location(where: str, address: int, report: Report, log: LaunchLog, module: Path) -> _Spot:
    """What lies at an address of shared memory (s), of the module (m) or anywhere (g)."""
    if where == "s":
        return _shared_spot(report, address, shared_arrays(module))
    if where == "m":
        variable = min(module_variables(module), key=lambda v: v.distance(address))
        return _Spot("variable", variable.name, address - variable.offset, variable.bytes)
    nearest = min(log.buffers, key=lambda buffer: buffer.distance(address), default=None)
    if nearest is not None and nearest.distance(address) <= NEAR:
        return _Spot("buffer", nearest.name, address - nearest.address, nearest.bytes)
    return _Spot()


def _shared_spot(report: Report, address: int, arrays: Sequence[SharedArray]) -> _Spot:
    """The array nearest to an address: its index was too large or below 0."""
    dynamic = next((a for a in arrays if a.name == DYNAMIC), None)
    if dynamic and not report.shared_bytes and 0 <= address - dynamic.offset < MAX_DYNAMIC:
        return _Spot("the dynamic shared array", "extern __shared__", address - dynamic.offset, 0)
    sized = [replace(array, bytes=report.shared_bytes) if array.name == DYNAMIC else array for array in arrays]
    array = min((a for a in sized if a.bytes), key=lambda a: a.distance(address), default=None)
    if array is None:
        return _Spot()
    offset = address - array.offset
    if array.name == DYNAMIC:
        return _Spot("the dynamic shared array", "extern __shared__", offset, array.bytes)
    return _Spot("shared array", array.name, offset, array.bytes)


def _words(place: Place) -> str:
    return place_words(place.file, place.line, place.called_from)


def _text(report: Report) -> str:
    return str(report.text.decode(errors="replace"))


def _message(report: Report, spot: _Spot, place: str, other: str) -> str:
    text = _text(report)
    access = f"{VERBS[report.access]} {report.bytes} byte{'s' if report.bytes > 1 else ''} at {spot.phrase()}"
    match report.kind:
        case k if k == _FAULT:
            return "memory access at " + (spot.phrase() if spot.name else f"{report.address:#x}, far away")
        case k if k in {_GLOBAL_BOUNDS, _SHARED_BOUNDS}:
            none = "; the launch asks for no dynamic shared memory (`shared` in its header)"
            return access + (f", which has {spot.bytes}" if spot.bytes else none if spot.name else "")
        case k if k in {_UNINITIALISED_GLOBAL, _UNINITIALISED_SHARED}:
            return f"{access}, which nobody has written" + (" in this block" if k == _UNINITIALISED_SHARED else "")
        case k if k == _MISALIGNED:
            return f"{access}, an address that is no multiple of {report.bytes}"
        case k if k == _OVERFLOW:
            return f"{text} is more than it holds"
        case k if k == _INDEX:
            index = ctypes.c_int64(report.address).value
            return f"index {index} of an array {text}"
        case k if k in {_SHARED_RACE, _THREAD_RACE, _SAME_VALUE}:
            return (_same_value if k == _SAME_VALUE else _shared_race)(report, access, place, other)
        case k if k == _UNFINISHED_COPY:
            copy = f"the cp.async of thread {_dim3(report.other_thread)} at {other} may still be filling"
            return f"{access} at {place}, which {copy}; that thread has not waited for it"
        case k if k in BY_CELL and report.text == IN_SHARED:
            return f"{access} at {place}, {BY_CELL[k].format(thread=_dim3(report.other_thread), other=other)}"
        case k if k == _MISSING_WAIT:
            ahead = f"an earlier launch {VERBS[report.other_access]} at {other}"
            return f"{access} at {place}, which {ahead}; no griddepcontrol.wait comes before"
        case k if k == _GLOBAL_RACE:
            earlier = f"block {_dim3(report.other_block)} {VERBS[report.other_access]} at {other}"
            return f"{access} at {place}, which {earlier}; nothing orders the two blocks"
        case k if k == _WARP_MASK and report.other_line:
            return f"{text}, of lines {report.line} and {report.other_line}"
    messages = {
        _STACK_OVERFLOW: "a thread's local arrays and calls need more than a GPU's 512 KiB of local memory",
        _SHARED_OVERRUN: f"shared memory written at byte {report.address}, behind the dynamic array's end",
        _DIVERGENT_BARRIER: f"{text} at barriers of lines {report.other_line} and {report.line}",
        _ARITHMETIC: "integer division by zero, or of the least integer by -1; a GPU yields an unspecified value",
    }
    return messages.get(report.kind, text)


def _shared_race(report: Report, access: str, place: str, other: str) -> str:
    thread = _dim3(report.other_thread)
    same_warp = report.warp == report.other_warp
    barrier = "__syncwarp() or __syncthreads()" if same_warp else "__syncthreads()"
    earlier = f"thread {thread} {VERBS[report.other_access]} at {other}"
    words = f"{access} at {place}, which {earlier} with no {barrier} between"
    if same_warp and report.instructions & BOTH_VOLATILE:
        words += (
            "; volatile sufficed where the lanes of a warp went in step, before compute capability 7.0: now write "
            "__syncwarp() between the two"
        )
    return words


def _same_value(report: Report, access: str, place: str, other: str) -> str:
    """Of a store that leaves the bytes as they are."""
    who = f"block {_dim3(report.other_block)}" if report.instructions & BETWEEN_BLOCKS else ""
    who = who or f"thread {_dim3(report.other_thread)}"
    if VERBS[report.other_access] == "reads":
        return f"{access} at {place}, as they are, which {who} reads at {other}; nothing orders the two"
    return f"{access} at {place}, the same as {who} wrote at {other}: allowed, whoever is last"


def _dim3(value: Iterable[int]) -> Dim3:
    x, y, z = value
    return x, y, z
