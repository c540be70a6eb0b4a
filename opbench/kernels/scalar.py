"""Numbers as a kernel takes them: an argument of a given C type, and what `__constant__` arrays begin with."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opbench.errors import UsageError
from opbench.kernels import expression

if TYPE_CHECKING:
    import numpy as np  # which `opbench list` does without

FORMATS = {
    "bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "f16": "e", "bf16": "H", "f32": "f", "f64": "d",
}  # fmt: skip
"""A type's name to how `struct` packs it."""
ELEMENT_BYTES: Mapping[str, int] = {name: struct.calcsize(code) for name, code in FORMATS.items()}
"""A type's name to the bytes of one element."""
FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
"""Types whose value may be an expression of floats, such as "1 / sqrt(d)"."""
SPECIAL = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
"""Words for numbers that TOML and expressions have no sign for."""


STORED = {"float32": "f32", "float64": "f64", "float16": "f16", "uint16": "bf16", "int32": "i32", "uint8": "u8"}
"""The type of an element by the host's name for its storage."""


@dataclass(frozen=True)
class Scalar:
    """A number of a C type; in a header its value may be an expression."""

    type: str
    value: str | float

    def bound(self, scope: Mapping[str, expression.ExpressionValue]) -> Scalar:
        """The same with its number known; raises UsageError for one that its type cannot hold."""
        value = self.value
        if isinstance(value, str):
            found = SPECIAL[value] if value in SPECIAL else expression.evaluate(value, scope, self.type in FLOATS)
            if isinstance(found, str):
                raise UsageError(f"{self.type} = '{value}' is the word '{found}'; a number is needed")
            value = found
        bound = Scalar(self.type, value)
        bound.packed()
        return bound

    def packed(self) -> bytes:
        """Its bytes in memory; raises UsageError for a number that its type cannot hold."""
        assert not isinstance(self.value, str)
        kind = FORMATS[self.type]
        try:
            if self.type == "bf16":
                (bits,) = struct.unpack("<I", struct.pack("<f", self.value))
                return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
            number = float(self.value) if kind in "efd" else self.value
            return struct.pack(f"<{kind}", bool(number) if kind == "?" else number)
        except (struct.error, OverflowError):
            raise UsageError(f"{{ {self.type} = {self.value} }}: a {self.type} cannot hold it") from None

    def __str__(self) -> str:
        return f"{self.type}({self.value})"


@dataclass(frozen=True)
class Struct:
    """A structure that a kernel takes by value: buffers' names, for their addresses, and numbers, as C lays out."""

    fields: tuple[str | int | float | Scalar, ...]
    """A name is a buffer's; a whole number is an `int`, another a `float`, a Scalar what it says."""

    def names(self) -> set[str]:
        """The buffers in it."""
        return {field for field in self.fields if isinstance(field, str)}

    def packed(self, address_of: Callable[[str], int]) -> bytes:
        """Its bytes: each field at a multiple of its size, the whole a multiple of the largest.

        Raises UsageError for a number that its type cannot hold.
        """
        found, widest = b"", 1
        for given in self.fields:
            field = given
            if isinstance(field, str):
                field = Scalar("u64", address_of(field))
            elif not isinstance(field, Scalar):
                field = Scalar("f32" if isinstance(field, float) else "i32", field)
            part = field.packed()
            found += bytes(-len(found) % len(part)) + part
            widest = max(widest, len(part))
        return found + bytes(-len(found) % widest)

    def __str__(self) -> str:
        return f"struct({', '.join(map(str, self.fields))})"


@dataclass(frozen=True)
class Part(Struct):
    """The address within a buffer, which `fields` names alone."""

    offset: str | int = 0
    """From the buffer's beginning: in a header an expression of elements, in a launch bytes."""

    def packed(self, address_of: Callable[[str], int]) -> bytes:
        """Its bytes: an address."""
        assert isinstance(self.fields[0], str) and isinstance(self.offset, int)
        return Scalar("u64", address_of(self.fields[0]) + self.offset).packed()

    def __str__(self) -> str:
        return f"{self.fields[0]} + {self.offset} bytes"


Argument = str | int | float | Scalar | Struct
"""Of a launch: a buffer's name, a C `int`, a C `float`, a number of another type or a structure."""


def element(dtype: np.dtype, value: float) -> bytes:
    """A number as an element of a buffer; raises UsageError for one that it cannot hold."""
    kind = STORED[dtype.name]
    return Scalar(kind, int(value) if kind in ("i32", "u8") and math.isfinite(value) else value).packed()
