"""Rows of words in aligned columns, for terminals and pipes."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """The heading and each row as a line; columns named in `left` are words, the others are numbers."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
