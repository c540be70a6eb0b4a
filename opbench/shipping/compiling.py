"""Compile the kernels' text with NVRTC: the cubin, the kernels' names in it, and the sizes of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opbench.errors import CompileError, EnvironmentFault
from opbench.gpu.compile import standard
from opbench.gpu.compile.cubin import read_cubin
from opbench.gpu.compile.nvrtc import include_options, library
from opbench.shipping.kernel_text import DeviceText, KernelText

COMPILER_OPTIONS = ("--std=c++17", "-default-device")


@dataclass(frozen=True)
class CompiledText:
    """The machine code (cubin) of all kernels; empty if no compiler is installed."""

    arch: str
    cubin: bytes = b""
    names: Mapping[str, str] = field(default_factory=dict)
    """For each qualified kernel or variable, its name in the cubin."""
    parameter_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each qualified kernel, the bytes of its parameters."""
    failure_reason: str = ""
    """Why there is no cubin; empty if there is one."""


def architecture(texts: Iterable[KernelText], arch: str) -> str:
    """Return the architecture to compile for, with its own features (such as sm_90a) if a kernel needs them."""
    needs_own_features = any(kernel_text.request.compute_capability.endswith("a") for kernel_text in texts)
    return arch + "a" * (needs_own_features and not arch.endswith("a"))


def qualified_names(texts: Iterable[KernelText]) -> tuple[list[str], list[str]]:
    """Return the qualified C++ names of the kernels, and those of their constant-memory variables."""
    kernels = [kernel_text.qualified_name(kernel) for kernel_text in texts for kernel in kernel_text.request.kernels]
    return kernels, [
        kernel_text.qualified_name(name) for kernel_text in texts for name in kernel_text.request.constants
    ]


def compile_text(text: DeviceText, texts: Iterable[KernelText], arch: str) -> CompiledText:
    """Compile the kernels for an architecture such as "sm_90".

    Without a compiler the result has no cubin, and `failure_reason` says why. Raises CompileError, with the compiler's
    messages, for kernels that do not compile.
    """
    kernel_texts = list(texts)
    try:
        compiler = library(arch)
        include_folders = include_options(arch)
    except EnvironmentFault as error:
        return CompiledText(arch, failure_reason=str(error))
    kernels, variables = qualified_names(kernel_texts)
    headers = {**standard.headers(name[1:-1] for name in text.system_headers), **text.headers}
    options = [f"-arch={arch}", *COMPILER_OPTIONS, *include_folders]
    expressions = [*kernels, *(f"&{name}" for name in variables)]
    compiled, log, names = compiler.compile(str(text).encode(), "kernels.cu", options, headers, expressions)
    if compiled is None:
        raise CompileError(
            f"the kernels do not compile together for {arch}; correct the lines named here:\n{log}",
            kind="not-compiled",
            subject=arch,
        )
    code, _ = compiled
    mangled = {key.removeprefix("&"): value for key, value in names.items()}
    sizes = {name: kernel.parameter_bytes for name, kernel in read_cubin(code).kernels.items()}
    found_sizes = {kernel: sizes[mangled[kernel]] for kernel in kernels if mangled[kernel] in sizes}
    return CompiledText(arch, code, mangled, found_sizes)
