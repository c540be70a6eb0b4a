"""Tables of text: aligned columns for terminals and pipes, and Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def align_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
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


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a Markdown table; columns in `left` are left-aligned, others right-aligned.

    The cells are Markdown: their vertical bars are escaped.
    """
    rule = "".join("---|" if i in left else "--:|" for i in range(len(headings)))
    return [_markdown_row(headings), f"|{rule}", *map(_markdown_row, rows)]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
