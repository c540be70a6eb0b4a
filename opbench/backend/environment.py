"""The environment of a measurement: device, settings, and versions of compiler and libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opbench.kernels.capability import parse_capability
from opbench.records import to_json


@dataclass(frozen=True)
class Environment:
    """The device, system and software of a measurement; a field that is unknown has its default value."""

    python: str = ""
    system: str = ""
    processor: str = ""
    """The machine's architecture, such as "x86_64"."""
    cores: int | None = None
    backend: str = ""
    gpu: str = ""
    """The GPU's name; empty without one."""
    uuid: str = ""
    """UUID of the GPU; several are separated by commas."""
    compute_capability: str = ""
    """Such as "9.0"."""
    sm_count: int = 0
    """Number of multiprocessors, by which grids are sized."""
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    """Memory of the GPU; without a GPU, the free memory of the machine."""
    energy_counted: bool | None = None
    driver_cuda: str = ""
    """The newest CUDA version that the driver supports."""
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
    """Reasons for throttled clocks at the time of reading."""
    device: str = ""
    """The processor's name, where cases run on it."""
    machine: str = ""
    workers: int | None = None
    """Threads of the emulator."""
    compiler: str = ""
    compiler_flags: str = ""
    resources: str = ""
    """Source of registers and occupancy in a run without a GPU."""

    @property
    def device_name(self) -> str:
        """Return the name of the device, such as "NVIDIA H200" or a processor's name; empty if unknown."""
        return self.gpu or self.device or self.processor

    @property
    def capability(self) -> tuple[int, int] | None:
        """Return the GPU's compute capability, such as (9, 0); None without a GPU."""
        return parse_capability(self.compute_capability)

    def to_json(self) -> dict[str, Any]:
        """Return the known fields as JSON data."""
        known_fields: dict[str, Any] = to_json(self, omit_defaults=True)
        return known_fields
