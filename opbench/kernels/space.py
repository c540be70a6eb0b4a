"""The configs of a variant: every combination of tunable values that the header's rules allow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opbench.errors import UsageError
from opbench.kernels import expression

Config = dict[str, int]
RANGE_EXAMPLE = "{ from = 16, to = 128, step = 16 } or { from = 1, to = 64, times = 2 }, and first = 32 for its default"
MAX_RANGE_LENGTH = 4096
"""Most values of one range; a longer range is probably a mistake."""


def tunable_values(value: object) -> tuple[int, ...]:
    """Return the values of a tunable in a header, a list or a range, the default first; raise UsageError for others."""
    if isinstance(value, dict):
        return _range(value)
    if not isinstance(value, list) or not value or not all(type(v) is int for v in value):
        raise UsageError(
            f"= {value!r} is not allowed; write a list of whole numbers, or a range such as {RANGE_EXAMPLE}",
            kind="not-allowed",
            value=value,
        )
    return tuple(value)


def _range(table: Mapping[str, object]) -> tuple[int, ...]:
    int_entries = {key: entry for key, entry in table.items() if type(entry) is int}
    unknown_keys = table.keys() - {"from", "to", "step", "times", "first"} or table.keys() - int_entries.keys()
    step_keys = int_entries.keys() & {"step", "times"}
    if unknown_keys or len(step_keys) != 1 or not {"from", "to"} <= int_entries.keys():
        raise UsageError(
            f"= {dict(table)!r} is not a valid range; give whole numbers such as {RANGE_EXAMPLE}",
            kind="not-a-range",
            value=table,
        )
    value, end, step, times = (
        int_entries["from"],
        int_entries["to"],
        int_entries.get("step", 0),
        int_entries.get("times", 1),
    )
    if value > end or (step < 1 and times < 2) or (times > 1 and value < 1):
        raise UsageError(
            f"= {dict(table)!r} is an empty or endless range; write from <= to with step >= 1, or from >= 1 with "
            "times >= 2",
            kind="empty-or-endless",
            value=table,
        )
    values: list[int] = []
    while value <= end:
        values.append(value)
        value = value * times + step
        if len(values) > MAX_RANGE_LENGTH:
            raise UsageError(
                f"= {dict(table)!r} has more than {MAX_RANGE_LENGTH} values; take a larger step",
                kind="range-too-long",
                value=table,
                allowed=MAX_RANGE_LENGTH,
            )
    default = int_entries.get("first", values[0])
    if default not in values:
        raise UsageError(
            f"first = {default} is not in the range; write one of its values: {', '.join(map(str, values))}",
            kind="not-in-range",
            subject="first",
            value=default,
            allowed=tuple(values),
        )
    return (default, *(v for v in values if v != default))


@dataclass(frozen=True)
class Space:
    """Tunables with their values, macros that depend on them, and the rules that configs must satisfy."""

    tune: Mapping[str, tuple[int, ...]]
    where: tuple[str, ...] = ()
    define: Mapping[str, str] | None = None

    def __iter__(self) -> Iterator[Config]:
        """Yield every config, the last tunable changing fastest; combinations that violate a rule are skipped early."""
        yield from self._enumerate_configs(self.tune)

    def __contains__(self, config: Mapping[str, int]) -> bool:
        """Return whether a config gives every tunable one of its values and satisfies every rule."""
        if config.keys() != self.tune.keys() or any(config[key] not in values for key, values in self.tune.items()):
            return False
        return all(self._satisfies(rule, {key: config[key] for key in self.tune}) for rule in self.where)

    def spread(self, count: int) -> list[Config]:
        """Return the default and up to `count` other configs, evenly distributed and always the same ones.

        The space is not enumerated.
        """
        configs = list(itertools.islice(self, 1))
        for seed in range(4 * count if configs else 0):
            rng = random.Random(seed)
            shuffled = {key: tuple(rng.sample(values, len(values))) for key, values in self.tune.items()}
            config = next(self._enumerate_configs(shuffled))
            if config not in configs:
                configs.append(config)
            if len(configs) > count:
                break
        return configs

    def _enumerate_configs(self, tune: Mapping[str, tuple[int, ...]]) -> Iterator[Config]:
        names, rules = list(tune), self._rules()
        config: Config = {}

        def below(depth: int) -> Iterator[Config]:
            if depth == len(names):
                yield dict(config)
                return
            for value in tune[names[depth]]:
                config[names[depth]] = value
                if all(self._satisfies(rule, config) for rule in rules[depth]):
                    yield from below(depth + 1)
            del config[names[depth]]

        if not names:
            if all(self._satisfies(rule, {}) for rule in self.where):
                yield {}
            return
        yield from below(0)

    def _rules(self) -> list[list[str]]:
        """Return, for each tunable, the rules that can be evaluated once the tunable has a value.

        Rules without tunables are first.
        """
        index_of = {name: tunable_index for tunable_index, name in enumerate(self.tune)}
        rules_by_index: list[list[str]] = [[] for _ in index_of]
        for rule in self.where if index_of else ():
            needed_tunables = self._dependencies(rule) & index_of.keys()
            # A rule with an unknown name is evaluated last, and raises UsageError.
            missing = self._dependencies(rule) - index_of.keys()
            rules_by_index[
                len(index_of) - 1 if missing else max((index_of[n] for n in needed_tunables), default=0)
            ].append(rule)
        return rules_by_index

    def _dependencies(self, text: str) -> frozenset[str]:
        """Return the tunables and axes that an expression depends on, directly or through macros."""
        define = self.define or {}
        direct = expression.names(text)
        indirect = (self._dependencies(define[name]) for name in direct & define.keys() if name not in self.tune)
        return frozenset(direct - (define.keys() - self.tune.keys())).union(*indirect)

    def _satisfies(self, rule: str, config: Mapping[str, int]) -> bool:
        macro_names = expression.names(rule) - config.keys()
        macros = self._macros(macro_names, config) if macro_names and self.define else {}
        return bool(expression.evaluate(rule, {**macros, **config}))

    def _macros(self, macro_names: frozenset[str], config: Mapping[str, int]) -> dict[str, expression.ExpressionValue]:
        """Return the values of the macros that a rule uses; omit macros that depend on axes."""
        define, macros = self.define or {}, dict[str, expression.ExpressionValue]()
        for name in macro_names & define.keys():
            inner_macros = self._macros(expression.names(define[name]) - config.keys(), config)
            scope = {**inner_macros, **config}
            if expression.names(define[name]) <= scope.keys():
                macros[name] = expression.evaluate(define[name], scope)
        return macros
