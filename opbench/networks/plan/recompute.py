"""Reduce the memory of a training step: recompute cheap values just before late readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opbench import units
from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.passes import Rewrite
from opbench.graph.training_passes import RECOMPUTE
from opbench.graph.training_step import Training
from opbench.graph.values import Node, Value
from opbench.kernels.expression import round_up
from opbench.kernels.tensors import WORKSPACE_ALIGNMENT
from opbench.networks.plan.memory import live_bytes, plan_memory
from opbench.networks.records.training import REPEATED_SUFFIX, original_node_name

if TYPE_CHECKING:
    from opbench.networks.plan.plan import Plan

NO_CHOICE: Mapping[str, int] = {}
UNUSED_INPUTS: Mapping[str, tuple[str, ...]] = {"batchnorm2d_train": ("running_mean", "running_variance")}
"""Inputs by operator that affect only results which are never recomputed."""
MAX_RUNS = 2
"""Most additional runs of a node, so that the search ends."""
CHEAP_FLOPS_PER_BYTE = 5
"""Nodes with at most this ratio are memory-bound on every GPU, so repeating one costs about the time of its bytes."""


@dataclass(frozen=True)
class Recomputation:
    """A value that is computed a second time for readers after a moment, the number of a node."""

    value: str
    moment: int
    saved_bytes: int
    """Bytes that are not live while that node runs."""
    moved_bytes: int
    """Bytes that the repeated computation moves."""


def fit_to_memory(
    training: Training,
    memory_bytes: int,
    make_plan: Callable[[Graph, int | None], Plan],
    workspaces: Callable[[Plan], Mapping[str, int]],
) -> Plan:
    """Return a training step and its plan that need at most `memory_bytes`.

    First try the step unchanged; then recompute values with the same variants, so that no bit changes; then
    also use slower variants with smaller workspaces. Raises UsageError with the least memory that suffices.
    `workspaces` gives the bytes of each node's workspace under a plan.
    """
    plan = make_plan(training.graph, None)
    sizes = workspaces(plan)
    training_step, target_bytes, recomputed = training, memory_bytes, list[tuple[str, int]]()
    while True:
        workspace_bytes = {node.name: sizes[original_node_name(node.name)] for node in training_step.graph.nodes}
        excess = plan_memory(training_step.graph, workspace_bytes).peak_bytes - memory_bytes
        if excess <= 0:
            choices = {node.name: plan.choices[original_node_name(node.name)] for node in training_step.graph.nodes}
            return replace(plan, choices=choices, again=tuple(recomputed))
        training_step, added = recompute_values(training_step, target_bytes, sizes)
        recomputed += added
        if not added:
            if _peak_memory(training_step.graph, sizes)[0] > target_bytes:
                return replace(make_plan(training_step.graph, memory_bytes), again=tuple(recomputed))
            target_bytes -= max(excess, memory_bytes // 64)  # Gaps between buffers need room, too.


def recompute_values(
    training: Training, limit_bytes: int, workspaces: Mapping[str, int] = NO_CHOICE
) -> tuple[Training, list[tuple[str, int]]]:
    """Add second runs of cheap forward nodes to a training step, until its live bytes are within the limit.

    Such activation checkpointing stops early when no further value saves memory.

    At the moment with the most live bytes, choose a value that is not needed then and that a cheap forward node
    computed: the one that moves the fewest bytes per byte saved. Later readers read it from a second run of the
    same problem on the same inputs, just before the first of them. The plan gives both runs the same variant,
    so no bit changes. Only the first run updates running statistics. `workspaces` gives the workspace bytes of
    nodes. Returns the changed step and, for `recompute_as_planned`, each recomputed value with the number of the
    node at which memory was highest.
    """
    recomputed: list[tuple[str, int]] = []
    while True:
        peak_bytes, moment = _peak_memory(training.graph, workspaces)
        improvement = _best_recomputation(training, moment, workspaces) if peak_bytes > limit_bytes else None
        if improvement is None:
            return training, recomputed
        recomputation, training = improvement
        recomputed.append((recomputation.value, recomputation.moment))


def recompute_as_planned(training: Training, recomputed: Sequence[tuple[str, int]]) -> Training:
    """Recompute the values that a plan lists; raise UsageError for a value that the step lacks."""
    for value, moment in recomputed:
        if value not in training.graph.values or training.graph.producer(value) is None:
            raise UsageError(
                f"the plan recomputes '{value}', and this training step has no such value, so the plan is for another "
                "network or other sizes; remove --plan",
                kind="no-such-value",
                subject=value,
            )
        training = _with_recomputation(training, value, moment)
    return training


def _peak_memory(graph: Graph, workspaces: Mapping[str, int]) -> tuple[int, int]:
    """Return the most bytes that are live at once, including workspaces, and the number of the first such node."""
    live = live_bytes(graph)
    totals = [live[node.name] + workspaces.get(original_node_name(node.name), 0) for node in graph.nodes]
    return max(totals), totals.index(max(totals))


def _best_recomputation(
    training: Training, moment: int, workspaces: Mapping[str, int]
) -> tuple[Recomputation, Training] | None:
    """Return the cheapest recomputation that lowers the live bytes at a moment without a new peak elsewhere."""
    graph = training.graph
    name, peak_bytes = graph.nodes[moment].name, _peak_memory(graph, workspaces)[0]
    live_now = live_bytes(graph)[name]
    cheapest = sorted(
        _recomputation_candidates(training, moment), key=lambda a: (a.moved_bytes / a.saved_bytes, a.value)
    )
    for candidate in cheapest:
        changed = _with_recomputation(training, candidate.value, moment)
        if _peak_memory(changed.graph, workspaces)[0] <= peak_bytes and live_bytes(changed.graph)[name] < live_now:
            return candidate, changed
    return None


# Candidates ---------------------------------------------------------------------------------------------------------


def _recomputation_candidates(training: Training, moment: int) -> list[Recomputation]:
    graph, groups = training.graph, training.groups
    readers = _reading_nodes(graph)
    runs = Counter(original_node_name(node.name) for node in graph.nodes)
    candidates = []
    for index, node in enumerate(graph.nodes[:moment]):
        is_cheap = node.problem.flops() <= CHEAP_FLOPS_PER_BYTE * node.problem.bytes()
        is_first_run = node.name == original_node_name(node.name) and groups.get(node.name) == "forward"
        if not is_first_run or not is_cheap or runs[node.name] > MAX_RUNS:
            continue
        for value in node.outputs.values():
            late_readers = [reader for reader in readers.get(value, ()) if reader > moment]
            is_read_now = moment in readers.get(value, ())
            if not late_readers or is_read_now or index == moment or not _owns_memory(graph, value):
                continue
            saved = round_up(graph.values[value].nbytes, WORKSPACE_ALIGNMENT) - _extended_lifetimes(
                graph, node, readers, moment, late_readers[0]
            )
            if saved > 0 and _can_repeat(graph, node, late_readers[0]):
                candidates.append(Recomputation(value, moment, saved, node.problem.bytes()))
    return candidates


def _reading_nodes(graph: Graph) -> dict[str, list[int]]:
    """Return the numbers of the nodes that read a value, or a view of it, in order."""
    result: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for base in dict.fromkeys(graph.base(name) for name in node.inputs.values()):
            result.setdefault(base, []).append(index)
    return result


def _owns_memory(graph: Graph, value: str) -> bool:
    """Return whether a value has its own memory and all its readers read the whole of it."""
    if graph.memory(value)[0] != value or value in graph.state or graph.base(value) in map(graph.base, graph.outputs):
        return False
    views = (v for v in graph.values.values() if v.of and graph.base(v.name) == value)
    return all(view.elements == graph.values[value].elements for view in views)


def _extended_lifetimes(graph: Graph, node: Node, readers: Mapping[str, list[int]], moment: int, until: int) -> int:
    """Return the bytes of a node's inputs that must stay live longer only for this recomputation."""
    bases = {graph.base(name) for name in node.inputs.values()}
    owned_bases = [base for base in bases if graph.memory(base)[0] not in (*graph.state, *graph.weights, *graph.inputs)]
    return sum(
        round_up(graph.values[base].nbytes, WORKSPACE_ALIGNMENT)
        for base in owned_bases
        if max(readers[base]) < moment < until
    )


def _can_repeat(graph: Graph, node: Node, until: int) -> bool:
    """Return whether a node's inputs are still unchanged at a later node, so that it can run again."""
    written = {name for earlier_node in graph.nodes[:until] for name in earlier_node.outputs.values()}
    updated = {graph.values[name].updates for name in written} - {""}
    unused = UNUSED_INPUTS.get(node.operator, ())
    return all(
        graph.base(name) not in updated or (tensor in unused and graph.base(name) == name)
        for tensor, name in node.inputs.items()
    )


# The changed step ---------------------------------------------------------------------------------------------------


def _with_recomputation(training: Training, value: str, moment: int) -> Training:
    """Return the step in which nodes after a moment read a value from a second run of its node."""
    graph, values = training.graph, dict(training.graph.values)
    node = graph.producer(value)
    late_readers = [first_reader for first_reader in _reading_nodes(graph).get(value, ()) if first_reader > moment]
    if node is None or not late_readers:
        return training
    first_reader = late_readers[0]
    earlier_names = {name for node in graph.nodes[:first_reader] for name in node.outputs.values()}
    views = [v.name for v in graph.values.values() if v.of and graph.base(v.name) == value]
    names = _second_run_names(graph, (node.name, *node.outputs.values(), *views))
    outputs = {}
    for tensor, name in node.outputs.items():
        outputs[tensor] = names[name]
        shape = values[name]
        values[names[name]] = Value(names[name], shape.shape, shape.dtype, shape.layout)
    repeated_node = replace(
        node,
        name=names[node.name],
        inputs={tensor: _name_before_update(graph, name, earlier_names) for tensor, name in node.inputs.items()},
        outputs=outputs,
    )
    nodes = list(graph.nodes[:first_reader])
    for reader in graph.nodes[first_reader:]:
        inputs = dict(reader.inputs)
        for tensor, name in reader.inputs.items():
            if graph.base(name) == value:
                inputs[tensor] = names[value]
                if name != value:  # `name` is a view of the value with another shape
                    inputs[tensor] = f"{name}{names[value].removeprefix(value)}"
                    values[inputs[tensor]] = replace(values[name], name=inputs[tensor], of=names[value], offset=0)
        nodes.append(replace(reader, inputs=inputs))
    nodes.insert(first_reader, repeated_node)
    notes = next((rewrite.notes for rewrite in training.rewrites if rewrite.name == RECOMPUTE), ())
    note = (
        f"{value}: computed again by {repeated_node.name}, which moves {units.si(node.problem.bytes(), 'B')}, so that "
        f"{units.si(graph.values[value].nbytes, 'B')} need not be stored"
    )
    other_rewrites = (rewrite for rewrite in training.rewrites if rewrite.name != RECOMPUTE)
    return replace(
        training,
        graph=replace(graph, values=values, nodes=tuple(nodes)),
        groups={**training.groups, repeated_node.name: training.groups.get(graph.nodes[first_reader].name, "backward")},
        rewrites=(*other_rewrites, Rewrite(RECOMPUTE, True, (*notes, note))),
    )


def _second_run_names(graph: Graph, names: Collection[str]) -> dict[str, str]:
    """Return new names for the outputs of a second run."""
    used_names = {*graph.values, *(node.name for node in graph.nodes)}
    suffix = REPEATED_SUFFIX
    while any(f"{name}{suffix}" in used_names for name in names):
        suffix += REPEATED_SUFFIX
    return {name: f"{name}{suffix}" for name in names}


def _name_before_update(graph: Graph, name: str, before: Collection[str]) -> str:
    """Return the name of a placeholder for a changed state that does not affect the value: see UNUSED_INPUTS."""
    return next((v.name for v in graph.values.values() if v.updates == name and v.name in before), name)
