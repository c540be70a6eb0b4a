"""A stand-in for `TorchGpu` where there is PyTorch and no GPU."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from opbench.networks.plan.torch_gpu import CapturedGraph


class CpuInPlaceOfGpu:
    """What TorchGpu offers, on the CPU: a captured call is called again by each replay, into the same tensors."""

    device = "cpu"

    def __init__(self, fail_captures_of: int | None = None) -> None:
        self.torch, self.captures, self.fails = importlib.import_module("torch"), 0, fail_captures_of
        self.warmed: list[int] = []

    def place(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(array))

    def on_stream(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def warm_up(self, call: Callable[[], object], calls: int) -> None:
        self.warmed.append(calls)
        for _ in range(calls):
            call()

    def capture(self, call: Callable[[], Any]) -> CapturedGraph[Any]:
        self.captures += 1
        if self.captures == self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        first = call()
        result = (
            self.torch.zeros_like(first) if self.torch.is_tensor(first) else tuple(map(self.torch.zeros_like, first))
        )

        def replay() -> None:
            again = call()
            for kept, out in [(result, again)] if self.torch.is_tensor(first) else zip(result, again, strict=True):
                kept.copy_(out)

        return CapturedGraph(replay, result, call)

    def allocated_bytes(self) -> int:
        return 0

    def peak_bytes(self, call: Callable[[], object], before: int | None = None) -> int:
        call()
        return 1000

    def synchronize(self) -> None: ...

    def release(self) -> None: ...
