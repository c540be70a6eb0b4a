"""Write the integer registers of PTX loops as linear functions of the loop counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opbench.gpu.compile.natural_loops import Loop
from opbench.gpu.compile.ptx_flow import written_registers
from opbench.gpu.compile.ptx_loops import ControlFlow
from opbench.gpu.compile.ptx_statements import Function, Statement

MAX_TERMS = 24
"""A polynomial with more terms costs more registers than it saves."""
MAX_DEPTH = 60
"""Most instructions that an address is followed back: a recursion, which Python limits."""
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
_REGISTER = re.compile(r"%[a-z]+\d+")
_SPECIAL = re.compile(r"%(?:tid|ntid|ctaid|nctaid)\.[xyz]|%laneid")
_INTEGERS = frozenset(("s32", "u32", "b32", "s64", "u64", "b64"))


@dataclass(frozen=True, order=True)
class Atom:
    """A value that a polynomial does not split: a register, a parameter or the counter of a loop."""

    kind: str
    """`register`, `parameter`, `special` or `symbol`; `counter` for a register as it is when an iteration begins."""
    name: str
    loop: int = -1
    """The header of a counter's loop."""
    type: str = ""
    """The PTX type of a parameter."""


Poly = Mapping[tuple[Atom, ...], int]
"""A polynomial: coefficients by the product of atoms that each multiplies; () is the constant term."""


def constant(value: int) -> Poly:
    """Return a polynomial without atoms."""
    return {(): value} if value else {}


def total(*polys: Poly) -> Poly:
    """Return the sum of polynomials."""
    terms: dict[tuple[Atom, ...], int] = {}
    for poly in polys:
        for atoms, factor in poly.items():
            terms[atoms] = terms.get(atoms, 0) + factor
    return {atoms: factor for atoms, factor in terms.items() if factor}


def product(one: Poly, other: Poly) -> Poly:
    """Return the product of two polynomials."""
    return total(
        *(
            {tuple(sorted((*a, *b))): factor * other_factor}
            for a, factor in one.items()
            for b, other_factor in other.items()
        )
    )


def negative(poly: Poly) -> Poly:
    """Return the negative polynomial."""
    return {atoms: -factor for atoms, factor in poly.items()}


def counters_of(poly: Poly) -> set[Atom]:
    """Return the counters of loops in a polynomial."""
    return {atom for atoms in poly for atom in atoms if atom.kind == "counter"}


def frozen(poly: Poly) -> tuple[tuple[tuple[Atom, ...], int], ...]:
    """Return a polynomial as a key."""
    return tuple(sorted(poly.items()))


def factor_of(poly: Poly, counter: Atom) -> Poly | None:
    """Return the factor of a counter; None if the polynomial is not linear in the counter."""
    factor: dict[tuple[Atom, ...], int] = {}
    for atoms, value in poly.items():
        others = tuple(atom for atom in atoms if atom.kind == "counter")
        if counter not in others:
            continue
        if len(others) > 1:
            return None
        factor[tuple(atom for atom in atoms if atom != counter)] = value
    return factor


def substituted(poly: Poly, counter: Atom, value: Poly) -> Poly:
    """Return a polynomial, linear in a counter, with a value in place of the counter."""
    factor = factor_of(poly, counter)
    assert factor is not None
    return total({atoms: value for atoms, value in poly.items() if counter not in atoms}, product(factor, value))


class LinearValues:
    """The values of a function's registers within loops, as polynomials."""

    def __init__(self, function: Function, control: ControlFlow) -> None:
        """Read which instructions write each register."""
        self._function, self._control = function, control
        self._writers: dict[str, list[int]] = {}
        for index, statement in enumerate(function.statements):
            for register in written_registers(statement):
                self._writers.setdefault(register, []).append(index)
        self._values: dict[tuple[int, int], Poly | None] = {}
        self._depth = 0

    def value(self, operand: str, index: int, region: Loop) -> Poly | None:
        """Return an operand's value before the statement `index`; None if it is not linear.

        The value is a polynomial in counters of loops within `region` and in values that do not change in `region`.
        """
        if _NUMBER.fullmatch(operand):
            return constant(int(operand.rstrip("U"), 0))
        if _SPECIAL.fullmatch(operand):
            return {(Atom("special", operand),): 1}
        if operand in self._function.shared:
            return {(Atom("symbol", operand),): 1}
        if not _REGISTER.fullmatch(operand) or self._function.width(operand) not in (32, 64):
            return None
        if not self._is_written_in(operand, region):
            return {(Atom("register", operand),): 1} if operand in self._writers else None
        return self._searched(operand, self._control.block_of[index], index, region)

    def step(self, counter: Atom, region: Loop) -> Poly | None:
        """Return how much a counter grows in an iteration of its loop; None if this changes in `region`."""
        loop = self._control.loops[counter.loop]
        after = self._common(self._value_at_end(counter.name, latch, region) for latch in loop.latches)
        if after is None:
            return None
        step = total(after, {(counter,): -1})
        return None if counters_of(step) else step

    def start(self, counter: Atom, region: Loop) -> Poly | None:
        """Return a counter's value when its loop begins; None if it is not linear."""
        loop = self._control.loops[counter.loop]
        if loop == region:
            return {(Atom("register", counter.name),): 1}
        entries = [block for block in self._control.predecessors[loop.header] if block not in loop.blocks]
        return self._common(self._value_at_end(counter.name, entry, region) for entry in entries)

    def _value_at_end(self, register: str, block: int, region: Loop) -> Poly | None:
        return self._searched(register, block, self._control.blocks[block].stop, region)

    def _searched(self, register: str, block: int, index: int, region: Loop) -> Poly | None:
        """Return the value of a register before the statement `index` of a block.

        Behind a loop, this is its value after the last iteration. A jump around the loop, which executes no iteration,
        must bring the value that the register has before the loop.
        """
        values: list[Poly | None] = []
        ended: dict[int, Poly | None] = {}
        for source in self._search(register, block, index):
            source_block = source[1] if source[0] == "header" else self._control.block_of[source[1]]
            left = [loop for loop in self._control.loops_around(source_block) if block not in loop.blocks]
            value = self._value_from(source, register, region)
            for loop in reversed(left):
                value = self._after(loop, value, region) if value is not None else None
            if left:
                ended[left[0].header] = value
            else:
                values.append(value)
        if len(ended) == 1:
            ((header, value),) = ended.items()
            started = {frozen(one) if one is not None else None for one in values}
            start = self.start(Atom("counter", register, header), region) if started else None
            return value if not started or (start is not None and started == {frozen(start)}) else None
        return self._common([*values, *ended.values()])

    def _after(self, loop: Loop, poly: Poly, region: Loop) -> Poly | None:
        """Return a value of the last iteration of a loop without the loop's counters; None if it is not known."""
        for counter in sorted(one for one in counters_of(poly) if one.loop == loop.header):
            last = self._last(counter, region)
            if last is None or factor_of(poly, counter) is None:
                return None
            poly = substituted(poly, counter, last)
        return poly

    def _last(self, counter: Atom, region: Loop) -> Poly | None:
        """Return a counter's value in the last iteration of its loop, by the comparison that ends the loop."""
        loop = self._control.loops[counter.loop]
        exits = {
            block for block in loop.blocks for target in self._control.successors[block] if target not in loop.blocks
        }
        if exits != set(loop.latches) or len(loop.latches) != 1:
            return None
        index = self._control.blocks[loop.latches[0]].stop - 1
        jump = self._function.statements[index]
        tests = [one for one in self._writers.get(jump.guard, ()) if self._control.block_of[one] in loop.blocks]
        if len(tests) != 1 or self._control.block_of[tests[0]] != loop.latches[0]:
            return None
        test = self._function.statements[tests[0]]
        differences = [self.value(operand, tests[0], region) for operand in test.operands[1:]]
        goes_on = "eq" if jump.negated else "ne"
        if test.base != "setp" or goes_on not in test.modifiers or len(differences) != 2:
            return None
        if differences[0] is None or differences[1] is None:
            return None
        difference = total(differences[0], negative(differences[1]))
        tested = [one for one in counters_of(difference) if one.loop == loop.header]
        if len(tested) != 1 or (factor := factor_of(difference, tested[0])) not in ({(): 1}, {(): -1}):
            return None
        rest = {atoms: value for atoms, value in difference.items() if tested[0] not in atoms}
        last = negative(rest) if factor == {(): 1} else rest
        if tested[0] == counter:
            return last
        steps = [self.step(one, region) for one in (tested[0], counter)]
        starts = [self.start(one, region) for one in (tested[0], counter)]
        if any(one is None for one in (*steps, *starts)):
            return None
        numbers = [step.get((), 0) for step in steps if step is not None and set(step) <= {()}]
        if len(numbers) != 2 or not numbers[0] or numbers[1] % numbers[0] or starts[0] is None or starts[1] is None:
            return None
        iterations = total(last, negative(starts[0]))
        return total(starts[1], product(iterations, constant(numbers[1] // numbers[0])))

    @staticmethod
    def _common(values: Iterable[Poly | None]) -> Poly | None:
        """Return the value that all paths agree on; None if there is none."""
        found = list(values)
        first = found[0] if found else None
        return first if first is not None and all(value == first for value in found) else None

    def _is_written_in(self, register: str, loop: Loop) -> bool:
        return any(self._control.block_of[index] in loop.blocks for index in self._writers.get(register, ()))

    def _search(self, register: str, block: int, index: int) -> set[tuple[str, int]]:
        """Return what may have written a register before the statement `index`: statements, and headers of loops."""
        found: set[tuple[str, int]] = set()
        visited: set[int] = set()
        stack = [(block, index)]
        writers = self._writers[register]
        while stack:
            block, index = stack.pop()
            inside = [writer for writer in writers if writer in self._control.blocks[block] and writer < index]
            if inside:
                found.add(("statement", max(inside)))
                continue
            loop = self._control.loops.get(block)
            if loop and self._is_written_in(register, loop):
                found.add(("header", block))
            elif block not in visited:
                visited.add(block)
                stack += [(before, self._control.blocks[before].stop) for before in self._control.predecessors[block]]
        return found

    def _value_from(self, source: tuple[str, int], register: str, region: Loop) -> Poly | None:
        kind, index = source
        if kind == "header":
            return {(Atom("counter", register, index),): 1}
        key = index, region.header
        if key not in self._values:
            self._values[key] = None
            if self._depth == MAX_DEPTH:
                return None
            self._depth += 1
            poly = self._result(self._function.statements[index], index, region)
            self._depth -= 1
            self._values[key] = None if poly is None or len(poly) > MAX_TERMS else poly
        return self._values[key]

    def _result(self, statement: Statement, index: int, region: Loop) -> Poly | None:
        """Return the value of an instruction's result."""
        modifiers, base = statement.modifiers, statement.base
        if statement.guard or len(written_registers(statement)) != 1:
            return None
        if base == "ld" and "param" in modifiers:
            name = statement.operands[1].strip("[] ")
            kind = statement.opcode.rpartition(".")[2]
            is_own = name.startswith(f"{self._function.name}_param_") and kind in _INTEGERS
            return {(Atom("parameter", name, type=kind),): 1} if is_own else None
        if base == "cvta" and "global" not in modifiers:
            return None
        types = [word for word in statement.opcode.split(".")[1:] if re.fullmatch(r"[a-z]+\d+(x\d)?", word)]
        if not types or not set(types) <= _INTEGERS or modifiers & {"cc", "sat", "hi"}:
            return None
        values = [self.value(operand, index, region) for operand in statement.operands[1:]]
        if any(value is None for value in values):
            return None
        return _combined(base, [value for value in values if value is not None])


def _combined(base: str, values: Sequence[Poly]) -> Poly | None:
    """Return the result of an integer instruction on polynomials; None if it is no polynomial."""
    if base in ("mov", "cvt", "cvta"):
        return values[0]
    if base == "add":
        return total(*values)
    if base == "sub":
        return total(values[0], negative(values[1]))
    if base == "neg":
        return negative(values[0])
    if base == "mul":
        return product(values[0], values[1])
    if base == "mad":
        return total(product(values[0], values[1]), values[2])
    number = values[1].get((), 0) if len(values) > 1 and set(values[1]) <= {()} else -1
    if base == "shl" and 0 <= number < 32:
        return product(values[0], constant(1 << number))
    if base == "or" and number >= 0 and all(factor % (1 << number.bit_length()) == 0 for factor in values[0].values()):
        return total(*values)  # The bits of both are different ones.
    return None
