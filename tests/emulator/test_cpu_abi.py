"""Loading the runtime compares the numbers that it shares with Python, and refuses a difference."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from opbench.emulator import build
from opbench.emulator.abi import CONSTANTS, STRUCTURES, numbers_of_python, numbers_of_runtime
from opbench.emulator.build import KernelBuilder
from opbench.emulator.library import Runtime
from opbench.emulator.toolchain import FAST, RUNTIME, find_toolchain
from opbench.errors import EnvironmentFault


def runtime_of(folder: Path, monkeypatch: pytest.MonkeyPatch, header: str, old: str, new: str) -> Path:
    """Compile the runtime from a copy of its sources in which one piece of text is replaced."""
    for name in ("runtime", "include"):
        shutil.copytree(RUNTIME.parent.parent / name, folder / name)
    text = (folder / header).read_text()
    assert text.count(old) == 1
    (folder / header).write_text(text.replace(old, new))
    monkeypatch.setattr(build, "RUNTIME", folder / "runtime" / RUNTIME.name)
    monkeypatch.setattr(
        build, "RUNTIME_FLAGS", ("-O0",)
    )  # a layout does not depend on it, and it takes a third of the time
    return KernelBuilder(find_toolchain(), folder, FAST).runtime()


def test_the_runtime_was_compiled_with_the_numbers_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = runtime_of(tmp_path, monkeypatch, "runtime/worker.hpp", "struct Site {", "struct Site {")
    assert numbers_of_runtime(ctypes.CDLL(str(path))) == dict(numbers_of_python())


@pytest.mark.parametrize(
    ("header", "old", "new", "differs"),
    [
        pytest.param(
            "runtime/worker.hpp",
            "uint32_t kind, line, other_line, count;",
            "uint32_t kind, line, other_line, count, column;",
            "Report.program_counter",
            id="a field in the middle",
        ),
        pytest.param(
            "runtime/trace.hpp",
            "uint64_t executions, divergent, fewest_lanes;\n};",
            "uint64_t executions, divergent, fewest_lanes, most_lanes;\n};",
            "Branch",
            id="a field at the end",
        ),
        pytest.param(
            "include/opbench_cpu/abi.hpp",
            "  unsigned width, height;",
            "  unsigned height, width;",
            "opb_texture.height",
            id="two fields swapped",
        ),
        pytest.param(
            "runtime/trace.hpp",
            "uint32_t site, event, space, bytes;\n  uint64_t requests,",
            "uint32_t site, event, space, bytes;\n  uint32_t requests, unused;\n  uint64_t",
            "Count.requests",
            id="a narrower field",
        ),
        pytest.param(
            "runtime/worker.hpp", "KIND(SharedRace) KIND(GlobalRace)", "KIND(GlobalRace) KIND(SharedRace)",
            "kReportSharedRace", id="two kinds swapped",
        ),
        pytest.param(
            "runtime/worker.hpp", "KIND(PlainRead)", "KIND(PlainRead) KIND(Novel)", "kReportNovel", id="a kind more",
        ),
        pytest.param("runtime/trace.hpp", "kBranches = 1 << 10", "kBranches = 1 << 9", "kBranches", id="a constant"),
    ],
)  # fmt: skip
def test_another_layout_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, old: str, new: str, differs: str
) -> None:
    path = runtime_of(tmp_path, monkeypatch, header, old, new)
    with pytest.raises(EnvironmentFault) as refused:
        Runtime(path)
    assert f"{differs} is " in str(refused.value)


def test_no_shared_structure_has_padding() -> None:
    for name, structure in STRUCTURES.items():
        sizes = [getattr(structure, field).size for field, *_ in structure._fields_]
        assert sum(sizes) == ctypes.sizeof(structure), name
    assert not set(STRUCTURES) & set(CONSTANTS)
