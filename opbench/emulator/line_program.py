"""Decode a DWARF line program: a list of the source lines of instructions.

pyelftools decodes line programs, too, but takes eight times as long and keeps values that no finding needs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from elftools.construct.lib.container import Container
    from elftools.dwarf.lineprogram import LineProgram

EXTENDED, COPY, ADVANCE_PC, ADVANCE_LINE, SET_FILE, SET_COLUMN = range(6)
CONST_ADD_PC, FIXED_ADVANCE_PC = 8, 9
"""Numbers of standard opcodes (DWARF 5, section 6.2.5.2); the others change nothing that a row has."""
END_SEQUENCE, SET_ADDRESS = 1, 2
"""Numbers of extended opcodes."""
LAST_OPCODE = 255


class LineRow(NamedTuple):
    """The source position from an address on; for the end of a sequence, the address after its last instruction."""

    address: int
    file: int
    line: int
    column: int
    end_sequence: bool


def line_rows(program: LineProgram) -> Iterator[LineRow]:
    """Yield the rows of a line program in their order."""
    header = program.header
    opcode_base, line_base, line_range = header.opcode_base, header.line_base, header.line_range
    instruction_bytes, operand_counts = header.minimum_instruction_length, header.standard_opcode_lengths
    program.stream.seek(program.program_start_offset)
    code = io.BytesIO(program.stream.read(program.program_end_offset - program.program_start_offset))
    first = (0, 1, 1, 0)
    address, file, line, column = first
    while opcode_byte := code.read(1):
        opcode = opcode_byte[0]
        if opcode >= opcode_base:
            advance, line_advance = divmod(opcode - opcode_base, line_range)
            address += advance * instruction_bytes
            line += line_base + line_advance
            yield LineRow(address, file, line, column, False)
        elif opcode == EXTENDED:
            content = code.read(_unsigned(code))
            if content[0] == END_SEQUENCE:
                yield LineRow(address, file, line, column, True)
                address, file, line, column = first
            elif content[0] == SET_ADDRESS:
                address = int.from_bytes(content[1:], "little")
        elif opcode == COPY:
            yield LineRow(address, file, line, column, False)
        elif opcode in (ADVANCE_PC, CONST_ADD_PC, FIXED_ADVANCE_PC):
            address += _address_advance(opcode, code, header)
        elif opcode == ADVANCE_LINE:
            line += _signed(code)
        elif opcode == SET_FILE:
            file = _unsigned(code)
        elif opcode == SET_COLUMN:
            column = _unsigned(code)
        else:
            for _ in range(operand_counts[opcode - 1]):
                _unsigned(code)


def _address_advance(opcode: int, code: io.BytesIO, header: Container) -> int:
    """Return by how many bytes a standard opcode advances the address."""
    if opcode == FIXED_ADVANCE_PC:
        return int.from_bytes(code.read(2), "little")
    last_advance = (LAST_OPCODE - header.opcode_base) // header.line_range
    instructions = _unsigned(code) if opcode == ADVANCE_PC else last_advance
    return int(instructions * header.minimum_instruction_length)


def _unsigned(code: io.BytesIO) -> int:
    """Read an unsigned number in LEB128: seven bits per byte, the lowest first."""
    return _leb128(code)[0]


def _signed(code: io.BytesIO) -> int:
    """Read a signed number in LEB128; the highest bit of its last byte is the sign."""
    value, bits = _leb128(code)
    return value - (1 << bits) if value >> (bits - 1) else value


def _leb128(code: io.BytesIO) -> tuple[int, int]:
    """Return the number at the current position in LEB128, and how many bits it has."""
    value = bits = 0
    while True:
        byte = code.read(1)[0]
        value |= (byte & 0x7F) << bits
        bits += 7
        if byte < 0x80:
            return value, bits
