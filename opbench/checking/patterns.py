"""Recognise patterns in the positions and values of wrong elements, each with its usual cause.

Each pattern is a function of the evidence. It returns a pattern only if right and wrong elements fit it and no
weaker explanation would suffice. A pattern is a hint in addition to the verdict, never a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WARP_SIZE = 32
MIN_WRONG_ELEMENTS = 3
"""With fewer wrong elements than this, chance could form any pattern."""
RELATIVE_TOLERANCE = 1e-4
"""Relative difference up to which two results count as equal."""
ALONE = 5e-6
"""The limit for fewer than `MIN_WRONG_ELEMENTS`, as one of many partial sums could be close by chance."""
FULL_TILES = 4
"""Least number of right tiles before a wrong tail: in a tiny output the last elements may be wrong by chance."""
TILE_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Possible sizes of tiles and vectors, in addition to the block's dimensions."""
POISON_PAYLOADS = (0x7FFFFFFF, 0xFFFFFFFF)
"""float32 bit patterns of memory that was never written, which arithmetic propagates."""

Partial = Callable[[str, int, int], np.ndarray | None]
"""The reference from only a part of an axis; arguments: axis, first index, index after the last."""


@dataclass(frozen=True)
class Pattern:
    """A property that all wrong elements share, with the usual cause and its remedy."""

    name: str
    sentence: str
    remedy: str = ""


@dataclass(frozen=True)
class Evidence:
    """An output, its expected values, and facts about the launch."""

    got: np.ndarray
    """The output as float64, in its shape."""
    expected: np.ndarray
    wrong: np.ndarray
    """Whether each element is wrong."""
    unwritten: np.ndarray
    """Whether each element was never written; a subset of `wrong`."""
    source: str = ""
    """The text of the kernel's file."""
    block: tuple[int, ...] = ()
    """Block size along x, y and z of the launch that writes the output."""
    reduced: Mapping[str, int] | None = None
    """Axes of the inputs that the output lacks, with their sizes."""
    partial: Partial | None = None
    bits: np.ndarray | None = None
    """The stored bits of a float32 output as u32; None for other types."""

    @property
    def tiles(self) -> list[int]:
        """Return the possible tile sizes: the block's dimensions first, then from large to small."""
        sides = [side for side in (*self.block, int(np.prod(self.block or (1,)))) if side > 1]
        return list(dict.fromkeys([*sides, *sorted(TILE_SIZES, reverse=True)]))


def pattern_of(evidence: Evidence) -> Pattern | None:
    """Return the first pattern that fits; None if the wrong elements form no known pattern."""
    if not evidence.wrong.any():
        return None
    return next((match for pattern in PATTERNS if (match := pattern(evidence))), None)


def poisoned_nan(e: Evidence) -> Pattern | None:
    """Detect NaN with the bits of memory that was never written."""
    if e.bits is None:
        return None
    nan = np.isnan(e.got) & ~e.unwritten & np.isfinite(e.expected)
    if not nan.any() or not np.isin(e.bits[nan], POISON_PAYLOADS).all():
        return None
    return Pattern(
        "uninitialised-nan",
        "This NaN has the bit pattern of memory that was never written: a value was read before it was stored.",
        "Initialise the memory or the variable before it is read.",
    )


def one_element(e: Evidence) -> Pattern | None:
    """Detect that only element 0 is wrong: it is 0, or it was never written."""
    wrong = np.flatnonzero(e.wrong)
    if e.got.size <= MIN_WRONG_ELEMENTS or wrong.size != 1 or wrong[0] != 0:
        return None
    unwritten = bool(e.unwritten.flat[0])
    if not unwritten and e.got.flat[0] != 0:
        return None
    state = "was never written" if unwritten else "is 0"
    return Pattern(
        "first-element",
        f"Only element 0 is wrong, and it {state}: no thread stores it.",
        "Let the thread of index 0 take part: look for a condition such as i > 0, or a count that begins at 1.",
    )


def lane_zero(e: Evidence) -> Pattern | None:
    """Detect that only lane 0 of every 32 elements is right, in a kernel with a __shfl_down."""
    if "__shfl_down" not in e.source or e.got.shape[-1] < 2 or e.unwritten.any():
        return None
    lane = np.broadcast_to(np.arange(e.got.shape[-1]) % WARP_SIZE, e.got.shape)
    return _only_first_right(
        e,
        lane,
        Pattern(
            "lane-zero",
            "Lane 0 is right, lanes 1 to 31 are not: the result of `__shfl_down_sync` is not broadcast.",
            "Broadcast lane 0's result with __shfl_sync(mask, value, 0), or reduce with __shfl_xor_sync.",
        ),
    )


def thread_zero(e: Evidence) -> Pattern | None:
    """Detect that only the first thread of every block is right, in a kernel with shared memory."""
    threads = int(np.prod(e.block)) if e.block else 0
    if threads <= WARP_SIZE or "__shared__" not in e.source or e.got.shape[-1] <= WARP_SIZE or e.unwritten.any():
        return None
    thread = np.broadcast_to(np.arange(e.got.shape[-1]) % threads, e.got.shape)
    return _only_first_right(
        e,
        thread,
        Pattern(
            "thread-zero",
            "Thread 0 of each block is right, the other threads are not: they do not have the block's result.",
            "Store the result in shared memory, and let all threads read it after __syncthreads().",
        ),
    )


def _only_first_right(e: Evidence, place: Any, pattern: Pattern) -> Pattern | None:
    first = np.equal(place, 0)
    others = np.logical_not(first)
    if np.count_nonzero(others) < MIN_WRONG_ELEMENTS or e.wrong[first].any():
        return None
    return pattern if np.count_nonzero(e.wrong & others) >= 0.9 * np.count_nonzero(others) else None


def wrong_tail(e: Evidence) -> Pattern | None:
    """Detect that the wrong elements are those after the last full tile of one axis."""
    for axis, size in reversed(list(enumerate(e.got.shape))):
        along = np.moveaxis(e.wrong, axis, 0).reshape(size, -1)
        bad = np.asarray(along.any(axis=1))
        if not bad.any() or bad.all() or not along[bad].all():
            continue
        first = int(np.argmax(bad))
        if not bad[first:].all():
            continue
        tile = next((t for t in e.tiles if FULL_TILES * t <= first and size % t and first == size - size % t), 0)
        if not tile:
            continue
        which = f"from index {first} on" if e.got.ndim == 1 else f"from index {first} of axis {axis} on"
        state = "were never written" if e.unwritten[e.wrong].all() else "are wrong"
        return Pattern(
            "tail",
            f"Exactly the elements {which} {state}: those beyond the last full tile of {tile} (the size is {size}).",
            f"Round the number of tiles up, and guard the accesses of the last one, or add a loop for the last "
            f"{size % tile} elements.",
        )
    return None


def transposed(e: Evidence) -> Pattern | None:
    """Detect that rows and columns of the last two axes are exchanged."""
    if e.got.ndim < 2 or e.unwritten.any():
        return None
    rows, cols = e.got.shape[-2:]
    if min(rows, cols) < 2 or np.count_nonzero(e.wrong) < MIN_WRONG_ELEMENTS:
        return None
    turned = np.swapaxes(e.expected, -1, -2).reshape(e.got.shape)  # in memory order
    if not _equal_up_to_rounding(e.got, turned) or _equal_up_to_rounding(e.expected, turned):
        return None
    return Pattern(
        "transposed",
        "The result is transposed: every element [i][j] holds the value of [j][i].",
        "Exchange the two indices where the output is written, or where the operand is read.",
    )


def all_zero(e: Evidence) -> Pattern | None:
    """Detect that every element is 0 although the reference is not."""
    if e.got.size < MIN_WRONG_ELEMENTS or e.got.any() or not e.wrong.all():
        return None
    return Pattern(
        "all-zero",
        "Every element of the output is 0.",
        "Look for a store that is never reached, a sum that is never added to, or a zeroing after the kernel.",
    )


def repeated_element(e: Evidence) -> Pattern | None:
    """Detect that all elements equal element 0 although the reference's differ."""
    first = e.got.flat[0]
    if e.got.size < 2 * MIN_WRONG_ELEMENTS or not np.isfinite(first) or not (e.got == first).all() or e.wrong.flat[0]:
        return None
    if np.count_nonzero(e.wrong) < e.got.size // 2:
        return None
    return Pattern(
        "repeated",
        "Every element holds the result of element 0.",
        "Let the index of the input depend on the index of the output.",
    )


def constant_multiple(e: Evidence) -> Pattern | None:
    """Detect that every wrong element is the expected value times the same whole number."""
    wrong = e.wrong & (e.expected != 0)
    if np.count_nonzero(wrong) < MIN_WRONG_ELEMENTS or not np.isfinite(e.got[wrong]).all():
        return None
    ratios = e.got[wrong] / e.expected[wrong]
    ratio = float(np.median(ratios))
    whole = round(ratio)
    if not 2 <= whole <= 4096 or not (np.abs(ratios - whole) <= 1e-3 * whole).all():
        return None
    return Pattern(
        "multiple",
        f"Every wrong element is {whole} times the expected value: the same terms are added {whole} times.",
        "Look for blocks or threads that compute the same terms, or for a sum that is not reset.",
    )


def partial_sum(e: Evidence) -> Pattern | None:
    """Detect that the result sums only a part of an axis: only one tile or block, or all but one."""
    if e.partial is None or e.unwritten.any() or not np.isfinite(e.got).all():
        return None
    for axis, size in (e.reduced or {}).items():
        for start, end in _tile_ranges(size, e.tiles):
            pattern = e.partial(axis, start, end)
            if pattern is not None and pattern.shape == e.got.shape and _same_sum(e, pattern):
                return Pattern(
                    "partial",
                    f"The result holds only the terms {axis} = {start} to {end - 1} of {size}.",
                    "Add the parts of all tiles, warps and blocks: look for a sum that is overwritten or a loop that "
                    "ends early.",
                )
    return None


def _tile_ranges(size: int, tiles: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that a partial sum may cover, for each tile size: the first tile, the last, and all others."""
    seen = set()
    for tile in tiles:
        full = size - size % tile or size - tile
        for start, end in ((full, size), (0, full), (0, tile), (tile, size), (0, size - tile)):
            if 0 <= start < end <= size and end - start < size and (start, end) not in seen:
                seen.add((start, end))
                yield start, end


def _same_sum(e: Evidence, other: np.ndarray) -> bool:
    """Return whether the wrong elements equal another result, which clearly differs from the expected one."""
    got, other, expected = e.got[e.wrong], other[e.wrong], e.expected[e.wrong]
    size = float(np.linalg.norm(other))
    near = RELATIVE_TOLERANCE if got.size >= MIN_WRONG_ELEMENTS else ALONE
    return bool(np.linalg.norm(got - other) <= near * size and np.linalg.norm(expected - other) > 100 * near * size)


def _equal_up_to_rounding(left: np.ndarray, right: np.ndarray) -> bool:
    """Return whether two results differ only by rounding."""
    with np.errstate(invalid="ignore"):
        return bool(
            np.allclose(
                left,
                right,
                rtol=RELATIVE_TOLERANCE,
                atol=RELATIVE_TOLERANCE * float(np.abs(right).mean()),
                equal_nan=True,
            )
        )


PATTERNS = (
    poisoned_nan,
    one_element,
    all_zero,
    lane_zero,
    thread_zero,
    wrong_tail,
    transposed,
    repeated_element,
    constant_multiple,
    partial_sum,
)
"""All patterns, from the most to the least specific."""
