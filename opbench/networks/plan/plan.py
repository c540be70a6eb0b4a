"""A plan: the variant and config of every node of a network, as a file that can be read and edited."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opbench import paths
from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.graph.values import Node
from opbench.insight.defaults import RankingGpu, rank_cases
from opbench.kernels.capability import parse_capability
from opbench.kernels.case import Case, fitting_cases
from opbench.kernels.expression import round_up
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT
from opbench.kernels.variant import Variant, print_config
from opbench.networks.plan.memory import live_bytes, plan_memory
from opbench.networks.plan.setup_launches import constants, workspace_of
from opbench.networks.records.training import original_node_name
from opbench.records import read_record, to_json
from opbench.results.book import BookEntry
from opbench.results.result import Result
from opbench.results.winners import entries_of, run_of, same_model

FORMAT = 1
NEW_PLAN = "make a new plan: opbench net run NAME --tune (for a training: opbench net train NAME --tune)"
"""The remedy in errors about a plan that does not fit."""
MAX_TRIES = 8
"""Attempts to plan for less memory than is allowed: the gaps between buffers are only known afterwards."""


@dataclass(frozen=True)
class TimedCase:
    """The measured time of one case in a run, with its 95 % interval, in seconds."""

    case: str
    precision: str
    kernel_s: float
    low_s: float
    high_s: float
    library: bool
    source: str


@dataclass(frozen=True)
class NodeChoice:
    """The variant that was chosen for a node, and the reason."""

    case: str
    kernel_s: float | None = None
    """Time of the case alone with cold caches, in seconds; None if not measured."""
    source: str = "default"
    """The run with the result that decided; "default" without a result."""
    tied_with: tuple[str, ...] = ()
    """Cases whose 95 % intervals overlap the chosen case's."""
    lead: float | None = None
    """Time of the best case that is not tied, divided by the time of this one; None if unknown."""


@dataclass(frozen=True)
class Plan:
    """The chosen variant of each node, and the network, GPU and precision for which the plan is valid."""

    network: str
    gpu: str
    precision: str
    choices: Mapping[str, NodeChoice] = field(default_factory=dict)
    again: tuple[tuple[str, int], ...] = ()
    """For a training step, in order: a value that is computed again, and the number of the node after which."""

    def case_of(self, node: str) -> str:
        """Return the name of a node's case; empty for a node that is not in the plan."""
        return self.choices[node].case if node in self.choices else ""

    def cases(self, graph: Graph, catalog: Catalog | None = None) -> dict[str, Case]:
        """Return the case of every node; raise UsageError, with its name, for a node that is not in the plan."""
        catalog = catalog or Catalog()
        cases = {}
        for node in graph.nodes:
            if node.name not in self.choices:
                raise UsageError(
                    f"{node.name}: the plan has no variant for this node of {graph.name}, only for "
                    f"{', '.join(self.choices) or 'no node'}; {NEW_PLAN}",
                    kind="no-variant",
                    subject=node.name,
                )
            cases[node.name] = _planned_case(catalog, node, self.choices[node.name].case)
        return cases

    def fits(self, graph: Graph, catalog: Catalog) -> bool:
        """Return whether the plan has, for each node of a graph, a case with the node's problem.

        If the graph has all passes and the plan does not fit, passes may be newer than the plan: see `rewrite_graph`.
        """
        try:
            cases = self.cases(graph, catalog)
        except UsageError:
            return False
        return all(cases[node.name].problem == node.problem for node in graph.nodes)


def timed_cases(results: Iterable[Result], source: str) -> dict[tuple[str, str], list[TimedCase]]:
    """Return the right, measured cases by operator and problem, fastest first."""
    cases_by_problem: dict[tuple[str, str], list[TimedCase]] = {}
    for result in results:
        measured = result.measurement
        if result.status != "right" or not measured:
            continue
        times_s = measured.interval_without_offset_s
        entry = TimedCase(result.case, result.precision, *times_s, result.library, source)
        cases_by_problem.setdefault((result.operator, result.problem), []).append(entry)
    return {key: sorted(entries, key=lambda e: e.kernel_s) for key, entries in cases_by_problem.items()}


def allowed_entries(entries: Sequence[TimedCase], precision: str, libraries: bool) -> list[TimedCase]:
    """Return the timed cases that a precision allows, fastest first; without `libraries`, only opbench's variants."""
    allowed = ALLOWED_PRECISIONS[precision]
    return [e for e in entries if e.precision in allowed and (libraries or not e.library)]


Results = Mapping[tuple[str, str], Sequence[TimedCase]]
"""Cases by operator and printed problem, fastest first."""


def usable_results(results: Results, catalog: Catalog) -> Results:
    """Return the results without cases that no longer exist or whose bits vary from run to run."""
    configs_by_operator = {
        operator: _names_without_problem(catalog, operator)
        for operator in {operator for operator, _ in results} & set(catalog.operator_names())
    }
    return {
        (operator, problem): [
            e for e in entries if e.case.removesuffix(problem) in configs_by_operator.get(operator, ())
        ]
        for (operator, problem), entries in results.items()
    }


def _names_without_problem(catalog: Catalog, operator: str) -> set[str]:
    """Return the beginning of the name of each case of an operator: variant and config."""
    variants = catalog.choosable_variants(operator, libraries=True)
    return {f"{variant.id}{print_config(config)}" for variant in variants for config in variant.configs}


@dataclass(frozen=True)
class PlanOptions:
    """The conditions under which a plan is made: GPU, precision, memory."""

    precision: str = "f32"
    gpu: str = ""
    libraries: bool = False
    """Whether a vendor's library may serve a node."""
    sm_count: int = 132
    memory_bytes: int | None = None
    """The limit for activations and workspaces in bytes; None for no limit."""
    parallel: bool = False
    device: RankingGpu | None = None
    """The GPU; None without one."""
    prepare: bool = True
    """Whether setup launches run once, when weights are written."""


def choose(
    graph: Graph, results: Results, options: PlanOptions = PlanOptions(), catalog: Catalog | None = None
) -> Plan:
    """Choose the fastest case for every node; of cases that tie, the one with the smallest workspace.

    A node whose problem no result covers gets the winner that was committed for the GPU model, else the case
    that `default_cases` ranks first, whose source is "default". Where memory is limited, only cases count whose
    workspace has room besides the values that live while the node runs; raises UsageError, naming the node,
    where no case has. Results of setup launches are no workspace, and where nothing was measured these launches
    cost no time.
    """
    cases = _cases_of_nodes(graph, results, options, catalog or Catalog())
    if options.memory_bytes is not None:
        return cases.plan(cases.choices_within(options.memory_bytes))
    choices = cases.choices(lambda name, size: True)
    assert not isinstance(choices, str)
    return cases.plan(choices)


@dataclass(frozen=True)
class _NodeCases:
    """The cases that a plan may choose from, by node; only for nodes that choose a variant of their own."""

    graph: Graph
    options: PlanOptions
    first_run_of_node: Mapping[str, str]
    """For each node the node whose variant it has: a second run has the variant of the first one."""
    live_bytes_by_node: Mapping[str, int]
    """The bytes of the values that live while a node runs, or its second run."""
    timed_cases: Mapping[str, Mapping[str, TimedCase]]
    """The measured cases of each node, by name."""
    workspaces: Mapping[str, Mapping[str, int]]
    """The bytes of the workspace of each case of each node."""

    def choices(self, is_allowed: Callable[[str, int], bool]) -> dict[str, NodeChoice] | str:
        """Return choices for all nodes, the fastest allowed by node and workspace.

        Else the name of a node without one.
        """
        choices: dict[str, NodeChoice] = {}
        for name, entries in self.timed_cases.items():
            bytes_by_case = self.workspaces[name]
            fitting = [case for case in bytes_by_case if is_allowed(name, bytes_by_case[case])]
            if not fitting:
                return name
            timed = [entries[case] for case in fitting if case in entries]
            choices[name] = _choose_fastest(timed, bytes_by_case) if timed else NodeChoice(fitting[0])
        return {node.name: choices[self.first_run_of_node[node.name]] for node in self.graph.nodes}

    def plan(self, choices: Mapping[str, NodeChoice]) -> Plan:
        """Return the plan with these choices."""
        return Plan(self.graph.name, self.options.gpu, self.options.precision, dict(choices))

    def peak_bytes(self, choices: Mapping[str, NodeChoice]) -> int:
        """Return the memory that values and workspaces take with these choices."""
        sizes = {name: self.workspaces[self.first_run_of_node[name]][choice.case] for name, choice in choices.items()}
        return plan_memory(self.graph, sizes, parallel=self.options.parallel).peak_bytes

    def choices_within(self, memory_bytes: int) -> dict[str, NodeChoice]:
        """Return the fastest choices that take at most so much memory; raise UsageError, naming a node, without any."""
        target_bytes = memory_bytes
        reason, subject = "", self.graph.name
        for _ in range(MAX_TRIES):
            limit = target_bytes
            choices = self.choices(lambda name, size: self.live_bytes_by_node[name] + size <= limit)  # noqa: B023
            if isinstance(choices, str):
                if target_bytes == memory_bytes:
                    subject = choices
                    reason = (
                        f"{choices}: values take {self.live_bytes_by_node[choices]:,} bytes while it runs and its "
                        f"workspace {min(self.workspaces[choices].values()):,} or more; {memory_bytes:,} in all are "
                        "not enough: --memory"
                    )
                break
            excess_bytes = self.peak_bytes(choices) - memory_bytes
            if excess_bytes <= 0:
                return choices
            target_bytes -= excess_bytes  # gaps between buffers need memory, too
        choices = self.choices(lambda name, size: size == min(self.workspaces[name].values()))
        assert not isinstance(choices, str)
        least_bytes = self.peak_bytes(choices)
        if least_bytes <= memory_bytes:
            return choices
        reason = reason or f"{self.graph.name}: no plan fits into the {memory_bytes:,} bytes of --memory"
        raise UsageError(
            f"{reason}; give at least {least_bytes:,} bytes to --memory",
            kind="memory-limit",
            subject=subject,
            value=memory_bytes,
            allowed=least_bytes,
        )


def _cases_of_nodes(graph: Graph, results: Results, options: PlanOptions, catalog: Catalog) -> _NodeCases:
    """Return the measured cases of each node's problem; without any, those of committed winners, then defaults."""
    live_bytes_by_node, names = live_bytes(graph), {node.name for node in graph.nodes}
    first_run = {name: original_node_name(name) if original_node_name(name) in names else name for name in names}
    for name in names:  # a repeated node has the variant of its first run, and the workspace must fit at both moments
        live_bytes_by_node[first_run[name]] = max(live_bytes_by_node[first_run[name]], live_bytes_by_node[name])
    timed_cases: dict[str, dict[str, TimedCase]] = {}
    workspaces: dict[str, dict[str, int]] = {}
    for node in graph.nodes:
        if first_run[node.name] != node.name:
            continue
        entries = allowed_entries(
            results.get((node.operator, str(node.problem)), ()), options.precision, options.libraries
        )
        cases = [_planned_case(catalog, node, e.case) for e in entries]
        if not cases:
            entries = committed_cases(node.problem, options.precision, options.device, catalog)
            similar = [] if entries else cases_of_similar_gpu(node.problem, options.precision, options.device, catalog)
            constant = constants(graph, node) if options.prepare else ()
            defaults = default_cases(catalog, node, options.precision, options.device, constant)
            cases = [*(catalog.case(e.case) for e in entries), *similar, *defaults]
        timed_cases[node.name] = {e.case: e for e in entries}
        workspaces[node.name] = {
            c.name: sum(
                round_up(t.nbytes, WORKSPACE_ALIGNMENT)
                for t in workspace_of(graph, node, c, options.sm_count, options.prepare)
            )
            for c in cases
        }
    return _NodeCases(graph, options, first_run, live_bytes_by_node, timed_cases, workspaces)


def _choose_fastest(entries: Sequence[TimedCase], workspaces: Mapping[str, int]) -> NodeChoice:
    tied = [e for e in entries if e.low_s <= entries[0].high_s]
    slower = [e for e in entries if e.low_s > entries[0].high_s]
    fastest = min(tied, key=lambda e: (workspaces[e.case], e.kernel_s))
    lead = slower[0].kernel_s / fastest.kernel_s if slower else None
    return NodeChoice(fastest.case, fastest.kernel_s, fastest.source, tuple(e.case for e in tied if e != fastest), lead)


def committed_cases(problem: Operator, precision: str, device: RankingGpu | None, catalog: Catalog) -> list[TimedCase]:
    """Return the fastest case of a problem in the committed runs of a GPU model, then the cases tied with it.

    Each has its measured times in seconds. The list is empty without a GPU, and for a problem without a committed run.
    """
    if device is None:
        return []
    entries = [e for e in entries_of(problem) if same_model(e.gpu, device.gpu)]
    return _fastest_committed(entries, problem, precision, device, catalog)


def cases_of_similar_gpu(problem: Operator, precision: str, device: RankingGpu | None, catalog: Catalog) -> list[Case]:
    """Return the fastest case on other GPU models of the same compute capability, then the cases tied with it.

    The times of another model are not this GPU's, so the cases come without them.
    """
    if device is None:
        return []
    entries = [e for e in entries_of(problem) if parse_capability(e.compute_capability) == device.capability]
    return [catalog.case(e.case) for e in _fastest_committed(entries, problem, precision, device, catalog)]


def _fastest_committed(
    entries: Sequence[BookEntry], problem: Operator, precision: str, device: RankingGpu, catalog: Catalog
) -> list[TimedCase]:
    entries = [e for e in entries if e.precision in ALLOWED_PRECISIONS[precision]]
    if not entries:
        return []
    entry = min(entries, key=lambda e: e.winner.median_s)
    case_names = {f"{name}{problem}" for name in _names_without_problem(catalog, problem.name)}
    return [
        TimedCase(time.case, entry.precision, time.median_s, time.low_s, time.high_s, False, f"run {run_of(time)}")
        for time in (entry.winner, *entry.ties)
        if time.case in case_names and device.runs(catalog.case(time.case))
    ]


def default_cases(
    catalog: Catalog, node: Node, precision: str, device: RankingGpu | None = None, constant: Collection[str] = ()
) -> list[Case]:
    """Return the cases that fit a node, ranked by `ranked` without measurements.

    The inputs in `constant` do not change.
    """
    ladder, fitting = _ladder_of(catalog, node, precision)
    return rank_cases(fitting, device, product=any(variant.unit for variant in ladder), constant=constant)


def simplest_case(catalog: Catalog, node: Node, precision: str, device: RankingGpu | None = None) -> Case:
    """Return the case of the lowest variant on the ladder that fits a node; libraries do not count."""
    _, fitting = _ladder_of(catalog, node, precision)
    return next((case for case in fitting if device is None or device.runs(case)), fitting[0])


def _ladder_of(catalog: Catalog, node: Node, precision: str) -> tuple[list[Variant], list[Case]]:
    """Return the variants of a node's operator in a precision, and the cases that fit the node.

    Both are in the ladder's order, plainest first, without libraries. Raises UsageError if no case fits.
    """
    ladder = [v for v in catalog.choosable_variants(node.operator) if v.precision in ALLOWED_PRECISIONS[precision]]
    fitting = fitting_cases(ladder, [node.problem])
    if not fitting:
        reasons = "; ".join(f"{v.name} {v.unmet_requirement(node.problem, v.configs[0])}" for v in ladder[-2:])
        raise UsageError(
            f"{node.name}: no variant of {node.operator} can compute {node.problem} in {precision}"
            f"{f' ({reasons})' if reasons else ''}; choose other sizes or another --precision (the variants: "
            f"{catalog.command('list variants', node.operator)})",
            kind="no-variant",
            subject=node.name,
            value=precision,
        )
    return ladder, fitting


def problems_by_name(graph: Graph) -> dict[tuple[str, str], Operator]:
    """Return a network's distinct problems; the key is the operator's name and the problem's text."""
    return {(node.operator, str(node.problem)): node.problem for node in graph.nodes}


def candidate_cases(
    graph: Graph, precision: str, libraries: bool = False, leave_out: Sequence[str] = (), catalog: Catalog | None = None
) -> list[Case]:
    """Return every case that fits a node, except variants that match a glob in `leave_out`."""
    catalog = catalog or Catalog()
    cases: dict[str, Case] = {}
    for (operator, _), problem in problems_by_name(graph).items():
        variants = [
            variant
            for variant in catalog.choosable_variants(operator, libraries=libraries)
            if variant.precision in ALLOWED_PRECISIONS[precision]
            and not any(fnmatch.fnmatchcase(variant.id, pattern) for pattern in leave_out)
        ]
        cases |= {case.name: case for case in fitting_cases(variants, [problem])}
    return list(cases.values())


def _planned_case(catalog: Catalog, node: Node, name: str) -> Case:
    """Return the case that a plan names for a node; raise UsageError, naming the node, for an unknown or unfit case."""
    try:
        case = catalog.case(name)
    except UsageError as error:
        raise UsageError(f"{node.name}: {error}", cause=error, subject=node.name) from None
    if case.variant.operator != node.operator:
        raise UsageError(
            f"{node.name}: '{name}' is not a case of {node.operator}, the operator of this node; correct the plan, or "
            f"{NEW_PLAN}",
            kind="other-operator",
            subject=node.name,
            value=name,
        )
    return case


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan as JSON, atomically."""
    content = json.dumps({"format": FORMAT, **to_json(plan)}, indent=1).encode()
    paths.write_file(path, content, "choose another folder with --out DIR")


def load_plan(path: Path, network: str, gpu: str, precision: str) -> Plan:
    """Read a plan; raise UsageError for a corrupt one, or for another network, GPU or precision."""
    plan = read_record(Plan, path, FORMAT, NEW_PLAN)
    if plan.network != network:
        raise UsageError(
            f"{path}: this plan is for network {plan.network}, not {network}; name another plan, or {NEW_PLAN}",
            kind="other-network",
            subject=path,
            value=plan.network,
            allowed=network,
        )
    if plan.precision != precision:
        remedy = f"add --precision {plan.precision}, or {NEW_PLAN}"
        raise UsageError(
            f"{path}: this plan is for precision {plan.precision}, not {precision}; {remedy}",
            kind="other-precision",
            subject=path,
            value=plan.precision,
            allowed=precision,
        )
    require_gpu(plan, path, gpu)
    return plan


def require_gpu(plan: Plan, path: Path, gpu: str) -> None:
    """Raise UsageError if a plan that was read from `path` is for another GPU; an empty name stands for any GPU."""
    if gpu and plan.gpu and plan.gpu != gpu:
        raise UsageError(
            f"{path}: this plan is for {plan.gpu}, but this GPU is {gpu}, where other variants may be faster; on this "
            f"GPU, {NEW_PLAN}",
            kind="other-gpu",
            subject=path,
            value=plan.gpu,
            allowed=gpu,
        )
