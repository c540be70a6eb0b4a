"""Problems made from what a header requires: each meets every rule, and several shapes are made where rules allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opbench.kernels import expression
from opbench.kernels.header import read_variants
from opbench.kernels.operator import Operator
from opbench.kernels.shapes import GeneratedShapes, emulated_work, make_shapes
from opbench.kernels.variant import Variant
from support.common import CATALOG

SMALL = 1e7
AFFORDABLE = 2e9


def variant_of(folder: Path, operator: str, rules: list[str], more: str = "") -> Variant:
    path = folder / "own.cu"
    listed = ", ".join(f'"{rule}"' for rule in rules)
    path.write_text(
        f'// /// opbench\n// operator = "{operator}"\n// requires = [{listed}]\n{more}'
        '// launch = [{ kernel = "own", grid = ["1"], block = ["1"] }]\n// ///\n__global__ void own() {}\n'
    )
    return read_variants(path)[0]


def shapes_of(variant: Variant, count: int = 3, seed: int = 1) -> GeneratedShapes:
    operator = CATALOG.operator(variant.operator)
    starts = [*operator.random_problems(seed, 12), *operator.examples()]
    return make_shapes(
        variant,
        starts,
        count,
        seed,
        lambda p: emulated_work(p) <= SMALL,
        lambda p: emulated_work(p) <= AFFORDABLE,
        operator.examples(),
    )


def accepts(variant: Variant, problem: Operator) -> bool:
    return any(variant.unmet_requirement(problem, config) is None for config in variant.configs)


AXES = st.sampled_from(["m", "n", "k"])
DIVISORS = st.sampled_from([2, 3, 4, 7, 8, 16, 32, 48, 64])
RULES = st.one_of(
    st.builds(lambda a, d: f"{a} % {d} == 0", AXES, DIVISORS),
    st.builds(lambda a, n: f"{a} >= {n}", AXES, st.integers(1, 96)),
    st.builds(lambda a, n: f"{n} < {a}", AXES, st.integers(1, 96)),
    st.builds(lambda a, n: f"{a} <= {n}", AXES, st.integers(128, 400)),
    st.builds(lambda a, b: f"{a} == {b}", AXES, AXES),
    st.builds(lambda a, d, n: f"{a} % {d} == 0 and {a} >= {n}", AXES, DIVISORS, st.integers(1, 96)),
    st.just("dtype == 'bf16'"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=st.lists(RULES, min_size=1, max_size=5), seed=st.integers(0, 99))
def test_every_problem_made_meets_every_rule(tmp_path: Path, rules: list[str], seed: int) -> None:
    """No rule here contradicts another while the least common multiple of its divisors stays below the limits."""
    variant = variant_of(tmp_path, "matmul", rules, '// supports = { dtype = ["f32", "bf16"] }\n')
    shapes = shapes_of(variant, seed=seed)
    assert all(variant.unmet_requirement(problem, {}) is None for problem in shapes.problems)
    assert all(emulated_work(problem) <= AFFORDABLE for problem in shapes.problems)
    if not any("<=" in rule for rule in rules) and not [r for r in rules if "48" in r or "7" in r]:
        assert shapes.problems, rules


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(axis=AXES, size=st.integers(1, 5000))
def test_an_equation_is_solved(tmp_path: Path, axis: str, size: int) -> None:
    variant = variant_of(tmp_path, "matmul", [f"{axis} == {size}"])
    problems = shapes_of(variant).problems
    assert problems and all(problem.axes[axis] == size for problem in problems)


@pytest.mark.parametrize("tile", [8, 16, 32, 64, 128])
def test_multiples_give_loops_of_two_passes_and_sides_that_differ(tmp_path: Path, tile: int) -> None:
    variant = variant_of(tmp_path, "matmul", [f"{axis} % {tile} == 0" for axis in "mnk"])
    problems = shapes_of(variant).problems
    assert len(problems) == 3
    for axis in "mnk":
        assert any(int(problem.axes[axis]) >= 2 * tile for problem in problems)
    assert any(problem.axes["m"] != problem.axes["n"] for problem in problems)
    assert all(emulated_work(problem) <= SMALL for problem in problems)


SOLVED = {
    "a product of two axes": ("transpose", ["rows * cols == 4096"]),
    "a sum of two axes": ("transpose", ["rows + cols == 300"]),
    "a quotient": ("sum", ["n // 256 == 9"]),
    "a rounded quotient": ("sum", ["cdiv(n, 256) >= 9"]),
    "a remainder that is not 0": ("sum", ["n % 256 == 17"]),
    "a list of sizes": ("softmax", ["cols in (128, 256)"]),
    "one of two rules": ("softmax", ["cols % 128 == 0 or rows == 7"]),
    "a rule that is denied": ("add", ["not n < 1000"]),
    "a chain of comparisons": ("softmax", ["33 <= cols <= 40"]),
    "a rule of two cases": ("softmax", ["cols % 4 == 0 if rows > 2 else cols == 5"]),
    "a shift": ("sum", ["n == 1 << 20"]),
    "sizes of an output": ("conv2d", ["p % 2 == 0", "q % 2 == 0"]),
    "an output and the axes": ("conv2d", ["p == q", "c % 16 == 0"]),
    "an upper limit": ("matmul", ["m < 4", "n < 4"]),
    "not one size": ("sum", ["n != 1", "n % 2 == 1"]),
}


@pytest.mark.parametrize("name", SOLVED)
def test_other_forms_are_met(tmp_path: Path, name: str) -> None:
    operator, rules = SOLVED[name]
    variant = variant_of(tmp_path, operator, rules)
    problems = shapes_of(variant).problems
    assert problems and all(accepts(variant, problem) for problem in problems)


@pytest.mark.parametrize("rule", ["n % TILE == 0", "n == 4 * TILE", "n == WIDTH", "n > WIDTH"])
def test_every_config_gets_a_problem(tmp_path: Path, rule: str) -> None:
    more = '// tune = { TILE = [16, 32, 8, 4, 64, 24] }\n// define = { WIDTH = "TILE * 3" }\n'
    variant = variant_of(tmp_path, "matmul", [rule], more)
    operator = CATALOG.operator("matmul")
    problems = [*shapes_of(variant).problems, *operator.examples()]
    for config in variant.configs:
        assert any(variant.unmet_requirement(problem, config) is None for problem in problems), config


@pytest.mark.parametrize(
    ("rules", "reason"),
    [(["n % 7 == 3", "n % 7 == 4"], "needs n % 7"), (["n > 100", "n < 50"], "needs n "), (["n == 3.5"], "")],
)
def test_rules_that_nothing_meets_give_the_nearest_problem(tmp_path: Path, rules: list[str], reason: str) -> None:
    if not reason:
        rules, reason = ["dtype == 'bf16'"], "needs dtype == 'bf16'"  # which the header does not support
    shapes = shapes_of(variant_of(tmp_path, "sum", rules))
    assert not shapes.problems and shapes.nearest is not None
    assert reason in shapes.nearest.reason


def test_a_problem_that_is_too_large_is_named_and_not_made(tmp_path: Path) -> None:
    shapes = shapes_of(variant_of(tmp_path, "sum", ["n == 1 << 40"]))
    assert not shapes.problems and shapes.nearest is not None
    assert (str(shapes.nearest.problem), shapes.nearest.reason) == (f"(n={1 << 40})", "")


def restrictions(variant: Variant) -> str:
    """Return all that decides which problems a variant accepts; parameters and macros only if a rule names one."""
    named = {name for rule in variant.requires for name in expression.names(rule)}
    configurable = named & (variant.tune.keys() | variant.define.keys())
    parameters = (variant.tune, variant.where, variant.define) if configurable else ()
    return repr((variant.operator, variant.requires, sorted(variant.supports.items()), parameters))


SHIPPED = {
    restrictions(variant): variant
    for name in CATALOG.operator_names()
    for variant in CATALOG.variants(name)
    if variant.requires or variant.supports
}
"""A variant for each set of restrictions: problems are made from these alone."""


@pytest.mark.parametrize("variant", SHIPPED.values(), ids=lambda variant: variant.id)
def test_shipped_variants_are_served(variant: Variant) -> None:
    shapes = shapes_of(variant, count=2)
    assert shapes.problems, shapes.nearest
    assert all(accepts(variant, problem) for problem in shapes.problems)
