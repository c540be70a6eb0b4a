"""Alternatives to a planned network: each undoes one choice of the plan and keeps the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from opbench.backend.base import ArenaBackend, GraphBackend
from opbench.graph.graph import Graph
from opbench.graph.layouts import has_image_layouts, with_layouts
from opbench.graph.passes import PASSES, Rewrite
from opbench.insight.defaults import RankingGpu
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.networks.plan.choosing import apply_enabled_passes
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.fusion import fused_nodes, split_fused, split_name
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import Plan, PlanOptions, Results, choose, default_cases, simplest_case
from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS, constants


@dataclass(frozen=True)
class PlanningResult:
    """A plan together with everything from which it was made: graphs, results, options and device."""

    original: Graph
    """The network before any pass."""
    fused: Graph
    """The network after the passes, before layouts were chosen and fused nodes split."""
    graph: Graph
    """The network as it runs."""
    plan: Plan
    rewrites: Sequence[Rewrite]
    """The passes over the graph, each with its changes."""
    results: Results
    options: NetOptions
    catalog: Catalog
    device: RankingGpu | None
    sm_count: int


@dataclass(frozen=True)
class NetworkVersion:
    """A version of a network that can run: its graph, the case of each node, and launch options."""

    graph: Graph
    cases: Mapping[str, Case]
    unmeasured: int = 0
    """Number of nodes that the plan lacks and whose case was chosen without a measurement."""
    prepare: bool = True
    recorded: bool = True
    """Whether all launches are one CUDA graph."""
    parallel: bool = False
    overlapped: bool = True
    share_memory: bool = True

    def context(self, network: Network) -> Context:
        """Return a context of a network with this version's graph and cases."""
        return Context(
            network,
            graph=self.recorded,
            parallel=self.parallel,
            overlapped=self.overlapped,
            share_memory=self.share_memory,
        )


@dataclass(frozen=True)
class Alternative:
    """One choice of the plan, and the version of the network without it.

    `make_version` plans the version, and raises UsageError if that fails.
    """

    choice: str
    instead: str
    make_version: Callable[[], NetworkVersion]
    additive: bool = True
    """As in `AlternativeRecord`."""
    changes_launches: bool = False
    """Whether only the launches differ, so that the host's time is of interest, too."""


def planned_version(planned: PlanningResult, network: Network) -> NetworkVersion:
    """Return the network exactly as it was planned, as a version to compare with."""
    options = planned.options
    return NetworkVersion(network.graph, network.cases, 0, network.prepare, options.graph, options.parallel)


def alternatives(planned: PlanningResult, network: Network, context: Context) -> Iterator[Alternative]:
    """Yield one alternative for each choice of the plan that can be undone, except for precision."""
    plan_version, nodes = planned_version(planned, network), network.graph.nodes
    for rewrite in planned.rewrites:
        if rewrite.name in PASSES and rewrite.on and rewrite.notes:
            instead = PLAIN_PASSES.get(rewrite.name, "the nodes stay separate")
            make_version = functools.partial(_without_pass, planned, plan_version, rewrite.name)
            yield Alternative(rewrite.name, instead, make_version)
    if split := _nodes_to_split(planned.fused, planned.graph):
        yield Alternative(
            "split_up", f"{', '.join(split)} stay fused", lambda: _with_fusions_kept(planned, plan_version)
        )
    if any(node.problem.scope.get("layout") == "nhwc" for node in nodes if has_image_layouts(node.problem)):
        yield Alternative("layouts", "every image in nchw", lambda: _in_nchw(planned, plan_version))
    yield Alternative(
        "measured variants",
        "the variants ranked first by a model",
        lambda: _with_default_variants(planned, plan_version),
    )
    yield Alternative(
        "optimised variants",
        "the plainest variant of each ladder",
        lambda: _with_simplest_variants(planned, plan_version),
        additive=False,
    )
    if any(network.node_setup(node).launches for node in nodes):
        yield Alternative(PREPARE_WEIGHTS, "setup launches in each run", lambda: replace(plan_version, prepare=False))
    if plan_version.recorded and isinstance(network.backend, GraphBackend):
        yield Alternative(
            "CUDA graph", "each kernel launched on its own", lambda: replace(plan_version, recorded=False), True, True
        )
    if any(launch.programmatic for bound in context.bindings.values() for launch in bound.launches):
        yield Alternative(
            "overlapped launches",
            "each kernel starts after the one before",
            lambda: replace(plan_version, overlapped=False),
        )
    if plan_version.parallel:
        yield Alternative("parallel branches", "one node after another", lambda: replace(plan_version, parallel=False))
    memory = context.memory
    if isinstance(network.backend, ArenaBackend) and memory.naive_bytes > memory.peak_bytes:
        yield Alternative("shared memory", "a buffer for each value", lambda: replace(plan_version, share_memory=False))


PLAIN_PASSES = {
    "drop_dropout": "dropout copies its input",
    "fold_batchnorm": "batch norm is a node of its own",
    "fuse_relu": "ReLU is a node of its own",
    "fuse_gelu": "GELU is a node of its own",
    "fuse_hardswish": "hardswish and hardsigmoid are nodes of their own",
    "fuse_residual": "the sums of residual blocks are nodes of their own",
    "fuse_sum_into_norm": "the sums before norms are nodes of their own",
    "fuse_upsample_concat": "upsampling and concatenation are two nodes",
    "fuse_upsample_concat_conv": "the enlarged image is stored before the convolution",
}
"""The form of the graph without a pass, in words."""


# Graphs -----------------------------------------------------------------------------------------------------------


def _nodes_to_split(graph: Graph, planned_graph: Graph) -> list[str]:
    """Return the names of the fused nodes of a graph that a planned graph contains in two parts."""
    names = {node.name for node in planned_graph.nodes}
    return [name for name in fused_nodes(graph) if split_name(graph.node(name)) in names]


def _without_pass(planned: PlanningResult, plan_version: NetworkVersion, name: str) -> NetworkVersion:
    disabled = tuple(rewrite.name for rewrite in planned.rewrites if not rewrite.on)
    graph, _ = apply_enabled_passes(planned.original, replace(planned.options, without=(*disabled, name)))
    in_layouts = _in_planned_layouts(graph, plan_version.graph)
    split_names = _nodes_to_split(in_layouts, plan_version.graph)
    return _with_cases(planned, plan_version, split_fused(in_layouts, split_names))


def _with_fusions_kept(planned: PlanningResult, plan_version: NetworkVersion) -> NetworkVersion:
    return _with_cases(planned, plan_version, _in_planned_layouts(planned.fused, plan_version.graph))


def _in_nchw(planned: PlanningResult, plan_version: NetworkVersion) -> NetworkVersion:
    split_names = _nodes_to_split(planned.fused, plan_version.graph)
    return _with_cases(planned, plan_version, split_fused(planned.fused, split_names))


def _in_planned_layouts(graph: Graph, planned_graph: Graph) -> Graph:
    """Return an nchw graph with each node in its layout of the planned graph.

    New nodes get the most frequent layout.
    """
    layout_of_node = {
        n.name: str(n.problem.scope["layout"]) for n in planned_graph.nodes if has_image_layouts(n.problem)
    }
    most_frequent = max(("nchw", "nhwc"), key=list(layout_of_node.values()).count)
    return with_layouts(
        graph, {n.name: layout_of_node.get(n.name, most_frequent) for n in graph.nodes if has_image_layouts(n.problem)}
    )


# Cases ------------------------------------------------------------------------------------------------------------


def _with_cases(planned: PlanningResult, plan_version: NetworkVersion, graph: Graph) -> NetworkVersion:
    """Return a version for a graph with the planned case of each problem; unplanned problems get cases as in a plan."""
    by_problem = {(case.problem.name, str(case.problem)): case for case in plan_version.cases.values()}
    options = planned.options
    plan_options = PlanOptions(
        options.precision,
        planned.plan.gpu,
        options.libraries,
        planned.sm_count,
        options.memory_bytes,
        options.parallel,
        planned.device,
        prepare=plan_version.prepare,
    )
    new_plan = choose(graph, planned.results, plan_options, planned.catalog)
    cases, unmeasured = {}, 0
    for node in graph.nodes:
        planned_case = plan_version.cases.get(node.name)
        is_unchanged = planned_case is not None and planned_case.problem == node.problem
        case = planned_case if is_unchanged else by_problem.get((node.operator, str(node.problem)))
        if case is None:
            choice = new_plan.choices[node.name]
            case, unmeasured = planned.catalog.case(choice.case), unmeasured + (choice.source == "default")
        cases[node.name] = case
    return replace(plan_version, graph=graph, cases=cases, unmeasured=unmeasured)


def _with_default_variants(planned: PlanningResult, plan_version: NetworkVersion) -> NetworkVersion:
    options, catalog = planned.options, planned.catalog
    cases = {}
    for node in plan_version.graph.nodes:
        constant = constants(plan_version.graph, node) if plan_version.prepare else ()
        cases[node.name] = default_cases(catalog, node, options.precision, planned.device, constant)[0]
    return replace(plan_version, cases=cases, unmeasured=_count_changed_cases(plan_version, cases))


def _with_simplest_variants(planned: PlanningResult, plan_version: NetworkVersion) -> NetworkVersion:
    precision, catalog, device = planned.options.precision, planned.catalog, planned.device
    cases = {node.name: simplest_case(catalog, node, precision, device) for node in plan_version.graph.nodes}
    return replace(plan_version, cases=cases, unmeasured=_count_changed_cases(plan_version, cases))


def _count_changed_cases(plan_version: NetworkVersion, cases: Mapping[str, Case]) -> int:
    return sum(cases[name].name != case.name for name, case in plan_version.cases.items())
