"""The terminal picture of README.md shows what the command prints today."""

from __future__ import annotations

import re
import runpy
from xml.etree import ElementTree

from rich.text import Text

from support.common import ROOT

PICTURE = runpy.run_path(str(ROOT / "docs" / "terminal_picture.py"))


def words(lines: list[str]) -> str:
    """The text with single spaces."""
    return " ".join("".join(lines).replace("\xa0", " ").split())


def test_the_picture_shows_what_the_command_prints() -> None:
    drawn = ElementTree.parse(PICTURE["PICTURE"]).getroot()
    text = words([f"{element.text or ''} " for element in drawn.iter("{http://www.w3.org/2000/svg}text")])
    output, _ = PICTURE["checked"](PICTURE["KERNEL"])
    printed = Text.from_ansi(output).plain
    assert "shared-race" in printed
    for line in printed.split("\n"):
        for part in re.findall(r"[^\s^|]{4,}", line):
            assert part in text, f"{part!r} is not in docs/check.svg: make picture"
