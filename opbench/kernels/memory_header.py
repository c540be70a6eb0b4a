"""The header of a file without an operator: its launches and their buffers, with sizes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opbench.kernels.expression import REAL_FUNCTIONS
from opbench.kernels.variant import LaunchTemplate
from opbench.source.sources import Source

NO_OPERATOR = "none"
"""The value of `operator` in the header of a file without an operator."""
INITIAL_CONTENTS = ("random", "zero", "uninitialised")
"""The content of memory before the first launch: seeded numbers, zeros, or uninitialised."""
BUFFER_TYPES = ("f32", "f64", "f16", "bf16", "i32", "u8", "u32", "i64", "i16", "i8", "u64")
"""The types of elements that a buffer may have."""


@dataclass(frozen=True)
class BufferTemplate:
    """A buffer that the launches use, with its type, size and initial content."""

    name: str
    type: str = "f32"
    elements: str = ""
    """An expression over the sizes; empty if the file does not state it, and bounds are then not checked."""
    content: str = "random"


@dataclass(frozen=True)
class MemoryHeader:
    """The header of a file without an operator; `opbench check` runs its launches to check their memory accesses."""

    path: Path
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The numbers that expressions may name, as in the file."""
    buffers: tuple[BufferTemplate, ...] = ()
    launch: tuple[LaunchTemplate, ...] = ()
    include: tuple[Path, ...] = ()
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)


def is_identifier(name: str) -> bool:
    """Return whether a name can be a variable in a header's expressions."""
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and not (keyword.iskeyword(name) or name in REAL_FUNCTIONS)


def table_of(entries: Mapping[str, str]) -> str:
    """Return an inline TOML table; the values must be TOML text."""
    return f"{{ {', '.join(f'{key} = {value}' for key, value in entries.items())} }}"


def buffer_text(buffer: BufferTemplate) -> str:
    """Return the entry of a buffer in a header, as TOML text."""
    size = {"elements": f'"{buffer.elements}"'} if buffer.elements else {}
    return table_of({"type": f'"{buffer.type}"', **size, "content": f'"{buffer.content}"'})
