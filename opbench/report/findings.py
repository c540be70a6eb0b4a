"""Format a finding as a compiler does: location, source line with a marker, explanation, and remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from opbench.backend.excerpt import expression_at
from opbench.backend.findings import Finding, place_and_message, place_text
from opbench.paths import path_from_here, short_path

WIDTH = 80
MAX_LINE_LENGTH = 160
"""Most characters shown of a source line."""


def finding_lines(finding: Finding, notes: Sequence[str] = (), width: int = WIDTH) -> list[str]:
    """Format a finding as several lines; `notes`, such as the command that repeats it, precede the help line."""
    gutter = " " * max(len(str(line)) for line in (finding.location_to_show[1], *(r.line for r in finding.related), 0))
    file, line, _ = finding.location_to_show
    path = short_path(file, width // 2) if file else ""
    thread_text = f", {finding.block_and_thread}" if finding.block_and_thread else ""
    lines = [f"{place_and_message(finding, path)}{thread_text}", *_excerpts(finding, gutter)]
    details = [*finding.details, *_header_note(finding), *_repeat_note(finding)]
    details += [f"remedy: {finding.remedy}"] if finding.remedy else []
    for text in details:
        lines += _wrap_detail(text, gutter, width)
    full_path = [f"file: {path_from_here(file)}:{line}"] if path.startswith("…") else []
    lines += [f"{gutter} = {note}" for note in (*full_path, *notes)]  # paths and commands, to be copied whole
    lines.append(f"{gutter} = help: opbench help finding {finding.rule}")
    return lines


def _excerpts(finding: Finding, gutter: str) -> Iterator[str]:
    """Yield the finding's source line with a marker, then each related line with its message."""
    file, line, column = finding.location_to_show
    yield from _excerpt(finding.source_to_show, line, column, finding.buffer, gutter, "")
    if file != finding.file and finding.line:  # the kernel's own line first, then the line of the header
        location = f"in {PurePath(finding.file).name}"
        yield from _excerpt(finding.source, finding.line, finding.column, finding.buffer, gutter, location)
    for related in finding.related:
        spans = (expression_at(location.source, location.column, finding.buffer) for location in (finding, related))
        if (related.file, related.line) == (file, line) and len(set(spans)) == 1:
            continue  # both accesses of an update, such as x += 1, have the same line
        yield from _excerpt(related.source, related.line, related.column, finding.buffer, gutter, related.message)


def _excerpt(source: str, line: int, column: int, name: str, gutter: str, label: str) -> Iterator[str]:
    text = source.replace("\t", " ")
    if not text.strip():
        return
    indent = len(text) - len(text.lstrip())
    indent = max(0, indent - 4)
    span = expression_at(text, column, name)
    visible_text = text[indent:].rstrip()
    yield f"{line:>{len(gutter)}} | {visible_text[:MAX_LINE_LENGTH]}"
    if span and span.end - indent <= MAX_LINE_LENGTH:
        marker = " " * (span.start - 1 - indent) + "^" * (span.end - span.start)
        yield f"{gutter} | {marker} {label}".rstrip()
    elif label:
        yield f"{gutter} | {label}"


def _wrap_detail(text: str, gutter: str, width: int) -> list[str]:
    """Wrap a detail at `width` columns; do not wrap a compiler's excerpt, which starts with blanks."""
    if not text or text[0].isspace():
        return [f"{gutter}   {text}".rstrip()]
    start = f"{gutter} = "
    return textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _header_note(finding: Finding) -> list[str]:
    """Return a note with the kernel's line that calls the header in which the finding is; empty without one."""
    if not finding.called_from or finding.kernel_file:
        return []
    return [f"called from {place_text('', finding.called_from)} of {PurePath(finding.file).name}"]


def _repeat_note(finding: Finding) -> list[str]:
    return [f"seen {finding.count} times; one is shown"] if finding.count > 1 else []
