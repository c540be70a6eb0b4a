"""Translate PTX arithmetic and conversions to calls of C++ templates, which take the type as an argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opbench.emulator.integers import INTEGERS, function_name

CPP_TYPES = {
    "u8": "unsigned char", "s8": "signed char", "u16": "unsigned short", "s16": "short", "b16": "unsigned short",
    "u32": "unsigned", "s32": "int", "b32": "unsigned", "u64": "unsigned long long", "s64": "long long",
    "b64": "unsigned long long", "f32": "float", "f64": "double",
}  # fmt: skip
STRUCT_FORMATS = {
    "f16": "opb_half_format",
    "f16x2": "opb_half_format",
    "bf16": "opb_bfloat_format",
    "bf16x2": "opb_bfloat_format",
}
OPERAND_COUNTS = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "min": 2,
    "max": 2,
    "fma": 3,
    "mad": 3,
    "abs": 1,
    "neg": 1,
    "rcp": 1,
    "sqrt": 1,
}
FLOAT_OPCODE = re.compile(rf"({'|'.join(OPERAND_COUNTS)})(?:\.(?:rn|approx|full))?(?:\.ftz)?\.(f32|f64)")
HALF_OPCODE = re.compile(r"(add|sub|mul|min|max|fma)(?:\.rn)?(?:\.ftz)?\.(b?f16(?:x2)?)")
CONVERSION_OPCODE = re.compile(r"cvt(?:\.(r[nzmp]i?))?(?:\.ftz)?(?:\.sat)?\.([usf]\d+)\.([usf]\d+)")
ROUNDINGS = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}

OperandToCpp = Callable[[str], str]
"""A function that returns the C++ expression of a PTX operand; raises ValueError for an unknown operand."""


def arithmetic(opcode: str, operands: Sequence[str], to_cpp: OperandToCpp) -> str:
    """Return the C++ call for an arithmetic instruction, or "" for another one; raise ValueError for wrong operands."""
    function, count = _function(opcode)
    match = CONVERSION_OPCODE.fullmatch(opcode)
    if function:
        _require_true(len(operands) == count + 1)
        return f"::opb_ptx::{function}({', '.join(map(to_cpp, operands))})"
    if match and match[2] in CPP_TYPES and match[3] in CPP_TYPES and "sat" not in opcode:
        return _conversion(match[1] or "", match[2], match[3], [to_cpp(operand) for operand in operands])
    return ""


def _function(opcode: str) -> tuple[str, int]:
    """Return the C++ function of an opcode and the number of operands that it reads; ("", 0) if there is none."""
    operation, _, type_name = opcode.rpartition(".")
    if (integer := INTEGERS.get(operation)) and type_name in integer.types:
        return f"{function_name(operation)}<{CPP_TYPES[type_name]}>", len(integer.operands)
    if match := FLOAT_OPCODE.fullmatch(opcode):
        # .ftz replaces subnormal numbers by 0. Only rcp models .ftz here, because the reciprocal of a large number is
        # subnormal; the other operations ignore .ftz.
        name = "rcp_ftz" if match[1] == "rcp" and ".ftz" in opcode else match[1].replace("mad", "fma")
        return f"real_{name}<{CPP_TYPES[match[2]]}>", OPERAND_COUNTS[match[1]]
    if match := HALF_OPCODE.fullmatch(opcode):
        return f"pair_{match[1]}<{STRUCT_FORMATS[match[2]]}>", 3 if match[1] == "fma" else 2
    return "", 0


def _conversion(rounding: str, target_type: str, source_type: str, operands: Sequence[str]) -> str:
    """Return the C++ call that converts a number between two types of PTX with a rounding; raise ValueError."""
    _require_true(len(operands) == 2)
    if target_type[0] != "f" and source_type[0] == "f":
        _require_true(rounding in ROUNDINGS)
        template_types = f"{CPP_TYPES[target_type]}, {CPP_TYPES[source_type]}"
        # floor and floorf have overloads; the parameter's type selects the one to take the address of.
        name = ROUNDINGS[rounding] + ("f" if source_type == "f32" else "")
        return f"::opb_ptx::rounded_to_integer<{template_types}>({operands[0]}, {operands[1]}, &::{name})"
    _require_true(rounding in ("", "rn"))
    return (
        f"::opb_ptx::converted<{CPP_TYPES[target_type]}>({operands[0]}, "
        f"::opb_ptx::taken<{CPP_TYPES[source_type]}>({operands[1]}))"
    )


def _require_true(condition: bool) -> None:
    """Raise ValueError unless a condition holds."""
    if not condition:
        raise ValueError
