"""Split a training step into micro-batches: each writes its gradients, and the optimiser reads their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from opbench.graph.graph import Graph
from opbench.graph.training_step import ALIGNMENT, CLIP, NEXT, Exchange, Training
from opbench.graph.values import Node, Value
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator

MICRO, MICRO_NEXT = "micro", "micro.next"
"""Names of the micro-batch's number in the training, from 1, which selects the data and dropout's mask."""
WRITTEN, TOTAL, RUNNING = "gradients", "gradients.sum", "statistics"
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
    draft = _Split(training)
    graph = draft.graph()
    return replace(
        training,
        graph=graph,
        groups={**training.groups, **draft.groups},
        statistics={weight: (RUNNING, draft.places[name]) for weight, (name, _) in training.statistics.items()},
        exchange=Exchange(
            WRITTEN,
            draft.total,
            frozenset(n.name for n in graph.nodes if n.name in ONCE_PER_STEP),
            "accumulate" if draft.adds else "",
        ),
    )


@dataclass
class _Split:
    training: Training
    places: dict[str, int] = field(default_factory=dict)
    """For each running statistic, its first element in their arena."""
    groups: dict[str, str] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.values, self.state = dict(self.training.graph.values), dict(self.training.graph.state)
        self.weights = dict(self.training.graph.weights)
        self.adds = self.training.recipe.accumulate > 1
        self.total = TOTAL if self.adds else WRITTEN
        self.added = f"{TOTAL}.next" if self.adds else WRITTEN
        """The value that holds the sum."""
        self.learned = self.values[WRITTEN].elements
        """Number of gradient elements; statistics and loss follow them."""

    def graph(self) -> Graph:
        """Return the whole graph: the nodes of one micro-batch, then those of the update."""
        counted = self._counter_node()
        averaged = self._average_statistics()
        self._place_loss()
        adding = self._accumulation_nodes()
        nodes = {node.name: self._node_for_micro_batch(node) for node in self.training.graph.nodes}
        repeated = [node for name, node in nodes.items() if name not in ONCE_PER_STEP]
        once = {"statistics": averaged} if averaged else {}
        once |= {name: nodes[name] for name in ONCE_PER_STEP if name in nodes}
        last = [once[name] for name in ONCE_PER_STEP if name in once]
        return Graph(
            self.training.graph.name,
            self.values,
            (counted, *repeated, *adding, *last),
            (),
            ("loss.sum",),
            self.weights,
            self.state,
        )

    def _counter_node(self) -> Node:
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
        end = 0
        for name in names:
            self.places[name] = end
            end += _round_up_to_alignment(self.values[name].elements)
        arena = np.zeros(end, np.float32)
        for name, start in self.places.items():
            array = self.state.pop(name)
            arena[start : start + array.size] = array
            self.values[name] = replace(self.values[name], of=RUNNING, offset=start)
            new = self.values[f"{name}.next"]
            self.values[new.name] = replace(new, updates="", of=WRITTEN, offset=self.learned + start)
        self.state[RUNNING] = arena
        self.weights["micro_batches"] = np.array([self.training.recipe.micro], np.float32)
        self.values |= {
            RUNNING: Value(RUNNING, (end,)),
            f"{RUNNING}.next": Value(f"{RUNNING}.next", (end,), updates=RUNNING),
            f"{RUNNING}.sum": Value(f"{RUNNING}.sum", (end,), of=self.added, offset=self.learned),
            "micro_batches": Value("micro_batches", (1,)),
        }
        self.groups["statistics"] = "optimizer"
        axes = {"op": "div", "broadcast": "scalar", "outer": 1, "channels": 1, "inner": end}
        tied = {"a": f"{RUNNING}.sum", "b": "micro_batches"}
        return Node(
            "statistics", "elementwise", self._make_problem("elementwise", axes), tied, {"out": f"{RUNNING}.next"}
        )

    def _place_loss(self) -> None:
        """Place the loss at the end of the arena, and record the sum of losses."""
        place = self.learned + (self.state[RUNNING].size if RUNNING in self.state else 0)
        self.values["loss"] = replace(self.values["loss"], of=WRITTEN, offset=place)
        self.values["loss.sum"] = Value("loss.sum", (1,), of=self.added, offset=place)
        self.values["gradients.learned"] = Value("gradients.learned", (self.learned,), of=self.added)
        self.size = place + ALIGNMENT

    def _accumulation_nodes(self) -> list[Node]:
        self.values[WRITTEN] = Value(WRITTEN, (self.size,))
        self.state[WRITTEN] = np.zeros(self.size, np.float32)
        if not self.adds:
            return []
        self.values |= {TOTAL: Value(TOTAL, (self.size,)), self.added: Value(self.added, (self.size,), updates=TOTAL)}
        self.state[TOTAL] = np.zeros(self.size, np.float32)
        self.groups["accumulate"] = "exchange"
        problem = self._make_problem("accumulate", {"n": self.size})
        return [Node("accumulate", "accumulate", problem, {"total": TOTAL, "part": WRITTEN}, {"new_total": self.added})]

    def _node_for_micro_batch(self, node: Node) -> Node:
        """Return a node changed for micro-batches.

        It reads the micro-batch's number instead of the step's or, if it runs once per step, the sums.
        """
        if node.name not in ONCE_PER_STEP:
            return replace(node, inputs={t: MICRO_NEXT if name == NEXT else name for t, name in node.inputs.items()})
        sums = {WRITTEN: "gradients.learned", "loss": "loss.sum"}
        return replace(node, inputs={tensor: sums.get(name, name) for tensor, name in node.inputs.items()})

    def _make_problem(self, operator: str, axes: Mapping[str, object]) -> Operator:
        return self.catalog.operator(operator).from_axes(axes)


def _round_up_to_alignment(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT
