"""Rows of text in aligned columns, for terminals and pipes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

LEAST_COLUMN = 30
"""Fewest characters of a column that is wrapped; on a narrower terminal, the terminal wraps the line."""


def wrap_last_column(text: str, indent: int, terminal_width: int) -> str:
    """Wrap the text of a line's last column, which starts at `indent`; as it is for a pipe, whose width is 0."""
    if terminal_width < indent + LEAST_COLUMN:
        return text
    lines = textwrap.wrap(text, terminal_width - indent, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines)


def align_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Return the heading and the rows as aligned lines; columns in `left` are left-aligned, others right-aligned."""
    table = [list(headings), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headings))]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
