"""The configs of a variant: every combination of its tunables that its rules allow, found without trying them all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.kernels import expression

Config = dict[str, int]
RANGE = "{ from = 16, to = 128, step = 16 } or { from = 1, to = 64, times = 2 }, and first = 32 for its default"
LONGEST_RANGE = 4096
"""Values of one range, at most: what is beyond is a slip of the pen."""


def tunable_values(value: object) -> tuple[int, ...]:
    """The values of one tunable from a list or a range, the default first; raises UsageError saying what is allowed."""
    if isinstance(value, dict):
        return _range(value)
    if not isinstance(value, list) or not value or not all(type(v) is int for v in value):
        raise UsageError(f"= {value!r} is not allowed; a list of whole numbers, or a range: {RANGE}")
    return tuple(value)


def _range(table: Mapping[str, object]) -> tuple[int, ...]:
    numbers = {key: number for key, number in table.items() if type(number) is int}
    odd = table.keys() - {"from", "to", "step", "times", "first"} or table.keys() - numbers.keys()
    ways = numbers.keys() & {"step", "times"}
    if odd or len(ways) != 1 or not {"from", "to"} <= numbers.keys():
        raise UsageError(f"= {dict(table)!r} is no range; whole numbers such as {RANGE}")
    at, last, step, times = numbers["from"], numbers["to"], numbers.get("step", 0), numbers.get("times", 1)
    if at > last or (step < 1 and times < 2) or (times > 1 and at < 1):
        raise UsageError(f"= {dict(table)!r} is an empty or endless range; it rises, by step >= 1 or times >= 2")
    values: list[int] = []
    while at <= last:
        values.append(at)
        at = at * times + step
        if len(values) > LONGEST_RANGE:
            raise UsageError(f"= {dict(table)!r} has more than {LONGEST_RANGE} values; take a larger step")
    first = numbers.get("first", values[0])
    if first not in values:
        raise UsageError(f"first = {first} is not in the range; it has {', '.join(map(str, values))}")
    return (first, *(v for v in values if v != first))


@dataclass(frozen=True)
class Space:
    """Tunables, macros that follow from them, and the rules that a config keeps."""

    tune: Mapping[str, tuple[int, ...]]
    where: tuple[str, ...] = ()
    define: Mapping[str, str] | None = None

    def __iter__(self) -> Iterator[Config]:
        """Every config, the last tunable changing fastest; a rule cuts a branch as soon as its tunables are known."""
        yield from self._walk(self.tune)

    def __contains__(self, config: Mapping[str, int]) -> bool:
        """Whether it names each tunable with one of its values, and keeps every rule."""
        if config.keys() != self.tune.keys() or any(config[key] not in values for key, values in self.tune.items()):
            return False
        return all(self._keeps(rule, {key: config[key] for key in self.tune}) for rule in self.where)

    def spread(self, count: int) -> list[Config]:
        """The default and up to so many more from all over, without a look at all of them: the same every time."""
        found = list(itertools.islice(self, 1))
        for seed in range(4 * count if found else 0):
            chance = random.Random(seed)
            shuffled = {key: tuple(chance.sample(values, len(values))) for key, values in self.tune.items()}
            config = next(self._walk(shuffled))
            if config not in found:
                found.append(config)
            if len(found) > count:
                break
        return found

    def _walk(self, tune: Mapping[str, tuple[int, ...]]) -> Iterator[Config]:
        names, rules = list(tune), self._rules()
        config: Config = {}

        def below(depth: int) -> Iterator[Config]:
            if depth == len(names):
                yield dict(config)
                return
            for value in tune[names[depth]]:
                config[names[depth]] = value
                if all(self._keeps(rule, config) for rule in rules[depth]):
                    yield from below(depth + 1)
            del config[names[depth]]

        if not names:
            if all(self._keeps(rule, {}) for rule in self.where):
                yield {}
            return
        yield from below(0)

    def _rules(self) -> list[list[str]]:
        """For each tunable, the rules that can be asked once it has a value; what names none is asked first."""
        place = {name: number for number, name in enumerate(self.tune)}
        found: list[list[str]] = [[] for _ in place]
        for rule in self.where if place else ():
            known = self._needs(rule) & place.keys()
            missing = self._needs(rule) - place.keys()  # a rule that cannot be asked says so of a whole config
            found[len(place) - 1 if missing else max((place[n] for n in known), default=0)].append(rule)
        return found

    def _needs(self, text: str) -> frozenset[str]:
        """The names that an expression rests on, those of the macros that it names in their place."""
        define = self.define or {}
        own = expression.names(text)
        behind = (self._needs(define[name]) for name in own & define.keys() if name not in self.tune)
        return frozenset(own - (define.keys() - self.tune.keys())).union(*behind)

    def _keeps(self, rule: str, config: Mapping[str, int]) -> bool:
        named = expression.names(rule) - config.keys()
        macros = self._macros(named, config) if named and self.define else {}
        return bool(expression.evaluate(rule, {**macros, **config}))

    def _macros(self, wanted: frozenset[str], config: Mapping[str, int]) -> dict[str, expression.ExpressionValue]:
        """The macros that a rule rests on; those that need a name which is no tunable are left out."""
        define, found = self.define or {}, dict[str, expression.ExpressionValue]()
        for name in wanted & define.keys():
            behind = self._macros(expression.names(define[name]) - config.keys(), config)
            scope = {**behind, **config}
            if expression.names(define[name]) <= scope.keys():
                found[name] = expression.evaluate(define[name], scope)
        return found
