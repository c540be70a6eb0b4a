"""What clocks of tests have in common."""

from __future__ import annotations

from opbench.timing.clock import DeviceState


class QuietClock:
    """Of a device of which nothing is known, and which launches in a microsecond; `sample` is its heirs'."""

    timer = "fake"

    def device_state(self) -> DeviceState:
        return DeviceState()

    def empty_kernel_s(self) -> float:
        return 1e-6

    def timing_offset_s(self) -> float | None:
        return None
