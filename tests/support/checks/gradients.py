"""Checks of one problem's gradient in float64, for all operators in the tree and for errors planted in them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from opbench.errors import UsageError
from opbench.kernels.backward import forward_tensor_of, gradient_entries, problem_of_entry
from opbench.kernels.gradient import GRADIENT_PREFIX
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays
from support.common import CATALOG

STEP = 6e-6
"""Near the cube root of float64's roundoff, where a central difference errs least."""
DIRECTIONS = 3


def wanted_of(problem: Operator) -> list[str]:
    """The float inputs for which its rule gives a gradient."""
    names = [t.name for t in problem.input_tensors() if not t.is_integer]
    result = []
    for name in names:
        try:
            gradient_entries(problem, [name], problem.name)
        except UsageError:
            continue
        result.append(name)
    return result


def drawn(problem: Operator, salt: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{problem.name}{problem}{salt}".encode()))


def forward(problem: Operator, inputs: Arrays) -> Arrays:
    return problem.computed(**inputs)


def differentiable(problem: Operator, outputs: Arrays) -> list[str]:
    """The outputs whose gradients the rule of all its inputs asks for."""
    used = {
        tied for entry in gradient_entries(problem, wanted_of(problem), problem.name) for tied in entry.inputs.values()
    }
    return [name for name in outputs if f"d.{name}" in used]


def compute_gradients(problem: Operator, tensors: Arrays, cotangents: Arrays, input_names: Sequence[str]) -> Arrays:
    """Compute the gradients of inputs in float64, by name, from the forward tensors and the gradients of the outputs.

    Each entry of the problem's gradient rule is computed by the reference of the entry's operator.
    """
    arrays = dict(tensors) | {GRADIENT_PREFIX + name: array for name, array in cotangents.items()}
    for entry in gradient_entries(problem, input_names, problem.name):
        if not entry.operator:
            (source,), (target,) = entry.inputs.values(), entry.outputs.values()
            arrays[target] = arrays[source].reshape(forward_tensor_of(problem, target).shape)
            continue
        entry_problem = problem_of_entry(entry, CATALOG.operator, problem.name)
        shapes = {t.name: t.shape for t in entry_problem.input_tensors()}
        outputs = entry_problem.computed(
            **{name: arrays[mapped_name].reshape(shapes[name]) for name, mapped_name in entry.inputs.items()}
        )
        for name, mapped_name in entry.outputs.items():
            arrays[mapped_name] = np.asarray(outputs[name]).reshape(forward_tensor_of(problem, mapped_name).shape)
    return {name: arrays[GRADIENT_PREFIX + name] for name in input_names}


def check_differences(problem: Operator) -> None:
    """Check a gradient rule against slopes of the forward reference along random directions.

    A direction is drawn again if a decision (the sign at a ReLU, the position of a maximum) changes along it.
    """
    inputs = problem.widened(problem.make_inputs(zlib.crc32(str(problem).encode()) % 1000))
    outputs = forward(problem, inputs)
    rng, wanted = drawn(problem, "differences"), wanted_of(problem)
    cotangents = {name: rng.standard_normal(outputs[name].shape) for name in differentiable(problem, outputs)}
    assert cotangents, "its rule asks for no output's gradient"
    found = compute_gradients(problem, {**inputs, **outputs}, cotangents, wanted)

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


def check_adjoint(problem: Operator) -> None:
    """<A x, y> = <x, A* y> up to float64's rounding, input by input; differences would hide an error of 1e-7."""
    inputs = problem.widened(problem.make_inputs(7))
    rng = drawn(problem, "adjoint")
    outputs = forward(problem, inputs)
    cotangents = {name: rng.standard_normal(array.shape) for name, array in outputs.items()}
    for name in problem.linear_in:
        found = compute_gradients(problem, {**inputs, **outputs}, cotangents, [name])[name]
        nothing = forward(problem, {**inputs, name: np.zeros_like(inputs[name])})  # a bias is affine: its part goes
        left = sum(float(np.vdot(outputs[o] - nothing[o], cotangents[o])) for o in outputs)
        right = float(np.vdot(inputs[name], found))
        size = float(np.linalg.norm(inputs[name]) * np.linalg.norm(found))
        assert abs(left - right) <= 1e-12 * max(size, 1e-12), f"{name}: {left} is not {right}, as of an adjoint"


def check_differences_of_the_loss(problem: Operator) -> None:
    """Each gradient that it writes, along random directions of every element at once, and along one element."""
    gradients = [name for name in problem.outputs if name != "loss"]
    assert gradients
    for gradient in gradients:
        check_differences_along(problem, gradient)


def check_differences_along(problem: Operator, gradient: str) -> None:
    """One gradient of the loss, along directions that are drawn again where a sign changes."""
    name = gradient.removeprefix("d")
    inputs = problem.widened(problem.make_inputs(zlib.crc32(str(problem).encode()) % 1000))
    found = problem.evaluated(inputs)[gradient]
    rng = np.random.default_rng(zlib.crc32(f"{problem.name}{problem}".encode()))

    def slope(direction: np.ndarray, step: float) -> float:
        ahead, behind = (
            float(problem.evaluated({**inputs, name: inputs[name] + sign * step * direction})["loss"][0])
            for sign in (1, -1)
        )
        return (ahead - behind) / (2 * step)

    held = 0
    for number in range(20 * DIRECTIONS):
        direction = rng.standard_normal(found.shape)
        if number % 2:  # one element alone: what is wrong in it is lost in the sum of all
            direction = np.zeros(found.shape)
            direction.reshape(-1)[rng.integers(found.size)] = 1.0
        difference, halved = slope(direction, STEP), slope(direction, STEP / 2)
        size = max(float(np.linalg.norm(found) * np.linalg.norm(direction)), 1e-9)
        if abs(difference - halved) > 1e-6 * size:
            continue  # a kink lies between the two points
        said = float(np.vdot(found, direction))
        assert abs(said - difference) <= 1e-5 * size, f"{said} is not the slope {difference} of the loss"
        held += 1
        if held == 2 * DIRECTIONS:
            return
    pytest.fail("no direction without a kink was found")


def check_adam_moves_by_the_rate() -> None:
    """By one gradient at every step: the corrected moments are that and its square, so that it moves by the rate."""
    tick, adam = CATALOG.operator("tick").from_axes({"steps": 9}), CATALOG.operator("adam").from_axes({"n": 3})
    gradient, hyper = np.array([2.0, -0.5, 1.0]), np.array([0.9, 0.999, 1e-12, 0.0])
    state = {"parameter": np.zeros(3), "moment1": np.zeros(3), "moment2": np.zeros(3)}
    step, table = np.zeros(1), np.linspace(0.1, 0.9, 9)
    for number in range(9):
        ticked = tick.computed(step=step, table=table, hyper=hyper)
        found = adam.computed(**state, gradient=gradient, rates=ticked["rates"], hyper=hyper)
        moved = found["new_parameter"] - state["parameter"]
        right = np.allclose(moved, -table[number] * np.sign(gradient), rtol=1e-9)
        assert right, f"step {number + 1} of Adam moves parameters by {moved}, and its rate is {table[number]}"
        state, step = {name: found[f"new_{name}"] for name in state}, ticked["new_step"]
