"""Clocks, power, temperature and settings of one GPU from NVML; None for a missing value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from opbench.backend.environment import Environment
from opbench.timing.clock import DeviceState

if TYPE_CHECKING:
    import pynvml

T = TypeVar("T")

THROTTLE_REASONS = {
    0x01: "gpu_idle",
    0x02: "applications_clocks_setting",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Reasons for reduced clocks by their bit (nvmlClocksEventReasons)."""


class Nvml:
    """One GPU in NVML; every value is None if nvidia-ml-py is not installed or permission is missing."""

    def __init__(self, uuid: str) -> None:
        self._library: ModuleType | None = None
        self._handle: pynvml.c_nvmlDevice_t = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._library = pynvml
        except Exception:  # No package, no library, no permission or a MIG slice.
            self._library = None

    def _query(self, name: str, *arguments: int) -> Any:
        """Call one NVML function; return None if it fails."""
        if self._library is None:
            return None
        try:
            return getattr(self._library, name)(self._handle, *arguments)
        except Exception:  # NVMLError, or this version lacks the function.
            return None

    def state(self) -> DeviceState:
        """Return the current clocks and temperature."""
        reasons = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return DeviceState(
            sm_clock_hz=_scale_known(self._query("nvmlDeviceGetClockInfo", 1), 1e6),
            memory_clock_hz=_scale_known(self._query("nvmlDeviceGetClockInfo", 2), 1e6),
            temperature_c=_scale_known(self._query("nvmlDeviceGetTemperature", 0), 1.0),
            power_w=_scale_known(self._query("nvmlDeviceGetPowerUsage"), 1e-3),
            energy_j=_scale_known(self._query("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            throttle=None if reasons is None else _throttle_names(int(reasons)),
        )

    def settings(self, environment: Environment) -> Environment:
        """Return the environment with the GPU's settings, such as its power limit; comparisons of runs need them."""
        return replace(
            environment,
            driver=self.driver(),
            ecc=_current_value(self._query("nvmlDeviceGetEccMode"), bool),
            mig=_current_value(self._query("nvmlDeviceGetMigMode"), bool),
            persistence=_convert_known(self._query("nvmlDeviceGetPersistenceMode"), bool),
            power_limit_w=_scale_known(self._query("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            max_sm_clock_hz=_scale_known(self._query("nvmlDeviceGetMaxClockInfo", 1), 1e6),
            max_memory_clock_hz=_scale_known(self._query("nvmlDeviceGetMaxClockInfo", 2), 1e6),
            application_sm_clock_hz=_scale_known(self._query("nvmlDeviceGetApplicationsClock", 1), 1e6),
        )

    def driver(self) -> str | None:
        """Return the driver's version."""
        try:
            version = self._library.nvmlSystemGetDriverVersion()  # type: ignore[union-attr]
        except Exception:  # The library is None or reports an error.
            return None
        return version.decode() if isinstance(version, bytes) else str(version)


def _convert_known(value: int | None, convert: Callable[[int], T]) -> T | None:
    """Return `convert(value)`; None for a missing value."""
    return None if value is None else convert(value)


def _scale_known(value: float | None, factor: float) -> float | None:
    """Return a value times a factor; None for a missing value."""
    return None if value is None else float(value) * factor


def _current_value(pair: Sequence[int] | None, convert: Callable[[int], T]) -> T | None:
    """Return the first of NVML's pair of current and pending values, converted; None if unknown."""
    return None if not pair else convert(pair[0])


def _throttle_names(bits: int) -> tuple[str, ...]:
    """Return the names of the reasons whose bits are set."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)
