"""What every shipped source begins with, and the parts of it that never change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import opbench
from opbench import paths

TEMPLATES = Path(__file__).parent / "templates"


def banner(gpu: str, arch: str, command: str) -> list[str]:
    """Who made a file, for what, by which command, under which licence."""
    return [
        f"// Made by opbench {opbench.__version__} for {gpu} ({arch}):",
        f"//   {command}",
        "// Kernels from variants/ and what launches them are under opbench's MIT License (LICENSE, beside this file).",
    ]


def licence() -> bytes:
    """opbench's own."""
    for path in (paths.PACKAGE.parent / "LICENSE", paths.shipped("LICENSE")):
        if path.is_file():
            return path.read_bytes()
    return b"MIT License, Copyright (c) the opbench authors: https://opensource.org/license/mit\n"


def comment(text: str, width: int = 112) -> list[str]:
    """Lines of a C comment's inside."""
    safe_text = text.replace("*/", "* /")
    return [f"   {line}" for line in textwrap.wrap(" ".join(safe_text.split()), width)]


def quoted(text: str) -> str:
    """A string of C; a `%` in it is as it stands, for `printf` too where it is doubled by whoever needs it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Support:
    """Texts beside this module."""

    def text(self, name: str) -> str:
        """One of them."""
        return (TEMPLATES / f"{name}.inc").read_text(encoding="utf-8").strip("\n")

    def includes(self, lines: Iterable[str]) -> list[str]:
        """What the host's part includes for these lines."""
        names = ["cmath", "cstdarg", "cstdint", "cstdio", "cstring", "initializer_list"]
        words = "\n".join(lines)
        own = ["#include <cuda.h>"] if "_map(" in words or "fill<" in words else []
        return [*own, "#include <cuda_runtime_api.h>", *(f"#include <{name}>" for name in names)]

    def launching(self, lines: Iterable[str]) -> str:
        """The parts that these lines need."""
        words = "\n".join(lines)
        maps, fills = "_map(" in words, "fill<" in words
        parts = [
            "support",
            *(["driver"] if maps or fills else []),
            *(["fill"] if fills else []),
            *(["maps"] if maps else []),
        ]
        return "\n\n".join(self.text(part) for part in parts)


support = Support()
