"""Instructions of PTX that compute with any type: the function of the shim and the type that it works in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

TYPES = {
    "u8": "unsigned char", "s8": "signed char", "u16": "unsigned short", "s16": "short", "b16": "unsigned short",
    "u32": "unsigned", "s32": "int", "b32": "unsigned", "u64": "unsigned long long", "s64": "long long",
    "b64": "unsigned long long", "f32": "float", "f64": "double",
}  # fmt: skip
FORMATS = {
    "f16": "opb_half_format",
    "f16x2": "opb_half_format",
    "bf16": "opb_bfloat_format",
    "bf16x2": "opb_bfloat_format",
}
OPERANDS = {
    "add": 2, "sub": 2, "mul.lo": 2, "mul.hi": 2, "mul.wide": 2, "mad.lo": 3, "mad.hi": 3, "mad.wide": 3, "div": 2,
    "rem": 2, "min": 2, "max": 2, "abs": 1, "neg": 1, "not": 1, "and": 2, "or": 2, "xor": 2, "shl": 2, "shr": 2,
    "popc": 1, "clz": 1, "bfind": 1, "brev": 1, "bfe": 3, "bfi": 4, "lop3": 4, "sad": 3,
}  # fmt: skip
REALS = {
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
INTEGER = re.compile(rf"({'|'.join(map(re.escape, OPERANDS))})\.([usb](?:16|32|64))")
REAL = re.compile(rf"({'|'.join(REALS)})(?:\.(?:rn|approx|full))?(?:\.ftz)?\.(f32|f64)")
NARROW = re.compile(r"(add|sub|mul|min|max|fma)(?:\.rn)?(?:\.ftz)?\.(b?f16(?:x2)?)")
CONVERSION = re.compile(r"cvt(?:\.(r[nzmp]i?))?(?:\.ftz)?(?:\.sat)?\.([usf]\d+)\.([usf]\d+)")
ROUNDINGS = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}

Words = Callable[[str], str]
"""An operand of an instruction as a C++ expression."""


def arithmetic(opcode: str, operands: Sequence[str], words: Words) -> str:
    """The call that an instruction is; "" where it is none of these. Raises ValueError for operands that do not fit."""
    given = [words(operand) for operand in operands]
    if found := INTEGER.fullmatch(opcode):
        _require(len(given) == OPERANDS[found[1]] + 1)
        return f"::opb_ptx::any_{found[1].replace('.', '_')}<{TYPES[found[2]]}>({', '.join(given)})"
    if found := REAL.fullmatch(opcode):
        _require(len(given) == REALS[found[1]] + 1)
        return f"::opb_ptx::real_{found[1].replace('mad', 'fma')}<{TYPES[found[2]]}>({', '.join(given)})"
    if found := NARROW.fullmatch(opcode):
        _require(len(given) == (4 if found[1] == "fma" else 3))
        return f"::opb_ptx::pair_{found[1]}<{FORMATS[found[2]]}>({', '.join(given)})"
    if (found := CONVERSION.fullmatch(opcode)) and found[2] in TYPES and found[3] in TYPES and "sat" not in opcode:
        return _conversion(found[1] or "", found[2], found[3], given)
    return ""


def _conversion(rounding: str, to: str, source: str, given: Sequence[str]) -> str:
    _require(len(given) == 2)
    if to[0] != "f" and source[0] == "f":
        _require(rounding in ROUNDINGS)
        kind = f"{TYPES[to]}, {TYPES[source]}"
        # Of C's functions of one name the type of the pointer tells which.
        name = ROUNDINGS[rounding] + ("f" if source == "f32" else "")
        return f"::opb_ptx::rounded_to_integer<{kind}>({given[0]}, {given[1]}, &::{name})"
    _require(rounding in ("", "rn"))
    return f"::opb_ptx::converted<{TYPES[to]}>({given[0]}, ::opb_ptx::taken<{TYPES[source]}>({given[1]}))"


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError
