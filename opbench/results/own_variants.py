"""Compare the user's own variants in a run with each other, problem by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.backend.counts import Traffic
from opbench.insight.summary import TrafficSummary, summarise
from opbench.kernels.variant import print_config
from opbench.results.files import Run
from opbench.results.result import Result
from opbench.timing import stats


@dataclass(frozen=True)
class VariantComparison:
    """The comparison of two variants on one problem, each in its best config."""

    operator: str
    problem: str
    base: str
    """The variant and its config as printed, such as "tiled[TILE=16]"."""
    new: str
    time: stats.Ratio | None = None
    """Time of `new` divided by that of `base`, with its 95 % interval; None without times."""
    base_s: float | None = None
    new_s: float | None = None
    base_traffic: TrafficSummary | None = None
    new_traffic: TrafficSummary | None = None

    @property
    def traffic_ratio(self) -> float | None:
        """Return the traffic of `new` divided by that of `base`; None if traffic was not counted."""
        if self.base_traffic is None or self.new_traffic is None:
            return None
        return self.new_traffic.ratio_to(self.base_traffic)


def compare_own_variants(run: Run) -> list[VariantComparison]:
    """Compare the user's variants of each problem with the first right one."""
    own_names = set(run.header.own)
    problems: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in run.results:
        if f"{result.operator}/{result.variant}" in own_names and result.status == "right":
            variants = problems.setdefault((result.operator, result.problem), {})
            variants.setdefault(result.variant, []).append(result)
    comparisons = []
    for variants in problems.values():
        base_result, *other_results = [best_config(results, run.traffic) for results in variants.values()]
        comparisons += [
            compare_results(base_result, other_result, run.traffic, run.traffic) for other_result in other_results
        ]
    return comparisons


def best_config(results: Sequence[Result], traffic: Mapping[str, Traffic]) -> Result:
    """Return the fastest config of a variant; without times, the config with the least traffic."""
    timed = [result for result in results if result.samples_s]
    if timed:
        return min(timed, key=lambda result: stats.median(result.samples_s))
    counted = [(summary, result) for result in results if (summary := summary_of(result, traffic)) is not None]
    if not counted:
        return results[0]
    return min(counted, key=lambda pair: (pair[0].moved_bytes, pair[0].shared_wavefronts))[1]


def summary_of(result: Result, traffic: Mapping[str, Traffic]) -> TrafficSummary | None:
    """Return a summary of the traffic of a case; None if traffic was not counted."""
    counted = traffic.get(result.case)
    return summarise(counted) if counted is not None else None


def compare_results(
    base: Result, new: Result, base_traffic: Mapping[str, Traffic], new_traffic: Mapping[str, Traffic]
) -> VariantComparison:
    """Compare two results of one problem by time and by traffic, if both have them."""
    timed = bool(base.samples_s and new.samples_s) and min(*base.samples_s, *new.samples_s) > 0
    return VariantComparison(
        operator=new.operator,
        problem=new.problem,
        base=base.variant + print_config(base.config),
        new=new.variant + print_config(new.config),
        time=stats.median_ratio(new.samples_s, base.samples_s) if timed else None,
        base_s=stats.median(base.samples_s) if timed else None,
        new_s=stats.median(new.samples_s) if timed else None,
        base_traffic=summary_of(base, base_traffic),
        new_traffic=summary_of(new, new_traffic),
    )
