"""Every gradient rule in the tree, found by looking: against differences of the forward reference, and as an adjoint.

The checks are those of the catalog's operators; a new operator with `gradients` has them with no test written.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from opbench.catalog.folders import Catalog
from opbench.catalog.gradient import bound, pulled_back, rule
from opbench.catalog.operator import Arrays, Operator
from opbench.errors import UsageError

CATALOG = Catalog()
STEP = 6e-6
"""Near the cube root of float64's roundoff, where a central difference errs least."""
DIRECTIONS = 3


def wanted_of(problem: Operator) -> list[str]:
    """The float inputs for which its rule gives a gradient."""
    names = [t.name for t in problem.input_tensors() if t.dtype != "i32"]
    found = []
    for name in names:
        try:
            rule(problem, [name], problem.name)
        except UsageError:
            continue
        found.append(name)
    return found


def in_f32(problem: Operator) -> bool:
    return problem.axes.get("dtype", "f32") == "f32"


WITH_RULE = [
    pytest.param(problem, id=f"{name}{problem}")
    for name in CATALOG.operator_names()
    for problem in CATALOG.operator(name).examples()
    if in_f32(problem) and wanted_of(problem)
]
LINEAR = [param for param in WITH_RULE if param.values[0].linear_in]


def drawn(problem: Operator, salt: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{problem.name}{problem}{salt}".encode()))


def forward(problem: Operator, inputs: Arrays) -> Arrays:
    return problem.computed(**inputs)


def differentiable(problem: Operator, outputs: Arrays) -> list[str]:
    """The outputs whose gradients the rule of all its inputs asks for."""
    used = {tied for entry in rule(problem, wanted_of(problem), problem.name) for tied in entry.inputs.values()}
    return [name for name in outputs if f"d.{name}" in used]


@pytest.mark.parametrize("problem", WITH_RULE)
def test_a_gradient_is_what_differences_of_the_forward_reference_say(problem: Operator) -> None:
    """Along random directions; drawn again where a decision (a ReLU, the place of a maximum) falls differently."""
    inputs = problem.widened(problem.make_inputs(zlib.crc32(str(problem).encode()) % 1000))
    outputs = forward(problem, inputs)
    rng, wanted = drawn(problem, "differences"), wanted_of(problem)
    cotangents = {name: rng.standard_normal(outputs[name].shape) for name in differentiable(problem, outputs)}
    assert cotangents, "its rule asks for no output's gradient"
    found = pulled_back(problem, CATALOG.operator, {**inputs, **outputs}, cotangents, wanted)

    def loss(given: Arrays) -> float:
        values = forward(problem, given)
        return sum(float(np.vdot(cotangents[name], values[name])) for name in cotangents)

    def along(direction: Arrays, step: float) -> float:
        ahead, behind = (
            loss({**inputs, **{name: inputs[name] + sign * step * direction[name] for name in wanted}})
            for sign in (1, -1)
        )
        return (ahead - behind) / (2 * step)

    held = 0
    for _ in range(20 * DIRECTIONS):
        direction = {name: rng.standard_normal(inputs[name].shape) for name in wanted}
        difference, halved = along(direction, STEP), along(direction, STEP / 2)
        said = sum(float(np.vdot(found[name], direction[name])) for name in wanted)
        size = sum(float(np.linalg.norm(found[name]) * np.linalg.norm(direction[name])) for name in wanted)
        if abs(difference - halved) > 1e-7 * max(size, 1e-12):
            continue  # a kink lies between the two points
        assert abs(said - difference) <= 1e-6 * max(size, 1e-12), f"{said} is not the slope {difference}"
        held += 1
        if held == DIRECTIONS:
            return
    pytest.fail("no direction without a kink was found")


@pytest.mark.parametrize("problem", LINEAR)
def test_the_gradient_of_what_is_linear_is_its_adjoint(problem: Operator) -> None:
    """<A x, y> = <x, A* y> up to float64's rounding, input by input; differences would hide an error of 1e-7."""
    inputs = problem.widened(problem.make_inputs(7))
    rng = drawn(problem, "adjoint")
    outputs = forward(problem, inputs)
    cotangents = {name: rng.standard_normal(array.shape) for name, array in outputs.items()}
    for name in problem.linear_in:
        found = pulled_back(problem, CATALOG.operator, {**inputs, **outputs}, cotangents, [name])[name]
        nothing = forward(problem, {**inputs, name: np.zeros_like(inputs[name])})  # a bias is affine: its part goes
        left = sum(float(np.vdot(outputs[o] - nothing[o], cotangents[o])) for o in outputs)
        right = float(np.vdot(inputs[name], found))
        size = float(np.linalg.norm(inputs[name]) * np.linalg.norm(found))
        assert abs(left - right) <= 1e-12 * max(size, 1e-12), f"{name}: {left} is not {right}"


@pytest.mark.parametrize("problem", WITH_RULE)
def test_each_entry_of_a_rule_is_a_problem_whose_tensors_fit(problem: Operator) -> None:
    """For every single input alone too: a frozen weight must not take another's gradient with it."""
    for wanted in ([name] for name in wanted_of(problem)):
        for entry in rule(problem, wanted, problem.name):
            if entry.operator:
                bound(entry, CATALOG.operator, problem.name)
