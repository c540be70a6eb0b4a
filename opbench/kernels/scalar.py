"""Numbers that kernels receive: arguments of a C type, structures, and contents of `__constant__` arrays."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opbench.errors import UsageError
from opbench.kernels import expression

if TYPE_CHECKING:
    import numpy as np  # not needed by `opbench list`

STRUCT_FORMATS = {
    "bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "f16": "e", "bf16": "H", "f32": "f", "f64": "d",
}  # fmt: skip
"""The format character of the module `struct` for each type name."""
ELEMENT_BYTES: Mapping[str, int] = {name: struct.calcsize(code) for name, code in STRUCT_FORMATS.items()}
"""Bytes of one element for each type name."""
FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
"""Types whose value may be an expression over floats, such as "1 / sqrt(d)"."""
SPECIAL_VALUES = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
"""Words for numbers that TOML and expressions cannot write."""


DTYPE_OF_NUMPY = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "uint16": "bf16",
    "int32": "i32",
    "uint8": "u8",
    "int8": "i8",
}
"""The type name for each NumPy dtype name."""


@dataclass(frozen=True)
class Scalar:
    """A number of a C type; in a header its value may be an expression."""

    type: str
    value: str | float

    def bound(self, scope: Mapping[str, expression.ExpressionValue]) -> Scalar:
        """Return the scalar with its number evaluated; raise UsageError if its type cannot represent the number."""
        value = self.value
        if isinstance(value, str):
            evaluated = (
                SPECIAL_VALUES[value]
                if value in SPECIAL_VALUES
                else expression.evaluate(value, scope, self.type in FLOATS)
            )
            if isinstance(evaluated, str):
                raise UsageError(
                    f"{self.type} = '{value}' is the text '{evaluated}'; write a number, or an expression whose "
                    "value is a number",
                    kind="not-allowed",
                    subject=self.type,
                    value=evaluated,
                )
            value = evaluated
        bound = Scalar(self.type, value)
        bound.packed()
        return bound

    def packed(self) -> bytes:
        """Return the scalar's bytes in memory; raise UsageError if its type cannot represent the number."""
        assert not isinstance(self.value, str)
        format_code = STRUCT_FORMATS[self.type]
        try:
            if self.type == "bf16":
                (bits,) = struct.unpack("<I", struct.pack("<f", self.value))
                return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
            python_value = float(self.value) if format_code in "efd" else self.value
            return struct.pack(f"<{format_code}", bool(python_value) if format_code == "?" else python_value)
        except (struct.error, OverflowError):
            raise UsageError(
                f"{{ {self.type} = {self.value} }}: {self.value} is outside the range of {self.type}; write a "
                "smaller number or another type",
                kind="out-of-range",
                subject=self.type,
                value=self.value,
            ) from None

    def __str__(self) -> str:
        return f"{self.type}({self.value})"


TYPES_BY_PARAMETER_BYTES = {8: ("i64", "f64"), 2: ("i16", "f16"), 1: ("i8", "")}
"""Types of untyped numbers by the size of the kernel's parameter in bytes: for integers, for floats."""


def with_parameter_type(number: float, parameter_bytes: int) -> Scalar | float:
    """Return an untyped number as a scalar of the kernel's parameter.

    A C int, a C float and a number for a parameter of unknown size (0) stay as they are.
    """
    type_name = TYPES_BY_PARAMETER_BYTES.get(parameter_bytes, ("", ""))[isinstance(number, float)]
    return Scalar(type_name, number) if type_name else number


@dataclass(frozen=True)
class Struct:
    """A structure that a kernel receives by value, in C layout; its fields are numbers and addresses of buffers."""

    fields: tuple[str | int | float | Scalar, ...]
    """A string is a buffer's name, an int a C `int`, a float a C `float`, and a Scalar has its own type."""

    def names(self) -> set[str]:
        """Return the names of the buffers in the structure."""
        return {field for field in self.fields if isinstance(field, str)}

    def packed(self, address_of: Callable[[str], int]) -> bytes:
        """Return the structure's bytes: each field aligned to its size, the whole padded to the largest field.

        Raises UsageError if a type cannot represent its number.
        """
        content, widest = b"", 1
        for entry in self.fields:
            field = entry
            if isinstance(field, str):
                field = Scalar("u64", address_of(field))
            elif not isinstance(field, Scalar):
                field = Scalar("f32" if isinstance(field, float) else "i32", field)
            field_bytes = field.packed()
            content += bytes(-len(content) % len(field_bytes)) + field_bytes
            widest = max(widest, len(field_bytes))
        return content + bytes(-len(content) % widest)

    def __str__(self) -> str:
        return f"struct({', '.join(map(str, self.fields))})"


@dataclass(frozen=True)
class BufferAddress(Struct):
    """An address within a buffer, as a kernel argument; `fields` contains only the buffer's name."""

    offset: str | int = 0
    """Offset from the buffer's start: in a header an expression in elements, in a launch a number of bytes."""

    def packed(self, address_of: Callable[[str], int]) -> bytes:
        """Return the bytes of the address that `address_of` gives, plus the offset."""
        assert isinstance(self.fields[0], str) and isinstance(self.offset, int)
        return Scalar("u64", address_of(self.fields[0]) + self.offset).packed()

    def __str__(self) -> str:
        return f"{self.fields[0]} + {self.offset} bytes"


Argument = str | int | float | Scalar | Struct
"""An argument of a launch: a buffer's name, a C `int`, a C `float`, a number of another type or a structure."""


def element_bytes(dtype: np.dtype, value: float) -> bytes:
    """Return a number as the bytes of a buffer's element; raise UsageError if its type cannot represent the number."""
    type_name = DTYPE_OF_NUMPY[dtype.name]
    return Scalar(
        type_name, int(value) if type_name in ("i32", "i8", "u8") and math.isfinite(value) else value
    ).packed()
