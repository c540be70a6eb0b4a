"""Every variant of every operator can be shipped, beside all others of its operator in one source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.tensors import DTYPES
from opbench.kernels.variant import Variant
from opbench.shipping import launching, numbers_file
from opbench.shipping import library as shipped_library
from opbench.shipping.choosing import find_target
from opbench.shipping.compiling import CompiledText
from opbench.shipping.fixed_text import SupportFunctions, includes
from opbench.shipping.interface import header_text
from opbench.shipping.kernel_text import kernel_texts
from opbench.shipping.launching import launch_code, launch_lines
from opbench.shipping.source import source_text
from support.common import CATALOG


def cases_of(operator: str) -> Iterator[Case]:
    """A case of each variant, of the first example that it serves."""
    examples = CATALOG.operator(operator).examples()

    def first(variant: Variant) -> Case:
        return next(
            Case(variant, c, p) for p in examples for c in variant.configs if variant.unmet_requirement(p, c) is None
        )

    return (first(variant) for variant in CATALOG.variants(operator) if not variant.is_library)


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_every_variant_of_an_operator_is_shipped_in_one_source(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_library, "compile_text", lambda text, found, arch: CompiledText(arch))
    cases = list(cases_of(operator))
    made = shipped_library.make_library(cases, "kernels", find_target("h200"), {}, "a test")
    source, header = source_text(made), header_text(made)
    assert len({text.namespace for text in made.kernels}) == len(made.kernels)
    kernels = str(made.text)
    assert kernels.count("\nnamespace ") >= len(made.kernels) and 'extern "C"' not in kernels
    # Nothing leaks from one kernel into the next: what is defined is undefined, headers included are there.
    for name in set(re.findall(r"^#define (\w+)", kernels, re.MULTILINE)):
        assert re.search(rf"^#undef {name}$", kernels, re.MULTILINE), f"{name} stays defined"
    assert set(re.findall(r'#include "(opbench/[^"]+)"', kernels)) == set(made.text.headers)
    assert not re.search(r"#\s*include|#\s*pragma once", "".join(made.text.headers.values()))
    for one in made.all_cases:
        lines = (*one.code.setup_lines.lines, *one.code.other_lines.lines)
        assert sum(line.startswith("TRY(launch(") for line in lines) == sum(
            bool(launch.kernel) for launch in one.case.launches(132)
        )
        assert one.function in source and str(one.case.problem) in header


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("relu/vec4[BLOCK=256](n=1027)", SupportFunctions.NOTHING),
        ("matmul/wgmma_bf16[BN=64](m=64,n=72,k=40,dtype=bf16)", SupportFunctions.MAPS),
        ("matmul/wgmma_f16[BN=256,GROUP=8](m=64,n=256,k=64)", SupportFunctions.MAPS),
    ],
)
def test_a_launch_says_which_parts_of_the_support_it_calls(name: str, needs: SupportFunctions) -> None:
    case = CATALOG.case(name)
    (piece,) = kernel_texts([case]).values()
    code = launch_code(case, piece, 132, {})
    assert code.needs == needs
    assert ("#include <cuda.h>" in includes(code.needs)) == bool(needs)


def test_a_fill_with_another_number_than_zero_needs_the_driver() -> None:
    launch = KernelLaunch("", (1, 1, 1), (1, 1, 1), 0, (), zero="out", value=-math.inf)
    case = CATALOG.case("relu/vec4[BLOCK=256](n=1027)")
    (piece,) = kernel_texts([case]).values()
    tensors = {tensor.name: tensor for tensor in case.problem.output_tensors()}
    assert [launch_lines(one, case, piece, tensors, {}).needs for one in (launch, replace(launch, value=0))] == [
        SupportFunctions.FILL,
        SupportFunctions.NOTHING,
    ]


def test_tensors_of_every_dtype_can_be_written_and_passed() -> None:
    assert set(DTYPES) <= set(numbers_file.SAFETENSORS_TYPES)
    assert set(DTYPES) <= set(launching.C_TYPES)
