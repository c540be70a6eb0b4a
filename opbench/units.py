"""Format numbers for readers: SI prefixes, GB = 10**9 bytes, three significant digits."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}

LEAST_COLUMN = 30
"""Fewest characters of a column that is wrapped; on a narrower terminal, the terminal wraps the line."""


def si(value: float | None, unit: str, digits: int = 3) -> str:
    """Return a value with the SI prefix that fits, such as "4.28 TB/s"; "–" for None."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return f"0 {unit}"
    order, exponent = _decimal_order(value, digits), prefix_exponent(value, digits)
    value = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - (order - exponent))
    return f"{value / 10.0**exponent:.{decimals}f} {_PREFIXES[exponent]}{unit}"


def prefix_exponent(value: float, digits: int = 3) -> int:
    """Return the power of ten of the SI prefix with which `si` shows a value other than 0, such as 12 for tera."""
    return max(-9, min(15, 3 * (_decimal_order(value, digits) // 3)))


def _decimal_order(value: float, digits: int) -> int:
    # Rounded first: 999.6 kB is 1.00 MB.
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def time(seconds: float | None) -> str:
    """Return a time, such as "12.5 µs"; "–" for None."""
    return si(seconds, "s")


def signed_time(seconds: float) -> str:
    """Return a difference of times with its sign, such as "+2.10 µs" or "−2.10 µs"."""
    sign = "+" if seconds > 0 else "−" if seconds < 0 else ""
    return f"{sign}{time(abs(seconds))}"


def interval(low_value: float | None, high_value: float | None, unit: str = "s") -> str:
    """Return two quantities with enough digits to differ, such as "3.990–3.993 ms"; "–" if one is None."""
    if low_value is None or high_value is None:
        return "–"
    low, high = next(
        ((a, b) for digits in range(3, 8) if (a := si(low_value, unit, digits)) != (b := si(high_value, unit, digits))),
        (si(low_value, unit), si(high_value, unit)),
    )
    if low == high:
        return f"{low} at both ends"
    return f"{low.split()[0]}–{high}" if low.split()[-1] == high.split()[-1] else f"{low} – {high}"


def byte_rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth, such as "4.28 TB/s"; "–" for None."""
    return si(bytes_per_s, "B/s")


def flop_rate(flops_per_s: float | None) -> str:
    """Return an arithmetic rate, such as "51.4 TFLOP/s"; "–" for None."""
    return si(flops_per_s, "FLOP/s")


def percent(share: float | None) -> str:
    """Return a share as a percentage, such as "91 %"; "–" for None."""
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def ratio(value: float | None) -> str:
    """Return a speedup, such as "1.83×" or "0.0045×"; "–" for None."""
    if value is None or not math.isfinite(value):
        return "–"
    if 0 < value < 0.1:  # two significant digits
        exponent = int(f"{value:.1e}".partition("e")[2])
        return f"{value:.{1 - exponent}f}×"
    return f"{value:.2f}×" if value < 10 else f"{value:.1f}×" if value < 100 else f"{value:.0f}×"


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 case" or "3 cases"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_words(texts: Sequence[str]) -> str:
    """Join words as in a sentence: "a, b and c"."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def duration(seconds: float) -> str:
    """Return a wall time, such as "48 ms", "2.3 s" or "4 min 19 s"."""
    if seconds >= 120:
        minutes, seconds_left = divmod(round(seconds), 60)
        return f"{minutes} min {seconds_left} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def unit(name: str) -> str:
    """Return an arithmetic unit as text: "fp32" for "f32"; "tf32/3" means three tf32 products in place of one."""
    kind, _, products = name.partition("/")
    kind = {"f32": "fp32", "f64": "fp64", "i32": "int32"}.get(kind, kind)
    return f"{products}×{kind}" if products else kind


def per_byte(flops_per_byte: float) -> str:
    """Format an arithmetic intensity in FLOP per byte, such as "0.25 FLOP/B"."""
    return f"{flops_per_byte:,.0f} FLOP/B" if flops_per_byte >= 100 else f"{flops_per_byte:.3g} FLOP/B"


def wrap_last_column(text: str, indent: int, terminal_width: int) -> str:
    """Wrap the text of a line's last column, which starts at `indent`; as it is for a pipe, whose width is 0."""
    if terminal_width < indent + LEAST_COLUMN:
        return text
    lines = textwrap.wrap(text, terminal_width - indent, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines)
