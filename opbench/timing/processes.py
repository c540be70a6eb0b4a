"""One case measured in several processes: the interval includes the differences between processes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from opbench.errors import NotAllowed
from opbench.timing import stats
from opbench.timing.measurement import Measurement, Warn, kernel_time
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
            f"{count} processes, where 2 to {len(STUDENT_T) + 1} are allowed",
            kind="not-allowed",
            subject="processes",
            value=count,
        )
    centre = sum(medians) / count
    variance = sum((value - centre) ** 2 for value in medians) / (count - 1)
    reach = STUDENT_T[count - 2] * (variance / count) ** 0.5
    pooled = stats.median_interval(list(itertools.chain.from_iterable(groups)))
    low, high = min(centre - reach, pooled.low), max(centre + reach, pooled.high)
    return centre, stats.Interval(max(low, 0.0), high, min(0.95, pooled.coverage))


def merge_processes(parts: Sequence[Measurement]) -> Measurement:
    """Merge one case's samples from several processes into one measurement, with the interval of `process_interval`."""
    if len(parts) == 1:
        return parts[0]
    samples = tuple(itertools.chain.from_iterable(part.samples_s for part in parts))
    centre, interval = process_interval([part.samples_s for part in parts])
    offsets = [part.offset_s for part in parts if part.offset_s is not None]
    offset_s = stats.median(offsets) if offsets else None
    known = all(part.clocks_hz for part in parts)
    warnings = {*itertools.chain.from_iterable(part.warnings for part in parts)}
    # The merged interval includes each process's noise, so it alone decides whether the measurement is noisy.
    noisy = (interval.high - interval.low) / 2 > NOISY_HALF_WIDTH * centre
    warnings = (warnings - {Warn.NOISY}) | ({Warn.NOISY} if noisy else set())
    reasons = dict.fromkeys(part.stop_reason for part in parts)
    starts = itertools.accumulate((len(part.samples_s) for part in parts), initial=0)
    return replace(
        parts[0],
        samples_s=samples,
        median_s=centre,
        low_s=interval.low,
        high_s=interval.high,
        quartiles_s=(stats.quantile(samples, 0.25), stats.quantile(samples, 0.75)),
        coverage=interval.coverage,
        stop_reason=", ".join(reasons),
        warmup_runs=sum(part.warmup_runs for part in parts),
        after=parts[-1].after,
        floor_s=stats.median([part.floor_s for part in parts]),
        warnings=tuple(warning for warning in Warn if warning in warnings),
        settled=all(part.settled for part in parts),
        offset_s=offset_s,
        kernel_s=kernel_time(centre, offset_s),
        clocks_hz=tuple(itertools.chain.from_iterable(part.clocks_hz for part in parts)) if known else (),
        throttled=tuple((n + at, s, hz) for at, p in zip(starts, parts, strict=False) for n, s, hz in p.throttled),
        processes=tuple(number for number, part in enumerate(parts) for _ in part.samples_s),
    )
