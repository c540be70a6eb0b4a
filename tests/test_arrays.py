"""Long references on the GPU: the same numbers as on the host, or None where the GPU cannot."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from opbench import arrays, operator
from opbench.catalog import Catalog


def stand_in(free: int, calls: list[str]) -> Any:
    """A CuPy whose arrays are NumPy's."""

    def asarray(array: np.ndarray) -> np.ndarray:
        calls.append("to")
        return array

    def asnumpy(array: np.ndarray) -> np.ndarray:
        calls.append("from")
        return array

    pool = types.SimpleNamespace(free_all_blocks=lambda: calls.append("freed"))
    runtime = types.SimpleNamespace(memGetInfo=lambda: (free, free))
    return types.SimpleNamespace(
        asarray=asarray,
        asnumpy=asnumpy,
        cuda=types.SimpleNamespace(runtime=runtime),
        get_default_memory_pool=lambda: pool,
    )


def test_a_long_reference_goes_to_the_gpu_and_a_short_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(arrays, "_cupy", lambda: stand_in(1 << 40, calls))
    problem = Catalog().operator("conv2d").examples()[0]
    inputs = problem.make_inputs(1)
    host = problem.reference_outputs(inputs)["out"]
    assert calls == []
    monkeypatch.setattr(operator, "LONG_FLOPS", 0)
    np.testing.assert_array_equal(problem.reference_outputs(inputs)["out"], host)
    assert calls == ["to", "to", "from", "freed"]


def test_what_the_gpu_has_no_room_for_or_cannot_do_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    given = {"x": np.ones(100)}
    monkeypatch.setattr(arrays, "_cupy", lambda: stand_in(800 * arrays.ROOM - 1, calls))
    assert arrays.on_the_gpu(lambda x: x, given) is None and calls == ["freed"]
    monkeypatch.setattr(arrays, "_cupy", lambda: stand_in(1 << 40, calls))
    assert arrays.on_the_gpu(lambda x: x.no_such_method(), given) is None
    assert arrays.on_the_gpu(lambda x: {"a": x, "b": -x}, given)["b"][0] == -1
    monkeypatch.setattr(arrays, "_cupy", lambda: None)
    assert arrays.on_the_gpu(lambda x: x, given) is None
