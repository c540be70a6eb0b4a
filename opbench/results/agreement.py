"""Compare the memory traffic that the cpu backend predicts with the counters that a GPU measured."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opbench.backend.counts import Traffic
from opbench.errors import UsageError
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.levels import Levels, levels
from opbench.insight.lowering import Code, Note, lower_traffic
from opbench.paths import next_command
from opbench.records import JSON
from opbench.results.files import Run

NEAR_ERROR = 0.05
CLOSE_ERROR = 0.15
"""Largest error of a cache model, as a share of the measurement."""
VERDICTS = ("equal", "within 5 %", "within 15 %", "outside")
GROUPS = ("global", "shared", "caches")


@dataclass(frozen=True)
class Quantity:
    """A quantity that is predicted and measured: the name of the hardware counter, and the field of the traffic."""

    counter: str
    count: str
    upper: str
    """The upper bound of the count; empty if there is none."""
    space: str
    kind: str
    present: str
    """The name of a count that is above 0 only if the case has the accesses that this quantity counts."""


QUANTITIES = tuple(
    Quantity(name, count, upper, name.partition("_")[0].replace("bank", "shared"), kind, present)
    for kind in ("load", "store")
    for name, count, upper, present in (
        (f"global_{kind}_requests", "requests", "upper_requests", "requests"),
        (f"global_{kind}_sectors", "sectors", "upper_sectors", "requests"),
        (f"shared_{kind}_wavefronts", "wavefronts", "upper_wavefronts", "requests"),
        (f"bank_conflicts_{kind}", "conflicts", "", "requests"),
    )
)


@dataclass(frozen=True)
class CountComparison:
    """One quantity of one case, as predicted and as measured."""

    case: str
    quantity: str
    group: str
    """One of `GROUPS`."""
    counted: int
    """The count of the source; for bytes at L2 and DRAM, which are not counted, the prediction."""
    predicted: int
    """The count corrected by the machine code, or the count itself if the machine code is unknown."""
    upper: int | None
    """The upper bound, if reconvergence depends on the device compiler; else None."""
    measured: float
    held_out: bool
    reasons: tuple[str, ...] = ()
    """Explanations, from the data, of a difference between the count and the measurement."""

    @property
    def error(self) -> float:
        """Return the error of the prediction relative to the measurement; infinite if the measurement is 0."""
        if self.predicted == self.measured:
            return 0.0
        return abs(self.predicted - self.measured) / self.measured if self.measured else float("inf")

    @property
    def verdict(self) -> str:
        """Return how well the prediction agrees with the counter, as one of `VERDICTS`."""
        return VERDICTS[
            0 if self.error == 0 else 1 if self.error <= NEAR_ERROR else 2 if self.error <= CLOSE_ERROR else 3
        ]

    @property
    def equal_as_counted(self) -> bool:
        """Return whether the plain count, without corrections of the model, equals the counter."""
        return self.counted == self.measured

    @property
    def bounded(self) -> bool:
        """Return whether the counter is between the lower and the upper bound of the prediction."""
        return self.predicted <= self.measured <= (self.predicted if self.upper is None else self.upper)


@dataclass(frozen=True)
class Summary:
    """The number of comparisons with each outcome."""

    name: str
    total: int
    counted: int
    """Comparisons in which the plain count of the source equals the counter."""
    equal: int
    """Comparisons in which the count, corrected by the machine code, equals the counter."""
    near: int
    """Comparisons within 5 % of the counter, but not equal."""
    close: int
    """Comparisons within 15 % of the counter, but not within 5 %."""
    bounded: int
    """Comparisons in which the counter is between the lower and the upper bound, including equal ones."""
    cases: int
    cases_equal: int
    """Cases in which every compared quantity equals the counter."""


@dataclass(frozen=True)
class Agreement:
    """The comparisons of two runs, and the cases that could not be compared, with the reason."""

    comparisons: tuple[CountComparison, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def summaries(self) -> list[Summary]:
        """Return a summary of each group: the cases that the model was tuned on, and the others."""
        summaries = []
        for group in GROUPS:
            for held_out, label in ((False, "model set"), (True, "test set")):
                group_comparisons = [c for c in self.comparisons if c.group == group and c.held_out == held_out]
                summaries.append(summarise(f"{group}, {label}", group_comparisons))
        return summaries

    def to_json(self) -> dict[str, JSON]:
        """Return the agreement as JSON data."""
        return {
            "summaries": [vars(summary) for summary in self.summaries()],
            "comparisons": [
                {**vars(c), "verdict": c.verdict, "bounded": c.bounded, "equal_as_counted": c.equal_as_counted}
                for c in self.comparisons
            ],
            "left_out": dict(self.left_out),
        }


def is_in_test_set(case: str) -> bool:
    """Return whether a case belongs to the test set, on which the model is not tuned; its name decides."""
    return int(hashlib.sha256(case.encode()).hexdigest()[:8], 16) % 3 == 0


def quantity_summaries(comparisons: Sequence[CountComparison]) -> list[Summary]:
    """Return one summary of all cases for each quantity."""
    names = dict.fromkeys(c.quantity for c in comparisons)
    return [summarise(name, [c for c in comparisons if c.quantity == name]) for name in names]


def summarise(name: str, comparisons: Sequence[CountComparison]) -> Summary:
    """Count the comparisons by outcome."""
    cases: dict[str, bool] = {}
    for c in comparisons:
        cases[c.case] = cases.get(c.case, True) and c.verdict == "equal"
    return Summary(
        name=name,
        total=len(comparisons),
        counted=sum(c.equal_as_counted for c in comparisons),
        equal=sum(c.verdict == "equal" for c in comparisons),
        near=sum(c.verdict == VERDICTS[1] for c in comparisons),
        close=sum(c.verdict == VERDICTS[2] for c in comparisons),
        bounded=sum(c.bounded for c in comparisons),
        cases=len(cases),
        cases_equal=sum(cases.values()),
    )


def compare_runs(cpu: Run, gpu: Run) -> Agreement:
    """Compare the traffic of a cpu run with the counters of a GPU run, case by case.

    Raises UsageError if a run has none, or if the two runs share no case.
    """
    if not cpu.traffic:
        raise UsageError(
            f"{cpu.folder}: this run of the cpu backend has no memory traffic; count the traffic of a case with: "
            f"{next_command('explain', 'CASE', run=cpu.folder)}",
            kind="no-traffic",
            subject=cpu.folder,
        )
    if not gpu.counters:
        collect = next_command("profile", "CASE", run=gpu.folder)
        raise UsageError(
            f"{gpu.folder}: this run has no hardware counters; collect the counters of a case with: {collect}",
            kind="no-counters",
            subject=gpu.folder,
        )
    comparisons: list[CountComparison] = []
    left_out: dict[str, str] = {}
    resources = {result.case: result.resources for result in cpu.results}
    names = dict.fromkeys([*cpu.traffic, *gpu.counters])
    for case in names:
        reason = _exclusion_reason(cpu.traffic.get(case), gpu.counters.get(case))
        if reason:
            left_out[case] = reason
        else:
            traffic, counters, compiled = cpu.traffic[case], gpu.counters[case], resources.get(case, {})
            comparisons += compare_case(case, traffic, counters, _machine_code(compiled))
            comparisons += compare_caches(case, levels(traffic, compiled), counters)
    if len(left_out) == len(names) and not cpu.traffic.keys() & gpu.counters.keys():
        raise UsageError(
            f"{cpu.folder} and {gpu.folder} have no case in common; run the same suite on both backends: "
            "opbench run SUITE --backend cpu, and on a GPU: opbench run SUITE --backend cuda",
            kind="no-shared-case",
            subject=cpu.folder,
            value=gpu.folder,
        )
    return Agreement(tuple(comparisons), left_out)


def _exclusion_reason(traffic: Traffic | None, counters: Mapping[str, object] | None) -> str:
    if traffic is None:
        return "no traffic in the cpu run"
    if counters is None:
        return "no counters in the GPU run"
    if not traffic.complete:
        return "a launch was abandoned on the cpu"
    blocks = _launched_blocks(counters)
    counted_blocks = sum(kernel.blocks for kernel in traffic.kernels)
    if blocks is not None and blocks != counted_blocks:
        difference = f"{counted_blocks} blocks on the cpu, {blocks} on the GPU"
        return f"launched differently: {difference} (a grid sized by multiprocessors)"
    return ""


def _launched_blocks(counters: Mapping[str, Any]) -> int | None:
    """Return the number of blocks in all launches that the profiler recorded; None if it does not report blocks."""
    total = 0
    for kernel in counters.get("kernels") or ():
        sizes = [int(size) for size in re.findall(r"\d+", str(kernel.get("grid", "")))]
        if not sizes:
            return None
        total += math.prod(sizes)
    return total or None


def _machine_code(resources: Mapping[str, LaunchResources]) -> Code:
    """Return the machine code of a case's kernels by name; kernels without recorded machine code are missing."""
    return {kernel: resource.sass for kernel, resource in resources.items() if resource.sass}


def compare_case(
    case: str, traffic: Traffic, counters: Mapping[str, object], code: Code | None = None
) -> list[CountComparison]:
    """Compare all quantities of a case that the cpu run and the GPU run have.

    Quantities that are zero in both are skipped: they prove nothing.
    """
    estimated = traffic.scaled_to_all_blocks()
    lowered = lower_traffic(estimated, code or {})
    comparisons = []
    for quantity in QUANTITIES:
        measured = counters.get(quantity.counter)
        if not isinstance(measured, (int, float)) or isinstance(measured, bool):
            continue
        selection = {"space": quantity.space, "kind": quantity.kind}
        if not measured and not estimated.total(quantity.present, **selection):
            continue
        counted = estimated.total(quantity.count, **selection)
        predicted = lowered.traffic.total(quantity.count, **selection)
        upper = lowered.traffic.total(quantity.upper, **selection) if quantity.upper else None
        reasons = _possible_reasons(quantity, lowered.notes) if counted != measured else ()
        if predicted != measured:
            reasons += _conflict_explanation(quantity, predicted, measured, lowered.traffic, counters)
        comparisons.append(
            CountComparison(
                case=case,
                quantity=quantity.counter,
                group=quantity.space,
                counted=counted,
                predicted=predicted,
                # Bounds that a trace did not give are 0; the count itself is then the only bound.
                upper=max(predicted, upper) if upper is not None else None,
                measured=float(measured),
                held_out=is_in_test_set(case),
                reasons=reasons,
            )
        )
    return comparisons


def compare_caches(case: str, levels_on_cpu: Levels | None, counters: Mapping[str, object]) -> list[CountComparison]:
    """Compare the predicted bytes at L2 and DRAM with the counters; profilers empty the caches before each launch."""
    if levels_on_cpu is None or counters.get("cache") != "cold":
        return []
    return [
        CountComparison(case, counter, "caches", expected, expected, None, float(measured), is_in_test_set(case))
        for counter, expected in (
            ("l2_bytes", levels_on_cpu.l2_bytes),
            ("dram_bytes", levels_on_cpu.profiled_dram_bytes),
        )
        if isinstance(measured := counters.get(counter), (int, float)) and measured
    ]


def _possible_reasons(quantity: Quantity, notes: Sequence[Note]) -> tuple[str, ...]:
    """Return possible reasons for a difference: how the machine code accesses memory, and effects without a model."""
    matching = [note for note in notes if (note.space, note.kind) == (quantity.space, quantity.kind)]
    return tuple(note.text if note.applied else f"{note.text} (not predicted)" for note in matching)


def _conflict_explanation(
    quantity: Quantity, predicted: int, measured: float, traffic: Traffic, counters: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return an explanation if the counter reports more bank conflicts than the addresses explain."""
    if quantity.space != "shared":
        return ()
    wavefronts = traffic.total("wavefronts", space="shared", kind=quantity.kind)
    conflicts = traffic.total("conflicts", space="shared", kind=quantity.kind)
    extra_wavefronts = (counters.get(f"shared_{quantity.kind}_wavefronts") or 0) - wavefronts
    extra_conflicts = (counters.get(f"bank_conflicts_{quantity.kind}") or 0) - conflicts
    if extra_wavefronts <= 0 or extra_wavefronts != extra_conflicts:
        return ()
    return (f"{extra_wavefronts:.0f} wavefronts are conflicts to the counter, though no two lanes' addresses conflict",)


def corrected_comparisons(comparisons: Iterable[CountComparison]) -> list[CountComparison]:
    """Return, by case, the comparisons in which the machine code corrected the count."""
    return sorted((c for c in comparisons if c.counted != c.predicted), key=lambda c: (c.case, c.quantity))


def inexact_comparisons(comparisons: Iterable[CountComparison]) -> list[CountComparison]:
    """Return the comparisons with an error, the largest error first."""
    key: Callable[[CountComparison], tuple[float, str, str]] = lambda c: (-c.error, c.case, c.quantity)  # noqa: E731
    return sorted((c for c in comparisons if c.verdict != "equal"), key=key)


def reasons_with_cases(comparisons: Iterable[CountComparison]) -> dict[str, list[str]]:
    """Return each reason for a difference with the cases to which it applies."""
    cases_by_reason: dict[str, list[str]] = {}
    for c in comparisons:
        for reason in c.reasons:
            cases = cases_by_reason.setdefault(f"{c.quantity}: {reason}", [])
            cases += [c.case]
    return cases_by_reason
