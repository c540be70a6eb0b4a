"""What the documents show: their text and the command lines in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from support.common import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))]


README = "\n\n".join(page.read_text() for page in PAGES if page.exists())
"""README.md and the pages that it links to, as one text."""


WALKED = [page for page in PAGES if re.search(r'^```\S+ title="', page.read_text(), re.MULTILINE)]
"""Pages whose examples build on each other; tests/test_tutorials.py runs them."""


def shell_lines(text: str = README) -> Iterator[tuple[str, str]]:
    """ "opbench" or "make" and its arguments, for each such command in the shell blocks of a text."""
    for block in re.findall(r"^```(?:sh|bash|console|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\||[|;](?=\s)", line.removeprefix("$ ")):
                match = re.match(r"\s*(?:[A-Z_]+=\S+\s+)*(?:\S*/)?(opbench|make)\b(.*)", part)
                if match:
                    yield match[1], match[2].split("  #")[0].split(" > ")[0].strip()


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the pieces of what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        while command.endswith("\\"):
            more, _, printed = printed.partition("\n")
            command = command[:-1] + more.strip()
        yield command, [" ".join(piece.split()) for piece in re.split(r"…|\n", printed) if piece.strip()]


LINES = sorted(set(shell_lines()))
