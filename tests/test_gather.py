"""gather: the two forms of its indices, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from support.checks.errors import refuses
from support.common import CATALOG

GATHER = CATALOG.operator("gather")


def test_one_batch_takes_all_indices_and_several_take_the_part_of_a_step() -> None:
    data, order = np.arange(12.0).reshape(6, 2), np.array([5, 0, 3, 3])
    axes = {"items": 6, "features": 2, "total": 4}
    (embedded,) = GATHER.from_axes({**axes, "rows": 4, "batches": "one"}).computed(data=data, order=order).values()
    assert embedded[:, 0].tolist() == [10, 0, 6, 6]
    several = GATHER.from_axes({**axes, "rows": 3})
    (batch,) = several.computed(data=data, order=order, step=np.array([2])).values()
    assert batch[:, 0].tolist() == [6, 10, 0]


def test_one_batch_with_other_indices_than_rows_is_refused() -> None:
    with refuses("not-allowed", "total", value=5, allowed=4):
        GATHER.from_axes({"items": 6, "features": 2, "rows": 4, "total": 5, "batches": "one"})


@pytest.mark.parametrize(("batches", "numbers"), [("one", 4), ("several", 5)])
def test_the_bytes_are_those_of_rows_that_are_read_and_of_indices(batches: str, numbers: int) -> None:
    problem = GATHER.from_axes({"items": 600, "features": 8, "rows": 4, "total": 4, "batches": batches})
    assert problem.bytes() == 2 * 4 * 8 * 4 + 4 * numbers
