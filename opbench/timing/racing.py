"""A race between candidates: one sample of each per round; clearly slower candidates drop out.

The logic is pure: anything that returns a number by name can race, such as GPU times or joules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opbench.timing import stats


@dataclass(frozen=True)
class RaceOptions:
    """The length of a race, and when a candidate drops out."""

    max_rounds: int = 6
    """Most samples of one candidate."""
    min_samples_for_interval: int = 3
    """From this number of samples on, intervals decide; below six samples the interval is their whole range."""
    drop_factor: float = 1.2
    """A candidate whose samples all exceed the leader's slowest by this factor drops out at once."""
    warm_up_rounds: int = 1
    """Rounds of which only the samples of candidates that drop out count."""
    warm_up_drop_factor: float = 1.5
    """The factor by which a candidate drops out in a warm-up round: first samples are less reliable."""
    seed: int = 0


@dataclass
class RaceSamples:
    """The result of a race for one candidate."""

    samples: list[float] = field(default_factory=list)
    stop: str = ""
    """Why sampling ended: "slower" than the leader, or, at the end of the race, "first" or "close"."""

    @property
    def interval(self) -> stats.Interval:
        """Return the interval of the median."""
        return stats.median_interval(self.samples)

    @property
    def median(self) -> float:
        """Return the median of the samples."""
        return stats.median(self.samples)


def race(
    sample: Callable[[str], float],
    names: Sequence[str],
    options: RaceOptions | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, RaceSamples]:
    """Race candidates until one is left, `max_rounds` are over, or `is_over` returns True; lower is better.

    The samples of a round are taken one after another in random order, so that a drift affects all candidates alike. No
    candidate drops out before the leader has a sample in the same round.
    """
    options = options or RaceOptions()
    order, samples = random.Random(options.seed), {name: RaceSamples() for name in names}
    running = list(names)
    for round_index in range(-options.warm_up_rounds, options.max_rounds):
        if is_over() and round_index > 0:
            break
        order.shuffle(running)
        for name in running:
            samples[name].samples.append(sample(name))
        factor = options.drop_factor if round_index >= 0 else options.warm_up_drop_factor
        leader = min(running, key=lambda name: samples[name].median)
        for name in [n for n in running if n != leader and _is_slower(samples[n], samples[leader], options, factor)]:
            samples[name].stop = "slower"
            running.remove(name)
        if round_index < 0:
            for name in running:
                samples[name].samples.clear()
        elif len(running) == 1 and len(samples[running[0]].samples) >= min(
            options.min_samples_for_interval, options.max_rounds
        ):
            break
    leader = min(running, key=lambda name: samples[name].median) if options.max_rounds and running else ""
    for name in running:
        samples[name].stop = "first" if name == leader else "close"
    return samples


def _is_slower(race_samples: RaceSamples, leader: RaceSamples, options: RaceOptions, factor: float) -> bool:
    """Return whether a candidate is slower: with few samples by a large factor, later by non-overlapping intervals."""
    if len(race_samples.samples) < options.min_samples_for_interval:
        return min(race_samples.samples) > factor * max(leader.samples)
    return race_samples.interval.low > leader.interval.high
