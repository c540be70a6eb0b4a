"""`CpuBackend`: where cases run on a machine without a GPU."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from opbench.backend.base import Buffer, Program, Sparse, Trace, TraceOptions
from opbench.backend.environment import Environment
from opbench.backend.findings import Finding
from opbench.backend.rules import NOTES, UNINITIALISED_LOCAL
from opbench.emulator.buffer import CpuArray, CpuBuffer, SparseBuffer, available_memory
from opbench.emulator.build import ARCHITECTURE_MACRO, NEWEST_CAPABILITY, KernelBuilder, doubts_of
from opbench.emulator.elf import imported_symbols
from opbench.emulator.features import MissingFeature
from opbench.emulator.findings import LaunchLog, to_findings
from opbench.emulator.library import Runtime, load_runtime
from opbench.emulator.program import CpuProgram
from opbench.emulator.ptx import UnsupportedInstruction
from opbench.emulator.toolchain import FAST, HUGE, TRACED, Toolchain, find_toolchain
from opbench.emulator.tracing import Tracing
from opbench.errors import CompileError, EnvironmentFault, UsageError
from opbench.gpu.limits.capability import missing_capability
from opbench.gpu.limits.occupancy import DeviceLimits
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensors import Tensor
from opbench.paths import cache_folder
from opbench.source.device_part import device_part
from opbench.source.sources import Source, closure, plain_code, without_comments, without_idle_macros

BEYOND = {
    r"\b__cluster_dims__\b": "__cluster_dims__; the cpu backend takes clusters from the launch: cluster = [2, 1, 1]",
    r"\b(?:(?:tex|surf)(?:[12]DLayered|3D|Cubemap)\w*|tex[12]D(?:Lod|Grad|gather)\w*)\b": (
        "textures of three dimensions, layers or levels; those of one and two dimensions are known"
    ),
    r"\btexture\s*<": "texture references, which CUDA 12 has no more",
    r"\bcurand(?!_kernel\b|\.h)\w*": "cuRAND's generators; they come with the toolkit alone",
    r"<<<": "launches from a kernel; opbench has none",
    r"\b(?:new\s+\w+\s*\[|malloc\s*\()": "the device's heap; give the kernel a workspace",
}
"""What no shim can stand in for, by how it shows in the source."""

ORDER_MATTERS = re.compile(
    r"opb_(mbarrier_over|named_barrier|cluster_wait|trace_atomic|trace_order)$|__tsan_(unaligned_)?volatile_"
)
"""Functions of the runtime that a traced module calls only if its threads meet without a barrier of the whole block."""
ORDERS = 4
"""Threads in turn and asynchronous work as late as may be, then both drawn by lot."""

PROCESS_LOG = LaunchLog()
"""As there is one runtime in a process, its reports are numbered once for all backends."""


class CpuBackend:
    """Executes kernels on the host's cores: for verdicts, never for times."""

    name = "cpu"
    sm_count = 8
    limits: DeviceLimits | None = None

    def __init__(
        self, cache: Path | None = None, workers: int | None = None, capability: tuple[int, int] | None = None
    ) -> None:
        self._folder = cache.absolute() if cache else cache_folder("cpu")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._workers = workers or os.cpu_count() or 1
        self.capability = capability or NEWEST_CAPABILITY
        """The compute capability whose code is compiled."""
        self._log = PROCESS_LOG

    @functools.cached_property
    def _toolchain(self) -> Toolchain:
        return find_toolchain()

    @functools.cached_property
    def _builder(self) -> KernelBuilder:
        return KernelBuilder(self._toolchain, self._folder, FAST, self.capability)

    @functools.cached_property
    def _traced_builder(self) -> KernelBuilder:
        return KernelBuilder(self._toolchain, self._folder, TRACED, self.capability)

    @functools.cached_property
    def _runtime(self) -> Runtime:
        return load_runtime(self._builder.runtime)

    def environment(self) -> Environment:
        """Return the machine, its compiler and versions."""
        return Environment(
            backend=self.name,
            device=_processor(),
            machine=platform.machine(),
            cores=os.cpu_count(),
            workers=self._workers,
            memory_bytes=available_memory(),
            compiler=self._toolchain.describe(),
            compiler_flags=" ".join(self._toolchain.flags(FAST)),
            system=platform.platform(),
            python=platform.python_version(),
        )

    def unsupported(self, request: BuildRequest) -> str | None:
        """Why the cpu backend cannot run such a module, else None."""
        reason = self._lacks(request.compute_capability)
        if reason is not None:
            return reason
        try:
            read = closure(request.source, request.include)
        except OSError:
            return None
        whole = "\n".join(plain_code(source.text) for source in read)
        if any(re.search(pattern, whole) for pattern in BEYOND) and (reason := _beyond(request, read)):
            return reason
        if self.capability != NEWEST_CAPABILITY or re.search(r"\b(asm|__asm__|__asm)\b", whole):
            return self._unknown_instruction(request)
        return None

    def _lacks(self, needed: str) -> str | None:
        """Say which compute capability a variant needs that this backend or the GPU asked for lacks; else None."""
        if reason := _beyond_capability(needed):
            return reason
        reason = missing_capability(self.capability, needed)
        return f"{reason}; the GPU that was asked for has {self.capability[0]}.{self.capability[1]}" if reason else None

    def _unknown_instruction(self, request: BuildRequest) -> str | None:
        """Preprocessed text decides: a branch for newer GPUs may hold instructions that nobody compiles."""
        try:
            self._traced_builder.require_instructions(request)
        except UnsupportedInstruction as problem:
            own = Path(problem.file) == request.source.absolute()
            place = f"line {problem.line}" if own else f"{Path(problem.file).name}:{problem.line}"
            if isinstance(problem, MissingFeature):
                return f"{place}: {problem.reason}"
            return f"{place}: inline PTX '{problem.instruction}' is not known to the cpu backend"
        except CompileError:
            pass  # for compile() to report
        return None

    def compile(self, request: BuildRequest) -> Path:
        """Compile into the disk cache, or find it there; raises CompileError."""
        return self._builder.module(request)

    def compile_traced(self, request: BuildRequest) -> Path:
        """The same with every memory access instrumented."""
        return self._traced_builder.module(request)

    def orders(self, request: BuildRequest) -> int:
        """More than one where the order of threads may change a result: at mbarriers, atomic and volatile accesses."""
        called = imported_symbols(self.compile_traced(request))
        return ORDERS if any(map(ORDER_MATTERS.match, called)) else 1

    def architecture(self, request: BuildRequest) -> str:
        """Whose branches of `#if __CUDA_ARCH__` are compiled, such as "sm_90"; empty where the text has none."""
        text = "\n".join(without_comments(s.text) for s in closure(request.source, request.include))
        number = self._builder.architecture(request)
        return f"sm_{number[:-1]}" if re.search(rf"\b{ARCHITECTURE_MACRO}\b", text) else ""

    def load(self, request: BuildRequest) -> Program:
        """Compile if need be and load."""
        path = self.compile(request)
        return CpuProgram(path, request, self._runtime, self._log, self._workers)

    def load_traced(self, request: BuildRequest) -> Program:
        """The traced build, to be run without a trace: half as quick, and no second build is needed."""
        return CpuProgram(self.compile_traced(request), request, self._runtime, self._log, self._workers)

    def trace(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        options: TraceOptions = TraceOptions(),  # noqa: B008 (frozen)
    ) -> Trace:
        """Run the launches once in a traced build of the module: slower, and every memory access is looked at.

        The buffers end as after an ordinary run. Findings that earlier launches left behind are dropped, so that the
        trace's are its own.
        """
        path = self.compile_traced(request)
        program = CpuProgram(path, request, self._runtime, self._log, 1)
        self._runtime.take_reports()
        with Tracing(self._runtime, buffers, options) as tracing:
            completed = program.trace(launches, buffers, tracing, options=options)
            seen = self.synchronize()
            findings = tuple(f for f in seen if f.kind not in NOTES)
            notes = tuple(f for f in seen if f.kind in NOTES)
            return Trace(findings, tracing.traffic(completed), completed, tracing.accesses, notes=notes)

    def trace_sample(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        leave_out: int = 0,
    ) -> Trace:
        """Run some blocks of each launch, and look at where they reach and at what no `int` holds."""
        path = KernelBuilder(self._toolchain, self._folder, HUGE, self.capability).module(request)
        program = CpuProgram(path, request, self._runtime, self._log, 1)
        self._runtime.take_reports()
        with Tracing(self._runtime, buffers, TraceOptions(count=False, races=False)) as tracing:
            completed = program.trace(launches, buffers, tracing, sampled=True, leave_out=leave_out)
            found, traffic = tuple(self.synchronize()), tracing.traffic(completed)
            return Trace(found, traffic, completed, tracing.accesses, tracing.cut_short)

    def allocate_sparse(self, name: str, shape: tuple[int, ...], dtype: str) -> Sparse:
        """A poisoned buffer that takes memory where it is written only; raises UsageError beyond what can be mapped."""
        try:
            return SparseBuffer(name, shape, dtype)
        except EnvironmentFault as refused:  # others fit: it is this problem that is too large
            raise UsageError(str(refused)) from None

    def doubts(self, request: BuildRequest) -> list[Finding]:
        """What the compiler thinks may be read before it is written: it may be wrong, so these are hints."""
        try:
            noted = json.loads(doubts_of(self.compile(request)).read_text())
        except (OSError, ValueError):
            return []
        return [
            Finding(UNINITIALISED_LOCAL.kind, f"the compiler says: {words}", file, int(line), hint=True)
            for file, line, words in dict.fromkeys(map(tuple, noted))
        ]

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """A new poisoned buffer; raises EnvironmentFault when memory is short."""
        return CpuBuffer(name, shape, dtype)

    def view(self, buffer: Buffer, tensor: Tensor, offset: int) -> Buffer:
        """A tensor in the memory of a buffer, at an offset in bytes."""
        return cast(CpuArray, buffer).part(tensor.name, tensor.shape, tensor.dtype, offset)

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Give the memory back."""
        for buffer in buffers.values():
            if isinstance(buffer, CpuBuffer):
                buffer.free()
        self._log.buffers = []

    def synchronize(self) -> list[Finding]:
        """Launches have ended when they return; this hands out what the runtime saw since the last call."""
        return to_findings(self._runtime.take_reports(), self._log)


def _beyond(request: BuildRequest, read: Sequence[Source]) -> str | None:
    """What of a module's own part no shim can stand in for, with its line."""
    part = device_part(read, request.roots)
    for source in read:
        text = without_idle_macros(plain_code(part.texts[source.path]))
        for pattern, feature in BEYOND.items():
            if found := re.search(pattern, text):
                line = text.count("\n", 0, found.start()) + 1
                place = f"line {line}" if source is read[0] else f"{source.path.name}:{line}"
                return f"{place}: uses {feature}"
    return None


def _beyond_capability(needed: str) -> str | None:
    match = re.fullmatch(r"(\d+)\.(\d+)([a-z]?)", needed)
    if match is None:
        return None
    if (int(match.group(1)), int(match.group(2))) > NEWEST_CAPABILITY:
        highest = ".".join(map(str, NEWEST_CAPABILITY))
        return f"needs compute capability {needed}; the cpu backend executes up to {highest} code"
    return None


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()
