"""Causes of a wrong result: element types of pointers, and patterns of the wrong elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opbench.backend.base import Buffer
from opbench.backend.findings import Finding
from opbench.backend.rules import POINTER_TYPE
from opbench.checking.expected import Expected
from opbench.checking.patterns import Evidence, PartialReference, Pattern, pattern_of
from opbench.errors import UsageError
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.operator import Operator
from opbench.kernels.pointer_types import PointerMismatch, pointer_mismatches
from opbench.kernels.tensors import Tensor, from_storage
from opbench.source.declared import declaration

MAX_PATTERN_ELEMENTS = 1 << 20
MAX_PATTERN_FLOPS = 1e8
"""Above these limits there is no search for a pattern in a wrong result, as smaller problems show the same."""


def pointer_type_findings(case: Case, launches: Sequence[KernelLaunch]) -> list[Finding]:
    """Return findings for pointer parameters whose element type differs from their tensor's.

    Such a mismatch explains all other faults of a wrong case.
    """
    if case.variant.is_library:
        return []
    tensors = {tensor.name: tensor for tensor in (*case.problem.input_tensors(), *case.problem.output_tensors())}
    macros = dict(case.request().macros)
    mismatches: dict[PointerMismatch, None] = {}
    for launch in launches:
        if launch.kernel:
            mismatches |= dict.fromkeys(pointer_mismatches(case.variant.sources, launch, tensors, macros))
    return [
        Finding(
            POINTER_TYPE.kind,
            mismatch.sentence(case.problem.name),
            mismatch.file,
            mismatch.line,
            kernel=mismatch.kernel,
            buffer=mismatch.tensor,
        )
        for mismatch in mismatches
    ]


def kernel_location(case: Case) -> tuple[str, int]:
    """Return file and line of the kernel that a case launches last: a wrong result is reported there."""
    for kernel in reversed(case.variant.kernels):
        if location := declaration(case.variant.sources, kernel):
            return str(location.file), location.line
    return str(case.variant.path), 0


def error_pattern(
    case: Case, launches: Sequence[KernelLaunch], tensor: Tensor, buffer: Buffer, expected: Expected
) -> Pattern | None:
    """Return the pattern of an output's wrong elements; None if the output is large or shows no pattern."""
    problem = case.problem
    reference = expected.reference[tensor.name]
    if tensor.elements > MAX_PATTERN_ELEMENTS or not problem.is_number(tensor) or not isinstance(reference, np.ndarray):
        return None
    stored_output = buffer.read().reshape(tensor.shape)
    output = from_storage(stored_output, tensor.dtype).astype(np.float64)
    expected_values = (expected.scale * reference).reshape(tensor.shape)
    magnitude = expected.magnitude[tensor.name] if expected.magnitude else np.abs(reference)
    allowed = expected.tolerance.elementwise * expected.scale * np.asarray(magnitude).reshape(tensor.shape)
    bits = stored_output.view(f"u{stored_output.itemsize}")
    with np.errstate(invalid="ignore"):
        wrong = (
            ~(np.abs(output - expected_values) <= allowed) & ~np.isnan(expected_values) & (output != expected_values)
        )
    blocks = [launch.block for launch in launches if launch.kernel]
    return pattern_of(
        Evidence(
            output,
            expected_values,
            wrong,
            wrong & (bits == np.iinfo(bits.dtype).max),
            "" if case.variant.is_library else "".join(source.text for source in case.variant.sources[:1]),
            blocks[-1] if blocks else (),
            _reduced_axes(problem, tensor),
            _partial_reference(problem, tensor, expected),
            bits if tensor.dtype == "f32" else None,
        )
    )


def _reduced_axes(problem: Operator, tensor: Tensor) -> dict[str, int]:
    """Return the axes, with their sizes, that the inputs have and an output lacks."""
    output_axes = set(problem.outputs[tensor.name].split())
    input_axes = {axis for axes in problem.inputs.values() for axis in axes.split()}
    return {axis: int(problem.scope[axis]) for axis in sorted(input_axes - output_axes) if not axis.isdigit()}


def _partial_reference(problem: Operator, tensor: Tensor, expected: Expected) -> PartialReference | None:
    """Return a function that computes the reference on a part of one axis; None if it takes too long.

    Inputs outside of that part are 0.
    """
    if problem.flops() > MAX_PATTERN_FLOPS:
        return None

    def partial_reference(axis: str, start: int, end: int) -> np.ndarray | None:
        inputs = dict(expected.inputs)
        for name, axes in problem.inputs.items():
            if axis in axes.split():
                masked = np.zeros_like(inputs[name])
                region = [slice(None)] * masked.ndim
                region[axes.split().index(axis)] = slice(start, end)
                masked[tuple(region)] = inputs[name][tuple(region)]
                inputs[name] = masked
        try:
            with np.errstate(all="ignore"):
                return expected.scale * np.asarray(problem.reference_outputs(inputs)[tensor.name])
        except UsageError:  # the inputs are partly zero, which a reference may refuse, such as for offsets
            return None

    return partial_reference
