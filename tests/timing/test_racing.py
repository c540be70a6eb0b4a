"""Races on numbers: who drops out, when, and that the best does not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from opbench.timing.racing import RaceOptions, race


def sampler(
    times: dict[str, float], noise: float, seed: int = 0, asked: list[str] | None = None
) -> Callable[[str], float]:
    chance = random.Random(seed)

    def sample(name: str) -> float:
        if asked is not None:
            asked.append(name)
        return times[name] * chance.lognormvariate(0, noise)

    return sample


def test_slow_candidates_drop_out_after_one_or_two_launches_and_close_ones_are_sampled_in_every_round() -> None:
    asked: list[str] = []
    times = {"a": 1.0, "b": 1.001, "c": 1.1, "d": 1.3, "e": 4.0}
    raced = race(sampler(times, 0.002, asked=asked), list(times))
    launches, samples = Counter(asked), {name: len(raced[name].samples) for name in times}
    assert launches["e"] == 1 and samples["e"] == 1, "the warm-up sample is the time of a hopeless candidate"
    assert launches["d"] == 2 and samples["d"] == 1, "a warm-up sample does not exclude a candidate that is 30 % slower"
    assert samples["c"] == 3 and samples["a"] == samples["b"] == 6 and launches["a"] == 7
    assert [raced[name].stop for name in "cde"] == ["slower"] * 3
    assert {raced["a"].stop, raced["b"].stop} == {"first", "close"}
    assert Counter(asked[:5]) == Counter("abcde"), "the warm-up round has one launch of each"


def test_a_slow_first_launch_does_not_exclude_the_fastest() -> None:
    launches = Counter[str]()

    def sample(name: str) -> float:
        launches[name] += 1
        return {"fast": 1.0, "slow": 1.05}[name] * (1.4 if name == "fast" and launches[name] == 1 else 1.0)

    raced = race(sample, ["slow", "fast"])
    assert raced["fast"].stop == "first" and raced["fast"].median == 1.0, "its warm-up sample is not counted"


def test_rounds_are_interleaved_in_an_order_of_chance() -> None:
    asked: list[str] = []
    race(sampler(dict.fromkeys("abc", 1.0), 0.0, asked=asked), list("abc"), RaceOptions(max_rounds=6))
    rounds = [asked[i : i + 3] for i in range(0, len(asked), 3)]
    assert all(sorted(one) == list("abc") for one in rounds) and len({tuple(one) for one in rounds}) > 1


def test_the_best_by_a_percent_is_lost_in_few_of_many_noisy_races() -> None:
    lost = 0
    for seed in range(300):
        times = {"best": 1.0, **{f"other{n}": 1.01 + 0.02 * n for n in range(7)}}
        found = race(sampler(times, 0.005, seed), list(times), RaceOptions(seed=seed))
        lost += found["best"].stop == "slower"
    assert lost <= 6, "of 300"


def test_a_drift_hits_all_alike() -> None:
    """A GPU that slows down by a half within the race makes nobody slower than the leader."""
    level = 1.0

    def sample(name: str) -> float:
        nonlocal level
        level *= 1.01
        return level * {"fast": 1.0, "slow": 1.3}[name]

    found = race(sample, ["slow", "fast"], RaceOptions(max_rounds=20))
    assert found["fast"].stop == "first" and found["slow"].stop == "slower"


def test_time_that_is_over_ends_a_race_after_its_first_round() -> None:
    found = race(sampler(dict.fromkeys("ab", 1.0), 0.01), list("ab"), is_over=lambda: True)
    assert [len(one.samples) for one in found.values()] == [1, 1]
