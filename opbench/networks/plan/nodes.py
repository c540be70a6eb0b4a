"""Check a network's nodes one by one in a worker process, so that a crash affects only one node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import numpy as np

from opbench.errors import EnvironmentFault, OpbenchError
from opbench.graph.graph import Graph
from opbench.graph.values import Node
from opbench.kernels.case import Case
from opbench.kernels.tensors import Arrays, to_storage
from opbench.networks.records.network import NodeVerdict
from opbench.running.protocol import (
    BUILD_LIMIT_S,
    BuildModules,
    CaseUnsupported,
    CheckCase,
    ModuleBuilt,
    Notification,
    pack,
)
from opbench.running.worker import Worker, WorkerLost


def check_nodes(
    graph: Graph,
    cases: Mapping[str, Case],
    inputs: Arrays,
    worker: Worker,
    limit_s: float,
    on_start: Callable[[str], None] = lambda node: None,
) -> dict[str, NodeVerdict]:
    """Check every node on the outputs of the nodes before it, and return the checks by name.

    For a node that is not right the reference supplies the outputs, so that later nodes are judged on their
    own. A node that takes longer than `limit_s` seconds counts as hanging.
    """
    failures = _compile_cases(cases, worker)
    values = {name: _to_stored_form(graph, name, array) for name, array in inputs.items()}
    verdicts = {}
    for node in graph.nodes:
        on_start(node.name)
        node_inputs = {
            t.name: _value(graph, values, value).reshape(t.shape)
            for t, value in node.tensors()
            if t.name in node.inputs
        }
        case = cases[node.name]
        outputs: Arrays = {}
        if case.name in failures:
            verdicts[node.name] = NodeVerdict(False, "failed", failures[case.name])
        else:
            verdicts[node.name], outputs = _check_node(case, node_inputs, worker, limit_s)
        if not verdicts[node.name].right:
            outputs = _reference_outputs(node, node_inputs)
        for name, value in node.outputs.items():
            _store_output(graph, values, value, outputs[name])
    return verdicts


def _compile_cases(cases: Mapping[str, Case], worker: Worker) -> dict[str, str]:
    """Compile all cases together; return, by case, the reason why some cannot run."""
    distinct = list({case.name: case for case in cases.values()}.values())
    failures: dict[str, str] = {}

    def on_notification(notification: Notification) -> None:
        if isinstance(notification, CaseUnsupported):
            failures[distinct[notification.index].name] = f"unsupported: {notification.reason}"
        elif isinstance(notification, ModuleBuilt) and notification.error:
            failures.update((distinct[index].name, str(notification.error)) for index in notification.indices)

    # If the compiler crashes, only its own case fails: each case is compiled again, alone, when it is checked.
    with contextlib.suppress(WorkerLost):
        worker.ask(BuildModules([pack(case) for case in distinct]), BUILD_LIMIT_S, on_notification)
    return failures


def _check_node(case: Case, inputs: Arrays, worker: Worker, limit_s: float) -> tuple[NodeVerdict, Arrays]:
    """Check one node; return the check and, if it is right, the node's outputs."""
    try:
        answer = worker.ask(CheckCase(pack(case), inputs), limit_s)
    except EnvironmentFault:
        raise
    except OpbenchError as error:
        return NodeVerdict(False, "failed", str(error)), {}
    verdict = answer.verdict
    node_verdict = NodeVerdict(
        verdict.right,
        "right" if verdict.right else "wrong",
        verdict.reason,
        verdict.worst_error,
        verdict.allowed_error,
        verdict.norm_error,
        verdict.allowed_norm_error,
        verdict.integers,
    )
    return node_verdict, answer.outputs


def _value(graph: Graph, values: Arrays, name: str) -> np.ndarray:
    """Return a value as a flat array in its stored dtype: a weight, an input, a state, or a node's output."""
    base, start, end = graph.memory_range(name)
    if base not in values:
        values[base] = graph.state[base] if base in graph.state else _to_stored_form(graph, base, graph.weights[base])
    return values[base].reshape(-1)[start:end]


def _store_output(graph: Graph, values: Arrays, name: str, written: np.ndarray) -> None:
    """Store an output of a node: as a value of its own, or as part of a state."""
    base, start, end = graph.memory_range(name)
    if base == name:
        values[name] = written
        return
    _value(graph, values, base)
    values[base] = values[base].copy()
    values[base].reshape(-1)[start:end] = written.reshape(-1)


def _to_stored_form(graph: Graph, name: str, array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(to_storage(array, graph.values[name].dtype))


def _reference_outputs(node: Node, inputs: Arrays) -> Arrays:
    """Return the outputs that a node should compute, in their stored dtypes."""
    reference = node.problem.reference_outputs(inputs)
    return {t.name: to_storage(reference[t.name], t.dtype) for t in node.problem.output_tensors()}
