"""Find the source line of an instruction in a compiled module, from the module's DWARF tables."""

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
"""The file name of the generated source whose functions call the kernels."""
KERNEL_SUFFIX = ".cu"
"""The suffix of files with kernels; headers have another."""


class SourcePosition(NamedTuple):
    """A source position. Lines and columns count from 1; 0 means unknown."""

    file: str
    line: int
    column: int = 0
    called_from: int = 0
    """For a position in a header: the line of the kernel's file whose inlined call leads to it; 0 if there is none."""
    entry: int = 0
    """For a position in an inlined function: the line of the kernel's file that calls the function; 0 if none does."""


UNKNOWN_POSITION = SourcePosition("", 0)
SHIM_MACRO = "(::opb_coordinates_of(0))"
"""The expansion of threadIdx, blockIdx, blockDim and gridDim in a traced build; each has another number."""
COORDINATES = dict.fromkeys(("threadIdx", "blockIdx", "blockDim", "gridDim"), SHIM_MACRO)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Inlined:
    """An inlined call: the callee's address range [start, end), nesting depth and caller."""

    start: int
    end: int
    depth: int
    caller: SourcePosition


@dataclass(frozen=True)
class _Table:
    """A module's line table: sorted start addresses, and the position of each range of instructions.

    Positions include lines of the shim. UNKNOWN_POSITION marks the end of a function's last range.
    """

    starts: list[int]
    positions: list[SourcePosition]
    calls: list[_Inlined]
    """The inlined calls, the innermost first."""


def source_lines(module: Path, addresses: Iterable[int]) -> dict[int, SourcePosition]:
    """Return the source position of each address, outside of opbench's own headers; `UNKNOWN_POSITION` if unknown."""
    table = _table(module)
    return {address: _source_position(table, address) for address in addresses}


def source_column(text: str, column: int, macros: Mapping[str, str]) -> int:
    """Convert a column of a preprocessed line to the column in the source line `text`; both count from 1.

    `macros` maps each replaced name to its expansion. Return 0 if the column lies inside of an expansion.
    """
    column_shift = 0
    for identifier in _WORD.finditer(text):
        if (expansion := macros.get(identifier[0])) is None:
            continue
        expansion_start = identifier.start() + 1 + column_shift
        if column < expansion_start:
            break
        if column == expansion_start:
            return identifier.start() + 1
        if column < expansion_start + len(expansion):
            return 0
        column_shift += len(expansion) - len(identifier[0])
    return column - column_shift if 0 < column - column_shift <= len(text) else 0


def _source_position(table: _Table, address: int) -> SourcePosition:
    """Return the innermost user position of an address, with the line of the kernel's file that calls it."""
    row = bisect_right(table.starts, address) - 1
    while row >= 0 and table.positions[row] != UNKNOWN_POSITION:
        calls = (call.caller for call in table.calls if call.start <= address < call.end)
        user_positions = [
            position for position in (table.positions[row], *calls) if position.line and _is_users_file(position.file)
        ]
        if user_positions:
            inner, outer = user_positions[0], user_positions[-1]
            is_in_header = outer.file != inner.file and outer.file.endswith(KERNEL_SUFFIX)
            callers = [position for position in user_positions[1:] if position.file.endswith(KERNEL_SUFFIX)]
            entry = (callers or user_positions)[0].line if len(user_positions) > 1 else 0
            return inner._replace(called_from=outer.line if is_in_header else 0, entry=entry)
        if Path(table.positions[row].file).name == WRAPPER:
            break  # the instructions before belong to another function
        row -= 1  # all positions are in the shim: take the instruction before
        address = table.starts[row]
    return UNKNOWN_POSITION


@functools.lru_cache(CACHED_MODULES)
def _table(module: Path) -> _Table:
    """Read a module's line table; cached by path, because the file name has a hash of the content."""
    from elftools.elf.elffile import ELFFile  # imported here because the import takes 0.1 s

    position_by_address: dict[int, SourcePosition] = {}
    inlined_calls: list[_Inlined] = []
    with module.open("rb") as stream:
        dwarf = ELFFile(stream).get_dwarf_info(relocate_dwarf_sections=False)
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            if program is None:
                continue
            files = _files(program.header, unit)
            inlined_calls += _inlined_calls(dwarf, unit, files)
            for state in (entry.state for entry in program.get_entries()):
                if state is not None and state.end_sequence:
                    # The end of a function has no position, unless another function begins there.
                    position_by_address.setdefault(state.address, UNKNOWN_POSITION)
                elif state is not None and state.line:  # line 0: no single line
                    position_by_address[state.address] = SourcePosition(
                        files.get(state.file, ""), state.line, state.column
                    )
    starts = sorted(position_by_address)
    inlined_calls.sort(key=lambda call: call.depth, reverse=True)
    return _Table(starts, [position_by_address[start] for start in starts], inlined_calls)


def _files(header: Container, unit: CompileUnit) -> dict[int, str]:
    """Return the path of each file number of a line table; numbers start at 1 up to DWARF 4, at 0 since DWARF 5."""
    first_number = 0 if header.version >= 5 else 1
    built_in = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
    compile_folder = Path(built_in.value.decode() if built_in else "")
    folders = [compile_folder] * first_number + [
        compile_folder / folder.decode() for folder in header.include_directory
    ]
    entries = enumerate(header.file_entry, first_number)
    return {number: str(folders[entry.dir_index or 0] / entry.name.decode()) for number, entry in entries}


def _inlined_calls(dwarf: DWARFInfo, unit: CompileUnit, files: dict[int, str]) -> Iterator[_Inlined]:
    """Yield the inlined calls of a compilation unit, each with its address range, nesting depth and caller."""
    unvisited = [(unit.get_top_DIE(), 0)]
    while unvisited:
        entry, depth = unvisited.pop()
        unvisited += [(child, depth + 1) for child in entry.iter_children()]
        if entry.tag != "DW_TAG_inlined_subroutine" or "DW_AT_call_line" not in entry.attributes:
            continue
        attributes = entry.attributes
        column = attributes["DW_AT_call_column"].value if "DW_AT_call_column" in attributes else 0
        caller = SourcePosition(
            files.get(attributes["DW_AT_call_file"].value, ""), attributes["DW_AT_call_line"].value, column
        )
        for start, end in _ranges(dwarf, unit, entry):
            yield _Inlined(start, end, depth, caller)


def _ranges(dwarf: DWARFInfo, unit: CompileUnit, entry: DIE) -> Iterator[tuple[int, int]]:
    """Yield the address ranges [start, end) of a debugging entry, which has one range or a list of ranges."""
    attributes = entry.attributes
    if "DW_AT_ranges" in attributes:
        base = unit.get_top_DIE().attributes["DW_AT_low_pc"].value
        lists: Any = dwarf.range_lists()
        for range_entry in lists.get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if hasattr(range_entry, "base_address"):
                base = range_entry.base_address
            else:
                base_offset = 0 if range_entry.is_absolute else base
                yield range_entry.begin_offset + base_offset, range_entry.end_offset + base_offset
    elif "DW_AT_low_pc" in attributes:
        start, end = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        yield start, end.value + (0 if end.form == "DW_FORM_addr" else start)


def _is_users_file(file: str) -> bool:
    """Return whether a file is the user's, and not one of opbench's headers or the generated wrapper."""
    return bool(file) and not file.startswith(str(INCLUDE)) and Path(file).name != WRAPPER
