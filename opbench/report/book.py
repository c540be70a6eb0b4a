"""A winners file as a table: the fastest case of each problem, its interval, ties, and speedup over the library."""

from __future__ import annotations

import itertools

from opbench import units
from opbench.kernels.case_names import split_case
from opbench.results.book import Book, BookEntry
from opbench.tables import align_columns

HEADINGS = ("", "kernel time", "95 %", "vs library", "winner", "tied with")


def book_lines(book: Book) -> list[str]:
    """Return the lines of the table: a heading for each problem, then one line per precision and GPU."""
    if not book.entries:
        return ["no problem has a right and timed case of ours"]
    headings, *rows = align_columns(list(HEADINGS), [_cells(entry) for entry in book.entries], left=[0, 4, 5])
    table = [headings]
    pairs = zip(book.entries, rows, strict=True)
    for problem, rows_of_problem in itertools.groupby(pairs, key=lambda pair: f"{pair[0].operator}{pair[0].problem}"):
        table += [problem, *(row for _, row in rows_of_problem)]
    return table


def _cells(entry: BookEntry) -> list[str]:
    first_tie, *other_ties = [split_case(time.case).variant_and_config for time in entry.ties] or [""]
    return [
        f"  {entry.gpu.removeprefix('NVIDIA ')} {entry.precision}",
        units.time(entry.winner.median_s),
        units.interval(entry.winner.low_s, entry.winner.high_s),
        units.ratio(entry.speedup),
        split_case(entry.winner.case).variant_and_config,
        first_tie + (f" and {len(other_ties)} more" if other_ties else ""),
    ]
