"""The default strategy and its model: what they propose, learn from refusals, and expect between measured configs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from opbench.kernels.space import Space
from opbench.kernels.variant import Config
from opbench.tuning.candidates import Candidates
from opbench.tuning.model import Prediction, coordinates, fitted_weights
from opbench.tuning.strategies import STRATEGIES, Strategy

SPACE = Space(
    tune={"BLOCK": (32, 64, 96, 128, 192, 256), "ITEMS": (1, 2, 3, 4, 5, 6, 7, 8), "STAGE": (0, 1), "UNROLL": (1, 2, 4)}
)


def space() -> Candidates:
    return Candidates(iter(SPACE), dict(SPACE.tune))


def time_of(config: Config) -> float:
    """Return a time whose tunables interact; the best is BLOCK=128 ITEMS=5 STAGE=1 UNROLL=4."""
    block, items = abs(math.log2(config["BLOCK"] / 128)), abs(config["ITEMS"] - 5)
    staged = 0.3 if config["STAGE"] == 0 else 0.02 * items
    return 1e-4 * math.exp(0.2 * block + 0.1 * items + staged + 0.1 * (4 - config["UNROLL"]) / 4)


def proposals(strategy: Strategy, known: Candidates, refused: int, pending: int, seed: int) -> list[int]:
    """Return all proposals of a strategy; results come back in random order, up to `pending` proposals late.

    Configs with ITEMS above `refused` cannot run.
    """
    chance, waiting, proposed = random.Random(seed), list[int](), list[int]()
    while (number := strategy.ask()) is not None or waiting:
        if number is not None:
            proposed.append(number)
            waiting.append(number)
        while len(waiting) > (pending if number is not None else 0):
            done = waiting.pop(chance.randrange(len(waiting)))
            config = known[done]
            strategy.tell(done, time_of(config) if config["ITEMS"] <= refused else None)
    return proposed


@pytest.mark.parametrize("name", ["local", "random"])
@pytest.mark.parametrize(("refused", "pending", "seed"), [(8, 0, 0), (6, 7, 1), (1, 16, 2), (0, 3, 3)])
def test_every_config_is_proposed_once_in_whatever_order_results_return(
    name: str, refused: int, pending: int, seed: int
) -> None:
    known = space()
    proposed = proposals(STRATEGIES[name](known, seed), known, refused, pending, seed)
    assert sorted(proposed) == list(range(len(known))) and proposed[0] == 0


def test_configs_that_earlier_processes_tried_are_not_proposed() -> None:
    known = space()
    strategy = STRATEGIES["local"](known, 0)
    first = [number for number in (strategy.ask() for _ in range(30)) if number is not None]
    for number in first:
        strategy.tell(number, time_of(known[number]))
    others = list(range(0, len(known), 3))
    assert strategy.ask() not in first
    for number in others:
        strategy.tell(number, time_of(known[number]))
    later = [strategy.ask() for _ in range(40)]
    assert not set(later) & (set(others) | set(first)) and len(set(later)) == 40


def test_the_model_comes_to_the_best_in_fewer_trials_than_chance() -> None:
    known = space()
    best = min(range(len(known)), key=lambda number: time_of(known[number]))
    at = {
        name: sorted(proposals(STRATEGIES[name](known, seed), known, 8, 4, seed).index(best) for seed in range(9))
        for name in ("local", "random")
    }
    assert at["local"][4] < 40 < at["random"][4] and at["local"][-1] < 0.4 * len(known)


def test_the_best_config_at_the_edge_of_what_can_run_is_reached_although_refused_ones_seem_faster() -> None:
    known = space()
    best = min((n for n in range(len(known)) if known[n]["ITEMS"] <= 4), key=lambda number: time_of(known[number]))
    for seed in range(9):
        before = proposals(STRATEGIES["local"](known, seed), known, 4, 4, seed)
        before = before[: before.index(best)]
        assert len(before) < 50, "144 by chance"
        assert sum(known[number]["ITEMS"] > 4 for number in before) < 20


def test_a_coordinate_for_each_tunable_that_varies_and_one_for_powers_of_two() -> None:
    tune = {"BLOCK": (32, 48, 64, 96), "ONE": (3,), "POWER": (1, 2, 4)}
    points = coordinates(Candidates(iter(Space(tune=tune)), tune))
    assert points.shape == (12, 3) and points.min() >= 0 and points.max() == 1
    by_block = {tuple(row) for row in points[:, :2]}
    assert {round(power, 2) for _, power in by_block} == {round(5 / 7, 2), round(6 / 7, 2), 1.0}
    assert coordinates(Candidates(iter([{"ONE": 3}]), {"ONE": (3,)})).shape == (1, 0)


def test_a_prediction_keeps_to_measured_configs_and_is_uncertain_far_from_them() -> None:
    points = np.array([[0.0, 0.0], [0.5, 0.5], [1.0, 0.0]])
    values = np.array([1.0, 2.0, 4.0])
    pool = np.vstack([points, [[0.0, 1.0]]])
    prediction = Prediction(points, values, np.ones(2), pool)
    assert prediction.mean[:3] == pytest.approx(values, abs=0.02)
    assert values.min() < prediction.mean[3] < values.max()
    gains = prediction.improvement(1.0)
    assert (gains >= 0).all() and gains.argmax() == 3 and gains[2] < 1e-6
    prediction.assume(3)
    assert prediction.improvement(1.0)[3] < 0.1 * gains[3], "a config being measured is not proposed again"


def test_the_fit_finds_the_tunable_that_matters() -> None:
    chance = np.random.default_rng(0)
    points = chance.uniform(size=(60, 2))
    weights = fitted_weights(points, np.sin(6 * points[:, 1]), np.ones(2))
    assert weights[1] > 3 * weights[0]
