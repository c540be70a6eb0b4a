"""An operator's ladder as Markdown, for variants/<operator>/README.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opbench import units
from opbench.ceiling import Ceilings
from opbench.frame import Row, rows
from opbench.report.terminal import rate
from opbench.results import Run
from opbench.variant import Variant

PROBLEMS = 3


def ladder_readme(operator: str, title: str, variants: Sequence[Variant], runs: Sequence[Run]) -> str:
    """The README of an operator's folder: its title, its rungs and what the committed runs measured for them.

    A function of its arguments alone, so that a test can tell a stale file by generating it again.
    """
    rungs = in_order(variants)
    lines = [f"# {operator}", "", *([_cell(title), ""] if title else []), _introduction(operator, rungs), ""]
    measured = _problems(operator, runs)
    for run, problem, found in measured:
        lines += _table(rungs, run, problem, found)
    if not measured:
        lines += _untimed(rungs)
    lines += [
        "Every rung is one file of this folder; its header says how it is tuned and launched, the comment below "
        "the header why it is faster and what limits it.",
        "",
        f"*Written by `opbench ladder`.{_repeat(runs)}*",
    ]
    return "\n".join(lines) + "\n"


def in_order(variants: Sequence[Variant]) -> list[Variant]:
    """Rungs from the bottom up: each after the one that it builds on, side steps beside their base; libraries last."""
    names = {v.name for v in variants}
    placed: list[Variant] = []

    def place(base: str) -> None:
        for variant in sorted((v for v in variants if not v.is_library and v not in placed), key=lambda v: v.name):
            if (variant.builds_on if variant.builds_on in names else "") == base and variant not in placed:
                placed.append(variant)
                place(variant.name)

    place("")
    left = sorted((v for v in variants if v not in placed), key=lambda v: (v.is_library, v.name))
    return [*placed, *left]


def _introduction(operator: str, rungs: Sequence[Variant]) -> str:
    own = [v for v in rungs if not v.is_library]
    libraries = [v for v in rungs if v.is_library]
    beside = f", beside {', '.join(f'`{v.name}`' for v in libraries)} from a library" if libraries else ""
    ways = "1 way" if len(own) == 1 else f"{len(own)} ways"
    return (
        f"{ways} to write `{operator}`, from the plainest up{beside}. A rung keeps what the one it builds on does and "
        "changes one mechanism."
    )


def _problems(operator: str, runs: Sequence[Run]) -> list[tuple[Run, str, list[Row]]]:
    """Up to three problems with times: those that most variants were measured on, largest first."""
    found: dict[str, tuple[Run, str, list[Row]]] = {}
    for run in runs:
        for row in rows(run):
            if row.operator == operator and row.ranked:
                found.setdefault(row.problem, (run, row.problem, []))
                if found[row.problem][0] is run:
                    found[row.problem][2].append(row)
    ordered = sorted(
        found.values(), key=lambda f: (-len({r.variant for r in f[2]}), -(f[2][0].compulsory_bytes or 0), f[1])
    )
    return ordered[:PROBLEMS]


def _best(found: Sequence[Row], variant: str) -> Row | None:
    return min((r for r in found if r.variant == variant), key=lambda r: r.time_s or math.inf, default=None)


def _table(rungs: Sequence[Variant], run: Run, problem: str, found: Sequence[Row]) -> list[str]:
    gpu = str((run.header.get("environment") or {}).get("gpu") or (run.ceilings or {}).get("gpu") or "an unnamed GPU")
    first = found[0]
    flops = f"{units.si(first.flops, 'FLOP')}, " if first.flops else ""
    lines = [
        f"## `{problem}`",
        "",
        f"{flops}{units.si(first.compulsory_bytes, 'B')} compulsory. Measured on {_cell(gpu)}, run "
        f"`{run.header.get('suite', '?')}` of {run.header.get('started', 'unknown date')}. {_roof_words(run)}",
        "",
        "| rung | builds on | mechanism | best config | median | rate | of roof | × rung below | × library |",
        "|---|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for variant in rungs:
        row = _best(found, variant.name)
        link = f"[`{variant.name}`]({variant.path.name})" + (
            f" ({variant.precision})" if variant.precision != "f32" else ""
        )
        cells = [link, f"`{variant.builds_on}`" if variant.builds_on else "–", _cell(variant.title)]
        if row is None:
            cells += ["–"] * 6
        else:
            cells += [
                f"`{row.config}`" if row.config else "–",
                units.time(row.time_s),
                rate(row),
                units.percent(row.roof_share),
                units.ratio(row.speedup_over_rung),
                "–" if row.library else units.ratio(row.speedup_over_library),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _roof_words(run: Run) -> str:
    ceilings = Ceilings.from_json(run.ceilings) if run.ceilings else Ceilings()
    known = [
        f"DRAM {units.byte_rate(ceilings.dram_bytes_per_s)}" if ceilings.dram_bytes_per_s else "",
        f"fp32 {units.flop_rate(ceilings.fp32_flops_per_s)}" if ceilings.fp32_flops_per_s else "",
    ]
    words = ", ".join(k for k in known if k)
    return f"Roofs measured: {words}." if words else "No roof was measured."


def _untimed(rungs: Sequence[Variant]) -> list[str]:
    lines = ["No committed run has measured it yet.", "", "| rung | builds on | mechanism |", "|---|---|---|"]
    for variant in rungs:
        builds_on = f"`{variant.builds_on}`" if variant.builds_on else "–"
        lines.append(f"| [`{variant.name}`]({variant.path.name}) | {builds_on} | {_cell(variant.title)} |")
    return [*lines, ""]


def _repeat(runs: Sequence[Run]) -> str:
    """How to repeat the runs."""
    suites = dict.fromkeys(str(run.header["suite"]) for run in runs if run.header.get("suite"))
    return f" Repeat the measurement: {', '.join(f'`opbench run {suite}`' for suite in suites)}." if suites else ""


def _cell(text: str) -> str:
    """Text that stays inside its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
