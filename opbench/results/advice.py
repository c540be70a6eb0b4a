"""Facts of a measured case for advice, from its result and from counts of a small problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import Peaks, best_time
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.advice import Facts, facts_of
from opbench.results.result import Result


def over_bound(measured: Result, peaks: Peaks | None) -> float | None:
    """Return the time of a case divided by the lower bound of its problem; None if one is not known.

    The lower bound includes an empty launch.
    """
    if measured.measurement is None or peaks is None:
        return None
    limits = peaks.at_level(measured.memory_level)
    bound = best_time(limits, measured.flops, measured.compulsory_bytes, measured.unit or measured.precision)
    if bound is None:
        return None
    least = max(bound[0], peaks.launch_floor_s or 0.0)
    return measured.measurement.median_s / least if least else None


def measured_facts(
    measured: Result,
    peaks: Peaks | None,
    traffic: Traffic,
    counted_bytes: int,
    compiled: Mapping[str, LaunchResources],
) -> Facts | None:
    """Return the facts of a measured case; None for a library, or if its lower bound is not known.

    `traffic`, `compiled` and the compulsory bytes `counted_bytes` belong to a small problem of the same variant.
    """
    distance = over_bound(measured, peaks)
    if distance is None or not measured.resources or not traffic.complete:
        return None
    intensity = measured.flops / measured.compulsory_bytes if measured.compulsory_bytes else 0.0
    return facts_of(traffic, counted_bytes, compiled, measured.resources, distance, intensity)


def most_alike(measured: Result, counted: Iterable[Result]) -> Result | None:
    """Return the counted case that stands for a measured one: the same variant, most modes, its config, the largest."""
    alike = [one for one in counted if (one.operator, one.variant) == (measured.operator, measured.variant)]
    modes = {name: value for name, value in measured.axes.items() if isinstance(value, str)}

    def likeness(one: Result) -> tuple[int, bool, int]:
        same = sum(one.axes.get(name) == value for name, value in modes.items())
        return same, one.config == measured.config, one.compulsory_bytes

    return max(alike, key=likeness, default=None)
