"""Compile the kernels' text with NVRTC: the cubin, the kernels' names in it, and the sizes of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opbench.errors import CompileError, EnvironmentFault
from opbench.gpu.compile import standard
from opbench.gpu.compile.cubin import read_cubin
from opbench.gpu.compile.nvrtc import include_options, library
from opbench.shipping.kernel_text import DeviceText, KernelText

OPTIONS = ("--std=c++17", "-default-device")


@dataclass(frozen=True)
class CompiledText:
    """A cubin of all kernels, or nothing without a compiler."""

    arch: str
    cubin: bytes = b""
    names: Mapping[str, str] = field(default_factory=dict)
    """For each qualified kernel or variable, its name in the cubin."""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each qualified kernel, the bytes of its parameters."""
    why_not: str = ""
    """Why there is no cubin; empty if there is one."""


def architecture(texts: Iterable[KernelText], arch: str) -> str:
    """Return the architecture to compile for, with its own features (such as sm_90a) if a kernel needs them."""
    needs_own_features = any(kernel_text.request.compute_capability.endswith("a") for kernel_text in texts)
    return arch + "a" * (needs_own_features and not arch.endswith("a"))


def roots(texts: Iterable[KernelText]) -> tuple[list[str], list[str]]:
    """Return the qualified names of the kernels and of the variables."""
    kernels = [kernel_text.qualified(kernel) for kernel_text in texts for kernel in kernel_text.request.kernels]
    return kernels, [kernel_text.qualified(name) for kernel_text in texts for name in kernel_text.request.constants]


def compile_text(text: DeviceText, texts: Iterable[KernelText], arch: str) -> CompiledText:
    """Compile the text; raises CompileError with the compiler's lines."""
    kernel_texts = list(texts)
    try:
        compiler = library(arch)
        include_folders = include_options(arch)
    except EnvironmentFault as error:
        return CompiledText(arch, why_not=str(error))
    kernels, variables = roots(kernel_texts)
    headers = {**standard.headers(name[1:-1] for name in text.system), **text.headers}
    options = [f"-arch={arch}", *OPTIONS, *include_folders]
    expressions = [*kernels, *(f"&{name}" for name in variables)]
    compiled, log, names = compiler.compile(str(text).encode(), "kernels.cu", options, headers, expressions)
    if compiled is None:
        raise CompileError(f"the kernels do not compile together for {arch}; correct the lines named here:\n{log}")
    code, _ = compiled
    mangled = {key.removeprefix("&"): value for key, value in names.items()}
    sizes = {name: kernel.parameter_bytes for name, kernel in read_cubin(code).kernels.items()}
    found_sizes = {kernel: sizes[mangled[kernel]] for kernel in kernels if mangled[kernel] in sizes}
    return CompiledText(arch, code, mangled, found_sizes)
