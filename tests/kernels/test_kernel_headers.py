"""The library of kernel headers: each stands alone, the first variants of a ladder need none, and none spills."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from opbench.gpu.compile import nvrtc
from opbench.kernels.launch import BuildRequest
from opbench.kernels.variant import Variant
from opbench.records import read_json
from opbench.report.ladder import in_teaching_order
from opbench.source.sources import include_closure, without_comments
from support.builders.compiled import compile_all
from support.common import CATALOG, ROOT, kernel_variants
from support.daily import daily_sample
from support.needs import needs_nvrtc

CUDA = kernel_variants()
OVER_HEADERS = [variant for variant in CUDA if len(variant.sources) > 1]
(FOLDER,) = CATALOG.include
HEADERS = sorted(FOLDER.glob("opbench/*.cuh"))
COLUMNS = 120
SELF_CONTAINED = 3
"""So many variants at the start of each ladder include no header."""
FOR_CUDA_CORES = {
    "activations.cuh",
    "batchnorm.cuh",
    "decode_parts.cuh",
    "float_columns.cuh",
    "float_lines.cuh",
    "float_tile.cuh",
    "grid_sum.cuh",
    "loss.cuh",
    "overlap.cuh",
    "radix_digits.cuh",
    "reduction.cuh",
    "row_gradient.cuh",
    "row_norm.cuh",
    "row_stream.cuh",
    "upsampling.cuh",
    "vectors.cuh",
    "volume.cuh",
    "volume_tiles.cuh",
    "volume_windows.cuh",
    "window_tiles.cuh",
}
"""Headers that need no compute capability."""


def text_of(header: Path) -> str:
    """A header's code."""
    return without_comments(header.read_text())


NAMES = {path: set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"\n]*"', "", text_of(path)))) for path in HEADERS}


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_a_header_stands_alone(header: Path) -> None:
    text = text_of(header)
    others = re.findall(r"#include <opbench/([^>]+)>", text)
    assert not re.search(r'#include "', text)
    assert text.lstrip().startswith("#pragma once")
    assert max(map(len, header.read_text().splitlines())) <= COLUMNS
    assert [source.path.name for source in include_closure(header, (FOLDER,))][1:] or not others, (
        "its includes are found"
    )


def test_the_readme_names_every_header() -> None:
    text = (FOLDER / "opbench" / "README.md").read_text()
    assert {header.name for header in HEADERS} == set(re.findall(r"\w+\.cuh", text))


def test_no_name_of_a_header_is_a_macro_of_a_kernel() -> None:
    """Tunables and defines are macros: `BM` in a header would be 128, there and for nobody else."""
    clashes = {
        (variant.id, source.path.name): names
        for variant in OVER_HEADERS
        for source in variant.sources[1:]
        if (names := {*variant.tune, *variant.define} & NAMES[source.path])
    }
    assert clashes == {}


@needs_nvrtc
def test_all_headers_can_be_included_together() -> None:
    text = "".join(f"#include <opbench/{header.name}>\n" for header in HEADERS)
    options = [*nvrtc.OPTIONS, *nvrtc.include_options("sm_90"), "--gpu-architecture=sm_90a", f"-I{FOLDER}"]
    kernel = 'using namespace opbench;\nextern "C" __global__ void nothing() {}\n'
    cubin, log, _ = nvrtc.library("sm_90").compile((text + kernel).encode(), "all.cu", options)
    assert cubin, log
    assert "warning" not in log


def test_the_first_three_variants_of_a_ladder_are_single_files() -> None:
    """A student reads them from top to bottom; a file may include headers once one of its variants comes fourth."""
    first_files: dict[str, set[Path]] = {}
    for operator in {variant.operator for variant in CUDA}:
        ladder = [v for v in in_teaching_order(CATALOG.variants(operator)) if not v.is_library]
        later = {v.path for v in ladder[SELF_CONTAINED:]}
        first_files[operator] = {v.path for v in ladder[:SELF_CONTAINED]} - later
    on_every_gpu = [v for v in OVER_HEADERS if not v.compute_capability]
    assert on_every_gpu
    assert [v.id for v in on_every_gpu if v.path in first_files[v.operator]] == []


def test_variants_for_every_gpu_include_headers_for_cuda_cores_alone() -> None:
    includes = {
        v.id: {s.path.name for s in v.sources[1:]} - FOR_CUDA_CORES for v in OVER_HEADERS if not v.compute_capability
    }
    assert {name: others for name, others in includes.items() if others} == {}


def test_a_header_of_one_variant_belongs_in_its_file() -> None:
    users = {header: [v.id for v in OVER_HEADERS if header in {s.path for s in v.sources}] for header in HEADERS}
    assert {header.name: names for header, names in users.items() if len(names) == 1} == {}


MODULES_A_DAY = 2
"""How many modules of a variant are compiled to look for spilled registers, of up to 19 that the plans use."""


@cache
def planned() -> dict[str, set[BuildRequest]]:
    """The modules that the plans of the committed networks use, by variant."""
    plans = [read_json(path, "") for path in sorted(ROOT.glob("reports/h200/networks/*/plan.json*"))]
    cases = map(CATALOG.case, {choice["case"] for plan in plans for choice in plan["choices"].values()})
    found: dict[str, set[BuildRequest]] = {}
    for case in cases:
        found.setdefault(case.variant.id, set()).add(case.request())
    return found


@needs_nvrtc
@pytest.mark.parametrize("variant", [v for v in OVER_HEADERS if v.id in planned()], ids=lambda v: v.id)
def test_what_networks_use_spills_next_to_nothing(variant: Variant) -> None:
    """Two registers of one kernel are spilled, and it was measured as the fastest all the same.

    Of each variant two modules, others each day; with OPBENCH_LONG all.
    """
    modules = sorted(planned()[variant.id], key=repr)
    if not os.environ.get("OPBENCH_LONG"):
        modules = daily_sample(modules, min(MODULES_A_DAY, len(modules)), variant.id)
    compiled = compile_all(modules, "sm_90a")
    spilt = {
        request.macros: dict(found.spill_bytes) if isinstance(found, nvrtc.CompiledModule) else str(found)
        for request, found in compiled.items()
        if not isinstance(found, nvrtc.CompiledModule) or max(found.spill_bytes.values(), default=0) > 8
    }
    assert spilt == {}


def test_a_variants_header_is_narrow_and_has_a_launch_key_a_line() -> None:
    crowded = re.compile(r"^// launch\s*=|kernel\s*=.*(grid|block)\s*=")
    for path in sorted({variant.path for variant in CUDA}):
        header = path.read_text().split("// ///\n")[0].splitlines()
        assert [line for line in header if len(line) > COLUMNS or crowded.search(line)] == [], path
