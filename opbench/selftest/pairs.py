"""Pairs of launches, identical or with a known slow-down, judged like two runs of `opbench compare`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from opbench import units
from opbench.backend.environment import Environment
from opbench.results.comparison import Change, compare_runs
from opbench.results.files import Run
from opbench.results.header import RecordedTiming, RunHeader
from opbench.results.result import Result
from opbench.results.selftest import AS_COMPARE, BY_INTERVAL, ORDERS, Part, identical_pair_key
from opbench.selftest.device import (
    SelftestClock,
    SelftestDevice,
    cycles_per_second,
    l2_bytes,
    size_text,
    untouched,
)  # fmt: skip
from opbench.timing import stats
from opbench.timing.clock import Launch, SecondsClock
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure

MIN_PAIRS, MAX_PAIRS = 40, 400
"""Least and most pairs of one kind, whatever the budget."""
FALSE_SHARE, DETECTED_SHARE = 0.05, 0.95
SLOW_DOWNS = (0.01, 0.02, 0.05)
CLAIMED_SLOW_DOWN = 0.02
LENGTH_S = 100e-6
SAMPLE_BUDGETS = (10, 20, 40, 80)
SHARP = 0.005
"""A threshold below the default, for smaller changes."""
RULES = ((None, AS_COMPARE), (0.0, BY_INTERVAL))
"""Thresholds (None for the default) by which pairs of one kernel are judged, with their names."""


@dataclass(frozen=True)
class Pair:
    """The measurements of two launches."""

    base: Measurement
    new: Measurement


@dataclass(frozen=True)
class VerdictCounts:
    """Numbers of pairs by verdict."""

    pairs: int
    faster: int
    slower: int
    undecided: int

    @classmethod
    def of(cls, changes: Sequence[Change]) -> VerdictCounts:
        """Count how many pairs were judged faster, slower and undecided."""
        return cls(len(changes), *(changes.count(c) for c in (Change.FASTER, Change.SLOWER, Change.UNDECIDED)))

    @property
    def different(self) -> int:
        """Return the number of pairs called faster or slower."""
        return self.faster + self.slower


def measure_pair(
    clock: SelftestClock,
    base_launch: Launch,
    new_launch: Launch,
    options: TimingOptions,
    now_s: SecondsClock,
    interleaved: bool = True,
) -> Pair:
    """Measure two launches, interleaved as in a run, or one after the other as in two runs."""
    if interleaved:
        measured = measure(clock, {"base": base_launch, "new": new_launch}, options, now_s=now_s)
        return Pair(measured["base"], measured["new"])
    return Pair(
        *(measure(clock, {"only": launch}, options, now_s=now_s)["only"] for launch in (base_launch, new_launch))
    )


def verdicts(
    pairs: Sequence[Pair],
    options: TimingOptions,
    environment: Environment,
    samples: int | None = None,
    threshold: float | None = None,
) -> list[Change]:
    """Return the verdict of `opbench compare` on each pair, from its first `samples` samples or from all (None)."""
    runs = []
    for side in ("base", "new"):
        measured: list[Measurement] = [getattr(pair, side) for pair in pairs]
        results = [_result(pair_index, measurement, samples) for pair_index, measurement in enumerate(measured)]
        header = RunHeader(backend="cuda", environment=environment, timing=RecordedTiming(**asdict(options)))
        runs.append(Run(Path(side), header, results))
    comparison = compare_runs(runs[0], runs[1], threshold)
    return [case.change for case in comparison.cases]


def _result(pair_number: int, measurement: Measurement, samples: int | None) -> Result:
    first_samples = replace(
        measurement,
        samples_s=measurement.samples_s[:samples],
        clocks_hz=measurement.clocks_hz[:samples],
        processes=measurement.processes[:samples],
    )
    return Result(
        case=f"pair {pair_number}",
        operator="selftest",
        variant="pair",
        config={},
        problem="",
        axes={},
        precision="f32",
        backend="cuda",
        status="right",
        measurement=first_samples,
    )


def share_text(count: int, total: int) -> str:
    """Format a share with its exact 95 % interval, such as "2.5 % (0.1–13 %)"."""
    low, high = stats.share_interval(count, total)
    return f"{units.percent(count / total)} ({units.percent(low).removesuffix(' %')}–{units.percent(high)})"


def has_time_left(deadline_s: float, now_s: SecondsClock, pairs_done: int) -> bool:
    """Return whether to measure another round of pairs."""
    return pairs_done < MIN_PAIRS or (pairs_done < MAX_PAIRS and now_s() < deadline_s)


# A/A --------------------------------------------------------------------------------------------------------------


def measure_identical_pairs(device: SelftestDevice, budget_s: float, now_s: SecondsClock = time.perf_counter) -> Part:
    """Measure pairs of the same launch: every difference that is called one is false."""
    part = Part("aa", "The same kernel twice")
    clock, options = device.clock(), TimingOptions()
    rate, size = cycles_per_second(clock), min(32 << 20, l2_bytes(device))
    kernels: dict[str, Launch] = {
        "computes 10 µs": clock.cycles(int(10e-6 * rate)),
        "computes 100 µs": clock.cycles(int(LENGTH_S * rate)),
        f"reads {size_text(size)}": untouched(device).read(size),
    }
    names, deadline = list(kernels), now_s() + budget_s
    measured: dict[tuple[str, bool], list[Pair]] = {
        (name, together): [] for name in names for together in (True, False)
    }
    rounds = 0
    while has_time_left(deadline, now_s, rounds * len(names)):
        for (name, together), measured_pairs in measured.items():
            seeded = replace(options, seed=rounds)
            measured_pairs.append(measure_pair(clock, kernels[name], kernels[name], seeded, now_s, together))
        rounds += 1
    environment = device.environment()
    rows: list[tuple[str, ...]] = []
    for together, label in zip((True, False), ORDERS, strict=True):
        for threshold, rule in RULES:
            tallies = {
                name: VerdictCounts.of(verdicts(measured[name, together], options, environment, threshold=threshold))
                for name in names
            }
            total = VerdictCounts(
                *(sum(getattr(t, key) for t in tallies.values()) for key in VerdictCounts.__annotations__)
            )
            rows += [
                _identical_pair_row(name, label, rule, counts) for name, counts in (*tallies.items(), ("all", total))
            ]
            part.figures[identical_pair_key(label, rule)] = {
                name: asdict(t) for name, t in (*tallies.items(), ("all", total))
            }
            if together and threshold is None:
                share = total.different / total.pairs
                part.add_claim(
                    f"{total.pairs} pairs of one kernel with itself are rarely called different",
                    share_text(total.different, total.pairs),
                    f"at most {units.percent(FALSE_SHARE)}",
                    share <= FALSE_SHARE,
                )
    head = ("kernel", "measured", "judged", "pairs", "called different (95 % interval)", "undecided")
    part.add_table("One kernel as two candidates", head, rows)
    part.notes.append(
        "Interleaved is what a run does with its variants; one after the other is what two runs of one case are, so "
        "a drift of the GPU's clock shows there. The interval alone, without the threshold of opbench compare, "
        "tells whether a 95 % interval is one."
    )
    return part


def _identical_pair_row(name: str, label: str, rule: str, counts: VerdictCounts) -> tuple[str, ...]:
    # Without a threshold no interval lies within it, so all other pairs are undecided.
    undecided = str(counts.undecided) if rule == AS_COMPARE else "–"
    return (name, label, rule, str(counts.pairs), share_text(counts.different, counts.pairs), undecided)


# Slow-downs -------------------------------------------------------------------------------------------------------


def measure_slow_downs(device: SelftestDevice, budget_s: float, now_s: SecondsClock = time.perf_counter) -> Part:
    """Measure a kernel of 100 µs against itself with 1, 2 and 5 % more dependent cycles."""
    part = Part("slowdown", "Known slow-downs")
    clock, options = device.clock(), TimingOptions()
    count = int(LENGTH_S * cycles_per_second(clock))
    base = clock.cycles(count)
    fixed = replace(options, min_samples=SAMPLE_BUDGETS[-1], max_samples=SAMPLE_BUDGETS[-1], target=-1.0, budget_s=60.0)
    default: dict[float, list[Pair]] = {slow: [] for slow in SLOW_DOWNS}
    budgeted: dict[float, list[Pair]] = {slow: [] for slow in SLOW_DOWNS}
    deadline, rounds = now_s() + budget_s, 0
    while has_time_left(deadline, now_s, rounds):
        for slow in SLOW_DOWNS:
            slower_launch = clock.cycles(round(count * (1 + slow)))
            default[slow].append(measure_pair(clock, base, slower_launch, replace(options, seed=rounds), now_s))
            budgeted[slow].append(measure_pair(clock, base, slower_launch, replace(fixed, seed=rounds), now_s))
        rounds += 1
    environment = device.environment()
    rows = []
    for slow in SLOW_DOWNS:
        for samples in (None, *SAMPLE_BUDGETS):
            pairs = budgeted[slow] if samples else default[slow]
            default_counts, sharp = (
                VerdictCounts.of(verdicts(pairs, options, environment, samples, threshold))
                for threshold in (None, SHARP)
            )
            rows.append(_slow_row(slow, samples, pairs, default_counts, sharp))
            key = f"{slow:g}, {samples or 'default'} samples"
            part.figures[key] = {
                "slow_down": slow,
                "samples": samples,
                "usual": asdict(default_counts),
                "sharp": asdict(sharp),
            }
            if slow == CLAIMED_SLOW_DOWN and samples is None:
                part.add_claim(
                    f"a slow-down of {units.percent(slow)} of a kernel of {units.time(LENGTH_S)} is seen",
                    share_text(default_counts.slower, default_counts.pairs),
                    f"at least {units.percent(DETECTED_SHARE)}",
                    default_counts.slower / default_counts.pairs >= DETECTED_SHARE,
                )
    headings = (
        "slow-down", "samples of each", "pairs", "called slower (95 % interval)", "undecided", "called faster",
        f"called slower with --threshold {100 * SHARP:g}",
    )  # fmt: skip
    part.add_table("More dependent cycles, interleaved", headings, rows)
    part.notes.append(
        "The threshold of opbench compare is three times the stop rule's target, 1.5 % by default: 1 % is below it and "
        "is to be called the same, or found with a smaller --threshold."
    )
    return part


def _slow_row(
    slow: float, samples: int | None, pairs: Sequence[Pair], default_counts: VerdictCounts, sharp: VerdictCounts
) -> tuple[str, ...]:
    sample_counts = [len(pair.new.samples_s) for pair in pairs]
    return (
        f"+{100 * slow:g} %",
        str(samples) if samples else f"{stats.median(sample_counts):g} (default rule)",
        str(default_counts.pairs),
        share_text(default_counts.slower, default_counts.pairs),
        str(default_counts.undecided),
        str(default_counts.faster),
        share_text(sharp.slower, sharp.pairs),
    )
