"""What is committed of measurements on GPUs: the data of each run, the pictures that documents show, and some pages.

python tests/evidence.py [FOLDER]    # pack finished runs below FOLDER, remove what `opbench report` draws again
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from opbench.results.files import FILE, PACKED

ROOT = Path(__file__).parent.parent
REPORTS = (ROOT / "reports/h100", ROOT / "reports/h200")
PAGES = (
    "h100/selftest/selftest.html",
    "h200/networks/unet-1-bf16/network.html",
    "h200/selftest/selftest.html",
    "h200/training/lenet-128-f32/train.html",
)
"""One page of each kind, for readers without opbench."""


def unpacked(folders: Iterable[Path] = REPORTS) -> list[Path]:
    """Results that take eight times what they could."""
    return sorted(path for folder in folders for path in folder.rglob(FILE))


def shown() -> set[Path]:
    """Pictures that a document shows."""
    documents = [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("variants/**/README.md"),
        *(ROOT / "reports").rglob("*.md"),
    ]
    links = ((page, link) for page in documents for link in re.findall(r"\]\(([^)#\s]+\.png)", page.read_text()))
    return {(page.parent / link).resolve() for page, link in links}


def redrawn(folders: Iterable[Path] = REPORTS) -> list[Path]:
    """Pages and pictures that `opbench report FOLDER` draws again and that nothing shows."""
    kept = {path.resolve() for path in (*shown(), *(ROOT / "reports" / page for page in PAGES))}
    drawn = (path for folder in folders for kind in ("html", "png", "log") for path in folder.rglob(f"*.{kind}"))
    return sorted(path for path in drawn if path.resolve() not in kept)


if __name__ == "__main__":
    chosen = [Path(name) for name in sys.argv[1:]] or REPORTS
    for path in unpacked(chosen):
        path.with_name(PACKED).write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    for path in redrawn(chosen):
        path.unlink()
