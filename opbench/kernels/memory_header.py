"""The header of a file without an operator: its launches, their buffers, and the sizes of both."""

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
"""The value of `operator` in such a header."""
CONTENTS = ("random", "zero", "uninitialised")
"""The content of memory before the first launch: seeded numbers, zeros, or uninitialised."""
BUFFER_TYPES = ("f32", "f64", "f16", "bf16", "i32", "u8", "u32", "i64", "i16", "i8", "u64")
"""The types of elements that a buffer may have."""


@dataclass(frozen=True)
class BufferTemplate:
    """A buffer for the launches."""

    name: str
    type: str = "f32"
    elements: str = ""
    """An expression over the sizes; empty if the file does not state it, and bounds are then not checked."""
    content: str = "random"


@dataclass(frozen=True)
class MemoryHeader:
    """The data that `opbench check` needs to run a file's launches and check only their memory accesses."""

    path: Path
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The numbers that expressions may name, as in the file."""
    buffers: tuple[BufferTemplate, ...] = ()
    launch: tuple[LaunchTemplate, ...] = ()
    include: tuple[Path, ...] = ()
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)


def is_identifier(name: str) -> bool:
    """Return whether a header's expressions can use this name."""
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and not (keyword.iskeyword(name) or name in REAL_FUNCTIONS)


def table_of(entries: Mapping[str, str]) -> str:
    """Format an inline TOML table from values that are TOML text already."""
    return f"{{ {', '.join(f'{key} = {value}' for key, value in entries.items())} }}"


def buffer_text(buffer: BufferTemplate) -> str:
    """Format a buffer's table as in a header."""
    size = {"elements": f'"{buffer.elements}"'} if buffer.elements else {}
    return table_of({"type": f'"{buffer.type}"', **size, "content": f'"{buffer.content}"'})
