"""Convert the runtime's reports to findings with buffer, source line and thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from opbench.backend.excerpt import source_line, source_lines
from opbench.backend.findings import Finding
from opbench.backend.rules import DEADLOCK
from opbench.emulator.abi import MAX_DYNAMIC_BYTES, Report, ReportKind
from opbench.emulator.buffer import CpuArray
from opbench.emulator.elf import DYNAMIC_SYMBOL, SharedArray, module_variables, shared_arrays
from opbench.emulator.lines import COORDINATES, UNKNOWN_POSITION, SourcePosition, source_column
from opbench.emulator.lines import source_lines as module_lines
from opbench.emulator.reports import (
    FIRST_TRACED,
    IN_MODULE,
    IN_SHARED,
    RULES_BY_KIND,
    AccessTarget,
    Event,
    dim3,
    is_between_warps,
    position_text,
)
from opbench.emulator.toolchain import INCLUDE

MAX_DISTANCE_BYTES = 1 << 30
"""An address farther than this (in bytes) from every buffer is not attributed to a buffer."""
POSITION_IN_MESSAGE = re.compile(r"@([0-9a-f]+)@")
"""A source position in a runtime message, as the return address of the call (hexadecimal)."""
ADDRESS_IN_MESSAGE = re.compile(r"#([smg])([0-9a-f]+)#")
"""An address in a runtime message: in shared memory (s), in the module (m) or in global memory (g), hexadecimal."""

OBJECT_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)[ \t]+([^/\n]+)", re.MULTILINE)
"""A macro without parameters, and its value."""
FIRST_ROW = re.compile(r"\w\s*(?:\[[^\]]*\]\s*)*\[\s*0\s*\]\s*\[\s*(?!\d+\s*\])")
"""An index expression whose first subscript is 0 and whose second is no number, such as tile[0][i]."""


class LaunchedKernel(NamedTuple):
    """The name, module, source and macros of a launched kernel."""

    kernel: str
    module: Path
    source: Path
    """The kernel's own file."""
    macros: tuple[tuple[str, str], ...] = ()
    """The macros that the build defines, as name and value."""


@dataclass
class LaunchLog:
    """The launched kernels and the buffers in use, which findings need to name them."""

    tags: dict[LaunchedKernel, int] = field(default_factory=dict)
    buffers: list[CpuArray] = field(default_factory=list)

    def register(self, launched: LaunchedKernel) -> int:
        """Return the number by which reports refer to this kernel."""
        return self.tags.setdefault(launched, len(self.tags))

    def kernel_of(self, tag: int) -> LaunchedKernel:
        """Return the kernel that has this number."""
        return list(self.tags)[tag]


def to_findings(reports: Iterable[Report], log: LaunchLog) -> list[Finding]:
    """Convert reports to findings; reports of the same kind at the same line become one finding.

    Deadlocks come first. Of the races at one line, the first between two warps is shown: its remedy cures all of them.
    """
    reports = list(reports)
    lines = _source_positions(reports, log)
    reports = _omit_row_indices(_races_before_reads(reports, log, lines), log, lines)
    merged: dict[tuple[object, ...], Finding] = {}
    between_warps = set()
    for report in reports:
        finding = _to_finding(report, log, lines)
        position = (finding.file, finding.line, finding.called_from)
        line_or_address: object = position if finding.line else (finding.message, report.program_counter)
        key = (finding.kind, finding.kernel, line_or_address)
        merged_finding = merged.get(key)
        shown = finding
        if merged_finding and (key in between_warps or not is_between_warps(report)):
            shown = merged_finding
        merged[key] = replace(shown, count=finding.count + (merged_finding.count if merged_finding else 0))
        if is_between_warps(report):
            between_warps.add(key)
    return sorted(merged.values(), key=lambda finding: finding.kind != DEADLOCK.kind)


def _call_site(report: Report) -> int:
    """Return the address of the reported instruction; in a traced report, the call before the return address."""
    counter: int = report.program_counter
    return counter - 1 if report.kind >= FIRST_TRACED else counter


def _source_positions(reports: Sequence[Report], log: LaunchLog) -> dict[tuple[Path, int], SourcePosition]:
    """Return the source position of every address in the reports, by module and address."""
    addresses_by_module: dict[Path, set[int]] = {}
    for report in reports:
        addresses = addresses_by_module.setdefault(log.kernel_of(report.tag).module, set())
        if not report.line and report.program_counter:
            addresses.add(_call_site(report))
        addresses.update(counter - 1 for counter in (report.other_program_counter, report.caller) if counter)
        addresses.update(int(number, 16) - 1 for number in POSITION_IN_MESSAGE.findall(_text(report)))
    return {
        (module, address): position
        for module, addresses in addresses_by_module.items()
        for address, position in module_lines(module, addresses).items()
    }


def _races_before_reads(
    reports: Sequence[Report], log: LaunchLog, lines: dict[tuple[Path, int], SourcePosition]
) -> list[Report]:
    """Omit uninitialised reads that a race explains, and move the other ones behind the races.

    Without a barrier, a thread may read an array before another thread writes it; the race is the cause to fix.
    """

    def target_and_line(report: Report, counter: int) -> tuple[object, ...]:
        module = log.kernel_of(report.tag).module
        return (
            report.tag,
            _access_target(report, log, module).name,
            lines.get((module, counter - 1), UNKNOWN_POSITION)[:2],
        )

    races = [
        report
        for report in reports
        if report.kind in {ReportKind.SHARED_RACE, ReportKind.THREAD_RACE, ReportKind.GLOBAL_RACE}
    ]
    raced_places = {
        target_and_line(race, counter)
        for race in races
        for counter in (race.program_counter, race.other_program_counter)
    }
    uninitialised_reads = [
        report
        for report in reports
        if report.kind in {ReportKind.UNINITIALISED_SHARED, ReportKind.UNINITIALISED_GLOBAL}
    ]
    unexplained = [
        report for report in uninitialised_reads if target_and_line(report, report.program_counter) not in raced_places
    ]
    return [report for report in reports if report not in uninitialised_reads] + unexplained if races else list(reports)


def _omit_row_indices(
    reports: Sequence[Report], log: LaunchLog, lines: dict[tuple[Path, int], SourcePosition]
) -> list[Report]:
    """Omit index reports on lines with an out-of-bounds address, and indices that may address all rows."""

    def position_of(report: Report) -> SourcePosition:
        return lines.get((log.kernel_of(report.tag).module, _call_site(report)), UNKNOWN_POSITION)

    out_of_bounds_lines = {
        position_of(r)[:2] for r in reports if r.kind in {ReportKind.GLOBAL_BOUNDS, ReportKind.SHARED_BOUNDS}
    }
    return [
        report
        for report in reports
        if report.kind != ReportKind.INDEX
        or (
            position_of(report)[:2] not in out_of_bounds_lines
            and not _may_address_all_rows(report, position_of(report))
        )
    ]


def _may_address_all_rows(report: Report, source_position: SourcePosition) -> bool:
    """Return whether an index may address all rows of an array on purpose, as tile[0][i] does.

    This needs an explicit first row 0 and a line on which all declared arrays have at least two dimensions.
    """
    if _text(report).count("[") > 1:
        return False
    try:
        text = Path(source_position.file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    code = [line.split("//")[0] for line in text.splitlines()]
    line = code[source_position.line - 1] if source_position.line <= len(code) else ""
    array_names = re.findall(r"(\w+)\s*\[", line)
    declarations = [
        re.search(rf"^[^/\n]*\w[\w:<> ,*&]*\s{name}((?:\s*\[[^\]]*\])+)\s*[;=,]", text, re.M) for name in array_names
    ]
    return bool(FIRST_ROW.search(line)) and all(match[1].count("[") > 1 for match in declarations if match)


def _to_finding(report: Report, log: LaunchLog, lines: dict[tuple[Path, int], SourcePosition]) -> Finding:
    """Convert one report to a finding, with source lines and buffer names in place of addresses."""
    launched = log.kernel_of(report.tag)
    module, kernel_source = launched.module, str(launched.source)
    position = SourcePosition(report.file.decode(errors="replace"), report.line)
    if not position.line and report.program_counter:
        position = lines.get((module, _call_site(report)), UNKNOWN_POSITION)
    other_position = lines.get((module, report.other_program_counter - 1), UNKNOWN_POSITION)
    other_position = SourcePosition(position.file, report.other_line) if report.other_line else other_position
    if position.line and not position.called_from and report.caller:
        caller = lines.get((module, report.caller - 1), UNKNOWN_POSITION)
        # An atomic function has its caller's line.
        is_own_line = (caller.file, caller.line) == (position.file, position.line)
        # The shim calls the kernel itself.
        if caller.line and not is_own_line and INCLUDE not in Path(caller.file).parents:
            position = position._replace(called_from=caller.entry or caller.line)
    # A PTX instruction is usually in a small function; the line of its caller is more useful.
    position = position._replace(called_from=position.entry) if report.instructions & 1 else position
    other_position = (
        other_position._replace(called_from=other_position.entry) if report.instructions & 2 else other_position
    )
    target = _access_target(report, log, module)

    def line_text(match: re.Match[str]) -> str:
        position = lines.get((module, int(match[1], 16) - 1), UNKNOWN_POSITION)
        return position_text(position._replace(called_from=position.entry)) if position.line else "an unknown line"

    def target_text(match: re.Match[str]) -> str:
        return _target_at(match[1], int(match[2], 16), report, log, module).phrase()

    def with_source_names(text: str) -> str:
        return ADDRESS_IN_MESSAGE.sub(target_text, POSITION_IN_MESSAGE.sub(line_text, text))

    position, other_position = (
        _with_source_column(position, launched.macros) for position in (position, other_position)
    )
    report_rule = RULES_BY_KIND[ReportKind(report.kind)]
    texts = report_rule.write_texts(Event(report, target, position, other_position))
    kernel_file = kernel_source if position.called_from and position.file != kernel_source else ""
    return Finding(
        kind=report_rule.rule.kind,
        message=with_source_names(texts.message),
        hint=report_rule.hint,
        file=position.file if position.line else "",
        line=position.line,
        column=position.column if position.line else 0,
        called_from=position.called_from,
        kernel_file=kernel_file,
        source=source_line(position.file, position.line),
        caller_source=source_line(kernel_file, position.called_from) if kernel_file else "",
        kernel=launched.kernel,
        block=dim3(report.block),
        thread=dim3(report.thread),
        buffer=target.name,
        offset=target.offset,
        count=report.count,
        details=tuple(map(with_source_names, texts.details)),
        related=texts.related,
        remedy=texts.remedy,
    )


def _with_source_column(source_position: SourcePosition, macros: Sequence[tuple[str, str]]) -> SourcePosition:
    """Return a position with its column in the user's file instead of the preprocessed line."""
    if not source_position.column:
        return source_position
    file_macros = dict(OBJECT_MACRO.findall("\n".join(source_lines(source_position.file))))
    all_macros = {**COORDINATES, **{name: value.strip() for name, value in file_macros.items()}, **dict(macros)}
    return source_position._replace(
        column=source_column(
            source_line(source_position.file, source_position.line), source_position.column, all_macros
        )
    )


def _access_target(report: Report, log: LaunchLog, module: Path) -> AccessTarget:
    """Return the buffer, variable or shared array that a report's access refers to; an empty target if none."""
    if report.text == IN_SHARED:
        return _target_at("s", int(report.address), report, log, module)
    if report.text == IN_MODULE:
        return _target_at("m", int(report.address), report, log, module)
    if report.kind == ReportKind.FAULT or (
        report.kind >= FIRST_TRACED and report.kind not in {ReportKind.INDEX, ReportKind.OVERFLOW}
    ):
        return _target_at("g", int(report.address), report, log, module)
    return AccessTarget()


def _target_at(address_space: str, address: int, report: Report, log: LaunchLog, module: Path) -> AccessTarget:
    """Return the array, variable or buffer nearest to an address in shared (s), module (m) or global (g) memory.

    The target is empty if no buffer is near a global address.
    """
    if address_space == "s":
        return _shared_target(report, address, shared_arrays(module))
    if address_space == "m":
        variable = min(module_variables(module), key=lambda v: v.distance(address))
        return AccessTarget("variable", variable.name, address - variable.offset, variable.bytes)
    nearest = min(log.buffers, key=lambda buffer: buffer.distance(address), default=None)
    if nearest is not None and nearest.distance(address) <= MAX_DISTANCE_BYTES:
        return AccessTarget("buffer", nearest.name, address - nearest.address, nearest.bytes)
    return AccessTarget()


def _shared_target(report: Report, address: int, arrays: Sequence[SharedArray]) -> AccessTarget:
    """Return the shared array nearest to an address, whose index may have been too large or negative."""
    dynamic = next((a for a in arrays if a.name == DYNAMIC_SYMBOL), None)
    if dynamic and not report.shared_bytes and 0 <= address - dynamic.offset < MAX_DYNAMIC_BYTES:
        return AccessTarget("the dynamic shared array", "extern __shared__", address - dynamic.offset, 0)
    sized_arrays = [
        replace(array, bytes=report.shared_bytes) if array.name == DYNAMIC_SYMBOL else array for array in arrays
    ]
    array = min((a for a in sized_arrays if a.bytes), key=lambda a: a.distance(address), default=None)
    if array is None:
        return AccessTarget()
    offset = address - array.offset
    if array.name == DYNAMIC_SYMBOL:
        return AccessTarget("the dynamic shared array", "extern __shared__", offset, array.bytes)
    return AccessTarget("shared array", array.name, offset, array.bytes)


def _text(report: Report) -> str:
    """Return the message that the runtime wrote into a report."""
    return str(report.text.decode(errors="replace"))
