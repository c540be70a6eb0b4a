"""Knock-outs: what the rewriter takes out of PTX, what it must leave, and what the machine code then holds."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbench.errors import CompileError, EnvironmentFault, OpbenchError
from opbench.gpu.compile import assembler as assembling
from opbench.gpu.compile.assembler import assemble, assembler
from opbench.gpu.compile.knockout import KnockOut
from opbench.gpu.compile.knockout_classes import (
    ADDRESS_ARITHMETIC,
    ATOMICS,
    BANK_CONFLICTS,
    BARRIERS,
    GLOBAL_LOADS,
    GLOBAL_STORES,
    INSTRUCTION_CLASSES,
    MATRIX,
    SHARED,
    ptx_counts,
)
from opbench.gpu.compile.ptx_statements import Statement, parse_functions
from opbench.kernels.launch import KernelLaunch
from opbench.kernels.variant import Variant
from opbench.running.experiment import assemble_knockouts, without_times
from opbench.running.targets import case_of
from support.builders.ptx import kernel_head
from support.checks.errors import refuses
from support.common import CATALOG, kernel_variants
from support.daily import daily_sample
from support.needs import needs_nvrtc, needs_ptxas

HEAD = f"""\
{kernel_head("u64", "u64")}\tld.param.u64 \t%rd1, [kernel_param_0];
\tld.param.u64 \t%rd2, [kernel_param_1];
\tmov.u32 \t%r1, %tid.x;
\tmov.u32 \t%r2, tile;
\tmul.wide.u32 \t%rd3, %r1, 16;
\tadd.s64 \t%rd4, %rd1, %rd3;
\tadd.s64 \t%rd5, %rd2, %rd3;
\tshl.b32 \t%r3, %r1, 4;
\tadd.s32 \t%r4, %r2, %r3;
"""
HEAD_STATEMENTS = 9
"""Instructions in it."""
TAIL = """\
$L__BB0_1:
\tret;
}
\t.file\t1 "/some/where/kernel.cu"
\t.file\t2 "/some/where/tile.cuh"
"""
LOADS = {
    "ld.global.f32 %f1, [%rd4];": ("%f1",),
    "ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4+16];": ("%f1", "%f2", "%f3", "%f4"),
    "ld.global.nc.u16 %rs1, [%rd4+2];": ("%rs1",),
    "ld.global.v2.u16 {%rs1, %rs2}, [%rd4];": ("%rs1", "%rs2"),
    "ld.global.u8 %r9, [%rd4+3];": ("%r9",),
    "ld.global.f64 %fd1, [%rd4+8];": ("%fd1",),
    "@%p1 ld.global.u64 %rd9, [%rd4];": ("%rd9",),
}
SHARED_ACCESSES = {
    "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r4];": ("%f1", "%f2", "%f3", "%f4"),
    "ld.shared.u16 %rs1, [%r4+2];": ("%rs1",),
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r9, %r10}, [%r4];": ("%r9", "%r10"),
    "st.shared.f32 [%r4+4], %f1;": (),
    "st.shared.v2.u16 [%r4], {%rs1, %rs2};": (),
    "st.shared.f64 [%r4], %fd1;": (),
}
OTHERS = {
    BARRIERS: {"bar.sync 0;": (), "barrier.sync.aligned 1, 128;": ()},
    MATRIX: {
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r9, %r10, %r11, %r12}, "
        "{%r13, %r14}, {%f1, %f2, %f3, %f4};": ("%f1", "%f2", "%f3", "%f4"),
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1, %fd2}, {%fd3}, {%fd4}, {%fd1, %fd2};": ("%fd1", "%fd2"),
    },
    ATOMICS: {
        "red.global.add.f32 [%rd5], %f1;": (),
        "atom.shared.add.u32 %r9, [%r4], %r10;": ("%r9",),
        "atom.global.cas.b32 %r9, [%rd5], %r10, %r11;": ("%r9",),
    },
    GLOBAL_STORES: {
        "st.global.f32 [%rd5], %f1;": (),
        "@!%p1 st.global.v4.u32 [%rd5+16], {%r9, %r10, %r11, %r12};": (),
        "st.global.u8 [%rd5+1], %rs1;": (),
        "st.global.f64 [%rd5], %fd1;": (),
    },
}
INSTRUCTIONS = {GLOBAL_LOADS: LOADS, SHARED: SHARED_ACCESSES, **OTHERS}
"""Instructions of each class with the registers that they write."""
CLASS_OF = {text: name for name, texts in INSTRUCTIONS.items() for text in texts}


def kernel(*lines: str) -> str:
    """A kernel with these instructions, each on a source line of its own."""
    body = "".join(f"\t.loc\t1 {number + 10} 5\n\t{line}\n" for number, line in enumerate(lines))
    return HEAD + body + TAIL


def launch(name: str = "kernel", args: tuple[str, ...] = ("x", "out"), **changes: object) -> KernelLaunch:
    """One block."""
    return KernelLaunch(kernel=name, grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0, args=args, **changes)  # type: ignore[arg-type]


def knockout(*lines: str, **static: int) -> KnockOut:
    """The knock-out of a kernel with these instructions."""
    return KnockOut(kernel(*lines), [launch()], static_shared=static or {"kernel": 8192})


def reasons(found: KnockOut, name: str) -> set[str]:
    """Why instructions of a class stay."""
    return {reason for _, reason in found.instructions_in_class(name).remaining}


programs = st.lists(st.sampled_from(sorted(CLASS_OF)), min_size=1, max_size=12)


@given(programs, st.sets(st.sampled_from(sorted(INSTRUCTIONS)), min_size=1))
def test_a_class_goes_and_every_other_instruction_stays(lines: list[str], names: set[str]) -> None:
    found = knockout(*lines)
    for name in INSTRUCTIONS:
        removal = found.instructions_in_class(name)
        assert len(removal.removable) == sum(CLASS_OF[line] == name for line in lines) and not removal.remaining
    assert Counter(_texts(found.ptx_without(names), lines)) == Counter(
        line for line in lines if CLASS_OF[line] not in names
    )


def _texts(ptx: str, lines: list[str]) -> list[str]:
    """The instructions in the PTX that are among these, as they are written there."""
    known = {
        (one.opcode, one.operands, one.predicate): text
        for text in lines
        for one in _statements(kernel(text))[HEAD_STATEMENTS : HEAD_STATEMENTS + 1]
    }
    keys = [(one.opcode, one.operands, one.predicate) for one in _statements(ptx)]
    return [known[key] for key in keys if key in known]


def _statements(ptx: str) -> tuple[Statement, ...]:
    return parse_functions(ptx).functions[0].statements


@given(programs)
def test_results_get_a_value_and_addresses_stay_in_use(lines: list[str]) -> None:
    found = knockout(*lines)
    names = set(INSTRUCTIONS)
    function = parse_functions(found.ptx_without(names)).functions[0]
    written = [one.operands[0] for one in function.statements if one.operands]
    for line in lines:
        assert {*INSTRUCTIONS[CLASS_OF[line]][line]} <= {*written}, f"{line} wrote it"
    read = {word for one in function.statements for operand in one.operands[1:] for word in operand.split()}
    used = {"%rd4" if "%rd4" in line else "%rd5" if "%rd5" in line else "%r4" for line in lines if "[" in line}
    assert used <= {word.strip("{},;") for word in read}


@needs_ptxas
@pytest.mark.parametrize("name", [name for name in INSTRUCTION_CLASSES if name != ADDRESS_ARITHMETIC])
def test_every_instruction_of_a_class_assembles_without_it(name: str) -> None:
    found = knockout(*CLASS_OF)
    assert found.instructions_in_class(name).removable and not found.instructions_in_class(name).remaining
    assert assemble(found.ptx_without([name]), "sm_80", "kernel").stat().st_size


@needs_ptxas
@settings(max_examples=6, deadline=None)
@given(programs, st.sets(st.sampled_from(INSTRUCTION_CLASSES), min_size=2, max_size=3))
def test_pairs_assemble(lines: list[str], names: set[str]) -> None:
    names -= {BANK_CONFLICTS} if SHARED in names else set()
    assert assemble(knockout(*lines).ptx_without(names), "sm_80", "kernel").stat().st_size


def test_lines_count_the_instructions_of_the_source() -> None:
    removal = knockout("ld.global.f32 %f1, [%rd4];", "ld.global.f32 %f2, [%rd4+4];").instructions_in_class(GLOBAL_LOADS)
    assert removal.lines("/some/where/kernel.cu") == {"10": 1, "11": 1}
    inlined = kernel("ld.global.f32 %f1, [%rd4];").replace(
        ".loc\t1 10 5", ".loc\t2 7 3, function_name $L__info_string1, inlined_at 1 10 5"
    )
    assert KnockOut(inlined, [launch()]).instructions_in_class(GLOBAL_LOADS).lines("/some/where/kernel.cu") == {
        "tile.cuh:7": 1
    }


@pytest.mark.parametrize(
    ("name", "lines", "reason"),
    [
        # a gather: the index decides an address, so that its load stays
        (GLOBAL_LOADS, ("ld.global.u32 %r9, [%rd4];", "mul.wide.u32 %rd9, %r9, 4;", "add.s64 %rd10, %rd2, %rd9;",
                        "ld.global.f32 %f1, [%rd10];"), "feeds-address"),
        # a bound of a loop
        (GLOBAL_LOADS, ("ld.global.u32 %r9, [%rd4];", "setp.gt.u32 %p1, %r9, 7;", "@%p1 bra $L__BB0_1;"),
         "feeds-branch"),
        # an index that travels through shared memory
        (GLOBAL_LOADS, ("ld.global.u32 %r9, [%rd4];", "st.shared.u32 [%r4], %r9;", "bar.sync 0;",
                        "ld.shared.u32 %r10, [%r4];", "mul.wide.u32 %rd9, %r10, 4;", "add.s64 %rd10, %rd2, %rd9;",
                        "st.global.u32 [%rd10], %r10;"),
         "feeds-address"),
        (BARRIERS, ("ld.global.u32 %r9, [%rd4];", "st.shared.u32 [%r4], %r9;", "bar.sync 0;",
                    "ld.shared.u32 %r10, [%r4];", "mul.wide.u32 %rd9, %r10, 4;", "add.s64 %rd10, %rd2, %rd9;",
                        "st.global.u32 [%rd10], %r10;"),
         "feeds-address"),
        # the ticket of the last block
        (ATOMICS, ("atom.global.inc.u32 %r9, [%rd5], 7;", "setp.eq.u32 %p1, %r9, 7;", "@%p1 bra $L__BB0_1;"),
         "feeds-branch"),
        # a thread that waits for another one
        (GLOBAL_STORES, ("ld.volatile.global.u32 %r9, [%rd4];", "setp.eq.u32 %p1, %r9, 0;", "@%p1 bra $L__BB0_1;",
                         "st.global.u32 [%rd5], %r1;"), "another-thread-waits"),
        (BARRIERS, ("mbarrier.init.shared.b64 [%r4], 1;", "bar.sync 0;"), "mbarrier"),
        (GLOBAL_LOADS, ("ld.f32 %f1, [%rd4];",), "unknown-space"),
    ],
)  # fmt: skip
def test_what_decides_a_path_or_an_address_stays(name: str, lines: tuple[str, ...], reason: str) -> None:
    found = knockout(*lines)
    assert reasons(found, name) == {reason}
    assert lines[0].split()[0] in found.ptx_without([name]) or reason == "mbarrier"


def test_the_gathered_rows_go_where_their_indices_stay() -> None:
    gather = ("ld.global.u32 %r9, [%rd4];", "mul.wide.u32 %rd9, %r9, 4;", "add.s64 %rd10, %rd2, %rd9;",
              "ld.global.f32 %f1, [%rd10];")  # fmt: skip
    removal = knockout(*gather).instructions_in_class(GLOBAL_LOADS)
    assert [one.operands[0] for one in removal.removable] == ["%f1"]
    assert [one.operands[0] for one, _ in removal.remaining] == ["%r9"]


@pytest.mark.parametrize(("second", "reason"), [("out", {"stored-address"}), ("other", set())])
def test_a_store_that_a_later_kernel_reads_as_an_address_stays(second: str, reason: set[str]) -> None:
    writes = kernel("st.global.u32 [%rd5], %r1;")
    reads = kernel("ld.global.u32 %r9, [%rd4];", "cvt.u64.u32 %rd9, %r9;", "st.global.u32 [%rd9], %r1;")
    reads = reads[reads.index(".visible") : reads.index("\t.file")].replace("kernel", "reader")
    text = writes.replace("\t.file", f"{reads}\t.file", 1)
    found = KnockOut(text, [launch(), launch("reader", (second, "last"))])
    remaining = {
        reason
        for one, reason in found.instructions_in_class(GLOBAL_STORES).remaining
        if one.operands == ("[%rd5]", "%r1")
    }
    assert remaining == reason


def test_a_table_of_addresses_in_shared_memory_does_not_keep_other_variables() -> None:
    lines = ("mov.u32 %r20, places;", "ld.shared.u32 %r9, [%r20];", "mul.wide.u32 %rd9, %r9, 4;",
             "add.s64 %rd10, %rd2, %rd9;", "st.global.f32 [%rd10], %f1;", "st.shared.f32 [%r4], %f1;",
             "st.shared.u32 [%r20], %r1;")  # fmt: skip
    text = kernel(*lines).replace("tile[8192];", "tile[8192];\n\t.shared .align 4 .b8 places[64];")
    removal = KnockOut(text, [launch()]).instructions_in_class(SHARED)
    assert [one.operands[0] for one in removal.removable] == ["[%r4]"]
    assert {one.operands[0] for one, _ in removal.remaining} == {"%r9", "[%r20]"}


def test_tma_without_its_copies_expects_no_bytes() -> None:
    lines = ("mbarrier.init.shared::cta.b64 [%r2], 1;",
             "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;",
             "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], "
             "[%rd1, {%r1, %r3}], [%r2];")  # fmt: skip
    new = knockout(*lines).ptx_without([GLOBAL_LOADS])
    assert "cp.async.bulk" not in new and "expect_tx.shared::cta.b64 _, [%r2], 0;" in new


def test_accumulators_of_wgmma_get_values_of_their_own() -> None:
    text = ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd9, %rd10, %p1, 1, 1, 0, 0;",)
    new = parse_functions(knockout(*text).ptx_without([MATRIX])).functions[0].statements
    assert [one.operands[0] for one in new if one.opcode == "mov.b32"][:4] == ["%f1", "%f2", "%f3", "%f4"]
    assert not any(one.base == "wgmma" for one in new)


def test_fragments_that_arithmetic_reads_have_values_of_their_own() -> None:
    loads = tuple(
        f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r{at}, %r{at + 1}}}, [%r4+{at}];" for at in range(10, 30, 2)
    )
    product = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r10, %r11, %r12, %r13}, "
    product += "{%r14, %r15}, {%f1, %f2, %f3, %f4};"
    assert "%kofragment0;" in knockout(*loads, product).ptx_without([SHARED]), "neighbours, without a move for each"
    converted = knockout(*loads, product, "add.f32 %f5, %r10, %f1;").ptx_without([SHARED])
    values = [one.operands for one in _statements(converted) if one.opcode == "mov.b32" and one.operands[0] == "%r10"]
    assert values == [("%r10", "%kox")], "made of the address"


def test_bank_conflicts_need_room_for_the_lanes_of_a_warp() -> None:
    line = "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r4];"
    assert reasons(knockout(line, kernel=512), BANK_CONFLICTS) == {"too-small"}
    assert not reasons(knockout(line, kernel=528), BANK_CONFLICTS)


def test_counts_of_groups() -> None:
    found = knockout(
        "ld.global.f32 %f1, [%rd4];", "fma.rn.f32 %f2, %f1, %f1, %f1;", "bar.sync 0;", "ex2.approx.f32 %f3, %f2;"
    )
    counts = ptx_counts(found.flows[0].function.statements)
    assert {group: count for group, count in counts.items() if count} == {
        "global loads": 1, "barriers": 1, "fp32": 1, "special functions": 1,
    }  # fmt: skip


# The assembler ----------------------------------------------------------------------------------------------------


@needs_ptxas
def test_ptx_of_a_newer_release_is_assembled_as_the_assemblers_own() -> None:
    text = kernel("ld.global.f32 %f1, [%rd4];", "st.global.f32 [%rd5], %f1;").replace(".version 7.8", ".version 99.0")
    assert assemble(text, "sm_80", "kernel").stat().st_size


@needs_ptxas
def test_what_the_assembler_rejects_is_a_compile_error() -> None:
    with refuses("not-assembled", "kernel", error=CompileError):
        assemble(kernel("ld.global.f32 %nothing, [%rd4];"), "sm_80", "kernel")


def test_without_an_assembler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "assemblers", lambda: ())
    with refuses("missing-extra", "ptxas", error=EnvironmentFault):
        assembler("sm_90")


def test_cuda_12_assembles_for_gpus_that_cuda_13_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (assembling.Assembler(Path("ptxas"), version) for version in ((12, 9), (13, 0)))
    monkeypatch.setattr(assembling, "assemblers", lambda: (old, new))
    assert (assembler("sm_61"), assembler("sm_75"), assembler("sm_90a")) == (old, new, new)


# Shipped kernels --------------------------------------------------------------------------------------------------


def sample() -> list[Variant]:
    """Some variants of different files, another sample each day; with OPBENCH_LONG all."""
    files = {variant.path: variant for variant in kernel_variants()}
    chosen = sorted(files.values(), key=lambda variant: variant.id)
    if os.environ.get("OPBENCH_LONG"):
        return chosen
    return daily_sample(chosen, 6)


@needs_nvrtc
@needs_ptxas
@pytest.mark.parametrize("variant", sample(), ids=lambda variant: variant.id)
def test_shipped_kernels_lose_one_class_only(variant: Variant) -> None:
    found = assemble_knockouts(case_of(variant.id, "", CATALOG, "quick", "cuda"), (9, 0), 132)
    assert found.cubins["original"].stat().st_size
    for cost in without_times(found).classes:
        assert cost.reason != "not-assembled", cost.detail
        if cost.reason or not cost.changes:
            # As many stores as were left out stand for the exclusive-or at the ends, if there were few.
            few_stores = cost.name == GLOBAL_STORES and not cost.reason and cost.instructions <= 4
            is_unchanged = few_stores or cost.name in (BANK_CONFLICTS, ADDRESS_ARITHMETIC)
            assert cost.reason in {one.reason for one in cost.kept} or is_unchanged
            continue
        assert sum(cost.lines.values()) == cost.instructions
        for change in cost.changes:
            if cost.name != ADDRESS_ARITHMETIC and change.intended and change.before and not change.ptx:
                # One store for the exclusive-or at each end of each kernel, one group of a wgmma's wait.
                assert change.after <= max(4, 2 * len(variant.kernels), change.before // 2), (cost.name, change)


@needs_nvrtc
@needs_ptxas
@pytest.mark.parametrize(
    ("case", "gone"),
    [
        ("matmul/shared_tile[TILE=32](m=128,n=128,k=128)",
         {GLOBAL_LOADS: "global loads", SHARED: "shared memory", BARRIERS: "barriers"}),
        ("matmul/mma_bf16[BM=128,BN=128,WN=64,WK=1,STAGES=3](m=128,n=128,k=128,dtype=bf16)",
         {MATRIX: "matrix", SHARED: "shared memory"}),
        ("sum/grid_stride_vec4[BLOCK=256,BLOCKS_PER_SM=8,UNROLL=4](n=262144)", {ATOMICS: "atomics"}),
    ],
)  # fmt: skip
def test_the_machine_code_loses_the_class_and_keeps_the_arithmetic(case: str, gone: dict[str, str]) -> None:
    costs = assemble_knockouts(CATALOG.case(case), (9, 0), 132).costs
    for name, group in gone.items():
        change = next(one for one in costs[name].changes if one.group == group)
        assert change.before and change.after == 0 and not costs[name].upper_bound, costs[name]


def test_a_library_has_no_source() -> None:
    with refuses("library", "matmul/cublas(m=8,n=8,k=8)", error=OpbenchError):
        assemble_knockouts(CATALOG.case("matmul/cublas(m=8,n=8,k=8)"), (9, 0), 132)
