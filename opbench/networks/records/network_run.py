"""The run of a network in the form of a run of cases: the whole network and each node is a case.

Cases are named by network, sizes, precision and node, such as "lenet(batch=1,precision=f32)/conv1", and not by
variant: two runs of a network are compared to see which variant serves a node better.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opbench.kernels.axes import read_axes
from opbench.kernels.case_names import CASE_NAME
from opbench.kernels.variant import read_config
from opbench.networks.records.network import NodeRecord, Record, is_network, read_network
from opbench.records import to_json
from opbench.results.files import Run, read_run, run_file
from opbench.results.header import RunHeader
from opbench.results.result import Result, Verdict
from opbench.timing import stats
from opbench.timing.clock import DeviceState
from opbench.timing.measurement import Measurement, TimingWarning

WHOLE_NETWORK = "network"
"""The name in place of a variant for the case that is the whole network."""
CHAIN_MODE = "cold, nodes in order"
"""The L2 cache is flushed before the first node; each other node finds the cache as the node before left it."""


def read_any_run(path: Path) -> Run:
    """Read a run of cases, or the run of a network as cases; raise UsageError if the folder has neither."""
    if is_network(path) and not (path.is_dir() and run_file(path).exists()):
        return network_run(read_network(path), path if path.is_dir() else path.parent)
    return read_run(path)


def read_case_run(path: Path) -> Run:
    """Read a run of cases, or the nodes of a network as cases.

    A node was timed within its network: the L2 cache was flushed before the first node only. Raises UsageError
    if the file is missing.
    """
    if path.is_dir() and run_file(path).exists():
        return read_run(path)
    folder = path if path.is_dir() else path.parent
    if is_network(path):
        record = read_network(path)
        nodes = {node.name: node.case for node in record.nodes}
        run = network_run(record, folder)
        results = [replace(result, case=nodes[result.case.rpartition("/")[2]]) for result in run.results[1:]]
        return replace(run, results=results)
    return read_run(path)


def network_run(record: Record, folder: Path) -> Run:
    """Return the record of a network as a run of cases.

    A node of an older record has its median and no interval.
    """
    sizes = {**record.sizes, "precision": record.precision}
    problem = f"({','.join(f'{name}={value}' for name, value in sizes.items())})"
    name = f"{record.network}{problem}"
    header = RunHeader(
        network=record.network,
        suite=record.network,
        backend=record.backend,
        opbench=record.opbench,
        started=record.started,
        revision=record.revision,
        command=" ".join(record.command),
        environment=record.environment,
        settings=to_json(record.options),
    )
    results = [_network_result(record, name, problem), *(_node_result(node, record, name) for node in record.nodes)]
    return Run(folder, header, results, ceilings=record.ceilings, finished=True)


def _network_result(record: Record, name: str, problem: str) -> Result:
    verdict, total = record.check, record.total
    right, reason = verdict is None or verdict.right, "" if verdict else "not checked"
    if verdict and not right:
        missing = verdict.missing
        wrong_outputs = [end for end, output in verdict.outputs.items() if not output.right]
        wrong_nodes = [node.name for node in record.nodes if node.is_wrong]
        reason = (
            f"outputs outside the tolerance: {', '.join(wrong_outputs)}"
            if wrong_outputs
            else f"wrong nodes: {', '.join(missing or wrong_nodes)}"
            if missing or wrong_nodes
            else verdict.timed
        )
    return Result(
        case=name,
        operator=record.network,
        variant=WHOLE_NETWORK,
        config={},
        problem=problem,
        axes={**record.sizes, "precision": record.precision},
        precision=record.precision,
        backend=record.backend,
        status="right" if right else "wrong",
        reason=reason,
        measurement=total if right else None,
        title="all nodes, in one",
    )


def _node_result(node: NodeRecord, record: Record, name: str) -> Result:
    parsed = CASE_NAME.match(node.case)
    variant, config = (parsed["variant"], read_config(parsed["config"])) if parsed else (node.case, {})
    check = node.check
    right = not node.is_wrong
    return Result(
        case=f"{name}/{node.name}",
        operator=node.operator,
        variant=variant,
        config=config,
        problem=node.problem,
        axes=read_axes(node.problem),
        precision=node.precision or record.precision,
        backend=record.backend,
        status="right" if right else "failed" if check and check.status == "failed" else "wrong",
        reason="not checked" if check is None else check.reason or ("" if right else "its outputs are wrong"),
        verdict=Verdict(
            right,
            check.reason,
            check.worst_error,
            check.allowed_error,
            check.norm_error,
            check.allowed_norm_error,
            integers=check.integers,
        )
        if check
        else None,
        measurement=_peer_result(node) if right else None,
        flops=node.flops,
        compulsory_bytes=node.compulsory_bytes,
        unit=node.unit,
        memory_level=node.memory_level,
        title=node.title,
    )


def _peer_result(node: NodeRecord) -> Measurement | None:
    """Return a node's times within the network; without samples if an older record has only a median."""
    kernel_s, samples = node.kernel_s, node.samples_s
    if kernel_s is None:
        return None
    interval = stats.median_interval(samples) if samples else stats.Interval(kernel_s, kernel_s, 0.0)
    quartiles = (stats.quantile(samples, 0.25), stats.quantile(samples, 0.75)) if samples else (kernel_s, kernel_s)
    return Measurement(
        mode=CHAIN_MODE,
        timer="events between nodes",
        samples_s=samples,
        median_s=kernel_s,
        low_s=interval.low,
        high_s=interval.high,
        quartiles_s=quartiles,
        coverage=interval.coverage,
        stop_reason="max_samples",
        warmup_runs=0,
        before=DeviceState(),
        after=DeviceState(),
        floor_s=0.0,
        warnings=() if interval.coverage >= 0.95 else (TimingWarning.FEW_SAMPLES,),
        kernel_s=kernel_s,
    )
