"""Prepare the source text for NVRTC: a whole file, or only the code that its kernels need."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.errors import CompileError, unknown_name
from opbench.gpu.compile import standard
from opbench.kernels.header_text import root_location
from opbench.kernels.launch import BuildRequest
from opbench.source import device_part
from opbench.source.scan import Declaration
from opbench.source.sources import Source, includes


@dataclass(frozen=True)
class Unit:
    """A source text for NVRTC, and the headers that it includes."""

    text: bytes
    headers: Mapping[str, str]
    key: str
    """Text that decides the cubin in addition to the files; empty for a file that is compiled as it is."""
    is_reduced: bool
    """Whether the text has only the code that the kernels need."""


def whole_unit(sources: Sequence[Source]) -> Unit:
    """Return a whole file, with the standard headers that it includes."""
    names = {name[1:-1] for source in sources for _, name in includes(source.text)}
    texts = standard.headers(names)
    return Unit(sources[0].content, texts, repr(sorted(texts.items())) if texts else "", False)


def reduced_unit(request: BuildRequest, sources: Sequence[Source], folders: Sequence[Path]) -> Unit:
    """Return the code that a request's kernels need; headers that no folder contains are empty."""
    device_code = device_part.device_part(sources, request.roots)
    names = {name[1:-1] for source in sources for _, name in includes(device_code.texts[source.path])}
    missing = [name for name in device_code.empty if not any((folder / name).is_file() for folder in folders)]
    headers = {
        **{name: device_part.substitute_header(name) for name in missing},
        **standard.headers({*names, *device_code.implied_headers, "cstdint"}),
    }
    include_paths = {source.path: Path(f"opbench-{number}/{source.path.name}") for number, source in enumerate(sources)}
    texts = {
        source.path: device_part.redirect_includes(device_code.texts[source.path], source.path, include_paths)
        for source in sources
    }
    for source in sources[1:]:
        headers[str(include_paths[source.path])] = f'#line 1 "{source.path.absolute()}"\n{texts[source.path]}'
    # nvcc also starts every file with the numbers and types of C.
    implied_includes = "".join(f"#include <{name}>\n" for name in device_code.implied_headers)
    text = (
        f'#include "{standard.COMMON}"\n{implied_includes}#line 1 "{request.source}"\n{texts[sources[0].path]}'.encode()
    )
    return Unit(text, headers, repr((text, sorted(headers.items()))), True)


def name_expressions(request: BuildRequest, sources: Sequence[Source]) -> list[str]:
    """Return the names whose mangled forms NVRTC must report: templates and functions with C++ linkage."""
    c_linkage_names = {kernel.name for source in sources for kernel in _kernels(source) if "C" in kernel.specifiers}
    # If no kernel is visible, macros define all of them, and their linkage is not known.
    has_kernels = any(_kernels(source) for source in sources)
    kernels = [
        name for name in request.kernels if name not in c_linkage_names and (has_kernels or not name.isidentifier())
    ]
    return [*kernels, *(f"&{name}" for name in request.constants)]


@functools.lru_cache(256)
def _kernels(source: Source) -> tuple[Declaration, ...]:
    return tuple(device_part.kernels_of(source.text)) if b"__global__" in source.content else ()


def unknown_kernel_error(log: str, request: BuildRequest, sources: Sequence[Source]) -> CompileError | None:
    """Return an error for a name that matches no kernel; None if the compiler's log has another error."""
    known = sorted({kernel.qualified_name for source in sources for kernel in _kernels(source)})
    for kernel in request.kernels:
        plain_name = re.split(r"[<\s]", kernel)[0].removeprefix("::")
        unqualified_name = plain_name.rpartition("::")[2]
        if f'"{unqualified_name}"' in log and all(name.rpartition("::")[2] != unqualified_name for name in known):
            location = root_location(sources[0].path, sources[0].text, kernel)
            return CompileError(unknown_name("kernel", kernel, known), location)
    return None
