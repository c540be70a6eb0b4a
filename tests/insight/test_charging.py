"""Samples are charged to the instruction that warps wait for: small codes with a known answer."""

from __future__ import annotations

import pytest

from opbench.insight.nsight.charging import apportion, charge_samples
from opbench.insight.nsight.operands import read_operands
from opbench.insight.nsight.source_page import SampledInstruction

LOOP = """
0x00 S2R R0, SR_TID.X
0x10 IMAD.WIDE R2, R0, 0x4, R8
0x20 LDG.E R4, desc[UR4][R2.64]
0x30 LDG.E.128 R12, desc[UR4][R2.64+0x80]
0x40 LDS R5, [R0]
0x50 FFMA R6, R4, R15, R5
0x60 FADD R7, R4, R6
0x70 ISETP.NE.AND P0, PT, R0, RZ, PT
0x80 @P0 BRA 0x7f0000000020
0x90 STG.E desc[UR4][R2.64], R7
0xa0 EXIT
"""


def code(text: str, base: int = 0x7F0000000000) -> list[SampledInstruction]:
    rows = [row.split(maxsplit=1) for row in text.strip().splitlines()]
    return [SampledInstruction(base + int(offset, 16), f"{words} ;", executed=1) for offset, words in rows]


def causes(text: str, at: int, reason: str, executed: dict[int, int] | None = None) -> list[tuple[str, int, str]]:
    """Return opcode, samples and rule of what one instruction, given by its offset, waits for with 100 samples."""
    instructions = code(text)
    base = instructions[0].address
    sampled = [
        SampledInstruction(
            one.address,
            one.text,
            {reason: 100} if one.address - base == at else {},
            executed=(executed or {}).get(one.address - base, 1),
        )
        for one in instructions
    ]
    charges = charge_samples(sampled)
    assert sum(one.samples for one in charges) == 100 and all(one.reason == reason for one in charges)
    return [(read_operands(sampled[one.cause].text).opcode, one.samples, one.rule) for one in charges]


@pytest.mark.parametrize(("reason", "opcode"), [("long_scoreboard", "LDG.E.128"), ("short_scoreboard", "LDS")])
def test_a_wait_is_charged_to_the_last_load_of_its_memory(reason: str, opcode: str) -> None:
    """A short scoreboard waits for shared memory, although another load is as near."""
    assert causes(LOOP, 0x50, reason) == [(opcode, 100, "register")]


def test_an_operand_that_was_waited_for_before_is_not_charged_again() -> None:
    text = LOOP.replace("0x60 FADD R7, R4, R6", "0x60 MUFU.RCP R6, R6").replace(
        "0x70 ISETP.NE.AND P0, PT, R0, RZ, PT", "0x70 FMUL R7, R4, R6"
    )
    assert causes(text, 0x70, "short_scoreboard") == [("MUFU.RCP", 100, "register")]


def test_a_barrier_is_sampled_at_the_next_instruction() -> None:
    """So H100s do: the warp has issued BAR and waits before the instruction after it."""
    text = """
    0x00 BAR.SYNC.DEFER_BLOCKING 0x0
    0x10 BAR.ARV 0x1, 0x100
    0x20 LDS R5, [R0]
    0x30 @P0 BRA 0x20
    0x40 @P1 EXIT
    0x50 BRA 0x50
    """
    assert causes(text, 0x20, "barrier") == [("BAR.SYNC.DEFER_BLOCKING", 100, "before")]
    assert causes(text, 0x20, "branch_resolving", {0x30: 1}) == [("BRA", 100, "jump")]
    assert causes(text, 0x50, "branch_resolving") == [("EXIT", 100, "jump")]
    assert causes(text, 0x10, "sleeping") == [("BAR.ARV", 100, "itself")]


def test_warpgroup_waits() -> None:
    text = """
    0x00 WARPGROUP.ARRIVE
    0x10 HGMMA.64x64x16.F32 R24, gdesc[UR12], R24, gsb0
    0x20 BAR.ARV 0x1, 0x100
    0x30 WARPGROUP.DEPBAR.LE gsb0, 0x0
    0x40 EXIT
    """
    assert causes(text, 0x10, "warpgroup_arrive") == [("WARPGROUP.ARRIVE", 100, "before")]
    assert causes(text, 0x30, "barrier") == [("HGMMA.64x64x16.F32", 100, "product")]


@pytest.mark.parametrize(
    "reason", ["barrier", "wait", "mio_throttle", "lg_throttle", "math_pipe_throttle", "selected", "no_instructions"]
)
def test_other_reasons_stay_at_the_instruction(reason: str) -> None:
    assert causes(LOOP, 0x50, reason) == [("FFMA", 100, "itself")]


def test_a_jump_is_followed_backwards() -> None:
    """The load at the end of a loop is used at its beginning, after the jump."""
    text = """
    0x00 MOV R4, RZ
    0x10 FADD R5, R4, R5
    0x20 LDG.E R4, desc[UR4][R2.64]
    0x30 @P0 BRA 0x7f0000000010
    0x40 EXIT
    """
    assert causes(text, 0x10, "long_scoreboard") == [("LDG.E", 100, "register")]


def test_two_paths_share_by_how_often_each_load_ran() -> None:
    text = """
    0x00 @P0 BRA 0x30
    0x10 LDG.E R4, desc[UR4][R2.64]
    0x20 BRA 0x40
    0x30 LDG.E.CONSTANT R4, desc[UR4][R8.64]
    0x40 FADD R5, R4, R5
    0x50 EXIT
    """
    shares = causes(text, 0x40, "long_scoreboard", {0x10: 3, 0x30: 1})
    assert sorted(shares) == [("LDG.E", 75, "register"), ("LDG.E.CONSTANT", 25, "register")]


def test_a_conditional_load_does_not_hide_the_other_branch() -> None:
    text = """
    0x00 @!P0 LDG.E.64 R4, desc[UR4][R2.64]
    0x10 @P0 LDG.E R4, desc[UR4][R8.64]
    0x20 FADD R5, R4, R5
    0x30 EXIT
    """
    assert sorted(causes(text, 0x20, "long_scoreboard")) == [("LDG.E", 50, "register"), ("LDG.E.64", 50, "register")]


def test_depbar_waits_for_the_group_of_copies_that_must_be_complete() -> None:
    text = """
    0x00 LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]
    0x10 LDGDEPBAR
    0x20 LDGSTS.E.64 [R5], desc[UR4][R2.64]
    0x30 LDGDEPBAR
    0x40 DEPBAR.LE SB0, {pending}
    0x50 EXIT
    """
    assert causes(text.format(pending="0x0"), 0x40, "long_scoreboard") == [("LDGSTS.E.64", 100, "copies")]
    assert causes(text.format(pending="0x1"), 0x40, "long_scoreboard") == [("LDGSTS.E.BYPASS.128", 100, "copies")]


def test_wgmma_is_charged_by_its_groups() -> None:
    text = """
    0x00 WARPGROUP.ARRIVE
    0x10 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT
    0x20 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24, gsb0
    0x30 HGMMA.64x64x16.F32 R88, gdesc[UR12], R88, gsb0
    0x40 WARPGROUP.DEPBAR.LE gsb0, {pending}
    0x50 FADD R0, R24, R1
    0x60 EXIT
    """
    assert causes(text.format(pending="0x0"), 0x40, "gmma") == [("HGMMA.64x64x16.F32", 100, "product")]
    assert causes(text.format(pending="0x1"), 0x40, "gmma") == [("HGMMA.64x128x16.F32.BF16", 100, "product")]


def test_an_mbarrier_is_charged_to_its_test() -> None:
    text = """
    0x00 UTMALDG.2D [UR12], [UR8]
    0x10 SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x8], R11
    0x20 @!P0 BRA 0x10
    0x30 EXIT
    """
    assert causes(text, 0x20, "long_scoreboard") == [("SYNCS.PHASECHK.TRANS64.TRYWAIT", 100, "register")]


def test_an_overwritten_operand_is_charged_to_its_last_reader() -> None:
    text = """
    0x00 STG.E.128 desc[UR4][R2.64], R4
    0x10 MOV R5, RZ
    0x20 EXIT
    """
    assert causes(text, 0x10, "long_scoreboard") == [("STG.E.128", 100, "overwritten")]
    assert causes(text, 0x20, "drain") == [("STG.E.128", 100, "stores")]
    assert causes(text + "    0x30 BRA 0x30\n", 0x30, "drain") == [("STG.E.128", 100, "stores")]


def test_without_a_writer_the_wait_is_marked() -> None:
    assert causes("0x00 FADD R1, R2, R3\n0x10 EXIT", 0x0, "long_scoreboard") == [("FADD", 100, "unknown")]


def test_parts_are_whole_and_exact() -> None:
    assert apportion(10, [1, 1, 1]) in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    assert apportion(7, [0, 0]) in ([4, 3], [3, 4]) and apportion(0, [1]) == [0]
    assert sum(apportion(1_000_003, [3, 5, 11])) == 1_000_003


@pytest.mark.parametrize(
    ("text", "writes", "reads"),
    [
        ("LDG.E.128.CONSTANT R8, desc[UR8][R2.64+0x10]", "R8 R9 R10 R11", "R2 R3 UR8 UR9"),
        ("@!P0 STG.E.64 desc[UR6][R28.64], R26", "", "P0 R28 R29 UR6 UR7 R26 R27"),
        ("ISETP.GE.OR P1, PT, R11, UR6, P2", "P1", "R11 UR6 P2"),
        ("IADD3 R4, P0, R2, R3, RZ", "R4 P0", "R2 R3"),
        ("IADD3.X R5, R9.reuse, UR5, RZ, P1, !PT", "R5", "R9 UR5 P1"),
        ("SHFL.BFLY PT, R14, R13, 0x1, 0x1f", "R14", "R13"),
        ("LOP3.LUT P1, RZ, R28, 0x1f, RZ, 0xc0, !PT", "P1", "R28"),
        ("VOTE.ANY R5, PT, P0", "R5", "P0"),
        ("VOTEU.ANY UP0, P0", "UP0", "P0"),
        ("FSEL R30, R30, -INF , !P3", "R30", "R30 P3"),
        ("IMAD.WIDE R4, R0, 0x100, R28", "R4 R5", "R0 R28 R29"),
        ("DFMA R4, R6, R8, R10", "R4 R5", "R6 R7 R8 R9 R10 R11"),
        ("LDSM.16.MT88.4 R136, [R196+UR15]", "R136 R137 R138 R139", "R196 UR15"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x40], R11", "P0", "UR4 R11"),
        ("SHF.L.U64.HI R9, R28, 0x4, R29", "R9", "R28 R29"),
        ("FADD R2, |R27|, -R15", "R2", "R27 R15"),
        ("P2R R172, PR, RZ, 0x4", "R172", "P0 P1 P2 P3 P4 P5 P6"),
        ("BAR.SYNC.DEFER_BLOCKING R12, 0x100", "", "R12"),
        ("F2F.F64.F32 R4, R6", "R4 R5", "R6"),
    ],
)
def test_registers_of_an_instruction(text: str, writes: str, reads: str) -> None:
    found = read_operands(text + " ;")
    assert (found.writes, found.reads) == (frozenset(writes.split()), frozenset(reads.split()))


def test_a_wgmma_writes_all_its_accumulators() -> None:
    found = read_operands("HGMMA.64x128x16.F32.BF16 R24, R152, gdesc[UR4].tnspB, R24, UP0, gsb0 ;")
    assert found.writes == {f"R{number}" for number in range(24, 24 + 64)}
    assert {"R152", "R155", "UR4", "UR5", "UP0"} <= found.reads
