"""An operator's ladder as Markdown, for variants/<operator>/README.md."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from opbench import units
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.variant import Variant
from opbench.paths import shipped_folder
from opbench.report.linked_table import LinkedRow, LinkedTable
from opbench.report.run.above_peak import above_peak_sentences, footnote_marks
from opbench.report.run.sections import chart_name, sections
from opbench.report.terminal import rate_text
from opbench.results.files import Run
from opbench.results.rows import Row, first_variant, rows
from opbench.tables import markdown_table

MAX_PROBLEMS = 3
OVERVIEW_HEADINGS = (
    *("operator", "GPU", "problem", "first variant", "fastest variant", "GPU time, rate", "of peak", "vs first"),
    "vs library",
)

MeasuredRun = tuple[Run, str, list[Row]]
"""A run, one of its problems, and the rows of that problem with times."""


def ladder_readme(
    operator: str, title: str, variants: Sequence[Variant], measured: Sequence[MeasuredRun], layouts: Sequence[str] = ()
) -> str:
    """Return the README of an operator's folder: title, variants, the speedup of each, and the measurements.

    `measured` are the problems that `measured_problems` chose; `layouts` are the operator's layouts, the default first.
    The text depends only on the arguments and on the chart files of committed runs, so a test can detect a stale
    README.
    """
    variants = in_teaching_order(variants)
    lines = [f"# {operator}", "", *([_cell(title), ""] if title else []), _introduction(operator, variants), ""]
    lines += _variants(variants, measured, layouts)
    for run, problem, measured_rows in measured:
        # The chart of the first problem, which has the most variants, is enough: every problem has a table.
        lines += _table(variants, run, problem, measured_rows, charted=problem == measured[0][1])
    if not measured:
        lines += ["No committed run has measured it yet.", ""]
    lines += [
        "A variant is one file in this folder, or one `[variant.NAME]` table in the header of a file. The header names "
        "the launches and the tunable parameters. The comment below the header says why the variant is faster and "
        "what limits it.",
        "",
        f"*`opbench ladder` writes this page.{_repeat_commands([run for run, _, _ in measured])}*",
    ]
    return "\n".join(lines) + "\n"


def ladders_overview(operators: Sequence[str], runs: Sequence[Run]) -> LinkedTable:
    """Return the table for variants/README.md: each ladder's start, its best variant, and the library."""
    table_rows = []
    for operator in operators:
        problems_with_own = [
            (run, problem, [row for row in measured_rows if not row.library])
            for run, problem, measured_rows in measured_problems(operator, runs)
        ]
        for run, problem, own_rows in [measured for measured in problems_with_own if measured[2]][:1]:
            best = min(own_rows, key=lambda r: r.time_s or math.inf)
            start_s, gpu = _simplest_variant_s(own_rows), _cell(_gpu(run).removeprefix("NVIDIA "))
            cells = (
                gpu,
                f"`{problem}`",
                units.time(start_s),
                f"`{best.variant}`",
                f"{units.time(best.time_s)}, {rate_text(best)}",
                _share(best),
                units.ratio(start_s / best.time_s if best.time_s else None),
                units.ratio(best.speedups.over_library),
            )
            table_rows.append(LinkedRow(operator, f"{operator}/README.md", cells))
    return LinkedTable(OVERVIEW_HEADINGS, table_rows, left=(0, 1, 2, 4))


def _simplest_variant_s(measured_rows: Sequence[Row]) -> float:
    """Return the time of the plainest measured variant: the first of the longest chain, with its fastest config."""
    previous_variant = {row.variant: row.builds_on for row in measured_rows}
    first_variants = [first_variant(row.variant, previous_variant) for row in measured_rows]
    plainest = max(dict.fromkeys(first_variants), key=first_variants.count)
    return min(row.time_s or math.inf for row in measured_rows if row.variant == plainest)


def _share(row: Row, mark: str = "") -> str:
    """Return the percentage of peak and its limit: memory, or the arithmetic unit of the products."""
    if row.peak_share is None:
        return "–"
    limit = "memory" if row.bound == "memory" else row.unit
    return f"{units.percent(row.peak_share)} ({limit}){mark}"


def in_teaching_order(variants: Sequence[Variant]) -> list[Variant]:
    """Sort variants in teaching order: the longest ladder first, each variant after the one it builds on, libraries
    last.
    """
    names = {v.name for v in variants}
    previous_variant = {v.name: v.builds_on for v in variants}
    roots = [first_variant(v.name, previous_variant) for v in variants]
    ordered: list[Variant] = []

    def append_successors(base: str) -> None:
        for variant in sorted(
            (v for v in variants if not v.is_library and v not in ordered), key=lambda v: (-roots.count(v.name), v.name)
        ):
            if (variant.builds_on if variant.builds_on in names else "") == base and variant not in ordered:
                ordered.append(variant)
                append_successors(variant.name)

    append_successors("")
    remaining = sorted((v for v in variants if v not in ordered), key=lambda v: (v.is_library, v.name))
    return [*ordered, *remaining]


def _introduction(operator: str, variants: Sequence[Variant]) -> str:
    own_variants = [v for v in variants if not v.is_library]
    libraries = [f"`{v.name}`" for v in variants if v.is_library]
    count = "1 variant" if len(own_variants) == 1 else f"{len(own_variants)} variants, from the simplest to the fastest"
    ladder_text = (
        " Each variant improves one mechanism of the variant that it builds on." if len(own_variants) > 1 else ""
    )
    library_text = f" They are compared with the library: {', '.join(libraries)}." if libraries else ""
    return f"`{operator}` has {count}.{ladder_text}{library_text}"


def measured_problems(operator: str, runs: Sequence[Run], variant_names: Collection[str] = ()) -> list[MeasuredRun]:
    """Choose at most three problems with times: first the one with the most variants, then those that add most
    variants. Of problems with equally many variants, those on the GPU of the first run come first.

    Of the runs that measured a problem, the one with the most variants counts, and of equal ones the first. If
    `variant_names` is not empty, rows of other variants (renamed or removed since the run) are ignored.
    """
    run_by_problem: dict[str, MeasuredRun] = {}
    for run in runs:
        rows_by_problem: dict[str, list[Row]] = {}
        of_operator = [result for result in run.results if result.operator == operator]
        for row in rows(replace(run, results=of_operator)) if of_operator else ():
            if row.ranked and (not variant_names or row.variant in variant_names):
                rows_by_problem.setdefault(row.problem, []).append(row)
        for problem, measured_rows in rows_by_problem.items():
            measured = (run, problem, measured_rows)
            if problem not in run_by_problem or len(_names(measured)) > len(_names(run_by_problem[problem])):
                run_by_problem[problem] = measured
    selected: list[MeasuredRun] = []
    covered: set[str] = set()

    def priority(measured: MeasuredRun) -> tuple[int, int, bool, float, str]:
        names, (run, problem, measured_rows) = _names(measured), measured
        compulsory_bytes = measured_rows[0].compulsory_bytes or 0
        return -len(names - covered), -len(names), _gpu(run) != _gpu(runs[0]), -compulsory_bytes, problem

    while len(selected) < MAX_PROBLEMS and (remaining := [m for m in run_by_problem.values() if m not in selected]):
        selected.append(min(remaining, key=priority))
        covered |= _names(selected[-1])
    return selected


def _gpu(run: Run) -> str:
    return run.header.environment.gpu or (run.ceilings.gpu if run.ceilings else "") or "an unnamed GPU"


def _names(measured: MeasuredRun) -> set[str]:
    return {row.variant for row in measured[2]}


def _variants(variants: Sequence[Variant], measured: Sequence[MeasuredRun], layouts: Sequence[str]) -> list[str]:
    """Return a tree of which variant builds on which, then a table per layout: each variant's purpose and speedup."""
    if not variants:
        return []
    explanation = (
        [
            "A speedup is the time of the previous variant divided by the time of this variant, each with its fastest "
            f"config. The problem is `{measured[0][1]}` unless the cell names another one.",
            "",
        ]
        if measured
        else []
    )
    lines = ["## Variants", "", "```", *_variant_tree(variants), "```", "", *explanation]
    for layout in layouts or [""]:
        supported = [v for v in variants if not layout or layout in v.supports.get("layout", layouts[:1])]
        if supported and len(layouts) > 1:
            lines += [f"### `layout={layout}`", ""]
        if supported:
            nearest = sorted(measured, key=lambda m: _layout(m) != layout) if len(layouts) > 1 else measured
            main_problem = measured[0][1] if measured and (len(layouts) < 2 or _layout(measured[0]) == layout) else ""
            cells = [_variant(variant, nearest, main_problem) for variant in supported]
            headings = ("variant", "what it does", "speedup over the previous variant")
            lines += [*markdown_table(headings, cells, left=range(3)), ""]
    return lines


def _layout(measured: MeasuredRun) -> str:
    """Return the layout of a measured problem; empty for an operator without layouts."""
    run, problem, measured_rows = measured
    axes = (r.axes for r in run.results if r.operator == measured_rows[0].operator and r.problem == problem)
    return str(next(axes, {}).get("layout", ""))


def _variant(variant: Variant, measured: Sequence[MeasuredRun], main_problem: str) -> tuple[str, str, str]:
    label = f" ({variant.precision})" if variant.precision != "f32" else ""
    link = f"[`{variant.name}`]({variant.path.name}){label}"
    return link, _cell(variant.title), _speedup_cell(variant, measured, main_problem)


def _variant_tree(variants: Sequence[Variant]) -> list[str]:
    """Draw own variants below the one they build on: a chain on one line, variants without successors together on one
    line.
    """
    own_variants = [v for v in variants if not v.is_library]
    names = {v.name for v in own_variants}
    drawn: set[str] = set()

    def successors_of(base: str) -> list[str]:
        return [v.name for v in own_variants if (v.builds_on if v.builds_on in names else "") == base]

    def draw(name: str, first_prefix: str, next_prefix: str) -> list[str]:
        chain = [name]
        drawn.add(name)
        while len(successors := successors_of(chain[-1])) == 1 and successors[0] not in drawn:
            chain += successors
            drawn.add(successors[0])
        lines = [first_prefix + " → ".join(chain)]
        branches = [branch for branch in successors_of(chain[-1]) if branch not in drawn and successors_of(branch)]
        leaves = [branch for branch in successors_of(chain[-1]) if branch not in drawn and not successors_of(branch)]
        drawn.update(leaves)
        for i, branch in enumerate(branches):
            is_last = i == len(branches) - 1 and not leaves
            lines += draw(
                branch, next_prefix + ("└─ " if is_last else "├─ "), next_prefix + ("   " if is_last else "│  ")
            )
        return [*lines, *([f"{next_prefix}└─ {', '.join(leaves)}"] if leaves else [])]

    lines = [line for root in successors_of("") for line in draw(root, "", "")]
    return [*lines, *(name for name in dict.fromkeys(v.name for v in own_variants) if name not in drawn)]


def _speedup_cell(variant: Variant, measured: Sequence[MeasuredRun], main_problem: str) -> str:
    """Return a variant's measured speedup over the variant that it builds on, as a table cell.

    Examples: "**1.43×** over `register_tile_2d`", "not measured". The speedup comes from the first problem on which the
    variant was measured; the cell names the problem if it is not `main_problem`. A library's cell has its time.
    """
    for _, problem, measured_rows in measured:
        row = _fastest_row_of(measured_rows, variant.name)
        if row is None:
            continue
        problem_text = f" at `{problem}`" if problem != main_problem else ""
        if variant.is_library:
            return f"{units.time(row.time_s)}{problem_text}"
        if row.speedups.over_previous is None:
            missing_text = (
                f"previous variant `{variant.builds_on}` not measured" if variant.builds_on else "first variant"
            )
            return f"{units.time(row.time_s)}{problem_text} ({missing_text})"
        slower_text = ", slower here" if row.speedups.over_previous < 0.995 else ""
        return f"**{units.ratio(row.speedups.over_previous)}** over `{variant.builds_on}`{problem_text}{slower_text}"
    return "not measured" if measured else "–"


def _fastest_row_of(measured_rows: Sequence[Row], variant: str) -> Row | None:
    return min((r for r in measured_rows if r.variant == variant), key=lambda r: r.time_s or math.inf, default=None)


def _table(
    variants: Sequence[Variant], run: Run, problem: str, measured_rows: Sequence[Row], charted: bool
) -> list[str]:
    gpu = _gpu(run)
    first_row = measured_rows[0]
    flops = f"{units.si(first_row.flops, 'FLOP')}, " if first_row.flops else ""
    shown_rows = [(variant, row) for variant in variants if (row := _fastest_row_of(measured_rows, variant.name))]
    peaks = _peak_text(run, [row for _, row in shown_rows])
    lines = [
        f"## `{problem}`",
        "",
        f"{flops}{units.si(first_row.compulsory_bytes, 'B')} compulsory bytes. Measured on {_cell(gpu)}, run "
        f"`{run.header.suite or '?'}` of {run.header.started or 'unknown date'}. {peaks}",
        "",
        *(_chart(run, first_row.operator, problem) if charted else []),
    ]
    reasons = above_peak_sentences((row for _, row in shown_rows), run.ceilings)
    footnotes = {reason: f" [{mark}]" for reason, mark in footnote_marks(reasons).items()}
    cells = [
        (
            f"[`{variant.name}`]({variant.path.name})",
            units.time(row.time_s),
            rate_text(row),
            _share(row, footnotes.get(row.above_peak or "", "")),
            units.ratio(row.speedups.over_previous),
            "–" if row.library else units.ratio(row.speedups.over_library),
            f"`{row.config}`" if row.config else "–",
        )
        for variant, row in shown_rows
    ]
    headings = ("variant", "GPU time", "rate", "of peak", "vs previous", "vs library", "config")
    lines += [*markdown_table(headings, cells, left=(0, 6)), ""]
    not_measured = [f"`{v.name}`" for v in variants if _fastest_row_of(measured_rows, v.name) is None]
    for reason, sentence in reasons.items():
        lines += [f"{footnotes[reason].strip()} {sentence}", ""]
    return [*lines, *([f"Not measured here: {', '.join(not_measured)}.", ""] if not_measured else [])]


def _chart(run: Run, operator: str, problem: str) -> list[str]:
    """Return a Markdown link to the problem's chart if the run is committed under reports/; otherwise nothing."""
    folder, reports = run.folder.resolve(), shipped_folder("reports").resolve()
    if not folder.is_relative_to(reports):
        return []
    problems = [section.problem for section in sections(rows(run)) if section.operator == operator]
    picture = folder / f"{chart_name(operator, problems.index(problem))}.png"
    if not picture.is_file():
        return []
    link = f"../../reports/{picture.relative_to(reports).as_posix()}"
    return [f"![The variants at `{problem}` and the measured peak of the GPU]({link})", ""]


def _peak_text(run: Run, measured: Sequence[Row]) -> str:
    """Return a sentence with the peaks of DRAM, of CUDA cores and of the tensor-core products that the rows use."""
    ceilings = run.ceilings or Peaks()
    units_used = {row.unit.partition("/")[0] for row in measured if row.unit}
    peaks = {"DRAM": units.byte_rate(ceilings.dram_bytes_per_s), "fp32": units.flop_rate(ceilings.fp32_flops_per_s)}
    peaks |= {u: units.flop_rate(rate) for u, rate in ceilings.matrix_flops_per_s.items() if u in units_used}
    text = ", ".join(f"{name} {rate}" for name, rate in peaks.items() if rate != "–")
    return f"Measured peaks: {text}." if text else "No peak was measured."


def _repeat_commands(runs: Sequence[Run]) -> str:
    """Return the Markdown lines with the commands that repeat the runs of a README."""
    suites = dict.fromkeys(run.header.suite for run in runs if run.header.suite)
    return f" To repeat the measurement: {', '.join(f'`opbench run {suite}`' for suite in suites)}." if suites else ""


def _cell(text: str) -> str:
    """Escape text for a Markdown table cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
