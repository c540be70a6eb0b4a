"""Build files for the shipped sources: a Makefile, a CMakeLists.txt, and a README with instructions."""

from __future__ import annotations

from collections.abc import Sequence

from opbench.shipping.fixed_text import template


def code_of(arch: str) -> str:
    """Return nvcc's options for an architecture: machine code, and PTX if newer GPUs can use it."""
    digits = arch.removeprefix("sm_")
    ptx = "" if digits.endswith("a") else f" -gencode arch=compute_{digits},code=compute_{digits}"
    return f"-gencode arch=compute_{digits},code=sm_{digits}{ptx}"


def cmake_of(arch: str) -> str:
    """Return CMake's options for an architecture, as `code_of` does for nvcc."""
    digits = arch.removeprefix("sm_")
    return f"{digits}-real" if digits.endswith("a") else digits


def makefile(name: str, arch: str, kind: str, cubin: str) -> str:
    """Return a plain Makefile of a library or a network's program."""
    text = template(f"makefile_{kind}")
    return _filled(text, name, arch, cubin) + "\n"


def cmakelists(name: str, arch: str, kind: str) -> str:
    """Return a CMakeLists.txt of a library or a network's program, for CMake 3.24 and newer."""
    return _filled(template(f"cmake_{kind}"), name, arch, "") + "\n"


def _filled(text: str, name: str, arch: str, cubin: str) -> str:
    values = {"name": name, "arch": arch, "code": code_of(arch), "cmake": cmake_of(arch), "cubin": cubin}
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table; the first row is the header."""
    heading, *body = rows
    return [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *body)]
