"""Compute the addresses of accesses in loops by additions only, for a knock-out experiment.

An address that is a linear function of the loop counters grows by a constant step in each iteration. The rewritten
kernel computes the first address and the steps before the loop, and adds a step at the end of each iteration. Each
access gets the same address as before, so the number of accesses, their pattern and the results stay.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from opbench.gpu.compile.knockout_classes import ADDRESS, expects_bytes
from opbench.gpu.compile.natural_loops import Loop
from opbench.gpu.compile.ptx_flow import MEMORY_OPCODES, operands, written_registers
from opbench.gpu.compile.ptx_linear import (
    Atom,
    LinearValues,
    Poly,
    constant,
    counters_of,
    factor_of,
    frozen,
    product,
    substituted,
    total,
)
from opbench.gpu.compile.ptx_loops import ControlFlow
from opbench.gpu.compile.ptx_statements import Function, Statement

OUTSIDE_LOOPS, NOT_LINEAR, CHEAP, USED_ELSEWHERE = "outside-loops", "not-linear", "already-cheap", "used-elsewhere"
"""Reasons why arithmetic of addresses stays."""
MAX_OFFSET = 1 << 20
"""Accesses whose addresses differ by fewer bytes share a register."""
PURE_OPCODES = frozenset(
    ("mov", "cvt", "cvta", "add", "sub", "mul", "mad", "neg", "abs", "shl", "shr", "and", "or", "xor", "not", "min",
     "max", "div", "rem", "bfe", "bfi", "prmt", "selp", "slct", "setp", "lop3", "shf", "popc", "clz", "brev", "sad",
     "szext", "bmsk")
)  # fmt: skip
"""Instructions without effects other than their results."""


@dataclass(frozen=True)
class _Level:
    """How an address changes in one loop."""

    loop: Loop
    step: Poly


@dataclass
class _Address:
    """An address register of accesses in a loop, as a start before the outermost loop and a step for each loop."""

    statement: Statement
    register: str
    region: Loop
    start: Poly
    levels: tuple[_Level, ...]
    """The outermost loop first; only loops in which the address changes."""

    @property
    def key(self) -> tuple[object, ...]:
        """Addresses with one key differ by a constant only."""
        steps = tuple((level.loop.header, frozen(level.step)) for level in self.levels)
        return self.region.header, steps, frozen({atoms: n for atoms, n in self.start.items() if atoms})


@dataclass
class _Chain:
    """Registers that hold one address, which several accesses use with their own offsets."""

    number: int
    width: int
    first: _Address
    addresses: list[_Address] = field(default_factory=list)

    def register(self, level: int) -> str:
        """Return the register that advances in a loop, the outermost being 0; -1 is the address before all loops."""
        return f"%koa{self.number}x{level + 1}"

    @property
    def offset_base(self) -> int:
        """The constant of the first address."""
        return self.first.start.get((), 0)


class SteppedAddresses:
    """The accesses of a function whose addresses can advance by additions, and the edits that do so."""

    def __init__(self, function: Function, text: str) -> None:
        """Find the addresses in a function of the module `text`."""
        self.function = function
        self._control = ControlFlow(function, text)
        self._values = LinearValues(function, self._control)
        self._accesses = [
            (index, statement, match[1], match)
            for index, statement in enumerate(function.statements)
            if statement.base in MEMORY_OPCODES
            and not statement.modifiers & {"param", "local"}
            # Without bulk copies, this instruction is replaced already: it then expects no bytes.
            and not expects_bytes(statement)
            for operand in statement.operands
            if (match := ADDRESS.fullmatch(operand)) and function.width(match[1]) in (32, 64)
        ]
        self._reasons: dict[tuple[int, str], str] = {}
        self._chains: list[_Chain] = []
        self._build()

    # Which addresses ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        found = []
        for index, statement, register, _ in self._accesses:
            loops = self._control.loops_around(self._control.block_of[index])
            if not loops:
                self._reasons[statement.start, register] = OUTSIDE_LOOPS
                continue
            address = next((one for loop in loops if (one := self._address(index, register, loop))), None)
            if address is None:
                self._reasons[statement.start, register] = NOT_LINEAR
            elif not address.levels:
                self._reasons[statement.start, register] = CHEAP
            else:
                found.append(address)
        self._chains = self._grouped(found)
        saved = self._removed_indices()
        cheap = [chain for chain in self._chains if len(saved & self._slice_of(chain)) <= chain.width // 32]
        for chain in cheap:
            for address in chain.addresses:
                self._reasons[address.statement.start, address.register] = CHEAP
        dropped = {id(address) for chain in cheap for address in chain.addresses}
        self._chains = self._grouped([one for one in found if id(one) not in dropped])

    def _address(self, index: int, register: str, region: Loop) -> _Address | None:
        """Return how an address changes in the loops from `region` inwards; None if it is not linear in one of them."""
        poly = self._values.value(register, index, region)
        if poly is None:
            return None
        loops = [
            loop for loop in self._control.loops_around(self._control.block_of[index]) if loop.blocks <= region.blocks
        ]
        levels = []
        for loop in reversed(loops):
            step = constant(0)
            for counter in sorted(one for one in counters_of(poly) if one.loop == loop.header):
                factor, growth = factor_of(poly, counter), self._values.step(counter, region)
                start = self._values.start(counter, region)
                if factor is None or growth is None or start is None or counters_of(factor):
                    return None
                step = total(step, product(factor, growth))
                poly = substituted(poly, counter, start)
            if step:
                levels.append(_Level(loop, step))
        if counters_of(poly) or not all(self._can_step(level.loop) for level in levels):
            return None
        if not self._can_enter(region):
            return None
        return _Address(self.function.statements[index], register, region, poly, tuple(reversed(levels)))

    def _can_step(self, loop: Loop) -> bool:
        """Return whether code can be added where the iterations of a loop end, and where the loop begins."""
        for latch in loop.latches:
            last = self._control.terminator(latch)
            others = [block for block in self._control.successors[latch] if block != loop.header]
            if last.base != "bra" or any(block in loop.blocks for block in others):
                return False
            if loop.header == latch + 1 and last.guard:
                return False
        return self._can_enter(loop)

    def _can_enter(self, loop: Loop) -> bool:
        header = loop.header
        falls_from_loop = header - 1 in loop.blocks and header in self._control.successors[header - 1]
        return header in self._control.labels and not falls_from_loop

    def _grouped(self, addresses: Iterable[_Address]) -> list[_Chain]:
        groups: dict[tuple[object, ...], list[_Address]] = defaultdict(list)
        for address in addresses:
            groups[(self.function.width(address.register), *address.key)].append(address)
        chains: list[_Chain] = []
        for several in groups.values():
            for address in sorted(several, key=lambda one: one.start.get((), 0)):
                last = chains[-1] if chains and chains[-1].addresses[0] in several else None
                if last is None or address.start.get((), 0) - last.offset_base >= MAX_OFFSET:
                    last = _Chain(len(chains), self.function.width(address.register), address)
                    chains.append(last)
                last.addresses.append(address)
        return chains

    # Instructions ---------------------------------------------------------------------------------------------------

    @cached_property
    def _slices(self) -> dict[str, frozenset[int]]:
        """For each address register, the indices of the arithmetic that computes it."""
        writers: dict[str, list[int]] = defaultdict(list)
        for index, statement in enumerate(self.function.statements):
            if statement.base in PURE_OPCODES:
                for register in written_registers(statement):
                    writers[register].append(index)
        slices = {}
        for register in {name for _, _, name, _ in self._accesses}:
            found: set[int] = set()
            stack = list(writers[register])
            while stack:
                index = stack.pop()
                if index not in found:
                    found.add(index)
                    for name in operands(self.function.statements[index]):
                        stack += writers.get(name, ())
            slices[register] = frozenset(found)
        return slices

    def _slice_of(self, chain: _Chain) -> frozenset[int]:
        return frozenset().union(*(self._slices[address.register] for address in chain.addresses))

    def _live(self, replaced: Mapping[tuple[int, str], object], atoms: Iterable[str]) -> set[int]:
        """Return the indices of the instructions whose results are used if some address registers are replaced."""
        writers: dict[str, list[int]] = defaultdict(list)
        live, stack = set(), list(atoms)
        for index, statement in enumerate(self.function.statements):
            if statement.base in PURE_OPCODES or (statement.base == "ld" and "param" in statement.modifiers):
                for register in written_registers(statement):
                    writers[register].append(index)
            else:
                live.add(index)
                unused = {register for start, register in replaced if start == statement.start}
                stack += [name for name in self._reads(statement) if name not in unused]
        while stack:
            for index in writers.pop(stack.pop(), ()):
                live.add(index)
                stack += self._reads(self.function.statements[index])
        return live

    @staticmethod
    def _reads(statement: Statement) -> tuple[str, ...]:
        return (*operands(statement), statement.guard) if statement.guard else operands(statement)

    def _in_loop(self, index: int) -> bool:
        return any(self._control.block_of[index] in loop.blocks for loop in self._control.loops.values())

    def _removed_indices(self) -> set[int]:
        """Return the indices of the instructions in loops that are not needed any more."""
        replaced = {(one.statement.start, one.register): True for chain in self._chains for one in chain.addresses}
        atoms = {
            atom.name
            for chain in self._chains
            for poly in (chain.first.start, *(level.step for level in chain.first.levels))
            for product_atoms in poly
            for atom in product_atoms
        }
        unneeded = self._live({}, ()) - self._live(replaced, atoms)
        return {index for index in unneeded if self._in_loop(index)}

    @cached_property
    def removed(self) -> tuple[Statement, ...]:
        """The instructions in loops that the additions replace."""
        return tuple(self.function.statements[index] for index in sorted(self._removed_indices()))

    @cached_property
    def remaining(self) -> tuple[tuple[Statement, str], ...]:
        """The other arithmetic of addresses, with the reason why it stays."""
        reasons: dict[int, str] = {}
        order = (CHEAP, NOT_LINEAR, OUTSIDE_LOOPS)
        for _, statement, register, _ in self._accesses:
            reason = self._reasons.get((statement.start, register))
            for index in self._slices[register]:
                known = [one for one in (reasons.get(index), reason) if one is not None]
                if known:
                    reasons[index] = min(known, key=order.index)
        for _, _, register, _ in self._accesses:  # arithmetic of addresses that all advance
            for index in self._slices[register]:
                reasons.setdefault(index, USED_ELSEWHERE)
        removed = self._removed_indices()
        return tuple(
            (self.function.statements[index], reason if self._in_loop(index) else OUTSIDE_LOOPS)
            for index, reason in sorted(reasons.items())
            if index not in removed
        )

    # Edits ----------------------------------------------------------------------------------------------------------

    @cached_property
    def accesses(self) -> dict[int, Statement]:
        """Return the accesses with the new addresses, by their start."""
        changed: dict[int, Statement] = {}
        for chain in self._chains:
            for address in chain.addresses:
                old = changed.get(address.statement.start, address.statement)
                offset = address.start.get((), 0) - chain.offset_base
                changed[old.start] = dataclasses.replace(
                    old, operands=tuple(self._operand(one, address, chain, offset) for one in old.operands)
                )
        return changed

    @staticmethod
    def _operand(operand: str, address: _Address, chain: _Chain, offset: int) -> str:
        match = ADDRESS.fullmatch(operand)
        if not match or match[1] != address.register:
            return operand
        return f"[{chain.register(len(address.levels) - 1)}+{offset + int(match[2] or 0)}]"

    def edits(self, unroll: bool = True) -> Iterator[tuple[int, int, str]]:
        """Yield the code before and in loops as start, end and new text; the accesses are not among it.

        Without `unroll`, the assembler must not unroll the loops in which addresses advance.
        """
        if not self._chains:
            return
        before: dict[int, list[str]] = defaultdict(list)
        advances: dict[int, list[str]] = defaultdict(list)
        registers: list[str] = []
        steps: dict[tuple[object, ...], str] = {}
        for chain in self._chains:
            region, levels = chain.first.region.header, chain.first.levels
            first = chain.register(-1)
            registers += [f".reg .b{chain.width} {chain.register(level)};" for level in range(-1, len(levels))]
            before[region].append(self._computed(first, chain.first.start, chain.width))
            for number, level in enumerate(levels):
                step = str(level.step.get((), 0))
                if set(level.step) != {()}:
                    key = region, chain.width, frozen(level.step)
                    if key not in steps:
                        steps[key] = f"%kostep{len(steps)}"
                        registers.append(f".reg .b{chain.width} {steps[key]};")
                        before[region].append(self._computed(steps[key], level.step, chain.width))
                    step = steps[key]
                register = chain.register(number)
                before[level.loop.header].append(f"mov.b{chain.width} {register}, {chain.register(number - 1)};")
                for latch in level.loop.latches:
                    advances[latch].append(f"add.s{chain.width} {register}, {register}, {step};")
        yield self.function.start, self.function.start, "\n" + "\n".join(registers) + "\n"
        for latch, lines in advances.items():
            start = self._control.terminator(latch).start
            yield start, start, "\n".join(lines) + "\n"
        for header, lines in before.items():
            if not unroll:
                start = self.function.statements[self._control.blocks[header].start].start
                yield start, start, '.pragma "nounroll";\n'
            yield from self._entry_edits(header, lines)

    def _entry_edits(self, header: int, lines: list[str]) -> Iterator[tuple[int, int, str]]:
        """Yield code before a loop, and jumps to this code in place of jumps into the loop."""
        loop, position = self._control.loops[header], self._control.labels[header]
        label = f"$koloop{header}"
        yield position, position, "\n".join((f"{label}:", *lines, ""))
        for block in self._control.predecessors[header]:
            last = self._control.terminator(block)
            target_is_header = last.base == "bra" and (not last.guard or header != block + 1)
            if block not in loop.blocks and target_is_header:
                yield last.start, last.end, dataclasses.replace(last, operands=(label,)).text

    def _computed(self, register: str, poly: Poly, width: int) -> str:
        """Return code that sets a register to the value of a polynomial, by Horner's rule."""
        depth = max((len(atoms) for atoms in poly), default=0)
        terms = ", ".join(f"%kot{width}x{level}, %kou{width}x{level}" for level in range(depth + 1))
        return " ".join((f"{{ .reg .b{width} {terms}; .reg .b32 %kov;", *self._horner(register, poly, width, 0), "}"))

    def _horner(self, register: str, poly: Poly, width: int, level: int) -> Iterator[str]:
        """Yield code for a polynomial: the most frequent atom times a polynomial, plus the terms without this atom."""
        frequencies = Counter(atom for atoms in poly for atom in set(atoms))
        if not frequencies:
            yield f"mov.b{width} {register}, {poly.get((), 0)};"
            return
        atom = max(sorted(frequencies), key=lambda one: frequencies[one])
        factor: dict[tuple[Atom, ...], int] = {}
        rest: dict[tuple[Atom, ...], int] = {}
        for atoms, value in poly.items():
            if atom in atoms:
                index = atoms.index(atom)
                factor[(*atoms[:index], *atoms[index + 1 :])] = value
            else:
                rest[atoms] = value
        yield from self._horner(register, rest, width, level)
        term, source = f"%kot{width}x{level}", f"%kou{width}x{level}"
        if set(factor) == {()}:
            yield f"{self._atom(source, atom, width)} mad.lo.s{width} {register}, {source}, {factor[()]}, {register};"
            return
        yield from self._horner(term, factor, width, level + 1)
        yield f"{self._atom(source, atom, width)} mad.lo.s{width} {register}, {source}, {term}, {register};"

    def _atom(self, register: str, atom: Atom, width: int) -> str:
        """Return code that sets a register to an atom."""
        if atom.kind == "symbol":
            return f"mov.u{width} {register}, {atom.name};"
        if atom.kind == "parameter":
            own_width = int(atom.type[1:])
            source = register if own_width == width else "%kov"
            load = f"ld.param.{atom.type} {source}, [{atom.name}];"
            if own_width == 64 and width == 32:
                return f"{{ .reg .b64 %kol; ld.param.{atom.type} %kol, [{atom.name}]; cvt.u32.u64 {register}, %kol; }}"
            return load if own_width == width else f"{load} cvt.s64.s32 {register}, %kov;"
        if atom.kind == "special":
            return f"mov.u32 %kov, {atom.name}; " + (
                f"cvt.u64.u32 {register}, %kov;" if width == 64 else f"mov.b32 {register}, %kov;"
            )
        own_width = self.function.width(atom.name)
        if own_width == width:
            return f"mov.b{width} {register}, {atom.name};"
        return f"cvt.s64.s32 {register}, {atom.name};" if width == 64 else f"cvt.u32.u64 {register}, {atom.name};"
