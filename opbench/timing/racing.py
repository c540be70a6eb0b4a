"""Contenders race: one sample of each a round, and who is slower than the leader beyond doubt drops out.

Pure: whatever gives a number by name can race, seconds of a GPU's clock or joules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opbench.timing import stats


@dataclass(frozen=True)
class RaceOptions:
    """How long a race may last, and who drops out when."""

    rounds: int = 12
    """Samples of one contender, at most."""
    least: int = 3
    """Samples from which on an interval decides; below six of them it is the range of all."""
    hopeless: float = 1.5
    """A first sample beyond so many times the leader's slowest decides alone."""
    warm_up: int = 1
    """Rounds that do not count."""
    seed: int = 0


@dataclass
class Raced:
    """What a race left of one contender."""

    samples: list[float] = field(default_factory=list)
    stop: str = ""
    """Why it was measured no longer: "slower" than the leader, or "first" or "close" where the race was over."""

    @property
    def interval(self) -> stats.Interval:
        """Of its median."""
        return stats.median_interval(self.samples)

    @property
    def median(self) -> float:
        """Of its samples."""
        return stats.median(self.samples)


def race(
    sample: Callable[[str], float],
    names: Sequence[str],
    options: RaceOptions | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, Raced]:
    """Race contenders until one is left, or for so many rounds, or until time `is_over`; less is better.

    All samples of a round are taken one after another in random order, so that a drift hits all alike. Nobody drops
    out before the leader has a sample in the same round.
    """
    options = options or RaceOptions()
    order, found = random.Random(options.seed), {name: Raced() for name in names}
    running = list(names)
    for number in range(-options.warm_up, options.rounds):
        if is_over() and number > 0:
            break
        order.shuffle(running)
        for name in running:
            value = sample(name)
            if number >= 0:
                found[name].samples.append(value)
        if number >= 0:
            leader = min(running, key=lambda name: found[name].median)
            for name in [n for n in running if n != leader and _is_slower(found[n], found[leader], options)]:
                found[name].stop = "slower"
                running.remove(name)
        if len(running) == 1 and len(found[running[0]].samples) >= min(options.least, options.rounds):
            break
    leader = min(running, key=lambda name: found[name].median) if options.rounds and running else ""
    for name in running:
        found[name].stop = "first" if name == leader else "close"
    return found


def _is_slower(one: Raced, leader: Raced, options: RaceOptions) -> bool:
    """Whether a contender lies above the leader: by its first sample far, later by its interval."""
    if len(one.samples) < options.least:
        return min(one.samples) > options.hopeless * max(leader.samples)
    return one.interval.low > leader.interval.high
