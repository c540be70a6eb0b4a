"""What one results file holds, as data: the header, the results, what was counted and measured beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opbench.gpu.limits.ceilings import Ceilings
from opbench.results.header import LeftOut, RunDevice, RunHeader
from opbench.results.result import Result


@dataclass
class RunData:
    """Everything that one results file holds."""

    folder: Path
    header: RunHeader
    results: list[Result]
    ceilings: Ceilings | None = None
    """Measured limits."""
    counters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Hardware counters by case, from `opbench profile`."""
    devices: dict[str, RunDevice] = field(default_factory=dict)
    """By UUID, in a run on several devices; `ceilings` are then those of the first."""
    traffic: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the cpu backend counted, by case; see `opbench.backend.counts.Traffic.from_json`."""
    finished: bool = False
    wall_s: float | None = None
    """Wall time of the run, and of what completed it, from the first process to the last result: building and checks
    included, ceilings not. None where it never ended; of runs older than this field from whole seconds."""
    warnings: list[str] = field(default_factory=list)

    @property
    def of_network(self) -> bool:
        """Whether its cases are a network's nodes and the whole, which are no rivals."""
        return bool(self.header.network)

    def _device_of(self, result: Result) -> RunDevice | None:
        """Return a result's device: one without its name is of the run's first process, on one device."""
        return self.devices.get(result.device or self.header.environment.uuid)

    def ceilings_of(self, result: Result) -> Ceilings | None:
        """Return the measured limits of the device that a result is of."""
        device = self._device_of(result)
        return device.ceilings if device and device.ceilings else self.ceilings

    def device_name(self, result: Result) -> str:
        """Return such as "GPU 1", in a run on several devices; empty in a run on one."""
        device = self._device_of(result)
        return (device.name if device else result.device) if self.devices else ""

    @property
    def left_out(self) -> LeftOut:
        """By problem and by reason, the suite's variants that are no cases of it; empty in runs older than this."""
        return self.header.left_out
