"""Bars of a page as a list: names, bars and numbers that fit a narrow screen, on which a chart would have to scroll."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Bar:
    """One bar with its name and its number."""

    name: str
    value: str
    """The number that the bar shows, with its unit."""
    length: float
    """The number without its unit; of the lengths of a list, only the ratios count."""
    note: str = ""
    tone: str = ""
    """The CSS class of the bar: "own" (coloured and bold), "fast" (coloured), "slow" (a warning), or "" (grey)."""

    @property
    def width(self) -> str:
        """Return the width in percent of a bar whose length is a share."""
        return f"{100 * min(1.0, self.length):.1f}"


def scaled(bars: Sequence[Bar], longest: float | None = None) -> list[Bar]:
    """Return the bars with lengths as shares of `longest`; by default, of the longest bar."""
    longest = longest or max((bar.length for bar in bars), default=0.0) or 1.0
    return [replace(bar, length=bar.length / longest) for bar in bars]
