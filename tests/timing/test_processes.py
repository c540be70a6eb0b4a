"""Samples of several processes: merged, and with an interval that covers what differs between them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from opbench.records import from_json, to_json
from opbench.timing import stats
from opbench.timing.measurement import Measurement, TimingWarning
from opbench.timing.processes import STUDENT_T, merge_processes, process_interval
from support.builders.runs import measurement
from support.checks.errors import refuses


def part(median_s: float, seed: int = 0, **changes: object) -> Measurement:
    """One process's measurement."""
    made = measurement(median_s, 0.001, count=20, seed=seed)
    return replace(made, **{"settled": True, "offset_s": 1e-6, **changes})  # type: ignore[arg-type]


def test_one_process_stays_as_it_is() -> None:
    one = part(1e-3)
    assert merge_processes([one]) is one


def test_all_samples_are_kept_with_their_process() -> None:
    parts = [part(1e-3, 1, throttled=((2, 1.0, 1e9),)), part(1e-3, 2, throttled=((5, 2.0, 1e9),)), part(1e-3, 3)]
    found = merge_processes(parts)
    assert found.samples_s == parts[0].samples_s + parts[1].samples_s + parts[2].samples_s
    assert found.processes == (0,) * 20 + (1,) * 20 + (2,) * 20
    assert found.throttled == ((2, 1.0, 1e9), (25, 2.0, 1e9)) and found.clocks_hz == ()
    assert found.kernel_s == pytest.approx(found.median_s - 1e-6) and found.settled
    assert from_json(Measurement, to_json(found)) == found
    clocks = [replace(p, clocks_hz=(2e9,) * 20) for p in parts]
    assert merge_processes(clocks).clocks_hz == (2e9,) * 60
    assert merge_processes([*clocks[:2], parts[2]]).clocks_hz == (), "one that knows none leaves gaps"


def test_what_differs_between_processes_is_in_the_interval() -> None:
    alike = merge_processes([part(1e-3, seed) for seed in range(3)])
    apart = merge_processes([part(1e-3 * (1 + 0.02 * seed), seed) for seed in range(3)])
    assert apart.low_s < 1e-3 and apart.high_s > 1.04e-3, "each process's median is inside"
    assert alike.high_s - alike.low_s < 0.01 * alike.median_s and alike.warnings == ()
    assert TimingWarning.NOISY in apart.warnings


def test_equal_medians_do_not_deny_the_noise_within() -> None:
    samples = [0.9, 0.9, 1.0, 1.0, 1.0, 1.1, 1.1] * 2
    centre, interval = process_interval([samples] * 3)
    pooled = stats.median_interval(samples * 3)
    assert centre == 1.0 and (interval.low, interval.high) == (pooled.low, pooled.high)


def test_processes_are_two_to_ten() -> None:
    for count in (1, 11):
        with refuses("not-allowed", "processes", error=ValueError):
            process_interval([[1.0, 1.1]] * count)


def test_quantiles_of_students_t() -> None:
    draw = np.random.default_rng(1)
    for degrees, quantile in enumerate(STUDENT_T, 1):
        assert np.mean(draw.standard_t(degrees, 200_000) < quantile) == pytest.approx(0.975, abs=0.0015)


@pytest.mark.parametrize("between", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("count", [3, 5])
def test_the_interval_covers_whatever_processes_differ_by(between: float, count: int) -> None:
    draw, covered = random.Random(7), 0
    for _ in range(800):
        levels = [1 + draw.gauss(0, between) for _ in range(count)]
        _, interval = process_interval([[level + draw.gauss(0, 0.01) for _ in range(20)] for level in levels])
        covered += interval.low <= 1 <= interval.high
    assert covered / 800 > 0.93
    pooled = 0
    for _ in range(200):
        levels = [1 + draw.gauss(0, 0.05) for _ in range(count)]
        one = stats.median_interval([level + draw.gauss(0, 0.01) for level in levels for _ in range(20)])
        pooled += one.low <= 1 <= one.high
    assert pooled / 200 < 0.9, "samples taken as one would promise too much"
