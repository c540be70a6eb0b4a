"""What the machine code's widths and branches make of counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opbench.backend.counts import ORIGIN_COUNTED, ORIGIN_PREDICTED, LineTraffic, Traffic
from opbench.gpu.limits.resources import MachineCode
from opbench.insight.lowering import lower_traffic, merge_neighbours

# 64 loads of 4 bytes, which 16 of 16 bytes or 32 of 8 would do; a broadcast of 16 bytes takes two wavefronts.
SAVED = {"requests_saved_8": 32, "wavefronts_saved_8": 32, "requests_saved_16": 48, "wavefronts_saved_16": 32}
ROW = LineTraffic("k", "k.cu", 7, "shared", "load", 4, 64, 2048, 0, 0, 64, 64, column=9, **SAVED)
COLUMN = LineTraffic("k", "k.cu", 7, "shared", "load", 4, 64, 2048, 0, 0, 64, 64, column=30)


def lowered(*lines: LineTraffic, **more: Any) -> tuple[list[tuple[int, int, int]], bool]:
    """Width, requests and wavefronts of each line, and whether all notes say that they are applied."""
    found = lower_traffic(Traffic(lines), {"k": MachineCode(0, **more)})
    assert found.traffic.source == (ORIGIN_PREDICTED if any(n.applied for n in found.notes) else ORIGIN_COUNTED)
    return [(e.width, e.requests, e.wavefronts) for e in found.traffic.lines], all(n.applied for n in found.notes)


def test_without_machine_code_nothing_changes() -> None:
    assert lowered(ROW, COLUMN) == ([(4, 64, 64), (4, 64, 64)], True)
    assert lowered(ROW, lines={"7": {"LDS.32": 3}}) == ([(4, 64, 64)], True)


@pytest.mark.parametrize(("bits", "expected"), [(64, (8, 32, 32)), (128, (16, 16, 32))])
def test_accesses_of_one_width_are_merged_to_it(bits: int, expected: tuple[int, int, int]) -> None:
    assert lowered(ROW, lines={"7": {f"LDS.{bits}": 4, "STS.32": 9}}) == ([expected], True)


def test_of_two_accesses_the_one_with_neighbours_is_merged() -> None:
    assert lowered(ROW, COLUMN, lines={"7": {"LDS.128": 4, "LDS.32": 16}}) == ([(16, 16, 32), (4, 64, 64)], True)


def test_widths_that_do_not_add_up_change_nothing() -> None:
    counts = [(4, 64, 64), (4, 64, 64)]
    assert lowered(ROW, COLUMN, lines={"7": {"LDS.128": 16, "LDS.32": 16}}) == (counts, False)
    assert lowered(COLUMN, lines={"7": {"LDS.128": 4}}) == ([(4, 64, 64)], False)
    wide = replace(COLUMN, width=16)
    assert lowered(wide, lines={"7": {"LDS.128": 4, "LDS.32": 16}}) == ([(16, 64, 64)], False), "no split is guessed"


def test_instructions_for_any_space_leave_the_counts_alone() -> None:
    assert lowered(ROW, lines={"7": {"LDS.128": 4, "LD.32": 1}}) == ([(4, 64, 64)], True)


def test_merging_keeps_the_bytes() -> None:
    assert merge_neighbours(ROW, 16).bytes == ROW.bytes
    assert merge_neighbours(replace(ROW, upper_wavefronts=80), 16).upper_wavefronts == 48


def test_loads_under_a_later_condition_are_as_many_as_its_stores() -> None:
    store = LineTraffic("k", "k.cu", 8, "global", "store", 4, 48, 1536, 192, 192)
    assert lowered(ROW, store, sunk={"7": 8})[0][0] == (4, 48, 48)
    partly = replace(store, lanes=1000)
    assert lowered(ROW, partly, sunk={"7": 8}) == ([(4, 64, 64), (4, 48, 0)], False), "lanes of one request part"
    assert lowered(ROW, replace(store, requests=64, lanes=2048), sunk={"7": 8})[0][0] == (4, 64, 64)


def test_lines_are_joined_by_file_and_number() -> None:
    """A header's line 7 and the kernel's line 7: each has its own instructions."""
    header = replace(ROW, file="/some/where/opbench/tile.cuh", called_from=30)
    wide = {"7": {"LDS.32": 4}, "tile.cuh:7": {"LDS.128": 1}}
    found = lower_traffic(Traffic((ROW, header)), {"k": MachineCode(0, lines=wide)})
    assert sorted((e.file[-3:], e.width, e.requests) for e in found.traffic.lines) == [(".cu", 4, 64), ("cuh", 16, 16)]
    (note,) = found.notes
    assert note.text.startswith("line 30 (in tile.cuh:7)")
    assert lower_traffic(Traffic((header,)), {"k": MachineCode(0, lines={"7": {"LDS.128": 1}})}).notes == ()
