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
STRICT_RELATIVE_TOLERANCE = 5e-6
"""The relative difference for fewer than `MIN_WRONG_ELEMENTS` elements: one of many sums may be close by chance."""
FULL_TILES = 4
"""Least number of right tiles before a wrong tail: in a tiny output the last elements may be wrong by chance."""
TILE_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Possible sizes of tiles and vectors, in addition to the block's dimensions."""
POISON_PAYLOADS = (0x7FFFFFFF, 0xFFFFFFFF)
"""float32 bit patterns of memory that was never written, which arithmetic propagates."""

PartialReference = Callable[[str, int, int], np.ndarray | None]
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

    output: np.ndarray
    """The output as float64, in its shape."""
    expected: np.ndarray
    is_wrong: np.ndarray
    """Whether each element is wrong."""
    is_unwritten: np.ndarray
    """Whether each element was never written; a subset of `is_wrong`."""
    source: str = ""
    """The text of the kernel's file."""
    block: tuple[int, ...] = ()
    """Block size along x, y and z of the launch that writes the output."""
    reduced_axes: Mapping[str, int] | None = None
    """Axes of the inputs that the output lacks, with their sizes."""
    partial_reference: PartialReference | None = None
    bits: np.ndarray | None = None
    """The stored bits of a float32 output as u32; None for other types."""

    @property
    def tiles(self) -> list[int]:
        """Return the possible tile sizes: the block's dimensions first, then from large to small."""
        sides = [side for side in (*self.block, int(np.prod(self.block or (1,)))) if side > 1]
        return list(dict.fromkeys([*sides, *sorted(TILE_SIZES, reverse=True)]))


def pattern_of(evidence: Evidence) -> Pattern | None:
    """Return the first pattern that fits; None if the wrong elements form no known pattern."""
    if not evidence.is_wrong.any():
        return None
    return next((match for pattern in PATTERNS if (match := pattern(evidence))), None)


def poisoned_nan(evidence: Evidence) -> Pattern | None:
    """Detect NaN with the bits of memory that was never written."""
    if evidence.bits is None:
        return None
    nan = np.isnan(evidence.output) & ~evidence.is_unwritten & np.isfinite(evidence.expected)
    if not nan.any() or not np.isin(evidence.bits[nan], POISON_PAYLOADS).all():
        return None
    return Pattern(
        "uninitialised-nan",
        "This NaN has the bit pattern of memory that was never written: a value was read before it was stored.",
        "Initialise the memory or the variable before it is read.",
    )


def one_element(evidence: Evidence) -> Pattern | None:
    """Detect that only element 0 is wrong: it is 0, or it was never written."""
    wrong = np.flatnonzero(evidence.is_wrong)
    if evidence.output.size <= MIN_WRONG_ELEMENTS or wrong.size != 1 or wrong[0] != 0:
        return None
    unwritten = bool(evidence.is_unwritten.flat[0])
    if not unwritten and evidence.output.flat[0] != 0:
        return None
    state = "was never written" if unwritten else "is 0"
    return Pattern(
        "first-element",
        f"Only element 0 is wrong, and it {state}: no thread stores it.",
        "Let the thread of index 0 take part: look for a condition such as i > 0, or a count that begins at 1.",
    )


def lane_zero(evidence: Evidence) -> Pattern | None:
    """Detect that only lane 0 of every 32 elements is right, in a kernel with a __shfl_down."""
    if "__shfl_down" not in evidence.source or evidence.output.shape[-1] < 2 or evidence.is_unwritten.any():
        return None
    lane = np.broadcast_to(np.arange(evidence.output.shape[-1]) % WARP_SIZE, evidence.output.shape)
    return _only_first_right(
        evidence,
        lane,
        Pattern(
            "lane-zero",
            "Lane 0 is right, lanes 1 to 31 are not: the result of `__shfl_down_sync` is not broadcast.",
            "Broadcast lane 0's result with __shfl_sync(mask, value, 0), or reduce with __shfl_xor_sync.",
        ),
    )


def thread_zero(evidence: Evidence) -> Pattern | None:
    """Detect that only the first thread of every block is right, in a kernel with shared memory."""
    threads = int(np.prod(evidence.block)) if evidence.block else 0
    if (
        threads <= WARP_SIZE
        or "__shared__" not in evidence.source
        or evidence.output.shape[-1] <= WARP_SIZE
        or evidence.is_unwritten.any()
    ):
        return None
    thread = np.broadcast_to(np.arange(evidence.output.shape[-1]) % threads, evidence.output.shape)
    return _only_first_right(
        evidence,
        thread,
        Pattern(
            "thread-zero",
            "Thread 0 of each block is right, the other threads are not: they do not have the block's result.",
            "Store the result in shared memory, and let all threads read it after __syncthreads().",
        ),
    )


def _only_first_right(evidence: Evidence, index_in_group: Any, pattern: Pattern) -> Pattern | None:
    """Return a pattern if index 0 of each group is right and at least 90 % of the other elements are wrong."""
    is_first = np.equal(index_in_group, 0)
    is_other = np.logical_not(is_first)
    if np.count_nonzero(is_other) < MIN_WRONG_ELEMENTS or evidence.is_wrong[is_first].any():
        return None
    return pattern if np.count_nonzero(evidence.is_wrong & is_other) >= 0.9 * np.count_nonzero(is_other) else None


def wrong_tail(evidence: Evidence) -> Pattern | None:
    """Detect that the wrong elements are those after the last full tile of one axis."""
    for axis, size in reversed(list(enumerate(evidence.output.shape))):
        along = np.moveaxis(evidence.is_wrong, axis, 0).reshape(size, -1)
        wrong_indices = np.asarray(along.any(axis=1))
        if not wrong_indices.any() or wrong_indices.all() or not along[wrong_indices].all():
            continue
        first = int(np.argmax(wrong_indices))
        if not wrong_indices[first:].all():
            continue
        tile = next((t for t in evidence.tiles if FULL_TILES * t <= first and size % t and first == size - size % t), 0)
        if not tile:
            continue
        range_text = f"from index {first} on" if evidence.output.ndim == 1 else f"from index {first} of axis {axis} on"
        state = "were never written" if evidence.is_unwritten[evidence.is_wrong].all() else "are wrong"
        return Pattern(
            "tail",
            f"Exactly the elements {range_text} {state}: those beyond the last full tile of {tile} (the size is "
            f"{size}).",
            f"Round the number of tiles up, and guard the accesses of the last one, or add a loop for the last "
            f"{size % tile} elements.",
        )
    return None


def transposed(evidence: Evidence) -> Pattern | None:
    """Detect that rows and columns of the last two axes are exchanged."""
    if evidence.output.ndim < 2 or evidence.is_unwritten.any():
        return None
    rows, cols = evidence.output.shape[-2:]
    if min(rows, cols) < 2 or np.count_nonzero(evidence.is_wrong) < MIN_WRONG_ELEMENTS:
        return None
    turned = np.swapaxes(evidence.expected, -1, -2).reshape(evidence.output.shape)  # in memory order
    if not _equal_up_to_rounding(evidence.output, turned) or _equal_up_to_rounding(evidence.expected, turned):
        return None
    return Pattern(
        "transposed",
        "The result is transposed: every element [i][j] holds the value of [j][i].",
        "Exchange the two indices where the output is written, or where the operand is read.",
    )


def all_zero(evidence: Evidence) -> Pattern | None:
    """Detect that every element is 0 although the reference is not."""
    if evidence.output.size < MIN_WRONG_ELEMENTS or evidence.output.any() or not evidence.is_wrong.all():
        return None
    return Pattern(
        "all-zero",
        "Every element of the output is 0.",
        "Look for a store that is never reached, a sum that is never added to, or a zeroing after the kernel.",
    )


def repeated_element(evidence: Evidence) -> Pattern | None:
    """Detect that all elements equal element 0 although the reference's differ."""
    first = evidence.output.flat[0]
    if (
        evidence.output.size < 2 * MIN_WRONG_ELEMENTS
        or not np.isfinite(first)
        or not (evidence.output == first).all()
        or evidence.is_wrong.flat[0]
    ):
        return None
    if np.count_nonzero(evidence.is_wrong) < evidence.output.size // 2:
        return None
    return Pattern(
        "repeated",
        "Every element holds the result of element 0.",
        "Let the index of the input depend on the index of the output.",
    )


def constant_multiple(evidence: Evidence) -> Pattern | None:
    """Detect that every wrong element is the expected value times the same whole number."""
    wrong = evidence.is_wrong & (evidence.expected != 0)
    if np.count_nonzero(wrong) < MIN_WRONG_ELEMENTS or not np.isfinite(evidence.output[wrong]).all():
        return None
    ratios = evidence.output[wrong] / evidence.expected[wrong]
    ratio = float(np.median(ratios))
    factor = round(ratio)
    if not 2 <= factor <= 4096 or not (np.abs(ratios - factor) <= 1e-3 * factor).all():
        return None
    return Pattern(
        "multiple",
        f"Every wrong element is {factor} times the expected value: the same terms are added {factor} times.",
        "Look for blocks or threads that compute the same terms, or for a sum that is not reset.",
    )


def partial_sum(evidence: Evidence) -> Pattern | None:
    """Detect that the result sums only a part of an axis: only one tile or block, or all but one."""
    if evidence.partial_reference is None or evidence.is_unwritten.any() or not np.isfinite(evidence.output).all():
        return None
    for axis, size in (evidence.reduced_axes or {}).items():
        for start, end in _tile_ranges(size, evidence.tiles):
            partial_result = evidence.partial_reference(axis, start, end)
            if (
                partial_result is not None
                and partial_result.shape == evidence.output.shape
                and _same_sum(evidence, partial_result)
            ):
                return Pattern(
                    "partial",
                    f"The result holds only the terms {axis} = {start} to {end - 1} of {size}.",
                    "Add the parts of all tiles, warps and blocks: look for a sum that is overwritten or a loop that "
                    "ends early.",
                )
    return None


def _tile_ranges(size: int, tiles: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that a partial sum may cover, for each tile size: the first tile, the last, and all others."""
    yielded = set()
    for tile in tiles:
        full_tiles_end = size - size % tile or size - tile
        for start, end in ((full_tiles_end, size), (0, full_tiles_end), (0, tile), (tile, size), (0, size - tile)):
            if 0 <= start < end <= size and end - start < size and (start, end) not in yielded:
                yielded.add((start, end))
                yield start, end


def _same_sum(evidence: Evidence, other: np.ndarray) -> bool:
    """Return whether the wrong elements equal another result, which clearly differs from the expected one."""
    output, other, expected = (
        evidence.output[evidence.is_wrong],
        other[evidence.is_wrong],
        evidence.expected[evidence.is_wrong],
    )
    norm = float(np.linalg.norm(other))
    tolerance = RELATIVE_TOLERANCE if output.size >= MIN_WRONG_ELEMENTS else STRICT_RELATIVE_TOLERANCE
    return bool(
        np.linalg.norm(output - other) <= tolerance * norm and np.linalg.norm(expected - other) > 100 * tolerance * norm
    )


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
