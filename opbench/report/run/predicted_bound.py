"""The lower bound of a problem as text."""

from __future__ import annotations

from collections.abc import Iterable

from opbench import units
from opbench.results.rows import Row


def predicted_text(rows: Iterable[Row]) -> str:
    """Return a problem's lower bound, such as "lower bound on an H200: 2.94 µs (launch); memory alone 1.05 µs"."""
    predicted = next((row.predicted for row in rows if row.predicted), None)
    if predicted is None:
        return ""
    limit = "arithmetic" if predicted.limit == "compute" else "memory"
    gpu = with_article(predicted.gpu or "GPU")
    if predicted.best_s == predicted.without_launch_s:
        return f"lower bound on {gpu}: {units.time(predicted.best_s)} ({limit})"
    without_launch = units.time(predicted.without_launch_s)
    return f"lower bound on {gpu}: {units.time(predicted.best_s)} (launch); {limit} alone {without_launch}"


def with_article(name: str) -> str:
    """Return a name with its article, such as "an H200" or "a T4"."""
    return f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"
