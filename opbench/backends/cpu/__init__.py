"""The cpu backend: the same `.cu` files, compiled by the host's C++ compiler and executed thread by thread."""

from opbench.backends.cpu.backend import CpuBackend
from opbench.backends.cpu.tracing import Trace, TraceOptions

__all__ = ["CpuBackend", "Trace", "TraceOptions"]
