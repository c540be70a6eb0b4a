"""Every variant whose outputs may lie in its inputs' memory, found by looking: the same bits there as apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import Buffer
from opbench.backend.findings import Finding
from opbench.checking.binding import allocate
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.tensors import Arrays
from opbench.kernels.variant import Variant
from support.common import CATALOG

VARIANTS = [
    variant
    for name in CATALOG.operator_names()
    if any(problem.in_place for problem in CATALOG.operator(name).examples())
    for variant in CATALOG.variants(name)
    if not variant.is_library
]


@dataclass(frozen=True)
class Ran:
    """What a case wrote, and what was seen of its accesses."""

    outputs: Arrays
    findings: tuple[Finding, ...]
    inputs_kept: bool
    """Whether the inputs that no output took the memory of are what they were."""


def cases(variant: Variant) -> list[Case]:
    """The shortest and the longest example in each mode with the first config that fits, and each value of a tuned
    parameter with the longest example: the check of every variant takes them all, apart.
    """
    examples = [problem for problem in CATALOG.operator(variant.operator).examples() if problem.in_place]
    fitting = [
        case for p in examples for c in variant.configs if (case := Case(variant, c, p)).unmet_requirement() is None
    ]
    firsts = sorted({case.problem: case for case in reversed(fitting)}.values(), key=lambda c: c.problem.bytes())

    def modes(case: Case) -> tuple[object, ...]:
        return tuple(case.problem.axes[mode] for mode in case.problem.modes())

    longest = {modes(case): case for case in firsts}
    shortest = {modes(case): case for case in reversed(firsts)}
    values = {item: case for case in sorted(fitting, key=lambda c: c.problem.bytes()) for item in case.config.items()}
    found = (*longest.values(), *shortest.values(), *values.values())
    return list({case.name: case for case in found}.values())


def run(backend: CpuBackend, case: Case, shared: Mapping[str, str]) -> Ran:
    """The case on its seeded inputs, traced, with each of the `shared` outputs in the memory of the input it names."""
    problem = case.problem
    inputs = problem.make_inputs(5)
    outputs = [t for t in problem.output_tensors() if t.name not in shared]
    held = allocate(backend, [*problem.input_tensors(), *outputs, *case.workspace(backend.sm_count)])
    buffers: dict[str, Buffer] = {**held, **{output: held[source] for output, source in shared.items()}}
    try:
        for name, array in inputs.items():
            buffers[name].write(array)
        findings = backend.trace(case.request(), case.launches(backend.sm_count), buffers).findings
        kept = all(np.array_equal(held[n].read(), a) for n, a in inputs.items() if n not in shared.values())
        written = {t.name: buffers[t.name].read() for t in problem.output_tensors()}
        return Ran(
            written, tuple(findings), kept and all(buffer.changed_guard_offset() is None for buffer in held.values())
        )
    finally:
        backend.free(held)


def same_bits(one: Arrays, other: Arrays) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_an_output_in_an_inputs_memory_has_the_same_bits(variant: Variant) -> None:
    backend = CpuBackend()
    found = cases(variant)
    assert found, "no example fits any config"
    for case in found:
        apart, together = run(backend, case, {}), run(backend, case, case.problem.in_place)
        assert apart.findings == together.findings == (), case.name
        assert apart.inputs_kept and together.inputs_kept, case.name
        assert same_bits(apart.outputs, together.outputs), case.name


@pytest.mark.parametrize("name", sorted({variant.operator for variant in VARIANTS}))
def test_what_is_shared_is_of_one_shape_and_dtype(name: str) -> None:
    for problem in CATALOG.operator(name).examples():
        inputs = {t.name: (t.shape, t.dtype) for t in problem.input_tensors()}
        outputs = {t.name: (t.shape, t.dtype) for t in problem.output_tensors()}
        assert all(outputs[output] == inputs[source] for output, source in problem.in_place.items()), problem


REVERSES = """\
// /// opbench
// operator = "record"
// title = "a kernel of a test, which reads an element after it was written"
// launch = [{ kernel = "mine", grid = ["1"], block = ["1"] }]
// ///
//
// Why.
extern "C" __global__ void mine(const float* losses, const float* loss, const int* step, float* new_losses, int steps) {
    for (int i = 0; i < steps; ++i) new_losses[i] = losses[steps - 1 - i];
}
"""


def test_a_kernel_that_reads_an_element_after_it_was_written_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(REVERSES)
    variant = CATALOG.variant_file(path)
    case = Case(variant, variant.configs[0], CATALOG.operator("record").from_axes({"steps": 31}))
    backend = CpuBackend()
    apart, together = run(backend, case, {}), run(backend, case, case.problem.in_place)
    assert not same_bits(apart.outputs, together.outputs)
