"""The result of a search as text: the best configs with their intervals, and the number of others by outcome."""

from __future__ import annotations

from opbench import units
from opbench.kernels.variant import print_config
from opbench.records import JSON
from opbench.report.bars import Bar, scaled
from opbench.results.files import Run
from opbench.results.tuning import ENDINGS, Tuning, fastest_results, ranked_finals
from opbench.tables import align_columns


def head(tuning: Tuning) -> tuple[str, ...]:
    """Return the column headings of the table of the best configs, which were timed again in the finals."""
    columns = ("config", "median", "95 % interval", "vs best")
    return columns if tuning.begun.unit == "s" else ("config", "joules a launch", *columns[2:], "time")


def lines(tuning: Tuning, run: Run | None) -> list[str]:
    """Return the finals as lines for a terminal, then the number of other configs by outcome."""
    rows = finals_rows(tuning, run)
    texts = align_columns(head(tuning), rows) if rows else []
    for result in run.results if run else ():
        if result.status != "right":
            texts.append(f"{result_config(result.config)}: {result.status}: {result.reason}")
    texts.append(summary(tuning))
    if (tie := count_ties(tuning, run)) > 1:
        texts.append(f"the intervals of the first {tie} overlap: any of them may be the best")
    return texts


def finals_rows(tuning: Tuning, run: Run | None) -> list[list[str]]:
    """Return one table row for each config that was timed again in the finals, best first."""
    finals, unit = ranked_finals(tuning, run), tuning.begun.unit
    rows = []
    for final in finals:
        measured = [units.si(final.median, unit), units.interval(final.low, final.high, unit)]
        rows.append([result_config(final.config), *measured, units.ratio(final.median / finals[0].median)])
        if unit == "J":
            rows[-1].append(units.time(final.time_s))
    return rows


def result_config(config: dict[str, int]) -> str:
    """Format a config, such as "BM=64 BN=128"."""
    return print_config(config).strip("[]").replace(",", " ") or "(no tunables)"


def finals_bars(tuning: Tuning, run: Run | None) -> list[Bar]:
    """Return a bar for each config that was timed again in the finals, best first; the default has its own note."""
    finals, unit = ranked_finals(tuning, run), tuning.begun.unit
    bars = []
    for final in finals:
        notes = [units.ratio(final.median / finals[0].median), "default" if final.config == tuning.default else ""]
        note, tone = " ".join(filter(None, notes)), "own" if final is finals[0] else ""
        bars.append(Bar(result_config(final.config), units.si(final.median, unit), final.median, note, tone))
    return scaled(bars)


def count_ties(tuning: Tuning, run: Run | None) -> int:
    """Return how many configs in the finals tie with the best, including the best."""
    finals = ranked_finals(tuning, run)
    return sum(1 for final in finals if final.low <= finals[0].high)


def verdict(tuning: Tuning, run: Run | None) -> str:
    """Return one sentence with the best config, its time or energy and the default's; "" without a measurement."""
    finals, unit = ranked_finals(tuning, run), tuning.begun.unit
    if not finals:
        return ""
    best = finals[0]
    config_text = f"`{result_config(best.config)}`"
    cost_text = f"{units.si(best.median, unit)} [{units.interval(best.low, best.high, unit)}]"
    text = f"{config_text} takes {cost_text}" + (" a launch" if unit == "J" else "")
    default = next((final for final in finals if final.config == tuning.default), None)
    tie = count_ties(tuning, run)
    if tie > 1:
        text += f"; {tie - 1} more tie with it"
    if default is None:
        return f"{text}."
    if default is best:
        return f"{text}; it is the default."
    if default in finals[:tie]:
        return f"{text}, among them the default, `{result_config(default.config)}`."
    gain, measure = units.ratio(default.median / best.median), "much" if unit == "J" else "long"
    return f"{text}; the default, `{result_config(default.config)}`, takes {gain} as {measure}."


def summary(tuning: Tuning) -> str:
    """Return a summary such as "412 of 5210 configs tried in 60 s: 390 measured, 12 never launched, …"."""
    outcome_names: dict[str, str] = {
        "raced": "measured", "same": "same code as another", "refused": "not compiled",
        "overtime": "too long to compile", "unfit": "never launched", "wrong": "wrong", "failed": "failed",
    }  # fmt: skip
    counts = tuning.counts()
    text = ", ".join(f"{counts[ending]} {outcome_names[ending]}" for ending in ENDINGS if ending in counts)
    return (
        f"{len(tuning.trials)} of {tuning.begun.allowed} configs tried in {units.duration(tuning.spent_s)} "
        f"({tuning.begun.strategy}{', by joules' * (tuning.begun.unit == 'J')}): {text or 'none'}"
    )


def to_json(tuning: Tuning, run: Run | None) -> dict[str, JSON]:
    """Return a search as JSON data: the counts, and the best configs with their intervals."""
    return {
        "folder": str(tuning.folder),
        "allowed": tuning.begun.allowed,
        "counts": {str(ending): count for ending, count in tuning.counts().items()},
        "spent_s": tuning.spent_s,
        "joules": [vars(final) for final in ranked_finals(tuning, run)] if tuning.begun.unit == "J" else [],
        "best": [
            {"case": r.case, "median_s": m.median_s, "low_s": m.low_s, "high_s": m.high_s}
            for r in fastest_results(run)
            if (m := r.measurement)
        ],
    }
