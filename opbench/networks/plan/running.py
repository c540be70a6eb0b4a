"""Run a network once, from passes and plan to verdicts and times, and record everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from opbench import paths, units
from opbench._version import __version__
from opbench.backend.base import Backend, DeviceClock, LibraryBackend, TimedBackend
from opbench.backend.environment import Environment
from opbench.checking import backends
from opbench.errors import UsageError, unknown_name
from opbench.gpu.limits.ceilings import Peaks, bound_and_limit, committed_ceilings
from opbench.gpu.limits.products import product_key
from opbench.graph.graph import Graph
from opbench.graph.passes import Rewrite
from opbench.graph.saving import load
from opbench.graph.values import Node
from opbench.graph.zoo import FOR_TRAINING, NETWORKS
from opbench.insight.defaults import ranking_gpu
from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.alternatives import PlanningResult
from opbench.networks.plan.attribution import Attribution
from opbench.networks.plan.choosing import (
    apply_enabled_passes,
    collect_results,
    given_plan,
    plan_network,
)
from opbench.networks.plan.data import DATA_OF_NETWORK
from opbench.networks.plan.executor import Context, Network, require_fitting
from opbench.networks.plan.inputs import trained_lenet
from opbench.networks.plan.memory import MemoryPlan
from opbench.networks.plan.network_launches import NetworkLaunches
from opbench.networks.plan.node_times import TIMING, node_samples, node_times
from opbench.networks.plan.nodes import check_nodes
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.output_check import allowed_norm, check_outputs
from opbench.networks.plan.plan import Plan, save_plan
from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS
from opbench.networks.plan.torch_comparison import (
    AGREEMENT_FACTOR,
    Peer,
    peer_record,
    peers,
    require_known_libraries,
    time_opbench_and_peers,
)
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
    store_network_record,
)
from opbench.paths import next_command
from opbench.results.files import make_folder
from opbench.running.header import utc_now_text
from opbench.running.protocol import OpenBackend
from opbench.running.revision import revision
from opbench.running.runner import OnProgress, Progress
from opbench.running.worker import Worker
from opbench.timing.host import HostTime
from opbench.timing.measurement import Measurement


def run_network(options: NetOptions, on_progress: OnProgress = lambda progress: None) -> Record:
    """Run a network, write `network.json` and `plan.json` into its folder, and return the record.

    Raises UsageError, before anything is launched, for options that exclude each other, and EnvironmentFault
    for a device that is missing or too small.
    """
    name = options.resolved_backend()
    committed_ceilings(options.gpu)  # An unknown GPU raises UsageError before anything runs.
    original = make_graph(options)
    inputs = make_inputs(original, options)
    original.check_inputs(inputs)
    if options.compare:
        _require_comparable(options, original)
    catalog = Catalog(options.variants)
    earlier_plan = given_plan(original, options)
    fused, rewrites = apply_enabled_passes(original, options, earlier_plan)
    results = collect_results(fused, options, name, on_progress, catalog)
    make_folder(options.out)
    worker = Worker(OpenBackend(name, options.variants, options.seed), options.out / "worker.log")
    try:
        environment = worker.open()
        gpu_and_sm_count, device = (environment.gpu, environment.sm_count), ranking_gpu(environment)
        graph, plan, later_rewrites = plan_network(
            fused, options, results, *gpu_and_sm_count, catalog, device, earlier_plan
        )
        cases = plan.cases(graph, catalog)
        require_fitting(graph, cases)
        checks = _check_all_nodes(graph, cases, inputs, worker, options, on_progress) if options.check else {}
    finally:
        worker.stop()  # Free the worker's memory on the GPU for the network.
    network = Network(graph, cases, backends.open_backend(name), prepare=PREPARE_WEIGHTS not in options.without)
    later_rewrites.append(setup_notes(network))
    planned = PlanningResult(
        original, fused, graph, plan, rewrites, results, options, catalog, device, network.backend.sm_count
    )
    try:
        record = _measure_network(network, options, planned, inputs, environment, checks, on_progress)
    finally:
        network.close()
    record = replace(
        record,
        passes=tuple(
            PassRecord(rewrite.name, rewrite.on, tuple(rewrite.notes)) for rewrite in (*rewrites, *later_rewrites)
        ),
        nodes=tuple(_with_choice(node, plan) for node in record.nodes),
    )
    store_network_record(record, options.out)
    save_plan(plan, options.out / "plan.json")
    return record


# The network and its inputs -----------------------------------------------------------------------------------------


def make_graph(options: NetOptions, *, training: bool = False) -> Graph:
    """Return the network of the options before any pass; with `training`, in the form that training needs."""
    if options.network.endswith(".json"):
        return load(Path(options.network), Catalog(options.variants))
    if options.network not in NETWORKS:
        raise UsageError(unknown_name("network", options.network, NETWORKS, "opbench net list"))
    try:
        graph = (FOR_TRAINING if training else NETWORKS)[options.network](**options.sizes)
    except TypeError as error:
        raise UsageError(
            f"{options.network}: {error}; see the sizes of each network with: opbench net list",
            kind="unknown-size",
            subject=options.network,
            value=tuple(options.sizes),
        ) from None
    if options.weights == "digits" and options.network != "lenet":
        data = DATA_OF_NETWORK.get(options.network, "DATA")
        raise UsageError(
            f"--weights digits: these weights are for lenet, not for {options.network}; name a .safetensors file or "
            "the folder of a training, which this command makes: "
            f"{next_command('net train', options.network, data=data, out='DIR')}",
            kind="other-network",
            subject="--weights",
            value=options.network,
            allowed="lenet",
        )
    return graph.with_weights(read_weights(options.weights)) if options.weights else graph


def read_weights(source: str) -> dict[str, np.ndarray]:
    """Return weights by name from `source`: a .safetensors file, the folder of a training, or "digits"."""
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
            f"--weights {source}: cannot be read: {error}; name a .safetensors file, "
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
    index_of = {node.name: index for index, node in enumerate(graph.nodes)}
    on_progress(Progress("build", "the nodes' variants", 0, len(index_of)))

    def on_start(node: str) -> None:
        on_progress(Progress("check", node, index_of[node], len(index_of)))

    return check_nodes(graph, cases, inputs, worker, options.time_limit_s, on_start)


@dataclass
class _NetworkMeasurements:
    """The outputs, verdicts and times of a network's run; empty if a node that is not right prevented the run."""

    outputs: Arrays = field(default_factory=dict)
    reference: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Outputs of the network before any pass, in float64; empty with `--no-check`."""
    verdicts: dict[str, OutputVerdict] = field(default_factory=dict)
    """The comparison of each output with the reference."""
    total: Measurement | None = None
    host: HostTime | None = None
    peers: dict[str, PeerRecord] = field(default_factory=dict)
    between_s: float | None = None
    samples_s: dict[str, list[float]] = field(default_factory=dict)
    """The times of each node within the network, in seconds."""
    attribution: AttributionRecord | None = None
    fault: str = ""
    """Why a timed replay was wrong; then there is no time of the whole network."""


def _measure_network(
    network: Network,
    options: NetOptions,
    planned: PlanningResult,
    inputs: Arrays,
    environment: Environment,
    checks: Mapping[str, NodeVerdict],
    on_progress: OnProgress,
) -> Record:
    """Time a network and return the record with verdicts, times and memory.

    A network with a node that is not right does not run as a whole, because its behaviour is unknown. Its other
    nodes are timed.
    """
    backend, node_count = network.backend, len(network.graph.nodes)
    excluded = [name for name, check in checks.items() if not check.right]
    context = Context(network, graph=options.graph, parallel=options.parallel, excluded=excluded)
    measured = _NetworkMeasurements()
    try:
        if not excluded:
            on_progress(Progress("run", "the whole network", node_count, node_count))
            _run_and_check(measured, context, planned.original, options, inputs)
        ceilings = _known_ceilings(environment, backend, options.gpu)
        attribution: Attribution | None = None
        if options.attribution and not excluded and all(verdict.right for verdict in measured.verdicts.values()):
            attribution = Attribution(planned, network, context, inputs, measured.reference, ceilings)
        if isinstance(backend, TimedBackend):
            if not excluded:
                on_progress(Progress("measure", "the whole network", node_count, node_count))
            clock, allowed = backend.clock("cold"), allowed_norm(network.graph, network.cases)
            launches = NetworkLaunches(context, inputs, AGREEMENT_FACTOR * allowed, complete=not excluded)
            with contextlib.closing(launches):
                _time_with_peers(measured, launches, context, clock, options, planned.original)
                if attribution and not launches.fault:
                    attribution = replace(attribution, clock=clock, own_launches=launches)
                    measured.attribution = attribution.measure(on_progress)
            measured.fault = launches.fault
            if measured.fault:
                measured.total, measured.attribution = None, None
        elif attribution:
            measured.attribution = attribution.measure(on_progress)
    finally:
        context.close()
    return _make_record(network, options, environment, checks, context.memory, ceilings, measured)


def _run_and_check(
    measured: _NetworkMeasurements, context: Context, original: Graph, options: NetOptions, inputs: Arrays
) -> None:
    """Run the network once; store its outputs and, unless `--no-check` is set, the reference and the verdicts."""
    measured.outputs = context.run(inputs)
    if options.check:
        network = context.network
        measured.reference = original.reference_outputs(inputs)
        measured.verdicts = check_outputs(network.graph, network.cases, measured.outputs, measured.reference)


def _time_with_peers(
    measured: _NetworkMeasurements,
    launches: NetworkLaunches,
    context: Context,
    clock: DeviceClock,
    options: NetOptions,
    original: Graph,
) -> None:
    """Time the network in turn with PyTorch's modes, then each node; store the times in `measured`.

    If nodes are excluded, only the nodes that remain are timed. Sets `launches.fault` for a replay with wrong results.
    """
    network = context.network
    allowed = allowed_norm(network.graph, network.cases)
    with _prepared_peers(options, original, launches.contents, network.backend) as (peers, versions):
        if launches.complete:
            records = {
                name: peer_record(peer, measured.outputs, measured.reference, allowed, versions)
                for name, peer in peers.items()
            }
            times = time_opbench_and_peers(
                context.launch, peers, clock, network.backend.synchronize, TIMING, records, launches
            )
            measured.total, measured.host, measured.peers = times.total, times.host, times.peers
        measured.between_s = clock.gap_between_launches_s
        measured.samples_s = node_samples(context, clock, launches)
        launches.check_state()


def _make_record(
    network: Network,
    options: NetOptions,
    environment: Environment,
    checks: Mapping[str, NodeVerdict],
    memory: MemoryPlan,
    ceilings: Peaks | None,
    measured: _NetworkMeasurements,
) -> Record:
    """Return the record of a network's run."""
    graph, total = network.graph, measured.total
    times_s = node_times(measured.samples_s)
    nodes = [_node_record(node, network, ceilings, times_s, measured.samples_s, checks) for node in graph.nodes]
    timed_s = [node.kernel_s for node in nodes if node.kernel_s is not None]
    excluded = [name for name, check in checks.items() if not check.right]
    has_verdict = options.check or measured.fault
    return Record(
        format=FORMAT,
        opbench=__version__,
        started=utc_now_text(),
        revision=revision(),
        command=options.command,
        network=graph.name,
        sizes=dict(options.sizes),
        batch=graph.values[graph.inputs[0]].shape[0],
        precision=options.precision,
        backend=network.backend.name,
        environment=environment,
        ceilings=ceilings,
        options=OptionsRecord(options.graph, options.parallel, options.layout, options.memory_bytes),
        memory=_memory_record(network, memory),
        values={v.name: ValueRecord(v.shape, v.dtype, v.layout, v.nbytes, v.of) for v in graph.values.values()},
        weights=tuple(sorted(graph.weights)),
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        nodes=tuple(nodes),
        conversions=tuple(node.name for node in graph.nodes if node.operator == "layout2d"),
        total=total,
        host=measured.host,
        gap_s=total.kernel_s - sum(timed_s) if total and total.kernel_s is not None and timed_s else None,
        between_s=measured.between_s,
        classes=_recognised_classes(measured.outputs, options.labels),
        check=_network_verdict(checks, measured.verdicts, excluded, measured.fault) if has_verdict else None,
        peers=measured.peers,
        attribution=measured.attribution,
    )


def _memory_record(network: Network, memory: MemoryPlan) -> MemoryRecord:
    """Return the record of a network's memory plan, with the bytes of its weights and of setup launches' results."""
    graph = network.graph
    return MemoryRecord(
        peak_bytes=memory.peak_bytes,
        naive_bytes=memory.naive_bytes,
        lower_bound_bytes=memory.lower_bound_bytes,
        weights_bytes=sum(graph.values[name].nbytes for name in graph.weights),
        prepared_bytes=sum(t.nbytes for node in graph.nodes for t in network.prepared_tensors(node)),
        offsets=dict(memory.offsets),
        workspaces=workspace_records(network, memory),
    )


def workspace_records(network: Network, memory: MemoryPlan) -> dict[str, WorkspaceRecord]:
    """Return the offset and the bytes of each node's workspaces."""
    return {
        name: WorkspaceRecord(offset, sum(t.nbytes for t in network.workspaces(network.graph.node(name))))
        for name, offset in memory.workspaces.items()
    }


def setup_notes(network: Network) -> Rewrite:
    """Return notes on the setup launches, one per node."""
    notes = []
    for node in network.graph.nodes:
        if launches := network.node_setup(node).launches:
            kept_bytes = units.si(sum(tensor.nbytes for tensor in network.prepared_tensors(node)), "B")
            note = f"{launches} launch{'es' * (launches > 1)} of {network.cases[node.name].variant.id}"
            notes.append(f"{node.name}: {note} run only once, when weights are loaded; {kept_bytes} stay in memory")
    return Rewrite(PREPARE_WEIGHTS, network.prepare, tuple(notes))


def _require_comparable(options: NetOptions, original: Graph) -> None:
    """Raise UsageError, before anything runs, for a comparison that cannot succeed."""
    require_known_libraries(options.compare)
    find_torch()
    to_module(original)


@contextlib.contextmanager
def _prepared_peers(
    options: NetOptions, original: Graph, contents: Sequence[Arrays], backend: Backend
) -> Iterator[tuple[Mapping[str, Peer], Mapping[str, str]]]:
    """Prepare the network in PyTorch in each mode; yield the peers with the versions of the libraries."""
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

    if stored := stored_peaks():
        return stored
    key = product_key(environment.gpu)
    return committed_ceilings(key) if key and (paths.shipped_folder("reports") / key / "ceilings").is_dir() else None


def _node_record(
    node: Node,
    network: Network,
    ceilings: Peaks | None,
    times: Mapping[str, float],
    samples: Mapping[str, list[float]],
    checks: Mapping[str, NodeVerdict],
) -> NodeRecord:
    problem, case = node.problem, network.cases[node.name]
    peaks = ceilings.at_level(problem.bandwidth()) if ceilings else None
    bound = bound_and_limit(peaks, problem.flops(), problem.bytes(), case.unit) if peaks else None
    kernel_s, total_s = times.get(node.name), sum(times.values())
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
        launches_once=network.node_setup(node).launches,
        prepared_bytes=sum(tensor.nbytes for tensor in network.prepared_tensors(node)),
        flops=problem.flops(),
        compulsory_bytes=problem.bytes(),
        kernel_s=kernel_s,
        samples_s=tuple(samples.get(node.name, ())),
        share=kernel_s / total_s if kernel_s is not None and total_s else None,
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
    checks: Mapping[str, NodeVerdict], output_verdicts: Mapping[str, OutputVerdict], missing: Sequence[str], fault: str
) -> NetworkVerdict:
    right = all(c.right for c in checks.values()) and all(e.right for e in output_verdicts.values()) and not fault
    return NetworkVerdict(right, dict(output_verdicts), tuple(missing), fault)
