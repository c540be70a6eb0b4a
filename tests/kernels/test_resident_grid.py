"""Variants whose blocks all run at once: images that exceed shared memory, and the counter of their barrier."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.checking.binding import allocate, bind
from opbench.checking.checking import Session
from opbench.checking.module_state import module_variables
from support.common import CATALOG

MULTIPROCESSORS = 2
PIXELS = 63 * 61
LARGE = "n=1,c=64,h=63,w=61,layout=nhwc"


@pytest.mark.parametrize(
    "name",
    [
        f"batchnorm2d_train/nhwc_grid[UNROLL=8]({LARGE},dtype=bf16,epilogue=add_relu)",
        f"batchnorm2d_train/nhwc_grid[UNROLL=4]({LARGE},epilogue=relu)",
        f"batchnorm2d_backward/nhwc_grid[UNROLL=4]({LARGE},epilogue=relu)",
        f"batchnorm2d_backward/nhwc_grid[UNROLL=2]({LARGE},dtype=bf16)",
    ],
)
def test_an_image_that_exceeds_shared_memory(name: str) -> None:
    case, session = CATALOG.case(name), Session(open_backend("cpu"))
    macros = {key: int(value) for key, value in case.request().macros}
    assert session.sm_count == MULTIPROCESSORS
    assert macros["KEPT"] * macros["DOWN"] * MULTIPROCESSORS // macros["GROUPS"] < PIXELS
    assert session.check(case).verdict.right


@pytest.mark.parametrize("operator", ["batchnorm2d_train", "batchnorm2d_backward"])
def test_the_counter_of_the_barrier_is_zero_after_a_launch(operator: str) -> None:
    backend = open_backend("cpu")
    case = CATALOG.case(f"{operator}/nhwc_grid(n=2,c=128,h=12,w=12,layout=nhwc,dtype=bf16)")
    problem, sm_count = case.problem, 8
    tensors = [*problem.input_tensors(), *problem.output_tensors(), *case.workspace(sm_count)]
    bound = bind(backend, case, allocate(backend, tensors), sm_count)
    assert bound.launches[0].grid == (4, 2, 1)
    for _ in range(2):
        bound.launch()
        backend.synchronize()
        (arrived,) = module_variables(bound).values()
        assert not np.any(arrived.read())
