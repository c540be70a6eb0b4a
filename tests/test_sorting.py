"""Sorts and the largest elements: where NaN goes, which a comparison with the reference cannot show."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, from_storage, to_storage
from opbench.kernels.variant import Variant
from support.checks.outputs import traced_outputs
from support.common import CATALOG, kernels


def outputs_of(variant: Variant, problem: Operator, inputs: Arrays) -> Arrays:
    """Return the outputs of the variant's first config that fits."""
    backend = open_backend("cpu")
    assert isinstance(backend, CpuBackend)
    cases = (Case(variant, config, problem) for config in variant.configs)
    return traced_outputs(backend, next(case for case in cases if case.unmet_requirement() is None), inputs)


@pytest.mark.parametrize("variant", kernels("sort"), ids=lambda v: v.id)
def test_nan_of_either_sign_comes_after_infinity(variant: Variant) -> None:
    problem = CATALOG.operator("sort").from_axes({"n": 5003})
    x = problem.make_inputs(1)["x"]
    x[[0, 17, 3000]] = np.nan, -np.nan, np.inf
    x[[1, 2, 5002]] = -0.0, -np.inf, 0.0
    out = outputs_of(variant, problem, {"x": x})["out"]
    np.testing.assert_array_equal(out, np.sort(x))
    assert np.isnan(out[-2:]).all() and out[-3] == np.inf


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("variant", kernels("top_k"), ids=lambda v: v.id)
def test_nan_is_among_the_largest_with_its_index(variant: Variant, dtype: str) -> None:
    problem = CATALOG.operator("top_k").from_axes({"rows": 3, "cols": 3001, "k": 5, "dtype": dtype})
    x = from_storage(problem.make_inputs(1)["x"], dtype)
    x[0, [0, 2000]] = -np.nan, np.nan
    x[0, [7, 2500]] = np.inf
    x[1] = -np.inf
    x[2] = -1.0
    x[2, [3, 9, 2999]] = 0.0, -0.0, 0.0
    out = outputs_of(variant, problem, {"x": to_storage(x, dtype)})
    values = out["values"]
    np.testing.assert_array_equal(values[0, :4], [np.nan, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(values[1:], [[-np.inf] * 5, [0.0] * 3 + [-1.0] * 2])
    np.testing.assert_array_equal(out["indices"][:, :4], [[0, 2000, 7, 2500], [0, 1, 2, 3], [3, 9, 2999, 0]])
