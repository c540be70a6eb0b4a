"""Headers that a project's build finds by flags, found without them."""

from __future__ import annotations

from pathlib import Path

from opbench.kernels.header import read_variants
from opbench.source.project import project_folders

KERNEL = """\
// /// opbench
// operator = "relu"
// launch = [{ kernel = "mine", grid = ["1"], block = ["256"] }]
// ///
#include <cuda_runtime.h>
#include <vector>
#include "common.h"
__global__ void mine(const float* x, float* out, int n) {}
"""


def project(folder: Path) -> Path:
    kernel = folder / "project" / "src" / "ops" / "mine.cu"
    for path, text in (
        (kernel, KERNEL),
        (folder / "project" / "src" / "common" / "common.h", '#include "deep/sizes.h"\n#include "absent.h"\n'),
        (folder / "project" / "include" / "deep" / "sizes.h", ""),
        (folder / "project" / "utils" / "vector", ""),
        (folder / "project" / "utils" / "cuda_runtime.h", ""),
        (folder / "include" / "absent.h", ""),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return kernel


def test_headers_are_found_in_the_folders_of_the_project(tmp_path: Path) -> None:
    kernel = project(tmp_path)
    (tmp_path / "project" / ".git").mkdir()
    root = tmp_path / "project"
    assert project_folders(kernel) == (root / "src" / "common", root / "include")
    (variant,) = read_variants(kernel)
    assert {source.path.name for source in variant.sources} == {"mine.cu", "common.h", "sizes.h"}
    assert set(project_folders(kernel)) <= set(variant.include)


def test_without_a_mark_two_folders_above_are_looked_into(tmp_path: Path) -> None:
    kernel = project(tmp_path)
    assert project_folders(kernel) == (tmp_path / "project" / "src" / "common", tmp_path / "project" / "include")


def test_what_is_found_already_adds_nothing(tmp_path: Path) -> None:
    kernel = project(tmp_path)
    (kernel.parent / "common.h").write_text("")
    assert project_folders(kernel) == ()
