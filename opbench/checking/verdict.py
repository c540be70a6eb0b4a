"""Judge outputs: right or wrong, the size of the error, and where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from opbench.backend.excerpt import source_line
from opbench.backend.findings import Finding
from opbench.backend.rules import NOT_FINITE, OUT_OF_BOUNDS, UNWRITTEN_OUTPUT, WRONG_RESULT
from opbench.checking.patterns import Pattern
from opbench.kernels.arrays import MAX_THREADS
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import INTEGERS, Arrays, Tolerance, from_storage, to_storage
from opbench.source.precision import UNIT_ROUNDOFF

CHUNK_ELEMENTS = 1 << 20
"""Elements that a thread compares at a time, which limits the memory of a comparison of gigabytes."""
BLOCK_ELEMENTS = 1 << 15
"""Elements processed together, so that intermediate results stay in a core's cache."""
MIN_NORM_ELEMENTS = 64
"""Least number of elements for a meaningful norm error."""
FEW_ROUNDINGS = 64
"""An error of at most this many roundings may mean that the tolerance is too small, not that the kernel is wrong."""
MAX_FLOAT32_ERROR = 1e-4
"""Relative error of a double up to which rounding to float is the likely cause."""


@dataclass(frozen=True)
class Mismatch:
    """The output element that exceeds its tolerance most."""

    kind: str
    """"unwritten", "nan", "value", "norm" or "integers"."""
    output: str
    index: tuple[int, ...] | None
    got: float | None
    want: float | None
    allowed: float | None
    count: int
    """Number of wrong elements."""
    size: int
    dtype: str = "f32"

    @property
    def place(self) -> str:
        """Return the element as text, such as "out[6,122]"."""
        return f"{self.output}[{','.join(map(str, self.index))}]" if self.index is not None else self.output

    def sentence(self) -> str:
        """Describe the mismatch in one line."""
        if self.kind == "norm":
            return f"relative error of {self.output} is {self.got:.2g}, allowed {self.allowed:.2g}"
        share = f"{self.count} of {self.size} elements"
        if self.kind == "unwritten":
            return f"{self.place} was never written ({share})"
        got, want = _distinct_digits(self.got or 0.0, self.want or 0.0)
        allowed = f", allowed ±{self.allowed:.2g}" if self.allowed is not None else ""
        if self.kind == "integers":
            allowed = " exactly, as the inputs are small whole numbers"
        return f"{self.place}: got {got}, expected {want}{allowed} ({share})"

    def finding(self, file: str, line: int, pattern: Pattern | None = None) -> Finding:
        """Return the mismatch as a finding at the kernel that computed it; `pattern` describes all wrong elements."""
        rule = {"unwritten": UNWRITTEN_OUTPUT, "nan": NOT_FINITE}.get(self.kind, WRONG_RESULT)
        return Finding(
            rule.kind,
            self.sentence(),
            file,
            line,
            buffer=self.output,
            source=source_line(file, line),
            details=(*self._explain_rounding(), *((pattern.sentence,) if pattern else ())),
            pattern=pattern.name if pattern else "",
            remedy=pattern.remedy if pattern else "",
        )

    def _explain_rounding(self) -> tuple[str, ...]:
        """Return the likely cause of a small error: a few roundings, or float32 arithmetic in a double result."""
        if self.kind != "value" or self.got is None or self.want is None or not self.allowed:
            return ()
        largest = max(abs(self.got), abs(self.want))
        dtype = "f64" if self.dtype == "f64" else "f32"
        relative = abs(self.got - self.want) / largest if largest else 0.0
        roundings = relative / UNIT_ROUNDOFF[dtype]
        if dtype == "f64" and roundings > FEW_ROUNDINGS and relative <= MAX_FLOAT32_ERROR:
            return (
                f"The relative difference is {relative:.1g}, as of numbers rounded to float. Look for a float "
                "variable, a constant such as 0.5f, or a function such as expf in the kernel.",
            )
        if not 0 < roundings <= FEW_ROUNDINGS:
            return ()
        return (
            f"The difference is {roundings:.0f} roundings of float{dtype[1:]}. If the kernel cannot be more exact, the "
            "operator's reduction() or magnitude_outputs() understates its terms (see variants/softmax/operator.py).",
        )


def _distinct_digits(got: float, want: float) -> tuple[str, str]:
    """Format both numbers with at least six digits, and with enough digits to show the difference."""
    for digits in range(6, 18):
        shown = f"{got:.{digits}g}", f"{want:.{digits}g}"
        if shown[0] != shown[1]:
            break
    return shown


@dataclass(frozen=True)
class Judgement:
    """The errors of one output relative to its reference."""

    error: float
    """Largest |out - reference| / magnitude."""
    norm_error: float
    mismatch: Mismatch | None


def judge(
    name: str,
    dtype: str,
    out: np.ndarray,
    reference: np.ndarray,
    magnitude: np.ndarray | None,
    tolerance: Tolerance,
    kind: str = "value",
    scale: float = 1.0,
) -> Judgement:
    """Compare one stored output with its float64 reference; `kind` is "integers" for the exact run.

    Reference and magnitude are multiplied by `scale`, a power of two. An element may deviate by tolerance.elementwise *
    magnitude; without a magnitude it must equal the reference, rounded to the output's dtype, bit for bit. Several
    threads compare pieces of the output.
    """
    flat = out.reshape(-1)
    references = reference.reshape(-1)
    magnitudes = None if magnitude is None else magnitude.reshape(-1)

    def compare_chunk(start: int) -> _ChunkComparison:
        chunk = slice(start, start + CHUNK_ELEMENTS)
        want = _scaled(scale, references[chunk])
        allowed = None if magnitudes is None else _scaled(scale, magnitudes[chunk])
        return _compare_chunk(dtype, flat[chunk], want, allowed, tolerance)

    starts = range(0, flat.size, CHUNK_ELEMENTS)
    if len(starts) > 1:
        with ThreadPoolExecutor(MAX_THREADS) as pool:
            pieces = list(zip(starts, pool.map(compare_chunk, starts), strict=True))
    else:  # starting a thread takes longer than comparing most pieces
        pieces = [(start, compare_chunk(start)) for start in starts]
    unwritten, nan = ([(start, p.unwritten) for start, p in pieces], [(start, p.nan) for start, p in pieces])
    for fault_kind, hits_by_start in (("unwritten", unwritten), ("nan", nan)):
        if hits := [
            (start + position_and_count[0], position_and_count[1])
            for start, position_and_count in hits_by_start
            if position_and_count
        ]:
            position, count = hits[0][0], sum(n for _, n in hits)
            got = None if fault_kind == "unwritten" else float(from_storage(flat[position : position + 1], dtype)[0])
            return _faulty_judgement(
                fault_kind, name, out.shape, (position, count), got, scale * float(references[position])
            )
    return _combine_chunks(name, dtype, out, references, magnitudes, tolerance, kind, scale, pieces)


def _scaled(scale: float, values: np.ndarray) -> np.ndarray:
    """Return the values times a scale; the values themselves for a scale of 1."""
    return values if scale == 1.0 else scale * values


def _combine_chunks(
    name: str,
    dtype: str,
    out: np.ndarray,
    reference: np.ndarray,
    magnitude: np.ndarray | None,
    tolerance: Tolerance,
    kind: str,
    scale: float,
    pieces: list[tuple[int, _ChunkComparison]],
) -> Judgement:
    """Combine the comparisons of one output's pieces into its judgement."""
    square_error = sum(p.square_error for _, p in pieces)
    square_reference = sum(p.square_reference for _, p in pieces)
    norm = float(np.sqrt(square_error / square_reference)) if square_reference > 0 else float(np.sqrt(square_error))
    worst = max(p.worst for _, p in pieces)
    outside = sum(p.outside_count for _, p in pieces)
    mismatch = None
    if outside:
        start, worst_piece = max(pieces, key=lambda item: item[1].excess)
        position = start + worst_piece.worst_position
        got = float(from_storage(out.reshape(-1)[position : position + 1], dtype)[0])
        allowed = 0.0 if magnitude is None else float(tolerance.elementwise * scale * magnitude[position])
        want = scale * float(reference[position])
        mismatch = Mismatch(
            kind, name, _unravel_index(position, out.shape), got, want, allowed, outside, out.size, dtype
        )
    elif norm > tolerance.norm and not tolerance.exact and out.size >= MIN_NORM_ELEMENTS:
        mismatch = Mismatch("norm", name, None, norm, None, tolerance.norm, out.size, out.size)
    return Judgement(worst, norm, mismatch)


@dataclass(frozen=True)
class _ChunkComparison:
    """The comparison of one chunk of an output with its reference; positions are relative to the chunk's start."""

    unwritten: tuple[int, int] | None = None
    nan: tuple[int, int] | None = None
    worst: float = 0.0
    outside_count: int = 0
    excess: float = 0.0
    worst_position: int = 0
    square_error: float = 0.0
    square_reference: float = 0.0


def _compare_chunk(
    dtype: str, out: np.ndarray, want: np.ndarray, magnitude: np.ndarray | None, tolerance: Tolerance
) -> _ChunkComparison:
    """Compare a chunk of an output with its expected values; without a magnitude, bit for bit."""
    faultless = None
    if magnitude is not None and dtype not in INTEGERS:
        faultless = _compare_finite(dtype, out, want, magnitude, tolerance.elementwise)
    if faultless is not None:
        return faultless
    bits = out.view(f"u{out.itemsize}")
    if magnitude is None:
        stored = to_storage(want, dtype)
        if np.array_equal(bits, stored.view(bits.dtype)):
            return _ChunkComparison(square_reference=1.0)
        want = from_storage(stored, dtype).astype(np.float64)
    got = from_storage(out, dtype).astype(np.float64)
    # For whole numbers the poison pattern is also a valid number: -1 is right where -1 is expected.
    poisoned = bits == np.iinfo(bits.dtype).max
    unwritten = _first_true(poisoned & (got != want) if dtype in INTEGERS else poisoned)
    if unwritten:
        return _ChunkComparison(unwritten=unwritten)
    nan = _first_true(~np.isfinite(got) & np.isfinite(want))
    if nan:
        return _ChunkComparison(nan=nan)
    error = _absolute_errors(got, want, tolerance.keeps_nan)
    scale = np.abs(want) if magnitude is None else magnitude
    excess = error if magnitude is None else error - tolerance.elementwise * magnitude
    outside = int(np.count_nonzero(excess > 0))
    relative = np.divide(error, scale, out=np.zeros_like(error), where=(scale > 0) & np.isfinite(scale))
    at = int(excess.argmax())
    want = np.where(np.isfinite(want), want, 0.0)
    return _ChunkComparison(
        worst=float(relative.max()),
        outside_count=outside,
        excess=float(excess[at]),
        worst_position=at,
        square_error=_squared_norm(error),
        square_reference=_squared_norm(want),
    )


def _compare_finite(
    dtype: str, out: np.ndarray, want: np.ndarray, magnitude: np.ndarray, elementwise: float
) -> _ChunkComparison | None:
    """Compare a piece that has no fault in as few passes as possible; return None if it may have a fault."""
    square_error, square_reference, worst = 0.0, 0.0, 0.0
    scratch = np.empty((2, min(BLOCK_ELEMENTS, out.size)))
    for start in range(0, out.size, BLOCK_ELEMENTS):
        wanted, allowance = want[start : start + BLOCK_ELEMENTS], magnitude[start : start + BLOCK_ELEMENTS]
        error, relative = scratch[:, : wanted.size]
        with np.errstate(all="ignore"):
            np.subtract(from_storage(out[start : start + BLOCK_ELEMENTS], dtype), wanted, out=error)
            np.abs(error, out=error)
            square_error += _squared_norm(error)
            square_reference += _squared_norm(wanted)
            np.divide(error, allowance, out=relative)
            worst = max(worst, float(np.fmax.reduce(relative, initial=0.0)))  # fmax ignores 0/0, which is no error
            np.multiply(allowance, -elementwise, out=relative)
            relative += error
            # An element that was not written is NaN, so the sum is not finite; the same holds for infinities.
            if not (math.isfinite(square_error) and math.isfinite(worst) and relative.max() <= 0):
                return None
    return _ChunkComparison(worst=worst, square_error=square_error, square_reference=square_reference)


def _squared_norm(values: np.ndarray) -> float:
    """Return the sum of the squares; not by BLAS, whose order of additions depends on its number of threads."""
    return float(np.einsum("i,i->", values, values))


def _absolute_errors(got: np.ndarray, want: np.ndarray, keeps_nan: bool) -> np.ndarray:
    """Return each element's absolute error: infinity if an expected infinity, or an expected NaN to keep, is missing.

    It is 0 if NaN is expected and need not be kept.
    """
    with np.errstate(invalid="ignore"):
        error: np.ndarray = np.abs(got - want)
    if np.isfinite(error).all():
        return error
    error[(got == want) | (np.isnan(want) & (np.isnan(got) | (not keeps_nan)))] = 0.0
    error[np.isnan(error)] = np.inf
    return error


def _first_true(mask: np.ndarray) -> tuple[int, int] | None:
    """Return the position of the first true element and the number of true elements; None without a true element."""
    count = int(np.count_nonzero(mask))
    return (int(np.argmax(mask)), count) if count else None


def _faulty_judgement(
    kind: str, name: str, shape: tuple[int, ...], position_and_count: tuple[int, int], got: float | None, want: float
) -> Judgement:
    """Return the judgement on an output with unwritten or NaN elements: the position of the first, and their count."""
    size = int(np.prod(shape))
    mismatch = Mismatch(
        kind, name, _unravel_index(position_and_count[0], shape), got, want, None, position_and_count[1], size
    )
    return Judgement(float("inf"), float("inf"), mismatch)


def _unravel_index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


def changed_input(before: np.ndarray, after: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first element whose bits differ, else None."""
    view = f"u{before.itemsize}"
    if np.array_equal(before.view(view), after.view(view)):
        return None
    flat = int(np.argmax(before.reshape(-1).view(view) != after.reshape(-1).view(view)))
    return _unravel_index(flat, before.shape)


def guard_finding(buffer: str, offset: int, nbytes: int) -> Finding:
    """Return a finding for a write outside of a buffer; the nearest changed byte is at `offset`."""
    where = "before the start" if offset < 0 else "past the end"
    message = f"write {where} of buffer '{buffer}', which has {nbytes} bytes; the nearest changed byte is {offset}"
    return Finding(OUT_OF_BOUNDS.kind, message, buffer=buffer, offset=offset)


def sums_stay_exact(problem: Operator, inputs: Arrays) -> bool:
    """Return whether all partial sums of the run on integers are below 2**24, so that float32 sums are exact."""
    added = [from_storage(inputs[t.name], t.dtype) for t in problem.input_tensors() if problem.is_number(t)]
    largest = max((max(-float(a.min()), float(a.max())) for a in added), default=0.0)
    return problem.integers_exact and largest**2 * float(np.sqrt(problem.reduction())) * 8 < 2.0**24


def is_dyadic(reference: Arrays) -> bool:
    """Return whether all results are multiples of 2**-12, as those of whole numbers are without roots or division."""
    return all(bool(np.all(np.mod(array * 2.0**12, 1.0) == 0)) for array in reference.values())


def summarise(judgements: Sequence[Judgement]) -> tuple[float | None, float | None]:
    """Return the largest elementwise and norm error of several outputs; None for an error that is not finite."""
    largest = max((p.error for p in judgements), default=0.0), max((p.norm_error for p in judgements), default=0.0)
    return largest[0] if np.isfinite(largest[0]) else None, largest[1] if np.isfinite(largest[1]) else None
