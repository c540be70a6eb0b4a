"""The runtime's headers stand in one order: each includes what it uses, and none is used by one that it includes."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path

from opbench.emulator.toolchain import FAST, RUNTIME, find_toolchain

ATTRIBUTE = re.compile(r"__attribute__\(\(.*?\)\) ")
HEADERS = {path.name: ATTRIBUTE.sub("", path.read_text()) for path in sorted(RUNTIME.parent.glob("*.hpp"))}
STATIC = re.compile(r"^static (?!const)[^;{}=]*?\b(\w+)\([^;{}]*\)\s*([;{])", re.MULTILINE)
"""A static function: its name, and whether a body follows."""


def test_no_header_includes_itself_through_others() -> None:
    includes = {name: re.findall(r'^#include "(\w+\.hpp)"', text, re.MULTILINE) for name, text in HEADERS.items()}
    order = list(TopologicalSorter(includes).static_order())
    assert order.index("worker.hpp") < order.index("shadow.hpp") < order.index("instrument.hpp")


def test_no_header_declares_a_static_function_of_another() -> None:
    bodies = {name: file for file, text in HEADERS.items() for name, end in STATIC.findall(text) if end == "{"}
    declared = [(name, file) for file, text in HEADERS.items() for name, end in STATIC.findall(text) if end == ";"]
    assert len(bodies) > 200
    assert [(name, file, bodies.get(name)) for name, file in declared if bodies.get(name) != file] == []


def test_each_header_compiles_alone(tmp_path: Path) -> None:
    toolchain = find_toolchain()

    def errors(name: str) -> str:
        unit = tmp_path / f"{name}.cpp"
        unit.write_text(f'#include "{RUNTIME.parent / name}"\n')
        command = [*toolchain.command, *toolchain.flags(FAST), "-w", "-fsyntax-only", str(unit)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    with ThreadPoolExecutor(2) as pool:
        failed = {name: said for name, said in zip(HEADERS, pool.map(errors, HEADERS), strict=True) if "error" in said}
    assert failed == {}
