"""A suite of two problems, three cases each, that tests kill, complete and edit."""

from __future__ import annotations

import json
from pathlib import Path

from opbench.results.files import FILE

SUITE = """\
title = "two problems"
[[run]]
operator = "relu"
variants = ["scalar", "zz_last"]
tune = { BLOCK = [128, 256] }
problems = [{ n = 7 }, { n = 1000 }]
"""


NAMES = [f"relu/{v}(n={n})" for n in (7, 1000) for v in ("scalar[BLOCK=256]", "scalar[BLOCK=128]", "zz_last")]


def own_variant(folder: Path, source: str, name: str = "zz_last") -> Path:
    """A variant of relu in a folder laid out as variants/."""
    path = folder / "mine" / "relu" / f"{name}.cu"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def cases_on_disk(folder: Path) -> list[str]:
    """Case names of every result line, repeated ones too."""
    found = [json.loads(line) for line in (folder / "out" / FILE).read_text().splitlines()]
    return [line["case"] for line in found if line["type"] == "result"]
