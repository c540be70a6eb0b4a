"""Losses whose kernels write their own gradient: proved by differences of the loss, and labels that are none."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant
from support.checks.gradients import CATALOG, check_differences_of_the_loss
from support.checks.outputs import traced_outputs

LOSSES = [name for name in CATALOG.operator_names() if "loss" in CATALOG.operator(name).examples()[0].outputs]
PROBLEMS = [
    pytest.param(problem, id=f"{name}{problem}")
    for name in LOSSES
    for problem in CATALOG.operator(name).examples()
    if problem.storage == "f32" and problem.scope.get("gradient") != "no"
]


def test_the_losses_are_found() -> None:
    assert {"softmax_cross_entropy", "sigmoid_cross_entropy", "mse_loss", "l1_loss"} <= set(LOSSES)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_is_what_differences_of_the_loss_say(problem: Operator) -> None:
    check_differences_of_the_loss(problem)


@pytest.mark.parametrize("name", LOSSES)
def test_several_batches_of_a_step_have_their_mean(name: str) -> None:
    """The sum over `micro` batches of one size is the loss and the gradient of all of them together."""
    for problem in CATALOG.operator(name).examples():
        alone = type(problem).from_axes({**problem.axes, "micro": 1})
        inputs = problem.widened(problem.make_inputs(1))
        shared, whole = problem.evaluated(inputs), alone.evaluated(inputs)
        for key, array in whole.items():
            np.testing.assert_allclose(shared[key] * problem.scope["micro"], array, rtol=1e-14)


@pytest.mark.parametrize("bad", [-1, 8207, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    "variant", [v for v in CATALOG.variants("softmax_cross_entropy") if not v.is_library], ids=lambda v: v.id
)
def test_a_label_that_is_none_makes_its_row_nan_and_reads_nothing_else(variant: Variant, bad: int) -> None:
    """The other rows have the gradients that they have without it."""
    backend = open_backend("cpu")
    assert isinstance(backend, CpuBackend)
    operator, row = CATALOG.operator("softmax_cross_entropy"), {"rows": 5}
    for dtype in ("f32", "bf16"):
        fitting = (
            case
            for cols, gradient in product((7, 8207, 8200), operator.choices["gradient"])
            for config in variant.configs
            if (
                case := Case(
                    variant, config, operator.from_axes({**row, "cols": cols, "gradient": gradient, "dtype": dtype})
                )
            ).unmet_requirement()
            is None
        )
        case = next(fitting)
        problem = case.problem
        inputs = problem.make_inputs(3)
        good = traced_outputs(backend, case, inputs)
        labels = inputs["labels"].copy()
        labels[2] = bad
        found = traced_outputs(backend, case, {**inputs, "labels": labels})
        said = problem.reference_outputs({**inputs, "labels": labels})
        assert np.isfinite(good["loss"]).all()
        assert np.isnan(found["loss"]).all() and np.isnan(said["loss"]).all()
        if "dlogits" not in good:  # a variant for the loss alone
            continue
        assert np.isfinite(good["dlogits"]).all()
        assert np.isnan(found["dlogits"][2]).all() and np.isnan(said["dlogits"][2]).all()
        rest = [0, 1, 3, 4]
        np.testing.assert_array_equal(found["dlogits"][rest], good["dlogits"][rest])
        assert np.isfinite(said["dlogits"][rest]).all()
