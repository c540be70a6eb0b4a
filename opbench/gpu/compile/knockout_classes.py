"""Define the classes of PTX instructions that knock-out experiments remove, and groups of machine instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opbench.gpu.compile.ptx_flow import written_registers
from opbench.gpu.compile.ptx_statements import Function, Statement, registers_of

GLOBAL_LOADS, GLOBAL_STORES, ATOMICS = "global-loads", "global-stores", "atomics"
SHARED, BANK_CONFLICTS, BARRIERS, MATRIX = "shared", "bank-conflicts", "barriers", "matrix"
ADDRESS_ARITHMETIC = "address-arithmetic"
"""The only class without which a kernel still has correct results."""
INSTRUCTION_CLASSES = (
    GLOBAL_LOADS, GLOBAL_STORES, SHARED, BANK_CONFLICTS, BARRIERS, MATRIX, ATOMICS, ADDRESS_ARITHMETIC
)  # fmt: skip
"""The classes of instructions that a knock-out experiment can remove."""

ADDRESS = re.compile(r"\[\s*([%A-Za-z_$][\w$]*)\s*(?:\+\s*(-?\d+))?\s*\]")
"""An address operand: a register or variable, and an offset in bytes."""
_BYTES_BY_BITS = {"8": 1, "16": 2, "32": 4, "64": 8}


def is_global_load(statement: Statement) -> bool:
    """Return whether an instruction loads from global memory, except by an asynchronous copy."""
    return statement.base in ("ld", "ldu") and "global" in statement.modifiers


def is_bulk_copy(statement: Statement) -> bool:
    """Return whether an instruction is a bulk copy, by TMA or without a tensor map."""
    return (
        statement.base == "cp"
        and "bulk" in statement.modifiers
        and not statement.modifiers & {"commit_group", "wait_group", "prefetch"}
    )


def _is_bulk_load(statement: Statement) -> bool:
    return is_bulk_copy(statement) and "complete_tx" in statement.modifiers and "global" in statement.modifiers


def is_counted_copy(statement: Statement) -> bool:
    """Return whether an instruction other than a load signals bytes at an mbarrier, such as a copy within a cluster."""
    return "complete_tx" in statement.modifiers and not _is_bulk_load(statement)


def expects_bytes(statement: Statement) -> bool:
    """Return whether an instruction sets the number of bytes that an mbarrier waits for."""
    return statement.base == "mbarrier" and "expect_tx" in statement.modifiers


def is_in_class(statement: Statement, name: str) -> bool:
    """Return whether an instruction is in the class `name`, such as GLOBAL_LOADS."""
    modifiers, base = statement.modifiers, statement.base
    if name == GLOBAL_LOADS:
        is_copy = base == "cp" and {"async", "shared", "global"} <= modifiers and "bulk" not in modifiers
        is_generic = base == "ld" and not modifiers & {"shared", "local", "param", "const"}
        return is_global_load(statement) or is_generic or is_copy or _is_bulk_load(statement)
    if name == GLOBAL_STORES:
        is_generic = base == "st" and not modifiers & {"shared", "local", "param", "async"}
        return is_generic or (is_bulk_copy(statement) and "complete_tx" not in modifiers)
    if name == SHARED:
        return base in ("ldmatrix", "stmatrix") or (
            base in ("ld", "st") and "shared" in modifiers and "async" not in modifiers
        )
    if name == BANK_CONFLICTS:
        return is_in_class(statement, SHARED)
    if name == BARRIERS:
        return (
            base in ("bar", "barrier")
            and bool(modifiers & {"sync", "arrive"})
            and not modifiers & {"warp", "cluster", "red"}
        )
    if name == MATRIX:
        return base == "mma" or (base in ("wgmma", "wmma") and bool(modifiers & {"mma_async", "mma"}))
    return base in ("atom", "red") and "async" not in modifiers


def has_replacement(name: str, statement: Statement, function: Function) -> bool:
    """Return whether `InstructionEditor` can replace an instruction of the class `name`."""
    if name == BARRIERS or statement.base == "cp":
        return True
    if name == MATRIX and statement.base == "wgmma":
        return len(statement.operands) > 2
    if name == MATRIX:
        vectors = [registers_of(operand) for operand in statement.operands[:4]]
        widths = {function.width(register) for vector in vectors for register in vector}
        return len(vectors) == 4 and all(vectors) and widths in ({32}, {64})
    address = next((operand for operand in statement.operands if operand.startswith("[")), "")
    registers = (
        *written_registers(statement),
        *(r for operand in statement.operands if operand != address for r in registers_of(operand)),
    )
    return bool(ADDRESS.fullmatch(address)) and all(function.width(r) in (16, 32, 64) for r in registers)


def lane_bytes(statement: Statement) -> int:
    """Return the bytes that one lane of an access to shared memory transfers."""
    if statement.base in ("ldmatrix", "stmatrix"):
        return 16
    vector = next((int(word[1:]) for word in statement.opcode.split(".") if word in ("v2", "v4", "v8")), 1)
    bits = next(
        (match[1] for word in statement.opcode.split(".") if (match := re.fullmatch(r"[busf](8|16|32|64)", word))), "32"
    )
    return vector * _BYTES_BY_BITS[bits]


SPILLS = "spills"
INTEGERS = "integers in innermost loops"
"""Only compared for the arithmetic of addresses."""
INTEGER_CLASSES = ("IMAD", "IADD", "other integer")
GROUPS = {
    "global loads": ("LDG", "LDGSTS"),
    "global stores": ("STG",),
    "bulk copies": ("TMA",),
    "shared memory": ("LDS", "STS", "LDSM", "STSM"),
    "barriers": ("BAR",),
    "matrix": ("tensor",),
    "atomics": ("ATOM", "RED"),
    "fp32": ("FFMA", "FADD/FMUL"),
    "fp16": ("fp16",),
    "fp64": ("fp64",),
    "special functions": ("MUFU",),
    "shuffles": ("SHFL",),
    SPILLS: ("LDL", "STL"),
}
"""Groups of machine instructions, with the classes of `opbench.gpu.compile.sass` in each."""
INTENDED_GROUPS = {
    GLOBAL_LOADS: {"global loads", "bulk copies"},
    GLOBAL_STORES: {"global stores", "bulk copies"},
    SHARED: {"shared memory"},
    BANK_CONFLICTS: set[str](),
    BARRIERS: {"barriers"},
    MATRIX: {"matrix"},
    ATOMICS: {"atomics"},
    ADDRESS_ARITHMETIC: {INTEGERS},
}
"""The groups from which a knock-out removes instructions."""


def ptx_counts(statements: Iterable[Statement]) -> dict[str, int]:
    """Return the number of PTX instructions in each group; each needs a machine instruction unless it is removed."""
    counts = dict.fromkeys(GROUPS, 0)
    for statement in statements:
        if group := _group(statement):
            counts[group] += 1
    return counts


def _group(statement: Statement) -> str:
    if is_bulk_copy(statement):
        return "bulk copies"
    for name, group in ((GLOBAL_LOADS, "global loads"), (GLOBAL_STORES, "global stores"), (SHARED, "shared memory"),
                        (BARRIERS, "barriers"), (MATRIX, "matrix"), (ATOMICS, "atomics")):  # fmt: skip
        if is_in_class(statement, name):
            return group
    if statement.base == "shfl":
        return "shuffles"
    if statement.base in ("ex2", "lg2", "rsqrt", "sin", "cos", "tanh") and "f32" in statement.modifiers:
        return "special functions"
    if statement.base in ("fma", "add", "sub", "mul"):
        group_of_type = {"f32": "fp32", "f32x2": "fp32", "f16x2": "fp16", "bf16x2": "fp16", "f64": "fp64"}
        return next((group for type_name, group in group_of_type.items() if type_name in statement.modifiers), "")
    return ""
