"""Drawing tokens: the reference by whole numbers of Python, shares of the tokens, and limits that nothing reaches."""

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
from support.common import CATALOG

KERNELS = [variant for variant in CATALOG.variants("sampling") if not variant.is_library]


def sampling(**axes: int | str) -> Operator:
    return CATALOG.operator("sampling").from_axes(axes)


def token_of(row: np.ndarray, uniform: float, top_k: int | None, top_p: float | None) -> int:
    """Return the token by whole numbers of Python: sort, cut, draw."""
    masses = [int(float(p) * 2**31) for p in row]
    limit = 0.0
    if top_k is not None:
        limit = sorted(row, reverse=True)[top_k - 1]
    if top_p is not None:
        total = sum(mass for p, mass in zip(row, masses, strict=True) if p >= limit)
        kept = 0
        for p in sorted(row, reverse=True):
            limit, kept = p, kept + int(float(p) * 2**31)
            if kept * 2**24 >= int(top_p * 2**24) * total and kept > 0:
                break
    total = sum(mass for p, mass in zip(row, masses, strict=True) if p >= limit)
    running = 0
    for index, (p, mass) in enumerate(zip(row, masses, strict=True)):
        running += mass if p >= limit else 0
        if running > int(uniform * 2**24) * total // 2**24:
            return index
    return -1


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("kind", ["top_k", "top_p", "top_k_top_p"])
def test_the_reference_draws_what_whole_numbers_give(kind: str, dtype: str) -> None:
    problem = sampling(rows=60, cols=157, filter=kind, dtype=dtype)
    inputs = problem.make_inputs(5)
    rows = from_storage(inputs["probabilities"], dtype)
    want = [
        token_of(row, float(u), None if k is None else int(k), None if p is None else float(p))
        for row, u, k, p in zip(
            rows, inputs["uniform"], inputs.get("top_k", [None] * 60), inputs.get("top_p", [None] * 60), strict=True
        )
    ]
    np.testing.assert_array_equal(problem.reference_outputs(inputs)["token"], want)


def test_equal_random_numbers_apart_draw_each_kept_token_by_its_share() -> None:
    row = np.array([0.05, 0.4, 0.1, 0.25, 0.05, 0.15], np.float32)
    problem = sampling(rows=1000, cols=6)
    outputs = problem.reference_outputs(
        {
            "probabilities": np.tile(row, (1000, 1)),
            "top_k": np.full(1000, 4, np.int32),
            "top_p": np.full(1000, 0.75, np.float32),
            "uniform": ((np.arange(1000) + 0.5) / 1000).astype(np.float32),
        }
    )
    # The four largest have 0.9 together; 0.4 + 0.25 is less than 0.75 of it, so 0.15 is kept as well.
    counts = np.bincount(outputs["token"].astype(int), minlength=6)
    np.testing.assert_allclose(counts, 1000 * np.array([0, 0.5, 0, 0.3125, 0, 0.1875]), atol=1)
    assert outputs["probability"][0] == pytest.approx(0.5)


@pytest.mark.parametrize("variant", KERNELS, ids=lambda v: v.id)
def test_limits_and_rows_at_their_ends(variant: Variant) -> None:
    """Ties at the limit stay, zeros give -1, the largest random number draws the last kept token."""
    rows = np.zeros((6, 1000), np.float32)
    rows[0, [3, 500, 999]] = 0.25  # three equal ones, of which top_k asks for two
    rows[1, 7] = 1.0
    rows[3, [1, 998]] = 0.5, 0.25
    rows[4] = 2.0**-40  # no mass: below half of a unit
    rows[5, [4, 5]] = np.nan, 0.125
    uniform = np.array([np.nextafter(np.float32(1), np.float32(0)), 0, 0.5, 1, 0.5, 0.9], np.float32)
    inputs: Arrays = {
        "probabilities": to_storage(rows, "f32"),
        "top_k": np.array([2, 0, 5, 5000, 3, 1], np.int32),
        "top_p": np.array([1, 0, 1, 1, 0.5, 1], np.float32),
        "uniform": uniform,
    }
    problem = sampling(rows=6, cols=1000)
    backend = open_backend("cpu")
    assert isinstance(backend, CpuBackend)
    cases = (Case(variant, config, problem) for config in variant.configs)
    outputs = traced_outputs(backend, next(case for case in cases if case.unmet_requirement() is None), inputs)
    assert outputs["token"].tolist() == [999, 7, -1, 998, -1, 5]
    np.testing.assert_allclose(outputs["probability"], [1 / 3, 1, 0, 1 / 3, 0, 1], rtol=1e-6)
    for name, array in problem.reference_outputs(inputs).items():
        np.testing.assert_array_equal(outputs[name], array.astype(outputs[name].dtype))
