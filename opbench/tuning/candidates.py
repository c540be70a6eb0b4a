"""The configs of one problem as points of a grid, with their neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from opbench.errors import UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Config, Variant

MAX_CONFIGS = 300_000
"""Most configs of one search. All of them are enumerated before the first is tried."""

GridPoint = tuple[int, ...]
"""For each tunable, the index of its value among all values in ascending order."""


class Candidates(Sequence[Config]):
    """Every config that the rules and the problem allow, by number; the default is number 0."""

    def __init__(self, configs: Iterator[Config], tune: dict[str, tuple[int, ...]]) -> None:
        self.names = list(tune)
        self.values = [sorted(set(values)) for values in tune.values()]
        index_by_value = [{value: index for index, value in enumerate(values)} for values in self.values]
        self.points: list[GridPoint] = []
        for config in configs:
            if len(self.points) == MAX_CONFIGS:
                raise UsageError(
                    f"the search space has more than {MAX_CONFIGS} configs; remove values from tune in the header, or "
                    "add rules to where",
                    kind="too-many-configs",
                    subject="tune",
                    allowed=MAX_CONFIGS,
                )
            self.points.append(
                tuple(
                    index_of_value[config[name]]
                    for name, index_of_value in zip(self.names, index_by_value, strict=True)
                )
            )
        self.numbers = {point: config_number for config_number, point in enumerate(self.points)}

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, config_number: int) -> Config:  # type: ignore[override]
        point = self.points[config_number]
        return {n: values[index] for n, values, index in zip(self.names, self.values, point, strict=True)}

    def number_of(self, config: Config) -> int | None:
        """Return a config's number; None if it is not a candidate."""
        if list(config) != self.names:
            return None
        try:
            point = tuple(values.index(config[n]) for n, values in zip(self.names, self.values, strict=True))
        except ValueError:
            return None
        return self.numbers.get(point)

    def neighbours(self, config_number: int) -> Iterator[int]:
        """Yield other configs, the nearest first.

        First one tunable changes by one step, then one tunable takes any value, then two tunables change by one step
        each.
        """
        point = self.points[config_number]
        steps = [(axis, step) for axis in range(len(point)) for step in (1, -1)]
        one_step = (self._moved(point, {axis: point[axis] + step}) for axis, step in steps)
        any_value = (
            self._moved(point, {axis: index})
            for axis, values in enumerate(self.values)
            for index in range(len(values))
            if abs(index - point[axis]) > 1
        )
        two_steps = (
            self._moved(point, {a: point[a] + i, b: point[b] + j})
            for (a, i), (b, j) in itertools.combinations(steps, 2)
            if a != b
        )
        yield from (self.numbers[p] for p in itertools.chain(one_step, any_value, two_steps) if p in self.numbers)

    def _moved(self, point: GridPoint, index_by_axis: dict[int, int]) -> GridPoint:
        return tuple(index_by_axis.get(axis, index) for axis, index in enumerate(point))


def candidates(variant: Variant, problem: Operator) -> Candidates:
    """Return the configs of a variant that fit a problem; raise UsageError if none does."""
    fitting = (config for config in variant.space if variant.unmet_requirement(problem, config) is None)
    result = Candidates(fitting, dict(variant.tune))
    if not result:
        reason = variant.unmet_requirement(problem, variant.configs[0])
        raise UsageError(
            f"{variant.id}: no config of this variant accepts {problem}: the variant {reason}; choose other sizes with "
            "--problem",
            kind="no-config",
            subject=variant.id,
            value=str(problem),
        )
    return result
