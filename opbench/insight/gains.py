"""The gain of each mechanism on the ladders; written by `python tests/advice_score.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Gain(NamedTuple):
    """A range: in `GAINS` shares of the logarithmic distance to the lower bound, in advice factors of time."""

    low: float
    middle: float
    high: float


OTHER = Gain(0.34, 0.75, 1.09)
"""For mechanisms with fewer steps than three."""
GAINS: Mapping[str, Gain] = {
    "async_copy": Gain(0.66, 0.86, 1.2),
    "bank_conflict_free": Gain(0.31, 0.81, 1.2),
    "coalesced": Gain(0.46, 0.71, 0.86),
    "compile_time_sizes": Gain(0.51, 0.76, 0.99),
    "converted_ahead": Gain(0.22, 0.38, 0.45),
    "double_buffer": Gain(0.36, 0.73, 1.2),
    "few_channels": Gain(0.44, 0.85, 0.95),
    "fewer_barriers": Gain(0.22, 0.61, 0.87),
    "fewer_operations": Gain(0.45, 0.55, 0.61),
    "fewer_passes": Gain(0.24, 0.91, 0.97),
    "fused": Gain(0.38, 0.61, 0.93),
    "no_division": Gain(0.23, 0.42, 0.85),
    "overlapped_launch": Gain(0.14, 0.17, 0.59),
    "persistent": Gain(0.21, 0.48, 1.17),
    "register_tile": Gain(0.57, 0.91, 1.01),
    "shared_memory_tile": Gain(0.47, 0.71, 0.74),
    "split_k": Gain(0.2, 0.46, 0.72),
    "tensor_core": Gain(0.66, 0.86, 1.2),
    "tma": Gain(0.23, 0.42, 1.15),
    "unrolled": Gain(0.54, 0.87, 1.0),
    "vectorised_access": Gain(0.55, 0.99, 1.09),
    "warp_shuffle": Gain(0.43, 0.71, 1.06),
    "warp_specialised": Gain(0.23, 0.44, 1.16),
}
