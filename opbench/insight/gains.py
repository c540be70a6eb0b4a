"""The gain of each mechanism on the ladders; written by `python tests/advice_score.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

KernelKind = Literal["stream", "product", "tensor"]
"""Few FLOPs per byte; many of them on CUDA cores; on tensor cores."""


class Gain(NamedTuple):
    """A range: in `GAINS` shares of the logarithmic distance to the lower bound, in advice factors of time."""

    low: float
    middle: float
    high: float


DISTANCES = (1.5, 5.0, 50.0)
"""The multiples of the lower bound at which `GAINS` has shares."""
Shares = tuple[Gain, Gain, Gain]
"""The shares at each of `DISTANCES`."""
GAINS: Mapping[str, Mapping[KernelKind, Shares]] = {
    "": {
        "stream": (Gain(0.27, 0.81, 1.01), Gain(0.24, 0.77, 1.0), Gain(0.2, 0.75, 0.99)),
        "product": (Gain(0.27, 0.77, 1.2), Gain(0.27, 0.72, 1.2), Gain(0.25, 0.59, 0.98)),
        "tensor": (Gain(0.21, 0.51, 1.0), Gain(0.21, 0.48, 0.98), Gain(0.2, 0.51, 0.97)),
    },
    "async_copy": {
        "stream": (Gain(0.32, 0.85, 1.2), Gain(0.3, 0.8, 1.2), Gain(0.22, 0.69, 1.0)),
        "product": (Gain(0.46, 1.09, 1.2), Gain(0.45, 0.99, 1.2), Gain(0.4, 0.71, 1.2)),
        "tensor": (Gain(0.23, 0.69, 1.2), Gain(0.25, 0.69, 1.2), Gain(0.25, 0.63, 1.09)),
    },
    "bank_conflict_free": {
        "stream": (Gain(0.25, 0.85, 1.2), Gain(0.25, 0.79, 1.1), Gain(0.22, 0.71, 1.0)),
        "product": (Gain(0.29, 1.09, 1.2), Gain(0.3, 0.99, 1.2), Gain(0.3, 0.69, 1.2)),
        "tensor": (Gain(0.21, 0.42, 1.2), Gain(0.2, 0.42, 1.09), Gain(0.21, 0.47, 0.99)),
    },
    "block_reduction": {
        "stream": (Gain(0.31, 0.84, 1.0), Gain(0.31, 0.82, 1.0), Gain(0.25, 0.8, 0.98)),
        "product": (Gain(0.31, 0.77, 1.2), Gain(0.33, 0.72, 1.2), Gain(0.36, 0.51, 0.96)),
        "tensor": (Gain(0.21, 0.55, 0.99), Gain(0.21, 0.54, 0.99), Gain(0.22, 0.64, 0.96)),
    },
    "cluster": {
        "stream": (Gain(0.23, 0.8, 1.01), Gain(0.23, 0.76, 1.0), Gain(0.2, 0.74, 0.99)),
        "product": (Gain(0.23, 0.72, 1.2), Gain(0.23, 0.71, 1.2), Gain(0.25, 0.56, 0.98)),
        "tensor": (Gain(0.2, 0.41, 0.98), Gain(0.2, 0.41, 0.96), Gain(0.2, 0.46, 0.95)),
    },
    "coalesced": {
        "stream": (Gain(0.2, 0.76, 1.0), Gain(0.2, 0.76, 0.99), Gain(0.17, 0.69, 0.97)),
        "product": (Gain(0.27, 0.8, 1.2), Gain(0.32, 0.72, 1.2), Gain(0.25, 0.69, 0.99)),
        "tensor": (Gain(0.21, 0.57, 1.02), Gain(0.21, 0.58, 0.99), Gain(0.2, 0.63, 0.96)),
    },
    "coalesced_stores": {
        "stream": (Gain(0.22, 0.7, 1.0), Gain(0.16, 0.68, 0.99), Gain(0.16, 0.61, 0.97)),
        "product": (Gain(0.25, 0.74, 1.2), Gain(0.25, 0.7, 1.2), Gain(0.16, 0.51, 0.97)),
        "tensor": (Gain(0.21, 0.54, 0.99), Gain(0.21, 0.51, 0.98), Gain(0.16, 0.48, 0.95)),
    },
    "compile_time_sizes": {
        "stream": (Gain(0.42, 0.85, 1.0), Gain(0.39, 0.81, 1.0), Gain(0.31, 0.76, 0.99)),
        "product": (Gain(0.31, 0.75, 1.01), Gain(0.28, 0.7, 1.0), Gain(0.26, 0.66, 0.96)),
        "tensor": (Gain(0.29, 0.63, 0.99), Gain(0.31, 0.64, 0.98), Gain(0.32, 0.65, 0.96)),
    },
    "converted_ahead": {
        "stream": (Gain(0.21, 0.75, 1.01), Gain(0.21, 0.7, 1.0), Gain(0.17, 0.69, 0.98)),
        "product": (Gain(0.21, 0.65, 1.2), Gain(0.21, 0.65, 1.2), Gain(0.2, 0.51, 0.98)),
        "tensor": (Gain(0.17, 0.36, 0.96), Gain(0.17, 0.36, 0.91), Gain(0.14, 0.33, 0.91)),
    },
    "double_buffer": {
        "stream": (Gain(0.25, 0.68, 1.09), Gain(0.25, 0.69, 1.09), Gain(0.22, 0.59, 0.98)),
        "product": (Gain(0.37, 0.9, 1.2), Gain(0.37, 0.75, 1.2), Gain(0.37, 0.51, 1.2)),
        "tensor": (Gain(0.23, 0.48, 1.2), Gain(0.25, 0.46, 1.2), Gain(0.25, 0.51, 0.97)),
    },
    "few_channels": {
        "stream": (Gain(0.33, 0.85, 1.0), Gain(0.3, 0.85, 1.0), Gain(0.25, 0.85, 0.98)),
        "product": (Gain(0.33, 0.77, 1.2), Gain(0.32, 0.72, 1.2), Gain(0.27, 0.67, 0.97)),
        "tensor": (Gain(0.22, 0.41, 0.98), Gain(0.23, 0.41, 0.97), Gain(0.22, 0.49, 0.97)),
    },
    "fewer_barriers": {
        "stream": (Gain(0.27, 0.75, 1.0), Gain(0.08, 0.64, 0.99), Gain(0.07, 0.58, 0.98)),
        "product": (Gain(0.34, 0.7, 1.2), Gain(0.31, 0.62, 1.09), Gain(0.27, 0.48, 0.91)),
        "tensor": (Gain(0.21, 0.58, 0.99), Gain(0.2, 0.48, 0.98), Gain(0.14, 0.48, 0.95)),
    },
    "fewer_operations": {
        "stream": (Gain(0.27, 0.63, 1.0), Gain(0.25, 0.63, 0.99), Gain(0.24, 0.58, 0.98)),
        "product": (Gain(0.27, 0.61, 1.2), Gain(0.27, 0.59, 1.2), Gain(0.25, 0.51, 0.97)),
        "tensor": (Gain(0.25, 0.41, 0.81), Gain(0.25, 0.41, 0.75), Gain(0.25, 0.43, 0.79)),
    },
    "fewer_passes": {
        "stream": (Gain(0.23, 0.69, 1.0), Gain(0.14, 0.69, 0.99), Gain(0.07, 0.66, 0.98)),
        "product": (Gain(0.25, 0.71, 1.2), Gain(0.23, 0.68, 1.2), Gain(0.21, 0.46, 0.98)),
        "tensor": (Gain(0.21, 0.57, 0.98), Gain(0.2, 0.51, 0.98), Gain(0.16, 0.48, 0.98)),
    },
    "flat_index": {
        "stream": (Gain(0.33, 0.65, 1.0), Gain(0.25, 0.7, 1.0), Gain(0.2, 0.7, 0.98)),
        "product": (Gain(0.3, 0.72, 1.2), Gain(0.28, 0.71, 1.2), Gain(0.25, 0.59, 0.98)),
        "tensor": (Gain(0.21, 0.57, 0.99), Gain(0.21, 0.51, 0.98), Gain(0.2, 0.53, 0.97)),
    },
    "fused": {
        "stream": (Gain(0.27, 0.46, 0.99), Gain(0.27, 0.52, 0.99), Gain(0.25, 0.76, 0.98)),
        "product": (Gain(0.25, 0.56, 1.2), Gain(0.26, 0.57, 1.2), Gain(0.26, 0.54, 0.98)),
        "tensor": (Gain(0.2, 0.42, 0.82), Gain(0.2, 0.42, 0.76), Gain(0.2, 0.45, 0.97)),
    },
    "grid_stride": {
        "stream": (Gain(0.34, 0.84, 1.0), Gain(0.31, 0.76, 0.99), Gain(0.25, 0.76, 0.97)),
        "product": (Gain(0.32, 0.77, 1.2), Gain(0.32, 0.75, 1.2), Gain(0.28, 0.69, 0.97)),
        "tensor": (Gain(0.21, 0.57, 0.99), Gain(0.21, 0.53, 0.98), Gain(0.21, 0.64, 0.94)),
    },
    "no_division": {
        "stream": (Gain(0.16, 0.58, 0.99), Gain(0.16, 0.58, 0.99), Gain(0.16, 0.59, 0.99)),
        "product": (Gain(0.23, 0.63, 1.2), Gain(0.21, 0.65, 1.2), Gain(0.25, 0.53, 0.99)),
        "tensor": (Gain(0.21, 0.47, 0.99), Gain(0.2, 0.45, 0.99), Gain(0.17, 0.49, 0.97)),
    },
    "overlapped_launch": {
        "stream": (Gain(0.13, 0.62, 1.0), Gain(0.13, 0.69, 0.99), Gain(0.14, 0.69, 0.98)),
        "product": (Gain(0.21, 0.69, 1.2), Gain(0.21, 0.7, 1.2), Gain(0.21, 0.55, 0.98)),
        "tensor": (Gain(0.21, 0.34, 0.94), Gain(0.21, 0.41, 0.94), Gain(0.2, 0.46, 0.93)),
    },
    "persistent": {
        "stream": (Gain(0.23, 0.63, 1.0), Gain(0.23, 0.63, 0.99), Gain(0.23, 0.58, 0.98)),
        "product": (Gain(0.23, 0.63, 1.2), Gain(0.25, 0.63, 1.2), Gain(0.25, 0.53, 0.97)),
        "tensor": (Gain(0.21, 0.57, 0.92), Gain(0.21, 0.54, 0.82), Gain(0.21, 0.51, 0.84)),
    },
    "register_tile": {
        "stream": (Gain(0.4, 0.92, 1.06), Gain(0.34, 0.92, 1.01), Gain(0.25, 0.91, 1.0)),
        "product": (Gain(0.34, 0.77, 1.09), Gain(0.27, 0.71, 1.0), Gain(0.21, 0.49, 0.91)),
        "tensor": (Gain(0.24, 0.75, 1.02), Gain(0.24, 0.71, 1.0), Gain(0.21, 0.67, 0.98)),
    },
    "scatter": {
        "stream": (Gain(0.31, 0.75, 1.0), Gain(0.28, 0.63, 1.0), Gain(0.2, 0.66, 0.98)),
        "product": (Gain(0.29, 0.75, 1.2), Gain(0.3, 0.7, 1.2), Gain(0.26, 0.59, 0.98)),
        "tensor": (Gain(0.21, 0.55, 0.99), Gain(0.21, 0.54, 0.98), Gain(0.2, 0.56, 0.97)),
    },
    "shared_memory_tile": {
        "stream": (Gain(0.21, 0.62, 1.0), Gain(0.16, 0.6, 0.99), Gain(0.16, 0.4, 0.97)),
        "product": (Gain(0.23, 0.69, 1.2), Gain(0.21, 0.66, 0.99), Gain(0.16, 0.48, 0.77)),
        "tensor": (Gain(0.21, 0.48, 0.98), Gain(0.2, 0.46, 0.95), Gain(0.16, 0.43, 0.77)),
    },
    "shared_memory_transpose": {
        "stream": (Gain(0.21, 0.79, 1.0), Gain(0.21, 0.77, 0.99), Gain(0.2, 0.75, 0.98)),
        "product": (Gain(0.21, 0.76, 1.2), Gain(0.25, 0.72, 1.2), Gain(0.25, 0.59, 0.98)),
        "tensor": (Gain(0.21, 0.51, 0.99), Gain(0.21, 0.48, 0.98), Gain(0.2, 0.51, 0.96)),
    },
    "sliced_k": {
        "stream": (Gain(0.23, 0.64, 1.0), Gain(0.23, 0.67, 1.0), Gain(0.2, 0.67, 0.98)),
        "product": (Gain(0.08, 0.64, 1.2), Gain(0.08, 0.59, 1.2), Gain(0.16, 0.49, 0.97)),
        "tensor": (Gain(0.21, 0.48, 0.99), Gain(0.2, 0.46, 0.98), Gain(0.18, 0.48, 0.96)),
    },
    "split_k": {
        "stream": (Gain(0.2, 0.75, 1.0), Gain(0.2, 0.75, 0.98), Gain(0.2, 0.75, 0.97)),
        "product": (Gain(0.2, 0.7, 1.2), Gain(0.2, 0.7, 1.09), Gain(0.22, 0.7, 0.96)),
        "tensor": (Gain(0.05, 0.32, 0.85), Gain(0.05, 0.32, 0.77), Gain(0.14, 0.41, 0.92)),
    },
    "tensor_core": {
        "stream": (Gain(0.3, 0.75, 1.0), Gain(0.28, 0.69, 0.99), Gain(0.22, 0.65, 0.98)),
        "product": (Gain(0.42, 0.67, 1.0), Gain(0.43, 0.67, 0.99), Gain(0.42, 0.65, 0.83)),
        "tensor": (Gain(0.21, 0.57, 0.99), Gain(0.25, 0.59, 0.98), Gain(0.25, 0.57, 0.92)),
    },
    "tma": {
        "stream": (Gain(0.23, 0.61, 1.0), Gain(0.23, 0.59, 0.99), Gain(0.2, 0.62, 0.98)),
        "product": (Gain(0.23, 0.62, 1.2), Gain(0.23, 0.59, 1.14), Gain(0.21, 0.51, 0.97)),
        "tensor": (Gain(0.21, 0.48, 0.8), Gain(0.21, 0.42, 0.72), Gain(0.14, 0.41, 0.74)),
    },
    "unrolled": {
        "stream": (Gain(0.41, 0.91, 1.02), Gain(0.4, 0.85, 1.0), Gain(0.25, 0.85, 1.0)),
        "product": (Gain(0.4, 0.89, 1.1), Gain(0.39, 0.86, 1.02), Gain(0.26, 0.74, 0.99)),
        "tensor": (Gain(0.27, 0.84, 1.01), Gain(0.25, 0.74, 1.0), Gain(0.25, 0.74, 0.99)),
    },
    "vectorised_access": {
        "stream": (Gain(0.41, 0.97, 1.09), Gain(0.4, 0.96, 1.02), Gain(0.24, 0.9, 1.0)),
        "product": (Gain(0.4, 0.98, 1.2), Gain(0.37, 0.84, 1.2), Gain(0.37, 0.7, 1.1)),
        "tensor": (Gain(0.25, 0.91, 1.1), Gain(0.25, 0.81, 1.09), Gain(0.21, 0.72, 1.0)),
    },
    "warp_shuffle": {
        "stream": (Gain(0.34, 0.71, 1.0), Gain(0.3, 0.76, 0.99), Gain(0.25, 0.69, 0.96)),
        "product": (Gain(0.32, 0.74, 1.2), Gain(0.3, 0.7, 1.2), Gain(0.26, 0.48, 0.91)),
        "tensor": (Gain(0.21, 0.52, 0.99), Gain(0.22, 0.52, 0.98), Gain(0.23, 0.51, 0.95)),
    },
    "warp_specialised": {
        "stream": (Gain(0.23, 0.62, 1.0), Gain(0.23, 0.62, 0.99), Gain(0.19, 0.63, 0.98)),
        "product": (Gain(0.23, 0.63, 1.2), Gain(0.23, 0.62, 1.14), Gain(0.21, 0.51, 0.97)),
        "tensor": (Gain(0.21, 0.57, 0.86), Gain(0.21, 0.46, 0.74), Gain(0.14, 0.42, 0.75)),
    },
}
"""By mechanism and kind of kernel, from the steps most alike; "" for a mechanism that no step adds."""
