"""The runtime library as Python sees it: its structures, loading it, launching through it."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from ctypes.util import find_library
from math import gcd
from pathlib import Path

from opbench.errors import EnvironmentFault, UsageError
from opbench.kernels.launch import Dim3

MAX_REPORTS = 256
MAX_SAMPLES = 16
UInt3 = ctypes.c_uint32 * 3


class Report(ctypes.Structure):
    """`Report` of runtime/worker.hpp."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("other_line", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("program_counter", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("other_program_counter", ctypes.c_uint64),
        ("caller", ctypes.c_uint64),
        ("block", UInt3),
        ("thread", UInt3),
        ("other_block", UInt3),
        ("other_thread", UInt3),
        ("bytes", ctypes.c_uint32),
        ("access", ctypes.c_uint32),
        ("other_access", ctypes.c_uint32),
        ("warp", ctypes.c_uint32),
        ("other_warp", ctypes.c_uint32),
        ("instructions", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("file", ctypes.c_char * 240),
        ("text", ctypes.c_char * 1400),
    )


class LaunchArguments(ctypes.Structure):
    """`Launch` of runtime/worker.hpp."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("touch_shared", ctypes.c_void_p),
        ("dynamic_shared", ctypes.c_void_p),
        ("grid", UInt3),
        ("block", UInt3),
        ("shared_bytes", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("aborted", ctypes.c_uint32),
        ("order_multiplier", ctypes.c_uint64),
        ("order_offset", ctypes.c_uint64),
        ("block_count", ctypes.c_uint64),
        ("next_block", ctypes.c_uint64),
        ("module_base", ctypes.c_uint64),
        ("module_end", ctypes.c_uint64),
        ("cluster", UInt3),
        ("cooperative", ctypes.c_uint32),
        ("meets_in_parts", ctypes.c_uint32),
        ("programmatic", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("spins", ctypes.c_uint32),
        ("sample_count", ctypes.c_uint32),
        ("block_milliseconds", ctypes.c_uint32),
        ("samples", ctypes.c_uint64 * MAX_SAMPLES),
        ("sample", ctypes.c_uint32),
        ("cut_short", ctypes.c_uint32),
        ("undefined_line", ctypes.c_uint32),
        ("undefined_fill", ctypes.c_uint32),
        ("trace", ctypes.c_void_p),
    )


class Runtime:
    """The loaded runtime."""

    def __init__(self, path: Path) -> None:
        for name in ("m", "pthread"):
            # Modules are linked against no library: what they call has to be in the process already.
            found = find_library(name) or f"lib{name}.so.{6 if name == 'm' else 0}"
            try:
                ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
        try:
            library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:
            raise EnvironmentFault(
                f"the cpu backend's runtime does not load: {problem}; delete {path}, retry"
            ) from None
        self.library = library
        self._launch = library.opb_launch
        self._launch.argtypes = [ctypes.POINTER(LaunchArguments)]
        self._launch.restype = ctypes.c_int
        self._refused_bytes = library.opb_take_refused_bytes
        self._refused_bytes.restype = ctypes.c_uint64
        self._take = library.opb_take_reports
        self._take.argtypes = [ctypes.POINTER(Report)]
        self._take.restype = ctypes.c_uint32

    def launch(self, launch: LaunchArguments) -> bool:
        """Run a launch to its end; False when it was abandoned."""
        answer = self._launch(ctypes.byref(launch))
        self.require_memory()
        if answer == 2:
            raise EnvironmentFault("the system grants the cpu backend no thread; check: ulimit -u")
        return bool(answer == 0)

    def require_memory(self) -> None:
        """Raise EnvironmentFault if the system has refused memory, as the runtime's findings are incomplete then."""
        if refused := self._refused_bytes():
            self.take_reports()
            raise EnvironmentFault(
                f"memory is short: the system refused {refused:,} bytes more to the cpu backend, so this case has no "
                "verdict; choose a smaller problem (--problem), end other programs, or raise the limit (ulimit -v)"
            )

    def take_reports(self) -> list[Report]:
        """What the runtime saw since the last call."""
        reports = (Report * MAX_REPORTS)()
        return list(reports[: self._take(reports)])


_loaded: list[Runtime] = []


def load_runtime(build: Callable[[], Path]) -> Runtime:
    """The process's one runtime, built and loaded at the first call.

    Modules find its functions by name among the process's global symbols, so that a second copy (of a backend with
    another cache or compiler) would have its launches answered by the first.
    """
    if not _loaded:
        _loaded.append(Runtime(build()))
    return _loaded[0]


def thread_order(run: int) -> int:
    """The seed of a run's lots: who goes on where threads wait for asynchronous work, and how soon that is done.

    0 stands for threads in turn and work as late as it may be; $OPBENCH_CPU_ORDER=random:SEED draws in every run.
    """
    wanted, _, seed = os.environ.get("OPBENCH_CPU_ORDER", "").partition(":")
    return run + (int(seed) + 1) * 1_000 if wanted == "random" and seed.isdigit() else run


def block_order(grid: Dim3) -> tuple[int, int]:
    """The multiplier and offset that turn a counter into block indices, as $OPBENCH_CPU_ORDER asks.

    An order that changes the result shows a race between blocks: a cheap fuzzer.
    """
    count = grid[0] * grid[1] * grid[2]
    wanted, _, seed = os.environ.get("OPBENCH_CPU_ORDER", "forward").partition(":")
    if wanted == "forward" or count >= 1 << 31:
        return 1, 0
    if wanted == "reverse":
        return count - 1, count - 1
    if wanted == "random" and seed.isdigit():
        chance = random.Random(int(seed) * 1_000_003 + count)
        multiplier = next(m for m in iter(lambda: chance.randrange(1, count + 1), 0) if gcd(m, count) == 1)
        return multiplier, chance.randrange(count)
    raise UsageError(
        f"OPBENCH_CPU_ORDER='{os.environ['OPBENCH_CPU_ORDER']}' is no order; known: forward, reverse, random:SEED"
    )
