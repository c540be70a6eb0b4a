"""A network's run as a run of cases, so that it can be asked what a run can be asked: the whole, and each node.

Cases are named by network, sizes, precision and node, such as "lenet(batch=1,precision=f32)/conv1", and not by variant:
what two runs of a network are compared for is which variant serves a node better.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opbench.backend.environment import Environment
from opbench.errors import UsageError
from opbench.gpu.limits.ceilings import Ceilings
from opbench.kernels.axes import read_axes
from opbench.kernels.case import CASE_NAME
from opbench.kernels.variant import read_config
from opbench.networks.records.network import NodeRecord, Record, is_network, read_network
from opbench.records import from_json, to_json
from opbench.results.files import Run, read_run, run_file
from opbench.results.header import Revision, RunHeader
from opbench.results.result import Result, Verdict
from opbench.timing import stats
from opbench.timing.clock import DeviceState
from opbench.timing.measurement import Measurement, Warn

WHOLE = "network"
"""What stands for a variant where the case is the whole."""
CHAIN_MODE = "cold, nodes in order"
"""The L2 cache is flushed before the first node; each other finds what the one before it left there."""


def read_any_run(place: Path) -> Run:
    """A run of cases, or of a network as one; raises UsageError where neither is there."""
    if is_network(place) and not (place.is_dir() and run_file(place).exists()):
        return network_run(read_network(place), place if place.is_dir() else place.parent)
    return read_run(place)


def read_case_run(place: Path) -> Run:
    """Return a run of cases, or the nodes of a network as cases.

    A node's time was taken within its network: the L2 cache was flushed before the first node, and a node finds there
    what the node before it left. Raises UsageError where no such file is there.
    """
    if place.is_dir() and run_file(place).exists():
        return read_run(place)
    folder = place if place.is_dir() else place.parent
    if is_network(place):
        record = read_network(place)
        nodes = {node["name"]: node["case"] for node in record["nodes"]}
        run = network_run(record, folder)
        results = [replace(one, case=nodes[one.case.rpartition("/")[2]]) for one in run.results[1:]]
        return replace(run, results=results)
    return read_run(place)


def network_run(record: Record, folder: Path) -> Run:
    """A network's record as a run; a node of an older record has its median and no interval."""
    sizes = {**record["sizes"], "precision": record["precision"]}
    problem = f"({','.join(f'{name}={value}' for name, value in sizes.items())})"
    name = f"{record['network']}{problem}"
    header = RunHeader(
        network=record["network"],
        suite=record["network"],
        backend=record["backend"],
        opbench=record.get("opbench", ""),
        started=record.get("started", ""),
        revision=from_json(Revision, record["revision"]) if record.get("revision") else None,
        command=" ".join(record.get("command") or []),
        environment=from_json(Environment, record.get("environment") or {}),
        settings=to_json(record.get("options") or {}),
    )
    results = [_whole(record, name, problem), *(_node(node, record, name) for node in record["nodes"])]
    return Run(
        folder,
        header,
        results,
        ceilings=Ceilings.from_json(record["ceilings"]) if record.get("ceilings") else None,
        finished=True,
    )


def _whole(record: Record, name: str, problem: str) -> Result:
    check, total = record.get("check"), record.get("total")
    right, reason = not check or bool(check.get("right")), "" if check else "not checked"
    if check and not right:
        missing = check.get("missing") or []
        off = [end for end, verdict in (check.get("outputs") or {}).items() if not verdict["right"]]
        bad = [node["name"] for node in record["nodes"] if not (node.get("check") or {"right": True}).get("right")]
        reason = (
            f"outputs beyond what is allowed: {', '.join(off)}"
            if off
            else f"wrong nodes: {', '.join(missing or bad)}"
            if missing or bad
            else check.get("timed", "")
        )
    return Result(
        case=name,
        operator=record["network"],
        variant=WHOLE,
        config={},
        problem=problem,
        axes={**record["sizes"], "precision": record["precision"]},
        precision=record["precision"],
        backend=record["backend"],
        status="right" if right else "wrong",
        reason=reason,
        measurement=_measurement(total, name) if total and right else None,
        title="all nodes, in one",
    )


def _measurement(total: object, name: str) -> Measurement:
    try:
        return from_json(Measurement, total)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name}: its times cannot be read ({error}); run the network again: opbench net run"
        ) from None


def _node(node: NodeRecord, record: Record, name: str) -> Result:
    found = CASE_NAME.match(node["case"])
    variant, config = (found["variant"], read_config(found["config"])) if found else (node["case"], {})
    check = node.get("check")
    right = check is None or bool(check.get("right"))
    said = (check or {}).get("status") or "wrong"
    return Result(
        case=f"{name}/{node['name']}",
        operator=node["operator"],
        variant=variant,
        config=config,
        problem=node["problem"],
        axes=read_axes(node["problem"]),
        precision=node.get("precision") or record["precision"],
        backend=record["backend"],
        status="right" if right else "failed" if said == "failed" else "wrong",
        reason="not checked" if check is None else check.get("reason") or ("" if right else "its outputs are wrong"),
        verdict=Verdict(
            right,
            check.get("reason", ""),
            check.get("worst_error"),
            check.get("allowed_error"),
            check.get("norm_error"),
            check.get("allowed_norm_error"),
            integers=check.get("integers", ""),
        )
        if check
        else None,
        measurement=_among_others(node) if right else None,
        flops=node.get("flops", 0),
        compulsory_bytes=node.get("compulsory_bytes", 0),
        unit=node.get("unit", ""),
        memory_level=node.get("memory_level", "dram"),
        title=node.get("title", ""),
    )


def _among_others(node: NodeRecord) -> Measurement | None:
    """A node's own times in the chain of all; coverage 0 and no samples where the record has a median alone."""
    kernel_s, samples = node.get("kernel_s"), tuple(node.get("samples_s") or ())
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
        warnings=() if interval.coverage >= 0.95 else (Warn.FEW_SAMPLES,),
        kernel_s=kernel_s,
    )
