"""The output of `opbench explain` as HTML: the problems, then the source with counts for each line."""

from __future__ import annotations

from html import escape

from opbench import units
from opbench.insight.explain import AnnotatedFile, AnnotatedLine, Explanation
from opbench.report.speed_of_light import limit_bars
from opbench.report.traffic_cells import ACCESS_COLUMNS, line_cells

HEAD = ("line", *ACCESS_COLUMNS, "source")


def to_html(explanation: Explanation) -> str:
    """Return an explanation as an HTML fragment without a style sheet; all source text is escaped."""
    problems = "".join(
        f"<li><strong>{escape(p.place)}: {escape(p.kind)}</strong>, {p.saving}: {escape(p.sentence)}</li>"
        for p in explanation.problems
    )
    findings = "".join(f"<li class='bad'>{escape(f.place)}: {escape(f.message)}</li>" for f in explanation.findings)
    files = "".join(_file(explanation, file) for file in explanation.files if any(e.has_counts for e in file.lines))
    problem_list = f"<ol class='next'>{findings}{problems}</ol>" if findings or problems else ""
    limits = _limits(explanation)
    title = f"<h3><code>{escape(explanation.case)}</code></h3>"
    return f"<section class='explained'>{title}{problem_list}{limits}{files}</section>"


def _limits(explanation: Explanation) -> str:
    """Return a bar for each limit of the GPU; empty without lower bounds."""
    rows = "".join(
        f'<tr><th scope="row" class="left">{escape(bar.name)}</th><td>{units.time(bar.time_s)}</td>'
        f'<td class="wide"><span class="limit"><span style="width:{100 * bar.share:.1f}%"></span></span></td>'
        f'<td class="left">{escape(bar.note)}</td></tr>'
        for bar in limit_bars(explanation.bounds)
    )
    caption = f"<caption>Least time that each limit of {escape(explanation.gpu)} allows</caption>"
    return f'<div class="scroll"><table class="limits">{caption}<tbody>{rows}</tbody></table></div>' if rows else ""


def _file(explanation: Explanation, file: AnnotatedFile) -> str:
    heading = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    rows = "".join(_line(explanation, entry) for entry in file.lines)
    name = escape(file.path.rpartition("/")[2])
    caption = f"<caption>{name}: {explanation.source} per line on the cpu backend</caption>"
    return f'<div class="scroll"><table>{caption}<thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div>'


def _line(explanation: Explanation, entry: AnnotatedLine) -> str:
    style = ' class="bad"' if entry.findings else ' class="warn"' if entry.problems else ""
    code = f'<td class="left"><code style="white-space:pre">{escape(entry.text)}</code></td>'
    cells_by_access = [
        "".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in line_cells(explanation, entry)
    ]
    first_cells, *other_cells = cells_by_access or ["<td></td>" * (len(HEAD) - 2)]
    more_rows = "".join(f"<tr{style}><td></td>{cells}<td></td></tr>" for cells in other_cells)
    return f"<tr{style}><td>{entry.number}</td>{first_cells}{code}</tr>{more_rows}"
