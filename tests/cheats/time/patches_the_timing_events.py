"""The product, with a clock that is told to read a thousandth.

/// opbench
operator = "matmul"
title = "patches the timing events"
modules = ["cupy"]
///

A variant in Python shares the process with the clock. Nothing in the process can rule that out; a time that the
GPU's measured limits do not allow gives it away, one that they allow does not.
"""

# expect: invalid

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind(problem: Any, buffers: dict[str, Any]) -> Callable[[], None]:
    """An honest call, after a dishonest change to the driver's wrapper."""
    import cupy

    from opbench.gpu.driver.driver import Driver

    genuine = Driver.get

    def get(self: Any, name: str, *arguments: Any, **words: Any) -> Any:
        answer = genuine(self, name, *arguments, **words)
        return answer / 1000 if name == "cuEventElapsedTime" else answer

    if genuine.__module__ != __name__:
        Driver.get = get  # type: ignore[method-assign]
    a, b, out = buffers["a"], buffers["b"], buffers["out"]
    b = b.T if problem.b_order == "col" else b

    def run() -> None:
        cupy.matmul(a, b, out=out)

    return run
