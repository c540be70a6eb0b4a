"""The comparison of a user's variants as sentences."""

from __future__ import annotations

from opbench import units
from opbench.backend.counts import ORIGIN_PREDICTED
from opbench.results.own_variants import VariantComparison


def sentences(comparison: VariantComparison) -> list[str]:
    """Return one sentence on time and one on traffic, if these are known; names are in backticks."""
    new, base = (f"`{name.replace('`', chr(39))}`" for name in (comparison.new, comparison.base))
    texts = []
    if comparison.time is not None:
        texts.append(f"{new} {_time_text(comparison)} {base}.")
    if comparison.base_traffic is not None and comparison.new_traffic is not None:
        phrases = "; ".join(comparison.new_traffic.differences(comparison.base_traffic))
        predicted = ORIGIN_PREDICTED in (comparison.new_traffic.source, comparison.base_traffic.source)
        texts.append(f"{new} compared with {base}: {phrases}{' (predicted from some blocks)' if predicted else ''}.")
    return texts


def _time_text(comparison: VariantComparison) -> str:
    """Return a phrase such as "takes 1.20 µs, 2.31× faster (95 % interval 2.28 to 2.35×) than"."""
    ratio = comparison.time
    assert ratio is not None
    time_text = f"takes {units.time(comparison.new_s)}"
    if ratio.low <= 1 <= ratio.high:
        return f"{time_text}, a tie (95 % interval of the ratio {ratio.low:.3f} to {ratio.high:.3f}) with"
    low, ratio_value, high = (ratio.low, ratio.value, ratio.high)
    direction = "slower"
    if ratio.value < 1:
        low, ratio_value, high, direction = 1 / ratio.high, 1 / ratio.value, 1 / ratio.low, "faster"
    return f"{time_text}, {ratio_value:.3g}× {direction} (95 % interval {low:.3g} to {high:.3g}×) than"
