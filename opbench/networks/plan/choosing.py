"""Choose how a network runs: passes, layouts, fusion and the variant of every node, from results or from a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from opbench import paths, units
from opbench.errors import UsageError, unknown_name
from opbench.graph.graph import Graph
from opbench.graph.layouts import allowed_layouts, has_image_layouts, problem_in, with_layouts, works_on_images
from opbench.graph.passes import PASSES, Rewrite, rewrite_graph, to_dtype
from opbench.graph.values import Node
from opbench.insight.defaults import RankingGpu
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.networks.plan.fusion import cheaper_fusion, fused_nodes, fused_problems, split_fused, split_name
from opbench.networks.plan.layout_choice import choose_layouts
from opbench.networks.plan.memory import live_bytes
from opbench.networks.plan.options import ChoosingOptions, NetOptions
from opbench.networks.plan.plan import (
    Plan,
    PlanOptions,
    Results,
    TimedCase,
    allowed_entries,
    candidate_cases,
    choose,
    load_plan,
    require_gpu,
    timed_cases,
    usable_results,
)
from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS, cases_with_weight_setup
from opbench.paths import next_command
from opbench.results.files import FILE, read_run
from opbench.results.result import Result
from opbench.running.options import RunSetup
from opbench.running.runner import OnProgress, run_suite
from opbench.running.suite import Suite
from opbench.timing.sampling import TimingOptions

TUNING = TimingOptions(budget_s=0.05, max_samples=15, min_samples=5, warmup_s=0.002, warmup_runs=2, target=0.01)
"""Timing options for choosing among a few cases: brief, because their differences exceed the uncertainty of a brief
measurement."""


def given_plan(graph: Graph, options: NetOptions) -> Plan | None:
    """Return the plan in the file that `options` names; None if they name none."""
    return load_plan(options.plan, graph.name, "", options.precision) if options.plan is not None else None


def apply_enabled_passes(graph: Graph, options: NetOptions, plan: Plan | None = None) -> tuple[Graph, list[Rewrite]]:
    """Apply the enabled passes; return the graph and the changes of each pass.

    If the given plan does not fit then, passes that would remove its nodes are not applied: they are newer.
    """
    for name in options.without:
        if name not in (pass_names := (*PASSES, PREPARE_WEIGHTS)):
            raise UsageError(unknown_name("pass", name, pass_names, place="--disable"))
    rewritten, rewrites = _rewrite_for_inference(graph, options)
    if plan is None or plan.fits(_follow_plan(rewritten, options, plan)[0], Catalog(options.variants)):
        return rewritten, rewrites
    return _rewrite_for_inference(graph, options, plan.choices)


def _rewrite_for_inference(
    graph: Graph, options: NetOptions, planned: Collection[str] = ()
) -> tuple[Graph, list[Rewrite]]:
    graph, rewrites = rewrite_graph(graph, PASSES, options.without, planned)
    if options.precision == "bf16":
        graph = to_dtype(graph, "bf16")
        rewrites.append(Rewrite("to_dtype", True, ("all values and weights are stored in bf16",)))
    return graph, rewrites


def plan_network(
    graph: Graph,
    options: NetOptions,
    results: Results,
    gpu: str,
    sm_count: int,
    catalog: Catalog | None = None,
    device: RankingGpu | None = None,
    plan: Plan | None = None,
) -> tuple[Graph, Plan, list[Rewrite]]:
    """Choose passes, layouts and the variant of every node.

    The choice follows the given plan (`given_plan`) or, without one, results. Returns the graph to run, the plan and
    the decisions.
    """
    if plan is not None:
        if options.plan is not None:
            require_gpu(plan, options.plan, gpu)
        graph, rewrite = _follow_plan(graph, options, plan)
        return graph, plan, [rewrite]
    graph, rewrite = convert_layouts(graph, options, results, device)
    graph, split_rewrite = split_slow_fusions(graph, options, results)
    plan_options = PlanOptions(
        options.precision,
        gpu,
        options.libraries,
        sm_count,
        options.memory_bytes,
        options.parallel,
        device,
        prepare=PREPARE_WEIGHTS not in options.without,
    )
    plan = choose(graph, results, plan_options, catalog)
    return graph, plan, [rewrite, split_rewrite]


# Layouts and fusion -----------------------------------------------------------------------------------------------


def convert_layouts(
    graph: Graph, options: NetOptions, results: Results, device: RankingGpu | None = None
) -> tuple[Graph, Rewrite]:
    """Choose the layout of every node that supports both, and convert the graph.

    Where nothing was measured the layout on a GPU is nhwc, which tensor cores read.
    """
    convertible = [node.name for node in graph.nodes if has_image_layouts(node.problem)]
    if options.layout in ("nchw", "nhwc"):
        layout_of_node = dict.fromkeys(convertible, options.layout)
    elif options.layout == "auto":
        unknown_nodes = uncovered_nodes(graph, options, results) if results else []
        if results and not unknown_nodes:
            layout_of_node = choose_layouts(graph, cheaper_fusion(_cost_function(results, options)))
        else:
            layout_of_node = dict.fromkeys(convertible, "nhwc" if device and not results else "nchw")
        if unknown_nodes:
            converted, rewrite = _convert_to_layouts(graph, layout_of_node)
            text = f"no result covers {', '.join(unknown_nodes)}: without their times no layout is known to be better"
            return converted, replace(rewrite, notes=(*rewrite.notes, text))
    else:
        raise UsageError(
            f"--layout {options.layout} is not allowed; choose --layout auto, nchw or nhwc",
            kind="not-allowed",
            subject="--layout",
            value=options.layout,
            allowed=("auto", "nchw", "nhwc"),
        )
    return _convert_to_layouts(graph, layout_of_node)


def uncovered_nodes(graph: Graph, options: NetOptions, results: Results) -> list[str]:
    """Return the nodes whose problem has no measured case in any layout."""
    cost = cheaper_fusion(_cost_function(results, options))

    def problems_of(node: Node) -> list[Operator]:
        if not works_on_images(graph, node):
            return [node.problem]
        return [problem_in(graph, node, layout) for layout in allowed_layouts(graph, node)]

    return [node.name for node in graph.nodes if all(cost(problem) is None for problem in problems_of(node))]


def _require_fitting_results(graph: Graph, options: NetOptions, results: Results) -> None:
    """Raise UsageError, with the command that measures the nodes, if no result is for any node."""
    if options.tune or not options.results or len(uncovered_nodes(graph, options, results)) < len(graph.nodes):
        return
    node = graph.nodes[0]
    measured_problems = [
        problem for (operator, problem), entries in results.items() if entries and operator == node.operator
    ]
    coverage = (
        f"and these results have {len(measured_problems)} other problems of {node.operator}, such as "
        f"{measured_problems[0]}"
        if measured_problems
        else f"and these results have no case of {node.operator}"
    )
    suite = paths.shipped_folder("suites") / f"{options.network}.toml"
    run_command = f"opbench run {suite.stem} --out DIR (then --results DIR), or " if suite.exists() else ""
    tune_command = next_command("net run", options.network, variants=options.variants, tune=True)
    raise UsageError(
        f"--results {' '.join(map(str, options.results))}: these results contain no correct and timed case for a "
        f"node of {graph.name} (with its sizes and {options.precision}); {node.name} is {node.operator} "
        f"{node.problem}, {coverage}. Measure on "
        f"a GPU: {run_command}{tune_command}. Or remove --results, so that each node gets a default variant",
        kind="no-times",
        subject="--results",
        value=node.problem,
    )


def _convert_to_layouts(graph: Graph, layout_of_node: dict[str, str]) -> tuple[Graph, Rewrite]:
    converted = with_layouts(graph, layout_of_node)
    conversions = [node.name for node in converted.nodes if node.operator == "layout2d"]
    nhwc_count = sum(layout == "nhwc" for layout in layout_of_node.values())
    text = f"{nhwc_count} of {len(layout_of_node)} nodes work in nhwc; {len(conversions)} conversions"
    return converted, Rewrite("layouts", True, (text,))


def _follow_plan(graph: Graph, options: NetOptions, plan: Plan) -> tuple[Graph, Rewrite]:
    """Apply the layouts and the splits of fused nodes that a plan's cases require.

    A layout that the user names takes precedence.
    """
    convertible = [node.name for node in graph.nodes if has_image_layouts(node.problem)]
    cases = {name: choice.case for name, choice in plan.choices.items()}
    split_names = {name: split_name(graph.node(name)) for name in fused_nodes(graph)}
    # After a split, the part that keeps the node's name may have no layout (such as the addition after a convolution);
    # take the layout from the other part.
    deciding_cases = {name: cases.get(split_names.get(name, ""), cases.get(name, "")) for name in convertible}
    layout_of_node = {name: "nhwc" if "layout=nhwc" in case else "nchw" for name, case in deciding_cases.items()}
    converted, rewrite = _convert_to_layouts(
        graph, layout_of_node if options.layout == "auto" else dict.fromkeys(convertible, options.layout)
    )
    return split_fused(
        converted, [name for name in fused_nodes(converted) if split_name(converted.node(name)) in cases]
    ), rewrite


def split_slow_fusions(graph: Graph, options: NetOptions, results: Results) -> tuple[Graph, Rewrite]:
    """Split fused nodes whose parts are faster by more than the uncertainty of the measurement.

    The parts need memory for the values between them; a node stays fused if the memory limit leaves no room.
    """
    notes: list[str] = []
    split_names: list[str] = []
    for name in fused_nodes(graph):
        problem = graph.node(name).problem
        fused_case = _fastest_case(results, options, problem)
        part_cases = [
            entry for part in fused_problems(problem) or () if (entry := _fastest_case(results, options, part))
        ]
        if len(part_cases) < 2 or (fused_case and sum(entry.high_s for entry in part_cases) >= fused_case.low_s):
            continue
        times = f"its parts take {units.time(sum(e.kernel_s for e in part_cases))}"
        times += (
            f", fused they take {units.time(fused_case.kernel_s)}" if fused_case else ", fused they were not measured"
        )
        split_graph = split_fused(graph, [*split_names, name])
        if options.memory_bytes is not None and max(live_bytes(split_graph).values()) > options.memory_bytes:
            notes.append(
                f"{name}: stays fused, because the memory limit leaves no room for the intermediate values: {times}"
            )
            continue
        split_names.append(name)
        notes.append(f"{name}: split, because {times}")
    return split_fused(graph, split_names), Rewrite("split_up", True, tuple(notes))


def _fastest_case(results: Results, options: NetOptions, problem: Operator) -> TimedCase | None:
    entries = allowed_entries(results.get((problem.name, str(problem)), ()), options.precision, options.libraries)
    return entries[0] if entries else None


def _cost_function(results: Results, options: NetOptions) -> Callable[[Operator], float | None]:
    def cost(problem: Operator) -> float | None:
        entry = _fastest_case(results, options, problem)
        return entry.kernel_s if entry else None

    return cost


# Results ----------------------------------------------------------------------------------------------------------


def collect_results(
    graph: Graph, options: NetOptions, backend: str, on_progress: OnProgress, catalog: Catalog
) -> Results:
    """Return the timed cases of `--results`, and with `--tune` those measured now; UsageError if they match no node."""
    results = gather_timed_cases(options.results, catalog)
    _require_fitting_results(graph, options, results)
    return (
        {**results, **_measure_candidates(graph, options, backend, on_progress, catalog)} if options.tune else results
    )


def gather_timed_cases(folders: tuple[Path, ...], catalog: Catalog) -> Results:
    """Return the timed cases of some runs; of equal cases the last one; cases that no longer exist are skipped."""
    result_by_case: dict[str, tuple[Result, str]] = {}
    for folder in folders:
        result_by_case |= {r.case: (r, f"run {paths.portable_path(str(folder))}") for r in read_run(folder).results}
    merged: dict[tuple[str, str], list[TimedCase]] = {}
    for result, source in result_by_case.values():
        for key, entries in timed_cases([result], source).items():
            merged.setdefault(key, []).extend(entries)
    return usable_results({key: sorted(entries, key=lambda e: e.kernel_s) for key, entries in merged.items()}, catalog)


def _measure_candidates(
    graph: Graph, options: NetOptions, backend: str, on_progress: OnProgress, catalog: Catalog
) -> Results:
    """Measure the cases that support the network's nodes, in every possible layout."""
    layouts = ("nchw", "nhwc") if options.layout == "auto" else (options.layout,)
    graphs = []
    for layout in layouts:
        converted, _ = convert_layouts(graph, replace(options, layout=layout), {})
        graphs += [converted, split_fused(converted, fused_nodes(converted))]
    prepares = PREPARE_WEIGHTS not in options.without
    return measure_cases(graphs, options, options.out, on_progress, catalog, prepares)


def measure_cases(
    graphs: Sequence[Graph],
    options: ChoosingOptions,
    out: Path,
    on_progress: OnProgress,
    catalog: Catalog,
    prepares: bool = False,
) -> Results:
    """Measure the cases that support the nodes of some graphs, as a run in `out`/tuning that can be resumed.

    With `prepares`, the network runs setup launches that read only weights once, so their time does not count.
    """
    cases: dict[str, Case] = {}
    for graph in graphs:
        choices = candidate_cases(graph, options.precision, options.libraries, options.leave_out, catalog)
        cases |= {case.name: case for case in choices}
    folder, name = out / "tuning", graphs[0].name
    prepared_cases = cases_with_weight_setup(graphs, cases.values()) if prepares else frozenset()
    title = f"What could serve {name}{', timed without setup launches' if prepared_cases else ''}"
    suite = Suite(f"{name}-tuning", title, tuple(cases.values()), TUNING, prepared_cases=prepared_cases)
    resume = (folder / FILE).exists()
    run_suite(suite, RunSetup("cuda", folder, resume, roots=options.variants, command=options.command), on_progress)
    return gather_timed_cases((folder,), catalog)
