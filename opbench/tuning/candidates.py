"""The configs of one problem as points of a grid, with their neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Config, Variant

MOST = 300_000
"""Most configs of one search. All are listed before the first is tried, so that none is missed or tried twice."""

GridPoint = tuple[int, ...]
"""For each tunable, the index of its value among all values in ascending order."""


class Candidates(Sequence[Config]):
    """Every config that the rules and the problem allow, by number; the default is number 0."""

    def __init__(self, configs: Iterator[Config], tune: dict[str, tuple[int, ...]]) -> None:
        self.names = list(tune)
        self.values = [sorted(set(values)) for values in tune.values()]
        places = [{value: index for index, value in enumerate(values)} for values in self.values]
        self.points: list[GridPoint] = []
        for config in configs:
            if len(self.points) == MOST:
                raise UsageError(
                    f"the space has more than {MOST} configs; narrow it: fewer values, or more rules in where"
                )
            self.points.append(tuple(known[config[name]] for name, known in zip(self.names, places, strict=True)))
        self.numbers = {point: number for number, point in enumerate(self.points)}

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, number: int) -> Config:  # type: ignore[override]
        point = self.points[number]
        return {n: values[place] for n, values, place in zip(self.names, self.values, point, strict=True)}

    def number_of(self, config: Config) -> int | None:
        """Return a config's number; None if it is not a candidate."""
        if list(config) != self.names:
            return None
        try:
            point = tuple(values.index(config[n]) for n, values in zip(self.names, self.values, strict=True))
        except ValueError:
            return None
        return self.numbers.get(point)

    def neighbours(self, number: int) -> Iterator[int]:
        """Yield other configs, the nearest first.

        First one tunable changes by one step, then one tunable takes any value, then two tunables change by one step
        each.
        """
        own = self.points[number]
        steps = [(axis, step) for axis in range(len(own)) for step in (1, -1)]
        near = (self._moved(own, {axis: own[axis] + step}) for axis, step in steps)
        far = (
            self._moved(own, {axis: place})
            for axis, values in enumerate(self.values)
            for place in range(len(values))
            if abs(place - own[axis]) > 1
        )
        pairs = (
            self._moved(own, {a: own[a] + i, b: own[b] + j})
            for (a, i), (b, j) in itertools.combinations(steps, 2)
            if a != b
        )
        yield from (self.numbers[p] for p in itertools.chain(near, far, pairs) if p in self.numbers)

    def _moved(self, point: GridPoint, places: dict[int, int]) -> GridPoint:
        return tuple(places.get(axis, place) for axis, place in enumerate(point))


def candidates(variant: Variant, problem: Operator) -> Candidates:
    """Return the configs of a variant that fit a problem; raise UsageError if none does."""
    fitting = (config for config in variant.space if variant.unmet_requirement(problem, config) is None)
    chosen = Candidates(fitting, dict(variant.tune))
    if not chosen:
        why = variant.unmet_requirement(problem, variant.configs[0])
        raise UsageError(f"{variant.id}: no config fits {problem}: it {why}")
    return chosen
