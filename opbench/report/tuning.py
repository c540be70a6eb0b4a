"""A search in words and as a page: the best with their intervals, how it was found, what each tunable does."""

from __future__ import annotations

from opbench import units
from opbench.catalog.variant import print_config
from opbench.report.columns import aligned
from opbench.results.files import Run
from opbench.results.tuning import ENDINGS, Tuning, fastest

HEAD = ("config", "median", "95 % interval", "to the best")


def lines(found: Tuning, run: Run | None) -> list[str]:
    """For a terminal: the finals, then what became of all other configs."""
    rows = finals_rows(run)
    said = aligned(HEAD, rows) if rows else []
    for result in run.results if run else ():
        if result.status != "right":
            said.append(f"{result_config(result.config)}: {result.status}: {result.reason}")
    said.append(summary(found))
    if (tie := tied(run)) > 1:
        said.append(f"the intervals of the first {tie} overlap: any of them may be the fastest")
    return said


def finals_rows(run: Run | None) -> list[list[str]]:
    """A row for each of the finals, the fastest first."""
    timed = [(r.config, r.measurement) for r in fastest(run) if r.measurement]
    return [_cells(result_config(c), m.median_s, m.low_s, m.high_s, timed[0][1].median_s) for c, m in timed]


def result_config(config: dict[str, int]) -> str:
    """Such as "BM=64 BN=128"."""
    return print_config(config).strip("[]").replace(",", " ") or "(no tunables)"


def _cells(config: str, median: float, low: float, high: float, best: float) -> list[str]:
    return [config, units.time(median), units.interval(low, high), units.ratio(median / best)]


def tied(run: Run | None) -> int:
    """How many of the finals cannot be told from the fastest."""
    found = [r.measurement for r in fastest(run) if r.measurement]
    return sum(1 for m in found if m.low_s <= found[0].high_s)


def summary(found: Tuning) -> str:
    """Such as "412 of 5210 configs tried in 60 s: 390 measured, 12 never launched, …"."""
    words: dict[str, str] = {
        "raced": "measured", "same": "same code as another", "refused": "not compiled",
        "overtime": "too long to compile", "unfit": "never launched", "wrong": "wrong", "failed": "failed",
    }  # fmt: skip
    counts = found.counts()
    told = ", ".join(f"{counts[ending]} {words[ending]}" for ending in ENDINGS if ending in counts)
    return (
        f"{len(found.trials)} of {found.begun.allowed} configs tried in {units.duration(found.spent_s)} "
        f"({found.begun.strategy}): {told or 'none'}"
    )
