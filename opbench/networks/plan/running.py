"""Run a network once, from passes and plan to verdicts and times, and record everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opbench import paths, units
from opbench._version import __version__
from opbench.backend.base import Backend, LibraryBackend, TimedBackend
from opbench.backend.environment import Environment
from opbench.checking import backends
from opbench.errors import UsageError, unknown
from opbench.gpu.limits.ceilings import Peaks, best_time, committed_ceilings
from opbench.gpu.limits.products import product_key
from opbench.graph.graph import Graph
from opbench.graph.saving import load
from opbench.graph.values import Node
from opbench.graph.zoo import FOR_TRAINING, NETWORKS
from opbench.insight.defaults import target
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.alternatives import Planned
from opbench.networks.plan.attribution import Attribution
from opbench.networks.plan.choosing import Rewrite, apply_enabled_passes, plan_network, results_for
from opbench.networks.plan.data import DATA_OF_NETWORK
from opbench.networks.plan.executor import Context, Network, require_fitting
from opbench.networks.plan.inputs import trained_lenet
from opbench.networks.plan.network_launches import NetworkLaunches
from opbench.networks.plan.node_times import TIMING, node_samples, node_times
from opbench.networks.plan.nodes import check_nodes
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.output_check import allowed_norm, check_outputs
from opbench.networks.plan.plan import Plan, load_plan, save_plan
from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS
from opbench.networks.plan.torch_comparison import AGREEMENT_FACTOR, Peer, facts_of, peers, require_known, time_both
from opbench.networks.plan.torch_gpu import TorchGpu, find_torch, versions_of
from opbench.networks.plan.torch_module import to_module
from opbench.networks.records.attribution import AttributionRecord
from opbench.networks.records.checkpoints import trained_weights
from opbench.networks.records.network import (
    FORMAT,
    MemoryRecord,
    NetworkVerdict,
    NodeRecord,
    NodeVerdict,
    OptionsRecord,
    OutputVerdict,
    PassRecord,
    PeerRecord,
    RecognisedClasses,
    Record,
    ValueRecord,
    WorkspaceRecord,
    keep_network,
)
from opbench.paths import next_command
from opbench.results.files import make_folder
from opbench.running.header import now
from opbench.running.protocol import Open
from opbench.running.revision import revision
from opbench.running.runner import OnProgress, Progress
from opbench.running.worker import Worker
from opbench.timing.host import HostTime


def run_network(options: NetOptions, on_progress: OnProgress = lambda progress: None) -> Record:
    """Run a network, write `network.json` and `plan.json` into its folder, and return the record.

    Raises UsageError, before anything is launched, for options that exclude each other, and EnvironmentFault
    for a device that is missing or too small.
    """
    name = options.resolved()
    committed_ceilings(options.gpu)  # An unknown GPU raises UsageError before anything runs.
    original = make_graph(options)
    inputs = make_inputs(original, options)
    original.check_inputs(inputs)
    if options.compare:
        _require_comparable(options, original)
    catalog = Catalog(options.variants)
    graph, rewrites = apply_enabled_passes(original, options)
    if options.plan:
        load_plan(options.plan, graph.name, "", options.precision)
    results = results_for(graph, options, name, on_progress, catalog)
    make_folder(options.out)
    worker = Worker(Open(name, options.variants, options.seed), options.out / "worker.log")
    try:
        environment = worker.open()
        place = environment.gpu, environment.sm_count
        graph, plan, decided = plan_network(graph, options, results, *place, catalog, target(environment))
        cases = plan.cases(graph, catalog)
        require_fitting(graph, cases)
        checks = _check_all_nodes(graph, cases, inputs, worker, options, on_progress) if options.check else {}
    finally:
        worker.stop()  # Free the worker's memory on the GPU for the network.
    network = Network(graph, cases, backends.open_backend(name), prepare=PREPARE_WEIGHTS not in options.without)
    decided.append(prepared_text(network))
    planned = Planned(
        original, graph, plan, rewrites, results, options, catalog, target(environment), network.backend.sm_count
    )
    try:
        record = _measure_network(network, options, planned, inputs, environment, checks, on_progress)
    finally:
        network.close()
    record = replace(
        record,
        passes=tuple(PassRecord(step.name, step.on, tuple(step.notes)) for step in (*rewrites, *decided)),
        nodes=tuple(_with_choice(node, plan) for node in record.nodes),
    )
    keep_network(record, options.out)
    save_plan(plan, options.out / "plan.json")
    return record


# What is run ------------------------------------------------------------------------------------------------------


def make_graph(options: NetOptions, *, training: bool = False) -> Graph:
    """Return the network before any pass; with `training`, in the form for training."""
    if options.network.endswith(".json"):
        return load(Path(options.network), Catalog(options.variants))
    if options.network not in NETWORKS:
        raise UsageError(unknown("network", options.network, NETWORKS, "opbench net list"))
    try:
        graph = (FOR_TRAINING if training else NETWORKS)[options.network](**options.sizes)
    except TypeError as error:
        raise UsageError(
            f"{options.network}: {error}; its sizes: opbench net list",
            kind="unknown-size",
            subject=options.network,
            value=tuple(options.sizes),
        ) from None
    if options.weights == "digits" and options.network != "lenet":
        data = DATA_OF_NETWORK.get(options.network, "DATA")
        raise UsageError(
            f"--weights digits: these are LeNet's; {options.network} takes a .safetensors file or a training's folder; "
            f"train it: {next_command('net train', options.network, data=data, out='DIR')}"
        )
    return graph.with_weights(read_weights(options.weights)) if options.weights else graph


def read_weights(source: str) -> dict[str, np.ndarray]:
    """Return weights by name from a file or a training's folder, or those that are part of opbench."""
    if source == "digits":
        return trained_lenet()
    if Path(source).is_dir():
        return trained_weights(Path(source))
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights: dict[str, np.ndarray] = load_file(source)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"--weights {source}: cannot be read: {error}; give a .safetensors file, "
            "the folder of a training, or digits",
            kind="unreadable",
            subject=Path(source),
        ) from None
    return weights


def make_inputs(graph: Graph, options: NetOptions) -> Arrays:
    """Return the inputs that the user gave, or seeded random ones."""
    if options.inputs is not None:
        return dict(options.inputs)
    return graph.make_inputs(options.seed)


# Measuring --------------------------------------------------------------------------------------------------------


def _check_all_nodes(
    graph: Graph,
    cases: Mapping[str, Case],
    inputs: Arrays,
    worker: Worker,
    options: NetOptions,
    on_progress: OnProgress,
) -> dict[str, NodeVerdict]:
    number = {node.name: index for index, node in enumerate(graph.nodes)}
    on_progress(Progress("build", "the nodes' variants", 0, len(number)))

    def on_start(node: str) -> None:
        on_progress(Progress("check", node, number[node], len(number)))

    return check_nodes(graph, cases, inputs, worker, options.time_limit_s, on_start)


def _measure_network(
    network: Network,
    options: NetOptions,
    planned: Planned,
    inputs: Arrays,
    environment: Environment,
    checks: Mapping[str, NodeVerdict],
    on_progress: OnProgress,
) -> Record:
    """Time a network and return the record with verdicts, times and memory.

    A network with a node that is not right does not run as a whole, because its behaviour is unknown. Its other
    nodes are timed.
    """
    graph, backend, original = network.graph, network.backend, planned.original
    left_out = [name for name, check in checks.items() if not check.right]
    context = Context(network, graph=options.graph, parallel=options.parallel, left_out=left_out)
    outputs: Arrays = {}
    reference: Mapping[str, np.ndarray] = {}
    ends: dict[str, OutputVerdict] = {}
    total, between_s = None, None
    samples_s: dict[str, list[float]] = {}
    host: HostTime | None = None
    peers: dict[str, PeerRecord] = {}
    fault = ""
    attribution: AttributionRecord | None = None
    try:
        number = len(graph.nodes)
        if not left_out:
            on_progress(Progress("run", "the whole network", number, number))
            outputs = context.run(inputs)
            reference = original.reference_outputs(inputs) if options.check else reference
            ends = check_outputs(graph, network.cases, outputs, reference) if options.check else {}
        ceilings = _known_ceilings(environment, backend, options.gpu)
        attributed = options.attribution and not left_out and all(end.right for end in ends.values())
        parts = Attribution(planned, network, context, inputs, reference, ceilings)
        if isinstance(backend, TimedBackend):
            if not left_out:
                on_progress(Progress("measure", "the whole network", number, number))
            clock, allowed = backend.clock("cold"), allowed_norm(graph, network.cases)
            turns = NetworkLaunches(context, inputs, AGREEMENT_FACTOR * allowed, whole=not left_out)
            with contextlib.closing(turns):
                with _prepared_peers(options, original, turns.contents, backend) as (found, versions):
                    if not left_out:
                        facts = {n: facts_of(p, outputs, reference, allowed, versions) for n, p in found.items()}
                        both = time_both(context.launch, found, clock, backend.synchronize, TIMING, facts, turns)
                        total, host, peers = both.total, both.host, both.peers
                    between_s = clock.between
                    samples_s = node_samples(context, clock, turns)
                    turns.check_state()
                if attributed and not turns.fault:
                    attribution = replace(parts, clock=clock, turns=turns).measure(on_progress)
            fault = turns.fault
            total, attribution = (None, None) if fault else (total, attribution)
        elif attributed:
            attribution = parts.measure(on_progress)
    finally:
        context.close()
    memory = context.memory
    nodes_s = node_times(samples_s)
    nodes = [_node_record(node, network, ceilings, nodes_s, samples_s, checks) for node in graph.nodes]
    own = [node.kernel_s for node in nodes if node.kernel_s is not None]
    return Record(
        format=FORMAT,
        opbench=__version__,
        started=now(),
        revision=revision(),
        command=options.command,
        network=graph.name,
        sizes=dict(options.sizes),
        batch=graph.values[graph.inputs[0]].shape[0],
        precision=options.precision,
        backend=backend.name,
        environment=environment,
        ceilings=ceilings,
        options=OptionsRecord(options.graph, options.parallel, options.layout, options.memory_bytes),
        memory=MemoryRecord(
            peak_bytes=memory.peak_bytes,
            naive_bytes=memory.naive_bytes,
            lower_bound_bytes=memory.lower_bound_bytes,
            weights_bytes=sum(graph.values[name].nbytes for name in graph.weights),
            prepared_bytes=sum(t.nbytes for node in graph.nodes for t in network.prepared_tensors(node)),
            offsets=dict(memory.offsets),
            workspaces={
                name: WorkspaceRecord(offset, sum(t.nbytes for t in network.workspaces(graph.node(name))))
                for name, offset in memory.workspaces.items()
            },
        ),
        values={v.name: ValueRecord(v.shape, v.dtype, v.layout, v.nbytes, v.of) for v in graph.values.values()},
        weights=tuple(sorted(graph.weights)),
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        nodes=tuple(nodes),
        conversions=tuple(node.name for node in graph.nodes if node.operator == "layout2d"),
        total=total,
        host=host,
        gap_s=total.kernel_s - sum(own) if total and total.kernel_s is not None and own else None,
        between_s=between_s,
        classes=_recognised_classes(outputs, options.labels),
        check=_network_verdict(checks, ends, left_out, fault) if options.check or fault else None,
        peers=peers,
        attribution=attribution,
    )


def prepared_text(network: Network) -> Rewrite:
    """Return notes on the setup launches, one per node."""
    notes = []
    for node in network.graph.nodes:
        if launches := network.preparation(node).launches:
            kept = units.si(sum(tensor.nbytes for tensor in network.prepared_tensors(node)), "B")
            text = f"{launches} launch{'es' * (launches > 1)} of {network.cases[node.name].variant.id}"
            notes.append(f"{node.name}: {text} run only once, when weights are loaded; {kept} stay in memory")
    return Rewrite(PREPARE_WEIGHTS, network.prepare, tuple(notes))


def _require_comparable(options: NetOptions, original: Graph) -> None:
    """Raise UsageError, before anything runs, for a comparison that cannot succeed."""
    require_known(options.compare)
    find_torch()
    to_module(original)


@contextlib.contextmanager
def _prepared_peers(
    options: NetOptions, original: Graph, contents: Sequence[Arrays], backend: Backend
) -> Iterator[tuple[Mapping[str, Peer], Mapping[str, str]]]:
    """Prepare PyTorch's ways of running the network; yield them with the versions of the libraries."""
    if not options.compare or not isinstance(backend, LibraryBackend):
        yield {}, {}
        return
    gpu = TorchGpu(backend)
    with peers(original, contents, options.precision, gpu, options.compare_limit_s) as prepared:
        yield prepared, versions_of(gpu.torch)


def _known_ceilings(environment: Environment, backend: Backend, gpu: str) -> Peaks | None:
    """Return the measured peaks of this GPU, or those committed for its model or for the named GPU."""
    if not isinstance(backend, TimedBackend):
        return committed_ceilings(gpu)
    from opbench.running.probes import stored_peaks

    if known := stored_peaks():
        return known
    key = product_key(environment.gpu)
    return committed_ceilings(key) if key and (paths.shipped("reports") / key / "ceilings").is_dir() else None


def _node_record(
    node: Node,
    network: Network,
    ceilings: Peaks | None,
    times: Mapping[str, float],
    samples: Mapping[str, list[float]],
    checks: Mapping[str, NodeVerdict],
) -> NodeRecord:
    problem, case = node.problem, network.cases[node.name]
    limits = ceilings.at_level(problem.bandwidth()) if ceilings else None
    bound = best_time(limits, problem.flops(), problem.bytes(), case.unit) if limits else None
    kernel_s, whole = times.get(node.name), sum(times.values())
    check = checks.get(node.name)
    return NodeRecord(
        name=node.name,
        operator=node.operator,
        problem=str(problem),
        case=case.name,
        title=case.variant.title,
        precision=case.precision,
        unit=case.unit,
        inputs=dict(node.inputs),
        outputs=dict(node.outputs),
        kernels=tuple(case.variant.kernels),
        launches_once=network.preparation(node).launches,
        prepared_bytes=sum(tensor.nbytes for tensor in network.prepared_tensors(node)),
        flops=problem.flops(),
        compulsory_bytes=problem.bytes(),
        kernel_s=kernel_s,
        samples_s=tuple(samples.get(node.name, ())),
        share=kernel_s / whole if kernel_s is not None and whole else None,
        bound_s=bound[0] if bound else None,
        bound=bound[1] if bound else None,
        memory_level=problem.bandwidth(),
        roof_share=bound[0] / kernel_s if bound and kernel_s else None,
        check=check,
    )


def _with_choice(node: NodeRecord, plan: Plan) -> NodeRecord:
    """Return the record of a node with the reason why its variant was chosen."""
    choice = plan.choices[node.name]
    return replace(
        node, source=choice.source, tied_with=tuple(choice.tied_with), lead=choice.lead, alone_s=choice.kernel_s
    )


def _recognised_classes(outputs: Arrays, labels: tuple[int, ...]) -> RecognisedClasses | None:
    """Return the class that the network gives each image, and the true class; None if unknown."""
    scores = next(iter(outputs.values()), None)
    if not labels or scores is None or scores.ndim != 2:
        return None
    return RecognisedClasses(tuple(int(best) for best in scores.argmax(axis=1)), labels)


def _network_verdict(
    checks: Mapping[str, NodeVerdict], ends: Mapping[str, OutputVerdict], missing: Sequence[str], fault: str
) -> NetworkVerdict:
    right = all(c.right for c in checks.values()) and all(e.right for e in ends.values()) and not fault
    return NetworkVerdict(right, dict(ends), tuple(missing), fault)
