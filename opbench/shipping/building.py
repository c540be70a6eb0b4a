"""What builds the shipped sources: a Makefile, a CMakeLists.txt, and a README that says how."""

from __future__ import annotations

from collections.abc import Sequence

from opbench.shipping.fixed_text import template


def code_of(arch: str) -> str:
    """nvcc's options for an architecture: machine code, and PTX where a newer GPU may take it."""
    digits = arch.removeprefix("sm_")
    ptx = "" if digits.endswith("a") else f" -gencode arch=compute_{digits},code=compute_{digits}"
    return f"-gencode arch=compute_{digits},code=sm_{digits}{ptx}"


def cmake_of(arch: str) -> str:
    """The same for CMake."""
    digits = arch.removeprefix("sm_")
    return f"{digits}-real" if digits.endswith("a") else digits


def makefile(name: str, arch: str, kind: str, cubin: str) -> str:
    """A plain Makefile of a library or a network's program."""
    text = template(f"makefile_{kind}")
    return _filled(text, name, arch, cubin) + "\n"


def cmakelists(name: str, arch: str, kind: str) -> str:
    """The same for CMake from 3.24."""
    return _filled(template(f"cmake_{kind}"), name, arch, "") + "\n"


def _filled(text: str, name: str, arch: str, cubin: str) -> str:
    known = {"name": name, "arch": arch, "code": code_of(arch), "cmake": cmake_of(arch), "cubin": cubin}
    for key, value in known.items():
        text = text.replace(f"@{key}@", value)
    return text


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, the first row its head."""
    head, *others = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others)]
