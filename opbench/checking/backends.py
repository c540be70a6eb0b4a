"""Choose and open one of the two backends, `cuda` and `cpu`."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING

from opbench.errors import OpbenchError, UsageError, unknown_name
from opbench.paths import cache_folder

if TYPE_CHECKING:
    from opbench.backend.base import Backend, Gpu
    from opbench.cage.fork_server import ForkServer

BACKEND_NAMES = ("cuda", "cpu")


BACKEND_CHOICES = ("auto", "cuda", "cpu")
"""The names that `resolve_name` accepts."""


def resolve_name(name: str) -> str:
    """Return the name of a backend; "auto" means cuda if a GPU and CuPy are available, else cpu."""
    if name == "auto":
        from opbench.gpu import driver as cuda

        return "cpu" if cuda.why_missing() else "cuda"
    if name not in BACKEND_NAMES:
        raise UsageError(unknown_name("backend", name, BACKEND_NAMES))
    return name


def require_device(name: str) -> None:
    """Raise EnvironmentFault if a backend needs a GPU and this machine has none."""
    if name == "cuda":
        from opbench.gpu import driver as cuda

        cuda.require_gpu()


@functools.cache
def start_runtime_build(name: str) -> None:
    """Start to build the cpu backend's runtime in the background; opening the backend waits for the build."""
    if resolve_name(name) != "cpu":
        return

    def build_runtime() -> None:
        from opbench.emulator.build import prepare as prepare_runtime

        # Opening the backend reports the error. RuntimeError: Python is exiting and cannot start threads.
        with contextlib.suppress(OpbenchError, OSError, RuntimeError):
            prepare_runtime(cache_folder("cpu"))

    threading.Thread(target=build_runtime).start()


def start_fork_server() -> ForkServer:
    """Start the process from which the cpu backend forks confined processes; call it while one thread exists."""
    # The fork server's children cannot read files of modules, so it must have every module before it starts.
    from opbench.cage.fork_server import ForkServer
    from opbench.emulator import caged

    caged.import_all()
    return ForkServer()


def rank_environments(name: str, ranks: int) -> list[dict[str, str]]:
    """Return the environment variables of each rank of a training that uses several processes.

    Each process opens the backend `name` with them. Raises EnvironmentFault if this machine has too few devices
    or lacks a collective library.
    """
    if resolve_name(name) == "cuda":
        from opbench.gpu.driver import collective

        return collective.rank_environments(ranks)
    return [{} for _ in range(ranks)]


def available_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use; raise EnvironmentFault if none is visible."""
    from opbench.gpu.driver import device

    return device.gpus()


def open_backend(
    name: str, capability: tuple[int, int] | None = None, fork_server: ForkServer | None = None
) -> Backend:
    """Open a backend; raise EnvironmentFault if this machine lacks a requirement.

    `capability` is the compute capability for which the cpu backend compiles; None means the newest that it can
    execute. With a fork server the cpu backend compiles and runs kernels in confined processes.
    """
    if resolve_name(name) == "cuda":
        from opbench.gpu.driver import CudaBackend

        return CudaBackend()
    if fork_server is not None:
        from opbench.emulator.caged import CagedBackend

        return CagedBackend(fork_server, capability=capability)
    from opbench.emulator import CpuBackend

    return CpuBackend(capability=capability)
