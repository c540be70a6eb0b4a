"""Knock-outs of address arithmetic: each access keeps its address, and loops lose the instructions that computed it."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.assembler import assemble
from opbench.gpu.compile.knockout import KnockOut
from opbench.gpu.compile.knockout_addresses import CHEAP, NOT_LINEAR, OUTSIDE_LOOPS, USED_ELSEWHERE
from opbench.gpu.compile.knockout_classes import ADDRESS_ARITHMETIC, GLOBAL_LOADS, INTEGERS
from opbench.gpu.compile.ptx_statements import parse_functions
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.variant import Variant
from opbench.running.experiment import assemble_knockouts
from opbench.running.targets import case_of
from support.builders.ptx import kernel_head
from support.common import CATALOG, kernel_variants
from support.daily import daily_sample
from support.needs import needs_nvrtc, needs_ptxas
from support.ptx_addresses import CannotRun, Thread

HEAD = f"""\
{kernel_head("u64", "u32", "u32")}\tld.param.u64 \t%rd1, [kernel_param_0];
\tld.param.u32 \t%r1, [kernel_param_1];
\tld.param.u32 \t%r2, [kernel_param_2];
\tmov.u32 \t%r3, %tid.x;
"""
NEST = """\
\tmov.u32 %r10, 0;
$L_rows:
\tmov.u32 %r11, 0;
$L_columns:
\tadd.s32 %r12, %r11, %r3;
\tsetp.ge.s32 %p1, %r12, 9;
\t@%p1 bra $L_next;
\tmad.lo.s32 %r13, %r10, %r2, %r12;
\tmul.wide.s32 %rd2, %r13, 4;
\tadd.s64 %rd3, %rd1, %rd2;
\tld.global.f32 %f1, [%rd3+8];
\tadd.s32 %r14, %r13, 3;
\tmul.wide.s32 %rd4, %r14, 4;
\tadd.s64 %rd5, %rd1, %rd4;
\tst.global.f32 [%rd5], %f1;
$L_next:
\tadd.s32 %r11, %r11, 2;
\tsetp.lt.s32 %p2, %r11, %r1;
\t@%p2 bra $L_columns;
\tadd.s32 %r10, %r10, 1;
\tsetp.lt.s32 %p3, %r10, 4;
\t@%p3 bra $L_rows;
"""
"""Two loops, of which the inner one skips some iterations."""
UNROLLED = """\
\tand.b32 %r20, %r1, 3;
\tsub.s32 %r21, %r20, %r1;
\tmov.u32 %r10, 0;
$L_rows:
\tmov.u32 %r11, 0;
\tsetp.lt.u32 %p1, %r1, 4;
\t@%p1 bra $L_rest;
$L_four:
\tmad.lo.s32 %r13, %r10, %r2, %r11;
\tmul.wide.s32 %rd2, %r13, 4;
\tadd.s64 %rd3, %rd1, %rd2;
\tld.global.f32 %f1, [%rd3];
\tadd.s32 %r11, %r11, 4;
\tadd.s32 %r22, %r21, %r11;
\tsetp.ne.s32 %p2, %r22, 0;
\t@%p2 bra $L_four;
$L_rest:
\tsetp.eq.s32 %p3, %r20, 0;
\t@%p3 bra $L_end;
\tmad.lo.s32 %r23, %r10, %r2, %r11;
\tmul.wide.s32 %rd6, %r23, 4;
\tadd.s64 %rd7, %rd1, %rd6;
\tld.global.f32 %f2, [%rd7];
$L_end:
\tadd.s32 %r10, %r10, 1;
\tsetp.lt.s32 %p4, %r10, 5;
\t@%p4 bra $L_rows;
"""
"""An inner loop that the compiler unrolled by four, with one access for the rest."""
LOOP = """\
\tmov.u32 %r10, 0;
\tmov.u32 %r15, tile;
\tmov.u64 %rd9, %rd1;
$L_loop:
{body}
\tadd.s32 %r10, %r10, 1;
\tsetp.lt.s32 %p1, %r10, %r1;
\t@%p1 bra $L_loop;
"""


def knockout(body: str) -> KnockOut:
    """The knock-out of a kernel with these instructions."""
    launch = KernelLaunch(kernel="kernel", grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0, args=("x", 8, 16))
    return KnockOut(f"{HEAD}{body}\tret;\n}}\n", [launch])


def loop(body: str) -> KnockOut:
    """The knock-out of a kernel with these instructions in a loop."""
    return knockout(LOOP.replace("{body}", body))


def accesses(text: str, name: str, parameters: dict[str, int], special: dict[str, int]) -> list[tuple[str, int]]:
    """The accesses of one thread."""
    function = next(one for one in parse_functions(text).functions if one.name == name)
    return Thread(function, text, parameters, special).run()


def assert_same_accesses(found: KnockOut, extent: int, row: int, thread: int) -> None:
    """Check that a thread accesses the same addresses with stepped addresses, in the same order."""
    parameters = {"kernel_param_0": 1 << 40, "kernel_param_1": extent, "kernel_param_2": row}
    before, after = (
        accesses(text, "kernel", parameters, {"%tid.x": thread})
        for text in (found.module.text, found.ptx_without([ADDRESS_ARITHMETIC]))
    )
    assert before and before == after


@pytest.mark.parametrize("body", [NEST, UNROLLED], ids=["nest", "unrolled"])
@settings(max_examples=20, deadline=None)
@given(extent=st.integers(1, 13), row=st.integers(0, 70), thread=st.integers(0, 8))
def test_every_access_keeps_its_address(body: str, extent: int, row: int, thread: int) -> None:
    found = knockout(body)
    assert found.instructions_in_class(ADDRESS_ARITHMETIC).removable
    assert_same_accesses(found, extent, row, thread)


def test_the_address_is_an_addition_in_each_loop() -> None:
    found = knockout(NEST)
    removed = {one.opcode for one in found.instructions_in_class(ADDRESS_ARITHMETIC).removable}
    assert removed == {"mad.lo.s32", "mul.wide.s32", "add.s64", "add.s32"}
    text = found.ptx_without([ADDRESS_ARITHMETIC])
    assert "ld.global.f32 %f1, [%koa0x2+8];" in text and "st.global.f32 [%koa0x2+12], %f1;" in text, "one register"
    assert "add.s64 %koa0x2, %koa0x2, 8;" in text and "add.s64 %koa0x1, %koa0x1, %kostep0;" in text
    remaining = [(one.opcode, reason) for one, reason in found.instructions_in_class(ADDRESS_ARITHMETIC).remaining]
    assert {opcode for opcode, reason in remaining if reason == USED_ELSEWHERE} == {"add.s32", "mov.u32"}, "counters"
    assert {opcode for opcode, reason in remaining if reason == OUTSIDE_LOOPS} == {"mov.u32"}


@needs_ptxas
@pytest.mark.parametrize("names", [(ADDRESS_ARITHMETIC,), (ADDRESS_ARITHMETIC, GLOBAL_LOADS)])
@pytest.mark.parametrize("unroll", [True, False])
def test_stepped_addresses_assemble(names: tuple[str, ...], unroll: bool) -> None:
    for body in (NEST, UNROLLED):
        text = knockout(body).ptx_without(names, unroll)
        assert assemble(text, "sm_80", "kernel").stat().st_size
        assert ("nounroll" in text) != unroll and ("ld.global" in text) == (GLOBAL_LOADS not in names)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        # the remainder wraps around
        ("\trem.s32 %r12, %r10, 3;\n\tmul.wide.s32 %rd2, %r12, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n"
         "\tld.global.f32 %f1, [%rd3];", NOT_LINEAR),
        # a swizzle
        ("\txor.b32 %r12, %r10, %r3;\n\tshl.b32 %r13, %r12, 2;\n\tadd.s32 %r14, %r15, %r13;\n"
         "\tld.shared.f32 %f1, [%r14];", NOT_LINEAR),
        # a gather
        ("\tld.shared.u32 %r12, [%r15];\n\tmul.wide.s32 %rd2, %r12, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n"
         "\tld.global.f32 %f1, [%rd3];", NOT_LINEAR),
        # the square of a counter
        ("\tmul.lo.s32 %r12, %r10, %r10;\n\tmul.wide.s32 %rd2, %r12, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n"
         "\tld.global.f32 %f1, [%rd3];", NOT_LINEAR),
        # a step that some iterations skip
        ("\tsetp.lt.s32 %p2, %r10, %r3;\n\t@%p2 add.s64 %rd9, %rd9, 4;\n\tld.global.f32 %f1, [%rd9];", NOT_LINEAR),
        # a pointer that advances already
        ("\tld.global.f32 %f1, [%rd9];\n\tadd.s64 %rd9, %rd9, 4;", CHEAP),
    ],
)  # fmt: skip
def test_other_addresses_stay(body: str, reason: str) -> None:
    found = loop(body).instructions_in_class(ADDRESS_ARITHMETIC)
    assert not found.removable and reason in {one for _, one in found.remaining}
    assert "%koa" not in loop(body).ptx_without([ADDRESS_ARITHMETIC])


def test_a_long_chain_of_integers_is_no_linear_address() -> None:
    chain = "".join("\tmad.lo.s32 %r12, %r12, 3, 1;\n" for _ in range(400))
    body = f"\tmov.u32 %r12, %r10;\n{chain}\tmul.wide.s32 %rd2, %r12, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n"
    found = loop(f"{body}\tld.global.f32 %f1, [%rd3];").instructions_in_class(ADDRESS_ARITHMETIC)
    assert not found.removable and NOT_LINEAR in {reason for _, reason in found.remaining}


def test_an_mbarrier_that_expects_no_bytes_is_replaced_once() -> None:
    """Without bulk copies its instruction expects no bytes; a second edit of its address would let it arrive twice."""
    found = loop(
        "\tmul.lo.s32 %r13, %r10, 24;\n\tadd.s32 %r14, %r13, %r3;\n\tadd.s32 %r12, %r14, %r15;\n"
        "\tmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r12], 128;\n"
        "\tcp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r15], [%rd9], 128, [%r12];"
    )
    for names in ((GLOBAL_LOADS, ADDRESS_ARITHMETIC), (ADDRESS_ARITHMETIC,), (GLOBAL_LOADS,)):
        text = found.ptx_without(names)
        assert text.count("mbarrier.arrive.expect_tx") == 1, names
        assert (", 0;" in text[text.index("mbarrier.arrive") :].partition("\n")[0]) == (GLOBAL_LOADS in names), names


def test_without_a_loop_there_is_nothing_to_step() -> None:
    body = "\tmul.wide.s32 %rd2, %r3, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n\tld.global.f32 %f1, [%rd3];\n"
    found = knockout(body).instructions_in_class(ADDRESS_ARITHMETIC)
    assert not found.removable and {reason for _, reason in found.remaining} == {OUTSIDE_LOOPS}


def test_disjoint_bits_are_added() -> None:
    body = ("\tshl.b32 %r12, %r10, 3;\n\tor.b32 %r13, %r12, 4;\n\tmul.lo.s32 %r14, %r13, %r2;\n"
            "\tmul.wide.s32 %rd2, %r14, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n\tld.global.f32 %f1, [%rd3];")  # fmt: skip
    found = loop(body)
    assert len(found.instructions_in_class(ADDRESS_ARITHMETIC).removable) == 5
    assert_same_accesses(found, 7, 5, 3)


# Shipped kernels --------------------------------------------------------------------------------------------------


def sample() -> list[Variant]:
    """Some variants of different files, another sample each day; with OPBENCH_LONG all."""
    files = {variant.path: variant for variant in kernel_variants()}
    chosen = sorted(files.values(), key=lambda variant: variant.id)
    return chosen if os.environ.get("OPBENCH_LONG") else daily_sample(chosen, 8)


FIXED = ("conv2d/naive_grid3d", "conv2d/flat_divmod", "conv2d/nhwc_direct", "matmul/naive_row_x", "matmul/mma_bf16")


@needs_nvrtc
@pytest.mark.parametrize("name", [*FIXED, *(variant.id for variant in sample())])
def test_threads_of_shipped_kernels_access_the_same_addresses(name: str) -> None:
    case = case_of(name, "", CATALOG, "quick", "cuda")
    request = case.request()
    compiled = nvrtc.compile_cubin(request, nvrtc.architecture((9, 0), request))
    found = KnockOut(compiled.ptx.read_text(), case.launches(132), compiled.names)
    stepped = found.ptx_without([ADDRESS_ARITHMETIC])
    assert (stepped != found.module.text) == bool(found.instructions_in_class(ADDRESS_ARITHMETIC).removable)
    assert stepped != found.module.text or name not in FIXED
    rng, number = random.Random(name), 0
    launches = [launch for launch in case.launches(132) if launch.kernel]
    for launch in launches if stepped != found.module.text else ():
        kernel = compiled.names.get(launch.kernel, launch.kernel)
        parameters = {
            f"{kernel}_param_{index}": argument if isinstance(argument, int) else (index + 1) << 40
            for index, argument in enumerate(launch.args)
        }
        for _ in range(3):
            special = {"%laneid": 0}
            for axis, threads, blocks in zip("xyz", (*launch.block, 1, 1), (*launch.grid, 1, 1), strict=False):
                special |= {f"%ntid.{axis}": threads, f"%nctaid.{axis}": blocks}
                special |= {f"%tid.{axis}": rng.randrange(threads), f"%ctaid.{axis}": rng.randrange(blocks)}
            try:
                before = accesses(found.module.text, kernel, parameters, special)
                assert before == accesses(stepped, kernel, parameters, special)
                number += len(before)
            except CannotRun:
                continue
    assert number or name not in FIXED


@needs_nvrtc
@needs_ptxas
@pytest.mark.parametrize("name", ["conv2d/naive_grid3d", "matmul/naive_row_x", "matmul/register_tile_2d"])
def test_the_machine_code_has_fewer_integers_in_its_loops_and_the_same_accesses(name: str) -> None:
    cost = assemble_knockouts(case_of(name, "", CATALOG, "quick", "cuda"), (9, 0), 132).costs[ADDRESS_ARITHMETIC]
    (change,) = [one for one in cost.changes if one.group == INTEGERS]
    assert change.after < change.before and not cost.reason
    assert {one.group for one in cost.changes} == {INTEGERS}, "no other group changes"
