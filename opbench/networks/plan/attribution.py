"""Measure what each choice of a plan saves: undo the choice, check the outputs, and time both versions in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from opbench import units
from opbench.backend.base import DeviceClock
from opbench.errors import LaunchError
from opbench.gpu.limits.ceilings import Peaks, bound_and_limit
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.alternatives import (
    Alternative,
    NetworkVersion,
    PlanningResult,
    alternatives,
    planned_version,
)
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.network_launches import NetworkLaunches
from opbench.networks.plan.output_check import allowed_norm, check_outputs
from opbench.networks.plan.torch_comparison import AGREEMENT_FACTOR
from opbench.networks.plan.torch_gpu import on_one_line
from opbench.networks.records.attribution import AlternativeRecord, AttributionRecord, Counts
from opbench.running.runner import OnProgress, Progress
from opbench.timing.host import host_times
from opbench.timing.sampling import TimingOptions, measure

TIMING_OPTIONS = TimingOptions(budget_s=1.0, min_samples=20, max_samples=200, target=0.003)
"""Options of the timing, in which samples of the plan and of an alternative take turns."""
MAX_RUN_S = 1.0
"""An alternative whose run takes longer is not timed: it would take minutes."""
PLAN, OTHER = "plan", "alternative"


@dataclass(frozen=True)
class Attribution:
    """Measures what each choice of a plan saves: the planned network on its device, its reference and its clock."""

    planned: PlanningResult
    network: Network
    context: Context
    inputs: Arrays
    reference: Mapping[str, np.ndarray]
    """Outputs of the network before any pass, in float64."""
    ceilings: Peaks | None
    clock: DeviceClock | None = None
    """None on a device without a clock: alternatives are checked and counted, and have no times."""
    own_launches: NetworkLaunches | None = None
    """Writes new inputs for the plan's network before each of its timed samples."""

    def measure(self, on_progress: OnProgress) -> AttributionRecord:
        """Measure all alternatives and return their record; an alternative that fails has its reason."""
        records, nodes = [], len(self.network.graph.nodes)
        for alternative in alternatives(self.planned, self.network, self.context):
            on_progress(Progress("measure", f"without {alternative.choice}", nodes, nodes))
            if record := self._measure_one(alternative):
                records.append(record)
        full = planned_version(self.planned, self.network)
        return AttributionRecord(self._counts(full, self.network, self.context), tuple(records))

    def _measure_one(self, alternative: Alternative) -> AlternativeRecord | None:
        """Return the record of an alternative; None if it equals the plan."""
        record = AlternativeRecord(alternative.choice, alternative.instead, alternative.additive)
        try:
            version = alternative.make_version()
            record = replace(record, changed=self._changed_nodes(version), unmeasured=version.unmeasured)
            if self._equals_plan(version):
                return None
            with contextlib.ExitStack() as stack:
                network = self._network(version)
                if network is not self.network:
                    stack.callback(network.close)
                context = version.context(network)
                stack.callback(context.close)
                record = replace(record, counts=self._counts(version, network, context))
                return self._check_and_time(alternative, record, network, context)
        except Exception as error:  # any error ends only this alternative
            return replace(record, error=on_one_line(error))

    def _equals_plan(self, version: NetworkVersion) -> bool:
        full = planned_version(self.planned, self.network)
        names = [[node.name for node in graph.nodes] for graph in (version.graph, full.graph)]
        same_launches = replace(version, graph=full.graph, cases=full.cases, unmeasured=0) == full
        return same_launches and names[0] == names[1] and not self._changed_nodes(version)

    def _network(self, version: NetworkVersion) -> Network:
        """Return the network of a version: the planned one if only launches or memory differ."""
        network = self.network
        if version.graph is network.graph and version.cases is network.cases and version.prepare == network.prepare:
            return network
        return Network(version.graph, version.cases, network.backend, prepare=version.prepare)

    def _changed_nodes(self, version: NetworkVersion) -> tuple[str, ...]:
        planned_cases = {name: case.name for name, case in self.network.cases.items()}
        return tuple(
            node.name for node in version.graph.nodes if planned_cases.get(node.name) != version.cases[node.name].name
        )

    def _counts(self, version: NetworkVersion, network: Network, context: Context) -> Counts:
        return Counts(
            nodes=len(version.graph.nodes),
            launches=sum(max(1, len(bound.launches)) for bound in context.bindings.values()),
            compulsory_bytes=sum(node.problem.bytes() for node in version.graph.nodes),
            flops=sum(node.problem.flops() for node in version.graph.nodes),
            memory_bytes=context.memory.peak_bytes,
            bound_s=self._lower_bound_s(network),
        )

    def _lower_bound_s(self, network: Network) -> float | None:
        total = 0.0
        for node in network.graph.nodes:
            problem = node.problem
            peaks = self.ceilings.at_level(problem.bandwidth()) if self.ceilings else None
            bound = (
                bound_and_limit(peaks, problem.flops(), problem.bytes(), network.cases[node.name].unit)
                if peaks
                else None
            )
            if bound is None:
                return None
            total += bound[0]
        return total

    def _check_and_time(
        self, alternative: Alternative, record: AlternativeRecord, network: Network, context: Context
    ) -> AlternativeRecord:
        """Compare an alternative's outputs with the reference; if they agree, time it in turn with the plan."""
        outputs = context.run(self.inputs)
        verdicts = check_outputs(network.graph, network.cases, outputs, self.reference)
        worst = max(verdicts.values(), key=lambda verdict: np.nan_to_num(verdict.norm_error or 0.0, nan=np.inf))
        record = replace(record, norm_error=worst.norm_error, allowed=worst.allowed)
        if wrong_outputs := [name for name, verdict in verdicts.items() if not verdict.right]:
            return replace(
                record, error=f"wrong: the output {', '.join(wrong_outputs)} differs from the float64 reference"
            )
        if self.clock is None or self.own_launches is None:
            return record
        if (run_s := _time_one_run(context)) > MAX_RUN_S:
            limit = units.time(MAX_RUN_S)
            return replace(record, error=f"not timed: one run takes {units.time(run_s)}, at most {limit} are timed")
        allowed = AGREEMENT_FACTOR * allowed_norm(network.graph, network.cases)
        with contextlib.closing(NetworkLaunches(context, self.inputs, allowed)) as other_launches:
            launches = {PLAN: self.context.launch, OTHER: context.launch}
            times = measure(
                self.clock, launches, TIMING_OPTIONS, launch_sources={PLAN: self.own_launches, OTHER: other_launches}
            )
            if other_launches.fault:
                return replace(record, error=f"wrong: {other_launches.fault}")
            host_by_name = host_times(launches, network.backend.synchronize) if alternative.changes_launches else {}
        return replace(
            record, times=times[OTHER], plan=times[PLAN], host=host_by_name.get(OTHER), plan_host=host_by_name.get(PLAN)
        )


def _time_one_run(context: Context) -> float:
    """Run the network once and return the seconds on the host's clock."""
    start_s = time.perf_counter()
    context.launch()
    if findings := context.network.backend.synchronize():
        raise LaunchError(str(findings[0]), kind="launch-failed", subject=context.network.graph.name)
    return time.perf_counter() - start_s
