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
    parts = [
        "\n".join([*banner(library.gpu, library.arch, library.command), "//", *_contents(library)]),
        f'#include "{library.name}.h"',
        *kernels_and_launching(library.text, library.kernels, library.compiled, codes),
        "// ---- launches: a function a problem " + "-" * 84,
        STEPS,
        *(wrap_code(_function(case)) for case in library.all_cases),
        common_text(library),
        *(wrap_code(functions_text(library, operator, case)) for operator, case in library.cases.items()),
    ]
    return "\n\n".join(parts) + "\n"


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
    return lines + [f"//   {piece.space}: {piece.variant.title}" for piece in library.kernels]


def _handles(texts: Iterable[KernelText], compiled: CompiledText) -> list[str]:
    """Return one line per kernel and one per variable."""
    lines = []
    for piece in texts:
        for kind, names in (("KERNEL", piece.request.kernels), ("CONSTANT", piece.request.constants)):
            for name in names:
                qualified = piece.qualified(name)
                lines.append(f'{kind}({handle(piece, name)}, "{compiled.names.get(qualified, "")}", {qualified})')
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
        *([] if code.once.lines else ["    if (!(steps & REST)) return cudaSuccess;"]),
        *workspaces(code),
        *updates(code),
        *_guarded(code.once, "PREPARE"),
        *_guarded(code.rest, "REST" if code.once.lines else ""),
        "    return cudaSuccess;",
        "}",
    ]
    return "\n".join(lines)


def workspaces(code: LaunchCode, left_out: Iterable[str] = ()) -> list[str]:
    """Return the declaration of each workspace, and `(void)` lines for tensors that no launch names."""
    lines, offset = [], 0
    for tensor in code.workspace:
        if tensor.name in left_out:
            continue
        text = f"{tensor.elements} of {tensor.dtype}"
        lines.append(f"    void* const {safe(tensor.name)} = at(workspace, {offset});  // {text}")
        offset += aligned(tensor.nbytes)
    named = code.once.reads | code.rest.reads
    idle = [
        t.name for t in (*code.inputs, *code.outputs) if t.name not in {*named, *code.updates, *code.updates.values()}
    ]
    return lines + [f"    (void){safe(name)};" for name in idle]


def updates(code: LaunchCode) -> list[str]:
    """Return the copies that initialise the outputs of a kernel that only updates them."""
    lines = []
    for new, old in code.updates.items():
        nbytes = next(tensor.nbytes for tensor in code.outputs if tensor.name == new)
        lines.append(f"    if ({safe(new)} != {safe(old)})  // updated where it lies")
        lines.append(
            f"        TRY(cudaMemcpyAsync({safe(new)}, {safe(old)}, {nbytes}, cudaMemcpyDeviceToDevice, stream));"
        )
    return lines


def _guarded(step_lines: StepLines, when: str) -> list[str]:
    if not step_lines.lines:
        return []
    if not when:
        return [f"    {line}" for line in step_lines.lines]
    return [f"    if (steps & {when}) {{", *(f"        {line}" for line in step_lines.lines), "    }"]
