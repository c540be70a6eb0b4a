"""Advice on cases: their facts from results and from counts of a small problem, and the advice as a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from opbench.backend.counts import Traffic
from opbench.gpu.limits.ceilings import Peaks, bound_and_limit
from opbench.gpu.limits.resources import LaunchResources
from opbench.insight.advice import NEAR_FRACTION, UNKNOWN_GAIN, Advice, advise, advise_lines
from opbench.insight.diagnosis import Diagnosis, diagnose
from opbench.insight.facts import PRODUCT_FLOPS_PER_BYTE, Facts, facts_of
from opbench.insight.gains import KernelKind
from opbench.insight.levels import Levels, bounds, l1_bytes, levels
from opbench.insight.subject import Subject
from opbench.kernels.case import Case
from opbench.records import JSON
from opbench.results.result import Result


@dataclass(frozen=True)
class CaseAdvice:
    """The advice on one case, the strongest first, with the time and lower bound on which it is based."""

    case: str
    operator: str
    problem: str
    time_s: float
    bound_s: float
    """The lower bound of the problem, of which `time_s` is a multiple."""
    advice: tuple[Advice, ...] = ()
    counted_case: str = ""
    """The small case whose accesses were counted."""
    reason: str = ""
    """Why there is no advice."""
    left_out: str = ""
    """Which evidence is missing, and the reason, such as machine code without NVRTC; empty if none is."""
    modelled: bool = False
    """Whether `time_s` is the least time by the counted traffic, because no time was measured."""

    @property
    def share_of_bound(self) -> float:
        """Return the lower bound divided by the time; 0 if one is not known."""
        return self.bound_s / self.time_s if self.time_s else 0.0

    @property
    def is_near_bound(self) -> bool:
        """Return whether the case is so near its lower bound that no advice is given."""
        return self.share_of_bound > NEAR_FRACTION and not self.modelled

    @property
    def has_gains(self) -> bool:
        """Return whether gains can be estimated: the time must be known and above the lower bound."""
        return 0.0 < self.share_of_bound < NEAR_FRACTION

    def gain_text(self, advice: Advice) -> str:
        """Return the expected gain of one piece of advice as text; a fixed text if the gain cannot be estimated."""
        return advice.gain_text if self.has_gains else UNKNOWN_GAIN

    def sentences(self, most: int) -> list[str]:
        """Return at most `most` pieces of advice as sentences."""
        return [advice.sentence(self.has_gains) for advice in self.advice[:most]]

    def to_json(self) -> dict[str, JSON]:
        """Return the case and its advice as JSON values; times in seconds."""
        fields = asdict(self)
        fields["advice"] = [
            {**asdict(advice), "gain": advice.gain._asdict(), "action": advice.action} for advice in self.advice
        ]
        return fields


def advise_counted(
    case: Case,
    traffic: Traffic,
    resources: Mapping[str, LaunchResources],
    peaks: Peaks | None,
    subject: Subject,
    sources: Mapping[str, str],
    missing: str = "",
) -> CaseAdvice:
    """Return advice on a case whose accesses were counted and whose time was not measured.

    Its distance from the lower bound is modelled from its traffic, with `peaks`. Without machine code in `resources`,
    for the reason `missing`, only the problems of lines are known.
    """
    modelled = modelled_time(case, peaks, traffic, resources) if peaks else None
    advised = CaseAdvice(
        case.name, case.variant.operator, str(case.problem), *(modelled or (0.0, 0.0)), counted_case=case.name,
        modelled=True,
    )  # fmt: skip
    problems = diagnose(subject, traffic.scaled_to_all_blocks(), sources)
    used = case.variant.mechanism
    distance = modelled[0] / modelled[1] if modelled else 1.0
    facts = counted_facts(case, distance, traffic, resources)
    if facts is not None and modelled and peaks:
        limits = peaks.at_level(case.problem.bandwidth())
        unit = tensor_unit(case.problem.axes, case.unit)
        on_tensor_cores = bound_and_limit(limits, case.problem.flops(), case.problem.bytes(), unit)
        over_tensor = modelled[0] / on_tensor_cores[0] if on_tensor_cores else 0.0
        facts = replace(facts, over_tensor_bound=over_tensor, bound_s=modelled[1])
    if facts is None:
        return add_line_advice(advised, case, problems, distance, missing)
    advice = advise(facts, problems, used, subject.remedies, min_over_bound=0.0)
    advice = [replace(one, source="modelled") if one.source == "measured" else one for one in advice]
    return replace(advised, advice=tuple(advice), reason="" if advice else NO_RULE)


def advise_measured(
    advised: CaseAdvice,
    result: Result,
    peaks: Peaks | None,
    counted: Case,
    traffic: Traffic,
    resources: Mapping[str, LaunchResources],
    subject: Subject,
    sources: Mapping[str, str],
    missing: str = "",
    counters: Mapping[str, Any] = MappingProxyType({}),
) -> CaseAdvice:
    """Return `advised` with the advice on a measured case, whose accesses were counted at a small problem.

    `counted` is the case at that problem, with its `traffic` and its `resources` by kernel. Without machine code in
    these, for the reason `missing`, only the problems of lines are known. `counters` are those of the measured case.
    """
    problems = diagnose(subject, traffic.scaled_to_all_blocks(), sources)
    if not any(used.sass for used in resources.values()):
        return add_line_advice(advised, counted, problems, over_bound(result, peaks) or 1.0, missing)
    facts = measured_facts(result, peaks, traffic, counted.problem.bytes(), resources, counters)
    if facts is None:
        return replace(advised, reason="the run does not hold its launch")
    advice = advise(facts, problems, counted.variant.mechanism, subject.remedies)
    return replace(advised, advice=tuple(advice), counted_case=counted.name, reason="" if advice else NO_RULE)


def add_line_advice(
    advised: CaseAdvice, case: Case, problems: Sequence[Diagnosis], distance: float, missing: str
) -> CaseAdvice:
    """Add the advice that the counted lines of a case allow, where its machine code is not known for a reason."""
    product = case.problem.flops() > PRODUCT_FLOPS_PER_BYTE * case.problem.bytes()
    kind: KernelKind = "product" if product else "stream"
    advice = advise_lines(problems, distance, case.variant.mechanism, kind, advised.bound_s)
    without_code = f"its machine code is not known: {missing or 'nothing was compiled'}"
    if not advice:
        return replace(advised, reason=without_code)
    return replace(advised, advice=tuple(advice), counted_case=case.name, left_out=without_code)


DOUBLE_DTYPE = "f64"
TENSOR_UNITS = {"f32": "tf32", "bf16": "bf16", "f16": "bf16"}
NO_RULE = "no rule knows what limits it"
NEAR_BOUND = "within 10 % of its lower bound, so little is left to gain"


def over_bound(measured: Result, peaks: Peaks | None) -> float | None:
    """Return the time of a case divided by the lower bound of its problem; None if one is not known.

    The lower bound includes an empty launch.
    """
    if measured.measurement is None or peaks is None:
        return None
    limits = peaks.at_level(measured.memory_level)
    bound = bound_and_limit(limits, measured.flops, measured.compulsory_bytes, measured.unit or measured.precision)
    if bound is None:
        return None
    least = max(bound[0], peaks.launch_floor_s or 0.0)
    return measured.measurement.median_s / least if least else None


def measured_facts(
    result: Result,
    peaks: Peaks | None,
    traffic: Traffic,
    counted_bytes: int,
    counted_resources: Mapping[str, LaunchResources],
    counters: Mapping[str, Any] = MappingProxyType({}),
) -> Facts | None:
    """Return the facts that decide which advice a measured case gets.

    `traffic`, `counted_resources` (resources by kernel) and `counted_bytes` (compulsory bytes) come from a small
    problem of the same variant; `counters` are hardware counters of the measured case. Returns None for a library, and
    if the lower bound or the traffic is unknown.
    """
    time_over_bound = over_bound(result, peaks)
    if time_over_bound is None or not result.resources or not traffic.complete or result.measurement is None:
        return None
    intensity = result.flops / result.compulsory_bytes if result.compulsory_bytes else 0.0
    launch_floor_s = (peaks.launch_floor_s if peaks else 0.0) or 0.0
    facts = facts_of(
        traffic,
        counted_bytes,
        counted_resources,
        result.resources,
        time_over_bound,
        intensity,
        launch_floor_s / result.measurement.median_s,
        {**counters, "compulsory_bytes": result.compulsory_bytes},
        result.axes.get("dtype") == DOUBLE_DTYPE,
    )
    unit = tensor_unit(result.axes, result.unit or result.precision)
    over_tensor = over_bound(replace(result, unit=unit), peaks) or 0.0
    return replace(facts, over_tensor_bound=over_tensor, bound_s=result.measurement.median_s / time_over_bound)


def tensor_unit(axes: Mapping[str, int | str], other: str) -> str:
    """Return the unit that multiplies a problem's operands on tensor cores; `other` if their type has none."""
    return TENSOR_UNITS.get(str(axes.get("dtype", "f32")), other)


def modelled_time(
    case: Case, peaks: Peaks, traffic: Traffic, resources: Mapping[str, LaunchResources]
) -> tuple[float, float] | None:
    """Return the least time in seconds that a counted case takes by its traffic, and the lower bound of its problem.

    Neither contains the time of an empty launch, which hides the differences of small problems. None if
    one of the two is unknown.
    """
    problem = case.problem
    bound = bound_and_limit(peaks.at_level(problem.bandwidth()), problem.flops(), problem.bytes(), case.unit)
    if bound is None or not bound[0] or not traffic.complete:
        return None
    # Where the caches were not modelled, L1 alone is a bound, too.
    traffic_levels = levels(traffic, resources) or Levels(l1_bytes(traffic), 0, 0, 0)
    limits = bounds(traffic_levels, problem.flops(), case.unit, peaks, problem.bytes(), problem.bandwidth())
    return max(limit.time_s for limit in limits if limit.limit != "launch"), bound[0]


def counted_facts(
    case: Case, over_bound: float, traffic: Traffic, resources: Mapping[str, LaunchResources]
) -> Facts | None:
    """Return the facts of a case that was counted and not measured; None if its machine code is not known."""
    if not traffic.complete or not any(used.sass for used in resources.values()):
        return None
    needed = case.problem.bytes()
    intensity = case.problem.flops() / needed if needed else 0.0
    double = case.problem.storage == DOUBLE_DTYPE
    facts = facts_of(traffic, needed, resources, resources, over_bound, intensity, double_operands=double)
    return replace(facts, blocks=0, waves=math.inf)


def shared_modes(axes: Mapping[str, int | str], other: Mapping[str, int | str]) -> int:
    """Return the number of modes, such as a dtype or a layout, that two problems share."""
    return sum(other.get(name) == value for name, value in axes.items() if isinstance(value, str))
