"""Signs of cheating: each is seen on its line, and shipped kernels that have one are not refused for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench.errors import EnvironmentFault
from opbench.gpu.compile import nvrtc, sass
from opbench.gpu.compile.ptx import parse_ptx
from opbench.judging.signs import RULES, DetectedSign, signs_of
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.running.targets import own_variants
from support.common import CATALOG, said

FOLDER = Path(__file__).parent / "signs"
FILES = sorted(FOLDER.glob("*.cu"))
LATER = {"device-launch"}
"""Rules without a file: NVRTC cannot link the device runtime without a GPU's toolkit."""


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    try:
        nvrtc.library()
    except EnvironmentFault as missing:
        pytest.skip(str(missing))


def signs_in(case: Case) -> list[DetectedSign]:
    """The signs of a case as the judge sees them."""
    request = case.request()
    compiled = nvrtc.compile_cubin(request, nvrtc.architecture((9, 0), request))
    try:
        code = sass.disassemble(compiled.cubin.read_bytes(), (s.path for s in case.variant.sources))
    except EnvironmentFault:
        code = {}
    return signs_of(case, parse_ptx(compiled.ptx.read_text()), code)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_sign_is_seen_on_its_line(path: Path) -> None:
    (variant,) = own_variants(path, CATALOG)
    case = Case(variant, {}, CATALOG.operator(variant.operator).parse("(n=1000)"))
    rule = said(path, "sign")
    lines = {n for n, text in enumerate(path.read_text().splitlines(), 1) if text.endswith("// here")}
    assert lines
    seen = [sign for sign in signs_in(case) if sign.rule.name == rule]
    assert {sign.line for sign in seen} == lines
    assert {sign.file for sign in seen} == {str(path)}


def test_every_rule_has_a_file() -> None:
    assert {said(path, "sign") for path in FILES} == {rule.name for rule in RULES} - LATER


def test_a_sign_in_ptx_and_sass_is_one_sign() -> None:
    path = FOLDER / "sleeps.cu"
    (variant,) = own_variants(path, CATALOG)
    (sign,) = signs_in(Case(variant, {}, CATALOG.operator("relu").parse("(n=1000)")))
    assert sign.levels == ("PTX", "SASS") and sign.count == 1


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("relu/vec4(n=4096)", set()),
        ("relu/vec4_unrolled(n=4096)", {"eviction-policy"}),
        ("matmul/mma_3xtf32(m=128,n=128,k=64)", set()),
        ("matmul/mma_bf16(m=128,n=128,k=64,dtype=bf16)", set()),
        ("matmul/wgmma_tf32(m=128,n=128,k=32,b_order=col)", set()),
        ("linear/wgmma_planes(m=8,n=32,k=400)", {"early-dependents"}),
        # Hopper multiplies these 8-bit floats in f16, which holds each of them.
        ("scaled_matmul/mma(m=64,n=64,k=64)", set()),
        ("scaled_matmul/mma(m=64,n=64,k=64,a_dtype=e5m2)", set()),
    ],
)
def test_shipped_variants_have_notes_at_most(name: str, rules: set[str]) -> None:
    seen = signs_in(case_named(name))
    assert {sign.rule.name for sign in seen} == rules
    assert not any(sign.rule.refuses for sign in seen)


def test_the_name_of_a_written_variable_is_known() -> None:
    path = FOLDER / "counts.cu"
    (variant,) = own_variants(path, CATALOG)
    (sign,) = signs_in(Case(variant, {}, CATALOG.operator("relu").parse("(n=1000)")))
    assert sign.detail == "counters" and sign.rule.name == "module-variable-write"


def test_a_store_to_an_argument_is_no_sign() -> None:
    text = """
.global .align 4 .b8 table[16];
.visible .entry k(.param .u64 p)
{
	.loc 1 7 0
	ld.param.u64 %rd1, [p];
	mov.u64 %rd2, table;
	ld.global.u32 %r1, [%rd2+4];
	st.global.u32 [%rd1], %r1;
	.loc 1 9 0
	add.s64 %rd3, %rd2, 8;
	st.global.u32 [%rd3], %r1;
	.file 1 "a.cu"
}
"""
    written = [(one.file, one.line, name) for one, name in parse_ptx(text).variables_written()]
    assert written == [("a.cu", 9, "table")]
