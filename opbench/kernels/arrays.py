"""Large host arrays, filled in pieces by several threads, because one thread would be slower than the GPU."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

CHUNK_ELEMENTS = 1 << 22
"""Elements of a chunk that has its own random generator; a smaller array is one chunk."""
CACHED_ELEMENTS = 1 << 18
"""Elements of a chunk to convert, so that intermediate results stay in a core's cache."""
MAX_THREADS = min(16, len(os.sched_getaffinity(0)))

Draw = Callable[["np.random.Generator", int], np.ndarray]
"""A function that draws that many numbers from a generator."""


def draw_random(seeds: list[int], shape: tuple[int, ...], draw: Draw, dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return random numbers as `dtype`; each chunk has its own generator, so the number of threads does not matter."""
    values = np.empty(shape, dtype)
    flat_values = values.reshape(-1)

    def fill(index: int) -> None:
        chunk = flat_values[index * CHUNK_ELEMENTS : (index + 1) * CHUNK_ELEMENTS]
        chunk[...] = draw(np.random.default_rng([*seeds, index] if index else seeds), chunk.size)

    run_parallel(fill, -(-flat_values.size // CHUNK_ELEMENTS))
    return values


def by_pieces(array: np.ndarray, convert: Callable[[np.ndarray], np.ndarray], dtype: DTypeLike) -> np.ndarray:
    """Apply an elementwise function in several threads and return `dtype`; CuPy arrays stay on their device."""
    if not isinstance(array, np.ndarray):
        return convert(array).astype(dtype, copy=False)
    values = np.empty(array.shape, dtype)
    source, flat_values = np.ascontiguousarray(array).reshape(-1), values.reshape(-1)

    def fill(index: int) -> None:
        chunk = slice(index * CACHED_ELEMENTS, (index + 1) * CACHED_ELEMENTS)
        flat_values[chunk] = convert(source[chunk])

    run_parallel(fill, -(-flat_values.size // CACHED_ELEMENTS))
    return values


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round numbers to bf16 and return their 16 bits; a float64 is rounded twice, but inputs are float32."""
    bits = values.astype(np.float32, order="C", copy=False).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Convert 16-bit bf16 patterns to float32 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


FLOAT8: Mapping[str, tuple[int, int, int]] = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}
"""For each 8-bit float type: bits of its fraction, bias of its exponent, and the bits of its largest number.

e4m3 has no infinity, and NaN as 0x7f and 0xff; e5m2 has both, as IEEE 754 numbers do.
"""


def to_float8(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round numbers to e4m3 or e5m2 (nearest, ties to even, at most the largest number) and return their 8 bits."""
    fraction_bits, bias, largest_bits = FLOAT8[dtype]
    exact = values.astype(np.float64)
    largest = np.ldexp(
        2.0**fraction_bits + largest_bits % 2**fraction_bits, (largest_bits >> fraction_bits) - bias - fraction_bits
    )
    magnitude = np.where(np.isnan(exact), 0.0, np.minimum(abs(exact), largest))
    exponent = np.frexp(np.maximum(magnitude, 2.0 ** (1 - bias)))[1] - 1
    # A fraction that is rounded up to a power of two carries 1 into the exponent, which is stored before the fraction.
    bits = (
        np.rint(np.ldexp(magnitude, fraction_bits - exponent)).astype(np.int32)
        + (exponent + bias - 1) * 2**fraction_bits
    )
    bits = np.where(np.isnan(exact), 0x7F, bits) + np.where(np.signbit(exact), 0x80, 0)
    return bits.astype(np.uint8)


def from_float8(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Convert 8-bit patterns of e4m3 or e5m2 to float32 numbers."""
    fraction_bits, bias, largest_bits = FLOAT8[dtype]
    magnitude = bits.astype(np.uint32) & 0x7F
    # Moved to the place of a float32's exponent and fraction, the bits are the number times a power of two.
    values = (magnitude << (23 - fraction_bits)).view(np.float32) * np.float32(2.0 ** (127 - bias))
    values = np.where(magnitude > largest_bits, np.float32(np.nan), values)
    if dtype == "e5m2":
        values = np.where(magnitude == largest_bits + 1, np.float32(np.inf), values)
    return np.where(bits >= 0x80, -values, values)


MAX_SLICES, WIDE_BITS = 8, 72
"""Most slices of a float64, and the bits below each row's largest number that all slices together contain."""


def matrix_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b; for long doubles, multiply slices whose products float64 and BLAS compute exactly.

    NumPy has no fast product of long doubles. Each row of `a` and each column of `b` is split into slices with
    so few bits that float64 holds the products of two slices and their sums exactly (Ozaki et al., Numerical
    Algorithms, 2012). Only the sum over pairs of slices is rounded, in long double. Bits more than `WIDE_BITS`
    below a row's largest number are ignored.
    """
    if a.dtype != np.longdouble or not np.all(np.isfinite(a)) or not np.all(np.isfinite(b)):
        product: np.ndarray = a @ b
        return product
    bits = (53 - math.ceil(math.log2(max(2, a.shape[-1])))) // 2
    count = min(MAX_SLICES, -(-WIDE_BITS // bits))
    row_slices, column_slices = _digit_slices(a, -1, bits, count), _digit_slices(b, -2, bits, count)
    total = np.zeros((a.shape[0], b.shape[1]), np.longdouble)
    for depth in reversed(range(count)):  # the smallest terms are added first, so that no digits of them are lost
        for i in range(max(0, depth - len(column_slices) + 1), min(depth + 1, len(row_slices))):
            total += row_slices[i] @ column_slices[depth - i]
    return total


def _digit_slices(array: np.ndarray, axis: int, bits: int, count: int) -> list[np.ndarray]:
    """Split float64 numbers into slices of `bits` bits below the largest number along an axis."""
    remainder, slices = array.astype(np.float64), []
    _, exponent = np.frexp(np.abs(remainder).max(axis=axis, keepdims=True))
    for slice_number in range(1, count + 1):
        spacing = np.ldexp(1.0, np.maximum(exponent - slice_number * bits, -1074))  # the value of the slice's last bit
        digits = np.rint(remainder / spacing) * spacing
        slices.append(digits)
        remainder = remainder - digits
        if not remainder.any():
            break
    return slices


MEMORY_FACTOR = 8
"""Free GPU memory that a reference needs, as a multiple of the inputs' bytes."""


def compute_on_gpu(function: Callable[..., object], inputs: Mapping[str, np.ndarray]) -> Any:
    """Compute `function` of float64 arrays with CuPy; return None if that fails.

    cuBLAS computes products in float64. Results are copied to NumPy arrays, alone or by name, so that a kernel
    under test cannot corrupt them later.
    """
    cupy = cupy_module()
    if cupy is None:
        return None
    try:
        if cupy.cuda.runtime.memGetInfo()[0] < MEMORY_FACTOR * sum(array.nbytes for array in inputs.values()):
            return None
        result = function(**{name: cupy.asarray(array) for name, array in inputs.items()})
        if isinstance(result, dict):
            return {name: cupy.asnumpy(array) for name, array in result.items()}
        return cupy.asnumpy(result)
    except Exception:  # CuPy lacks a function or memory: the host computes the result
        return None
    finally:
        cupy.get_default_memory_pool().free_all_blocks()


@functools.cache
def cupy_module() -> ModuleType | None:
    """Return CuPy if it is installed and sees a device, else None."""
    try:
        import cupy

        return cupy if cupy.cuda.runtime.getDeviceCount() else None
    except Exception:
        return None


def run_parallel(function: Callable[[int], None], count: int, threads: int = MAX_THREADS) -> None:
    """Call a function with each number below `count`, in several threads; NumPy computes outside Python's lock."""
    if min(count, threads) < 2:
        for index in range(count):
            function(index)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(function, range(count)):
            pass
