"""Strategies that choose the next config: at random, near the best so far, or by a model of the expected time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from opbench.paths import MissingExtra
from opbench.tuning.candidates import Candidates
from opbench.tuning.model import Prediction, coordinates, fitted_weights

if TYPE_CHECKING:
    import optuna

RANDOM_CONFIGS = 10
"""Random configs at the start of a search with a model."""
MIN_MEASURED = 5
"""Fewest measured configs from which a model is fitted."""
MAX_MEASURED = 200
"""Most measured configs of a model: half of them the best, the others random. More would take longer than they help."""
POOL_SIZE = 300
"""Random configs among which the model chooses, in addition to the neighbours of the best."""
NEW_RESULTS = 4
"""Number of new results after which the model is fitted again."""
BEST_CONFIGS = 5
"""Number of best configs whose neighbours the model may choose."""
LEAST_GAIN = 0.02
"""Share by which a config must be faster than the best to count as an improvement; less keeps a search at one place."""


class Strategy(Protocol):
    """The interface of a strategy: it proposes each candidate's number once and receives scores in any order."""

    def ask(self) -> int | None:
        """Return a config that was not proposed before; None when all were."""

    def tell(self, config_number: int, score: float | None) -> None:
        """Report a config's score, where lower is better; None if it does not compile, cannot run or is wrong."""


class Random:
    """Proposes every config once, in random order, the default first."""

    def __init__(self, space: Candidates, seed: int = 0) -> None:
        self._order = list(range(1, len(space)))
        random.Random(seed).shuffle(self._order)
        self._order.append(0)
        self._asked: set[int] = set()

    def ask(self) -> int | None:
        while self._order:
            config_number = self._order.pop()
            if config_number not in self._asked:
                self._asked.add(config_number)
                return config_number
        return None

    def tell(self, config_number: int, score: float | None) -> None:
        self._asked.add(config_number)


class Local:
    """Proposes the config that a model expects to improve most, among neighbours of the best and random configs.

    Configs that are being measured count as known, so that a batch is spread. The chance that a config can run is
    learned from the configs that could not.
    """

    def __init__(self, space: Candidates, seed: int = 0) -> None:
        self._space, self._unknown, self._random = space, Random(space, seed), random.Random(seed)
        self._points = coordinates(space)
        self._weights = np.ones(self._points.shape[1])
        self._fitted = self._proposals = 0
        self._pending: dict[int, None] = {}
        self._scores: dict[int, float] = {}
        self._refused: dict[int, None] = {}
        self._prediction: Prediction | None = None
        self._pool: list[int] = []
        """The configs of the prediction."""
        self._open = np.zeros(0, dtype=np.bool_)
        """Configs of the pool that may be proposed."""
        self._chance = np.zeros(0)
        """For each config of the pool the chance that it can run."""
        self._news = 0
        """Results since the prediction."""

    def ask(self) -> int | None:
        config_number = None
        self._proposals += 1
        if self._proposals > RANDOM_CONFIGS and len(self._scores) >= MIN_MEASURED:
            config_number = self._promising()
        if config_number is None:
            config_number = self._unknown.ask()
        if config_number is not None:
            self._unknown.tell(config_number, None)
            self._pending[config_number] = None
        return config_number

    def tell(self, config_number: int, score: float | None) -> None:
        self._unknown.tell(config_number, score)
        # A config that others proposed may be in the pool.
        self._news += 1 if config_number in self._pending else NEW_RESULTS
        self._pending.pop(config_number, None)
        self._scores.pop(config_number, None)
        if score is None:
            self._refused[config_number] = None
        else:
            self._scores[config_number] = math.log(score)

    def _promising(self) -> int | None:
        if self._news >= NEW_RESULTS or not self._open.any():
            self._predict()
        if self._prediction is None or not self._open.any():
            return None
        gains = self._prediction.improvement(min(self._scores.values()) - LEAST_GAIN) * self._chance
        index = int(np.where(self._open, gains, -1.0).argmax())
        self._open[index] = False
        self._prediction.assume(index)
        return self._pool[index]

    def _predict(self) -> None:
        """Predict the scores of the configs being measured and of a new pool."""
        ranked = sorted(self._scores, key=self._scores.__getitem__)
        modelled = ranked
        if len(ranked) > MAX_MEASURED:
            modelled = ranked[: MAX_MEASURED // 2] + self._random.sample(ranked[MAX_MEASURED // 2 :], MAX_MEASURED // 2)
        neighbours = (config_number for best in ranked[:BEST_CONFIGS] for config_number in self._space.neighbours(best))
        all_numbers = range(len(self._space))
        pool = dict.fromkeys([*neighbours, *self._random.sample(all_numbers, min(POOL_SIZE, len(all_numbers)))])
        untried = [n for n in pool if not (n in self._scores or n in self._refused or n in self._pending)]
        self._news = 0
        self._pool = [*self._pending, *untried]
        points, values = self._points[modelled], np.array([self._scores[config_number] for config_number in modelled])
        if len(ranked) >= 1.25 * self._fitted:
            self._weights = fitted_weights(points, values, self._weights)
            self._fitted = len(ranked)
        targets = self._points[self._pool]
        self._prediction = Prediction(points, values, self._weights, targets, len(self._pending))
        self._open = np.arange(len(self._pool)) >= len(self._pending)
        self._chance = np.ones(len(self._pool))
        if self._refused:
            refused = self._random.sample(list(self._refused), min(MAX_MEASURED, len(self._refused)))
            can_run = np.repeat([1.0, 0.0], [len(modelled), len(refused)])
            mean = Prediction(np.vstack([points, self._points[refused]]), can_run, self._weights, targets).mean
            self._chance = np.clip(mean, 0.0, 1.0)


class Bayesian:
    """Proposes configs that Optuna's tree-structured Parzen estimator expects to be fast.

    A proposal that breaks a rule is reported as failed, and the estimator is asked again.
    """

    TRIES = 32
    """Consecutive invalid or known proposals after which a random config is used."""

    def __init__(self, space: Candidates, seed: int = 0) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingExtra("--strategy bayesian needs Optuna", "tune", ", or choose --strategy local") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._space, self._random = optuna, space, Random(space, seed)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=RANDOM_CONFIGS
        )
        self._study: optuna.Study = optuna.create_study(sampler=sampler)
        self._axes = {
            name: optuna.distributions.IntDistribution(0, len(values) - 1)
            for name, values in zip(space.names, space.values, strict=True)
        }
        self._trials: dict[int, optuna.trial.Trial] = {}
        self._known: set[int] = set()

    def ask(self) -> int | None:
        for _ in range(self.TRIES if self._known else 0):
            trial = self._study.ask(dict(self._axes))
            config_number = self._space.numbers.get(tuple(trial.params[name] for name in self._space.names))
            if config_number is not None and config_number not in self._known:
                self._known.add(config_number)
                self._trials[config_number] = trial
                return config_number
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        config_number = self._random.ask()
        while config_number is not None and config_number in self._known:
            config_number = self._random.ask()
        if config_number is not None:
            self._known.add(config_number)
        return config_number

    def tell(self, config_number: int, score: float | None) -> None:
        self._known.add(config_number)
        states = self._optuna.trial.TrialState
        value = None if score is None else math.log(score)
        if (trial := self._trials.pop(config_number, None)) is not None:
            self._study.tell(trial, value, state=states.FAIL if value is None else states.COMPLETE)
        elif value is not None:
            params = dict(zip(self._space.names, self._space.points[config_number], strict=True))
            self._study.add_trial(
                self._optuna.trial.create_trial(params=params, distributions=dict(self._axes), value=value)
            )


STRATEGIES: Mapping[str, Callable[[Candidates, int], Strategy]] = {
    "local": Local,
    "random": Random,
    "bayesian": Bayesian,
}
"""Strategies by name, the default first."""
