"""The C interface of a library: its header, and functions that select a kernel by problem or report an error."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Tensor
from opbench.shipping.fixed_text import banner, c_string, comment, template, wrap_code
from opbench.shipping.launching import safe
from opbench.shipping.library import Library, LibraryCase, axes_of, names_of, parameters

MAX_SHOWN = 8
"""Most problems that an error message lists."""


def header_text(library: Library) -> str:
    """Return the text of the header."""
    n, upper = library.name, library.name.upper()
    preamble = template("header").replace("@n@", n).replace("@N@", upper).replace("@arch@", library.arch)
    lines = [*banner(library.gpu, library.arch, library.command), f"#ifndef {upper}_H", f"#define {upper}_H", preamble]
    for operator, case in library.cases.items():
        lines += ["", wrap_code("\n".join(_operator_header(library, operator, case)))]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _operator_header(library: Library, operator: str, cases: Sequence[LibraryCase]) -> list[str]:
    n, operator_class, o = library.name, library.operator(operator), safe(operator)
    doc = (inspect.getdoc(operator_class) or "").split("\n\n", maxsplit=1)[0]
    lines = [f"/* ---- {operator}", *comment(doc), "   Tensors:"]
    tensors = {t.name: (t, "in ", library_case) for library_case in reversed(cases) for t in library_case.code.inputs}
    tensors |= {t.name: (t, "out", library_case) for library_case in reversed(cases) for t in library_case.code.outputs}
    order = [name for name in names_of(cases) if name in {safe(t) for t in tensors}]
    by_name = {safe(name): value for name, value in tensors.items()}
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
        *(_field(operator_class, *axis) for axis in axes_of(operator_class)),
        f"}} {n}_{o}_problem;",
    ]
    function = f"{n}_status {n}_{o}"
    problem = f"const {n}_{o}_problem* problem"
    parameter_list = f"({problem}, {parameters(cases)}, void* workspace, cudaStream_t stream);"
    lines += [
        "/* How many problems there are, and the one of a number. */",
        f"int {n}_{o}_count(void);",
        f"{function}_at(int number, {n}_{o}_problem* problem);",
        f"{function}_workspace({problem}, size_t* bytes);",
        f"{function}{parameter_list}",
    ]
    if any(library_case.code.setup_lines.lines for library_case in cases):
        constant_inputs = ", ".join(sorted({name for library_case in cases for name in library_case.case.setup.inputs}))
        lines += [
            f"/* The same in two steps: what is made of {constant_inputs} alone stays in the workspace, so that",
            "   further calls with that workspace need not make it again while these stay as they are. */",
            f"{function}_prepare{parameter_list}",
            f"{function}_prepared{parameter_list}",
        ]
    return lines


def _field(operator_class: type[Operator], name: str, default: str | None) -> str:
    if default is None:
        return f"    int64_t {safe(name)};"
    other_values = [value for value in operator_class.choices.get(name, ()) if value != default]
    choices = " or ".join(f'"{value}"' for value in (default, *other_values))
    return f"    const char* {safe(name)}; /* {choices} */"


def _tensor_text(problem: Operator, tensor: Tensor) -> str:
    """Return a tensor as text, with the names of its axes."""
    declared: Mapping[str, str] = {**problem.inputs, **problem.outputs}
    return f"{tensor.name} [{', '.join(declared[tensor.name].split())}]"


# The functions ----------------------------------------------------------------------------------------------------


def common_text(library: Library) -> str:
    """Return the code that all functions use."""
    digits = library.arch.removeprefix("sm_").rstrip("a")
    values = {
        "n": library.name,
        "N": library.name.upper(),
        "major": digits[:-1],
        "minor": digits[-1],
        "exact": str(library.arch.endswith("a")).lower(),
        "arch": library.arch,
    }
    text = template("interface")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def functions_text(library: Library, operator: str, cases: Sequence[LibraryCase]) -> str:
    """Return the functions of one operator."""
    n, o, upper = library.name, safe(operator), library.name.upper()
    names, struct_name = names_of(cases), f"{library.name}_{safe(operator)}_problem"
    parameter_list = f"const {struct_name}* problem, {parameters(cases)}, void* workspace"
    workspace_bytes = ", ".join(str(library_case.code.workspace_bytes) for library_case in cases)
    lines = [
        f"// ---- {operator} " + "-" * (110 - len(operator)),
        f"static int find(const {struct_name}* problem) {{",
        "    if (!problem) {",
        '        say("the problem is a null pointer");',
        "        return -1;",
        "    }",
        *(
            f"    if ({_test(library, library_case)}) return {case_index};"
            for case_index, library_case in enumerate(cases)
        ),
        f"    {_refusal(library, operator, cases)}",
        "    return -1;",
        "}",
        f"static {n}_status run({parameter_list}, unsigned steps, cudaStream_t stream) {{",
        *(f"    (void){name};" for name in names if any(name not in library_case.tensors for library_case in cases)),
        "    const int number = find(problem);",
        f"    if (number < 0) return {upper}_NOT_HELD;",
        f"    if ({n}_status status = on_this_gpu()) return status;",
        "    switch (number) {",
        *(line for case_index, library_case in enumerate(cases) for line in _call(case_index, library_case, upper)),
        "    }",
        f"    return {upper}_NOT_HELD;",
        "}",
        f"static const {struct_name} {o}_problems[] = {{",
        *(f"    {row(library, operator, library_case)}," for library_case in cases),
        "};",
        f"int {n}_{o}_count(void) {{ return {len(cases)}; }}",
        f"{n}_status {n}_{o}_at(int number, {struct_name}* problem) {{",
        f"    if (!problem || number < 0 || number >= {len(cases)}) {{",
        f'        say("{operator}: there is no problem %d; 0 to {len(cases) - 1} are there", number);',
        f"        return {upper}_BAD_ARGUMENT;",
        "    }",
        f"    *problem = {o}_problems[number];",
        f"    return {upper}_OK;",
        "}",
        f"{n}_status {n}_{o}_workspace(const {struct_name}* problem, size_t* bytes) {{",
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
            f"{n}_status {n}_{o}{suffix}({parameter_list}, cudaStream_t stream) {{",
            f"    return run(problem, {', '.join(names)}, workspace, {launch_steps}, stream);",
            "}",
        ]
    return "\n".join(lines)


def row(library: Library, operator: str, library_case: LibraryCase) -> str:
    """Return the C initialiser of a problem."""
    values = library_case.case.problem.axes
    initialisers = (
        str(values[name]) if mode is None else c_string(str(values[name])) for name, mode in _axes(library, operator)
    )
    return f"{{{', '.join(initialisers)}}}"


def _axes(library: Library, operator: str) -> list[tuple[str, str | None]]:
    return axes_of(library.operator(operator))


def _test(library: Library, library_case: LibraryCase) -> str:
    values = library_case.case.problem.axes
    tests = [
        f"problem->{safe(name)} == {values[name]}"
        if mode is None
        else f"is(problem->{safe(name)}, {c_string(str(values[name]))}, {c_string(mode)})"
        for name, mode in _axes(library, library_case.case.problem.name)
    ]
    return " && ".join(tests)


def _refusal(library: Library, operator: str, cases: Sequence[LibraryCase]) -> str:
    axes = _axes(library, operator)
    format_text = ", ".join(f"{name}=%{'lld' if mode is None else 's'}" for name, mode in axes)
    values = ", ".join(
        f"(long long)problem->{safe(name)}"
        if mode is None
        else f"problem->{safe(name)} ? problem->{safe(name)} : {c_string(mode)}"
        for name, mode in axes
    )
    known_problems = ", ".join(str(library_case.case.problem) for library_case in cases[:MAX_SHOWN])
    known_problems += f" and {len(cases) - MAX_SHOWN} more" if len(cases) > MAX_SHOWN else ""
    text = f"{operator}({format_text}) is not in this library; it holds {known_problems}; to add it: opbench ship"
    return f"say({c_string(text)}, {values});"


def _call(case_index: int, library_case: LibraryCase, upper: str) -> list[str]:
    names = library_case.tensors
    pointers = [*names, *(["workspace"] if library_case.code.workspace else [])]
    checks = " && ".join(f"given({c_string(name)}, {name})" for name in pointers)
    call = f"{library_case.function}({', '.join(names)}, workspace, steps, stream)"
    return [
        f"        case {case_index}:",
        f"            if (!({checks})) return {upper}_BAD_ARGUMENT;",
        f"            return checked({call}, {c_string(library_case.case.name)});",
    ]
