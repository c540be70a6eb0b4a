"""Traffic as data: what adds up, what is derived, and that a file gives it back."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from opbench.backend.counts import COUNTS, ORIGIN_PREDICTED, BranchTraffic, KernelTraffic, LineTraffic, Traffic, gather
from support.checks.errors import refuses, refuses_name

LOAD = LineTraffic(
    "k", "a.cu", 7, "global", "load", 4, requests=10, lanes=320, sectors=80, ideal_sectors=40, upper_requests=12
)
TILE = LineTraffic("k", "a.cu", 9, "shared", "load", 4, requests=8, lanes=256, wavefronts=40, ideal_wavefronts=8)
KERNEL = KernelTraffic("k", launches=1, blocks=100, counted_blocks=10, threads=256, barriers=30)
BRANCH = BranchTraffic("k", "a.cu", 8, executions=40, divergent=10, fewest_lanes=80)
TRAFFIC = gather([TILE, LOAD], [KERNEL], branches=[BRANCH])

counts = st.integers(0, 1000)
lines = st.builds(
    LineTraffic,
    kernel=st.sampled_from(["k", "m"]),
    file=st.just("a.cu"),
    line=st.integers(0, 3),
    space=st.sampled_from(["global", "shared"]),
    kind=st.sampled_from(["load", "store", "atomic"]),
    width=st.sampled_from([4, 16]),
    **dict.fromkeys(COUNTS, counts),
)


def test_derived_quantities() -> None:
    assert (LOAD.bytes, LOAD.moved_bytes) == (1280, 2560)
    assert (LOAD.sectors_per_request, LOAD.ideal_sectors_per_request, LOAD.lanes_per_request) == (8, 4, 32)
    assert (TILE.conflicts, TILE.conflicts_per_request) == (32, 4)
    assert LineTraffic("k", "", 0, "global", "load", 4).sectors_per_request == 0
    assert (BRANCH.share, BRANCH.mean_fewest_lanes) == (0.25, 8)
    assert (KERNEL.barriers_per_block, KERNEL.sampled, KERNEL.factor) == (3, True, 10)


def test_every_count_has_a_default_and_adds_up() -> None:
    places = ("line", "width", "column", "called_from")
    assert set(COUNTS) == {f.name for f in dataclasses.fields(LineTraffic) if f.type == "int" and f.name not in places}
    both = LOAD + LOAD
    assert all(getattr(both, name) == 2 * getattr(LOAD, name) for name in COUNTS)
    assert (both.line, both.width) == (7, 4)


def test_selection_and_totals() -> None:
    assert TRAFFIC.lines == (LOAD, TILE)
    assert TRAFFIC.select(space="shared") == [TILE]
    assert TRAFFIC.select(line=7, kind="store") == []
    assert TRAFFIC.total("bytes") == 1280 + 1024
    assert TRAFFIC.total("moved_bytes", space="global", kind="load") == 2560
    assert TRAFFIC.kernel("k") == KERNEL
    with refuses_name("kernel", "kk", "k"):
        TRAFFIC.kernel("kk")


def test_a_sample_stands_for_all_blocks_and_says_so() -> None:
    estimate = TRAFFIC.scaled_to_all_blocks()
    assert estimate.source == ORIGIN_PREDICTED
    assert estimate.total("requests", space="global") == 100
    assert estimate.branches == (BranchTraffic("k", "a.cu", 8, executions=400, divergent=100, fewest_lanes=800),)
    whole = gather([LOAD], [dataclasses.replace(KERNEL, counted_blocks=100)])
    assert whole.scaled_to_all_blocks() is whole


def test_launches_of_one_kernel_are_one_entry() -> None:
    twice = TRAFFIC + TRAFFIC
    assert twice.kernel("k") == KernelTraffic("k", 2, 200, 20, 256, 60)
    assert twice.total("sectors") == 160
    assert twice.branches == (BRANCH + BRANCH,) and twice.branches[0].divergent == 20
    with refuses("mixed-sources", allowed="counted", error=ValueError):
        TRAFFIC + TRAFFIC.scaled_to_all_blocks()


@given(st.lists(lines, max_size=6), st.lists(lines, max_size=6))
def test_gathering_loses_nothing(left: list[LineTraffic], right: list[LineTraffic]) -> None:
    together = gather(left, []) + gather(right, [])
    for name in COUNTS:
        assert together.total(name) == sum(getattr(entry, name) for entry in left + right)
    keys = [(e.kernel, e.file, e.line, e.space, e.kind, e.width) for e in together.lines]
    assert keys == sorted(set(keys))
    assert Traffic.from_json(together.to_json()) == together


def test_a_file_gives_it_back() -> None:
    halfway = dataclasses.replace(TRAFFIC, complete=False)
    assert Traffic.from_json(halfway.to_json()) == halfway
    before = {key: value for key, value in TRAFFIC.to_json().items() if key != "branches"}
    assert Traffic.from_json(before) == dataclasses.replace(TRAFFIC, branches=()), "of runs before there were any"
    assert "collisions" not in TRAFFIC.to_json()["lines"][0]
