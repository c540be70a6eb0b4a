"""The samples of a result: in seconds, with the clock they were taken at, and in cycles."""

from __future__ import annotations

from opbench.results.files import Result
from opbench.timing import stats


def seconds_of(result: Result) -> list[float]:
    """All samples that count, in the order taken; empty for a case without a measurement."""
    return [float(seconds) for seconds in (result.measurement or {}).get("samples_s") or ()]


def clocks_of(result: Result) -> list[float]:
    """The multiprocessors' clock at each sample in Hz: stamped beside it, else moving evenly between two readings.

    The readings are those before and after the case was measured. Empty where neither is known; a sample without a
    stamp among others that have one gets their median.
    """
    measurement, count = result.measurement or {}, len(seconds_of(result))
    stamped = measurement.get("clocks_hz") or ()
    known = [float(clock) for clock in stamped if clock]
    if known and len(stamped) == count:
        return [float(clock or stats.median(known)) for clock in stamped]
    first, last = ((measurement.get(side) or {}).get("sm_clock_hz") for side in ("before", "after"))
    if not first or not last:
        return []
    step = (last - first) / max(1, count - 1)
    return [first + number * step for number in range(count)]


def cycles_of(result: Result) -> list[float]:
    """All samples in cycles of the multiprocessors' clock; empty where it is not known."""
    return [seconds * clock for seconds, clock in zip(seconds_of(result), clocks_of(result), strict=False)]
