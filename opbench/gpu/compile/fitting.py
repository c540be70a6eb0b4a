"""Compile a case for a GPU that need not be present, and check from the cubin whether its blocks fit."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opbench.errors import CompileError, EnvironmentFault, OpbenchError
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.cubin import BadCubin, read_cubin
from opbench.gpu.compile.resources import kernel_resources, launch_resources
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.gpu.limits.products import MULTIPROCESSORS
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch


@dataclass(frozen=True)
class GpuTarget:
    """The compute capability and the number of multiprocessors of the GPU to compile for."""

    capability: tuple[int, int]
    sm_count: int

    @property
    def limits(self) -> DeviceLimits | None:
        """Return the limits of a multiprocessor; None for a GPU that is newer than the table of models."""
        model_limits = MULTIPROCESSORS.get(self.capability)
        return replace(model_limits, sm_count=self.sm_count) if model_limits else None


@dataclass(frozen=True)
class CompiledCase:
    """The result of compiling one case for a GPU: its resources, or the reason why it cannot run."""

    compile_error: str = ""
    """The compiler's error; empty if the source compiles."""
    launch_obstacle: str = ""
    """The reason why no block of the kernel can be launched; empty if a block can."""
    identity: str = ""
    """Hash of the machine code, with the launches: equal for cases that take equally long; empty if unknown."""
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float = 0.0
    """Time to compile; close to zero on a cache hit."""
    timeout_message: str = ""
    """A message if compiling was stopped at its time limit; else empty."""


def compile_case(case: Case, target: GpuTarget) -> CompiledCase:
    """Compile one case into the cache and check whether its blocks fit; errors become fields of the result."""
    start_s = time.perf_counter()
    compiled = _compile_for_target(case, target)
    return replace(compiled, compile_s=round(time.perf_counter() - start_s, 4))


def _compile_for_target(case: Case, target: GpuTarget) -> CompiledCase:
    """Compile one case and return whether its blocks fit; raise EnvironmentFault without a compiler."""
    try:
        launches = case.launches(target.sm_count)
        if reason := why_block_is_too_large(launches, target.limits):
            return CompiledCase(launch_obstacle=reason)
        request = case.request()
        compiled = nvrtc.compile_cubin(request, nvrtc.architecture(target.capability, request))
        cubin = read_cubin(compiled.cubin.read_bytes())
        resources = launch_resources(kernel_resources(compiled, cubin), launches, target.limits)
    except BadCubin:
        return CompiledCase()  # The compiler is newer than the cubin reader; the driver reports blocks that do not fit.
    except CompileError as error:
        return CompiledCase(compile_error=str(error).splitlines()[0])
    except EnvironmentFault:
        raise
    except OpbenchError as error:
        return CompiledCase(launch_obstacle=str(error))
    limiting_resources = min(resources.values(), key=lambda resource: resource.occupancy or 0.0, default=None)
    return CompiledCase(
        launch_obstacle=next(
            filter(
                None,
                (why_block_does_not_fit(kernel, resource, target.limits) for kernel, resource in resources.items()),
            ),
            "",
        ),
        identity=f"{cubin.machine_code_sha256} {launches}",
        registers=limiting_resources.registers if limiting_resources else None,
        shared_bytes=limiting_resources.shared_bytes + (limiting_resources.dynamic_shared_bytes or 0)
        if limiting_resources
        else None,
        occupancy=limiting_resources.occupancy if limiting_resources else None,
    )


def why_block_is_too_large(launches: Sequence[KernelLaunch], limits: DeviceLimits | None) -> str:
    """Return why a block exceeds the GPU's limits of threads or shared memory, before compiling; empty if it fits."""
    for launch in launches:
        if not limits or not launch.kernel:
            continue
        threads = math.prod(launch.block)
        if not 1 <= threads <= limits.threads_per_block:
            return f"{launch.kernel}: a block of {threads} threads is not allowed; use 1 to {limits.threads_per_block}"
        if launch.shared_bytes > limits.shared_per_block:
            return (
                f"{launch.kernel}: {launch.shared_bytes} bytes of shared memory; a block can use "
                f"{limits.shared_per_block}"
            )
    return ""


def why_block_does_not_fit(kernel: str, resources: LaunchResources, limits: DeviceLimits | None) -> str:
    """Return why a compiled kernel cannot run with this block, such as too many registers; empty if it can."""
    threads = math.prod(resources.block or (1,))
    if resources.max_threads and threads > resources.max_threads:
        return (
            f"{kernel}: a block of {threads} threads at {resources.registers} registers is too large; use at most "
            f"{resources.max_threads} threads"
        )
    shared_bytes = resources.shared_bytes + (resources.dynamic_shared_bytes or 0)
    if limits and shared_bytes > limits.shared_per_block:
        return f"{kernel}: {shared_bytes} bytes of shared memory; a block can use {limits.shared_per_block}"
    if resources.blocks_per_sm == 0:
        return f"{kernel}: no block fits on a multiprocessor, because of its {resources.limiter}; use a smaller block"
    return ""
