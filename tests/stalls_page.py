"""The table of reasons in docs/stalls.md, written from `opbench.insight.stalls`; a test compares the two.

python tests/stalls_page.py
"""

from __future__ import annotations

import re
from pathlib import Path

from opbench.insight.nsight.charging import RULES
from opbench.insight.stalls import CAUSES, STALLS
from opbench.tables import markdown_table

PAGE = Path(__file__).parent.parent / "docs" / "stalls.md"
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def reasons() -> str:
    """Return the table of reasons."""
    headings = ("reason", "column of Nsight Compute", "what it means", "what to do", "mechanisms")
    rows = []
    for stall in STALLS.values():
        names = ", ".join(f"`{name}`" for name in stall.mechanisms) or "–"
        rows.append((stall.title, f"`{stall.column}`", stall.meaning, stall.remedy, names))
    return "\n".join(markdown_table(headings, rows, left=range(5)))


def causes() -> str:
    """Return the table of what a scoreboard waits for."""
    rows = []
    for cause in CAUSES:
        names = ", ".join(f"`{name}`" for name in cause.mechanisms) or "–"
        codes = ", ".join(sorted(cause.opcodes))
        rows.append((cause.name, " or ".join(STALLS[r].title for r in cause.reasons), codes, names))
    headings = ("the warp waits for", "reason", "instructions", "mechanisms")
    return "\n".join(markdown_table(headings, rows, left=range(4)))


def rules() -> str:
    """Return the list of rules by which samples are charged."""
    return "\n".join(f"- *{name}*: {text};" for name, text in RULES.items()).removesuffix(";") + "."


def stalls_page(text: str) -> str:
    """Return the page with its three generated parts."""
    parts = {"reasons": reasons(), "causes": causes(), "rules": rules()}
    return MARKED.sub(lambda hit: f"{hit[1]}{parts[hit[2]]}\n{hit[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(stalls_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
