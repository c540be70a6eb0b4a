"""Runs the integer instructions of PTX for one thread, and records the address of each access."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from opbench.gpu.compile.ptx_flow import MEMORY_OPCODES, written_registers
from opbench.gpu.compile.ptx_loops import ControlFlow
from opbench.gpu.compile.ptx_statements import Function, Statement

SHARED_BASE = 1 << 16
MAX_ACCESSES, MAX_BLOCKS = 2000, 20_000
"""A thread that makes more accesses, or executes more basic blocks, is stopped."""


class CannotRun(Exception):
    """The function has an instruction that this interpreter does not know."""


class Thread:
    """One thread of a kernel: loads give 0, arithmetic of floats gives 0."""

    def __init__(
        self, function: Function, text: str, parameters: Mapping[str, int], special: Mapping[str, int]
    ) -> None:
        self.function, self.control = function, ControlFlow(function, text)
        self.parameters, self.special = parameters, special
        self.registers: dict[str, int] = {}
        self.accesses: list[tuple[str, int]] = []
        """The opcode and the address of each access, in order."""

    def run(self) -> list[tuple[str, int]]:
        """Run to the end of the kernel and return the accesses."""
        block = 0
        for _ in range(MAX_BLOCKS):
            if len(self.accesses) >= MAX_ACCESSES:
                break
            taken = False
            for index in self.control.blocks[block]:
                statement = self.function.statements[index]
                if statement.guard and bool(self.registers[statement.guard]) == statement.negated:
                    continue
                if statement.base in ("ret", "exit"):
                    return self.accesses
                taken = statement.base == "bra"
                if not taken:
                    self.execute(statement)
            block = self.control.successors[block][0] if taken else block + 1
        return self.accesses[:MAX_ACCESSES]

    def value(self, operand: str, signed: bool = False, bits: int = 64) -> int:
        """The value of an operand, as its instruction reads it."""
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            value = int(operand.rstrip("U"), 0)
        elif operand in self.special:
            value = self.special[operand]
        elif operand in self.function.shared:
            value = SHARED_BASE + 4096 * self.function.shared.index(operand)
        elif operand in self.registers:
            value = self.registers[operand]
        else:
            raise CannotRun(operand)
        value &= (1 << bits) - 1
        return value - (1 << bits) if signed and value >> (bits - 1) else value

    def execute(self, statement: Statement) -> None:
        """Execute an instruction that is no jump."""
        if statement.base in MEMORY_OPCODES and "param" not in statement.modifiers:
            for operand in statement.operands:
                if match := re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand):
                    bits = self.function.width(match[1]) or 32
                    address = (self.value(match[1]) + int(match[2] or 0)) & ((1 << bits) - 1)
                    self.accesses.append((statement.opcode, address))
            values = dict.fromkeys(written_registers(statement), 0)
        elif statement.base in ("bar", "barrier", "fence", "membar", "cp", "mbarrier", "pragma"):
            values = {}
        else:
            values = dict(zip(written_registers(statement), self.computed(statement), strict=False))
        for register, value in values.items():
            self.registers[register] = value & ((1 << (self.function.width(register) or 64)) - 1)

    def computed(self, statement: Statement) -> list[int]:
        """The results of an arithmetic instruction."""
        base, modifiers, written = statement.base, statement.modifiers, written_registers(statement)
        types = [word for word in statement.opcode.split(".")[1:] if re.fullmatch(r"[subf]+\d+(x2)?", word)]
        if base == "ld":
            return [self.parameters.get(statement.operands[1].strip("[]"), 8)]
        if base in ("setp", "or", "and", "not", "xor", "mov", "selp") and types == [] and "pred" in modifiers:
            types = ["b1"]
        if not types or any(one[0] == "f" or one.startswith("bf") for one in types):
            return [0] * len(written)
        kind = types[-1]
        signed, bits = kind[0] == "s", int(kind[1:])
        names = statement.operands[1:]
        if any("{" in name for name in names):
            return [0] * len(written)
        if base == "shfl":
            return [0] * len(written)
        if base == "cvta":
            return [self.value(names[0])]
        if base == "selp":
            return [self.value(names[0]) if self.registers[names[2]] else self.value(names[1])]
        a, *rest = [self.value(name, signed, bits) for name in names]
        if base == "setp":
            tests = {"eq": a == rest[0], "ne": a != rest[0], "lt": a < rest[0], "le": a <= rest[0],
                     "gt": a > rest[0], "ge": a >= rest[0], "lo": a < rest[0], "hi": a > rest[0],
                     "ls": a <= rest[0], "hs": a >= rest[0]}  # fmt: skip
            outcome = next(test for name, test in tests.items() if name in modifiers)
            if "and" in modifiers:
                outcome = outcome and bool(rest[1])
            if "or" in modifiers:
                outcome = outcome or bool(rest[1])
            return [int(outcome), int(not outcome)]
        if "hi" in modifiers:
            return [(a * rest[0] >> bits) + (rest[1] if base == "mad" else 0)]
        if base == "mad" and "wide" in modifiers:
            return [a * rest[0] + self.value(names[2], signed, 2 * bits)]
        return [self.arithmetic(base, a, rest, bits)]

    def arithmetic(self, base: str, a: int, rest: list[int], bits: int) -> int:
        """The result of an instruction on integers."""
        if base in ("div", "rem") and not rest[0]:
            raise CannotRun("division by zero")
        if base == "div":
            return abs(a) // abs(rest[0]) * (1 if (a < 0) == (rest[0] < 0) else -1)
        if base == "rem":
            return a - rest[0] * self.arithmetic("div", a, rest, bits)
        if base in ("mov", "cvt"):
            return a
        simple: dict[str, Callable[..., int]] = {
            "add": lambda b, *_: a + b, "sub": lambda b, *_: a - b, "mul": lambda b, *_: a * b,
            "mad": lambda b, *c: a * b + c[0], "shl": lambda b, *_: a << min(b, 64), "shr": lambda b, *_: a >> b,
            "and": lambda b, *_: a & b, "or": lambda b, *_: a | b, "xor": lambda b, *_: a ^ b,
            "min": lambda b, *_: min(a, b), "max": lambda b, *_: max(a, b), "neg": lambda *_: -a, "not": lambda *_: ~a,
            "abs": lambda *_: abs(a),
            "bfi": lambda b, *c: b & ~(((1 << c[1]) - 1) << c[0]) | (a & ((1 << c[1]) - 1)) << c[0],
            "bfe": lambda b, *c: (a >> b) & ((1 << c[0]) - 1),
        }  # fmt: skip
        if base not in simple:
            raise CannotRun(base)
        return simple[base](*rest)
