"""Comparisons of fabricated runs whose differences are known, and of the committed runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbench.results import comparison
from opbench.results.comparison import compare_runs, verdict_on_interval, verdict_on_time
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.timing import stats
from support.builders.runs import elsewhere, measured, noisy, remeasured, run

CODE = {"machine_code_sha256": "a" * 64}


def one(base: Result, new: Result, **options: Any) -> comparison.CaseComparison:
    """The comparison of one case."""
    (found,) = compare_runs(run([base]), run([new]), **options).cases
    return found


# Verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "change"),
    [
        (1.011, 1.02, "SLOWER"),
        (0.97, 0.98, "FASTER"),
        (0.995, 1.005, "SAME"),
        (1.005, 1.02, "UNDECIDED"),
        (0.98, 0.995, "UNDECIDED"),
        (0.9, 1.1, "UNDECIDED"),
        (1.002, 1.004, "SAME"),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, change: str) -> None:
    assert verdict_on_interval(stats.Ratio((low + high) / 2, low, high, 0.96), 0.01) == change
    assert verdict_on_interval(stats.Ratio((low + high) / 2, low, high, 0.9), 0.01) == "UNDECIDED", "too few samples"


RATIOS = {
    "up": stats.Ratio(1.05, 1.04, 1.06, 0.96),
    "down": stats.Ratio(0.95, 0.94, 0.96, 0.96),
    "even": stats.Ratio(1.0, 0.998, 1.002, 0.96),
    "across": stats.Ratio(1.01, 1.0, 1.02, 0.96),
}


@pytest.mark.parametrize(
    ("time", "cycles", "change"),
    [
        ("up", "up", "SLOWER"),
        ("up", "even", "UNDECIDED"),
        ("up", "across", "UNDECIDED"),
        ("down", "up", "UNDECIDED"),
        ("down", "down", "FASTER"),
        ("even", "even", "SAME"),
        ("even", "across", "SAME"),
        ("even", "up", "UNDECIDED"),
        ("across", "up", "UNDECIDED"),
        ("up", None, "SLOWER"),
    ],
)
def test_cycles_may_veto_and_never_decide(time: str, cycles: str | None, change: str) -> None:
    found, why = verdict_on_time(RATIOS[time], RATIOS[cycles] if cycles else None, 0.01, 20)
    assert found == change
    assert ("the GPU's clock differs" in why) == (time != "across" and change == "UNDECIDED")


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.001, 0.003, 0.01]), st.sampled_from([6, 10, 20, 60]))
def test_two_runs_of_one_build_are_never_called_different(seed: int, spread: float, count: int) -> None:
    found = one(measured("v", noisy(seed, 1e-3, spread, count)), measured("v", noisy(seed + 1, 1e-3, spread, count)))
    assert found.change in ("SAME", "UNDECIDED")


def test_of_many_such_pairs_next_to_none_is_called_different_and_most_are_called_the_same() -> None:
    pairs = [(measured(f"v{i}", noisy(2 * i)), measured(f"v{i}", noisy(2 * i + 1))) for i in range(600)]
    found = compare_runs(run([a for a, _ in pairs]), run([b for _, b in pairs]))
    assert found.counts.get("SLOWER", 0) + found.counts.get("FASTER", 0) == 0
    assert found.counts["SAME"] > 590


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.03, 1.05, 1.2, 0.97, 0.9]))
def test_a_known_shift_is_found(seed: int, shift: float) -> None:
    found = one(measured("v", noisy(seed)), measured("v", noisy(seed + 1, shift * 1e-3)))
    assert found.change == ("SLOWER" if shift > 1 else "FASTER")
    assert found.time and found.time.value == pytest.approx(shift, rel=0.01)


def test_too_few_samples_decide_nothing() -> None:
    found = one(measured("v", [1e-3] * 3), measured("v", [2e-3] * 3))
    assert found.change == "UNDECIDED" and "3 samples are too few" in found.reason


def test_a_sample_that_is_no_time_decides_nothing() -> None:
    zero = measured("v", noisy(1))
    zero = remeasured(zero, samples_s=(0.0, *noisy(1)))
    assert one(measured("v", noisy(0)), zero).change == "UNDECIDED"


def test_a_clock_that_fell_is_no_regression() -> None:
    slow = measured("v", noisy(1, 1e-3 * 1.98 / 1.5), (1.5e9, 1.5e9))
    found = one(measured("v", noisy(0)), slow)
    assert found.change == "UNDECIDED" and "lock it" in found.reason
    assert found.cycles and found.cycles.value == pytest.approx(1, abs=0.002)
    unknown = one(measured("v", noisy(0)), measured("v", noisy(1, 1.32e-3), (0, 0)))
    assert unknown.change == "SLOWER" and unknown.cycles is None and "clock is not known" in unknown.reason


def test_cycles_follow_a_clock_that_moves() -> None:
    found = measured("v", [1.0, 1.0, 1.0], (1e9, 2e9)).cycles
    assert found == [1e9, 1.5e9, 2e9]


def test_samples_of_two_timers_are_not_compared() -> None:
    other = measured("v", noisy(1, 2e-3))
    other = remeasured(other, timer="events, stream not held")
    found = one(measured("v", noisy(0)), other)
    assert found.change == "UNDECIDED" and "timed in two ways" in found.reason


# Machine code -----------------------------------------------------------------------------------------------------


def test_identical_machine_code_is_never_a_regression() -> None:
    found = one(measured("v", noisy(0), **CODE), measured("v", noisy(1, 1.2e-3), **CODE))
    assert (found.change, found.machine_code) == ("SAME", "identical") and "is the machine's" in found.reason
    changed = one(measured("v", noisy(0), **CODE), measured("v", noisy(1, 1.2e-3), machine_code_sha256="b" * 64))
    assert (changed.change, changed.machine_code) == ("SLOWER", "changed")
    unknown = one(measured("v", noisy(0), **CODE), measured("v", noisy(1, 1.2e-3)))
    assert (unknown.change, unknown.machine_code) == ("SLOWER", "unknown")


def test_the_same_instructions_launched_otherwise_are_another_program() -> None:
    new = measured("v", noisy(1, 1.2e-3), **CODE)
    assert new.verdict
    launches = tuple(replace(launch, block=(128, 1, 1)) for launch in new.verdict.launches)
    found = one(measured("v", noisy(0), **CODE), replace(new, verdict=replace(new.verdict, launches=launches)))
    assert (found.change, found.machine_code) == ("SLOWER", "changed")


def test_across_unlike_environments_identical_machine_code_proves_nothing() -> None:
    base, new = run([measured("v", noisy(0), **CODE)]), run([measured("v", noisy(1, 1.2e-3), **CODE)])
    elsewhere(new, driver="999")
    assert compare_runs(base, new, force=True).cases[0].change == "SLOWER"


def test_what_identical_code_differs_by_is_the_runs_own_noise() -> None:
    drifted = [measured(f"v{i}", noisy(i, 1e-3 * (1.04 if i % 2 else 1.0)), **CODE) for i in range(12)]
    base = [measured(f"v{i}", noisy(100 + i), **CODE) for i in range(12)]
    changed = measured("mine", noisy(7), **CODE), measured("mine", noisy(8, 1.03e-3), machine_code_sha256="b" * 64)
    found = compare_runs(run([*base, changed[0]]), run([*drifted, changed[1]]))
    assert found.noise == pytest.approx(0.04, abs=0.005)
    assert {c.case: c.change for c in found.cases}["relu/mine(n=1000000000)"] in ("SAME", "UNDECIDED")
    alone = compare_runs(run([changed[0]]), run([changed[1]]))
    assert alone.noise is None and alone.cases[0].change == "SLOWER"


# Thresholds -------------------------------------------------------------------------------------------------------


def threshold(base: Run, new: Run) -> float | None:
    """Of the only case."""
    return compare_runs(base, new).cases[0].threshold


def test_thresholds() -> None:
    a, b = [measured("v", noisy(0))], [measured("v", noisy(1))]
    assert threshold(run(a), run(b)) == 0.01
    finer, coarser = ({"timing": {"mode": "cold", "target": target}} for target in (0.001, 0.01))
    assert threshold(run(a, **finer), run(b, **finer)) == 0.01
    assert threshold(run(a, **coarser), run(b, **coarser)) == pytest.approx(0.03)
    here, there = run(a), run(b)
    elsewhere(here, uuid="GPU-1")
    elsewhere(there, uuid="GPU-2")
    assert threshold(here, there) == 0.03
    assert compare_runs(here, there, threshold=0.002).cases[0].threshold == 0.002
    short = [measured("v", [3.008e-6, 3.04e-6, 3.008e-6, 3.072e-6, 3.04e-6, 3.04e-6, 3.04e-6])]
    assert threshold(run(short), run(short)) == pytest.approx(2 * 32e-9 / 3.04e-6, rel=1e-3)
