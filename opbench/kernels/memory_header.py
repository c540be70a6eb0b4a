"""The header of a file without an operator: its launches, the buffers that they get and the sizes behind both."""

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
"""What such a header has in place of an operator's name."""
CONTENTS = ("random", "zero", "uninitialised")
"""What memory holds before the first launch: seeded numbers, zeros, or nothing that anybody wrote."""
BUFFER_TYPES = ("f32", "f64", "f16", "bf16", "i32", "u8", "u32", "i64", "i16", "i8", "u64")
"""The types of elements that a buffer may have."""


@dataclass(frozen=True)
class BufferTemplate:
    """Memory that the launches get."""

    name: str
    type: str = "f32"
    elements: str = ""
    """An expression of the sizes; empty where the file does not say it: then bounds are not checked."""
    content: str = "random"


@dataclass(frozen=True)
class MemoryHeader:
    """What `opbench check` needs to run a file's launches and to look at memory alone."""

    path: Path
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The numbers that expressions name, as the file has them."""
    buffers: tuple[BufferTemplate, ...] = ()
    launch: tuple[LaunchTemplate, ...] = ()
    include: tuple[Path, ...] = ()
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)


def is_identifier(name: str) -> bool:
    """Whether a header's expressions can name something so."""
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and not (keyword.iskeyword(name) or name in REAL_FUNCTIONS)


def table_of(entries: Mapping[str, str]) -> str:
    """An inline table of TOML whose values are TOML already."""
    return f"{{ {', '.join(f'{key} = {value}' for key, value in entries.items())} }}"


def buffer_text(buffer: BufferTemplate) -> str:
    """A buffer's table as the header has it."""
    size = {"elements": f'"{buffer.elements}"'} if buffer.elements else {}
    return table_of({"type": f'"{buffer.type}"', **size, "content": f'"{buffer.content}"'})
