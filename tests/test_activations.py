"""Activations of numbers that examples have not: close to the largest ones of float32."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.checking.binding import allocate, bind
from opbench.emulator import CpuBackend
from opbench.kernels.tensors import from_storage, to_storage
from support.common import CATALOG


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_softsign_of_large_numbers_is_one(dtype: str) -> None:
    """The reciprocal of 1 + |x| is below the least normal number from 2^126 on, and the instruction rounds it to 0."""
    x = np.array([2.0**126, -(2.0**126), 1.5 * 2.0**127, -1.9921875 * 2.0**127, 3.0, -0.5, 0.0, 2.0**-130], np.float32)
    case = CATALOG.case(
        f"elementwise/activation_vectorised(outer=1,channels=1,inner={x.size},op=softsign,dtype={dtype})"
    )
    backend = CpuBackend()
    buffers = allocate(backend, [*case.problem.input_tensors(), *case.problem.output_tensors()])
    try:
        buffers["a"].write(to_storage(x, dtype).reshape(1, 1, -1))
        bind(backend, case, buffers).launch()
        backend.synchronize()
        out = from_storage(buffers["out"].read(), dtype).reshape(-1)
    finally:
        backend.free(buffers)
    exact = x.astype(np.float64) / (1 + np.abs(x.astype(np.float64)))
    np.testing.assert_allclose(out, exact, rtol=2.0**-8 if dtype == "bf16" else 1e-6, atol=1e-38)
