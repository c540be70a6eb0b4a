"""Generate problems that a variant accepts, from the rules `requires` and `supports` of its header."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from opbench.errors import UsageError
from opbench.kernels import expression
from opbench.kernels.operator import MAX_I32, Operator
from opbench.kernels.variant import Config, Variant

Axes = dict[str, int | str]
Fits = Callable[[Operator], bool]
"""Returns whether a problem is within a limit."""

MAX_STARTS = 24
"""Most problems from which the search starts."""
OVERSAMPLING = 10
"""Factor by which more problems are generated than requested; the most different ones are chosen."""
MAX_CHANGES = 16
"""Most changes of axes that the search makes from one start."""
MAX_EVALUATIONS = 60_000
"""Most expressions that one search evaluates: about one or two seconds."""
MAX_JOINT_RULES = 48
"""Rules times configs up to which the search looks for problems that all configs accept."""
MAX_CONFIGS = 24
"""Most configs of a variant for which shapes are made."""
SIZES_TRIED = 16
"""Number of sizes tried for one axis at a time."""
VARIATIONS = 3
"""Problems with other sizes made from each accepted problem."""
SIZE_FACTORS = (1, 2, 3, 5, 8)
"""Multiples of a rule's numbers to try as sizes."""
GROWTH_FACTORS = (2, 3, 8, 32)
"""Factors by which an axis should exceed its smallest size in some problem, so that loops have several passes."""
MAX_SMALL_SIZE = 4
"""An axis with sizes up to this, such as a stride, gets only sizes that a start or a rule has."""
DEFAULT_SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100)
"""Other sizes to try."""


@dataclass(frozen=True)
class NearestProblem:
    """The problem that violates the fewest of a variant's rules, and one rule that it violates."""

    problem: Operator
    reason: str
    """Empty if the problem satisfies every rule but is too large for the CPU emulator."""


@dataclass(frozen=True)
class GeneratedShapes:
    """The problems that were generated for a variant, or the nearest problem if there are none."""

    problems: tuple[Operator, ...] = ()
    nearest: NearestProblem | None = None


def emulated_work(problem: Operator) -> float:
    """Return operations plus elements moved: an estimate of the time on the CPU emulator."""
    return problem.flops() + problem.comparisons() + problem.bytes() / 4


def make_shapes(
    variant: Variant,
    starts: Sequence[Operator],
    count: int,
    seed: int,
    is_small: Fits,
    is_affordable: Fits,
    operators: Sequence[Operator] = (),
) -> GeneratedShapes:
    """Return up to `count` problems that at least one config of the variant accepts, and that are not in `operators`.

    `starts` are problems of the operator to start from. Axes that no rule restricts have the starts' sizes. If
    rules allow, sizes are at least twice the smallest one, so that a loop over tiles has two passes. Problems
    that are not small are generated only if the rules allow no small one.
    """
    search = _Search(variant, starts, random.Random(seed))
    problems_made: dict[Operator, None] = {}
    for start_number, start in enumerate(itertools.islice(itertools.cycle(starts), max(MAX_STARTS, len(starts)))):
        solved = search.solve({**start.axes, **search.modes()}, start_number)
        if solved is not None:
            fits = is_small if is_small(solved) else is_affordable
            problems_made |= dict.fromkeys(search.variations_of(solved, fits, is_small))
        if sum(map(is_small, problems_made.keys() - set(operators))) >= OVERSAMPLING * count:
            break
    new_problems = [problem for problem in problems_made if problem not in operators]
    candidates = [p for p in new_problems if is_small(p)] or sorted(
        filter(is_affordable, new_problems), key=emulated_work
    )
    if candidates:
        return GeneratedShapes(
            tuple(
                _choose_diverse(
                    candidates, count, {p: search.accepted_configs(p) for p in {*candidates, *operators}}, operators
                )
            )
        )
    return GeneratedShapes(
        nearest=NearestProblem(min(problems_made, key=emulated_work), "") if problems_made else search.nearest
    )


@dataclass
class _Search:
    """A search that changes the axes of a problem until a variant's rules hold."""

    variant: Variant
    starts: Sequence[Operator]
    rng: random.Random
    nearest: NearestProblem | None = None
    _fewest: float = float("inf")
    _evaluations: int = 0
    _cache: dict[tuple[tuple[str, int | str], ...], tuple[Operator | None, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operator = type(self.starts[0])
        self.rules = tuple(conjunct for rule in self.variant.requires for conjunct in _split_conjunction(rule))
        self.configs = _distinct_configs(self.variant, self.rules)
        self.wanted: Sequence[Config] = self.configs
        self.allowed = {
            mode: self.variant.supports.get(mode, (default,)) for mode, default in self.operator.modes().items()
        }
        self.sizes = self._sizes()

    def modes(self) -> Axes:
        """Return one supported value, chosen at random, for each mode."""
        return {mode: self.rng.choice(values) for mode, values in self.allowed.items()}

    def _sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the sizes to try for each axis that a rule depends on.

        An axis in a rule gets multiples of the rules' numbers. If a rule names a property, such as the height
        of an output, any axis may change it, and the other axes get sizes near those of the starts.
        """
        names_in_rules = {name for rule in self.rules for name in expression.names(rule)}
        if macros := names_in_rules & self.variant.define.keys():
            names_in_rules |= {
                name for text in self.variant.define.values() for name in expression.names(text)
            } - macros
        rule_numbers = {
            node.value
            for rule in self.rules
            for node in ast.walk(expression.parse(rule))
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1
        }
        rule_numbers |= {config[name] for config in self.configs for name in names_in_rules & self.variant.tune.keys()}
        multiples = {*DEFAULT_SIZES, *(rule_number * factor for rule_number in rule_numbers for factor in SIZE_FACTORS)}
        # Larger numbers limit products of axes; as a size, such as a stride, they would not fit into an int.
        multiples = {size for size in multiples if size <= MAX_I32}
        not_axes = self.allowed.keys() | self.variant.tune.keys() | self.variant.define.keys()
        axes = [f.name for f in fields(self.operator) if f.name not in self.allowed]
        names_property = bool(names_in_rules - set(axes) - not_axes)
        sizes: dict[str, tuple[int, ...]] = {}
        for axis in axes:
            start_sizes = {size for start in self.starts if isinstance(size := start.axes[axis], int)}
            if axis in names_in_rules:
                # Such as a stride, for which large values make no sense.
                is_small_axis = max(start_sizes) <= MAX_SMALL_SIZE
                sizes[axis] = tuple(sorted(start_sizes | rule_numbers if is_small_axis else multiples))
            elif names_property:
                sizes[axis] = tuple(
                    sorted(
                        start_sizes
                        | {size + increment for size in start_sizes if size > MAX_SMALL_SIZE for increment in (1, 2)}
                    )
                )
        return sizes

    def evaluate(self, axes: Axes) -> tuple[Operator | None, float]:
        """Return the problem with these axes and the number of violated rules;

        None for axes that the operator rejects.
        """
        key = tuple(axes.items())
        if key not in self._cache:
            if self._evaluations > MAX_EVALUATIONS:
                return None, float("inf")
            try:
                problem = self.operator.from_axes(axes)
                self._cache[key] = problem, float(sum(self._violated_rules(problem, config) for config in self.wanted))
            except UsageError:
                self._cache[key] = None, float("inf")
        return self._cache[key]

    def _violated_rules(self, problem: Operator, config: Config) -> int:
        self._evaluations += 1 + len(self.rules) + len(self.variant.define)
        scope = self.variant.rule_scope(problem, config)
        modes = sum(problem.scope[mode] not in allowed for mode, allowed in self.allowed.items())
        return modes + sum(not expression.evaluate(rule, scope) for rule in self.rules)

    def accepted_configs(self, problem: Operator) -> frozenset[int]:
        """Return the numbers of the configs that accept a problem."""
        return frozenset(n for n, c in enumerate(self.configs) if self.variant.unmet_requirement(problem, c) is None)

    def solve(self, axes: Axes, config_number: int) -> Operator | None:
        """Search for a problem that satisfies every rule in all configs, or else in one config; None without one.

        `config_number` determines which config is tried alone.
        """
        one_config = [self.configs[config_number % len(self.configs)]]
        try_all_configs = len(self.configs) > 1 and len(self.configs) * len(self.rules) <= MAX_JOINT_RULES
        for configs in (self.configs, one_config) if try_all_configs else (one_config,):
            if configs != self.wanted:
                self.wanted = configs
                self._cache.clear()
            if (solved := self._hill_climb(dict(axes))) is not None:
                return solved
        return None

    def _hill_climb(self, axes: Axes) -> Operator | None:
        """Change one axis at a time, each time with the fewest violated rules; return a solution or None."""
        visited = [axes]
        for _ in range(MAX_CHANGES):
            problem, unmet_requirement = self.evaluate(axes)
            if problem is not None and unmet_requirement == 0:
                return problem
            self._remember_nearest(problem, unmet_requirement)
            options = [changed for changed in self._candidate_changes(axes, problem) if changed not in visited]
            scored = [(self.evaluate(changed)[1], self.rng.random(), changed) for changed in options]
            fewest, _, axes = min(scored, key=lambda entry: entry[:2], default=(float("inf"), 0.0, axes))
            if fewest > unmet_requirement or fewest == float("inf"):
                return None
            visited.append(axes)
        return None

    def _remember_nearest(self, problem: Operator | None, violations: float) -> None:
        """Remember the problem with the fewest violated rules for a message."""
        if problem is not None and violations < self._fewest:
            reason = next(
                (requirement for c in self.wanted if (requirement := self.variant.unmet_requirement(problem, c))), ""
            )
            self.nearest, self._fewest = NearestProblem(problem, str(reason)), violations

    def _candidate_changes(self, axes: Axes, problem: Operator | None) -> Iterator[Axes]:
        """Yield changed axes that may satisfy one of the violated rules."""
        for mode, allowed in self.allowed.items():
            yield from ({**axes, mode: value} for value in allowed if axes.get(mode) not in allowed)
        if problem is None:
            yield from self._any_size(axes)
            return
        for config in self.wanted:
            scope = self.variant.rule_scope(problem, config)
            for rule in self.rules:
                if expression.evaluate(rule, scope):
                    continue
                solutions = list(_solutions(expression.parse(rule), scope))
                for name, value in solutions:
                    if name in axes and isinstance(value, type(axes[name])):
                        yield {**axes, name: value}
                if not any(name in axes for name, _ in solutions):
                    yield from self._any_size(axes)

    def _any_size(self, axes: Axes) -> Iterator[Axes]:
        for name, sizes in self.sizes.items():
            yield from ({**axes, name: size} for size in self.rng.sample(sizes, min(SIZES_TRIED, len(sizes))))

    def variations_of(self, solved: Operator, fits: Fits, is_small: Fits) -> Iterator[Operator]:
        """Yield the problem and variations of its sizes that are accepted and, if possible, small."""
        groups = self._axis_groups()
        for _ in range(VARIATIONS):
            problem = solved
            self.rng.shuffle(groups)
            for group in groups:
                sizes = self.sizes[group[0]]
                sampled_sizes = self.rng.sample(sizes, min(SIZES_TRIED, len(sizes)))
                options = [
                    p
                    for p in (self._with_equal_sizes(dict(problem.axes), group, size) for size in sampled_sizes)
                    if p is not None
                ]
                allowed = [option for option in options if fits(option)]
                if is_small(problem) and allowed:
                    problem = self.rng.choice(allowed)
                else:
                    problem = min((*options, problem), key=emulated_work)
            yield problem
        yield solved

    def _with_equal_sizes(self, axes: Axes, group: Sequence[str], size: int) -> Operator | None:
        """Return the problem with the same size for a group of axes; None if it violates a rule."""
        problem, violations = self.evaluate({**axes, **dict.fromkeys(group, size)})
        return problem if violations == 0 else None

    def _axis_groups(self) -> list[list[str]]:
        """Return the axes that rules depend on in groups: axes that a rule requires to be equal are in one group."""
        groups = {name: [name] for name in self.sizes}
        for rule in self.rules:
            match expression.parse(rule):
                case ast.Compare(left=ast.Name(id=a), ops=[ast.Eq()], comparators=[ast.Name(id=b)]) if (
                    a in groups and b in groups and groups[a] is not groups[b]
                ):
                    groups[a] += groups[b]
                    groups |= dict.fromkeys(groups[b], groups[a])
        return [list(group) for group in {id(group): group for group in groups.values()}.values()]


def _split_conjunction(rule: str) -> list[str]:
    """Return the parts of a rule: split at `and`, and a chain such as `16 <= k <= 64` into its comparisons."""

    def parts(node: ast.expr) -> Iterator[ast.expr]:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    yield from parts(value)
            case ast.Compare(left=left, ops=ops, comparators=rights) if len(ops) > 1:
                for operand, operation, right_operand in zip([left, *rights], ops, rights, strict=False):
                    yield ast.Compare(operand, [operation], [right_operand])
            case _:
                yield node

    return [ast.unparse(conjunct) for conjunct in parts(expression.parse(rule))]


def _distinct_configs(variant: Variant, rules: Sequence[str]) -> list[Config]:
    """Return at most `MAX_CONFIGS` configs, evenly spaced, of those that the rules can distinguish."""
    names_in_rules = {name for rule in rules for name in expression.names(rule)}
    if names_in_rules & variant.define.keys():
        names_in_rules |= variant.tune.keys()
    configs: dict[tuple[int, ...], Config] = {}
    for config in variant.configs:
        configs.setdefault(tuple(config[name] for name in sorted(names_in_rules & config.keys())), config)
    distinct = list(configs.values())
    return distinct[:: -(-len(distinct) // MAX_CONFIGS)] if distinct else [{}]


def _solutions(node: ast.expr, scope: Mapping[str, Any]) -> Iterator[tuple[str, int | str]]:
    """Yield a variable and a value that makes a condition true while the other variables keep their values."""
    match node:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _solutions(value, scope)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left=left, ops=[op], comparators=[right])) if (
            type(op) in _OPPOSITE
        ):
            yield from _solutions(ast.Compare(left, [_OPPOSITE[type(op)]()], [right]), scope)
        case ast.IfExp(test=test, body=body, orelse=other):
            yield from _solutions(body if _value(test, scope) else other, scope)
            yield from _solutions(test, scope)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for unknown_name, other, sign in ((left, right, type(op)), (right, left, _MIRRORED.get(type(op)))):
                limit = _value(other, scope)
                if sign is not None and limit is not None:
                    for target in _satisfying_values(sign, limit):
                        yield from _solve_expression(unknown_name, target, scope)
        case ast.Name() | ast.BinOp():  # a number that must not be 0
            yield from _solve_expression(node, 1, scope)


_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq, ast.NotEq: ast.NotEq, ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip


def _value(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """Return the value of a part of an expression; None if it has none, as for a division by 0."""
    try:
        return expression.evaluate(ast.unparse(node), scope)
    except UsageError:
        return None


def _satisfying_values(sign: type[ast.cmpop], limit: Any) -> Sequence[int | str]:
    """Return values that satisfy a comparison with a limit, the closest first."""
    if sign in (ast.Eq, ast.GtE, ast.LtE):
        return (limit,)
    if sign is ast.In:
        return limit if isinstance(limit, tuple) else (limit,)
    if not isinstance(limit, int):
        return ()
    return {ast.Gt: (limit + 1,), ast.Lt: (limit - 1,), ast.NotEq: (limit + 1, limit - 1)}.get(sign, ())


def _solve_expression(node: ast.expr, wanted: int | str, scope: Mapping[str, Any]) -> Iterator[tuple[str, int | str]]:
    """Yield a variable and a value that gives an expression the value `wanted` while the others keep their values."""
    match node:
        case ast.Name(id=name):
            if isinstance(wanted, str) or wanted >= 0:
                yield name, wanted
        case ast.BinOp(left=left, op=op, right=right) if isinstance(wanted, int):
            a, b = _value(left, scope), _value(right, scope)
            if isinstance(a, int) and isinstance(b, int):
                for side, operand_target in _solve_operand(type(op), a, b, wanted):
                    yield from _solve_expression((left, right)[side], operand_target, scope)
        case ast.Call(func=ast.Name(id=called), args=args) if isinstance(wanted, int):
            divisor = _value(args[-1], scope)
            if called == "cdiv" and isinstance(divisor, int):
                yield from _solve_expression(args[0], wanted * divisor, scope)
            elif called != "cdiv":
                for argument in args:
                    yield from _solve_expression(argument, wanted, scope)
        case ast.IfExp(test=test, body=body, orelse=other):
            yield from _solve_expression(body if _value(test, scope) else other, wanted, scope)


def _solve_operand(op: type[ast.operator], a: int, b: int, target: int) -> Iterator[tuple[int, int]]:
    """Yield an operand of `a op b` and a new value for it with which the result is, or is close to, `target`."""
    if op is ast.Mod and b > 0:
        lower_multiple = a - (a - target) % b
        yield from (
            (0, multiple) for multiple in (lower_multiple, lower_multiple + b, lower_multiple + 2 * b) if multiple > 0
        )
    elif op is ast.Mult:
        yield from ((0, quotient) for quotient in {target // b, -(-target // b)} if b)
        yield from ((1, quotient) for quotient in {target // a, -(-target // a)} if a)
    elif op is ast.Add:
        yield from ((0, target - b), (1, target - a))
    elif op is ast.Sub:
        yield from ((0, target + b), (1, a - target))
    elif op is ast.FloorDiv:
        yield 0, target * b


def _choose_diverse(
    problems: Sequence[Operator],
    count: int,
    accepted_configs: Mapping[Operator, frozenset[int]],
    operators: Sequence[Operator],
) -> list[Operator]:
    """Choose `count` problems, each with as many new properties as possible.

    More than `count` are chosen only while a config accepts none of the chosen and `operators` problems.
    """
    sizes = [{k: v for k, v in p.axes.items() if isinstance(v, int)} for p in problems]
    smallest = {axis: max(1, min(size[axis] for size in sizes)) for axis in sizes[0]}
    properties = {
        problem: _tested_properties(problem, size, smallest) for problem, size in zip(problems, sizes, strict=True)
    }
    remaining, covered, chosen_problems = list(problems), set[object](), list[Operator]()
    unaccepted = (
        frozenset[int]()
        .union(*(accepted_configs[p] for p in problems))
        .difference(*(accepted_configs[p] for p in operators))
    )
    while remaining and (len(chosen_problems) < count or unaccepted):
        best = max(remaining, key=lambda p: (len(accepted_configs[p] & unaccepted), len(properties[p] - covered)))
        chosen_problems.append(best)
        remaining.remove(best)
        covered |= properties[best]
        unaccepted -= accepted_configs[best]
    return chosen_problems


def _tested_properties(problem: Operator, size: Mapping[str, int], smallest: Mapping[str, int]) -> set[object]:
    """Return the properties of a kernel that a problem tests: loops of several passes, unequal sizes, modes."""
    result: set[object] = {
        (axis, factor) for axis in size for factor in GROWTH_FACTORS if size[axis] >= factor * smallest[axis]
    }
    result |= {(a, b, size[a] > size[b]) for a, b in itertools.combinations(size, 2) if size[a] != size[b]}
    return result | {(axis, value) for axis, value in problem.axes.items() if isinstance(value, str)}
