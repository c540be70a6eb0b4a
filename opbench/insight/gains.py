"""Estimate the gain of a mechanism from measured improvements between neighbouring variants of a ladder,
called steps.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

KernelKind = Literal["stream", "product", "tensor"]
"""Few FLOPs per byte; many FLOPs per byte on CUDA cores; products on tensor cores."""
OTHER_MECHANISM, OTHER_KIND = 0.1, 0.05
"""The weight of a step without the mechanism, and of a step of another kind of kernel."""
DISTANCE_REACH, BOUND_REACH = 2.0, 1.0
"""On the logarithmic scale, how far the distance and the lower bound may differ until a weight falls to 1 / e.

These four were chosen by excluding one operator, or one family of operators, at a time, from steps measured on an H100;
the test set was not used."""
MAX_SHARE = 1.2
"""The largest share of the distance that a step counts for; with a faster unit, a step may pass the lower bound."""
MIN_DISTANCE = 1.05
"""Steps that start nearer to their lower bound than this multiple are not used."""
EXCLUDED_WEIGHT = 0.1
"""The share of the weight that the range of a gain excludes on each side."""
STEPS_FILE = Path(__file__).with_name("ladder_steps.csv")


class Gain(NamedTuple):
    """The expected ratio of the time before to the time after, with its range."""

    low: float
    middle: float
    high: float


class MeasuredStep(NamedTuple):
    """A step of a ladder at one problem, as measured on an H200: a row of `STEPS_FILE`."""

    operator: str
    lower: str
    upper: str
    mechanisms: tuple[str, ...]
    """The mechanisms that `upper` has and `lower` lacks."""
    kind: KernelKind
    distance: float
    """Time of the lower variant divided by the lower bound that holds after the step."""
    bound_us: float
    """Lower bound of the problem in microseconds."""
    gain: float

    @property
    def share(self) -> float:
        """Return the share of the logarithmic distance to the lower bound that the step closed."""
        return min(MAX_SHARE, math.log(self.gain) / math.log(self.distance))


@cache
def committed_steps() -> tuple[MeasuredStep, ...]:
    """Return the measured steps that gains are estimated from."""
    with STEPS_FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            MeasuredStep(
                row["operator"],
                row["lower"],
                row["upper"],
                tuple(row["mechanisms"].split()),
                row["kind"],  # type: ignore[arg-type]
                float(row["distance"]),
                float(row["bound_us"]),
                float(row["gain"]),
            )
            for row in csv.DictReader(file)
        )


class GainEstimate:
    """An estimator of gains from measured steps."""

    def __init__(self, steps: Sequence[MeasuredStep]) -> None:
        """Prepare the steps; the weights of all problems of a step add up to 1."""
        problems = Counter(step[:3] for step in steps)
        self._points = sorted(
            (step.share, math.log(step.distance), math.log(step.bound_us), 1 / problems[step[:3]], step)
            for step in steps
            if step.distance > MIN_DISTANCE
        )

    def expected(self, mechanism: str, distance: float, kind: KernelKind = "stream", bound_s: float = 0.0) -> Gain:
        """Return the gain of a mechanism in a case, `distance` times above its lower bound `bound_s` in seconds.

        A mechanism closes a share of the logarithmic distance: from 8 times the bound, half of it is a gain of 8^0.5.
        The share is the weighted median of the measured steps: steps with the mechanism, of the same kind of kernel, at
        a similar distance and with a similar lower bound count most. Latencies do not shrink with a problem, so a step
        closes less of the distance in a small problem. If `bound_s` is 0, lower bounds do not change the weights.
        """
        log_distance = math.log(max(1.0, distance))
        log_bound = math.log(bound_s * 1e6) if bound_s else None
        weights = []
        for _, step_log_distance, step_log_bound, weight, step in self._points:
            difference = abs(step_log_distance - log_distance) / DISTANCE_REACH
            if log_bound is not None:
                difference += abs(step_log_bound - log_bound) / BOUND_REACH
            similarity = (1.0 if mechanism in step.mechanisms else OTHER_MECHANISM) * (
                1.0 if kind == step.kind else OTHER_KIND
            )
            weights.append(weight * similarity * math.exp(-difference))
        shares = [self._points[index][0] for index in _quantiles(weights, (EXCLUDED_WEIGHT, 0.5, 1 - EXCLUDED_WEIGHT))]
        return Gain(*(max(1.0, math.exp(log_distance * share)) for share in shares))


def _quantiles(weights: Sequence[float], fractions: Sequence[float]) -> list[int]:
    """Return, for each fraction, the first index at which the cumulative weight reaches it; `fractions` ascend."""
    result: list[int] = []
    cumulative, total = 0.0, sum(weights)
    for index, weight in enumerate(weights):
        cumulative += weight
        while len(result) < len(fractions) and cumulative >= fractions[len(result)] * total:
            result.append(index)
    return result


@cache
def _committed_estimate() -> GainEstimate:
    """Return the estimate from all committed steps."""
    return GainEstimate(committed_steps())


def expected_gain(mechanism: str, distance: float, kind: KernelKind = "stream", bound_s: float = 0.0) -> Gain:
    """Return the gain of a mechanism by all committed steps, as `GainEstimate.expected`."""
    return _committed_estimate().expected(mechanism, distance, kind, bound_s)
