"""Write a case's inputs, and judge its outputs and its other memory after a launch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opbench.backend.base import Backend, Buffer
from opbench.backend.findings import Finding, headline
from opbench.backend.rules import CHANGED_INPUT, OUT_OF_BOUNDS
from opbench.checking.binding import BoundCase
from opbench.checking.causes import kernel_location
from opbench.checking.expected import Expected
from opbench.checking.on_device import judge_buffer
from opbench.checking.verdict import Judgement, changed_input, guard_finding, is_dyadic, sums_stay_exact
from opbench.kernels.tensors import Tensor
from opbench.timing.phases import timed_phase

MAX_INTEGER_RUN_FLOPS = 4e9
MAX_INTEGER_RUN_BYTES = 1 << 28
"""Above these limits the integer run is skipped, as its reference would take longer than the measurement."""


def write_inputs(bound_case: BoundCase, input_kind: str) -> Expected:
    """Write one kind of inputs to the input buffers, poison all other buffers, and return the expected outputs."""
    expected = bound_case.prepared.expect(input_kind, bound_case.case.variant.precision)
    bound_case.prepared.load(input_kind)
    for name, buffer in bound_case.buffers.items():
        if name not in expected.inputs:
            buffer.poison()
    for output, input_name in bound_case.case.updates.items():
        # An output updated in place starts with its input's content.
        bound_case.buffers[output].write(expected.inputs[input_name])
    return expected


def why_integers_are_inexact(bound_case: BoundCase) -> str:
    """Return why the run on small integers is inexact or is skipped; "" if its results must be exact."""
    problem = bound_case.case.problem
    if problem.allowance(bound_case.case.variant.precision).exact:
        return ""
    if bound_case.case.variant.precision != "f32" or not problem.integers_exact:
        return "not compared bit by bit: the results are rounded, so they depend on the order of operations"
    if problem.flops() > MAX_INTEGER_RUN_FLOPS or problem.bytes() > MAX_INTEGER_RUN_BYTES:
        return "left out: too large; opbench check runs it on small problems"
    expected = bound_case.prepared.expect("integers", "f32")
    if not sums_stay_exact(problem, expected.inputs):
        return "left out: sums would pass 2^24"
    if not is_dyadic(expected.reference):
        return "not compared bit by bit: whole-number inputs do not give whole-number results"
    return ""


def memory_damage(bound_case: BoundCase, expected: Expected) -> Finding | None:
    """Return a finding for the first change of memory that the launch must not write; None if there is none."""
    prepared = bound_case.prepared
    for name, buffer in bound_case.buffers.items():
        if (offset := buffer.changed_guard_offset()) is not None:
            return guard_finding(name, offset, int(np.prod(buffer.shape)) * buffer.dtype.itemsize)
    # Fingerprints detect a change; only then the content is copied from the device to find the element.
    for name, array in expected.inputs.items():
        if prepared.is_changed(name):
            index = changed_input(array, prepared.buffers[name].read())
            location = f"[{','.join(map(str, index))}]" if index is not None else ""
            return Finding(CHANGED_INPUT.kind, f"the kernel changed its input {name}{location}", buffer=name)
    if prepared.is_overwritten():
        return Finding(OUT_OF_BOUNDS.kind, "write outside of the case's buffers, where the reference lies")
    return None


def judge_outputs(backend: Backend, bound_case: BoundCase, input_kind: str, buffers: Mapping[str, Buffer]) -> str:
    """Return the first fault of the outputs after a launch on one kind of inputs; "" if they are right."""
    expected = bound_case.prepared.expect(input_kind, bound_case.case.variant.precision)
    outputs = bound_case.case.problem.output_tensors()
    judgements = [judge_output(backend, bound_case, t, buffers[t.name], expected, input_kind) for t in outputs]
    mismatches = [judgement.mismatch for judgement in judgements if judgement.mismatch]
    return headline(mismatches[0].finding(*kernel_location(bound_case.case))) if mismatches else ""


def judge_output(
    backend: Backend, bound_case: BoundCase, tensor: Tensor, buffer: Buffer, expected: Expected, input_kind: str
) -> Judgement:
    """Compare an output with its reference; skip the comparison for bits that were right before."""
    prepared = bound_case.prepared
    key = (input_kind, expected.tolerance, tensor.name, buffer.fingerprint())
    if (judgement := prepared.right_judgements.get(key)) is None:
        magnitude = expected.magnitude[tensor.name] if expected.magnitude else None
        is_exact_operator = prepared.problem.allowance("f32").exact
        comparison_kind = "integers" if input_kind == "integers" and not is_exact_operator else "value"
        comparison_options = expected.tolerance, comparison_kind, expected.scale
        with timed_phase("comparisons"):
            judgement = judge_buffer(
                backend, tensor, buffer, expected.reference[tensor.name], magnitude, *comparison_options
            )
        if judgement.mismatch is None:
            prepared.right_judgements[key] = judgement
    return judgement
