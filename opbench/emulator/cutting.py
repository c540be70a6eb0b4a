"""A request's files cut down to what its kernels need, written where the compiler finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opbench.errors import CompileError, Location
from opbench.kernels.header_text import root_location
from opbench.kernels.launch import BuildRequest
from opbench.source import device_part, scan, sources
from opbench.source.sources import closure


def require_names(request: BuildRequest) -> None:
    """Refuse a kernel whose name is nowhere in the text, before a compiler stumbles over it in the wrapper."""
    try:
        read = closure(request.source, request.include)
    except OSError:
        return
    for root in request.roots:
        name = re.split(r"[<\s]", root)[0].split("::")[-1]
        if not any(re.search(rf"\b{re.escape(name)}\b", sources.plain_code(source.text)) for source in read):
            raise (_no_constant if root in request.constants else no_kernel)(request, root)


def require_device_functions(request: BuildRequest) -> None:
    """Refuse what nvcc refuses and no compiler here does: a kernel that calls a function of the host."""
    found = device_part.host_function(closure(request.source, request.include), request.kernels)
    if found:
        source, function = found
        raise CompileError(
            f"'{function.name}' is a function of the host, which a kernel cannot call: write __device__ before it",
            Location(source.path, function.line),
        )


def require_definitions(request: BuildRequest) -> None:
    """Refuse a variable of the GPU that another file defines: modules are built of one file and are not linked."""
    found = device_part.undefined_variable(closure(request.source, request.include), request.kernels)
    if found:
        source, variable = found
        name = ", ".join(sorted(variable.names))
        raise CompileError(
            f"'{name}' is declared extern and defined in no file that is included: define it in the kernel's file, "
            "without extern (`constants` of the header can fill it)",
            Location(source.path, variable.line),
        )


def _no_constant(request: BuildRequest, name: str) -> CompileError:
    text = request.source.read_text()
    known = sorted(n for one in scan.declarations(text) if "__constant__" in one.marks for n in one.names)
    message = f"constants: no __constant__ variable '{name}'; defined: {', '.join(known) or 'none'}"
    return CompileError(message, root_location(request.source, text, name))


def no_kernel(request: BuildRequest, kernel: str) -> CompileError:
    """Return an error that lists the kernels that the file defines, at the header's line that names another."""
    text = request.source.read_text()
    defined = sorted({found.qualified for found in device_part.kernels_of(text)})
    message = f"no kernel '{kernel}'; defined: {', '.join(defined) or 'none'}"
    return CompileError(message, root_location(request.source, text, kernel))


def has_host_part_in(request: BuildRequest) -> bool:
    """Whether a request's files hold what only a host's compiler takes."""
    try:
        return device_part.has_host_part(closure(request.source, request.include))
    except OSError:
        return False


def leaves_out(request: BuildRequest) -> bool:
    """Whether the file has declarations that its kernels do not need."""
    part = device_part.device_part(closure(request.source, request.include), request.roots)
    return bool(part.set_aside or part.empty)


@dataclass(frozen=True)
class Cut:
    """A file to compile in place of the user's."""

    source: Path
    flags: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    """Headers that are empty where no compiler has them."""
    originals: Mapping[Path, Path] = field(default_factory=dict)
    implied: tuple[str, ...] = ()
    """Standard headers to be included before it."""


def cut_down(request: BuildRequest, folder: Path) -> Cut:
    """The device's part of a request in a folder."""
    read = closure(request.source, request.include)
    part = device_part.device_part(read, request.roots)
    written = device_part.write_texts(part, read, folder)
    flags = ("-idirafter", str(device_part.empty_headers(part.empty))) if part.empty else ()
    return Cut(written[read[0].path], flags, part.empty, {new: old for old, new in written.items()}, part.implied)
