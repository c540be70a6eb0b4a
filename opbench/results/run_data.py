"""What one results file holds, as data: the header, the results, what was counted and measured beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opbench.results.result import Result

LeftOut = Mapping[str, Mapping[str, Sequence[str]]]
"""By problem and by reason: the variants of a suite that are no cases of that problem."""


@dataclass
class RunData:
    """Everything that one results file holds."""

    folder: Path
    header: dict[str, Any]
    results: list[Result]
    ceilings: dict[str, Any] | None = None
    """Measured limits: dram_bytes_per_s, l2_bytes_per_s, fp32_flops_per_s, launch_floor_s, gpu, source, cases."""
    counters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Hardware counters by case, from `opbench profile`."""
    devices: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """By UUID, in a run on several devices: name, index, environment and measured limits of each; `ceilings` are then
    those of the first."""
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
        return "network" in self.header

    def _device_of(self, result: Result) -> Mapping[str, object]:
        """What is known of a result's device: one without its name is of the run's first process, on one device."""
        return self.devices.get(result.device or str((self.header.get("environment") or {}).get("uuid")), {})

    def ceilings_of(self, result: Result) -> Mapping[str, object] | None:
        """The measured limits of the device that a result is of."""
        known = self._device_of(result).get("ceilings")
        return known if isinstance(known, dict) else self.ceilings

    def device_name(self, result: Result) -> str:
        """Such as "GPU 1", in a run on several devices; empty in a run on one."""
        return str(self._device_of(result).get("name", result.device)) if self.devices else ""

    @property
    def left_out(self) -> LeftOut:
        """By problem and by reason, the suite's variants that are no cases of it; empty in runs older than this."""
        return self.header.get("left_out") or {}
