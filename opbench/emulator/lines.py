"""Which line of which file an instruction of a compiled module belongs to, from the module's own DWARF tables."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opbench.emulator.toolchain import INCLUDE

if TYPE_CHECKING:
    from elftools.construct.lib.container import Container
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE
    from elftools.dwarf.dwarfinfo import DWARFInfo

CACHED_MODULES = 64
WRAPPER = "wrapper.cpp"
"""The source of the functions that call kernels, as a build names it."""
KERNEL_SUFFIX = ".cu"
"""Of the files that hold kernels; those of headers have another."""


class Place(NamedTuple):
    """A position in a source; the column, from 1 on, tells accesses of one line apart; 0 where it is not known."""

    file: str
    line: int
    column: int = 0
    called_from: int = 0
    """Of a place in a header: the line of the kernel's own file whose inlined call leads there; 0 where none does."""
    entry: int = 0
    """Of an instruction in a function of its own: the line of the kernel's file that calls it; 0 where none does."""


NOWHERE = Place("", 0)
SHIM_MACRO = "(::opb_coordinates_of(0))"
"""Replacements of threadIdx, blockIdx, blockDim and gridDim in a traced build; each has its own number."""
COORDINATES = dict.fromkeys(("threadIdx", "blockIdx", "blockDim", "gridDim"), SHIM_MACRO)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Inlined:
    """A call that the compiler replaced by the callee's instructions."""

    start: int
    end: int
    depth: int
    caller: Place


@dataclass(frozen=True)
class _Table:
    """Where each run of instructions begins and its line, the shim's included; NOWHERE ends a function's last run."""

    starts: list[int]
    places: list[Place]
    calls: list[_Inlined]
    """The innermost first."""


def source_lines(module: Path, addresses: Iterable[int]) -> dict[int, Place]:
    """For each address the innermost position outside of the shim; `NOWHERE` where nothing is known."""
    table = _table(module)
    return {address: _place(table, address) for address in addresses}


def source_column(text: str, column: int, macros: Mapping[str, str]) -> int:
    """Return where in a line the expression stands that the compiler saw at `column` of the preprocessed line.

    `macros` are the names that the preprocessor replaced. 0 where the column lies inside of a replaced word.
    """
    shift = 0
    for word in _WORD.finditer(text):
        if (value := macros.get(word[0])) is None:
            continue
        begins = word.start() + 1 + shift
        if column < begins:
            break
        if column == begins:
            return word.start() + 1
        if column < begins + len(value):
            return 0
        shift += len(value) - len(word[0])
    return column - shift if 0 < column - shift <= len(text) else 0


def _place(table: _Table, address: int) -> Place:
    row = bisect_right(table.starts, address) - 1
    while row >= 0 and table.places[row] != NOWHERE:
        calls = (call.caller for call in table.calls if call.start <= address < call.end)
        chain = [place for place in (table.places[row], *calls) if place.line and _is_users(place.file)]
        if chain:
            inner, outer = chain[0], chain[-1]
            below = outer.file != inner.file and outer.file.endswith(KERNEL_SUFFIX)
            callers = [place for place in chain[1:] if place.file.endswith(KERNEL_SUFFIX)]
            entry = (callers or chain)[0].line if len(chain) > 1 else 0
            return inner._replace(called_from=outer.line if below else 0, entry=entry)
        if Path(table.places[row].file).name == WRAPPER:
            break  # what stands before it is the end of some other function
        row -= 1  # the instruction before tells as much
        address = table.starts[row]
    return NOWHERE


@functools.lru_cache(CACHED_MODULES)
def _table(module: Path) -> _Table:
    """A module's name holds the digest of its content, so that one is read once."""
    from elftools.elf.elffile import ELFFile  # a tenth of a second, which nobody spends before there is a need

    rows: dict[int, Place] = {}
    calls: list[_Inlined] = []
    with module.open("rb") as stream:
        dwarf = ELFFile(stream).get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            if program is None:
                continue
            files = _files(program.header, unit)
            calls += _inlined(dwarf, unit, files)
            for state in (entry.state for entry in program.get_entries()):
                if state is not None and state.end_sequence:
                    rows.setdefault(state.address, NOWHERE)  # where another function may begin
                elif state is not None and state.line:  # instructions that stand for several lines have none
                    rows[state.address] = Place(files.get(state.file, ""), state.line, state.column)
    starts = sorted(rows)
    calls.sort(key=lambda call: call.depth, reverse=True)
    return _Table(starts, [rows[start] for start in starts], calls)


def _files(header: Container, unit: CompileUnit) -> dict[int, str]:
    """The paths that the numbers of a line table's files stand for: from 1 on up to DWARF 4, from 0 on after it."""
    base = 0 if header.version >= 5 else 1
    built_in = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
    home = Path(built_in.value.decode() if built_in else "")
    folders = [home] * base + [home / folder.decode() for folder in header.include_directory]
    entries = enumerate(header.file_entry, base)
    return {number: str(folders[entry.dir_index or 0] / entry.name.decode()) for number, entry in entries}


def _inlined(dwarf: DWARFInfo, unit: CompileUnit, files: dict[int, str]) -> Iterator[_Inlined]:
    waiting = [(unit.get_top_DIE(), 0)]
    while waiting:
        entry, depth = waiting.pop()
        waiting += [(child, depth + 1) for child in entry.iter_children()]
        if entry.tag != "DW_TAG_inlined_subroutine" or "DW_AT_call_line" not in entry.attributes:
            continue
        called = entry.attributes
        column = called["DW_AT_call_column"].value if "DW_AT_call_column" in called else 0
        caller = Place(files.get(called["DW_AT_call_file"].value, ""), called["DW_AT_call_line"].value, column)
        for start, end in _ranges(dwarf, unit, entry):
            yield _Inlined(start, end, depth, caller)


def _ranges(dwarf: DWARFInfo, unit: CompileUnit, entry: DIE) -> Iterator[tuple[int, int]]:
    """The instructions of a debugging entry: one run of them, or a list whose pairs count from a base address."""
    attributes = entry.attributes
    if "DW_AT_ranges" in attributes:
        base = unit.get_top_DIE().attributes["DW_AT_low_pc"].value
        lists: Any = dwarf.range_lists()
        for piece in lists.get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if hasattr(piece, "base_address"):
                base = piece.base_address
            else:
                shift = 0 if piece.is_absolute else base
                yield piece.begin_offset + shift, piece.end_offset + shift
    elif "DW_AT_low_pc" in attributes:
        start, end = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        yield start, end.value + (0 if end.form == "DW_FORM_addr" else start)


def _is_users(file: str) -> bool:
    """Whether a file is neither the shim's nor what opbench puts around the user's own."""
    return bool(file) and not file.startswith(str(INCLUDE)) and Path(file).name != WRAPPER
