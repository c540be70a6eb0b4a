"""Turns a matplotlib figure into SVG that can stand several times in one HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#10131a"
GRID = "#d7dbe2"
MUTED = "#5d6673"
PAPER = "#fefefe"
"""Colours that become the page's own in SVG, so that a chart follows light and dark."""

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "opbench", "svg.id": "", "font.family": ["DejaVu Sans"], "font.size": 10.0,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "text.color": INK,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True,
    "text.parse_math": False, "errorbar.capsize": 2.0, "path.simplify": True,
}  # fmt: skip


def to_svg(figure: Figure, prefix: str, title: str, description: str, points: Mapping[str, str]) -> str:
    """Inline SVG with ids of its own; each gid in `points` becomes focusable and says its text."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    for colour, role in (
        (INK, "currentColor"),
        (GRID, "var(--grid)"),
        (MUTED, "var(--muted)"),
        (PAPER, "var(--paper)"),
    ):
        text = text.replace(colour, role)
    text = re.sub(r"'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag.group()), text)  # words stay whole
    for gid, label in points.items():
        said = escape(label, quote=True)
        text = text.replace(
            f'<g id="{prefix}-{gid}">',
            f'<g id="{prefix}-{gid}" class="point" tabindex="0" role="img" aria-label="{said}"><title>{said}</title>',
        )
    opening = re.match(r"<svg[^>]*>", text)
    view = re.search(r'viewBox="[^"]*"', opening.group(0)) if opening else None
    if opening is None or view is None:
        raise ValueError("matplotlib wrote an SVG without a viewBox")
    head = (
        f'<svg {view.group(0)} class="chart" role="group" aria-labelledby="{prefix}-title {prefix}-desc">'
        f'<title id="{prefix}-title">{escape(title)}</title><desc id="{prefix}-desc">{escape(description)}</desc>'
    )
    return head + text[opening.end() :]


def to_png(figure: Figure) -> bytes:
    """The same figure as PNG, 1200 pixels wide, on white."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", dpi=1200 / figure.get_figwidth(), facecolor="white", metadata={"Software": None}
    )
    return buffer.getvalue()


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places nearest to those wanted (ascending) that keep `gap` between them and stay in [low, high] if they fit."""
    placed: list[float] = []
    for value in wanted:
        placed.append(max(value, placed[-1] + gap if placed else low))
    limit = high
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed
