"""The CUDA source of a Python file that calls load_inline."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.errors import UsageError
from opbench.source.inline_source import read_inline_source

FILE = """from torch.utils.cpp_extension import load_inline

source = '''
__global__ void k(float* x) { x[0] = 1.0f; }
'''
raise SystemExit("was run")
module = load_inline(name="m", cpp_sources="", cuda_sources=source, functions=["f"])
"""


def test_the_source_keeps_its_line_numbers_and_the_file_is_not_run(tmp_path: Path) -> None:
    (path := tmp_path / "candidate.py").write_text(FILE)
    lines = read_inline_source(path).splitlines()
    assert lines[3] == "__global__ void k(float* x) { x[0] = 1.0f; }"
    assert not any(lines[:3])


def test_a_list_of_sources_is_joined(tmp_path: Path) -> None:
    (path := tmp_path / "candidate.py").write_text(FILE.replace("=source,", "=[source, '__device__ int n;'],"))
    assert "__device__ int n;" in read_inline_source(path)
    assert "void k(" in read_inline_source(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [("=source,", "=source + '',"), ("cuda_sources=source, ", ""), ("source = ", "source = = ")],
    ids=["computed", "no-cuda", "syntax"],
)
def test_a_source_that_cannot_be_read_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (path := tmp_path / "candidate.py").write_text(FILE.replace(old, new))
    with pytest.raises(UsageError):
        read_inline_source(path)
