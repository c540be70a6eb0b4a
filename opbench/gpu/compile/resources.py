"""What each kernel takes of a named GPU, from a cubin that NVRTC makes on any machine: no GPU, no driver."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

from opbench.backend.base import KernelResources
from opbench.errors import CompileError, EnvironmentFault, OpbenchError, Reason
from opbench.gpu.compile import nvrtc, sass
from opbench.gpu.compile.cubin import machine_code_sha256, read_cubin
from opbench.gpu.limits.capability import missing_capability
from opbench.gpu.limits.occupancy import DeviceLimits, occupancy
from opbench.gpu.limits.products import PRODUCTS, GpuProduct, product
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.source.sources import closure


@dataclass(frozen=True)
class Resources:
    """What one case takes, in the form of `Result.resources`, or why that is not known."""

    kernels: dict[str, LaunchResources] = field(default_factory=dict)
    missing: str = ""
    machine_code_sha256: str = ""
    arch: str = ""
    """The architecture that it was compiled for, or would have been where it is refused."""
    refused: Reason | None = None
    """What the compiler said against the source."""


@dataclass(frozen=True)
class CompiledKernels:
    """What a cubin tells of its kernels."""

    arch: str
    kernels: Mapping[str, KernelResources]
    code_bytes: Mapping[str, int]
    spill_bytes: Mapping[str, int]
    """Only for kernels of which the compiler's log tells."""
    code: Mapping[str, sass.KernelCode]
    """Empty without nvdisasm."""
    machine_code_sha256: str


def describe(gpu: str) -> str:
    """Where a run's resources come from, or why it has none: one line for its environment."""
    found = product(gpu)
    if found is None:
        return f"missing: {_unknown(gpu)}"
    try:
        arch = nvrtc.architecture(found.capability, BuildRequest(source=nvrtc.library().path, kernels=()))
        version = "{}.{}".format(*nvrtc.library(arch).version)
    except EnvironmentFault as error:
        return f"missing: {error}"
    text = "compiled for {}, compute capability {}.{}, by NVRTC {}".format(found.name, *found.capability, version)
    try:
        sass.nvdisasm()
    except EnvironmentFault as error:
        return f"{text}; machine code missing: {error}"
    return text


def _unknown(gpu: str) -> str:
    return f"no architecture is known for GPU '{gpu}'; known: {', '.join(PRODUCTS)}"


def resources_of(cases: Iterable[Case], gpu: str) -> Iterator[tuple[int, Resources]]:
    """Each case's number with its resources; compiles in parallel, raises nothing that a run could stumble over."""
    found = product(gpu)
    wanted = [(index, case) for index, case in enumerate(cases) if not case.variant.is_library and not case.unmet()]
    if found is None:
        yield from ((index, Resources(missing=_unknown(gpu))) for index, _ in wanted)
        return
    requests: dict[BuildRequest, list[tuple[int, Case]]] = {}
    for index, case in wanted:
        try:
            requests.setdefault(case.request(), []).append((index, case))
        except OpbenchError as error:
            yield index, Resources(missing=str(error))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiled = pool.map(lambda request: _attempt(request, found), requests)
        for users, outcome in zip(requests.values(), compiled, strict=True):
            for index, case in users:
                yield index, _resources(case, found, outcome)


_LACKING = re.compile(r'(?:could not|cannot) open source file "(cuda|mma\.h|cooperative_groups|cub/|thrust/|nv/)')
"""NVRTC's words for a header of CUDA's own that is not installed: the machine's fault."""


def _attempt(request: BuildRequest, wanted: GpuProduct) -> CompiledKernels | Resources:
    """What the cubin tells, or why there is none."""
    reason = missing_capability(wanted.capability, request.compute_capability)
    if reason:
        have = "{}.{}".format(*wanted.capability)
        return Resources(missing=f"{reason}; {wanted.name} has {have}")
    arch = wanted.arch
    try:
        return compile_for(request, wanted)
    except EnvironmentFault as error:
        return Resources(missing=str(error), arch=arch)
    except CompileError as error:
        lacking = _LACKING.search(str(error))
        return Resources(missing=f"NVRTC rejects it: {error}", arch=arch, refused=None if lacking else error.reason)
    except OpbenchError as error:
        return Resources(missing=f"NVRTC's cubin cannot be read: {error}")
    except OSError as error:
        return Resources(missing=f"the cubin cannot be kept: {error.strerror or error}")


def compile_for(request: BuildRequest, wanted: GpuProduct) -> CompiledKernels:
    """Compile a module and read its cubin; raises CompileError, EnvironmentFault and BadCubin."""
    arch = nvrtc.architecture(wanted.capability, request)
    compiled = nvrtc.compile_cubin(request, arch)
    cubin = compiled.cubin.read_bytes()
    asked = {lowered: name for name, lowered in compiled.names.items()}
    read = {asked.get(name, name): found for name, found in read_cubin(cubin).items()}
    kernels = {
        name: KernelResources(
            found.registers,
            found.shared_bytes,
            found.local_bytes,
            min(found.bound_threads or 1024, nvrtc.max_threads(found.registers)),
        )
        for name, found in read.items()
    }
    try:
        shown = sass.disassemble(cubin, (source.path for source in closure(request.source, request.include)))
        code = {asked.get(name, name): found for name, found in shown.items()}
    except EnvironmentFault:
        code = {}
    code_bytes = {name: found.code_bytes for name, found in read.items()}
    spills = {asked.get(name, name): count for name, count in compiled.spill_bytes.items()}
    return CompiledKernels(arch, kernels, code_bytes, spills, code, machine_code_sha256(cubin))


def _resources(case: Case, wanted: GpuProduct, outcome: CompiledKernels | Resources) -> Resources:
    """The kernels of a case with the occupancy of its launches on the GPU."""
    if isinstance(outcome, Resources):
        return outcome
    try:
        launches = case.launches(wanted.limits.sm_count)
    except OpbenchError as error:
        return Resources(missing=str(error), arch=outcome.arch)
    entries = launch_resources(outcome.kernels, launches, wanted.limits)
    source = "compiled for {} by NVRTC {}.{}".format(outcome.arch, *nvrtc.library(outcome.arch).version)
    taken = {
        name: replace(
            entry,
            source=source,
            code_bytes=outcome.code_bytes[name],
            spill_bytes=outcome.spill_bytes.get(name),
            sass=outcome.code[name].summary() if name in outcome.code else None,
        )
        for name, entry in entries.items()
    }
    return Resources(taken, machine_code_sha256=outcome.machine_code_sha256, arch=outcome.arch)


def launch_resources(
    kernels: Mapping[str, KernelResources], launches: Sequence[KernelLaunch], limits: DeviceLimits | None
) -> dict[str, LaunchResources]:
    """Registers, shared and local bytes of each kernel, with the occupancy of its launch."""
    resources: dict[str, LaunchResources] = {}
    for step in launches:
        if step.zero or step.kernel not in kernels:
            continue
        static = kernels[step.kernel]
        taken = LaunchResources(
            **asdict(static), grid=step.grid, block=step.block, dynamic_shared_bytes=step.shared_bytes
        )
        if limits is not None:
            shared_bytes = static.shared_bytes + step.shared_bytes
            found = occupancy(limits, static.registers, shared_bytes, math.prod(step.block), math.prod(step.grid))
            taken = replace(taken, **asdict(found))
        resources[step.kernel] = taken
    return resources
