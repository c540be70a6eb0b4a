"""A case tied to a device: the call of a library variant, and what its kernels take there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opbench.backends.base import Buffer, KernelLaunch, KernelResources
from opbench.case import Case
from opbench.catalog import load_module
from opbench.errors import UsageError
from opbench.occupancy import DeviceLimits, occupancy


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
