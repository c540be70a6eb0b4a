"""Compare two runs: which cases broke, which became slower, and which differences stay undecided.

A verdict is a statement on the 95 % interval of the ratio of the two medians (`stats.median_ratio`): FASTER or
SLOWER if all of it is beyond the threshold, SAME if all of it is within (equivalence by inclusion: Schuirmann,
Journal of Pharmacokinetics and Biopharmaceutics 15, 1987), else UNDECIDED. Time and cycles are both judged, as
in nvbench-compare-robust, so that a changed clock is no regression. If no run has times, the traffic that the
cpu backend counted is compared. A variant that only BASE has and one that only NEW has are compared with each
other if they are the only such variants of a problem.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from opbench import units
from opbench.errors import EXIT_BROKEN, EXIT_NOTHING, EXIT_OK, EXIT_SLOWER, EXIT_UNDECIDED, UsageError
from opbench.kernels.case import is_named
from opbench.kernels.variant import print_config
from opbench.paths import next_command
from opbench.records import JSON
from opbench.results.environments import Difference, differences
from opbench.results.files import Run
from opbench.results.own_variants import best_config, summary_of
from opbench.results.result import BAD_STATUSES, RecordedLaunch, Result
from opbench.timing import stats
from opbench.timing.measurement import TimingWarning

CONFIDENCE = 0.95
THRESHOLD = 0.01
"""Two runs of one build on one H200 a minute apart: 22 of 23 medians within 0.4 %, the last 0.8 % apart."""
THRESHOLD_OTHER_GPU = 0.03
"""The same code on two H200 GPUs: medians up to 2.9 % apart."""
TARGET_FACTOR = 3
"""Factor on the stop rule's target: two medians each known within ± the target cannot be called equal within less than
1.4 targets, and the drift between runs adds 0.8 %.
"""
TICK_FACTOR = 2
"""A median moves by whole ticks of the timer: 32 ns on an H200."""
CONTROLS, CONTROL_SHARE = 10, 0.9
"""With this number of cases of identical machine code, the difference that this share of them stays below is the noise.
"""

MORE_SAMPLES = "take more samples in both runs (--samples 1000)"


class NotComparable(UsageError):
    """Two runs cannot be compared, because their environments differ."""

    def __init__(self, base: Path, new: Path, differences: Sequence[Difference]) -> None:
        listed = "\n".join(f"  {difference}" for difference in differences)
        super().__init__(
            f"{base} and {new} were measured in unlike environments, so their times cannot be compared:\n{listed}\n"
            f"measure both alike, or compare all the same: {next_command('compare --force', base, new)}"
        )
        self.differences = tuple(differences)


class Change(enum.StrEnum):
    """How a case changed from one run to the other, the worst change first."""

    BROKEN = "BROKEN"
    SLOWER = "SLOWER"
    UNDECIDED = "UNDECIDED"
    MORE_TRAFFIC = "MORE TRAFFIC"
    """Right in both runs, without times, and with more bytes moved or more shared-memory wavefronts."""
    FASTER = "FASTER"
    FIXED = "FIXED"
    LESS_TRAFFIC = "LESS TRAFFIC"
    SAME = "SAME"
    RIGHT = "RIGHT"
    """Right in both runs, without comparable times, and with the same traffic as far as it is known."""


CHANGES = tuple(Change)


@dataclass(frozen=True)
class CaseComparison:
    """The comparison of one case that both runs have."""

    case: str
    change: Change
    reason: str
    """One line: the reason for the verdict."""
    base_s: float | None = None
    new_s: float | None = None
    time: stats.Ratio | None = None
    """Time of NEW divided by that of BASE; None if a run has no time."""
    cycles: stats.Ratio | None = None
    """Cycles of NEW divided by those of BASE; None if a run does not know its clock."""
    threshold: float | None = None
    machine_code: str = "unknown"
    """"identical", "changed" or "unknown"."""
    warnings: tuple[str, ...] = ()
    """Names of `opbench.timing.measurement.TimingWarning` from either run."""
    base_case: str = ""
    """The case of BASE if it is of another variant; empty if both runs have `case`."""
    traffic_ratio: float | None = None
    """Traffic of NEW divided by that of BASE, by `TrafficSummary.ratio_to`; None if not counted."""


class Exclusion(NamedTuple):
    """The reason why a case was not compared."""

    kind: str
    """The statuses in the two runs, such as "wrong in BASE, failed in NEW"."""
    reason: str
    """The statuses, each with its own reason."""


@dataclass(frozen=True)
class RunComparison:
    """The comparison of two runs."""

    base: str
    new: str
    cases: tuple[CaseComparison, ...]
    """The compared cases, the worst change first."""
    left_out: Mapping[str, Exclusion]
    """Cases that could not be compared, with the reason."""
    differences: tuple[Difference, ...]
    noise: float | None = None
    """The difference that most cases of identical machine code stay below; None for too few cases."""
    counts: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        counts = {str(change): sum(case.change is change for case in self.cases) for change in CHANGES}
        object.__setattr__(self, "counts", {name: count for name, count in counts.items() if count})

    @property
    def exit_code(self) -> int:
        """Return the exit code of `opbench compare`: for broken, slower, undecided or unchanged cases."""
        if not self.cases:
            return EXIT_NOTHING
        codes = {Change.BROKEN: EXIT_BROKEN, Change.SLOWER: EXIT_SLOWER, Change.UNDECIDED: EXIT_UNDECIDED}
        return codes.get(self.cases[0].change, EXIT_OK)

    def to_json(self) -> dict[str, JSON]:
        """Return the comparison as JSON data."""
        left_out = {case: exclusion.reason for case, exclusion in self.left_out.items()}
        method = {"confidence": CONFIDENCE, "method": stats.RATIO_METHOD, "exit_code": self.exit_code}
        return {**asdict(self), "left_out": left_out, **method}


def compare_runs(
    base: Run, new: Run, threshold: float | None = None, force: bool = False, cases: Sequence[str] = ()
) -> RunComparison:
    """Compare the cases of two runs: those that match the patterns in `cases`, or all.

    Raises UsageError for runs of different environments unless `force` is set, and for a pattern without a
    case.
    """
    if base.of_network != new.of_network:
        network, single_run = (base, new) if base.of_network else (new, base)
        raise UsageError(
            f"{network.folder} is a run of a network and {single_run.folder} is a run of single cases, and these runs "
            "have no case in common; name two runs of networks, or two runs of suites",
            kind="other-kind",
            subject=network.folder,
        )
    all_differences = differences(base, new)
    important = [difference for difference in all_differences if difference.matters]
    if important and not force:
        raise NotComparable(base.folder, new.folder, important)
    base_results, new_results = (
        {result.case: result for result in _matching_results(run, cases)} for run in (base, new)
    )
    for pattern in cases:
        if not any(is_named(case, pattern) for case in {**base_results, **new_results}):
            raise UsageError(
                f"--case '{pattern}': no case of {base.folder} or {new.folder} matches; list the cases with: "
                f"{next_command('best', new.folder)}",
                kind="no-match",
                subject="--case",
                value=pattern,
            )
    counterparts = {} if base.of_network else _counterparts(base, new, base_results, new_results)
    pairs, left_out = [], {}
    for case in dict.fromkeys([*base_results, *new_results]):
        if case in counterparts.values() and case not in base_results:
            continue
        base_result, new_result = base_results.get(case), new_results.get(counterparts.get(case, case))
        if exclusion := _exclusion(base_result, new_result):
            left_out[case] = exclusion
        elif base_result and new_result:
            pairs.append((base_result, new_result))
    noise = None if important else _noise(pairs)
    thresholds = _Thresholds(
        threshold, _lowest_threshold(base, new, all_differences, noise), max(clock_tick_s(base), clock_tick_s(new))
    )
    case_comparisons = [
        _compare(base_result_of_pair, single_run, thresholds, not important, (base, new))
        for base_result_of_pair, single_run in pairs
    ]
    case_comparisons.sort(
        key=lambda c: (CHANGES.index(c.change), -abs(math.log(c.time.value)) if c.time else 0.0, c.case)
    )
    return RunComparison(
        str(base.folder), str(new.folder), tuple(case_comparisons), left_out, tuple(all_differences), noise
    )


def _matching_results(run: Run, cases: Sequence[str]) -> list[Result]:
    return [r for r in run.results if not cases or any(is_named(r.case, pattern) for pattern in cases)]


def _counterparts(
    base: Run, new: Run, base_results: Mapping[str, Result], new_results: Mapping[str, Result]
) -> dict[str, str]:
    """Return pairs of a variant that only BASE has and one that only NEW has, in their best configs.

    Each run must have exactly one such variant of the problem.
    """

    def only_in(
        results: Mapping[str, Result], other_results: Mapping[str, Result]
    ) -> dict[tuple[str, str], list[Result]]:
        other_variants = {(r.operator, r.problem, r.variant) for r in other_results.values()}
        results_by_key: dict[tuple[str, str], list[Result]] = {}
        for result in results.values():
            if result.status == "right" and (result.operator, result.problem, result.variant) not in other_variants:
                results_by_key.setdefault((result.operator, result.problem), []).append(result)
        return {
            key: same_variant
            for key, same_variant in results_by_key.items()
            if len({r.variant for r in same_variant}) == 1
        }

    only_in_base, only_in_new = only_in(base_results, new_results), only_in(new_results, base_results)
    return {
        best_config(only_in_base[key], base.traffic).case: best_config(only_in_new[key], new.traffic).case
        for key in only_in_base.keys() & only_in_new.keys()
    }


# Pairs ------------------------------------------------------------------------------------------------------------


def _exclusion(base: Result | None, new: Result | None) -> Exclusion | None:
    """Return why two results of a case cannot be compared; None if they can."""
    if base is None or new is None:
        side, present_result = ("NEW", new) if base is None else ("BASE", base)
        assert present_result is not None
        kind = f"only in {side}"
        if present_result.status == "right":
            return Exclusion(kind, kind)
        return Exclusion(
            f"{kind}, where it is {present_result.status}", f"{kind}, where it is {_status(present_result)}"
        )
    compared_statuses = ("right", *BAD_STATUSES)
    if (
        base.status not in compared_statuses
        or new.status not in compared_statuses
        or base.status != "right" != new.status
    ):
        return Exclusion(
            f"{base.status} in BASE, {new.status} in NEW", f"{_status(base)} in BASE, {_status(new)} in NEW"
        )
    return None


def _status(result: Result) -> str:
    reason_lines = result.reason.strip().splitlines()
    return result.status + (f" ({reason_lines[0]})" if reason_lines else "")


def machine_code(base: Result, new: Result) -> str:
    """Return "identical" if instructions, resources and launches are equal, else "changed" or "unknown"."""
    if not base.machine_code_sha256 or not new.machine_code_sha256:
        return "unknown"
    launches = [_launches_without_arguments(result) for result in (base, new)]
    is_same = base.machine_code_sha256 == new.machine_code_sha256 and launches[0] == launches[1]
    return "identical" if is_same else "changed"


def _launches_without_arguments(result: Result) -> list[RecordedLaunch]:
    """Return the launches of a result without their arguments, which older results lack."""
    return [replace(launch, args=None) for launch in result.verdict.launches] if result.verdict else []


def _compare(
    base: Result, new: Result, thresholds: _Thresholds, same_environment: bool, runs: tuple[Run, Run]
) -> CaseComparison:
    comparison = _compare_times(base, new, thresholds, same_environment)
    if comparison.change is Change.RIGHT:
        comparison = _compare_traffic(base, new, runs, comparison)
    return replace(comparison, base_case=base.case) if base.case != new.case else comparison


def _compare_traffic(base: Result, new: Result, runs: tuple[Run, Run], untimed: CaseComparison) -> CaseComparison:
    """Compare two right cases that have no times by the traffic that the cpu backend counted."""
    base_summary, new_summary = summary_of(base, runs[0].traffic), summary_of(new, runs[1].traffic)
    ratio = new_summary.ratio_to(base_summary) if base_summary and new_summary else None
    if base_summary is None or new_summary is None or ratio is None:
        return untimed
    change = Change.RIGHT if ratio == 1 else Change.LESS_TRAFFIC if ratio < 1 else Change.MORE_TRAFFIC
    reason = _variant_names(base, new) + "; ".join(new_summary.differences(base_summary))
    return replace(untimed, change=change, reason=f"no times; {reason}", traffic_ratio=ratio)


def _compare_times(base: Result, new: Result, thresholds: _Thresholds, same_environment: bool) -> CaseComparison:
    code = machine_code(base, new)
    if new.status != "right":
        return CaseComparison(new.case, Change.BROKEN, _status(new), machine_code=code)
    if base.status != "right":
        return CaseComparison(new.case, Change.FIXED, f"was {_status(base)}", machine_code=code)
    base_samples_s, new_samples_s = base.samples_s, new.samples_s
    sides_without_samples = [
        side for side, result in (("BASE", base), ("NEW", new)) if result.measurement and not result.samples_s
    ]
    if sides_without_samples and base.measurement and new.measurement:
        times = base.measurement.median_s, new.measurement.median_s
        reason = f"no interval: {' and '.join(sides_without_samples)} kept no samples of nodes; run the network again"
        return CaseComparison(new.case, Change.UNDECIDED, _variant_names(base, new) + reason, *times, machine_code=code)
    if not base_samples_s or not new_samples_s:
        return CaseComparison(new.case, Change.RIGHT, _variant_names(base, new) + "no times", machine_code=code)
    if min(*base_samples_s, *new_samples_s) <= 0:
        return CaseComparison(new.case, Change.UNDECIDED, "a sample is no time: it is not above 0", machine_code=code)
    time = stats.median_ratio(new_samples_s, base_samples_s, CONFIDENCE)
    base_cycles, new_cycles = base.cycles, new.cycles
    has_cycles = bool(base_cycles and new_cycles)
    cycles = stats.median_ratio(new_cycles, base_cycles, CONFIDENCE) if has_cycles else None
    threshold = thresholds.for_median(stats.median(base_samples_s))
    timers = [result.measurement.timer if result.measurement else "" for result in (base, new)]
    if timers[0] != timers[1]:
        change, reason = Change.UNDECIDED, f"timed in two ways: {timers[0]} against {timers[1]}"
    elif same_environment and code == "identical":
        change, reason = Change.SAME, "identical machine code"
        if verdict_on_interval(time, threshold) in (Change.FASTER, Change.SLOWER):
            reason += f"; the {percent_change(time.value)} is the machine's"
    else:
        change, reason = verdict_on_time(time, cycles, threshold, min(len(base_samples_s), len(new_samples_s)))
        reason = _variant_names(base, new) + reason
    return CaseComparison(
        case=new.case,
        change=change,
        reason=reason,
        base_s=stats.median(base_samples_s),
        new_s=stats.median(new_samples_s),
        time=time,
        cycles=cycles,
        threshold=threshold,
        machine_code=code,
        warnings=_warnings(base, new),
    )


def _variant_names(base: Result, new: Result) -> str:
    """Return the names of the two variants if they differ, as they can for a network's node."""
    base_name, other_name = (result.variant + print_config(result.config) for result in (base, new))
    return f"{base_name} → {other_name}: " if base_name != other_name else ""


def _warnings(base: Result, new: Result) -> tuple[str, ...]:
    warnings = [warning for result in (base, new) if result.measurement for warning in result.measurement.warnings]
    return tuple(str(warning) for warning in dict.fromkeys(warnings) if warning is not TimingWarning.TOO_SHORT)


# Verdicts ---------------------------------------------------------------------------------------------------------


def verdict_on_interval(ratio: stats.Ratio, threshold: float) -> Change:
    """Return the verdict for the interval of a ratio: faster, slower, the same or undecided."""
    if ratio.coverage < CONFIDENCE:
        return Change.UNDECIDED
    if ratio.low > 1 + threshold:
        return Change.SLOWER
    if ratio.high < 1 / (1 + threshold):
        return Change.FASTER
    within = 1 / (1 + threshold) <= ratio.low and ratio.high <= 1 + threshold
    return Change.SAME if within else Change.UNDECIDED


def verdict_on_time(
    time: stats.Ratio, cycles: stats.Ratio | None, threshold: float, sample_count: int
) -> tuple[Change, str]:
    """Return the verdict on a time, and the reason; the verdict is undecided if cycles contradict it."""
    change = verdict_on_interval(time, threshold)
    interval = f"{percent_change(time.low)} to {percent_change(time.high)}"
    if time.coverage < CONFIDENCE:
        return Change.UNDECIDED, f"{sample_count} samples are too few for a 95 % interval; {MORE_SAMPLES}"
    if change is Change.UNDECIDED:
        return change, f"{interval} reaches across the threshold of {units.percent(threshold)}; {MORE_SAMPLES}"
    if cycles is None:
        return change, f"{interval}; the clock is not known"
    cycles_change = verdict_on_interval(cycles, threshold)
    if cycles_change is change or (change is Change.SAME and cycles_change is Change.UNDECIDED):
        return change, interval
    cycles_interval = f"{percent_change(cycles.low)} to {percent_change(cycles.high)} in cycles"
    return (
        Change.UNDECIDED,
        f"{interval} in time, but {cycles_interval}: the GPU's clock differs; lock it (nvidia-smi -lgc)",
    )


def percent_change(ratio: float) -> str:
    """Format a ratio as a change in percent, such as "+1.3 %"."""
    text = f"{100 * (ratio - 1):+.1f} %"
    return text.replace("-", "−").replace("−0.0 %", "±0.0 %").replace("+0.0 %", "±0.0 %")


# Thresholds -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Thresholds:
    """The thresholds below which a difference is irrelevant or may be noise."""

    chosen: float | None
    floor: float
    tick_s: float

    def for_median(self, median_s: float) -> float:
        return self.chosen if self.chosen is not None else max(self.floor, TICK_FACTOR * self.tick_s / median_s)


def _lowest_threshold(base: Run, new: Run, differences: Iterable[Difference], noise: float | None) -> float:
    """Return the lowest threshold for all cases: the smallest difference that can be seen between two runs."""
    targets = [run.header.timing.target or 0.0 for run in (base, new)]
    other_gpu = any(difference.key == "uuid" for difference in differences)
    return max(THRESHOLD_OTHER_GPU if other_gpu else THRESHOLD, TARGET_FACTOR * max(targets), noise or 0.0)


def _noise(pairs: Sequence[tuple[Result, Result]]) -> float | None:
    """Return the noise of the measurement: most pairs of identical machine code differ by less."""
    controls = [(base.samples_s, other.samples_s) for base, other in pairs if machine_code(base, other) == "identical"]
    log_ratios = [abs(math.log(stats.median(a) / stats.median(b))) for a, b in controls if a and b]
    return math.expm1(stats.quantile(log_ratios, CONTROL_SHARE)) if len(log_ratios) >= CONTROLS else None


def clock_tick_s(run: Run) -> float:
    """Return the smallest step between two samples of any case, in seconds; 0 without samples."""
    steps = []
    for result in run.results:
        ordered = sorted(set(result.samples_s))
        # Times of events are float32 milliseconds, so readings that differ by less than 1 ns are equal.
        steps += [b - a for a, b in itertools.pairwise(ordered) if b - a > 1e-9]
    return min(steps, default=0.0)
