"""A case tied to a device: the call of a library variant, and what its kernels take there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opbench.backends.base import Buffer
from opbench.catalog.case import Case
from opbench.catalog.folders import load_module
from opbench.catalog.operator import to_storage
from opbench.errors import OpbenchError, UsageError


def bind_library(backend: Any, case: Case, buffers: Mapping[str, Buffer]) -> Callable[[], None]:
    """Call a Python variant's `bind` with the buffers as CuPy arrays."""
    digest = hashlib.sha256(str(case.variant.path).encode()).hexdigest()[:8]
    module = load_module(case.variant.path, f"opbench_library_{case.variant.name}_{digest}")
    if not hasattr(module, "bind"):
        raise UsageError(f"{case.variant.path}:1: defines no function bind(problem, buffers, **config)")
    with backend.stream:
        launch: Callable[[], None] = module.bind(case.problem, backend.arrays(buffers), **case.config)

    def enqueue() -> None:
        with backend.stream:
            launch()

    return enqueue


SMALL_BYTES = 64 << 20


def bind_bare(backend: Any, case: Case) -> tuple[Callable[[], None], dict[str, Buffer]]:
    """A case's launch, run once, on buffers of its own, which are to be freed; no reference and no check.

    Inputs are the problem's own where they are small, else a few numbers over and over.
    """
    problem, buffers = case.problem, dict[str, Buffer]()
    inputs = problem.make_inputs(0) if sum(t.nbytes for t in problem.input_tensors()) <= SMALL_BYTES else {}
    values = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    try:
        for tensor in (*problem.input_tensors(), *problem.output_tensors(), *case.workspace(backend.sm_count)):
            buffers[tensor.name] = backend.allocate(tensor.name, tensor.shape, tensor.dtype)
            content = inputs.get(tensor.name)
            if content is None:
                content = np.resize(to_storage(values, tensor.dtype), tensor.shape)
            buffers[tensor.name].write(content)
        launch: Callable[[], None] = backend.load(case.request()).bind(case.launches(backend.sm_count), buffers)
        launch()
        backend.synchronize()
    except OpbenchError:
        backend.free(buffers)
        raise
    return launch, buffers
