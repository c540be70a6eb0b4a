"""Large host arrays, made piece by piece by several threads: one alone takes longer than a GPU with their test."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PIECE = 1 << 22
"""Elements of a piece; a smaller array is made at once."""
THREADS = min(16, os.cpu_count() or 1)

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""So many numbers of a generator, as float32."""


def drawn(seeds: list[int], shape: tuple[int, ...], draw: Draw) -> np.ndarray:
    """Random float32 numbers; each further piece has a generator of its own, so that threads change nothing."""
    values = np.empty(shape, np.float32)
    flat = values.reshape(-1)

    def fill(piece: int) -> None:
        part = flat[piece * PIECE : (piece + 1) * PIECE]
        part[...] = draw(np.random.default_rng([*seeds, piece] if piece else seeds), part.size)

    _each(fill, flat.size)
    return values


def widened(array: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """`convert` of an array, element by element, as float64."""
    values = np.empty(array.shape, np.float64)
    before, flat = np.ascontiguousarray(array).reshape(-1), values.reshape(-1)

    def fill(piece: int) -> None:
        part = slice(piece * PIECE, (piece + 1) * PIECE)
        flat[part] = convert(before[part])

    _each(fill, flat.size)
    return values


def _each(work: Callable[[int], None], elements: int) -> None:
    pieces = range(-(-elements // PIECE))
    if len(pieces) < 2:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(work, pieces):
            pass
