"""The lower bound of a problem as text."""

from __future__ import annotations

from collections.abc import Iterable

from opbench import units
from opbench.results.rows import Row


def predicted_words(rows: Iterable[Row]) -> str:
    """Return such as "lower bound on an H200: 2.94 µs (launch); memory alone 1.05 µs"; empty without a prediction."""
    row = next((row for row in rows if row.predicted_roof_s is not None), None)
    if row is None:
        return ""
    limit = "arithmetic" if row.predicted_limit == "compute" else "memory"
    gpu = with_article(row.predicted_on or "GPU")
    if row.bound != "launch":
        return f"lower bound on {gpu}: {units.time(row.predicted_best_s)} ({limit})"
    alone = f"{limit} alone {units.time(row.predicted_roof_s)}"
    return f"lower bound on {gpu}: {units.time(row.predicted_best_s)} (launch); {alone}"


def with_article(name: str) -> str:
    """Return such as "an H200" or "a T4"."""
    return f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"
