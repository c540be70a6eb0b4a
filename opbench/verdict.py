"""Judging outputs: right or wrong, by how much, where, and what the memory checks saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbench.backends.base import Finding
from opbench.operator import Operator, Tolerance, from_storage

Arrays = dict[str, np.ndarray]
CHUNK = 1 << 22
"""Elements compared at a time, so that a comparison of gigabytes needs little memory."""


@dataclass(frozen=True)
class Mismatch:
    """Where one output is furthest from what was allowed."""

    kind: str
    """"unwritten", "nan", "value", "norm" or "integers"."""
    output: str
    index: tuple[int, ...] | None
    got: float | None
    want: float | None
    allowed: float | None
    count: int
    """How many elements are outside."""
    size: int

    def sentence(self) -> str:
        """What is wrong, in one line."""
        place = f"{self.output}[{','.join(map(str, self.index))}]" if self.index is not None else self.output
        share = f"{self.count} of {self.size} elements"
        match self.kind:
            case "unwritten":
                return f"never written: {share}, first {place}"
            case "nan":
                return f"NaN or infinite: {share}, first {place}; want {self.want:.6g}"
            case "norm":
                return f"relative error of {self.output} is {self.got:.2g}, allowed {self.allowed:.2g}"
        what = " on small whole numbers, which must be exact" if self.kind == "integers" else ""
        return f"wrong at {place}: got {self.got:.6g}, want {self.want:.6g} (allowed ±{self.allowed:.2g}; {share}){what}"


@dataclass(frozen=True)
class Comparison:
    """One output against its reference."""

    error: float
    """Worst |out - reference| / magnitude."""
    norm_error: float
    mismatch: Mismatch | None


@dataclass(frozen=True)
class Verdict:
    """Everything that the checks of one case saw."""

    right: bool
    reason: str = ""
    worst_error: float | None = None
    """Largest |out - reference| over the magnitude of the terms."""
    allowed_error: float | None = None
    norm_error: float | None = None
    allowed_norm_error: float | None = None
    integers: str = ""
    """"exact", or why that run was left out."""
    findings: tuple[Finding, ...] = field(default=())
    launches: tuple[dict[str, Any], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The verdict for the results file; non-finite numbers become null."""
        numbers = {k: _finite(getattr(self, k)) for k in ("worst_error", "allowed_error", "norm_error", "allowed_norm_error")}
        return {"right": self.right, "reason": self.reason, **numbers, "integers": self.integers,
                "findings": [f.to_json() for f in self.findings], "launches": list(self.launches)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def compare(name: str, dtype: str, out: np.ndarray, reference: np.ndarray, magnitude: np.ndarray, tolerance: Tolerance,
            kind: str = "value") -> Comparison:
    """Compare one output as stored with its float64 reference; `kind` is "integers" for the exact run.

    The allowance of an element is tolerance.elementwise * magnitude, plus half a unit in the last place of a
    result stored in fewer bits.
    """
    flat_out, flat_ref, flat_mag = out.reshape(-1), reference.reshape(-1), magnitude.reshape(-1)
    unwritten = _first(flat_out.view(f"u{flat_out.itemsize}") == np.array(-1, f"i{flat_out.itemsize}").view(f"u{flat_out.itemsize}"))
    if unwritten is not None:
        return _broken("unwritten", name, out.shape, unwritten, None, float(flat_ref[unwritten[0]]))
    worst, worst_excess, at, outside = 0.0, 0.0, 0, 0
    square_error = square_reference = 0.0
    for start in range(0, flat_out.size, CHUNK):
        part = slice(start, start + CHUNK)
        got = from_storage(flat_out[part], dtype).astype(np.float64)
        want = flat_ref[part]
        if tolerance.exact:
            want = want.astype(flat_out.dtype).astype(np.float64) if dtype != "bf16" else want
        nan = _first(~np.isfinite(got) & np.isfinite(want))
        if nan is not None:
            position = (start + nan[0], nan[1])
            return _broken("nan", name, out.shape, position, float(got[nan[0]]), float(want[nan[0]]))
        error = np.abs(got - want)
        allowed = tolerance.elementwise * flat_mag[part]
        excess = error - allowed
        outside += int(np.count_nonzero(excess > 0))
        if excess.max() > worst_excess:
            worst_excess, at = float(excess.max()), start + int(excess.argmax())
        relative = np.divide(error, flat_mag[part], out=np.zeros_like(error), where=flat_mag[part] > 0)
        worst = max(worst, float(relative.max()))
        square_error += float(error @ error)
        square_reference += float(want @ want)
    norm = float(np.sqrt(square_error / square_reference)) if square_reference > 0 else float(np.sqrt(square_error))
    mismatch = None
    if outside:
        got_at = float(from_storage(flat_out[at : at + 1], dtype)[0])
        mismatch = Mismatch(kind, name, _index(at, out.shape), got_at, float(flat_ref[at]),
                            float(tolerance.elementwise * flat_mag[at]), outside, out.size)
    elif norm > tolerance.norm and not tolerance.exact and out.size >= 64:
        mismatch = Mismatch("norm", name, None, norm, None, tolerance.norm, out.size, out.size)
    return Comparison(worst, norm, mismatch)


def _first(mask: np.ndarray) -> tuple[int, int] | None:
    """Position of the first true element and how many there are."""
    count = int(np.count_nonzero(mask))
    return (int(np.argmax(mask)), count) if count else None


def _broken(kind: str, name: str, shape: tuple[int, ...], hit: tuple[int, int], got: float | None, want: float) -> Comparison:
    size = int(np.prod(shape))
    mismatch = Mismatch(kind, name, _index(hit[0], shape), got, want, None, hit[1], size)
    return Comparison(float("inf"), float("inf"), mismatch)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


def changed_input(before: np.ndarray, after: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first element whose bits changed, else None."""
    if np.array_equal(before.view(np.uint8), after.view(np.uint8)):
        return None
    view = f"u{before.itemsize}"
    flat = int(np.argmax(before.reshape(-1).view(view) != after.reshape(-1).view(view)))
    return _index(flat, before.shape)


def guard_sentence(buffer: str, offset: int, nbytes: int) -> str:
    """How far outside a buffer a write landed."""
    if offset < 0:
        return f"out of bounds: wrote {-offset} bytes before the start of '{buffer}'"
    return f"out of bounds: wrote at byte {offset} of '{buffer}', which has {nbytes} bytes"


def finding_sentence(finding: Finding) -> str:
    """A finding as a compiler would print it."""
    place = f"{finding.file}:{finding.line}: " if finding.file and finding.line else ""
    where = f" in block {finding.block} thread {finding.thread}" if finding.block is not None else ""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    return f"{place}{finding.kind.replace('_', ' ')}: {finding.message}{where}{times}"


def exact_integers_fit(problem: Operator, inputs: Arrays) -> bool:
    """Whether every partial sum of the integer run stays below 2**24, where float32 counts exactly."""
    largest = max((float(np.abs(a).max()) for a in inputs.values()), default=0.0)
    return problem.integers_exact and largest**2 * float(np.sqrt(problem.reduction())) * 8 < 2.0**24


def summarise(parts: Sequence[Comparison]) -> tuple[float, float]:
    """Worst elementwise and norm error over several outputs."""
    return max((p.error for p in parts), default=0.0), max((p.norm_error for p in parts), default=0.0)
