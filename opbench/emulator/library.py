"""The runtime library as Python sees it: loading it, launching through it."""

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
    """The loaded runtime."""

    def __init__(self, path: Path) -> None:
        for name in ("m", "pthread"):
            # Modules are linked against no library: what they call has to be in the process already.
            library_file = find_library(name) or f"lib{name}.so.{6 if name == 'm' else 0}"
            try:
                ctypes.CDLL(library_file, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
        try:
            library = ctypes.CDLL(str(path))
            require_same_numbers(library)
            # Only now do modules find its functions: another layout must answer no launch of this process.
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
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
        if answer == LAUNCH_WITHOUT_THREAD:
            raise EnvironmentFault("the system grants the cpu backend no thread; check: ulimit -u")
        return bool(answer == LAUNCH_DONE)

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
