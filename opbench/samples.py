"""The samples of a result: in seconds, with the clock they were taken at, and in cycles."""

from __future__ import annotations

from opbench.results import Result


def seconds_of(result: Result) -> list[float]:
    """All samples in the order taken; empty for a case without a measurement."""
    return [float(seconds) for seconds in (result.measurement or {}).get("samples_s") or ()]


def clocks_of(result: Result) -> list[float]:
    """The multiprocessors' clock at each sample in Hz, moving evenly from the reading before to the one after.

    Empty where one of the two was not read.
    """
    measurement, count = result.measurement or {}, len(seconds_of(result))
    first, last = ((measurement.get(side) or {}).get("sm_clock_hz") for side in ("before", "after"))
    if not first or not last:
        return []
    step = (last - first) / max(1, count - 1)
    return [first + number * step for number in range(count)]


def cycles_of(result: Result) -> list[float]:
    """All samples in cycles of the multiprocessors' clock; empty where it is not known."""
    return [seconds * clock for seconds, clock in zip(seconds_of(result), clocks_of(result), strict=False)]
