"""Parts that all charts share: figure with texts, colours and shapes of variants, and the peaks to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup
from matplotlib.figure import Figure

from opbench import units
from opbench.gpu.limits.ceilings import LEVELS, Peaks
from opbench.report.bars import Bar
from opbench.report.charts.svg import to_svg
from opbench.results.rows import Row
from opbench.timing.clock import mode_text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's colours that stand out on white and on near-black."""
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "h")


@dataclass
class Chart:
    """A figure with its title, description, tooltips and note."""

    name: str
    figure: Figure
    title: str
    description: str
    points: dict[str, str] = field(default_factory=dict)
    """The text of each point by the point's SVG group id."""
    note: str = ""
    bars: Sequence[Bar] = ()
    """The chart as bars, for a narrow screen; empty for a chart that bars cannot replace."""

    def template_values(self, prefix: str) -> dict[str, object]:
        """Return the chart's values for a page template; `prefix` makes its SVG ids unique in the page."""
        svg = to_svg(self.figure, prefix, self.title, self.description, self.points)
        return {"svg": Markup(svg), "title": self.title, "note": self.note, "bars": self.bars}


def variant_styles(variants: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a shape for each variant, the same in all charts of an operator."""
    return {
        name: (COLOURS[i % len(COLOURS)], SHAPES[(i + i // len(COLOURS)) % len(SHAPES)])
        for i, name in enumerate(variants)
    }


@dataclass(frozen=True)
class ChartFrame:
    """Data that all charts of one operator share: peaks, counters, and each variant's colour and shape."""

    measured: Peaks | None
    sheet: Peaks | None
    counters: Mapping[str, Mapping[str, object]]
    """Hardware counters by case."""
    styles: Mapping[str, tuple[str, str]]
    """Colour and shape by variant."""


def row_sentence(row: Row) -> str:
    """Return the tooltip of a row's point: name, time with interval, rates, and percentage of peak."""
    times = row.times
    interval_text = f" [{units.interval(*times.interval_s)}]" if times and times.interval_s else ""
    rates = [units.byte_rate(times.bytes_per_s)] if times and times.bytes_per_s else []
    rates += [units.flop_rate(times.flops_per_s)] if times and times.flops_per_s else []
    share = [f"{units.percent(row.peak_share)} of the measured peak"] if row.peak_share is not None else []
    share += [row.above_peak] if row.above_peak else []
    mode = f" ({mode_text(times.mode)})" if times and times.mode else ""
    return f"{row.name}: {units.time(row.time_s)}{interval_text}{mode}, {', '.join([*rates, *share])}"


def distance_to_peak(row: Row) -> str:
    """Return the distance to the peak, such as "1.3× to the fp32 peak"; "" above 95 % or for an unknown peak."""
    if row.peak_share is None or row.peak_share > 0.95:
        return ""
    memory = LEVELS.get(row.memory_level, row.memory_level)
    peak_name = memory if row.bound == "memory" else units.unit(row.unit)
    return f"{units.ratio(1 / row.peak_share)} to the {peak_name} peak"


def shorten(text: str, max_characters: int = 44) -> str:
    """Shorten a text to `max_characters` characters by replacing its middle with "…"."""
    return (
        text if len(text) <= max_characters else f"{text[: max_characters // 2]}…{text[-(max_characters // 2 - 1) :]}"
    )
