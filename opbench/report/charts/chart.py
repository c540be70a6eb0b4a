"""What all charts share: the figure with its words, colours and shapes, and the limits to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup
from matplotlib.figure import Figure

from opbench import units
from opbench.gpu.limits.ceilings import LEVELS, Ceilings
from opbench.records import JSON
from opbench.report.charts.svg import to_svg
from opbench.results.rows import Row
from opbench.timing.clock import mode_text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's colours that stand out on white and on near-black."""
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "h")


@dataclass
class Chart:
    """A figure with the words that stand beside it."""

    name: str
    figure: Figure
    title: str
    description: str
    points: dict[str, str] = field(default_factory=dict)
    """Group id of each point to what it says."""
    note: str = ""

    def drawn(self, prefix: str) -> dict[str, JSON]:
        """What a page shows of it; `prefix` keeps its ids apart from those of the page's other charts."""
        svg = to_svg(self.figure, prefix, self.title, self.description, self.points)
        return {"svg": Markup(svg), "title": self.title, "note": self.note}


def look(variants: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each variant, the same in every chart of an operator."""
    return {
        name: (COLOURS[i % len(COLOURS)], SHAPES[(i + i // len(COLOURS)) % len(SHAPES)])
        for i, name in enumerate(variants)
    }


@dataclass(frozen=True)
class ChartFrame:
    """What the charts of one operator draw beside its rows."""

    measured: Ceilings | None
    sheet: Ceilings | None
    counters: Mapping[str, Mapping[str, object]]
    """By case."""
    looks: Mapping[str, tuple[str, str]]
    """Colour and shape by variant."""


def row_sentence(row: Row) -> str:
    """What a point says when it is pointed at."""
    known = row.time_low_s is not None and row.time_high_s is not None
    ends = f" [{units.interval(row.time_low_s, row.time_high_s)}]" if known else ""
    rates = [text for text in (units.byte_rate(row.bytes_per_s), units.flop_rate(row.flops_per_s)) if text != "–"]
    share = [f"{units.percent(row.roof_share)} of the measured peak"] if row.roof_share is not None else []
    share += [row.above_roof] if row.above_roof else []
    mode = f" ({mode_text(row.mode)})" if row.mode else ""
    return f"{row.name}: {units.time(row.time_s)}{ends}{mode}, {', '.join([*rates, *share])}"


def per_byte(flops_per_byte: float) -> str:
    """An arithmetic intensity, such as "0.25 FLOP/B"."""
    return f"{flops_per_byte:,.0f} FLOP/B" if flops_per_byte >= 100 else f"{flops_per_byte:.3g} FLOP/B"


def to_the_roof(row: Row) -> str:
    """Such as "1.3× to the fp32 roof"; nothing for a row that is there, or whose roof is not known."""
    if row.roof_share is None or row.roof_share > 0.95:
        return ""
    memory = LEVELS.get(row.memory_level, row.memory_level)
    roof = memory if row.bound == "memory" else units.unit(row.unit)
    return f"{units.ratio(1 / row.roof_share)} to the {roof} roof"


def shortened(text: str, most: int = 44) -> str:
    """Text with its middle left out when it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"
