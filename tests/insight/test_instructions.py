"""Executed instructions from machine code and counted accesses, and the bounds of units that follow."""

from __future__ import annotations

import pytest

from opbench.backend.counts import KernelTraffic, LineTraffic, Traffic, gather
from opbench.gpu.compile.sass import KernelCode, parse
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.gpu.limits.products import GpuProduct, product
from opbench.gpu.limits.resources import OUTSIDE_KERNEL, LaunchResources
from opbench.gpu.limits.unit_rates import UNIT_RATES, cycles_per_s
from opbench.insight.instructions import ExecutedInstructions, block_counts, executed_instructions
from opbench.insight.levels import unit_bounds

LISTING = """
//--------------------- .text.k  --------------------------
k:
.text.k:
        //## File "k.cu", line 1
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   ISETP.GE.AND P0, PT, R0, UR4, PT ;
        /*0020*/               @P0 EXIT ;
        //## File "k.cu", line 2
        /*0030*/                   MOV R4, RZ ;
.L_1:
        //## File "k.cu", line 3
        /*0040*/                   LDG.E R5, desc[UR4][R2.64] ;
        /*0050*/                   LDG.E R6, desc[UR4][R2.64+0x4] ;
        /*0060*/                   FFMA R4, R5, R6, R4 ;
        /*0070*/                   HMMA.16816.F32.BF16 R8, R12, R16, R8 ;
        /*0080*/               @P1 BRA `(.L_1) ;
        //## File "k.cu", line 4
        /*0090*/                   STG.E desc[UR4][R2.64], R4 ;
        /*00a0*/                   EXIT ;
.L_2:
        /*00b0*/                   BRA `(.L_2);
"""
"""A loop with two loads, after a block from which some warps leave."""
WARPS = 8 * 10
LOAD = LineTraffic("k", "k.cu", 3, "global", "load", 4, requests=2 * 700, lanes=64, sectors=4, ideal_sectors=4)
STORE = LineTraffic("k", "k.cu", 4, "global", "store", 4, requests=70, lanes=64, sectors=4, ideal_sectors=4)


def code() -> KernelCode:
    return parse(LISTING)["k"]


def traffic(*lines: LineTraffic) -> Traffic:
    return gather(lines, [KernelTraffic("k", 1, 10, 10, 256, 0)])


def resources(found: KernelCode) -> dict[str, LaunchResources]:
    return {"k": LaunchResources(32, 0, 0, sass=found.summary(blocks=True))}


def test_basic_blocks() -> None:
    first, head, loop, last = code().blocks
    assert (first.after, head.before, head.after) == ((OUTSIDE_KERNEL, 1), (0,), (2,))
    assert (loop.before, loop.after, loop.in_loop) == ((1, 2), (2, 3), True)
    assert (last.before, last.after, last.in_loop) == ((2,), (OUTSIDE_KERNEL,), False)
    assert loop.classes == {"LDG": 2, "FFMA": 1, "branch": 1, "tensor": 1}
    assert loop.accesses == {"3": {"LDG.32": 2}} and loop.product_flops == {"bf16": 2 * 16 * 8 * 16}
    assert code().summary().blocks == (), "results do not store them"


def test_a_block_runs_as_often_as_its_accesses() -> None:
    counts = block_counts(code().summary(blocks=True), [LOAD, STORE], WARPS)
    assert counts == [80.0, 70.0, 700.0, 70.0], "all warps start, 70 stay: the store and the way to the loop tell"


def test_instructions_are_counted_by_class() -> None:
    found = executed_instructions(traffic(LOAD, STORE), resources(code()))
    assert found is not None and found.known == 1.0 and found.source == "approximate"
    assert found.classes["FFMA"] == 700 and found.classes["LDG"] == 1400 and found.classes["STG"] == 70
    assert found.total == 80 * 3 + 70 * 1 + 700 * 5 + 70 * 2
    assert found.product_flops == {"bf16": 700 * 4096}


def test_a_block_that_runs_once_is_never_counted_more_often_than_warps() -> None:
    """The compiler moved the store out of a loop: its source line has more requests than the code executes."""
    often = LineTraffic("k", "k.cu", 4, "global", "store", 4, requests=7000)
    assert block_counts(code().summary(blocks=True), [often], WARPS)[3] == WARPS


def test_accesses_of_another_width_decide_nothing() -> None:
    wide = LineTraffic("k", "k.cu", 3, "global", "load", 16, requests=1400)
    assert block_counts(code().summary(blocks=True), [wide, STORE], WARPS)[2] == 70.0, "only through its neighbour"


def test_without_blocks_or_with_an_abandoned_launch_nothing_is_known() -> None:
    without = {"k": LaunchResources(32, 0, 0, sass=code().summary())}
    assert executed_instructions(traffic(LOAD), without) is None
    assert executed_instructions(traffic(LOAD), {}) is None


def test_each_unit_has_a_bound() -> None:
    known = product("h100")
    assert known is not None
    cycles = cycles_per_s(known)
    assert cycles == 132 * 1980e6
    classes = {"FFMA": 4e6, "IMAD": 4e6, "other integer": 1e6, "MUFU": 1e6, "LDS": 5e6, "SHFL": 1e6, "fp64": 1e6}
    found = {
        bound.limit: bound for bound in unit_bounds(ExecutedInstructions(classes, {"bf16": 989.5e6}, "counted"), "h100")
    }
    seconds = {name: bound.time_s * cycles for name, bound in found.items() if name != "tensor"}
    assert seconds == pytest.approx(
        {"issue": 17e6 / 4, "fma": 2e6, "integer": 0.5e6, "special": 2e6, "lsu": 6e6, "fp64": 0.5e6}
    )
    assert found["tensor"].time_s == pytest.approx(1e-6) and found["tensor"].instructions == 989.5e6
    assert {bound.counts for bound in found.values()} == {"counted"}
    assert unit_bounds(ExecutedInstructions({"FFMA": 1e6}), "a GPU that nobody knows") == []


def test_rates_are_known_for_every_product() -> None:
    from opbench.gpu.limits.products import PRODUCTS

    one: GpuProduct
    for one in PRODUCTS.values():
        assert isinstance(one.limits, DeviceLimits)
        rates = UNIT_RATES[one.capability]
        assert rates.fma and one.fp32_flops_per_s == pytest.approx(2 * 32 * rates.fma * cycles_per_s(one), rel=0.02)
