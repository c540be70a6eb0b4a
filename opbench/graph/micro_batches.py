"""Split a training step into micro-batches: each writes its gradients, and the optimiser reads their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from opbench.graph.graph import Graph
from opbench.graph.training_step import ALIGNMENT, CLIP, NEXT, Exchange, Training
from opbench.graph.values import Node, Value
from opbench.kernels.expression import round_up
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator

MICRO, MICRO_NEXT = "micro", "micro.next"
"""Names of the micro-batch's number in the training, from 1, which selects the data and dropout's mask."""
GRADIENTS, GRADIENT_SUM, STATISTICS_ARENA = "gradients", "gradients.sum", "statistics"
ONCE_PER_STEP = ("tick", "statistics", "record", CLIP, "optimizer")
"""Nodes that run once per step, in order."""


def with_micro_batches(training: Training) -> Training:
    """Return the training step for a recipe with several micro-batches, on one rank or on several.

    A micro-batch reads the state that the step before left, and writes gradients, new running statistics and
    its loss into one flat arena. The arenas are added in the order of the micro-batches, each sum rounded once:
    within a rank by the node `accumulate`, between ranks by their exchange, with the same bits. Then the nodes
    that run once per step count the step, record the loss, take the mean of the running statistics and update
    the parameters.
    """
    draft = _MicroBatchBuilder(training)
    graph = draft.graph()
    return replace(
        training,
        graph=graph,
        groups={**training.groups, **draft.groups},
        statistics={
            weight: (STATISTICS_ARENA, draft.statistic_offsets[name])
            for weight, (name, _) in training.statistics.items()
        },
        exchange=Exchange(
            GRADIENTS,
            draft.total,
            frozenset(n.name for n in graph.nodes if n.name in ONCE_PER_STEP),
            "accumulate" if draft.accumulates else "",
        ),
    )


@dataclass
class _MicroBatchBuilder:
    """A training step with several micro-batches, under construction from a step with one."""

    training: Training
    statistic_offsets: dict[str, int] = field(default_factory=dict)
    """For each running statistic, its first element in their arena."""
    groups: dict[str, str] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.values, self.state = dict(self.training.graph.values), dict(self.training.graph.state)
        self.weights = dict(self.training.graph.weights)
        self.accumulates = self.training.recipe.accumulate > 1
        self.total = GRADIENT_SUM if self.accumulates else GRADIENTS
        self.sum_value = f"{GRADIENT_SUM}.next" if self.accumulates else GRADIENTS
        """The value that holds the sum."""
        self.gradient_elements = self.values[GRADIENTS].elements
        """Number of gradient elements; statistics and loss follow them."""

    def graph(self) -> Graph:
        """Return the whole graph: the nodes of one micro-batch, then those of the update."""
        counter = self._counter_node()
        average_node = self._average_statistics()
        self._place_loss()
        accumulation_nodes = self._accumulation_nodes()
        nodes = {node.name: self._node_for_micro_batch(node) for node in self.training.graph.nodes}
        nodes_per_micro_batch = [node for name, node in nodes.items() if name not in ONCE_PER_STEP]
        nodes_per_step = {"statistics": average_node} if average_node else {}
        nodes_per_step |= {name: nodes[name] for name in ONCE_PER_STEP if name in nodes}
        ordered_step_nodes = [nodes_per_step[name] for name in ONCE_PER_STEP if name in nodes_per_step]
        return Graph(
            self.training.graph.name,
            self.values,
            (counter, *nodes_per_micro_batch, *accumulation_nodes, *ordered_step_nodes),
            (),
            ("loss.sum",),
            self.weights,
            self.state,
        )

    def _counter_node(self) -> Node:
        """Return the node that counts micro-batches."""
        ranks = self.training.recipe.ranks
        self.values |= {MICRO: Value(MICRO, (1,), "i32"), MICRO_NEXT: Value(MICRO_NEXT, (1,), "i32", updates=MICRO)}
        self.state[MICRO] = np.array([1 - ranks], np.int32)
        self.groups["advance"] = "data"
        problem = self._make_problem("advance", {"stride": ranks})
        return Node("advance", "advance", problem, {"count": MICRO}, {"new_count": MICRO_NEXT})

    def _average_statistics(self) -> Node | None:
        """Store the running statistics of all micro-batches in one buffer; return the node that averages them."""
        names = [name for name, _ in self.training.statistics.values()]
        if not names:
            return None
        end_element = 0
        for name in names:
            self.statistic_offsets[name] = end_element
            end_element += round_up(self.values[name].elements, ALIGNMENT)
        arena = np.zeros(end_element, np.float32)
        for name, start in self.statistic_offsets.items():
            array = self.state.pop(name)
            arena[start : start + array.size] = array
            self.values[name] = replace(self.values[name], of=STATISTICS_ARENA, offset=start)
            next_value = self.values[f"{name}.next"]
            self.values[next_value.name] = replace(
                next_value, updates="", of=GRADIENTS, offset=self.gradient_elements + start
            )
        self.state[STATISTICS_ARENA] = arena
        self.weights["micro_batches"] = np.array([self.training.recipe.micro_batches], np.float32)
        self.values |= {
            STATISTICS_ARENA: Value(STATISTICS_ARENA, (end_element,)),
            f"{STATISTICS_ARENA}.next": Value(f"{STATISTICS_ARENA}.next", (end_element,), updates=STATISTICS_ARENA),
            f"{STATISTICS_ARENA}.sum": Value(
                f"{STATISTICS_ARENA}.sum", (end_element,), of=self.sum_value, offset=self.gradient_elements
            ),
            "micro_batches": Value("micro_batches", (1,)),
        }
        self.groups["statistics"] = "optimizer"
        axes = {"op": "div", "broadcast": "scalar", "outer": 1, "channels": 1, "inner": end_element}
        inputs = {"a": f"{STATISTICS_ARENA}.sum", "b": "micro_batches"}
        return Node(
            "statistics",
            "elementwise",
            self._make_problem("elementwise", axes),
            inputs,
            {"out": f"{STATISTICS_ARENA}.next"},
        )

    def _place_loss(self) -> None:
        """Place the loss at the end of the arena, and record the sum of losses."""
        loss_element = self.gradient_elements + (
            self.state[STATISTICS_ARENA].size if STATISTICS_ARENA in self.state else 0
        )
        self.values["loss"] = replace(self.values["loss"], of=GRADIENTS, offset=loss_element)
        self.values["loss.sum"] = Value("loss.sum", (1,), of=self.sum_value, offset=loss_element)
        self.values["gradients.learned"] = Value("gradients.learned", (self.gradient_elements,), of=self.sum_value)
        self.size = loss_element + ALIGNMENT

    def _accumulation_nodes(self) -> list[Node]:
        """Return the node that adds a micro-batch's gradients to the sum; none if each rank has one micro-batch."""
        self.values[GRADIENTS] = Value(GRADIENTS, (self.size,))
        self.state[GRADIENTS] = np.zeros(self.size, np.float32)
        if not self.accumulates:
            return []
        self.values |= {
            GRADIENT_SUM: Value(GRADIENT_SUM, (self.size,)),
            self.sum_value: Value(self.sum_value, (self.size,), updates=GRADIENT_SUM),
        }
        self.state[GRADIENT_SUM] = np.zeros(self.size, np.float32)
        self.groups["accumulate"] = "exchange"
        problem = self._make_problem("accumulate", {"n": self.size})
        return [
            Node(
                "accumulate",
                "accumulate",
                problem,
                {"total": GRADIENT_SUM, "part": GRADIENTS},
                {"new_total": self.sum_value},
            )
        ]

    def _node_for_micro_batch(self, node: Node) -> Node:
        """Return a node changed for micro-batches.

        It reads the micro-batch's number instead of the step's or, if it runs once per step, the sums.
        """
        if node.name not in ONCE_PER_STEP:
            return replace(node, inputs={t: MICRO_NEXT if name == NEXT else name for t, name in node.inputs.items()})
        sums = {GRADIENTS: "gradients.learned", "loss": "loss.sum"}
        return replace(node, inputs={tensor: sums.get(name, name) for tensor, name in node.inputs.items()})

    def _make_problem(self, operator: str, axes: Mapping[str, object]) -> Operator:
        """Return the problem of the operator with this name and these axes."""
        return self.catalog.operator(operator).from_axes(axes)
