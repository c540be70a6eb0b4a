"""The backend that runs cases on the CPU of a machine without a GPU."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from opbench.backend.base import Buffer, Program, SparseMemory, Trace, TraceOptions
from opbench.backend.environment import Environment
from opbench.backend.findings import Finding
from opbench.backend.rules import NOTES, UNINITIALISED_LOCAL
from opbench.emulator.buffer import CpuArray, CpuBuffer, SparseBuffer, available_memory
from opbench.emulator.build import ARCHITECTURE_MACRO, NEWEST_CAPABILITY, KernelBuilder, warnings_of
from opbench.emulator.elf import imported_symbols
from opbench.emulator.features import MissingFeature
from opbench.emulator.findings import LaunchLog, to_findings
from opbench.emulator.library import Runtime, load_runtime
from opbench.emulator.program import CpuProgram
from opbench.emulator.ptx import UnsupportedInstruction
from opbench.emulator.toolchain import FAST, HUGE, TRACED, CompileMode, Toolchain, find_toolchain
from opbench.emulator.tracing import Tracing
from opbench.errors import CompileError, EnvironmentFault, UsageError
from opbench.kernels.capability import missing_capability
from opbench.kernels.launch import BuildRequest, KernelLaunch
from opbench.kernels.tensors import Tensor
from opbench.paths import cache_folder
from opbench.source.device_part import device_part
from opbench.source.sources import Source, include_closure, plain_code, without_comments, without_unused_macros

UNSUPPORTED_FEATURES = {
    r"\b__cluster_dims__\b": "__cluster_dims__; the cpu backend takes clusters from the launch: cluster = [2, 1, 1]",
    r"\b(?:(?:tex|surf)(?:[12]DLayered|3D|Cubemap)\w*|tex[12]D(?:Lod|Grad|gather)\w*)\b": (
        "textures of three dimensions, layers or levels; those of one and two dimensions are known"
    ),
    r"\btexture\s*<": "texture references, which CUDA 12 has no more",
    r"\bcurand(?!_kernel\b|\.h)\w*": "cuRAND's generators; they come with the toolkit alone",
    r"<<<": "launches from a kernel; opbench has none",
    r"\b(?:new\s+\w+\s*\[|malloc\s*\()": "the device's heap; give the kernel a workspace",
}
"""Features that the cpu backend cannot emulate: a regular expression for the source, and the feature's name."""

ORDER_MATTERS = re.compile(
    r"opb_(mbarrier_over|named_barrier|cluster_wait|trace_atomic|trace_order)$|__tsan_(unaligned_)?volatile_"
)
"""Runtime functions that a traced module calls only if its threads synchronise by other means than __syncthreads()."""
THREAD_ORDERS = 4
"""Runs of an order-dependent kernel: the first schedules threads in turn and finishes asynchronous work as late as
possible; the others choose both at random."""

PROCESS_LOG = LaunchLog()
"""The log that all backends share, because a process has one runtime and its reports refer to kernels by number."""


class CpuBackend:
    """Run kernels on the host's cores to check their results, never to time them."""

    name = "cpu"
    sm_count = 2
    """The number is small, so that a block of a persistent grid processes several tiles even in small examples."""
    limits = None

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
        return self._make_builder(FAST)

    @functools.cached_property
    def _traced_builder(self) -> KernelBuilder:
        return self._make_builder(TRACED)

    def _make_builder(self, mode: CompileMode) -> KernelBuilder:
        return KernelBuilder(self._toolchain, self._folder, mode, self.capability)

    @functools.cached_property
    def _runtime(self) -> Runtime:
        return load_runtime(self._builder.runtime)

    def environment(self) -> Environment:
        """Return the machine, its compiler, and their versions."""
        return Environment(
            backend=self.name,
            device=_processor_name(),
            machine=platform.machine(),
            cores=os.cpu_count(),
            workers=self._workers,
            memory_bytes=available_memory(),
            compiler=self._toolchain.describe(),
            compiler_flags=" ".join(self._toolchain.flags(FAST)),
            system=platform.platform(),
            python=platform.python_version(),
        )

    def unsupported_reason(self, request: BuildRequest) -> str | None:
        """Return the reason why the cpu backend cannot run a module, or None if it can."""
        reason = self._missing_capability(request.compute_capability)
        if reason is not None:
            return reason
        try:
            source_files = include_closure(request.source, request.include)
        except OSError:
            return None
        code = "\n".join(plain_code(source.text) for source in source_files)
        if any(re.search(pattern, code) for pattern in UNSUPPORTED_FEATURES) and (
            reason := _unsupported_feature(request, source_files)
        ):
            return reason
        if self.capability != NEWEST_CAPABILITY or re.search(r"\b(asm|__asm__|__asm)\b", code):
            return self._unknown_instruction(request)
        return None

    def _missing_capability(self, needed: str) -> str | None:
        """Return why a required compute capability is not available here, or None if it is."""
        if reason := _too_new_capability(needed):
            return reason
        reason = missing_capability(self.capability, needed)
        return (
            f"{reason}; the chosen GPU has compute capability {self.capability[0]}.{self.capability[1]}"
            if reason
            else None
        )

    def _unknown_instruction(self, request: BuildRequest) -> str | None:
        """Return the location of an instruction in the module that the backend lacks, or None.

        The preprocessed text is searched, because `#if` may exclude instructions for newer GPUs.
        """
        try:
            self._traced_builder.require_instructions(request)
        except UnsupportedInstruction as problem:
            is_own_file = Path(problem.file) == request.source.absolute()
            location = f"line {problem.line}" if is_own_file else f"{Path(problem.file).name}:{problem.line}"
            if isinstance(problem, MissingFeature):
                return f"{location}: {problem.reason}"
            return f"{location}: inline PTX '{problem.instruction}' is not known to the cpu backend"
        except CompileError:
            pass  # compile() reports this error
        return None

    def compile(self, request: BuildRequest) -> Path:
        """Compile a module into the disk cache, or reuse the cached file; raise CompileError."""
        return self._builder.module(request)

    def compile_traced(self, request: BuildRequest) -> Path:
        """Compile a module in which every memory access is instrumented; raise CompileError."""
        return self._traced_builder.module(request)

    def order_count(self, request: BuildRequest) -> int:
        """Return in how many thread orders to run a module.

        The number is 1 unless the module uses mbarriers, atomic or volatile accesses, whose order may change a result.
        """
        runtime_functions = imported_symbols(self.compile_traced(request))
        return THREAD_ORDERS if any(map(ORDER_MATTERS.match, runtime_functions)) else 1

    def architecture(self, request: BuildRequest) -> str:
        """Return the architecture for which `__CUDA_ARCH__` selects code, such as "sm_90"; "" if no file uses it."""
        text = "\n".join(without_comments(s.text) for s in include_closure(request.source, request.include))
        number = self._builder.architecture(request)
        return f"sm_{number[:-1]}" if re.search(rf"\b{ARCHITECTURE_MACRO}\b", text) else ""

    def load(self, request: BuildRequest) -> Program:
        """Load a module, after compiling it if necessary."""
        path = self.compile(request)
        return CpuProgram(path, request, self._runtime, self._log, self._workers)

    def load_traced(self, request: BuildRequest) -> Program:
        """Load the instrumented build of a module and run it without a trace, at about half the usual speed."""
        return CpuProgram(self.compile_traced(request), request, self._runtime, self._log, self._workers)

    def trace(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        options: TraceOptions = TraceOptions(),  # noqa: B008 (frozen)
    ) -> Trace:
        """Run the launches once in a traced build of the module, which checks every memory access.

        The buffers have the same content afterwards as after an ordinary run. Reports of earlier launches are
        discarded, so that all findings belong to this trace.
        """
        path = self.compile_traced(request)
        program = CpuProgram(path, request, self._runtime, self._log, 1)
        self._runtime.take_reports()
        with Tracing(self._runtime, buffers, options) as tracing:
            completed = program.trace(launches, buffers, tracing, options=options)
            all_findings = self.synchronize()
            findings = tuple(f for f in all_findings if f.kind not in NOTES)
            notes = tuple(f for f in all_findings if f.kind in NOTES)
            return Trace(findings, tracing.traffic(completed), completed, tracing.accesses, notes=notes)

    def trace_sample(
        self,
        request: BuildRequest,
        launches: Sequence[KernelLaunch],
        buffers: Mapping[str, Buffer],
        skip_blocks: int = 0,
    ) -> Trace:
        """Run some blocks of each launch; check memory bounds and overflows of `int`.

        Bit n of `skip_blocks` excludes the n-th sampled block of each launch.
        """
        path = self._make_builder(HUGE).module(request)
        program = CpuProgram(path, request, self._runtime, self._log, 1)
        self._runtime.take_reports()
        with Tracing(self._runtime, buffers, TraceOptions(count=False, races=False)) as tracing:
            completed = program.trace(launches, buffers, tracing, sampled=True, skip_blocks=skip_blocks)
            findings, traffic = tuple(self.synchronize()), tracing.traffic(completed)
            return Trace(findings, traffic, completed, tracing.accesses, tracing.unfinished_blocks)

    def allocate_sparse(self, name: str, shape: tuple[int, ...], dtype: str) -> SparseMemory:
        """Return a poisoned buffer that uses memory only for written pages; raise UsageError if it is too large."""
        try:
            return SparseBuffer(name, shape, dtype)
        except EnvironmentFault as error:  # Only this problem is too large; smaller ones may fit.
            raise UsageError(str(error), cause=error) from None

    def compiler_warnings(self, request: BuildRequest) -> list[Finding]:
        """Return the compiler's warnings of uninitialised local variables, as hints because they may be wrong."""
        try:
            stored_warnings = json.loads(warnings_of(self.compile(request)).read_text())
        except (OSError, ValueError):
            return []
        return [
            Finding(UNINITIALISED_LOCAL.kind, f"the compiler says: {text}", file, int(line), hint=True)
            for file, line, text in dict.fromkeys(map(tuple, stored_warnings))
        ]

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """Allocate a buffer filled with poison (0xFF bytes); raise EnvironmentFault if memory is short."""
        return CpuBuffer(name, shape, dtype)

    def view(self, buffer: Buffer, tensor: Tensor, offset: int) -> Buffer:
        """Return a tensor that shares a buffer's memory, from an offset in bytes on."""
        return cast(CpuArray, buffer).part(tensor.name, tensor.shape, tensor.dtype, offset)

    def buffer_on_array(self, tensor: Tensor, memory: np.ndarray) -> Buffer:
        """Return a buffer that uses the memory of a host array.

        The caller must keep the array. The buffer has no guard bytes.
        """
        return CpuArray(tensor.name, tensor.shape, tensor.dtype, memory)

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Unmap the memory of the buffers."""
        for buffer in buffers.values():
            if isinstance(buffer, CpuBuffer):
                buffer.free()
        self._log.buffers = []

    def synchronize(self) -> list[Finding]:
        """Return the findings since the last call; there is nothing to wait for, as launches are synchronous."""
        return to_findings(self._runtime.take_reports(), self._log)


def _unsupported_feature(request: BuildRequest, source_files: Sequence[Source]) -> str | None:
    """Return the line and the name of the first unsupported feature in the module's device code, or None."""
    device_code = device_part(source_files, request.roots)
    for source in source_files:
        text = without_unused_macros(plain_code(device_code.texts[source.path]))
        for pattern, feature in UNSUPPORTED_FEATURES.items():
            if match := re.search(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                location = f"line {line}" if source is source_files[0] else f"{source.path.name}:{line}"
                return f"{location}: uses {feature}"
    return None


def _too_new_capability(needed: str) -> str | None:
    """Return the reason why the cpu backend cannot execute code for a newer compute capability; None if it can."""
    match = re.fullmatch(r"(\d+)\.(\d+)([a-z]?)", needed)
    if match is None:
        return None
    if (int(match.group(1)), int(match.group(2))) > NEWEST_CAPABILITY:
        highest = ".".join(map(str, NEWEST_CAPABILITY))
        return f"needs compute capability {needed}; the cpu backend executes up to {highest} code"
    return None


def _processor_name() -> str:
    """Return the name of the CPU's model; the machine's architecture if the name is unknown."""
    try:
        match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()
