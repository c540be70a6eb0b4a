"""What a backend offers; the runner knows nothing else of `cuda` or `cpu`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from opbench.catalog.launch import BuildRequest, KernelLaunch
from opbench.traffic.findings import Finding


@dataclass(frozen=True)
class KernelResources:
    """What the compiler gave one kernel."""

    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int


class Buffer(Protocol):
    """Device memory for one tensor, with guard bands before and after it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def write(self, array: np.ndarray) -> None:
        """Copy a C-contiguous host array of the same shape and dtype in."""

    def read(self) -> np.ndarray:
        """Copy the content out."""

    def poison(self) -> None:
        """Fill the content with 0xFF bytes (NaN in every float format)."""

    def fingerprint(self) -> int:
        """64 bits that stand for the content: alike for equal contents, else as good as never in one process."""

    def damage(self) -> int | None:
        """Offset in bytes, relative to the buffer's start, of the nearest guard byte that changed, else None."""


class Program(Protocol):
    """A compiled module, loaded."""

    resources: Mapping[str, KernelResources]
    machine_code_sha256: str
    """Hash of what the GPU executes; empty on a backend that runs no GPU code."""

    def bind(self, launches: Sequence[KernelLaunch], buffers: Mapping[str, Buffer]) -> Callable[[], None]:
        """Return a callable that enqueues all launches in order."""


class Backend(Protocol):
    """Where cases run. Compiling needs no device and is safe from several threads; the rest is one thread's."""

    name: str
    has_clock: bool
    sm_count: int

    def environment(self) -> dict[str, Any]:
        """Device, driver, compiler and versions, as JSON."""

    def unsupported(self, request: BuildRequest) -> str | None:
        """Why this backend cannot run such a module, else None."""

    def compile(self, request: BuildRequest) -> Path:
        """Compile into the disk cache, or find it there; raises CompileError."""

    def load(self, request: BuildRequest) -> Program:
        """Compile if need be and load."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """A new poisoned buffer; `dtype` is f32, f16, bf16, i32, …; raises EnvironmentFault when memory is short."""

    def free(self, buffers: Mapping[str, Buffer]) -> None:
        """Give the memory back."""

    def synchronize(self) -> list[Finding]:
        """Wait for all launches; return what the runtime saw since the last call; raises LaunchError."""
