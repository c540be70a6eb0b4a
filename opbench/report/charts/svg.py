"""Conversion of matplotlib figures to SVG (several fit into one HTML page) and to PNG."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#10131a"
GRID = "#d7dbe2"
MUTED = "#5d6673"
PAPER = "#fefefe"
"""Colours that the SVG replaces by the page's CSS colours, so that a chart follows light and dark mode."""

XLINK = "{http://www.w3.org/1999/xlink}"

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "opbench", "svg.id": "", "font.family": ["DejaVu Sans"], "font.size": 10.0,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "text.color": INK,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True,
    "text.parse_math": False, "errorbar.capsize": 2.0, "path.simplify": True,
}  # fmt: skip


@contextmanager
def report_style() -> Iterator[None]:
    """Draw figures inside the `with` block in the report's matplotlib style."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        # A name in a script that matplotlib's font lacks shows as boxes in the PNG; a browser has other fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


ROLES = {INK: "currentColor", GRID: "var(--grid)", MUTED: "var(--muted)", PAPER: "var(--paper)"}
DIGITS = re.compile(r"(\d+\.\d{2})\d+")
"""A number with more than two decimals, which are not visible in a chart."""

NO_ROTATION = re.compile(r"rotate\(-?0 [^)]*\)")
"""The rotation by 0 degrees that matplotlib gives to text."""

REFERENCE = re.compile(r"#([\w-]+)")
"""A reference to an element of the same chart, such as url(#clip) or #marker."""


def to_svg(figure: Figure, prefix: str, title: str, description: str, points: Mapping[str, str]) -> str:
    """Return inline SVG whose ids start with `prefix`; each id in `points` is focusable and has its text as title."""
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        label = points.get(element.get("id", ""))
        element.attrib = {
            name.replace(XLINK, "xlink:"): _page_attribute(name, value, prefix)
            for name, value in element.items()
            if not NO_ROTATION.fullmatch(value)
        }
        if element.tail is not None and not element.tail.strip():
            element.tail = None
        if element.text is not None and not element.text.strip():
            element.text = None
        if label is not None and element.tag == "g":
            element.attrib |= {"class": "point", "tabindex": "0", "role": "img", "aria-label": label}
            element.insert(0, _text_element("title", label))
    if (metadata := root.find("metadata")) is not None:
        root.remove(metadata)
    view = root.get("viewBox")
    if view is None:
        raise ValueError("matplotlib wrote an SVG without a viewBox")
    labels = f"{prefix}-title {prefix}-desc"
    root.attrib = {"viewBox": view, "class": "chart", "role": "group", "aria-labelledby": labels}
    _remove_unused_ids(root, {f"{prefix}-{name}" for name in points})
    root.insert(0, _text_element("title", title, id=f"{prefix}-title"))
    root.insert(1, _text_element("desc", description, id=f"{prefix}-desc"))
    return ElementTree.tostring(root, encoding="unicode")


def _remove_unused_ids(root: ElementTree.Element, used: set[str]) -> None:
    """Remove the id of each element that neither the page nor the chart refers to: pages are shorter."""
    values = [value for element in root.iter() for name, value in element.items() if name != "id"]
    used = used.union(*(REFERENCE.findall(value) for value in values))
    for element in root.iter():
        if element.get("id", "") not in used:
            element.attrib.pop("id", None)


def _page_attribute(name: str, value: str, prefix: str) -> str:
    """Return an attribute's value in the page: ids with a prefix, colours by their roles, two decimals."""
    if name == "id":
        return f"{prefix}-{value}"
    if name.endswith("href"):
        return value.replace("#", f"#{prefix}-", 1)
    for colour, role in ROLES.items():
        value = value.replace(colour, role)
    value = value.replace("url(#", f"url(#{prefix}-").replace("font-family: 'DejaVu Sans'; ", "")
    value = value.replace("; ", ";") if name == "style" else " ".join(value.split())
    return DIGITS.sub(r"\1", value)


def _text_element(tag: str, text: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(tag, attributes)
    element.text = text
    return element


def to_png(figure: Figure) -> bytes:
    """Return a matplotlib figure as the bytes of a PNG file, 1200 pixels wide, on white."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", dpi=1200 / figure.get_figwidth(), facecolor="white", metadata={"Software": None}
    )
    return buffer.getvalue()


def spread_positions(targets: list[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions closest to `targets` (ascending) that are at least `gap` apart and within [low, high] if they
    fit.
    """
    positions: list[float] = []
    for value in targets:
        positions.append(max(value, positions[-1] + gap if positions else low))
    limit = high
    for i in reversed(range(len(positions))):
        positions[i] = min(positions[i], limit)
        limit = positions[i] - gap
    return positions
