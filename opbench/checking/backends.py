"""The two places where cases run: `cuda` and `cpu`."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING

from opbench.errors import OpbenchError, UsageError, unknown
from opbench.paths import cache_folder

if TYPE_CHECKING:
    from opbench.backend.base import Backend, Gpu

NAMES = ("cuda", "cpu")


CHOICES = ("auto", "cuda", "cpu")
"""Names that `resolve` takes."""


def resolve(name: str) -> str:
    """The backend that "auto" means on this machine: cuda when a GPU and CuPy are there, else cpu."""
    if name == "auto":
        from opbench.gpu import driver as cuda

        return "cpu" if cuda.why_missing() else "cuda"
    if name not in NAMES:
        raise UsageError(unknown("backend", name, NAMES))
    return name


@functools.cache
def prepare(name: str) -> None:
    """Begin to build what a backend needs of its own, beside whatever goes on; who opens it waits for the rest."""
    if resolve(name) != "cpu":
        return

    def build() -> None:
        from opbench.emulator.build import prepare as build_own

        # The backend will meet and tell it; RuntimeError: the command has ended, and Python starts no more threads.
        with contextlib.suppress(OpbenchError, OSError, RuntimeError):
            build_own(cache_folder("cpu"))

    threading.Thread(target=build).start()


def rank_environments(name: str, ranks: int) -> list[dict[str, str]]:
    """For each of several processes that train together, what its environment has besides; they open `name` then.

    Raises EnvironmentFault where this machine has fewer devices, or nothing to add over them.
    """
    if resolve(name) == "cuda":
        from opbench.gpu.driver import collective

        return collective.rank_environments(ranks)
    return [{} for _ in range(ranks)]


def gpus() -> list[Gpu]:
    """The GPUs that this process may use; raises EnvironmentFault where it cannot see any."""
    from opbench.gpu.driver import device

    return device.gpus()


def open_backend(name: str, capability: tuple[int, int] | None = None) -> Backend:
    """Open a backend; raises EnvironmentFault when this machine has not what it needs.

    `capability` is the compute capability whose code the cpu backend compiles; None stands for the newest it executes.
    """
    if resolve(name) == "cuda":
        from opbench.gpu.driver import CudaBackend

        return CudaBackend()
    from opbench.emulator import CpuBackend

    return CpuBackend(capability=capability)
