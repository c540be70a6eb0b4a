"""Fabricated records of networks' runs from real graphs: numbers are plausible, nothing here was measured."""

from __future__ import annotations

import json
import random
from typing import Any

from opbench.gpu.limits.ceilings import Peaks, bound_and_limit
from opbench.graph.graph import Graph
from opbench.graph.values import Node
from opbench.networks.records.network import Record
from opbench.records import to_json
from support.builders.runs import CEILINGS, measurement

PEERS = {"PyTorch eager": 4.1, "PyTorch eager, channels_last": 3.2, "torch.compile": 2.6,
         "torch.compile, channels_last": 1.7}  # fmt: skip


def typed(told: dict[str, Any]) -> Record:
    """Return a fabricated record as it is read from its file."""
    return Record.from_json(json.loads(json.dumps(told)))


def record(graph: Graph, *, timed: bool = True, seed: int = 0, **changed: Any) -> dict[str, Any]:
    """A record of a run of a graph; without `timed` as the cpu backend leaves it."""
    draw = random.Random(seed)
    ceilings = Peaks.from_json(CEILINGS)
    nodes = [_node(node, ceilings if timed else None, draw) for node in graph.nodes]
    total = sum(node["kernel_s"] or 0.0 for node in nodes)
    for node in nodes:
        node["share"] = node["kernel_s"] / total if timed else None
    memory = _memory(graph)
    gap = 0.4e-6 * len(nodes)
    sizes = {"batch": next(iter(graph.values[name].shape[0] for name in graph.inputs))}
    outputs = {name: {"norm_error": 3.1e-7, "allowed": 2e-5, "right": True} for name in graph.outputs}
    made = {
        "format": 1,
        "opbench": "0.0",
        "started": "2026-01-02T03:04:05+00:00",
        "network": graph.name,
        "sizes": sizes,
        "precision": "f32",
        "backend": "cuda" if timed else "cpu",
        "environment": {"gpu": "NVIDIA H200", "driver": "580.1"} if timed else {"processor": "some CPU"},
        "ceilings": ceilings.to_json() if timed else None,
        "passes": [
            {"name": "fuse_relu", "on": True, "said": ["`relu1` fused into `conv1`"]},
            {"name": "fold_batchnorm", "on": False, "said": []},
        ],
        "options": {"graph": True, "parallel": False, "layout": "auto"},
        "memory": memory,
        "values": {
            name: {"shape": list(v.shape), "dtype": v.dtype, "layout": v.layout, "bytes": v.nbytes, "of": v.of}
            for name, v in graph.values.items()
        },
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "nodes": nodes,
        "conversions": [node.name for node in graph.nodes if node.operator == "layout2d"],
        "total": {**to_json(measurement(total + gap + 1e-6)), "kernel_s": total + gap} if timed else None,
        "host": to_json(measurement(total + gap + 20e-6)) if timed else None,
        "gap_s": gap if timed else None,
        "between_s": 1.1e-6 if timed else None,
        "check": {"outputs": outputs, "right": True},
        "peers": {
            name: {
                **to_json(measurement(factor * total, seed=seed)),
                "captured": True,
                "host": to_json(measurement(factor * total + 80e-6, seed=seed)),
                "difference": 1e-7,
                "allowed_difference": 4e-5,
                "peak_bytes": 2 * memory["peak_bytes"],
                "norm_error": 2e-7,
                "versions": {"PyTorch": "2.9.0"},
            }
            for name, factor in PEERS.items()
        }
        if timed
        else {},
    }
    return {**made, **changed}


def _node(node: Node, ceilings: Peaks | None, draw: random.Random) -> dict[str, Any]:
    """A node that takes between 1.1 and 3 times as long as its peaks allow, and never less than 1.5 µs."""
    problem = node.problem
    least = bound_and_limit(ceilings, problem.flops(), problem.bytes()) if ceilings else None
    time_s = max(1.5e-6, least[0] * draw.uniform(1.1, 3.0)) if least else None
    variant = draw.choice(["nhwc_implicit_gemm[BM=128,BN=64,SPLIT=4]", "vec4", "split_k_vector_per_warp[WARPS=8]"])
    return {
        "name": node.name,
        "operator": node.operator,
        "problem": str(problem),
        "case": f"{node.operator}/{variant}{problem}",
        "title": "A variant of the ladder, as its header has it",
        "precision": "f32",
        "inputs": dict(node.inputs),
        "outputs": dict(node.outputs),
        "kernels": [f"{node.operator}_kernel"],
        "flops": problem.flops(),
        "compulsory_bytes": problem.bytes(),
        "kernel_s": time_s,
        "bound_s": least[0] if least else None,
        "bound": least[1] if least else None,
        "roof_share": least[0] / time_s if least and time_s else None,
        "source": draw.choice(["run reports/h200/networks/tune", "tuned", "default"]),
        "tied_with": [],
        "lead": 1.12,
        "check": {
            "right": True,
            "worst_error": 1.2e-7,
            "allowed_error": 3e-6,
            "norm_error": 8e-8,
            "allowed_norm_error": 1e-6,
            "reason": "",
        },
    }


def _memory(graph: Graph) -> dict[str, Any]:
    """Return a first-fit memory layout in the order of the nodes; a page needs no better one."""
    names = [name for name, v in graph.values.items() if name not in graph.weights and not v.of]
    born = dict.fromkeys(graph.inputs, 0)
    dies = {graph.base(name): len(graph.nodes) for name in graph.outputs}
    for number, node in enumerate(graph.nodes):
        born |= {graph.base(name): number for name in node.outputs.values()}
        for name in node.inputs.values():
            dies[graph.base(name)] = max(dies.get(graph.base(name), 0), number)
    offsets: dict[str, int] = {}
    for name in sorted(names, key=lambda n: (born[n], n)):
        size, at = graph.values[name].nbytes, 0
        alive = [o for o in offsets if dies.get(o, 0) >= born[name] and born[o] <= dies.get(name, born[name])]
        for other in sorted(alive, key=lambda o: offsets[o]):
            if at + size > offsets[other]:
                at = max(at, offsets[other] + graph.values[other].nbytes)
        offsets[name] = at
    alive_at = [
        sum(graph.values[n].nbytes for n in names if born[n] <= t <= dies.get(n, born[n]))
        for t in range(len(graph.nodes))
    ]
    return {
        "peak_bytes": max(offsets[n] + graph.values[n].nbytes for n in names),
        "naive_bytes": sum(graph.values[n].nbytes for n in names),
        "lower_bound_bytes": max(alive_at),
        "weights_bytes": sum(graph.values[n].nbytes for n in graph.weights),
        "offsets": offsets,
    }
