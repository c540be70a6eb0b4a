"""What clocks of tests have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opbench.timing.clock import DeviceState, Sample


class QuietClock:
    """Of a device of which nothing is known, and which launches in a microsecond; `sample` is its heirs'."""

    timer = "fake"

    def device_state(self) -> DeviceState:
        return DeviceState()

    def empty_kernel_s(self) -> float:
        return 1e-6

    def timing_offset_s(self) -> float | None:
        return None


class SteadyClock(QuietClock):
    """A clock whose every sample is a millisecond; `before` sees each launch that is timed."""

    gap_between_launches_s = 0.0

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        self.before()
        launch()
        return Sample(1e-3)

    def chain(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        return [1e-3 for _ in launches]

    def forget(self, launch: Callable[[], None]) -> None:
        pass
