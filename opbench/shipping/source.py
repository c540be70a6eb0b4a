"""The source of a library: its kernels, their launches, one function per problem, and the functions of the header."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

from opbench.kernels.expression import round_up
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT, Tensor
from opbench.shipping.compiling import CompiledText
from opbench.shipping.fixed_text import SupportFunctions, banner, includes, launch_support, template, wrap_code
from opbench.shipping.interface import common_text, functions_text
from opbench.shipping.kernel_text import DeviceText, KernelText
from opbench.shipping.launching import LaunchCode, StepLines, cpp_name, handle_name
from opbench.shipping.library import Library, LibraryCase

STEPS = "enum Steps : unsigned { PREPARE = 1, REST = 2, ALL = 3 };"


def source_text(library: Library) -> str:
    """Return the C++ and CUDA source of a library."""
    codes = [case.code for case in library.all_cases]
    sections = [
        "\n".join([*banner(library.gpu, library.arch, library.command), "//", *_contents_comment(library)]),
        f'#include "{library.name}.h"',
        *kernels_and_launching(library.text, library.kernels, library.compiled, codes),
        "// ---- launches: a function a problem " + "-" * 84,
        STEPS,
        *(wrap_code(_launch_function(case)) for case in library.all_cases),
        common_text(library),
        *(wrap_code(functions_text(library, operator, case)) for operator, case in library.cases.items()),
    ]
    return "\n\n".join(sections) + "\n"


def kernels_and_launching(
    text: DeviceText, texts: Sequence[KernelText], compiled: CompiledText, codes: Sequence[LaunchCode]
) -> list[str]:
    """Return the kernels, their handles, and the support functions that the launches need."""
    needs = functools.reduce(operator.or_, (code.needs for code in codes), SupportFunctions.NOTHING)
    return [
        "\n".join(includes(needs)),
        f"#ifdef __CUDACC__  // -------- kernels: for the GPU's compiler\n{text}#endif  // kernels",
        template("cubin") + "\n" + "\n".join(_handle_lines(texts, compiled)),
        launch_support(needs),
    ]


def _contents_comment(library: Library) -> list[str]:
    lines = ["// Contents in this order: kernels, each in its own namespace; functions that launch kernels;"]
    lines += ["// one function per problem; the functions of the header. The kernels:"]
    return lines + [f"//   {kernel_text.namespace}: {kernel_text.variant.title}" for kernel_text in library.kernels]


def _handle_lines(texts: Iterable[KernelText], compiled: CompiledText) -> list[str]:
    """Return the C++ lines that define a handle for each kernel and each constant-memory variable."""
    lines = []
    for kernel_text in texts:
        for macro, names in (("KERNEL", kernel_text.request.kernels), ("CONSTANT", kernel_text.request.constants)):
            for name in names:
                qualified = kernel_text.qualified_name(name)
                lines.append(
                    f'{macro}({handle_name(kernel_text, name)}, "{compiled.names.get(qualified, "")}", {qualified})'
                )
    return lines


def _launch_function(library_case: LibraryCase) -> str:
    """Return the C++ function that launches the kernels of one case."""
    code = library_case.code
    parameter_list = [
        *(f"const void* {cpp_name(t.name)}" for t in code.inputs),
        *(f"void* {cpp_name(t.name)}" for t in code.outputs),
    ]
    lines = [
        f"// {library_case.case.name}",
        f"static cudaError_t {library_case.function}({', '.join(parameter_list)}, void* workspace, unsigned steps,",
        f"{' ' * (len(library_case.function) + 20)}cudaStream_t stream) {{",
        *([] if code.workspace else ["    (void)workspace;"]),
        *([] if code.setup_lines.lines else ["    if (!(steps & REST)) return cudaSuccess;"]),
        *workspace_lines(code),
        *update_lines(code),
        *_guard_by_step(code.setup_lines, "PREPARE"),
        *_guard_by_step(code.other_lines, "REST" if code.setup_lines.lines else ""),
        "    return cudaSuccess;",
        "}",
    ]
    return "\n".join(lines)


def workspace_declarations(tensors: Iterable[Tensor]) -> list[str]:
    """Return the declaration of each workspace, one after another in the memory `workspace`."""
    lines, offset = [], 0
    for tensor in tensors:
        text = f"{tensor.elements} of {tensor.dtype}"
        lines.append(f"    void* const {cpp_name(tensor.name)} = at(workspace, {offset});  // {text}")
        offset += round_up(tensor.nbytes, WORKSPACE_ALIGNMENT)
    return lines


def workspace_lines(code: LaunchCode) -> list[str]:
    """Return the declaration of each workspace, and `(void)` lines for tensors that no launch names."""
    used_names = code.setup_lines.reads | code.other_lines.reads
    unused = [
        t.name
        for t in (*code.inputs, *code.outputs)
        if t.name not in {*used_names, *code.updates, *code.updates.values()}
    ]
    return workspace_declarations(code.workspace) + [f"    (void){cpp_name(name)};" for name in unused]


def update_lines(code: LaunchCode) -> list[str]:
    """Return the copies that initialise the outputs of a kernel that only updates its outputs."""
    lines = []
    for output_name, input_name in code.updates.items():
        nbytes = next(tensor.nbytes for tensor in code.outputs if tensor.name == output_name)
        output, source = cpp_name(output_name), cpp_name(input_name)
        lines.append(f"    if ({output} != {source})// the kernel updates this buffer")
        lines.append(f"        TRY(cudaMemcpyAsync({output}, {source}, {nbytes}, cudaMemcpyDeviceToDevice, stream));")
    return lines


def _guard_by_step(step_lines: StepLines, step_flag: str) -> list[str]:
    if not step_lines.lines:
        return []
    if not step_flag:
        return [f"    {line}" for line in step_lines.lines]
    return [f"    if (steps & {step_flag}) {{", *(f"        {line}" for line in step_lines.lines), "    }"]
