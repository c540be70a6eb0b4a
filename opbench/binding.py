"""A case tied to a device: the call of a library variant, and what its kernels take there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from opbench.backends.base import Buffer, KernelLaunch, KernelResources
from opbench.case import Case
from opbench.catalog import load_module
from opbench.errors import OpbenchError, UsageError
from opbench.occupancy import DeviceLimits, occupancy
from opbench.operator import to_storage


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


def launch_resources(
    kernels: Mapping[str, KernelResources], launches: Sequence[KernelLaunch], limits: DeviceLimits | None
) -> dict[str, dict[str, Any]]:
    """Registers, shared and local bytes of each kernel, with the occupancy of its launch."""
    resources: dict[str, dict[str, Any]] = {}
    for step in launches:
        if step.zero or step.kernel not in kernels:
            continue
        static = kernels[step.kernel]
        entry = {
            **asdict(static),
            "grid": list(step.grid),
            "block": list(step.block),
            "dynamic_shared_bytes": step.shared_bytes,
        }
        threads = step.block[0] * step.block[1] * step.block[2]
        if limits is not None:
            found = occupancy(
                limits,
                static.registers,
                static.shared_bytes + step.shared_bytes,
                threads,
                step.grid[0] * step.grid[1] * step.grid[2],
            )
            entry |= asdict(found)
        resources[step.kernel] = entry
    return resources


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
