"""Resources and occupancy of kernels on a GPU model, from NVRTC's cubin; needs no GPU and no driver."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

from opbench.backend.base import KernelResources
from opbench.errors import CompileError, EnvironmentFault, OpbenchError, Reason
from opbench.gpu.compile import nvrtc, sass
from opbench.gpu.compile.cubin import Cubin, read_cubin
from opbench.gpu.limits.occupancy import DeviceLimits, occupancy
from opbench.gpu.limits.products import PRODUCTS, GpuProduct, product
from opbench.gpu.limits.resources import LaunchResources
from opbench.kernels.capability import missing_capability
from opbench.kernels.case import Case
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.source.sources import include_closure


@dataclass(frozen=True)
class Resources:
    """The resources of one case, as in `Result.resources`, or the reason why they are unknown."""

    kernels: dict[str, LaunchResources] = field(default_factory=dict)
    missing: str = ""
    """The reason why the resources are unknown; empty if they are known."""
    machine_code_sha256: str = ""
    arch: str = ""
    """The architecture that was compiled for, also if the compiler rejected the source."""
    compile_error: Reason | None = None
    """The compiler's error; None if it accepted the source."""
    is_rejected: bool = False
    """Whether the compiler rejected the source, for example because a header is not installed."""


@dataclass(frozen=True)
class CompiledKernels:
    """The resources and machine code of a cubin's kernels."""

    arch: str
    kernels: Mapping[str, KernelResources]
    code_bytes: Mapping[str, int]
    spill_bytes: Mapping[str, int]
    """Bytes of spilled registers by kernel; only for kernels that the compiler's log lists."""
    code: Mapping[str, sass.KernelCode]
    """Machine code by kernel; empty without nvdisasm, or if it was not requested."""
    machine_code_sha256: str


def resources_origin(gpu: str) -> str:
    """Return a line for a run's environment that names the source of its resources, or why it has none."""
    gpu_product = product(gpu)
    if gpu_product is None:
        return f"missing: {_unknown_gpu_message(gpu)}"
    try:
        arch = nvrtc.architecture(gpu_product.capability, BuildRequest(source=nvrtc.library().path, kernels=()))
        version = "{}.{}".format(*nvrtc.library(arch).version)
    except EnvironmentFault as error:
        return f"missing: {error}"
    text = "compiled for {}, compute capability {}.{}, by NVRTC {}".format(
        gpu_product.name, *gpu_product.capability, version
    )
    try:
        sass.nvdisasm()
    except EnvironmentFault as error:
        return f"{text}; machine code missing: {error}"
    return text


def _unknown_gpu_message(gpu: str) -> str:
    """Return the message for a GPU without a known architecture."""
    return f"no architecture is known for GPU '{gpu}'; known: {', '.join(PRODUCTS)}"


def resources_of(
    cases: Iterable[Case], gpu: str, machine_code: bool = True, blocks: bool = False
) -> Iterator[tuple[int, Resources]]:
    """Compile cases in parallel; yield the index of each case with its resources.

    An error becomes `Resources.missing`. Without `machine_code` nothing is disassembled, which takes 0.4 s for
    each module; `blocks` adds the basic blocks.
    """
    gpu_product = product(gpu)
    compiled_cases = [
        (index, case)
        for index, case in enumerate(cases)
        if not case.variant.is_library and not case.unmet_requirement()
    ]
    if gpu_product is None:
        yield from ((index, Resources(missing=_unknown_gpu_message(gpu))) for index, _ in compiled_cases)
        return
    requests: dict[BuildRequest, list[tuple[int, Case]]] = {}
    for index, case in compiled_cases:
        try:
            requests.setdefault(case.request(), []).append((index, case))
        except OpbenchError as error:
            yield index, Resources(missing=str(error))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        compiled = pool.map(lambda request: _try_compile(request, gpu_product, machine_code), requests)
        for cases_of_request, outcome in zip(requests.values(), compiled, strict=True):
            for index, case in cases_of_request:
                yield index, _resources(case, gpu_product, outcome, blocks)


_MISSING_CUDA_HEADER = re.compile(
    r'(?:could not|cannot) open source file "(cuda|mma\.h|cooperative_groups|cub/|thrust/|nv/)'
)
"""NVRTC's message for a CUDA header that is not installed: the machine's fault, not the source's."""


def _try_compile(request: BuildRequest, product: GpuProduct, machine_code: bool) -> CompiledKernels | Resources:
    """Return the compiled kernels, or the reason why compiling failed."""
    reason = missing_capability(product.capability, request.compute_capability)
    if reason:
        own_capability = "{}.{}".format(*product.capability)
        return Resources(missing=f"{reason}; {product.name} has {own_capability}")
    arch = product.arch
    try:
        return compile_for(request, product, machine_code)
    except EnvironmentFault as error:
        return Resources(missing=str(error), arch=arch)
    except CompileError as error:
        missing_header = _MISSING_CUDA_HEADER.search(str(error))
        compile_error = None if missing_header else error.reason
        return Resources(
            missing=f"NVRTC rejects the source: {error}", arch=arch, compile_error=compile_error, is_rejected=True
        )
    except OpbenchError as error:
        return Resources(missing=f"opbench cannot read NVRTC's cubin: {error}")
    except OSError as error:
        return Resources(missing=f"opbench cannot write the cubin to its cache: {error.strerror or error}")


def compile_for(request: BuildRequest, product: GpuProduct, machine_code: bool = True) -> CompiledKernels:
    """Compile a module and read its cubin; raise CompileError, EnvironmentFault or BadCubin.

    `code` of the result is empty without `machine_code`.
    """
    arch = nvrtc.architecture(product.capability, request)
    compiled = nvrtc.compile_cubin(request, arch)
    content = compiled.cubin.read_bytes()
    cubin = read_cubin(content)
    name_by_symbol = {mangled: name for name, mangled in compiled.names.items()}
    code: dict[str, sass.KernelCode] = {}
    if machine_code:
        with contextlib.suppress(EnvironmentFault):
            code_by_symbol = sass.disassemble(
                content, (source.path for source in include_closure(request.source, request.include))
            )
            code = {name_by_symbol.get(name, name): kernel for name, kernel in code_by_symbol.items()}
    code_bytes = {name_by_symbol.get(name, name): kernel.code_bytes for name, kernel in cubin.kernels.items()}
    spills = {name_by_symbol.get(name, name): count for name, count in compiled.spill_bytes.items()}
    kernels = kernel_resources(compiled, cubin)
    return CompiledKernels(arch, kernels, code_bytes, spills, code, cubin.machine_code_sha256)


def kernel_resources(compiled: nvrtc.CompiledModule, cubin: Cubin) -> dict[str, KernelResources]:
    """Return the resources of each kernel, by its name in the request."""
    name_by_symbol = {mangled: name for name, mangled in compiled.names.items()}
    return {
        name_by_symbol.get(name, name): KernelResources(
            kernel.registers,
            kernel.shared_bytes,
            kernel.local_bytes,
            min(kernel.bound_threads or 1024, nvrtc.max_threads_per_block(kernel.registers)),
        )
        for name, kernel in cubin.kernels.items()
    }


def _resources(
    case: Case, product: GpuProduct, compiled: CompiledKernels | Resources, blocks: bool = False
) -> Resources:
    """Return the resources of a case's kernels, with the occupancy of its launches on the GPU."""
    if isinstance(compiled, Resources):
        return compiled
    try:
        launches = case.launches(product.limits.sm_count)
    except OpbenchError as error:
        return Resources(missing=str(error), arch=compiled.arch)
    resources_by_kernel = launch_resources(compiled.kernels, launches, product.limits)
    source = "compiled for {} by NVRTC {}.{}".format(compiled.arch, *nvrtc.library(compiled.arch).version)
    described_resources = {
        name: replace(
            entry,
            source=source,
            code_bytes=compiled.code_bytes[name],
            spill_bytes=compiled.spill_bytes.get(name),
            sass=compiled.code[name].summary(blocks) if name in compiled.code else None,
        )
        for name, entry in resources_by_kernel.items()
    }
    return Resources(described_resources, machine_code_sha256=compiled.machine_code_sha256, arch=compiled.arch)


def launch_resources(
    kernels: Mapping[str, KernelResources], launches: Sequence[KernelLaunch], limits: DeviceLimits | None
) -> dict[str, LaunchResources]:
    """Return the registers and memory of each launched kernel, with the occupancy of its launch."""
    resources: dict[str, LaunchResources] = {}
    for launch in launches:
        if launch.zero or launch.kernel not in kernels:
            continue
        static = kernels[launch.kernel]
        launched = LaunchResources(
            static.registers,
            static.shared_bytes,
            static.local_bytes,
            static.max_threads_per_block,
            grid=launch.grid,
            block=launch.block,
            dynamic_shared_bytes=launch.shared_bytes,
        )
        if limits is not None:
            shared_bytes = static.shared_bytes + launch.shared_bytes
            launch_occupancy = occupancy(
                limits, static.registers, shared_bytes, math.prod(launch.block), math.prod(launch.grid)
            )
            launched = replace(launched, **asdict(launch_occupancy))
        resources[launch.kernel] = launched
    return resources
