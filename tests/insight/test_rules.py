"""Each rule of the diagnosis finds its flaw in traffic made by hand, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opbench.backend.counts import BranchTraffic, LineTraffic
from opbench.insight.diagnosis import Diagnosis, diagnose
from opbench.insight.subject import Subject
from opbench.kernels.folders import case_named
from opbench.report.run.annotated import to_html
from support.builders.traffic_by_hand import (
    CATALOG,
    FILE,
    PARITY,
    SHARED,
    SOURCE,
    TURN,
    entry,
    explained,
    printed,
    problems,
    traffic,
)


def test_a_strided_store_beside_a_coalesced_load_is_a_transposition() -> None:
    strided = entry(5, "global", "store", sectors=4096)
    first, *_ = problems("transpose/naive_write_strided(rows=64,cols=64)", entry(3, "global", "load"), strided)
    assert (first.kind, first.rule, first.line, first.mechanism) == ("uncoalesced", "R7", 5, "shared_memory_transpose")
    assert first.remedies[0] == "transpose/shared"
    assert "the load of line 3 is coalesced" in first.evidence


def test_a_strided_access_without_a_counterpart_is_a_wrong_index() -> None:
    lines = (entry(3, "global", "load", sectors=2112), entry(5, "global", "store", sectors=4096))
    found = problems("matmul/naive_row_x(m=64,n=64,k=64)", *lines)
    assert {p.line: p.kind for p in found} == {3: "uncoalesced", 5: "uncoalesced"}
    assert all(p.remedies[0] == "matmul/coalesced" for p in found)


def test_twice_the_sectors_are_strided_and_alignment_is_no_fault() -> None:
    (found,) = problems("maxpool2d/grid3d(n=1,c=1,h=64,w=64)", entry(3, "global", "load", sectors=1024))
    assert (found.kind, found.remedies) == ("strided", ("maxpool2d/multi_output",))
    assert (
        problems("maxpool2d/multi_output(n=1,c=1,h=64,w=64)", entry(3, "global", "load", width=16, requests=16)) == []
    )
    misaligned = entry(3, "global", "load", width=8, sectors=128 * 9)
    assert problems("maxpool2d/grid3d(n=1,c=1,h=64,w=64)", misaligned) == []


def test_the_scalar_path_of_a_vectorised_kernel_is_called_that() -> None:
    (found,) = problems("transpose/vectorised(rows=63,cols=65)", entry(3, "global", "load", sectors=2048))
    assert (found.kind, found.remedies) == ("scalar path", ())
    assert "pad the rows" in found.advice


def test_narrow_streaming_is_cured_by_vectors() -> None:
    (found,) = problems("relu/scalar(n=4096)", entry(3, "global", "load"))
    assert (found.rule, found.remedies) == ("R8", ("relu/vec4", "relu/vec4_unrolled"))
    assert problems("relu/scalar(n=4096)", entry(3, "global", "load", width=16, requests=32)) == []
    assert problems("fma/one_chain(n=4096,rounds=64)", entry(3, "global", "load")) == []


def test_a_line_that_fetches_everything_many_times_wants_a_tile() -> None:
    again = entry(3, "global", "load", requests=16384, sectors=2 * 16384)
    (found,) = problems("matmul/coalesced(m=64,n=64,k=64)", again)
    assert (found.rule, found.mechanism, found.remedies[0]) == ("R6", "shared_memory_tile", "matmul/shared_tile")
    tiled = problems("matmul/shared_tile(m=64,n=64,k=64)", again, entry(4, "shared", "store"))
    assert [p.mechanism for p in tiled] == ["register_tile"]


def test_a_workspace_that_is_read_once_is_no_reread() -> None:
    read = entry(3, "global", "load", requests=512, width=16)
    assert problems("matmul/split_k(m=64,n=64,k=64)", read) == []
    assert [p.kind for p in problems("matmul/vectorised(m=64,n=64,k=64)", read)] == ["re-read"]


def test_shared_loads_that_dwarf_global_ones_want_registers() -> None:
    lines = (entry(3, "global", "load", requests=16), entry(5, "shared", "load", requests=4096))
    (found,) = problems("matmul/shared_tile(m=64,n=64,k=64)", *lines)
    assert (found.rule, found.remedies[:2]) == ("R12", ("matmul/register_tile_1d", "matmul/register_tile_2d"))


def test_collisions_of_atomics() -> None:
    hot = entry(5, "global", "atomic", requests=64, sectors=64, ideal_sectors=256, collisions=2048)
    (found,) = problems("sum/shuffle(n=65536)", hot)
    assert (found.kind, found.remedies) == (
        "atomic collisions",
        ("sum/grid_stride_vec4", "sum/two_pass", "sum/two_pass_overlapped"),
    )
    assert problems("sum/shuffle(n=65536)", replace(hot, collisions=100)) == []


def test_few_lanes_are_divergence_only_where_other_lines_have_more() -> None:
    tree = entry(5, "shared", "load", requests=512, lanes=512 * 5)
    full = entry(3, "shared", "store", requests=128)
    (found,) = problems("sum/interleaved(n=65536)", full, tree)
    assert (found.rule, found.remedies[0]) == ("R20", "sum/sequential")
    assert problems("sum/interleaved(n=65536)", tree) == [], "an edge: every line has few lanes"
    election = entry(5, "shared", "load", requests=512, lanes=512)
    assert problems("sum/interleaved(n=65536)", full, election) == []


def parted(branch: BranchTraffic, *lines: LineTraffic) -> list[Diagnosis]:
    """Problems of a branch beside lines, if it has any."""
    case = case_named("sum/interleaved(n=65536)")
    counts = replace(traffic(*(lines or TURN[:3]), barriers=0), branches=(branch,))
    found = diagnose(Subject.of_case(case, CATALOG.variants("sum")), counts, {FILE: SOURCE})
    assert sum(p.share for p in found) <= 1
    return [p for p in found if p.kind == "divergence"]


def test_a_branch_that_splits_warps_again_and_again_is_divergence() -> None:
    (found,) = parted(PARITY)
    assert (found.rule, found.line, found.cost, found.remedies[0]) == ("R20", 4, 96, "sum/sequential")
    assert found.evidence == (
        "75 % of the 128 executions of this branch by a warp split its lanes; on average, 16.0 lanes take the path "
        "with fewer lanes"
    )
    assert parted(replace(PARITY, fewest_lanes=96)) == [], "one lane each: an election"
    assert parted(replace(PARITY, executions=9600)) == [], "an edge of the problem"
    assert parted(replace(PARITY, executions=30, divergent=30)) == [], "too rare beside the accesses"
    tree = entry(4, "shared", "load", requests=512, lanes=512 * 5)
    (one,) = parted(PARITY, entry(3, "shared", "store"), tree)
    assert "5.0 of 32 lanes" in one.evidence, "the line's accesses have said so already"


def test_partings_stand_beside_their_line() -> None:
    counts = replace(traffic(*TURN), branches=(PARITY,))
    made = explained(counts)
    (line,) = next(f for f in made.to_json()["files"] if f["path"] == FILE)["lines"][1:2]
    assert line["line"] == 4 and line["accesses"] == []
    assert line["branches"] == [
        {"kernel": "turn", "file": FILE, "line": 4, "executions": 128, "divergent": 96, "fewest_lanes": 1536}
        | {"called_from": 0, "source": "counted"}
    ]
    (row,) = (text for text in printed(made).splitlines() if "__syncthreads" in text)
    assert row.split()[:2] == ["4", "branch"] or row.split()[:3] == ["4", "!", "branch"]
    assert "128" in row and "75 %" in row
    page = to_html(made)
    assert "<td>branch</td><td>128</td>" in page and "<td>75 %</td>" in page
    some = replace(traffic(*TURN, blocks=8), branches=(PARITY,))
    assert "≈256" in printed(explained(some))
    assert "diverged" not in printed(explained(traffic(*TURN))).split("│")[0]


def test_many_barriers_with_little_between_them() -> None:
    lines = (entry(3, "shared", "store"), entry(5, "shared", "load"))
    (found,) = problems("sum/sequential(n=65536)", *lines, barriers=36)
    assert (found.rule, found.line) == ("R14", 4)
    assert "sum/shuffle" in found.remedies


def test_barriers_have_a_line_without_any_source_given() -> None:
    case = case_named("sum/sequential(n=1000)")
    path = str(case.variant.path)
    lines = tuple(replace(line, file=path, line=at) for line, at in zip(TURN, (39, 39, 44, 44), strict=True))
    (found,) = (
        p for p in diagnose(Subject.of_case(case, []), traffic(*lines, barriers=36), {}) if p.kind == "barriers"
    )
    assert "__syncthreads" in case.variant.path.read_text().splitlines()[found.line - 1]


def test_no_problem_is_more_than_all_passes() -> None:
    hot = entry(5, "global", "atomic", requests=64, sectors=64, ideal_sectors=256, collisions=64 * 31)
    lone = entry(3, "global", "load", lanes=256, sectors=128, ideal_sectors=128)
    found = problems("sum/interleaved(n=65536)", hot, lone, entry(2, "global", "load", requests=200))
    assert {"atomic collisions", "divergence"} <= {p.kind for p in found}
    assert sum(p.share for p in found if p.unit == "passes") <= 1


def test_wider_accesses_save_requests_not_passes() -> None:
    """16 bytes per lane move the same sectors in a quarter of the requests."""
    lines = [entry(14, "global", kind, requests=128) for kind in ("load", "store")]
    found = problems("relu/scalar[BLOCK=256](n=4096)", *lines)
    assert {(p.kind, p.unit) for p in found} == {("narrow", "requests")}
    assert sum(p.share for p in found) == pytest.approx(0.75)


def test_accesses_of_a_line_are_one_problem_of_a_kind() -> None:
    left, right = (entry(5, "shared", "load", column=c, wavefronts=w) for c, w in ((9, 4096), (30, 2048)))
    (found,) = (p for p in problems(SHARED, left, right) if p.kind == "bank conflicts")
    assert found.cost == 4096 + 2048 - 2 * 128 and "32.0 wavefronts" in found.evidence
