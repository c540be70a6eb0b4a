"""Load the C++ runtime library and launch kernels through it."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from ctypes.util import find_library
from math import gcd
from pathlib import Path

from opbench.emulator.abi import (
    LAUNCH_DONE,
    LAUNCH_WITHOUT_THREAD,
    MAX_REPORTS,
    LaunchArguments,
    Report,
    require_same_numbers,
)
from opbench.errors import EnvironmentFault, UsageError
from opbench.kernels.launch import Dim3


class Runtime:
    """The C++ runtime library, loaded into this process."""

    def __init__(self, path: Path) -> None:
        for name in ("m", "pthread"):
            # Modules are not linked against libraries: the process must already have every function that they call.
            library_file = find_library(name) or f"lib{name}.so.{6 if name == 'm' else 0}"
            try:
                ctypes.CDLL(library_file, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
        try:
            library = ctypes.CDLL(str(path))
            require_same_numbers(library)
            # Modules find the functions only from here on, so no launch can reach a runtime with another layout.
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:
            raise EnvironmentFault(
                f"the cpu backend's runtime cannot be loaded: {problem}; delete {path}, then run the command again",
                kind="runtime-not-loaded",
                subject=path,
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
        """Run a launch; return False if the runtime gave up. Raise EnvironmentFault without memory or threads."""
        outcome = self._launch(ctypes.byref(launch))
        self.require_memory()
        if outcome == LAUNCH_WITHOUT_THREAD:
            raise EnvironmentFault(
                "the system refuses to start a thread for the cpu backend; check the limit of processes with: ulimit "
                "-u, and end other programs or raise the limit",
                kind="no-thread",
            )
        return bool(outcome == LAUNCH_DONE)

    def require_memory(self) -> None:
        """Raise EnvironmentFault if the runtime ran out of memory, so that its findings are incomplete."""
        if refused_bytes := self._refused_bytes():
            self.take_reports()
            raise EnvironmentFault(
                f"not enough memory: the system refused {refused_bytes:,} bytes more to the cpu backend, so "
                "this case has no "
                "verdict; choose a smaller problem (--problem), end other programs, or raise the limit (ulimit -v)",
                kind="memory-short",
                value=refused_bytes,
            )

    def take_reports(self) -> list[Report]:
        """Return the runtime's reports since the last call."""
        reports = (Report * MAX_REPORTS)()
        return list(reports[: self._take(reports)])


_loaded: list[Runtime] = []


def load_runtime(build: Callable[[], Path]) -> Runtime:
    """Return the runtime library of this process, compiled and loaded at the first call.

    Modules resolve the runtime's functions by name among the process's global symbols. A second copy, for
    example of a backend with another cache or compiler, would therefore not be used by its own modules.
    """
    if not _loaded:
        _loaded.append(Runtime(build()))
    return _loaded[0]


def thread_order(run_number: int) -> int:
    """Return the seed of a run, which determines the order of threads and when asynchronous work completes.

    Seed 0 runs threads in turn and completes work as late as possible. $OPBENCH_CPU_ORDER=random:SEED makes the
    order of every run random.
    """
    order_name, _, seed = os.environ.get("OPBENCH_CPU_ORDER", "").partition(":")
    return run_number + (int(seed) + 1) * 1_000 if order_name == "random" and seed.isdigit() else run_number


def block_order(grid: Dim3) -> tuple[int, int]:
    """Return the multiplier and offset that map a counter to block indices, by the order in $OPBENCH_CPU_ORDER.

    If another order changes the result, blocks race. Raise UsageError for an unknown order.
    """
    count = grid[0] * grid[1] * grid[2]
    order_name, _, seed = os.environ.get("OPBENCH_CPU_ORDER", "forward").partition(":")
    if order_name == "forward" or count >= 1 << 31:
        return 1, 0
    if order_name == "reverse":
        return count - 1, count - 1
    if order_name == "random" and seed.isdigit():
        rng = random.Random(int(seed) * 1_000_003 + count)
        multiplier = next(
            candidate for candidate in iter(lambda: rng.randrange(1, count + 1), 0) if gcd(candidate, count) == 1
        )
        return multiplier, rng.randrange(count)
    raise UsageError(
        f"OPBENCH_CPU_ORDER='{os.environ['OPBENCH_CPU_ORDER']}' is not an order; write forward, reverse or "
        "random:SEED, where SEED is a whole number",
        kind="not-allowed",
        subject="OPBENCH_CPU_ORDER",
        value=os.environ["OPBENCH_CPU_ORDER"],
    )
