"""Replace instructions in a function's PTX for a knock-out experiment; addresses and values are still computed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from opbench.gpu.compile.knockout_classes import (
    ADDRESS,
    BANK_CONFLICTS,
    BARRIERS,
    MATRIX,
    expects_bytes,
    lane_bytes,
)
from opbench.gpu.compile.ptx_flow import operands, written_registers
from opbench.gpu.compile.ptx_statements import Function, Statement, registers_of

OPAQUE_REGISTERS = 16
"""Number of registers with values that the assembler cannot compute, for later elements of a loaded vector."""
FRAGMENT_REGISTERS = 32
"""Number of such registers for matrix fragments, which a matrix instruction needs in neighbouring registers."""
UPPER_HALF_OF_ONE = 0x3F80
"""The upper 16 bits of the float 1.0: values made of addresses are then neither NaN nor denormal."""
SENTINEL = 0x5BD1E995
"""A kernel stores its exclusive-or if it has this value; the assembler must assume that this can happen."""
SINK_DECLARATION = ".global .align 8 .u64 kosunk;\n"
"""The variable for the exclusive-or; the assembler must assume that other kernels read it."""


@dataclass
class InstructionEditor:
    """Collect replacements in one function, and declare the registers that they use."""

    function: Function
    shared_bytes: int
    _edits: list[tuple[int, int, str]] = field(default_factory=list)
    _has_sink: bool = False
    _pool_uses: int = 0
    _access_count: int = 0
    _lane_widths: set[int] = field(default_factory=set)
    _accumulators: dict[str, None] = field(default_factory=dict)
    _fragment_count: int = 0
    _unchanged_accumulators: dict[str, None] = field(default_factory=dict)
    """Accumulators that no instruction changes any more."""
    _replaced_products: dict[tuple[str, ...], int] = field(default_factory=dict)
    """For each tuple of accumulators, the number of replaced matrix instructions that change them."""
    _used_positions: set[int] = field(default_factory=set)
    _has_removed_bulk_copy: bool = False

    def remove(self, name: str, statement: Statement) -> None:
        """Replace one instruction, which is in the class `name`."""
        if name == BARRIERS:
            replacement: Iterable[str] = ()
        elif name == BANK_CONFLICTS:
            replacement = self._without_conflicts(statement)
        elif name == MATRIX:
            replacement = (
                self._sink_descriptors(statement) if statement.base == "wgmma" else self._sink_operands(statement)
            )
        elif statement.base == "ldmatrix" and self._is_fragment(statement):
            replacement = self._fragment(statement)
        elif statement.base in ("ld", "ldu", "ldmatrix"):
            replacement = self._load(statement, pooled="shared" in statement.modifiers and statement.base != "ldmatrix")
        else:
            replacement = self._sink(statement)
        if statement.base == "cp" and "complete_tx" in statement.modifiers:
            self._has_removed_bulk_copy = True
        self._replace(statement, replacement)

    def _replace(self, statement: Statement, replacement: Iterable[str]) -> None:
        lines = list(replacement)
        text = " ".join(("{ .reg .b32 %kox, %koy, %kow;", *lines, "}")) if lines else ""
        self._edits.append((statement.start, statement.end, text))

    def edits(self) -> Iterator[tuple[int, int, str]]:
        """Yield the replacements as start, end and new text."""
        yield from self._edits
        if not self._edits:
            return
        yield self.function.start, self.function.start, "\n" + "\n".join(self._prologue())
        for statement in self.function.statements:
            if self._has_sink and statement.base in ("ret", "exit"):
                test = (
                    f"setp.eq.and.b32 %kop, %kosink, {SENTINEL}, {'!' if statement.negated else ''}{statement.guard};"
                )
                if not statement.guard:
                    test = f"setp.eq.b32 %kop, %kosink, {SENTINEL};"
                yield statement.start, statement.start, f"{test} @%kop st.global.u32 [kosunk], %kosink;\n"
            if self._has_removed_bulk_copy and expects_bytes(statement):
                expecting_none = replace(statement, operands=(*statement.operands[:-1], "0"))
                yield statement.start, statement.end, expecting_none.text
            if (
                statement.base == "mov"
                and statement.operands[0] in self._accumulators
                and self._is_constant(statement.operands[1])
            ):
                yield statement.start, statement.end, ""
        return

    def _prologue(self) -> Iterator[str]:
        """Yield declarations of registers, and code that sets them to values that the assembler cannot compute."""
        lanes = "".join(f", %kolanes{width}" for width in sorted(self._lane_widths))
        yield f".reg .b32 %kolane, %kozero, %kosink{lanes};\n.reg .pred %kop;\nmov.u32 %kolane, %lanemask_eq;"
        yield "{ .reg .b32 %kox; mov.u32 %kox, %lanemask_lt; and.b32 %kozero, %kolane, %kox; }"  # always 0
        if self._has_sink:
            yield "mov.u32 %kosink, 0;"
        if self._lane_widths:
            yield "{ .reg .b32 %kox, %koy;"
            yield f"mov.u32 %kox, {self.function.shared[0]}; add.u32 %kox, %kox, 15; and.b32 %kox, %kox, -16;"
            yield "mov.u32 %koy, %laneid;"
            for width in sorted(self._lane_widths):
                yield f"mad.lo.u32 %kolanes{width}, %koy, {width}, %kox;"
            yield "}"
        pool = [f"%kopool{number}" for number in range(min(self._pool_uses, OPAQUE_REGISTERS))]
        fragments = [f"%kofragment{number}" for number in range(min(self._fragment_count, FRAGMENT_REGISTERS))]
        yield f".reg .b32 %kopool<{OPAQUE_REGISTERS}>, %kofragment<{FRAGMENT_REGISTERS}>;"
        yield from self._opaque(
            [*pool, *fragments, *self._accumulators], [*pool, *fragments, *self._unchanged_accumulators]
        )

    def _opaque(self, registers: Sequence[str], constant: Collection[str]) -> Iterator[str]:
        """Yield instructions that give each register a value which the assembler cannot compute.

        Registers that no loop changes are also loaded from memory under a condition that never holds, so that
        the assembler cannot compute them again where they are used.
        """
        widths = {name: self.function.width(name) or 32 for name in registers}
        for index, (name, width) in enumerate(widths.items()):
            opaque = f"prmt.b32 %kox, %kolane, {UPPER_HALF_OF_ONE + index % 0x80}, 0x5410;"
            value = "{%kox, %kox}" if width == 64 else "%kox"
            yield f"{{ .reg .b32 %kox; {opaque} mov.b{width} {name}, {value}; }}"
        if not constant:
            return
        yield "setp.eq.u32 %kop, %kozero, 0;\n@%kop bra $kostart;"
        for name in constant:
            yield f"ld.volatile.global.b{widths[name]} {name}, [kosunk];"
        yield "$kostart:"

    # Values of loads ------------------------------------------------------------------------------------------------

    def _load(self, statement: Statement, pooled: bool) -> Iterator[str]:
        """Yield the replacement of a load: its results get bits of the address."""
        yield from self._address_word(statement)
        address_match = ADDRESS.fullmatch(next(operand for operand in statement.operands if operand.startswith("[")))
        assert address_match
        offset, size = (
            int(address_match[2] or 0),
            max(1, lane_bytes(statement) // max(1, len(written_registers(statement)))),
        )
        for index, register in enumerate(written_registers(statement)):
            width, byte_index = self.function.width(register), offset // size + index
            if width == 16:
                yield f"prmt.b32 %kox, %kow, {0x3C + byte_index % 4}, 0x444{byte_index // 4 % 2};"
                yield f"{statement.predicate}cvt.u16.u32 {register}, %kox;"
                continue
            word = "%kox"
            if pooled and index:
                word = f"%kopool{self._pool_uses % OPAQUE_REGISTERS}"
                self._pool_uses += 1
            else:
                yield f"prmt.b32 %kox, %kow, {UPPER_HALF_OF_ONE + byte_index % 0x80}, 0x5410;"
            value = f"{{{word}, {word}}}" if width == 64 else word
            yield f"{statement.predicate}mov.b{width} {register}, {value};"

    def _address_word(self, statement: Statement) -> Iterator[str]:
        """Yield an instruction that moves the lower half of the address to %kow."""
        address_match = ADDRESS.fullmatch(next(operand for operand in statement.operands if operand.startswith("[")))
        assert address_match
        width = self.function.width(address_match[1])
        if width == 64:
            yield f"cvt.u32.u64 %kow, {address_match[1]};"
        elif width or address_match[1] in self.function.shared:
            yield f"mov.b32 %kow, {address_match[1]};"
        else:
            yield f"{{ .reg .b64 %kol; mov.u64 %kol, {address_match[1]}; cvt.u32.u64 %kow, %kol; }}"

    def _is_fragment(self, statement: Statement) -> bool:
        """Return whether only matrix instructions use the results of a load; then equal values remove no arithmetic."""
        return all(
            self._opcodes_by_register.get(register, set()) <= {"mma", "mov"}
            for register in written_registers(statement)
        )

    @cached_property
    def _opcodes_by_register(self) -> dict[str, set[str]]:
        """The opcodes of the instructions that read each register."""
        users: dict[str, set[str]] = {}
        for statement in self.function.statements:
            for register in operands(statement):
                users.setdefault(register, set()).add(statement.base)
        return users

    def _fragment(self, statement: Statement) -> Iterator[str]:
        """Yield values for the results of ldmatrix.

        Matrix instructions need neighbouring registers, so that the results of one load are neighbours here,
        too: otherwise each would be copied before each use.
        """
        self._has_sink = True
        yield from self._address_word(statement)
        yield f"{statement.predicate}xor.b32 %kosink, %kosink, %kow;"
        registers = written_registers(statement)
        first_fragment = -(-self._fragment_count // len(registers)) * len(registers)
        self._fragment_count = first_fragment + len(registers)
        for index, register in enumerate(registers, first_fragment):
            yield f"{statement.predicate}mov.b32 {register}, %kofragment{index % FRAGMENT_REGISTERS};"

    # Uses of values -------------------------------------------------------------------------------------------------

    def _sink(self, statement: Statement) -> Iterator[str]:
        """Yield instructions that use every register of an instruction, and values for its results."""
        self._has_sink = True
        registers_written = written_registers(statement)
        for operand in statement.operands:
            if operand in registers_written or (registers_written and operand is statement.operands[0]):
                continue
            for register in registers_of(operand):
                yield from self._use(statement, register, low_only=operand.startswith("["))
        if registers_written and "_" not in registers_written:
            yield from self._load(statement, pooled=False)

    def _sink_descriptors(self, statement: Statement) -> Iterator[str]:
        """Yield uses of a wgmma's operands; its accumulators get values that the assembler cannot compute."""
        self._has_sink = True
        self._accumulators |= dict.fromkeys(registers_of(statement.operands[0]))
        self._unchanged_accumulators |= dict.fromkeys(registers_of(statement.operands[0]))
        for operand in statement.operands[1:3]:
            for register in registers_of(operand):
                yield from self._use(statement, register, low_only=True)

    def _use(self, statement: Statement, register: str, low_only: bool) -> Iterator[str]:
        """Yield an exclusive-or of a register into the register on which the kernel's end depends."""
        width = self.function.width(register)
        use = f"{statement.predicate}xor.b32 %kosink, %kosink,"
        if width == 64:
            yield f"mov.b64 {{%kox, %koy}}, {register}; {use} %kox;" + ("" if low_only else f" {use} %koy;")
        elif width == 32:
            yield f"mov.b32 %kox, {register}; {use} %kox;"
        elif width == 16:
            yield f"mov.b32 %kox, {{{register}, {register}}}; {use} %kox;"

    def _sink_operands(self, statement: Statement) -> Iterator[str]:
        """Yield uses of a matrix instruction's operands, each loaded value once, and one multiply-add.

        Its other results are its accumulators. The next instruction on the same accumulators changes the next
        one, so that a loop changes all of them.
        """
        self._has_sink = True
        first, second, old_accumulators = (registers_of(operand) for operand in statement.operands[1:4])
        new_accumulators = registers_of(statement.operands[0])
        self._accumulators |= dict.fromkeys((*new_accumulators, *old_accumulators))
        changed_index = self._replaced_products.get(old_accumulators, 0) % len(new_accumulators)
        self._replaced_products[new_accumulators] = changed_index + 1
        for operand in statement.operands[1:3]:
            for register in registers_of(operand):
                write_position = self._written_before(register, statement.start)
                if write_position not in self._used_positions:
                    self._used_positions.add(write_position)
                    yield from self._use(statement, register, low_only=True)
        for index, (new, old) in enumerate(zip(new_accumulators, old_accumulators, strict=True)):
            if index == changed_index:
                yield f"fma.rn.f{self.function.width(new)} {new}, {first[0]}, {second[0]}, {old};"
            elif new != old:
                yield f"mov.b{self.function.width(new)} {new}, {old};"

    def _written_before(self, register: str, start: int) -> int:
        """Return the position of the last instruction before `start` that writes a register."""
        positions = self._writes.get(register, [])
        return max((position for position in positions if position < start), default=max(positions, default=-1))

    def _is_constant(self, operand: str) -> bool:
        """Return whether an operand is a number, or a register that only receives numbers."""
        if re.match(r"[-\d]", operand):
            return True
        writers = [statement for statement in self.function.statements if operand in written_registers(statement)]
        return bool(writers) and all(
            writer.base == "mov" and re.match(r"[-\d]", writer.operands[1]) for writer in writers
        )

    @cached_property
    def _writes(self) -> dict[str, list[int]]:
        """The positions of the instructions that write each register."""
        positions: dict[str, list[int]] = {}
        for statement in self.function.statements:
            for register in written_registers(statement):
                positions.setdefault(register, []).append(statement.start)
        return positions

    # Addresses ------------------------------------------------------------------------------------------------------

    def _without_conflicts(self, statement: Statement) -> Iterator[str]:
        """Yield the access with one conflict-free address per lane; the original address is still computed."""
        width = lane_bytes(statement)
        # Each access gets another address; at one address, later stores would replace earlier ones.
        offset = self._access_count % ((self.shared_bytes - 16 - 32 * width) // 16 + 1) * 16
        self._access_count += 1
        self._lane_widths.add(width)
        yield from self._address_word(statement)
        yield f"and.b32 %kow, %kow, %kozero; or.b32 %kow, %kow, %kolanes{width};"
        new_operands = (f"[%kow+{offset}]" if operand.startswith("[") else operand for operand in statement.operands)
        yield replace(statement, operands=tuple(new_operands)).text
