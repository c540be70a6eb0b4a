"""Pages of reports as a reader of their HTML sees them, and tables as a terminal does."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path

from rich.console import Console

from opbench.report import print_table, write_report
from opbench.results.files import Run
from opbench.results.rows import rows


def page(run: Run, folder: Path) -> str:
    files = write_report(run, folder)
    assert files[0].name == "report.html"
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in files), "no temporary file is left behind"
    return files[0].read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Collects ids, tags and attributes, and checks that tags close."""

    VOID = {"meta", "br", "wbr", "img", "input", "link", "hr", "path", "use", "polyline"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value or "" for key, value in attrs if key == "id"]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def words(html: str) -> str:
    """The visible text."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)))


def printed(run: Run, width: int = 80, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, no_color=True, highlight=False)
    print_table(rows(run), console)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()) if terminal else stream.getvalue()
