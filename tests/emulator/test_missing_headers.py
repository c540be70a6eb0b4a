"""A header that is not there: both compilers take it as empty, and a kernel that needs it says which and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.results.faults import faults_of
from support.common import RELU

pytestmark = pytest.mark.usefixtures("forked_workers")

NEEDS = "out[i] = clip(x[i])"
INCLUDES = {
    "by a path above": ('#include "../common/common.h"', "mine.cu:7", "../common/common.h"),
    "by a whole path": ('#include "/nowhere/common.h"', "mine.cu:7", "/nowhere/common.h"),
    "in quotation marks": ('#include "common.cuh"', "mine.cu:7", "common.cuh"),
    "in angle brackets": ("#include <mylib/common.cuh>", "mine.cu:7", "mylib/common.cuh"),
    "by a header": ('#include "inner.cuh"', "inner.cuh:2", "gone.cuh"),
    "by a header of a folder": ('#include "below/inner.cuh"', "inner.cuh:1", "../../gone/gone.cuh"),
}


def write(folder: Path, include: str, needed: bool) -> Path:
    (folder / "inner.cuh").write_text('#pragma once\n#include "gone.cuh"\n')
    (folder / "below").mkdir()
    (folder / "below" / "inner.cuh").write_text('#include "../../gone/gone.cuh"\n')
    path = folder / "mine.cu"
    text = RELU.replace("// Why.", include)
    path.write_text(text.replace("out[i] = x[i] > 0.0f ? x[i] : 0.0f", NEEDS) if needed else text)
    return path


@pytest.mark.parametrize("name", INCLUDES)
def test_a_header_that_no_kernel_needs_is_set_aside_by_both_compilers(tmp_path: Path, name: str) -> None:
    include, place, header = INCLUDES[name]
    path, notes = write(tmp_path, include, needed=False), list[str]()
    (result,) = api.check([path], problems=["(n=1000)"], note=notes.append)
    assert (result.status, result.compiled_for, result.resources_missing) == ("right", "sm_90", "")
    said = [note for note in notes if f"header '{header}' was not found" in note]
    assert len(said) == ("<" not in include) and all(place in note for note in said)


@pytest.mark.parametrize("name", INCLUDES)
def test_a_header_that_a_kernel_needs_is_named_with_its_include_and_its_remedy(tmp_path: Path, name: str) -> None:
    include, place, header = INCLUDES[name]
    path = write(tmp_path, include, needed=True)
    (result,) = api.check([path], problems=["(n=1000)"])
    assert (result.status, result.compiled_for) == ("failed", "")
    assert result.resources_missing.startswith("NVRTC rejects the source"), "one line says one thing"
    (fault,) = faults_of(result, str(path))
    assert f"{Path(fault.file).name}:{fault.line}" == place
    assert f"header '{header}' was not found; put it at " in fault.message
    assert any("Looked for there" in detail and "--variants DIR" in detail for detail in fault.details)
    assert any("clip" in detail for detail in fault.details), "and the compiler's own words"


def test_a_header_is_found_where_the_message_says_to_put_it(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    path = write(folder, '#include "../common/common.h"', needed=True)
    (result,) = api.check([path], problems=["(n=1000)"], cpu_only=True)
    target = Path(result.reason.split("put it at ")[1].splitlines()[0])
    assert target.resolve() == (tmp_path / "common" / "common.h").resolve()
    target.parent.mkdir()
    target.write_text("__device__ float clip(float x) { return x > 0.0f ? x : 0.0f; }\n")
    (again,) = api.check([path], problems=["(n=1000)"])
    assert (again.status, again.compiled_for) == ("right", "sm_90")
