"""Find the values of index inputs that a task accepts, by running the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class Task(Protocol):
    """The method of a `opbench.kernels.torch_process.BuiltTask` that runs the task."""

    def run(self, precision: str, values: Mapping[str, np.ndarray] | None = None) -> list[Any]: ...


def limits_of(
    task: Task, values: Mapping[str, np.ndarray], candidates: Mapping[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Return the limit of each index input, and whether -1 is padding, by trying values.

    `values` has all inputs, with 0 as each index; the task must accept them. A limit is right if the task accepts
    limit - 1 and refuses the limit in all elements; None if no candidate is. -1 is padding if it gives other results
    than limit - 1, which it would select as a Python index.
    """
    task.run("f64", values)
    return {name: _limit_of(task, values, name, sorted(int(c) for c in tried)) for name, tried in candidates.items()}


def _limit_of(task: Task, values: Mapping[str, np.ndarray], name: str, candidates: list[int]) -> dict[str, Any]:
    for limit in candidates:
        if _outputs(task, values, name, limit) is None:
            largest, negative = (_outputs(task, values, name, index) for index in (limit - 1, -1))
            if largest is None:
                break
            padded = negative is not None and not all(
                np.array_equal(a, b, equal_nan=True) for a, b in zip(largest, negative, strict=True)
            )
            return {"limit": limit, "padded": padded}
    return {"limit": None, "padded": False}


def _outputs(task: Task, values: Mapping[str, np.ndarray], name: str, index: int) -> list[np.ndarray] | None:
    """Return the outputs if all elements of an input are `index`; None if the task refuses that."""
    try:
        outputs = task.run("f64", {**values, name: np.full_like(values[name], index)})
    except Exception:
        return None
    return [output.double().numpy() for output in outputs]
