"""The C interface of a library: its header, and functions that select a kernel by problem or report an error."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Tensor
from opbench.shipping.fixed_text import banner, c_string, comment_lines, template, wrap_code
from opbench.shipping.launching import cpp_name
from opbench.shipping.library import Library, LibraryCase, axes_with_defaults, c_parameters, c_types_by_tensor

MAX_LISTED_PROBLEMS = 8
"""Most problems that an error message lists."""


def header_text(library: Library) -> str:
    """Return the text of the library's C header."""
    prefix, upper = library.name, library.name.upper()
    preamble = template("header", {"n": prefix, "N": upper, "arch": library.arch})
    lines = [*banner(library.gpu, library.arch, library.command), f"#ifndef {upper}_H", f"#define {upper}_H", preamble]
    for operator, case in library.cases.items():
        lines += ["", wrap_code("\n".join(_operator_header(library, operator, case)))]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _operator_header(library: Library, operator: str, cases: Sequence[LibraryCase]) -> list[str]:
    prefix, operator_class, operator_name = library.name, library.operator(operator), cpp_name(operator)
    doc = (inspect.getdoc(operator_class) or "").split("\n\n", maxsplit=1)[0]
    lines = [f"/* ---- {operator}", *comment_lines(doc), "   Tensors:"]
    tensors = {t.name: (t, "in ", library_case) for library_case in reversed(cases) for t in library_case.code.inputs}
    tensors |= {t.name: (t, "out", library_case) for library_case in reversed(cases) for t in library_case.code.outputs}
    order = [name for name in c_types_by_tensor(cases) if name in {cpp_name(t) for t in tensors}]
    by_name = {cpp_name(name): value for name, value in tensors.items()}
    lines += [
        f"     {by_name[name][1]} {_tensor_text(by_name[name][2].case.problem, by_name[name][0])}" for name in order
    ]
    lines += ["   Problems:"]
    for library_case in cases:
        description = [library_case.case.name.removesuffix(str(library_case.case.problem))]
        description += (
            [f"workspace {library_case.code.workspace_bytes:,} bytes"] if library_case.code.workspace_bytes else []
        )
        description += [library_case.time_note] if library_case.time_note else []
        lines += [f"     {library_case.case.problem}", f"        {', '.join(description)}"]
    lines[-1] += " */"
    lines += [
        "typedef struct {",
        *(_field_declaration(operator_class, *axis) for axis in axes_with_defaults(operator_class)),
        f"}} {prefix}_{operator_name}_problem;",
    ]
    function = f"{prefix}_status {prefix}_{operator_name}"
    problem = f"const {prefix}_{operator_name}_problem* problem"
    parameter_list = f"({problem}, {c_parameters(cases)}, void* workspace, cudaStream_t stream);"
    lines += [
        "/* Return the number of problems; write the problem with this number, counted from 0. */",
        f"int {prefix}_{operator_name}_count(void);",
        f"{function}_at(int number, {prefix}_{operator_name}_problem* problem);",
        f"{function}_workspace({problem}, size_t* bytes);",
        f"{function}{parameter_list}",
    ]
    if any(library_case.code.setup_lines.lines for library_case in cases):
        constant_inputs = ", ".join(sorted({name for library_case in cases for name in library_case.case.setup.inputs}))
        lines += [
            f"/* The same in two steps. _prepare computes what depends on {constant_inputs}",
            "   alone, into the workspace; _prepared computes the rest. Call _prepare again if these inputs change. */",
            f"{function}_prepare{parameter_list}",
            f"{function}_prepared{parameter_list}",
        ]
    return lines


def _field_declaration(operator_class: type[Operator], name: str, default: str | None) -> str:
    if default is None:
        return f"    int64_t {cpp_name(name)};"
    other_values = [value for value in operator_class.choices.get(name, ()) if value != default]
    choices = " or ".join(f'"{value}"' for value in (default, *other_values))
    return f"    const char* {cpp_name(name)}; /* {choices} */"


def _tensor_text(problem: Operator, tensor: Tensor) -> str:
    """Return a tensor as text, with the names of its axes."""
    declared: Mapping[str, str] = {**problem.inputs, **problem.outputs}
    return f"{tensor.name} [{', '.join(declared[tensor.name].split())}]"


def common_text(library: Library) -> str:
    """Return the C++ code that the functions of all operators use."""
    digits = library.arch.removeprefix("sm_").rstrip("a")
    values = {
        "n": library.name,
        "N": library.name.upper(),
        "major": digits[:-1],
        "minor": digits[-1],
        "exact": str(library.arch.endswith("a")).lower(),
        "arch": library.arch,
    }
    return template("interface", values)


def functions_text(library: Library, operator: str, cases: Sequence[LibraryCase]) -> str:
    """Return the C++ functions of one operator: select a problem, launch its kernels, report its workspace."""
    prefix, operator_name, upper = library.name, cpp_name(operator), library.name.upper()
    names, struct_name = c_types_by_tensor(cases), f"{library.name}_{cpp_name(operator)}_problem"
    parameter_list = f"const {struct_name}* problem, {c_parameters(cases)}, void* workspace"
    workspace_bytes = ", ".join(str(library_case.code.workspace_bytes) for library_case in cases)
    lines = [
        f"// ---- {operator} " + "-" * (110 - len(operator)),
        f"static int find(const {struct_name}* problem) {{",
        "    if (!problem) {",
        '        say("the problem is a null pointer");',
        "        return -1;",
        "    }",
        *(
            f"    if ({_condition(library, library_case)}) return {case_index};"
            for case_index, library_case in enumerate(cases)
        ),
        f"    {_unknown_problem_call(library, operator, cases)}",
        "    return -1;",
        "}",
        f"static {prefix}_status run({parameter_list}, unsigned steps, cudaStream_t stream) {{",
        *(f"    (void){name};" for name in names if any(name not in library_case.tensors for library_case in cases)),
        "    const int number = find(problem);",
        f"    if (number < 0) return {upper}_NOT_HELD;",
        f"    if ({prefix}_status status = on_this_gpu()) return status;",
        "    switch (number) {",
        *(
            line
            for case_index, library_case in enumerate(cases)
            for line in _switch_case(case_index, library_case, upper)
        ),
        "    }",
        f"    return {upper}_NOT_HELD;",
        "}",
        f"static const {struct_name} {operator_name}_problems[] = {{",
        *(f"    {problem_initialiser(library, operator, library_case)}," for library_case in cases),
        "};",
        f"int {prefix}_{operator_name}_count(void) {{ return {len(cases)}; }}",
        f"{prefix}_status {prefix}_{operator_name}_at(int number, {struct_name}* problem) {{",
        f"    if (!problem || number < 0 || number >= {len(cases)}) {{",
        f'        say("{operator}: there is no problem %d; 0 to {len(cases) - 1} are there", number);',
        f"        return {upper}_BAD_ARGUMENT;",
        "    }",
        f"    *problem = {operator_name}_problems[number];",
        f"    return {upper}_OK;",
        "}",
        f"{prefix}_status {prefix}_{operator_name}_workspace(const {struct_name}* problem, size_t* bytes) {{",
        f"    static const size_t sizes[] = {{{workspace_bytes}}};",
        "    const int number = find(problem);",
        f"    if (number < 0) return {upper}_NOT_HELD;",
        "    if (bytes) *bytes = sizes[number];",
        f"    return {upper}_OK;",
        "}",
    ]
    suffixes = {"": "ALL"}
    if any(library_case.code.setup_lines.lines for library_case in cases):
        suffixes |= {"_prepare": "PREPARE", "_prepared": "REST"}
    for suffix, launch_steps in suffixes.items():
        lines += [
            f"{prefix}_status {prefix}_{operator_name}{suffix}({parameter_list}, cudaStream_t stream) {{",
            f"    return run(problem, {', '.join(names)}, workspace, {launch_steps}, stream);",
            "}",
        ]
    return "\n".join(lines)


def problem_initialiser(library: Library, operator: str, library_case: LibraryCase) -> str:
    """Return the C initialiser of a problem's struct, such as `{64, 128, "f32"}`."""
    values = library_case.case.problem.axes
    initialisers = (
        str(values[name]) if mode is None else c_string(str(values[name]))
        for name, mode in _axes_of_operator(library, operator)
    )
    return f"{{{', '.join(initialisers)}}}"


def _axes_of_operator(library: Library, operator: str) -> list[tuple[str, str | None]]:
    return axes_with_defaults(library.operator(operator))


def _condition(library: Library, library_case: LibraryCase) -> str:
    values = library_case.case.problem.axes
    tests = [
        f"problem->{cpp_name(name)} == {values[name]}"
        if mode is None
        else f"is(problem->{cpp_name(name)}, {c_string(str(values[name]))}, {c_string(mode)})"
        for name, mode in _axes_of_operator(library, library_case.case.problem.name)
    ]
    return " && ".join(tests)


def _unknown_problem_call(library: Library, operator: str, cases: Sequence[LibraryCase]) -> str:
    axes = _axes_of_operator(library, operator)
    format_text = ", ".join(f"{name}=%{'lld' if mode is None else 's'}" for name, mode in axes)
    values = ", ".join(
        f"(long long)problem->{cpp_name(name)}"
        if mode is None
        else f"problem->{cpp_name(name)} ? problem->{cpp_name(name)} : {c_string(mode)}"
        for name, mode in axes
    )
    known_problems = ", ".join(str(library_case.case.problem) for library_case in cases[:MAX_LISTED_PROBLEMS])
    known_problems += f" and {len(cases) - MAX_LISTED_PROBLEMS} more" if len(cases) > MAX_LISTED_PROBLEMS else ""
    text = f"{operator}({format_text}) is not in this library; it holds {known_problems}; to add it: opbench ship"
    return f"say({c_string(text)}, {values});"


def _switch_case(case_index: int, library_case: LibraryCase, upper: str) -> list[str]:
    names = library_case.tensors
    pointers = [*names, *(["workspace"] if library_case.code.workspace else [])]
    checks = " && ".join(f"given({c_string(name)}, {name})" for name in pointers)
    call = f"{library_case.function}({', '.join(names)}, workspace, steps, stream)"
    return [
        f"        case {case_index}:",
        f"            if (!({checks})) return {upper}_BAD_ARGUMENT;",
        f"            return checked({call}, {c_string(library_case.case.name)});",
    ]
