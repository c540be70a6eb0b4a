"""What of reports/h200 is committed: the data of each run, the pictures that documents show, and four pages.

python tests/evidence.py    # packs finished runs, removes what `opbench report FOLDER` draws again
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from opbench.results.files import FILE, PACKED

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "reports/h200"
PAGES = (
    "quick/report.html",
    "networks/unet-1-bf16/network.html",
    "selftest/selftest.html",
    "training/lenet-128-f32/train.html",
)
"""One of a run, one of a network, one of a training, and the self-test's, for readers without opbench."""


def unpacked() -> list[Path]:
    """Results that take eight times what they could."""
    return sorted(REPORTS.rglob(FILE))


def shown() -> set[Path]:
    """Pictures that a document shows."""
    documents = [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("variants/**/README.md"),
        *REPORTS.rglob("*.md"),
    ]
    links = ((page, link) for page in documents for link in re.findall(r"\]\(([^)#\s]+\.png)", page.read_text()))
    return {(page.parent / link).resolve() for page, link in links}


def redrawn() -> list[Path]:
    """Pages and pictures that `opbench report FOLDER` draws again and that nothing shows."""
    kept = shown() | {REPORTS / page for page in PAGES}
    drawn = [*REPORTS.rglob("*.html"), *REPORTS.rglob("*.png"), *REPORTS.rglob("*.log")]
    return sorted(path for path in drawn if path.resolve() not in {k.resolve() for k in kept})


if __name__ == "__main__":
    for path in unpacked():
        path.with_name(PACKED).write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    for path in redrawn():
        path.unlink()
