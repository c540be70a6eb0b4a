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
"""The number of random configs at the start of a search with a model."""
MIN_MEASURED = 5
"""The smallest number of measured configs for which a model is fitted."""
MAX_MEASURED = 200
"""The greatest number of configs in a model: half are the best ones, half are random. More would take too long."""
POOL_SIZE = 300
"""The number of random configs among which the model chooses, in addition to neighbours of the best configs."""
NEW_RESULTS = 4
"""The number of new results after which the model predicts again."""
BEST_CONFIGS = 5
"""The number of best configs whose neighbours the model may choose."""
MIN_GAIN = 0.02
"""Fraction by which a config must be faster than the best to count; otherwise a search stays near one config."""


class Strategy(Protocol):
    """The interface of a strategy: it proposes each candidate's number once and receives scores in any order."""

    def ask(self) -> int | None:
        """Return the number of a config that was not proposed before; None if all were proposed."""

    def tell(self, config_number: int, score: float | None) -> None:
        """Report a config's score (lower is better); None for a config that does not compile, fails or is wrong."""


class Random:
    """Propose every config once: the default first, then the others in random order."""

    def __init__(self, space: Candidates, seed: int = 0) -> None:
        self._order = list(range(1, len(space)))
        random.Random(seed).shuffle(self._order)
        self._order.append(0)
        self._used_configs: set[int] = set()

    def ask(self) -> int | None:
        while self._order:
            config_number = self._order.pop()
            if config_number not in self._used_configs:
                self._used_configs.add(config_number)
                return config_number
        return None

    def tell(self, config_number: int, score: float | None) -> None:
        self._used_configs.add(config_number)


class Local:
    """Propose the config with the largest expected gain among neighbours of the best configs and random configs.

    The model counts configs that are being measured as known, so that the configs of one race differ. It learns the
    probability that a config can run from the configs that could not run.
    """

    def __init__(self, space: Candidates, seed: int = 0) -> None:
        self._space, self._random_order, self._random = space, Random(space, seed), random.Random(seed)
        self._points = coordinates(space)
        self._weights = np.ones(self._points.shape[1])
        self._fitted_config_count = self._proposals = 0
        self._pending: dict[int, None] = {}
        self._scores: dict[int, float] = {}
        self._unusable_configs: dict[int, None] = {}
        self._prediction: Prediction | None = None
        self._pool: list[int] = []
        """The configs for which the model predicts scores."""
        self._is_proposable = np.zeros(0, dtype=np.bool_)
        """Whether each config of the pool may be proposed."""
        self._run_probability = np.zeros(0)
        """The probability that each config of the pool can run."""
        self._new_results = 0
        """The number of results since the last prediction."""

    def ask(self) -> int | None:
        config_number = None
        self._proposals += 1
        if self._proposals > RANDOM_CONFIGS and len(self._scores) >= MIN_MEASURED:
            config_number = self._most_promising_config()
        if config_number is None:
            config_number = self._random_order.ask()
        if config_number is not None:
            self._random_order.tell(config_number, None)
            self._pending[config_number] = None
        return config_number

    def tell(self, config_number: int, score: float | None) -> None:
        self._random_order.tell(config_number, score)
        # A config that others proposed may be in the pool.
        self._new_results += 1 if config_number in self._pending else NEW_RESULTS
        self._pending.pop(config_number, None)
        self._scores.pop(config_number, None)
        if score is None:
            self._unusable_configs[config_number] = None
        else:
            self._scores[config_number] = math.log(score)

    def _most_promising_config(self) -> int | None:
        """Return the config of the pool with the largest expected gain; None if the pool has none."""
        if self._new_results >= NEW_RESULTS or not self._is_proposable.any():
            self._predict()
        if self._prediction is None or not self._is_proposable.any():
            return None
        gains = self._prediction.improvement(min(self._scores.values()) - MIN_GAIN) * self._run_probability
        index = int(np.where(self._is_proposable, gains, -1.0).argmax())
        self._is_proposable[index] = False
        self._prediction.assume(index)
        return self._pool[index]

    def _predict(self) -> None:
        """Predict the scores of the configs being measured and of a new pool."""
        ranked = sorted(self._scores, key=self._scores.__getitem__)
        modelled_configs = ranked
        if len(ranked) > MAX_MEASURED:
            modelled_configs = ranked[: MAX_MEASURED // 2] + self._random.sample(
                ranked[MAX_MEASURED // 2 :], MAX_MEASURED // 2
            )
        neighbours = (config_number for best in ranked[:BEST_CONFIGS] for config_number in self._space.neighbours(best))
        all_numbers = range(len(self._space))
        pool = dict.fromkeys([*neighbours, *self._random.sample(all_numbers, min(POOL_SIZE, len(all_numbers)))])
        untried = [n for n in pool if not (n in self._scores or n in self._unusable_configs or n in self._pending)]
        self._new_results = 0
        self._pool = [*self._pending, *untried]
        points, values = (
            self._points[modelled_configs],
            np.array([self._scores[config_number] for config_number in modelled_configs]),
        )
        if len(ranked) >= 1.25 * self._fitted_config_count:
            self._weights = fitted_weights(points, values, self._weights)
            self._fitted_config_count = len(ranked)
        targets = self._points[self._pool]
        self._prediction = Prediction(points, values, self._weights, targets, len(self._pending))
        self._is_proposable = np.arange(len(self._pool)) >= len(self._pending)
        self._run_probability = np.ones(len(self._pool))
        if self._unusable_configs:
            unusable = self._random.sample(list(self._unusable_configs), min(MAX_MEASURED, len(self._unusable_configs)))
            can_run = np.repeat([1.0, 0.0], [len(modelled_configs), len(unusable)])
            mean = Prediction(np.vstack([points, self._points[unusable]]), can_run, self._weights, targets).mean
            self._run_probability = np.clip(mean, 0.0, 1.0)


class Bayesian:
    """Propose configs that Optuna's tree-structured Parzen estimator expects to be fast.

    An invalid proposal is reported to Optuna as failed, and Optuna proposes another config.
    """

    MAX_TRIES = 32
    """The number of invalid or repeated proposals in a row after which a random config is used."""

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
        self._distributions = {
            name: optuna.distributions.IntDistribution(0, len(values) - 1)
            for name, values in zip(space.names, space.values, strict=True)
        }
        self._trials: dict[int, optuna.trial.Trial] = {}
        self._used_configs: set[int] = set()

    def ask(self) -> int | None:
        for _ in range(self.MAX_TRIES if self._used_configs else 0):
            trial = self._study.ask(dict(self._distributions))
            config_number = self._space.numbers.get(tuple(trial.params[name] for name in self._space.names))
            if config_number is not None and config_number not in self._used_configs:
                self._used_configs.add(config_number)
                self._trials[config_number] = trial
                return config_number
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        config_number = self._random.ask()
        while config_number is not None and config_number in self._used_configs:
            config_number = self._random.ask()
        if config_number is not None:
            self._used_configs.add(config_number)
        return config_number

    def tell(self, config_number: int, score: float | None) -> None:
        self._used_configs.add(config_number)
        states = self._optuna.trial.TrialState
        value = None if score is None else math.log(score)
        if (trial := self._trials.pop(config_number, None)) is not None:
            self._study.tell(trial, value, state=states.FAIL if value is None else states.COMPLETE)
        elif value is not None:
            params = dict(zip(self._space.names, self._space.points[config_number], strict=True))
            self._study.add_trial(
                self._optuna.trial.create_trial(params=params, distributions=dict(self._distributions), value=value)
            )


STRATEGIES: Mapping[str, Callable[[Candidates, int], Strategy]] = {
    "local": Local,
    "random": Random,
    "bayesian": Bayesian,
}
"""Strategies by name, the default first."""
