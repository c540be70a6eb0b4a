"""PyTorch's own way of each operator, which a book may choose, is what the operator's reference says."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make torch-tests installs it")

from opbench.kernels.tensors import from_storage  # noqa: E402
from opbench.networks.pytorch import torch_operators  # noqa: E402
from support.common import CATALOG  # noqa: E402


@pytest.mark.parametrize("name", sorted(torch_operators.PEERS))
def test_it_is_what_the_reference_says(name: str) -> None:
    tried = 0
    for problem in CATALOG.operator(name).examples():
        if problem.storage != "f32" or not torch_operators.has_peer(problem):
            continue
        arrays = problem.make_inputs(3)
        right = problem.reference_outputs(arrays)
        found = torch_operators.compute(
            problem, [torch.from_numpy(arrays[t.name].copy()) for t in problem.input_tensors()]
        )
        for tensor, mine in zip(problem.output_tensors(), found, strict=True):
            assert mine.is_contiguous() and tuple(mine.shape) == tensor.shape
            wide = from_storage(right[tensor.name], "f64")
            error = np.linalg.norm(mine.double().numpy() - wide)
            allowed = max(problem.tolerance("f32").norm, 1e-6) * np.linalg.norm(wide)
            assert error <= 4 * allowed + 1e-12, f"{problem}: {tensor.name}"
        tried += 1
    assert tried > 2
