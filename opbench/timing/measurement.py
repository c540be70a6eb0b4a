"""The result of a measurement: its samples, their summary, and warnings with advice."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from opbench.timing import stats
from opbench.timing.clock import DeviceState


class TimingWarning(enum.StrEnum):
    """A reason to doubt a measurement, such as noise; its value is stored in results."""

    NOISY = "noisy"
    TOO_SHORT = "too_short"
    CLOCK_DRIFT = "clock_drift"
    THROTTLED = "throttled"
    FEW_SAMPLES = "few_samples"
    NOT_HELD = "not_held"
    FEW_CONTENTS = "few_contents"

    @property
    def advice(self) -> str:
        """Return what the warning means and what to do."""
        return _ADVICE_BY_WARNING[self]


_ADVICE_BY_WARNING = {
    TimingWarning.NOISY: "the median is uncertain by more than 2 %; end other programs that use the GPU, or take "
    "more samples (opbench run --samples 1000)",
    TimingWarning.TOO_SHORT: "it takes less than 5 empty launches, so most of its time is launch overhead; choose a "
    "larger problem",
    TimingWarning.CLOCK_DRIFT: "times or clocks changed during the measurement; lock the clocks (nvidia-smi -lgc), and "
    "run again",
    TimingWarning.THROTTLED: "the GPU lowered its clock because of power or heat (samples below 75 % of its highest "
    "clock do not count); improve cooling or lock lower clocks (nvidia-smi -lgc), and run again",
    TimingWarning.FEW_SAMPLES: "too few samples for a 95 % interval or for the chosen minimum; take more "
    "samples (opbench run --samples 1000)",
    TimingWarning.FEW_CONTENTS: "the GPU's memory does not hold three sets of inputs, so samples had the same inputs "
    "more often; choose a smaller problem",
    TimingWarning.NOT_HELD: "the launch itself waits for the GPU, so its time includes work of the host",
}


@dataclass(frozen=True)
class Measurement:
    """All samples of one case in the order taken; a sample is the time in seconds between two events."""

    mode: str
    timer: str
    samples_s: tuple[float, ...]
    """The samples that count; samples at a throttled clock are in `throttled`."""
    median_s: float
    """The median of the samples; for several processes, the mean of the processes' medians."""
    low_s: float
    high_s: float
    quartiles_s: tuple[float, float]
    coverage: float
    """Probability that [low_s, high_s] covers the true median."""
    stop_reason: str
    """target, stable (more samples no longer narrow the interval), max_samples or budget."""
    warmup_runs: int
    before: DeviceState
    after: DeviceState
    floor_s: float
    warnings: tuple[TimingWarning, ...] = ()
    settled: bool | None = None
    """Whether the warm-up ended because times and clock were stable, not because its time was over."""
    offset_s: float | None = None
    """The seconds that the clock adds to a kernel's own time; None when unknown."""
    kernel_s: float | None = None
    """The kernel's own time: the median minus the offset; None when the offset is unknown."""
    clocks_hz: tuple[float | None, ...] = ()
    """The SM clock at each sample; empty if no sample has one."""
    throttled: tuple[tuple[int, float, float], ...] = ()
    """Samples that do not count: the number of counted samples before it, seconds, and clock in Hz of each."""
    processes: tuple[int, ...] = ()
    """The number of the process that took each sample, from 0; empty for a single process."""

    @property
    def interval_without_offset_s(self) -> tuple[float, float, float]:
        """Return the median and its interval without the clock's offset, if it is known; each at least 1 ns."""
        offset_s = self.offset_s or 0.0
        median_s, low_s, high_s = (max(1e-9, t - offset_s) for t in (self.median_s, self.low_s, self.high_s))
        return median_s, low_s, high_s

    @property
    def sample_clocks_hz(self) -> list[float]:
        """Return the SM clock at each sample, from its time stamps or interpolated between two readings.

        The readings are those before and after the measurement. A sample without a stamp gets the median of the others.
        Returns an empty list if neither is known.
        """
        count = len(self.samples_s)
        known_hz = [clock for clock in self.clocks_hz if clock]
        if known_hz and len(self.clocks_hz) == count:
            return [clock or stats.median(known_hz) for clock in self.clocks_hz]
        first_hz, last_hz = self.before.sm_clock_hz, self.after.sm_clock_hz
        if not first_hz or not last_hz:
            return []
        step_hz = (last_hz - first_hz) / max(1, count - 1)
        return [first_hz + sample_index * step_hz for sample_index in range(count)]

    @property
    def cycles(self) -> list[float]:
        """Return all samples in SM clock cycles; empty if the clock is unknown."""
        return [seconds * clock for seconds, clock in zip(self.samples_s, self.sample_clocks_hz, strict=False)]


def kernel_time(measured_s: float, offset_s: float | None) -> float | None:
    """Return a kernel's own time within a measured time; None if the clock's offset is unknown."""
    return None if offset_s is None else max(0.0, measured_s - offset_s)
