"""The parts that all shipped sources share: the first lines, the licence, and the host's support functions."""

from __future__ import annotations

import contextlib
import enum
import re
import textwrap
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from opbench import paths
from opbench._version import __version__

LINE_WIDTH, COMMENT_WIDTH = 120, 112
"""Columns per line of code, and columns of text per line of a comment."""
TEMPLATES = Path(__file__).parent / "templates"


def banner(gpu: str, arch: str, command: str) -> list[str]:
    """Return comment lines that say what made a file, for which GPU, by which command, and under which licence."""
    return [
        f"// Made by opbench {__version__} for {gpu} ({arch}):",
        f"//   {command}",
        "// Kernels from variants/ and what launches them are under opbench's MIT License (LICENSE, beside this file).",
    ]


def licence() -> bytes:
    """Return opbench's licence, from the checkout or the installed wheel."""
    checkout_file = paths.PACKAGE.parent / "LICENSE"
    if paths.checkout() and checkout_file.is_file():
        return checkout_file.read_bytes()
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("opbench") or ():
            if file.name == "LICENSE":
                return file.read_binary()
    return b"MIT License, Copyright (c) the opbench authors: https://opensource.org/license/mit\n"


def comment_lines(text: str) -> list[str]:
    """Return the lines of a C comment, without its delimiters."""
    safe_text = text.replace("*/", "* /")
    return [f"   {line}" for line in textwrap.wrap(" ".join(safe_text.split()), COMMENT_WIDTH)]


def wrap_code(text: str) -> str:
    """Return code with long lines folded after a comma or an `&&` outside strings.

    Comments and macros are unchanged.
    """
    return "\n".join(folded_line for line in text.split("\n") for folded_line in _fold_line(line))


def _fold_line(line: str, indent: str = "") -> list[str]:
    if len(line) <= LINE_WIDTH or "//" in line or line.startswith("#") or line.endswith("\\"):
        return [line]
    without_strings = re.sub(r'"(?:\\.|[^"\\])*"', lambda match: "x" * len(match[0]), line)
    break_index = max(without_strings.rfind(", ", 0, LINE_WIDTH) + 1, without_strings.rfind(" && ", 0, LINE_WIDTH) + 3)
    indent = indent or " " * (len(line) - len(line.lstrip()) + 4)
    if break_index <= len(indent):
        return [line]
    return [line[:break_index], *_fold_line(indent + line[break_index:].lstrip(), indent)]


def c_string(text: str) -> str:
    """Return a C string literal; a caller that uses it with `printf` doubles each `%`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class SupportFunctions(enum.Flag):
    """The optional functions of the shipped host code that launches call."""

    NOTHING = 0
    FILL = enum.auto()
    """The driver fills a buffer with bytes other than zeros."""
    MAPS = enum.auto()
    """The driver encodes a tensor map."""


def template(name: str, values: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return one of the fixed texts in the folder `templates`, with `@key@` replaced by the value of each key."""
    text = (TEMPLATES / f"{name}.inc").read_text(encoding="utf-8").strip("\n")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def includes(needs: SupportFunctions) -> list[str]:
    """Return the `#include` lines of the host code."""
    names = ["cmath", "cstdarg", "cstdint", "cstdio", "cstring", "initializer_list"]
    driver = ["#include <cuda.h>"] if needs else []
    return [*driver, "#include <cuda_runtime_api.h>", *(f"#include <{name}>" for name in names)]


def launch_support(needs: SupportFunctions) -> str:
    """Return the C++ source of the functions that launches call."""
    parts = ["support", *(["driver"] if needs else [])]
    parts += [
        name for name, need in (("fill", SupportFunctions.FILL), ("maps", SupportFunctions.MAPS)) if need in needs
    ]
    return "\n\n".join(map(template, parts))
