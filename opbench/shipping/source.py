"""The source of a library: its kernels, their launches, one function per problem, and the functions of the header."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

from opbench.shipping.compiling import CompiledText
from opbench.shipping.fixed_text import Needs, banner, includes, launch_support, template, wrap_code
from opbench.shipping.interface import common_text, functions_text
from opbench.shipping.kernel_text import DeviceText, KernelText
from opbench.shipping.launching import LaunchCode, StepLines, aligned, handle, safe
from opbench.shipping.library import Library, LibraryCase

STEPS = "enum Steps : unsigned { PREPARE = 1, REST = 2, ALL = 3 };"


def source_text(library: Library) -> str:
    """Return the whole source."""
    codes = [case.code for case in library.all_cases]
    sections = [
        "\n".join([*banner(library.gpu, library.arch, library.command), "//", *_contents(library)]),
        f'#include "{library.name}.h"',
        *kernels_and_launching(library.text, library.kernels, library.compiled, codes),
        "// ---- launches: a function a problem " + "-" * 84,
        STEPS,
        *(wrap_code(_function(case)) for case in library.all_cases),
        common_text(library),
        *(wrap_code(functions_text(library, operator, case)) for operator, case in library.cases.items()),
    ]
    return "\n\n".join(sections) + "\n"


def kernels_and_launching(
    text: DeviceText, texts: Sequence[KernelText], compiled: CompiledText, codes: Sequence[LaunchCode]
) -> list[str]:
    """Return the kernels, their handles, and the support functions that the launches need."""
    needs = functools.reduce(operator.or_, (code.needs for code in codes), Needs.NOTHING)
    return [
        "\n".join(includes(needs)),
        f"#ifdef __CUDACC__  // -------- kernels: for the GPU's compiler\n{text}#endif  // kernels",
        template("cubin") + "\n" + "\n".join(_handles(texts, compiled)),
        launch_support(needs),
    ]


def _contents(library: Library) -> list[str]:
    lines = ["// In this order: kernels, each in a namespace of its own; what launches them; a function a problem; the"]
    lines += ["// functions of the header. The kernels:"]
    return lines + [f"//   {kernel_text.space}: {kernel_text.variant.title}" for kernel_text in library.kernels]


def _handles(texts: Iterable[KernelText], compiled: CompiledText) -> list[str]:
    """Return one line per kernel and one per variable."""
    lines = []
    for kernel_text in texts:
        for macro, names in (("KERNEL", kernel_text.request.kernels), ("CONSTANT", kernel_text.request.constants)):
            for name in names:
                qualified = kernel_text.qualified(name)
                lines.append(
                    f'{macro}({handle(kernel_text, name)}, "{compiled.names.get(qualified, "")}", {qualified})'
                )
    return lines


def _function(library_case: LibraryCase) -> str:
    """Return the function that launches one case."""
    code = library_case.code
    parameter_list = [
        *(f"const void* {safe(t.name)}" for t in code.inputs),
        *(f"void* {safe(t.name)}" for t in code.outputs),
    ]
    lines = [
        f"// {library_case.case.name}",
        f"static cudaError_t {library_case.function}({', '.join(parameter_list)}, void* workspace, unsigned steps,",
        f"{' ' * (len(library_case.function) + 20)}cudaStream_t stream) {{",
        *([] if code.workspace else ["    (void)workspace;"]),
        *([] if code.setup_lines.lines else ["    if (!(steps & REST)) return cudaSuccess;"]),
        *workspaces(code),
        *updates(code),
        *_guarded(code.setup_lines, "PREPARE"),
        *_guarded(code.other_lines, "REST" if code.setup_lines.lines else ""),
        "    return cudaSuccess;",
        "}",
    ]
    return "\n".join(lines)


def workspaces(code: LaunchCode, excluded: Iterable[str] = ()) -> list[str]:
    """Return the declaration of each workspace, and `(void)` lines for tensors that no launch names."""
    lines, offset = [], 0
    for tensor in code.workspace:
        if tensor.name in excluded:
            continue
        text = f"{tensor.elements} of {tensor.dtype}"
        lines.append(f"    void* const {safe(tensor.name)} = at(workspace, {offset});  // {text}")
        offset += aligned(tensor.nbytes)
    used_names = code.setup_lines.reads | code.other_lines.reads
    unused = [
        t.name
        for t in (*code.inputs, *code.outputs)
        if t.name not in {*used_names, *code.updates, *code.updates.values()}
    ]
    return lines + [f"    (void){safe(name)};" for name in unused]


def updates(code: LaunchCode) -> list[str]:
    """Return the copies that initialise the outputs of a kernel that only updates its outputs."""
    lines = []
    for output_name, input_name in code.updates.items():
        nbytes = next(tensor.nbytes for tensor in code.outputs if tensor.name == output_name)
        output, source = safe(output_name), safe(input_name)
        lines.append(f"    if ({output} != {source})  // updated where it lies")
        lines.append(f"        TRY(cudaMemcpyAsync({output}, {source}, {nbytes}, cudaMemcpyDeviceToDevice, stream));")
    return lines


def _guarded(step_lines: StepLines, step_flag: str) -> list[str]:
    if not step_lines.lines:
        return []
    if not step_flag:
        return [f"    {line}" for line in step_lines.lines]
    return [f"    if (steps & {step_flag}) {{", *(f"        {line}" for line in step_lines.lines), "    }"]
