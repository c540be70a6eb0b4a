"""Reduce a request's files to the declarations that its kernels need, and reject code that nvcc would reject."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opbench.errors import CompileError, Location, unknown_name
from opbench.kernels.header_text import root_location
from opbench.kernels.launch import BuildRequest
from opbench.source import device_part, scan, sources
from opbench.source.sources import include_closure


def require_names(request: BuildRequest) -> None:
    """Raise CompileError for a kernel or constant that no file defines; the compiler's own message would mislead."""
    try:
        source_files = include_closure(request.source, request.include)
    except OSError:
        return
    for root in request.roots:
        name = re.split(r"[<\s]", root)[0].split("::")[-1]
        if not any(re.search(rf"\b{re.escape(name)}\b", sources.plain_code(source.text)) for source in source_files):
            raise (_unknown_constant_error if root in request.constants else missing_kernel_error)(request, root)


def require_device_functions(request: BuildRequest) -> None:
    """Raise CompileError if a kernel calls a host function; nvcc rejects that, but a host compiler accepts it."""
    host_call = device_part.host_function(include_closure(request.source, request.include), request.kernels)
    if host_call:
        source, function = host_call
        raise CompileError(
            f"'{function.name}' is a function of the host, which a kernel cannot call: write __device__ before it",
            Location(source.path, function.line),
            kind="host-function",
            subject=function.name,
        )


def require_definitions(request: BuildRequest) -> None:
    """Raise CompileError for a device variable that another file defines; modules are single files without linking."""
    external_variable = device_part.undefined_variable(
        include_closure(request.source, request.include), request.kernels
    )
    if external_variable:
        source, variable = external_variable
        name = ", ".join(sorted(variable.names))
        raise CompileError(
            f"'{name}' is declared extern and defined in no file that is included: define it in the kernel's file, "
            "without extern (`constants` of the header can fill it)",
            Location(source.path, variable.line),
            kind="undefined-variable",
            subject=name,
        )


def _unknown_constant_error(request: BuildRequest, name: str) -> CompileError:
    """Return an error that lists the constants of the file, located at the header's line with the unknown name."""
    text = request.source.read_text()
    constants = sorted(
        constant_name
        for declaration in scan.declarations(text)
        if "__constant__" in declaration.specifiers
        for constant_name in declaration.names
    )
    message = f"constants: no __constant__ variable '{name}'; defined: {', '.join(constants) or 'none'}"
    return CompileError(message, root_location(request.source, text, name))


def missing_kernel_error(request: BuildRequest, kernel: str) -> CompileError:
    """Return an error that lists the kernels in the file, located at the header's line with the unknown name."""
    text = request.source.read_text()
    defined = {kernel.qualified_name for kernel in device_part.kernels_of(text)}
    return CompileError(unknown_name("kernel", kernel, defined), root_location(request.source, text, kernel))


def has_host_part_in(request: BuildRequest) -> bool:
    """Return whether a request's files contain host code."""
    try:
        return device_part.has_host_part(include_closure(request.source, request.include))
    except OSError:
        return False


def can_be_reduced(request: BuildRequest) -> bool:
    """Return whether the files contain declarations, or missing headers, that the request's kernels do not need."""
    device_code = device_part.device_part(include_closure(request.source, request.include), request.roots)
    return bool(device_code.blanked_declarations or device_code.empty)


@dataclass(frozen=True)
class DeviceSource:
    """A file with only the device code, which is compiled instead of the user's file."""

    source: Path
    flags: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    """Headers to replace by empty files if the compiler does not find them."""
    originals: Mapping[Path, Path] = field(default_factory=dict)
    """The user's file of each written file."""
    implied_headers: tuple[str, ...] = ()
    """Standard headers to include before `source`."""


def write_device_source(request: BuildRequest, folder: Path) -> DeviceSource:
    """Write the device code of a request's files into a folder, and return the file to compile."""
    source_files = include_closure(request.source, request.include)
    device_code = device_part.device_part(source_files, request.roots)
    written_paths = device_part.write_device_code(device_code, source_files, folder)
    flags = ("-idirafter", str(device_part.substitute_headers(device_code.empty))) if device_code.empty else ()
    return DeviceSource(
        written_paths[source_files[0].path],
        flags,
        device_code.empty,
        {written_path: original_path for original_path, written_path in written_paths.items()},
        device_code.implied_headers,
    )
