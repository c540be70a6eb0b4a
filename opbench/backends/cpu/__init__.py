"""The cpu backend: the same `.cu` files, compiled by the host's C++ compiler and executed thread by thread."""

from opbench.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
