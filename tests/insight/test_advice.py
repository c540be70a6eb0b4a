"""The rules of advice on kernels with one known limit, and their promises."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.backend.counts import KernelTraffic, LineTraffic, Traffic
from opbench.gpu.limits.resources import LaunchResources, MachineCode
from opbench.insight.advice import advise, advise_lines
from opbench.insight.diagnosis import Diagnosis
from opbench.insight.facts import Facts, facts_of
from opbench.insight.gains import GainEstimate, MeasuredStep, committed_steps, expected_gain
from opbench.kernels.mechanism import MECHANISMS

STREAM = Facts(
    over_bound=1.3, flops_per_byte=0.1, blocks=4096, waves=4.0, kernels=1, reads_per_byte=1.0, bytes_per_lane=16.0
)
PRODUCT = Facts(
    over_bound=5.0, flops_per_byte=500.0, blocks=4096, waves=4.0, kernels=1, reads_per_byte=30.0, bytes_per_lane=4.0
)
TILED = replace(PRODUCT, shared_per_global=8.0, multiply_adds=512, reads_per_byte=4.0)
TENSOR = replace(
    PRODUCT, shared_per_global=8.0, tensor_instructions=64, async_copies=24, reads_per_byte=4.0, bytes_per_lane=16.0
)


def first(facts: Facts, used: tuple[str, ...] = ()) -> str:
    return advise(facts, mechanisms_in_use=used)[0].mechanism


@pytest.mark.parametrize(
    ("facts", "mechanism"),
    [
        (
            replace(STREAM, wasted_sectors=0.875, sectors_per_request=32.0, bytes_per_lane=4.0, over_bound=5.0),
            "coalesced",
        ),
        (replace(STREAM, bytes_per_lane=4.0), "vectorised_access"),
        (replace(STREAM, bytes_per_lane=4.0, integer_instructions=200), "compile_time_sizes"),
        (replace(STREAM, bytes_per_lane=4.0, integer_instructions=40, conversions=4, over_bound=2.5), "no_division"),
        (replace(STREAM, conflict_share=0.8, shared_per_global=1.0), "bank_conflict_free"),
        (
            replace(
                STREAM, barriers=9.0, requests_per_barrier=0.8, instructions_per_barrier=4.0, shared_per_global=5.0
            ),
            "fewer_barriers",
        ),
        (replace(STREAM, waves=0.1, blocks=16, over_bound=12.0), "split_k"),
        (replace(STREAM, reads_per_byte=3.0, kernels=3, over_bound=20.0), "fewer_passes"),
        (replace(STREAM, atomic_share=0.5, over_bound=9.0), "block_reduction"),
        (PRODUCT, "shared_memory_tile"),
        (replace(PRODUCT, shared_per_global=8.0, multiply_adds=16), "register_tile"),
        (replace(PRODUCT, reads_per_byte=1.0), "unrolled"),
        (TILED, "tensor_core"),
        (replace(TILED, flops_per_byte=4.0, over_bound=50.0), "compile_time_sizes"),
        (TENSOR, "tma"),
        (replace(TENSOR, waves=0.4, blocks=50), "split_k"),
        (replace(TENSOR, bulk_copies=4, kernels=3), "fused"),
    ],
)
def test_the_first_advice_cures_the_only_limit(facts: Facts, mechanism: str) -> None:
    assert first(facts) == mechanism


@pytest.mark.parametrize(
    ("changes", "binds", "source", "evidence"),
    [
        ({"local_bytes": 64}, "local memory", "compiled", "64 bytes of local memory"),
        ({"idle_lanes": 0.25}, "wasted work", "counted", "25 % of the lanes"),
        ({"occupancy": 0.25, "limiter": "registers"}, "occupancy", "compiled", "25 %, limited by registers"),
        ({"tail_share": 0.375}, "tail", "measured", "38 % of the time is a tail"),
        ({"kernels": 3, "launch_share": 0.6}, "launches", "measured", "60 % of the time"),
        ({"dram_over_compulsory": 3.0}, "L2 reuse", "measured", "3.00× the compulsory bytes"),
        ({"stalls": (("barrier", 0.5), ("wait", 0.1))}, "barriers", "measured", "50 % of the time on barrier"),
    ],
)
def test_launch_and_counters_are_evidence(changes: dict[str, object], binds: str, source: str, evidence: str) -> None:
    named = [one for one in advise(replace(STREAM, **changes)) if evidence in one.evidence]  # type: ignore[arg-type]
    assert {(one.binds, one.source) for one in named} == {(binds, source)}
    assert not any(evidence in one.evidence for one in advise(STREAM))


def problem(mechanism: str, line: int, share: float) -> Diagnosis:
    """A problem of a line of a kernel."""
    return Diagnosis(
        "bank conflicts",
        "R10",
        "k",
        "k.cu",
        line,
        0,
        10.0,
        share,
        "31 conflicts",
        "pad",
        "counted",
        mechanism,
        ("a/b",),
    )


def test_problems_of_lines_are_advice_too() -> None:
    found = [problem("bank_conflict_free", 9, 0.5), problem("bank_conflict_free", 4, 0.1)]
    (alone,) = advise_lines(found, 4.0)
    assert (alone.mechanism, alone.binds, alone.line, alone.further_lines) == (
        "bank_conflict_free", "bank conflicts", 9, (4,)
    )  # fmt: skip
    assert alone.avoidable_share == pytest.approx(0.6) and alone.examples == ("a/b",)
    assert alone.gain == expected_gain("bank_conflict_free", 4.0)
    assert "at line 9: pad the rows" in alone.sentence() and "see `a/b`" in alone.sentence()
    assert "only from a time" in alone.sentence(gains=False)
    assert advise_lines(found, 4.0, mechanisms_in_use=["bank_conflict_free"]) == []
    known = {one.mechanism: one for one in advise(replace(STREAM, conflict_share=0.8, shared_per_global=1.0), found)}
    assert known["bank_conflict_free"].line == 9 and known["bank_conflict_free"].strength > alone.strength
    assert "bank_conflict_free" in {one.mechanism for one in advise(STREAM, found)}, "no rule knows it, a line does"


def test_no_advice_near_the_lower_bound() -> None:
    assert advise(replace(STREAM, over_bound=1.05, bytes_per_lane=4.0)) == []


def test_mechanisms_of_the_header_are_not_advised_again() -> None:
    facts = replace(STREAM, bytes_per_lane=4.0)
    assert first(facts, used=("vectorised_access",)) != "vectorised_access"


def test_blocks_of_a_case_that_was_not_measured_are_not_named() -> None:
    assert any("4096 blocks" in one.evidence for one in advise(STREAM))
    assert not any("blocks" in one.evidence for one in advise(replace(STREAM, blocks=0, waves=math.inf)))


def test_a_kernel_that_has_every_mechanism_is_to_be_tuned() -> None:
    facts = replace(PRODUCT, reads_per_byte=1.0)
    assert [one.in_use for one in advise(facts)] == [False]
    (again,) = advise(facts, mechanisms_in_use=("unrolled",))
    assert (again.mechanism, again.binds, again.in_use) == ("unrolled", "latency", True)
    assert "opbench tune" in again.action


numbers = st.floats(0, 100)
counts = st.integers(0, 600)


@given(
    st.builds(
        Facts,
        over_bound=st.floats(0.5, 1e4),
        flops_per_byte=st.floats(0, 1e4),
        blocks=st.integers(1, 10**6),
        waves=st.one_of(st.floats(0, 1e4), st.just(math.inf)),
        kernels=st.integers(1, 5),
        sectors_per_request=st.floats(0, 32),
        wasted_sectors=st.floats(-4, 1),
        reads_per_byte=numbers,
        bytes_per_lane=st.floats(0, 16),
        shared_per_global=numbers,
        conflict_share=st.floats(0, 1),
        atomic_share=st.floats(0, 1),
        sectors_per_atomic=st.floats(0, 32),
        collision_share=st.floats(0, 1),
        barriers=numbers,
        requests_per_barrier=numbers,
        instructions_per_barrier=numbers,
        multiply_adds=counts,
        tensor_instructions=counts,
        shuffles=counts,
        async_copies=counts,
        bulk_copies=counts,
        integer_instructions=counts,
        integer_ratio=st.floats(0, 100),
        conversions=counts,
        double_instructions=counts,
        double_instruction_share=st.floats(0, 1),
        occupancy=st.floats(0, 1),
        local_bytes=counts,
        idle_lanes=st.floats(0, 1),
        tail_share=st.floats(0, 1),
        launch_share=st.floats(0, 2),
        dram_over_compulsory=numbers,
        stalls=st.sampled_from([(), (("barrier", 0.4),), (("long_scoreboard", 0.7), ("selected", 0.3))]),
    )
)
def test_advice_is_sorted_known_and_promises_a_range(facts: Facts) -> None:
    advice = advise(facts)
    assert [one.strength for one in advice] == sorted((one.strength for one in advice), reverse=True)
    assert len({one.mechanism for one in advice}) == len(advice)
    for one in advice:
        assert one.mechanism in MECHANISMS
        assert one.source in ("measured", "counted", "compiled")
        assert 1.0 <= one.gain.low <= one.gain.middle <= one.gain.high


def test_a_gain_grows_with_the_distance() -> None:
    near, far = expected_gain("coalesced", 2.0), expected_gain("coalesced", 16.0)
    assert 1.0 < near.middle < far.middle
    assert expected_gain("coalesced", 0.9).middle == 1.0


def measured_step(gain: float, distance: float = 8.0, bound_us: float = 100.0, kind="stream", name="a") -> MeasuredStep:  # type: ignore[no-untyped-def]
    return MeasuredStep("op", name, f"{name}2", ("unrolled",), kind, distance, bound_us, gain)


def test_a_gain_is_the_share_of_the_distance_that_the_nearest_steps_closed() -> None:
    half = GainEstimate([measured_step(8**0.5)])
    assert half.expected("unrolled", 8.0, "stream", 1e-4) == pytest.approx((8**0.5,) * 3)
    assert half.expected("unrolled", 64.0, "stream", 1e-4).middle == pytest.approx(8.0)
    # Of a small problem, the step of the small problem counts most, of a large one that of the large one.
    both = GainEstimate([measured_step(2.0, bound_us=5.0), measured_step(7.5, bound_us=500.0, name="b")])
    assert both.expected("unrolled", 8.0, "stream", 6e-6).middle == pytest.approx(2.0)
    assert both.expected("unrolled", 8.0, "stream", 4e-4).middle == pytest.approx(7.5)
    kinds = GainEstimate([measured_step(2.0), measured_step(7.5, kind="tensor", name="b")])
    assert kinds.expected("unrolled", 8.0, "tensor", 1e-4).middle == pytest.approx(7.5)
    assert kinds.expected("unrolled", 8.0, "stream", 1e-4).middle == pytest.approx(2.0)


def test_all_problems_of_a_step_weigh_as_much_as_one_step() -> None:
    often = [measured_step(2.0, bound_us=100.0 + number) for number in range(9)]
    others = [measured_step(4.0, name="b"), measured_step(4.0, name="c")]
    assert GainEstimate(often + others).expected("unrolled", 8.0, "stream", 1e-4).middle == pytest.approx(4.0)


def test_committed_steps_gain_and_have_known_mechanisms() -> None:
    assert len(committed_steps()) > 300
    for step in committed_steps():
        assert step.gain > 1.0 and step.bound_us > 0.0 and step.mechanisms
        assert set(step.mechanisms) <= MECHANISMS.keys()


def test_facts_are_ratios_of_counts() -> None:
    load = LineTraffic("k", "k.cu", 5, "global", "load", 4, requests=10, lanes=320, sectors=320, ideal_sectors=40)
    stage = LineTraffic(
        "k", "k.cu", 6, "shared", "store", 4, requests=20, lanes=640, wavefronts=80, ideal_wavefronts=20
    )
    traffic = Traffic((load, stage), (KernelTraffic("k", 1, 10, 10, 64, barriers=20),))
    compiled = {"k": LaunchResources(32, 0, 0, sass=MachineCode(20, {"FFMA": 3, "IMAD": 4, "IADD": 1, "SHFL": 2}))}
    launched = {
        "k": LaunchResources(32, 0, 0, grid=(10, 2, 1), block=(64, 1, 1), waves=0.5),
        "helper": LaunchResources(32, 0, 0, grid=(1, 1, 1), block=(64, 1, 1), waves=0.1),
    }
    facts = facts_of(traffic, 640, compiled, launched, over_bound=3.0, flops_per_byte=2.0)
    assert (facts.blocks, facts.waves, facts.kernels) == (20, 0.5, 1)
    assert facts.sectors_per_request == 32.0
    assert facts.wasted_sectors == 0.875
    assert facts.reads_per_byte == 2.0
    assert facts.bytes_per_lane == 4.0
    assert facts.shared_per_global == 2.0
    assert facts.conflict_share == 60 / (80 + 80)
    assert (facts.multiply_adds, facts.integer_instructions, facts.shuffles) == (3, 5, 2)
    assert facts.requests_per_barrier == 30 / (2 * 10 * 2)
