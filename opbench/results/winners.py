"""The winners files that are part of opbench, one per GPU model."""

from __future__ import annotations

import functools
from pathlib import Path

from opbench.gpu.limits.products import product
from opbench.kernels.operator import Operator
from opbench.paths import shipped_folder
from opbench.records import plain_name
from opbench.results.book import Book, BookEntry, BookTime, read_book
from opbench.results.files import FILE as RUN_FILE

FILE = "winners.json"


@functools.cache
def shipped_winners() -> Book:
    """Return the entries of all winners files in reports/; raises UsageError for a corrupt file."""
    books = [read_book(path) for path in sorted(shipped_folder("reports").glob(f"*/{FILE}*"))]
    return Book("cold", tuple(entry for book in books for entry in book.entries))


def entries_of(problem: Operator) -> list[BookEntry]:
    """Return the entries of a problem, one for each precision and GPU model with a measurement."""
    return _by_problem().get((problem.name, str(problem)), [])


def same_model(gpu: str, other: str) -> bool:
    """Return whether two names denote the same GPU model, such as "h200" and "NVIDIA H200"."""
    gpu_product = product(gpu)
    return gpu == other or (gpu_product is not None and gpu_product == product(other))


def run_of(time: BookTime) -> str:
    """Return the folder of the run in which a time was measured, such as "reports/h200/quick"."""
    run = Path(time.run)
    return (run.parent if plain_name(run) == RUN_FILE else run).as_posix()


@functools.cache
def _by_problem() -> dict[tuple[str, str], list[BookEntry]]:
    entries: dict[tuple[str, str], list[BookEntry]] = {}
    for entry in shipped_winners().entries:
        entries.setdefault((entry.operator, entry.problem), []).append(entry)
    return entries
