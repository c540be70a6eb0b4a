"""The cpu backend: compile `.cu` files with the host's C++ compiler and run them thread by thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opbench.emulator.backend import CpuBackend

__all__ = ["CpuBackend"]


def __getattr__(name: str) -> object:
    """Import the backend at its first use, so that code that only builds the runtime does not import numpy."""
    if name not in __all__:
        raise AttributeError(f"module 'opbench.emulator' has no attribute '{name}'")
    from opbench.emulator.backend import CpuBackend

    return CpuBackend
