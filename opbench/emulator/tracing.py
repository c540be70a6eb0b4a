"""Trace launches: pass the settings to the runtime, and read its counts afterwards."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType

from opbench.backend.base import Buffer, TraceOptions
from opbench.backend.counts import (
    KINDS,
    SPACES,
    BranchTraffic,
    CacheTraffic,
    KernelTraffic,
    LineTraffic,
    Traffic,
    gather,
)
from opbench.emulator.abi import (
    BRANCHES,
    COUNT_SLOTS,
    FIRST_ACCESS_EVENT,
    NativeArray,
    NativeBranch,
    NativeBuffer,
    NativeCaches,
    NativeCount,
    NativeTotals,
)
from opbench.emulator.buffer import CpuArray
from opbench.emulator.elf import SharedArray
from opbench.emulator.library import Runtime
from opbench.emulator.lines import source_lines
from opbench.errors import EnvironmentFault
from opbench.kernels.launch import KernelLaunch

BEFORE_ENTRY = 7
"""Bytes from the return address of a basic block's entry call back into the branch that ends the block before."""


COUNTED_FIELDS = tuple(field[0] for field in NativeCount._fields_[4:])


class Tracing:
    """Manage one trace in the runtime; a context manager, as its shadow memory is several times the buffers' size."""

    def __init__(self, runtime: Runtime, buffers: Mapping[str, Buffer], options: TraceOptions) -> None:
        self._library = runtime.library
        self._require_memory = runtime.require_memory
        memory = {name: buffer for name, buffer in buffers.items() if isinstance(buffer, CpuArray)}
        self._names = list(memory)
        self._lines: list[LineTraffic] = []
        self._kernels: list[KernelTraffic] = []
        self._branches: list[BranchTraffic] = []
        self._counts = options.count
        self._limits = options.limits if options.count else None
        self._static_shared = 0
        self.accesses = 0
        self.unfinished_blocks = 0
        native = (NativeBuffer * max(1, len(memory)))(*(_native_buffer(buffer) for buffer in memory.values()))
        _declare_functions(self._library)
        self.address: int | None = self._library.opb_trace_open(native, len(memory), options.count, options.races)
        try:
            self._require_memory()
        except EnvironmentFault:
            self._close()
            raise

    def _close(self) -> None:
        """Free the trace in the runtime; a second call does nothing."""
        if self.address:
            self._library.opb_trace_close(self.address)
        self.address = None

    def __enter__(self) -> Tracing:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def use_module(self, arrays: Sequence[SharedArray], variables: Sequence[SharedArray]) -> None:
        """Pass the locations of a module's `__shared__` arrays and `__device__` variables to the runtime."""
        self._static_shared = sum(array.bytes for array in arrays)
        for set_locations, locations in (
            (self._library.opb_trace_arrays, arrays),
            (self._library.opb_trace_variables, variables),
        ):
            native_arrays = [
                NativeArray(location.offset, location.bytes, location.constant)
                for location in locations
                if location.bytes
            ]
            set_locations(self.address, (NativeArray * max(1, len(native_arrays)))(*native_arrays), len(native_arrays))
        self._require_memory()

    def mark_initialised(self, name: str) -> None:
        """Mark a buffer as initialised, because it was filled between two launches."""
        self._library.opb_trace_initialised(self.address, self._names.index(name))

    def mark_writable(self, name: str) -> None:
        """Mark a buffer that the next launch may write, so that earlier reads by other threads are known."""
        self._library.opb_trace_writable(self.address, self._names.index(name))

    def use_caches(self, launch: KernelLaunch) -> None:
        """Set the sizes of the modelled caches for the next launch; do nothing if no GPU's caches are modelled."""
        if self._limits is None or not self._limits.l2_bytes:
            return
        shared_bytes = self._static_shared + launch.shared_bytes
        resident_blocks = max(1, self._limits.resident_blocks(shared_bytes, math.prod(launch.block)))
        l1_bytes = self._limits.l1_size(shared_bytes, resident_blocks)
        sizes = (self._limits.sm_count, resident_blocks, l1_bytes, self._limits.l2_bytes)
        self._library.opb_trace_caches(self.address, *sizes)
        self._require_memory()

    def _caches(self, sampled: bool) -> CacheTraffic | None:
        """Return the cache traffic of the last launch; None if only some of its blocks ran or no cache is modelled."""
        native = NativeCaches()
        self._library.opb_trace_take_caches(self.address, ctypes.byref(native))
        if self._limits is None or not self._limits.l2_bytes or sampled:
            return None
        return CacheTraffic(*(getattr(native, field.name) for field in fields(CacheTraffic)))

    def gather(self, launch: KernelLaunch, module: Path) -> None:
        """Add the counts of the launch that just ended to the trace."""
        # The runtime writes no slot if it does not count.
        counts = (NativeCount * (COUNT_SLOTS if self._counts else 1))()
        totals = NativeTotals()
        recorded = counts[: self._library.opb_trace_take(self.address, counts, ctypes.byref(totals))]
        positions = source_lines(module, {count.site - 1 for count in recorded})
        for count in recorded:
            position = positions[count.site - 1]
            counts_by_name = {name: getattr(count, name) for name in COUNTED_FIELDS}
            access_kind = KINDS[count.event - FIRST_ACCESS_EVENT]
            access = (launch.kernel, position.file, position.line, SPACES[count.space], access_kind, count.bytes)
            entry = LineTraffic(*access, column=position.column, called_from=position.called_from, **counts_by_name)
            self._lines.append(entry)
        if self._counts:
            self._gather_branches(launch.kernel, module)
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        counted_blocks = totals.counted_blocks
        caches = self._caches(counted_blocks < blocks)
        self._kernels.append(KernelTraffic(launch.kernel, 1, blocks, counted_blocks, threads, totals.barriers, caches))
        self.accesses += totals.accesses

    def _gather_branches(self, kernel: str, module: Path) -> None:
        """Add the divergent branches of a launch; a branch is the last instruction before the next basic block."""
        native = (NativeBranch * BRANCHES)()
        recorded = native[: self._library.opb_trace_take_branches(self.address, native)]
        branch_addresses = [branch.next - BEFORE_ENTRY if branch.next else branch.site - 1 for branch in recorded]
        positions = source_lines(module, set(branch_addresses))
        for branch, address in zip(recorded, branch_addresses, strict=True):
            position = positions[address]
            counts = (branch.executions, branch.divergent, branch.fewest_lanes)
            self._branches.append(
                BranchTraffic(kernel, position.file, position.line, *counts, called_from=position.called_from)
            )

    def traffic(self, completed: bool) -> Traffic:
        """Return the traffic of all launches together."""
        return gather(self._lines, self._kernels, complete=completed, branches=self._branches)


def _native_buffer(buffer: CpuArray) -> NativeBuffer:
    """Return the runtime's description of a buffer."""
    return NativeBuffer(buffer.address, buffer.bytes, buffer.dtype.itemsize, buffer.initialised)


def _declare_functions(library: ctypes.CDLL) -> None:
    """Set the argument and result types of the runtime's tracing functions."""
    library.opb_trace_open.restype = ctypes.c_void_p
    library.opb_trace_open.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_int]
    library.opb_trace_initialised.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.opb_trace_writable.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.opb_trace_arrays.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    library.opb_trace_variables.argtypes = library.opb_trace_arrays.argtypes
    library.opb_trace_take.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.opb_trace_take.restype = ctypes.c_uint
    library.opb_trace_take_branches.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.opb_trace_take_branches.restype = ctypes.c_uint
    counts, sizes = [ctypes.c_uint] * 2, [ctypes.c_uint64] * 2
    library.opb_trace_caches.argtypes = [ctypes.c_void_p, *counts, *sizes]
    library.opb_trace_caches.restype = None
    library.opb_trace_take_caches.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.opb_trace_close.argtypes = [ctypes.c_void_p]
