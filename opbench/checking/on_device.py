"""Compute references on the device under test and compare outputs there; fingerprints protect the references.

For hundreds of megabytes the host would take longer for the reference and the comparison than the device for
all other work. A fingerprint detects a kernel that writes to a reference. An output that is not right is judged
again on the host, which produces the messages.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from opbench.backend.base import Backend, Buffer, LibraryBackend
from opbench.checking.verdict import MIN_NORM_ELEMENTS, Judgement, judge
from opbench.kernels.arrays import cupy_module
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import INTEGERS, Arrays, Tensor, Tolerance, from_storage, to_storage

MIN_DEVICE_ELEMENTS = 1 << 22
"""Elements from which a problem's reference is computed on the device; for fewer the host needs milliseconds."""
MEMORY_FACTOR = 12
"""Free device memory required, as a multiple of the problem's bytes: float64 inputs, results, scales, intermediates."""
CHUNK_ELEMENTS = 1 << 24
"""Elements compared at a time."""
FingerprintedMemory = tuple[tuple[Buffer, int], ...]
"""Buffers that no kernel may write, each with the fingerprint of its content."""


def expected_on_device(
    backend: Backend | None, problem: Operator, inputs: Arrays, exact: bool
) -> tuple[Arrays, Arrays | None, FingerprintedMemory] | None:
    """Return a large problem's reference and magnitude in device memory, with their fingerprints.

    Returns None without a suitable device, with too little memory, or if CuPy cannot compute the operator's
    reference; the host then computes it.
    """
    tensors = [*problem.input_tensors(), *problem.output_tensors()]
    if not isinstance(backend, LibraryBackend) or sum(t.elements for t in tensors) < MIN_DEVICE_ELEMENTS:
        return None
    cupy = cupy_module()
    if cupy is None:
        return None
    try:
        with backend.on_stream():
            try:
                if cupy.cuda.runtime.memGetInfo()[0] < MEMORY_FACTOR * problem.bytes():
                    return None
                stored = {name: cupy.asarray(array) for name, array in inputs.items()}
                reference = problem.reference_outputs(stored)
                magnitude = None if exact else problem.magnitude_outputs(stored)
                all_arrays = [*reference.values(), *(magnitude or {}).values()]
                if not all(isinstance(array, cupy.ndarray) for array in all_arrays):
                    return None
                reference = {name: cupy.ascontiguousarray(array) for name, array in reference.items()}
                magnitude = magnitude and {name: cupy.ascontiguousarray(array) for name, array in magnitude.items()}
                del stored, all_arrays
                return (
                    reference,
                    magnitude,
                    _fingerprint_arrays(backend, [*reference.values(), *(magnitude or {}).values()]),
                )
            finally:
                backend.synchronize()
                cupy.get_default_memory_pool().free_all_blocks()
    except Exception:  # CuPy lacks a function or memory
        return None


def release_device_cache() -> None:
    """Free the device memory that CuPy caches, because the next problem's buffers do not come from CuPy."""
    if cupy := sys.modules.get("cupy"):
        cupy.get_default_memory_pool().free_all_blocks()


def _fingerprint_arrays(backend: LibraryBackend, arrays: Iterable[np.ndarray]) -> FingerprintedMemory:
    memories = [backend.buffer_of(array) for array in arrays]
    return tuple((memory, memory.fingerprint()) for memory in memories)


def is_overwritten(fingerprinted_memory: FingerprintedMemory) -> bool:
    """Return whether a kernel wrote to a reference; no kernel may."""
    return any(memory.fingerprint() != old_fingerprint for memory, old_fingerprint in fingerprinted_memory)


def judge_buffer(
    backend: Backend,
    tensor: Tensor,
    out: Buffer,
    reference: np.ndarray,
    magnitude: np.ndarray | None,
    tolerance: Tolerance,
    kind: str,
    scale: float,
) -> Judgement:
    """Compare an output with its reference, on the device if the reference is there.

    See `opbench.checking.verdict.judge` for the parameters.
    """
    if not isinstance(reference, np.ndarray):
        cupy = cupy_module()
        assert isinstance(backend, LibraryBackend) and cupy is not None
        with backend.on_stream():
            array = cast(Mapping[str, np.ndarray], backend.arrays({"out": out}))["out"]
            if judgement := judge_if_right(tensor.dtype, array, reference, magnitude, tolerance, scale):
                return judgement
            reference, magnitude = cupy.asnumpy(reference), None if magnitude is None else cupy.asnumpy(magnitude)
    return judge(tensor.name, tensor.dtype, out.read(), reference, magnitude, tolerance, kind, scale)


def judge_if_right(
    dtype: str, out: np.ndarray, reference: np.ndarray, magnitude: np.ndarray | None, tolerance: Tolerance, scale: float
) -> Judgement | None:
    """Return the judgement on an output without a fault, else None; arrays are NumPy's or CuPy's.

    See `opbench.checking.verdict.judge` for the parameters.
    """
    stored, references = out.reshape(-1), reference.reshape(-1)
    allowance = None if magnitude is None else magnitude.reshape(-1)
    if allowance is not None and dtype in INTEGERS:
        return None
    worst, square_error, square_reference = 0.0, 0.0, 0.0
    for start in range(0, stored.size, CHUNK_ELEMENTS):
        chunk = slice(start, start + CHUNK_ELEMENTS)
        expected = references[chunk] * scale
        if allowance is None:
            bits = f"u{stored.itemsize}"
            if not bool((stored[chunk].view(bits) == to_storage(expected, dtype).view(bits)).all()):
                return None
            continue
        with np.errstate(all="ignore"):
            allowed = allowance[chunk] * scale
            error = abs(from_storage(stored[chunk], dtype) - expected)
            outside = error > tolerance.elementwise * allowed
            relative = np.where(error == 0, 0.0, error / allowed)  # 0/0 is no error
            square_error += float((error * error).sum())
            square_reference += float((expected * expected).sum())
            worst = max(worst, float(relative.max()))
        # An element that was not written is NaN, so the sum is not finite; the same holds for infinities.
        if not (math.isfinite(square_error) and math.isfinite(worst)) or bool(outside.any()):
            return None
    norm = math.sqrt(square_error / square_reference) if square_reference > 0 else math.sqrt(square_error)
    if norm > tolerance.norm and not tolerance.exact and stored.size >= MIN_NORM_ELEMENTS:
        return None
    return Judgement(worst, norm, None)
