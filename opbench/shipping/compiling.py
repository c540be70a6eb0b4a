"""What NVRTC makes of the kernels' text: a cubin, kernels' names in it, and the bytes of their parameters."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elftools.elf.elffile import ELFFile

from opbench.errors import CompileError, EnvironmentFault
from opbench.gpu.compile import standard
from opbench.gpu.compile.nvrtc import include_options, library
from opbench.shipping.pieces import DeviceText, KernelText
from opbench.source.sources import includes

OPTIONS = ("--std=c++17", "-default-device")
_PARAMETER = b"\x04\x17\x0c\x00"
"""An attribute of `.nv.info.KERNEL` that tells of one parameter: three words, the last with its bytes."""


@dataclass(frozen=True)
class CompiledText:
    """A cubin of all pieces, or nothing where no compiler is here."""

    arch: str
    cubin: bytes = b""
    names: Mapping[str, str] = field(default_factory=dict)
    """By qualified kernel, or variable, what the cubin calls it."""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By qualified kernel, the bytes of its parameters."""
    why_not: str = ""
    """Why there is no cubin."""


def architecture(found: Iterable[KernelText], arch: str) -> str:
    """The architecture that all pieces compile for: with its own features where one of them needs these."""
    own = any(piece.request.compute_capability.endswith("a") for piece in found)
    return arch + "a" * (own and not arch.endswith("a"))


def roots(found: Iterable[KernelText]) -> tuple[list[str], list[str]]:
    """The qualified kernels and variables of some pieces."""
    kernels = [piece.qualified(kernel) for piece in found for kernel in piece.request.kernels]
    return kernels, [piece.qualified(name) for piece in found for name in piece.request.constants]


def compile_text(text: DeviceText, found: Iterable[KernelText], arch: str) -> CompiledText:
    """The text compiled; raises CompileError with the compiler's lines."""
    pieces = list(found)
    try:
        compiler = library(arch)
        folders = include_options(arch)
    except EnvironmentFault as error:
        return CompiledText(arch, why_not=str(error))
    kernels, variables = roots(pieces)
    source = str(text)
    headers = {**standard.headers(name[1:-1] for _, name in includes(source)), **text.headers}
    options = [f"-arch={arch}", *OPTIONS, *folders]
    expressions = [*kernels, *(f"&{name}" for name in variables)]
    code, log, names = compiler.compile(source.encode(), "kernels.cu", options, headers, expressions)
    if code is None:
        raise CompileError(f"the kernels do not compile together for {arch}:\n{log}")
    lowered = {key.removeprefix("&"): value for key, value in names.items()}
    sizes = parameter_bytes(code)
    found_sizes = {kernel: sizes[lowered[kernel]] for kernel in kernels if lowered[kernel] in sizes}
    return CompiledText(arch, code, lowered, found_sizes)


def parameter_bytes(cubin: bytes) -> dict[str, tuple[int, ...]]:
    """The bytes of each kernel's parameters, in order; a kernel that takes none is left out."""
    found: dict[str, tuple[int, ...]] = {}
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        name, content = str(section.name), section.data()
        if not name.startswith(".nv.info."):
            continue
        by_ordinal: dict[int, int] = {}
        place = content.find(_PARAMETER)
        while place >= 0:
            _, ordinal, _, word = struct.unpack_from("<IHHI", content, place + 4)
            by_ordinal[ordinal] = word >> 18
            place = content.find(_PARAMETER, place + 16)
        found[name.removeprefix(".nv.info.")] = tuple(by_ordinal[i] for i in sorted(by_ordinal))
    return found
