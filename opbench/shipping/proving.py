"""The test program of a library, and the file with its inputs, the float64 reference results and tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, Tensor, from_storage, to_storage
from opbench.shipping.fixed_text import banner, template, wrap_code
from opbench.shipping.interface import row
from opbench.shipping.launching import safe
from opbench.shipping.library import Library, LibraryCase, axes_of, names_of
from opbench.shipping.numbers_file import Numbers

MAX_COMPARED_ELEMENTS = 1 << 18
"""Most elements of an output that are stored and compared."""
TYPES = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16", "i32": "I32", "u8": "U8"}
BITS = {"f32": 24, "f16": 11, "bf16": 8}
"""Random bits per number, few enough for the type to hold it exactly."""


def random_bits(count: int, seed: int) -> np.ndarray:
    """Return 64 random bits for each index from a seed (splitmix64), the same as in the test program."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(1 + (seed << 40))) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: np.ndarray = z ^ (z >> np.uint64(31))
        return result


def draw_numbers(tensor: Tensor, seed: int) -> np.ndarray:
    """Return numbers between -2 and 2 that the tensor's type holds exactly, in its stored form."""
    bits = BITS[tensor.dtype]
    random_integers = (random_bits(tensor.elements, seed) >> np.uint64(64 - bits)).astype(np.float64)
    values = (random_integers * 2.0 ** (2 - bits) - 2.0).astype(np.float32)
    return to_storage(values, tensor.dtype).reshape(tensor.shape)


def is_drawn(problem: Operator) -> bool:
    """Return whether any numbers are valid inputs, so that the test program can draw them itself."""
    uses_default_inputs = type(problem).make_inputs is Operator.make_inputs
    return uses_default_inputs and all(tensor.dtype in BITS for tensor in problem.input_tensors())


def inputs_of(problem: Operator, seed: int) -> Arrays:
    """Return the inputs for the test of a problem."""
    if not is_drawn(problem):
        return problem.make_inputs(seed)
    return {t.name: draw_numbers(t, seed + i) for i, t in enumerate(problem.input_tensors())}


def step_of(tensor: Tensor) -> int:
    """Return the step between compared elements: coprime to every axis, so that each index of each axis occurs."""
    if tensor.elements <= MAX_COMPARED_ELEMENTS:
        return 1
    step = -(-tensor.elements // MAX_COMPARED_ELEMENTS)
    while math.gcd(step, tensor.elements) > 1:
        step += 1
    return step


def expectation(library_case: LibraryCase, case_index: int, expected_values: Numbers) -> None:
    """Add the data for the test of a case to the file."""
    problem, seed = library_case.case.problem, 1 + 16 * case_index
    inputs = inputs_of(problem, seed)
    if not is_drawn(problem):
        for tensor in library_case.code.inputs:
            expected_values.add(f"{case_index}.{tensor.name}", inputs[tensor.name], tensor.dtype)
    tolerance = problem.allowance(library_case.case.variant.precision)
    reference = problem.reference_outputs(inputs)
    magnitude = None if tolerance.exact else problem.magnitude_outputs(inputs)
    for tensor in library_case.code.outputs:
        index_step, expected = step_of(tensor), reference[tensor.name].astype(np.float64).reshape(-1)
        name = f"{case_index}.{tensor.name}"
        if magnitude is None:
            expected = from_storage(to_storage(expected, tensor.dtype), tensor.dtype).astype(np.float64)
        else:
            allowed = tolerance.elementwise * magnitude[tensor.name].astype(np.float64).reshape(-1)
            expected_values.add(f"{name}.allowed", allowed[::index_step], "f64")
        expected_values.add(f"{name}.reference", expected[::index_step], "f64")


def expectations(library: Library, on_progress: Callable[[str], None]) -> bytes:
    """Return the data file of the test program: inputs, references and allowed errors of all cases."""
    expected_values = Numbers()
    for case_index, case in enumerate(library.all_cases):
        on_progress(case.case.name)
        expectation(case, case_index, expected_values)
    return expected_values.content({"made by": library.command, "reference": "float64, NumPy"})


def test_text(library: Library) -> str:
    """Return the test program."""
    n = library.name
    tests, calls, case_index = [], [], 0
    for operator, operator_cases in library.cases.items():
        for library_case in operator_cases:
            tests.append(_test(library, operator, operator_cases, library_case, case_index))
            calls.append(f"    wrong += !test_{library_case.function}(file);")
            case_index += 1
    tests += [_refusals(library, operator, operator_cases) for operator, operator_cases in library.cases.items()]
    calls += [f"    wrong += !refuses_{safe(operator)}();" for operator in library.cases]
    includes = ["algorithm", "cmath", "cstdint", "cstdio", "cstdlib", "cstring", "string", "vector"]
    sections = [
        "\n".join(
            [
                *banner(library.gpu, library.arch, library.command),
                "//",
                "// Proves what was built: each problem with seeded inputs against the float64 reference, which lies",
                f"// beside this program in {n}_test.safetensors with what elements may be off by. Exit code 0: right.",
            ]
        ),
        "\n".join([f'#include "{n}.h"', *(f"#include <{name}>" for name in includes)]),
        template("memory"),
        template("tensors"),
        template("judge"),
        template("timing"),
        *map(wrap_code, tests),
        "\n".join(
            [
                "int main(int count, char** words) {",
                f'    const Tensors file(count > 1 ? words[1] : "{n}_test.safetensors");',
                "    int wrong = 0;",
                *calls,
                '    std::printf(wrong ? "%d WRONG\\n" : "all right\\n", wrong);',
                "    return wrong ? 1 : 0;",
                "}",
            ]
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _test(
    library: Library, operator: str, cases: tuple[LibraryCase, ...], library_case: LibraryCase, case_index: int
) -> str:
    n, o = library.name, safe(operator)
    lines = [
        f"// {library_case.case.name}",
        f"static bool test_{library_case.function}(const Tensors& file) {{",
        f'    std::printf("%s\\n", "{library_case.case.name}");',
        f"    const {n}_{o}_problem problem = {row(library, operator, library_case)};",
        "    size_t bytes = 0;",
        f"    {n}_status status = {n}_{o}_workspace(&problem, &bytes);",
        "    const Memory workspace(bytes);",
    ]
    seed = 1 + 16 * case_index
    for i, tensor in enumerate(library_case.code.inputs):
        source = (
            f"drawn({tensor.elements}, {TYPES[tensor.dtype]}, {seed + i})"
            if is_drawn(library_case.case.problem)
            else f'Memory(file.at("{case_index}.{tensor.name}", {tensor.nbytes}), {tensor.nbytes})'
        )
        lines.append(f"    const Memory {safe(tensor.name)} = {source};")
    lines += [f"    const Memory {safe(tensor.name)}({tensor.nbytes});" for tensor in library_case.code.outputs]
    pointers = ", ".join(name if name in library_case.tensors else "nullptr" for name in names_of(cases))
    lines += [
        f"    auto call = [&](cudaStream_t stream) {{ return {n}_{o}(&problem, {pointers}, workspace, stream); }};",
        "    if (!status) status = call(nullptr);",
        "    if (status) {",
        f'        std::printf("  FAILED: %s\\n", {n}_message());',
        "        return false;",
        "    }",
        f'    check(cudaDeviceSynchronize(), "{library_case.function}");',
        "    bool right = true;",
    ]
    for tensor in library_case.code.outputs:
        norm = library_case.case.problem.allowance(library_case.case.variant.precision).norm
        lines.append(
            f'    right &= judged(file, "{case_index}.{tensor.name}", {safe(tensor.name)}.read(), '
            f"{TYPES[tensor.dtype]}, {step_of(tensor)}, {norm!r});"
        )
    lines += ["    if (right) time_of(call);", "    return right;", "}"]
    return "\n".join(lines)


def _refusals(library: Library, operator: str, cases: tuple[LibraryCase, ...]) -> str:
    """Return test code: an unknown problem and a null pointer must return their error status."""
    n, o = library.name, safe(operator)
    null_pointers = ", ".join(["nullptr"] * len(names_of(cases)))
    axis = next(name for name, default in axes_of(library.operator(operator)) if default is None)
    call = f"{n}_{o}(&problem, {null_pointers}, nullptr, nullptr)"
    lines = [
        f"static bool refuses_{o}() {{",
        f"    {n}_{o}_problem problem;",
        f"    bool right = {n}_{o}_at(0, &problem) == {n.upper()}_OK && {call} == {n.upper()}_BAD_ARGUMENT;",
        f"    problem.{safe(axis)} = 999999937;  // a prime that nobody ships",
        f"    right &= {call} == {n.upper()}_NOT_HELD;",
        f'    std::printf("refused: %.300s\\n", {n}_message());',
        f'    if (!right) std::printf("  WRONG: {operator} does not refuse\\n");',
        "    return right;",
        "}",
    ]
    return "\n".join(lines)
