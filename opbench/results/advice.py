"""Facts of a measured case for advice, from its result and from counts of a small problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import Peaks, best_time
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.advice import Facts, facts_of
from opbench.insight.levels import bounds, levels
from opbench.results.result import Result

ENOUGH = 10**6
"""Blocks of a case that is not measured: a small problem says nothing about idle multiprocessors."""


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


def modelled_time(counted: Result, peaks: Peaks, traffic: Traffic) -> tuple[float, float] | None:
    """Return the least time in seconds that a counted case takes by its traffic, and the lower bound of its problem.

    An empty launch is left out of both, as it hides the differences of small problems. None if one is not known.
    """
    unit = counted.unit or counted.precision
    bound = best_time(peaks.at_level(counted.memory_level), counted.flops, counted.compulsory_bytes, unit)
    found = levels(traffic, counted.resources)
    if found is None or bound is None or not bound[0]:
        return None
    limits = bounds(found, counted.flops, unit, peaks, counted.compulsory_bytes, counted.memory_level)
    return max(limit.time_s for limit in limits if limit.limit != "launch"), bound[0]


def counted_facts(counted: Result, over_bound: float, traffic: Traffic) -> Facts | None:
    """Return the facts of a case that was counted and not measured; None if its machine code is not known."""
    if not traffic.complete or not any(used.sass for used in counted.resources.values()):
        return None
    intensity = counted.flops / counted.compulsory_bytes if counted.compulsory_bytes else 0.0
    found = facts_of(traffic, counted.compulsory_bytes, counted.resources, counted.resources, over_bound, intensity)
    return replace(found, blocks=ENOUGH, waves=math.inf)


def shared_modes(axes: Mapping[str, int | str], other: Mapping[str, int | str]) -> int:
    """Return the number of modes, such as a dtype or a layout, that two problems share."""
    return sum(other.get(name) == value for name, value in axes.items() if isinstance(value, str))


def most_alike(measured: Result, counted: Iterable[Result]) -> Result | None:
    """Return the counted case that stands for a measured one: the same variant, most modes, its config, the largest."""
    alike = [one for one in counted if (one.operator, one.variant) == (measured.operator, measured.variant)]

    def likeness(one: Result) -> tuple[int, bool, int]:
        return shared_modes(measured.axes, one.axes), one.config == measured.config, one.compulsory_bytes

    return max(alike, key=likeness, default=None)
