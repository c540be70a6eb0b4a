"""Strategies that choose the next config: at random, near the best so far, or by a model of the expected time."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from opbench.paths import MissingExtra
from opbench.tuning.candidates import Candidates

if TYPE_CHECKING:
    import optuna

SCOUTS = 24
"""Random configs at the start of a local search."""
SCOUT_EVERY = 6
"""One of this many proposals of a local search is random, so that the search can leave a local minimum."""


class Strategy(Protocol):
    """The interface of a strategy: it proposes each candidate's number once and receives scores in any order."""

    def ask(self) -> int | None:
        """Return a config that was not proposed before; None when all were."""

    def tell(self, number: int, score: float | None) -> None:
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
            number = self._order.pop()
            if number not in self._asked:
                self._asked.add(number)
                return number
        return None

    def tell(self, number: int, score: float | None) -> None:
        self._asked.add(number)


class Local:
    """Proposes neighbours of the best configs, the nearest of the best one first; sometimes a random config.

    This is a best-first search: when all neighbours of a config are known, the next best config follows, so the search
    does not get stuck.
    """

    def __init__(self, space: Candidates, seed: int = 0) -> None:
        self._space, self._random = space, Random(space, seed)
        self._asked: set[int] = set()
        self._best: list[tuple[float, int]] = []
        self._near: dict[int, Iterator[int]] = {}
        self._proposals = 0

    def ask(self) -> int | None:
        self._proposals += 1
        number = None
        if self._proposals > SCOUTS and self._proposals % SCOUT_EVERY:
            number = self._neighbour()
        if number is None:
            number = self._unknown()
        if number is not None:
            self._asked.add(number)
        return number

    def tell(self, number: int, score: float | None) -> None:
        self._asked.add(number)
        if score is not None:
            heapq.heappush(self._best, (score, number))

    def _unknown(self) -> int | None:
        number = self._random.ask()
        while number is not None and number in self._asked:
            number = self._random.ask()
        return number

    def _neighbour(self) -> int | None:
        while self._best:
            at = self._best[0][1]
            near = self._near.setdefault(at, self._space.neighbours(at))
            for number in near:
                if number not in self._asked:
                    return number
            heapq.heappop(self._best)
        return None


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
            raise MissingExtra("--strategy bayesian needs Optuna", "tune", ", or take --strategy local") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._space, self._random = optuna, space, Random(space, seed)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=SCOUTS)
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
            number = self._space.numbers.get(tuple(trial.params[name] for name in self._space.names))
            if number is not None and number not in self._known:
                self._known.add(number)
                self._trials[number] = trial
                return number
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        number = self._random.ask()
        while number is not None and number in self._known:
            number = self._random.ask()
        if number is not None:
            self._known.add(number)
        return number

    def tell(self, number: int, score: float | None) -> None:
        self._known.add(number)
        states = self._optuna.trial.TrialState
        value = None if score is None else math.log(score)
        if (asked := self._trials.pop(number, None)) is not None:
            self._study.tell(asked, value, state=states.FAIL if value is None else states.COMPLETE)
        elif value is not None:
            params = dict(zip(self._space.names, self._space.points[number], strict=True))
            self._study.add_trial(
                self._optuna.trial.create_trial(params=params, distributions=dict(self._axes), value=value)
            )


STRATEGIES: Mapping[str, Callable[[Candidates, int], Strategy]] = {
    "local": Local,
    "random": Random,
    "bayesian": Bayesian,
}
"""Strategies by name, the default first."""
