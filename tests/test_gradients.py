"""Every gradient rule in the tree, found by looking: against differences of the forward reference, and as an adjoint.

The checks are those of the catalog's operators; a new operator with `gradients` has them with no test written.
"""

from __future__ import annotations

import pytest

from opbench.kernels.backward import gradient_entries, problem_of_entry
from opbench.kernels.operator import Operator
from support.checks.gradients import CATALOG, check_adjoint, check_differences, wanted_of


def in_f32(problem: Operator) -> bool:
    return problem.axes.get("dtype", "f32") == "f32"


WITH_RULE = [
    pytest.param(problem, id=f"{name}{problem}")
    for name in CATALOG.operator_names()
    for problem in CATALOG.operator(name).examples()
    if in_f32(problem) and wanted_of(problem)
]
LINEAR = [param for param in WITH_RULE if param.values[0].linear_in]


@pytest.mark.parametrize("problem", WITH_RULE)
def test_a_gradient_is_what_differences_of_the_forward_reference_say(problem: Operator) -> None:
    check_differences(problem)


@pytest.mark.parametrize("problem", LINEAR)
def test_the_gradient_of_what_is_linear_is_its_adjoint(problem: Operator) -> None:
    check_adjoint(problem)


def test_each_entry_of_a_rule_is_a_problem_whose_tensors_fit() -> None:
    """For every single input alone too: a frozen weight must not take another's gradient with it."""
    for problem in (param.values[0] for param in WITH_RULE):
        for name in wanted_of(problem):
            for entry in gradient_entries(problem, [name], problem.name):
                if entry.operator:
                    problem_of_entry(entry, CATALOG.operator, f"{problem.name}{problem}")
