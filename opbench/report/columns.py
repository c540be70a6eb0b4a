"""Rows of text in aligned columns, for terminals and pipes."""

from __future__ import annotations

from collections.abc import Sequence


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
