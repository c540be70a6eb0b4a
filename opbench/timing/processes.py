"""One case measured in several processes: the interval includes the differences between processes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from opbench.errors import NotAllowed
from opbench.timing import stats
from opbench.timing.measurement import Measurement, TimingWarning, kernel_time
from opbench.timing.sampling import NOISY_HALF_WIDTH

PROCESSES = 3
"""Number of processes for a ranking to publish."""

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t for 1 to 9 degrees of freedom."""


def process_interval(groups: Sequence[Sequence[float]]) -> tuple[float, stats.Interval]:
    """Return the centre and the 95 % interval of samples taken in several processes.

    The interval includes the differences between processes: it uses Student's t on the processes' medians, as Kalibera
    and Jones do with means (Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 9). It is never narrower than
    the interval of all samples pooled; otherwise quantised medians that happen to be equal would give a width of zero.
    """
    medians = [stats.median(group) for group in groups]
    count = len(medians)
    if not 2 <= count <= len(STUDENT_T) + 1:
        raise NotAllowed(
            f"{count} processes are not allowed; choose 2 to {len(STUDENT_T) + 1} processes",
            kind="not-allowed",
            subject="processes",
            value=count,
        )
    centre = sum(medians) / count
    variance = sum((value - centre) ** 2 for value in medians) / (count - 1)
    half_width = STUDENT_T[count - 2] * (variance / count) ** 0.5
    pooled = stats.median_interval(list(itertools.chain.from_iterable(groups)))
    low, high = min(centre - half_width, pooled.low), max(centre + half_width, pooled.high)
    return centre, stats.Interval(max(low, 0.0), high, min(0.95, pooled.coverage))


def merge_processes(measurements: Sequence[Measurement]) -> Measurement:
    """Merge one case's samples from several processes into one measurement, with the interval of `process_interval`."""
    if len(measurements) == 1:
        return measurements[0]
    samples = tuple(itertools.chain.from_iterable(measurement.samples_s for measurement in measurements))
    centre, interval = process_interval([measurement.samples_s for measurement in measurements])
    offsets = [measurement.offset_s for measurement in measurements if measurement.offset_s is not None]
    offset_s = stats.median(offsets) if offsets else None
    have_clocks = all(measurement.clocks_hz for measurement in measurements)
    warnings = {*itertools.chain.from_iterable(measurement.warnings for measurement in measurements)}
    # The merged interval includes each process's noise, so it alone decides whether the measurement is noisy.
    is_noisy = (interval.high - interval.low) / 2 > NOISY_HALF_WIDTH * centre
    warnings = (warnings - {TimingWarning.NOISY}) | ({TimingWarning.NOISY} if is_noisy else set())
    reasons = dict.fromkeys(measurement.stop_reason for measurement in measurements)
    starts = itertools.accumulate((len(measurement.samples_s) for measurement in measurements), initial=0)
    return replace(
        measurements[0],
        samples_s=samples,
        median_s=centre,
        low_s=interval.low,
        high_s=interval.high,
        quartiles_s=(stats.quantile(samples, 0.25), stats.quantile(samples, 0.75)),
        coverage=interval.coverage,
        stop_reason=", ".join(reasons),
        warmup_runs=sum(measurement.warmup_runs for measurement in measurements),
        after=measurements[-1].after,
        floor_s=stats.median([measurement.floor_s for measurement in measurements]),
        warnings=tuple(warning for warning in TimingWarning if warning in warnings),
        settled=all(measurement.settled for measurement in measurements),
        offset_s=offset_s,
        kernel_s=kernel_time(centre, offset_s),
        clocks_hz=tuple(itertools.chain.from_iterable(measurement.clocks_hz for measurement in measurements))
        if have_clocks
        else (),
        throttled=tuple(
            (n + sample_offset, s, hz)
            for sample_offset, p in zip(starts, measurements, strict=False)
            for n, s, hz in p.throttled
        ),
        processes=tuple(
            process_index for process_index, measurement in enumerate(measurements) for _ in measurement.samples_s
        ),
    )
