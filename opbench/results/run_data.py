"""The content of one results file: header, results, counted traffic and hardware counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import Peaks
from opbench.results.header import RunDevice, RunHeader, SkippedVariants
from opbench.results.result import Result

COMPILED_AHEAD = "compiled ahead"
"""The name of the time in which modules were compiled while other phases went on."""


@dataclass
class RunData:
    """The content of one results file."""

    folder: Path
    header: RunHeader
    results: list[Result]
    ceilings: Peaks | None = None
    """Measured peaks; None without them."""
    counters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Hardware counters by case, from `opbench profile`."""
    devices: dict[str, RunDevice] = field(default_factory=dict)
    """Devices by UUID, in a run on several; `ceilings` are then those of the first."""
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """The traffic that the cpu backend counted, by case."""
    finished: bool = False
    wall_s: float | None = None
    """Wall time in seconds of the run and of its resumed parts, from the first process to the last result: with builds
    and checks, without the measurement of peaks. None if it never ended; in older runs from whole seconds.
    """
    phases_s: dict[str, float] = field(default_factory=dict)
    """The time of each phase in seconds, summed over workers and resumed parts; empty in older runs.

    The time of COMPILED_AHEAD is no part of their sum.
    """
    warnings: list[str] = field(default_factory=list)

    @property
    def of_network(self) -> bool:
        """Return whether the cases are the nodes of a network, which have no rank among each other."""
        return bool(self.header.network)

    def _device_of(self, result: Result) -> RunDevice | None:
        """Return the device that ran a case; None in a run on a single device."""
        return self.devices.get(result.device or self.header.environment.uuid)

    def ceilings_of(self, result: Result) -> Peaks | None:
        """Return the measured peaks of the device that ran a case."""
        device = self._device_of(result)
        return device.ceilings if device and device.ceilings else self.ceilings

    def device_name(self, result: Result) -> str:
        """Return the name of a case's device, such as "GPU 1"; empty in a run on one device."""
        device = self._device_of(result)
        return (device.name if device else result.device) if self.devices else ""

    @property
    def left_out(self) -> SkippedVariants:
        """Return, by problem and reason, the suite's variants that have no case; empty in older runs."""
        return self.header.left_out
