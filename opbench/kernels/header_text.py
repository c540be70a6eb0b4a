"""Find the TOML header in a variant's file, and the line of each of its keys."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opbench.errors import Location, UsageError
from opbench.kernels.toml_lines import KeyPath, key_lines
from opbench.paths import next_command, path_from_here

OPENING_LINE = "/// opbench"
MERGED_LISTS = ("mechanism", "where", "requires")
"""Lists to which a `[variant.NAME]` table adds items; tables are merged by key, and other keys replace common ones."""
FORMER_VARIANT_KEY = "rung"
"""The name of `variant` in headers of earlier versions."""
CACHED_FILES = 256
"""Number of headers whose key lines are cached."""


@dataclass(frozen=True)
class HeaderText:
    """The parts of a file's header."""

    opening_line: int
    """Line number from 1; the TOML text begins on the next line."""
    toml: str
    """The TOML text without comment signs."""
    why: str
    """The paragraph after the header."""


def split_header(path: Path, text: str) -> HeaderText:
    """Find the header in a file's text; raise UsageError if the file has no complete header."""
    prefix, lines = "//" if path.suffix == ".cu" else "", text.splitlines()
    opening, closing = f"{prefix} {OPENING_LINE}".strip(), f"{prefix} ///".strip()
    stripped = [line.strip() for line in lines]
    if opening not in stripped:
        written_by = f", or let opbench write one: {next_command('adopt', path, write=True)}" if prefix else ""
        raise UsageError(
            f"has no opbench header; write one that begins with the line '{opening}' (see 'Your own kernel' in "
            f"README.md){written_by}",
            Location(path, 1),
            kind="no-header",
        )
    opening_index = stripped.index(opening)
    if closing not in stripped[opening_index + 1 :]:
        raise UsageError(
            f"the header has no closing line; add the line '{closing}' after the header's last key",
            Location(path, opening_index + 1),
            kind="no-header-end",
        )
    closing_index = stripped.index(closing, opening_index + 1)
    header = [
        line.removeprefix(prefix).removeprefix(" ") if prefix else line
        for line in stripped[opening_index + 1 : closing_index]
    ]
    why = []
    for line in stripped[closing_index + 1 :]:
        if (prefix and not line.startswith(prefix)) or (not prefix and line.endswith('"""')):
            break
        why.append(line.removeprefix(prefix).strip())
    return HeaderText(opening_index + 1, "\n".join(header), "\n".join(why).strip())


def header_table(toml: str) -> dict[str, Any]:
    """Parse a header's TOML; raise TOMLDecodeError if it is invalid."""
    table = tomllib.loads(toml)
    if FORMER_VARIANT_KEY in table:
        former, current = table.pop(FORMER_VARIANT_KEY), table.get("variant", {})
        both_are_tables = isinstance(former, dict) and isinstance(current, dict)
        # A value that is not a table is refused when the header is read.
        table["variant"] = {**former, **current} if both_are_tables else former
    return table


def header_location(path: Path, text: str, key: KeyPath, variant: str = "") -> Location:
    """Return file and line of a header's key, or of the nearest table or list that contains it.

    `text` is the file's text. The table of `variant` is searched first. The location is line 1 for a file
    without a header.
    """
    try:
        lines = _header_lines(path, text)
    except UsageError:
        return Location(path, 1)
    own: KeyPath = ("variant", variant)
    bases: tuple[KeyPath, ...] = (own, ()) if own in lines else ((),)
    if own in lines and key[0] in MERGED_LISTS and len(key) > 1 and isinstance(key[1], int):
        common_count = sum(len(key_path) == 2 and key_path[0] == key[0] for key_path in lines)
        bases = (own,) if key[1] >= common_count else ((),)
        key = (key[0], key[1] - common_count if key[1] >= common_count else key[1])
    elif (*own, key[0], 0) in lines:  # The list of the variant replaces the common list.
        bases = (own,)
    key_path = ((*base, *key[:length]) for length in range(len(key), -1, -1) for base in bases)
    return Location(path, next(lines[path] for path in key_path if path in lines))


def root_location(path: Path, text: str, root: str) -> Location:
    """Return the line on which a file's header names a kernel or a `__constant__` variable, in any of its variants."""
    shown_path = Path(path_from_here(str(path)))
    try:
        lines, table = _header_lines(path, text), header_table(split_header(path, text).toml)
    except UsageError:
        return Location(shown_path, 1)
    for base, variant_table in (
        ((), table),
        *((("variant", name), variant_table) for name, variant_table in table.get("variant", {}).items()),
    ):
        for index, launch_table in enumerate(variant_table.get("launch", [])):
            if launch_table.get("kernel") == root:
                return Location(shown_path, lines[*base, "launch", index, "kernel"])
        if root in variant_table.get("constants", {}):
            return Location(shown_path, lines[*base, "constants", root])
    return Location(shown_path, lines[()])


@functools.lru_cache(CACHED_FILES)
def _header_lines(path: Path, text: str) -> Mapping[KeyPath, int]:
    """Return the line of each key in the file; the empty path stands for the first line of the TOML text."""
    header = split_header(path, text)
    first_line = header.opening_line + 1
    line_of_key = {key: header.opening_line + line for key, line in key_lines(header.toml).items()}
    return {(): first_line, **{_current_key(key): line for key, line in line_of_key.items()}}


def _current_key(key: KeyPath) -> KeyPath:
    return ("variant", *key[1:]) if key[0] == FORMER_VARIANT_KEY else key
