"""Tables in documents: between two comments with the table's name, and each row begins with a link."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from opbench.tables import markdown_table


class LinkedRow(NamedTuple):
    """A row: the name and the target of its link, and its other cells."""

    name: str
    target: str
    cells: Sequence[str]


class LinkedTable(NamedTuple):
    """A Markdown table; columns in `left` are left-aligned, others right-aligned."""

    headings: Sequence[str] = ()
    rows: Sequence[LinkedRow] = ()
    left: Collection[int] = (0,)

    def __str__(self) -> str:
        rows = ([f"[{row.name}]({row.target})", *row.cells] for row in self.rows)
        return "\n".join(markdown_table(self.headings, rows, self.left)) + "\n"


def with_rows(text: str, name: str, table: LinkedTable, folder: Path) -> str:
    """Return a document with a table's new rows, sorted by name; without the table, the document unchanged.

    A row that the new table lacks stays while its target, relative to `folder`, exists and the columns are the same.
    """
    match = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- /{name} -->", text, flags=re.DOTALL)
    if match is None:
        return text
    names = {row.name for row in table.rows}
    # Rows of other runs have no source but the document.
    heading, _, *lines = match[1].splitlines() or ["", ""]
    if heading == str(table).partition("\n")[0]:
        old_rows = [LinkedRow(row[1], row[2], (row[3],)) for line in lines if (row := ROW.match(line))]
        kept_rows = [row for row in old_rows if row.name not in names and (folder / row.target).exists()]
        table = table._replace(rows=sorted([*table.rows, *kept_rows], key=lambda row: numbers_in_order(row.name)))
    return text[: match.start(1)] + str(table) + text[match.end(1) :]


ROW = re.compile(r"\| \[(.*?)\]\((.*?)\) \| (.*) \|$")


def numbers_in_order(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts names by the values of their numbers, so that "net 2" comes before "net 10"."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]
