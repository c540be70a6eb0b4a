"""Where something was measured: the device, its settings, and the versions of what compiled and ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opbench.records import to_json


@dataclass(frozen=True)
class Environment:
    """One device of one machine; a field has its default where a record does not know it."""

    python: str = ""
    system: str = ""
    processor: str = ""
    """The machine's architecture, such as "x86_64"."""
    cores: int | None = None
    backend: str = ""
    gpu: str = ""
    """The GPU's name; empty without one."""
    uuid: str = ""
    """Of the GPU; of several, all of them with commas."""
    compute_capability: str = ""
    """Such as "9.0"."""
    sm_count: int = 0
    """Multiprocessors that grids are sized by."""
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    """Of the GPU; without one, what was free of the machine's."""
    energy_counted: bool | None = None
    driver_cuda: str = ""
    """The newest CUDA that the driver knows."""
    nvrtc: str = ""
    nvrtc_options: tuple[str, ...] = ()
    cupy: str | None = None
    torch: str | None = None
    driver: str | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    power_limit_w: float | None = None
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    application_sm_clock_hz: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why the clocks were held back as it was read."""
    device: str = ""
    """The processor's name, where cases run on it."""
    machine: str = ""
    workers: int | None = None
    """Threads of the emulator."""
    compiler: str = ""
    compiler_flags: str = ""
    resources: str = ""
    """Where registers and occupancy of a run without a GPU come from."""

    @property
    def place(self) -> str:
        """What ran the cases, such as "NVIDIA H200" or a processor's name; empty where nothing is known."""
        return self.gpu or self.device or self.processor

    @property
    def capability(self) -> tuple[int, int] | None:
        """The GPU's compute capability; None without a GPU."""
        major, point, minor = self.compute_capability.partition(".")
        return (int(major), int(minor)) if point and major.isdecimal() and minor.isdecimal() else None

    def to_json(self) -> dict[str, Any]:
        """Return what is known."""
        written: dict[str, Any] = to_json(self, sparse=True)
        return written
