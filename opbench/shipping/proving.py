"""The test program of a library, and the file with its inputs, the float64 reference results and tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, Tensor, from_storage, to_storage
from opbench.shipping.fixed_text import banner, template, wrap_code
from opbench.shipping.interface import problem_initialiser
from opbench.shipping.launching import cpp_name
from opbench.shipping.library import Library, LibraryCase, axes_with_defaults, c_types_by_tensor
from opbench.shipping.numbers_file import TensorFile

MAX_COMPARED_ELEMENTS = 1 << 18
"""Most elements of an output that are stored and compared."""
TEST_PROGRAM_TYPES = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16", "i32": "I32", "u8": "U8"}
RANDOM_BITS = {"f32": 24, "f16": 11, "bf16": 8}
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
    bits = RANDOM_BITS[tensor.dtype]
    random_integers = (random_bits(tensor.elements, seed) >> np.uint64(64 - bits)).astype(np.float64)
    values = (random_integers * 2.0 ** (2 - bits) - 2.0).astype(np.float32)
    return to_storage(values, tensor.dtype).reshape(tensor.shape)


def is_drawn_by_program(problem: Operator) -> bool:
    """Return whether random numbers are valid inputs, so that the test program can draw them and no file needs them."""
    uses_default_inputs = type(problem).make_inputs is Operator.make_inputs
    return uses_default_inputs and all(tensor.dtype in RANDOM_BITS for tensor in problem.input_tensors())


def test_inputs(problem: Operator, seed: int) -> Arrays:
    """Return the seeded inputs with which the test program tests a problem, by name."""
    if not is_drawn_by_program(problem):
        return problem.make_inputs(seed)
    return {t.name: draw_numbers(t, seed + i) for i, t in enumerate(problem.input_tensors())}


def comparison_step(tensor: Tensor) -> int:
    """Return the distance between compared elements; it is coprime to every axis, so each index of an axis occurs."""
    if tensor.elements <= MAX_COMPARED_ELEMENTS:
        return 1
    step = -(-tensor.elements // MAX_COMPARED_ELEMENTS)
    while math.gcd(step, tensor.elements) > 1:
        step += 1
    return step


def add_expected_values(library_case: LibraryCase, case_index: int, expected_values: TensorFile) -> None:
    """Add a case's inputs, float64 reference results and allowed errors to the file of expected values."""
    problem, seed = library_case.case.problem, 1 + 16 * case_index
    inputs = test_inputs(problem, seed)
    if not is_drawn_by_program(problem):
        for tensor in library_case.code.inputs:
            expected_values.add(f"{case_index}.{tensor.name}", inputs[tensor.name], tensor.dtype)
    tolerance = problem.allowance(library_case.case.variant.precision)
    reference = problem.reference_outputs(inputs)
    magnitude = None if tolerance.exact else problem.magnitude_outputs(inputs)
    for tensor in library_case.code.outputs:
        index_step, expected = comparison_step(tensor), reference[tensor.name].astype(np.float64).reshape(-1)
        name = f"{case_index}.{tensor.name}"
        if magnitude is None:
            expected = from_storage(to_storage(expected, tensor.dtype), tensor.dtype).astype(np.float64)
        else:
            allowed = tolerance.elementwise * magnitude[tensor.name].astype(np.float64).reshape(-1)
            expected_values.add(f"{name}.allowed", allowed[::index_step], "f64")
        expected_values.add(f"{name}.reference", expected[::index_step], "f64")


def expected_values_file(library: Library, on_progress: Callable[[str], None]) -> bytes:
    """Return the data file of the test program: inputs, references and allowed errors of all cases."""
    expected_values = TensorFile()
    for case_index, case in enumerate(library.all_cases):
        on_progress(case.case.name)
        add_expected_values(case, case_index, expected_values)
    return expected_values.to_bytes({"made by": library.command, "reference": "float64, NumPy"})


def test_text(library: Library) -> str:
    """Return the C++ source of the library's test program."""
    prefix = library.name
    tests, calls, case_index = [], [], 0
    for operator, operator_cases in library.cases.items():
        for library_case in operator_cases:
            tests.append(_test_function(library, operator, operator_cases, library_case, case_index))
            calls.append(f"    wrong += !test_{library_case.function}(file);")
            case_index += 1
    tests += [_refusal_test(library, operator, operator_cases) for operator, operator_cases in library.cases.items()]
    calls += [f"    wrong += !refuses_{cpp_name(operator)}();" for operator in library.cases]
    includes = ["algorithm", "cmath", "cstdint", "cstdio", "cstdlib", "cstring", "string", "vector"]
    sections = [
        "\n".join(
            [
                *banner(library.gpu, library.arch, library.command),
                "//",
                "// Tests the built library: computes each problem with seeded inputs and compares them with the",
                f"// float64 reference and the allowed errors in {prefix}_test.safetensors. Exit code 0: all right.",
            ]
        ),
        "\n".join([f'#include "{prefix}.h"', *(f"#include <{name}>" for name in includes)]),
        template("memory"),
        template("tensors"),
        template("judge"),
        template("timing"),
        *map(wrap_code, tests),
        "\n".join(
            [
                "int main(int count, char** words) {",
                f'    const Tensors file(count > 1 ? words[1] : "{prefix}_test.safetensors");',
                "    int wrong = 0;",
                *calls,
                '    std::printf(wrong ? "%d WRONG\\n" : "all right\\n", wrong);',
                "    return wrong ? 1 : 0;",
                "}",
            ]
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _test_function(
    library: Library, operator: str, cases: tuple[LibraryCase, ...], library_case: LibraryCase, case_index: int
) -> str:
    prefix, operator_name = library.name, cpp_name(operator)
    lines = [
        f"// {library_case.case.name}",
        f"static bool test_{library_case.function}(const Tensors& file) {{",
        f'    std::printf("%s\\n", "{library_case.case.name}");',
        f"    const {prefix}_{operator_name}_problem problem = {problem_initialiser(library, operator, library_case)};",
        "    size_t bytes = 0;",
        f"    {prefix}_status status = {prefix}_{operator_name}_workspace(&problem, &bytes);",
        "    const Memory workspace(bytes);",
    ]
    seed = 1 + 16 * case_index
    for i, tensor in enumerate(library_case.code.inputs):
        source = (
            f"drawn({tensor.elements}, {TEST_PROGRAM_TYPES[tensor.dtype]}, {seed + i})"
            if is_drawn_by_program(library_case.case.problem)
            else f'Memory(file.at("{case_index}.{tensor.name}", {tensor.nbytes}), {tensor.nbytes})'
        )
        lines.append(f"    const Memory {cpp_name(tensor.name)} = {source};")
    lines += [f"    const Memory {cpp_name(tensor.name)}({tensor.nbytes});" for tensor in library_case.code.outputs]
    function = f"{prefix}_{operator_name}"
    pointers = ", ".join(name if name in library_case.tensors else "nullptr" for name in c_types_by_tensor(cases))
    lines += [
        f"    auto call = [&](cudaStream_t stream) {{ return {function}(&problem, {pointers}, workspace, stream); }};",
        "    if (!status) status = call(nullptr);",
        "    if (status) {",
        f'        std::printf("  FAILED: %s\\n", {prefix}_message());',
        "        return false;",
        "    }",
        f'    check(cudaDeviceSynchronize(), "{library_case.function}");',
        "    bool right = true;",
    ]
    for tensor in library_case.code.outputs:
        norm = library_case.case.problem.allowance(library_case.case.variant.precision).norm
        lines.append(
            f'    right &= judged(file, "{case_index}.{tensor.name}", {cpp_name(tensor.name)}.read(), '
            f"{TEST_PROGRAM_TYPES[tensor.dtype]}, {comparison_step(tensor)}, {norm!r});"
        )
    lines += ["    if (right) time_of(call);", "    return right;", "}"]
    return "\n".join(lines)


def _refusal_test(library: Library, operator: str, cases: tuple[LibraryCase, ...]) -> str:
    """Return test code: an unknown problem and a null pointer must return their error status."""
    prefix, operator_name = library.name, cpp_name(operator)
    null_pointers = ", ".join(["nullptr"] * len(c_types_by_tensor(cases)))
    axis = next(name for name, default in axes_with_defaults(library.operator(operator)) if default is None)
    call = f"{prefix}_{operator_name}(&problem, {null_pointers}, nullptr, nullptr)"
    lines = [
        f"static bool refuses_{operator_name}() {{",
        f"    {prefix}_{operator_name}_problem problem;",
        f"    bool right = {prefix}_{operator_name}_at(0, &problem) == {prefix.upper()}_OK;",
        f"    right &= {call} == {prefix.upper()}_BAD_ARGUMENT;",
        f"    problem.{cpp_name(axis)} = 999999937;  // a size that no library has",
        f"    right &= {call} == {prefix.upper()}_NOT_HELD;",
        f'    std::printf("refused: %.300s\\n", {prefix}_message());',
        f'    if (!right) std::printf("  WRONG: {operator} does not refuse\\n");',
        "    return right;",
        "}",
    ]
    return "\n".join(lines)
