"""Reductions along an axis: what NaN, ties and infinities give, which a comparison with the reference cannot show."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.tensors import from_storage, to_storage
from opbench.kernels.variant import Variant
from support.checks.outputs import traced_outputs
from support.common import CATALOG

SHAPES = ({"outer": 3, "axis": 5001}, {"outer": 3, "axis": 8200}, {"outer": 3, "axis": 517, "inner": 6})
VARIANTS = [v for v in CATALOG.variants("reduce") if not v.is_library]


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_nan_is_selected_and_its_first_index(variant: Variant, op: str) -> None:
    """A comparison takes any result for right where NaN is expected, so NaN itself is asserted here."""
    backend = open_backend("cpu")
    assert isinstance(backend, CpuBackend)
    for shape, dtype in zip(SHAPES, ("f32", "bf16", "f32"), strict=True):
        problem = CATALOG.operator("reduce").from_axes({**shape, "op": op, "dtype": dtype})
        cases = [
            case for config in variant.configs if (case := Case(variant, config, problem)).unmet_requirement() is None
        ]
        if not cases:
            continue
        x = from_storage(problem.make_inputs(1)["x"], dtype)
        x[0, 300:, 0] = np.nan
        x[1, :, 0] = np.inf if op.endswith("min") else -np.inf
        x[2, [7, 400], 0] = np.inf if op.endswith("max") else -np.inf
        out = traced_outputs(backend, cases[0], {"x": to_storage(x, dtype)})["out"][:, 0].astype(float)
        expected = [300.0, 0.0, 7.0] if op.startswith("arg") else [np.nan, x[1, 0, 0], x[2, 7, 0]]
        np.testing.assert_array_equal(out, expected)
