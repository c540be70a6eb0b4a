"""A case compiled for a GPU that need not be here; whether its blocks fit there is known from the cubin."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opbench.backend.base import KernelResources
from opbench.errors import CompileError, EnvironmentFault, OpbenchError
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.cubin import BadCubin, machine_code_sha256, read_cubin
from opbench.gpu.compile.resources import launch_resources
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.gpu.limits.products import MULTIPROCESSORS
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.case import Case
from opbench.kernels.launch import KernelLaunch


@dataclass(frozen=True)
class GpuTarget:
    """The GPU that is compiled for, as far as fitting is concerned."""

    capability: tuple[int, int]
    sm_count: int

    @property
    def limits(self) -> DeviceLimits | None:
        """What a multiprocessor holds; None of a GPU that is newer than the table, whose driver will say it."""
        found = MULTIPROCESSORS.get(self.capability)
        return replace(found, sm_count=self.sm_count) if found else None


@dataclass(frozen=True)
class CompiledCase:
    """What compiling one case came to."""

    refused: str = ""
    """What the compiler said against it."""
    unfit: str = ""
    """Why no block of it can be launched."""
    identity: str = ""
    """Of its machine code with its launches: alike for what must take equally long; empty where not known."""
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    compile_s: float = 0.0
    """What it took; next to nothing where the cache had it."""
    overtime: str = ""
    """That compiling was given up, and when."""


def compile_case(case: Case, target: GpuTarget) -> CompiledCase:
    """Compile one case into the cache and see whether it fits; raises nothing that a config alone can cause."""
    began = time.perf_counter()
    found = _compiled(case, target)
    return replace(found, compile_s=round(time.perf_counter() - began, 4))


def _compiled(case: Case, target: GpuTarget) -> CompiledCase:
    try:
        launches = case.launches(target.sm_count)
        if reason := too_large(launches, target.limits):
            return CompiledCase(unfit=reason)
        request = case.request()
        compiled = nvrtc.compile_cubin(request, nvrtc.architecture(target.capability, request))
        cubin = compiled.cubin.read_bytes()
        asked = {lowered: name for name, lowered in compiled.names.items()}
        kernels = {
            asked.get(name, name): KernelResources(
                found.registers,
                found.shared_bytes,
                found.local_bytes,
                min(found.bound_threads or 1024, nvrtc.max_threads(found.registers)),
            )
            for name, found in read_cubin(cubin).items()
        }
        taken = launch_resources(kernels, launches, target.limits)
        code = machine_code_sha256(cubin)
    except BadCubin:
        return CompiledCase()  # a compiler newer than our reader: the driver will say what does not fit
    except CompileError as error:
        return CompiledCase(refused=str(error).splitlines()[0])
    except EnvironmentFault:
        raise
    except OpbenchError as error:
        return CompiledCase(unfit=str(error))
    worst = min(taken.values(), key=lambda r: r.occupancy or 0.0, default=None)
    return CompiledCase(
        unfit=next(filter(None, (does_not_fit(n, r, target.limits) for n, r in taken.items())), ""),
        identity=f"{code} {launches}",
        registers=worst.registers if worst else None,
        shared_bytes=worst.shared_bytes + (worst.dynamic_shared_bytes or 0) if worst else None,
        occupancy=worst.occupancy if worst else None,
    )


def too_large(launches: Sequence[KernelLaunch], limits: DeviceLimits | None) -> str:
    """What is beyond the GPU before a compiler is asked: threads of a block, dynamic shared memory; empty for none."""
    for step in launches:
        if not limits or not step.kernel:
            continue
        threads = math.prod(step.block)
        if not 1 <= threads <= limits.threads_per_block:
            return f"{step.kernel}: a block of {threads} threads; 1 to {limits.threads_per_block} are allowed"
        if step.shared_bytes > limits.shared_per_block:
            return f"{step.kernel}: {step.shared_bytes} bytes of shared memory; a block has {limits.shared_per_block}"
    return ""


def does_not_fit(kernel: str, taken: LaunchResources, limits: DeviceLimits | None) -> str:
    """Why a compiled kernel cannot be launched as it is to be; empty where it can, or where that is not known."""
    threads = math.prod(taken.block or (1,))
    if taken.max_threads and threads > taken.max_threads:
        return f"{kernel}: a block of {threads} threads at {taken.registers} registers; {taken.max_threads} fit"
    shared = taken.shared_bytes + (taken.dynamic_shared_bytes or 0)
    if limits and shared > limits.shared_per_block:
        return f"{kernel}: {shared} bytes of shared memory; a block has {limits.shared_per_block}"
    if taken.blocks_per_sm == 0:
        return f"{kernel}: no block fits on a multiprocessor, for {taken.limiter}"
    return ""
