"""Reverse-mode differentiation: add the nodes that compute the gradients of a network's parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.values import Node, Value, seen_flat, splits_axes
from opbench.kernels.backward import forward_tensor_of, gradient_entries, problem_of_entry
from opbench.kernels.folders import Catalog
from opbench.kernels.gradient import GRADIENT_PREFIX, Gradient


def append_backward(graph: Graph, seeds: Mapping[str, str], wanted: Collection[str]) -> tuple[Graph, dict[str, str]]:
    """Return the network with backward nodes, and the gradient's value for each wanted value.

    `seeds` maps values to the values that hold the loss's gradient with respect to them. The backward nodes of
    a node follow its operator's rule. The gradients from several readers of a value are added in the order of
    the backward pass, which is the reverse node order. Raises UsageError, naming the node, for an operator
    without a rule, and for a wanted value that the seeds do not depend on.
    """
    draft = _Backward(graph, seeds, wanted)
    for node in reversed(graph.nodes):
        draft.pass_back(node)
    gradients = {}
    for name in wanted:
        gradient = draft.gradient(name)
        if gradient is None:
            raise UsageError(
                f"{graph.name}: no loss depends on '{name}'; exclude it from training",
                kind="no-gradient-path",
                subject=name,
            )
        gradients[name] = gradient
    return replace(graph, values=draft.values, nodes=(*graph.nodes, *draft.nodes)), gradients


@dataclass
class _Backward:
    """The backward pass under construction."""

    graph: Graph
    seeds: Mapping[str, str]
    wanted: Collection[str]
    nodes: list[Node] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)
    """For each value with its own memory, the gradients from its readers."""
    summed: dict[str, str] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)
        self.carried, self.reaching = self._depending_on_wanted(), self._reaching_seeds()
        for name, gradient in self.seeds.items():
            self._add_part(name, gradient)

    def _depending_on_wanted(self) -> set[str]:
        """Return the values that depend on a wanted value; views are represented by their origin."""
        carried = {self._viewed_value(name) for name in self.wanted}
        for node in self.graph.nodes:
            if any(self._viewed_value(name) in carried for name in node.inputs.values()):
                carried |= {self._viewed_value(name) for name in node.outputs.values()}
        return carried

    def _reaching_seeds(self) -> set[str]:
        """Return the values on which a seed depends; views are represented by their origin."""
        reaching = {self._viewed_value(name) for name in self.seeds}
        for node in reversed(self.graph.nodes):
            if any(self._viewed_value(name) in reaching for name in node.outputs.values()):
                reaching |= {self._viewed_value(name) for name in node.inputs.values()}
        return reaching

    def _viewed_value(self, name: str) -> str:
        """Return the value that a view shows completely; a partial view, such as a parameter, is returned itself."""
        value = self.graph.values[name]
        whole = value.of and self.graph.values[value.of].elements == value.elements
        return self._viewed_value(value.of) if whole else name

    def pass_back(self, node: Node) -> None:
        """Add the nodes that compute the gradients of a node's inputs from those of its results."""
        wanted = [tensor for tensor, name in node.inputs.items() if self._viewed_value(name) in self.carried]
        cotangents = {tensor: self.gradient(name) for tensor, name in node.outputs.items()}
        if not wanted or not any(cotangents.values()):
            return
        names = {**node.inputs, **node.outputs}
        names |= {GRADIENT_PREFIX + tensor: gradient for tensor, gradient in cotangents.items() if gradient}
        entries = [
            entry for entry in gradient_entries(node.problem, wanted, node.name) if entry.operator or entry.outputs
        ]
        for entry in entries:
            if missing := [tied for tied in entry.inputs.values() if tied not in names]:
                raise UsageError(
                    f"{node.name}: its gradient needs '{missing[0]}', and no loss depends on that; "
                    "use all its results or remove them"
                )
            if entry.operator:
                self._append_node(node, entry, names)
            else:
                (source,), (target,) = entry.inputs.values(), entry.outputs.values()
                names[target] = self._reshaped_gradient(names[source], names[target.removeprefix(GRADIENT_PREFIX)])
        for tensor in wanted:
            self._add_part(node.inputs[tensor], names[GRADIENT_PREFIX + tensor])

    def _append_node(self, node: Node, entry: Gradient, names: dict[str, str]) -> None:
        problem = problem_of_entry(entry, self.catalog.operator, node.name)
        outputs = {}
        for tensor in problem.output_tensors():
            tied = entry.outputs.get(tensor.name, f"{entry.operator}.{tensor.name}")
            if tensor.name in entry.outputs:
                forward = self.graph.values[names[forward_tensor_of(node.problem, tied).name]]
                name = self._gradient_name(forward.name, node, tied)
                shape, layout = forward.shape, forward.layout
                if not (shape == tensor.shape or seen_flat(shape, tensor.shape) or splits_axes(shape, tensor.shape)):
                    shape, layout = tensor.shape, "nchw"  # the operator merges axes: a view has the value's shape
            else:  # a result that is not requested
                name, shape, layout = f"{node.name}.{tied}", tensor.shape, "nchw"
            self.values[name] = Value(name, shape, tensor.dtype, layout)
            outputs[tensor.name] = names[tied] = name
        inputs = {tensor: names[tied] for tensor, tied in entry.inputs.items()}
        name, taken = f"{node.name}.{entry.operator}", {other.name for other in self.nodes}
        if name in taken:
            name += f".{next(iter(entry.outputs.values())).removeprefix(GRADIENT_PREFIX)}"
        self.nodes.append(Node(name, entry.operator, problem, inputs, outputs))

    def _gradient_name(self, forward: str, node: Node, tied: str) -> str:
        """Return the name of a gradient: d.VALUE if it is the only one of a value, else with node and tensor."""
        if not tied.startswith(GRADIENT_PREFIX):
            return f"{GRADIENT_PREFIX}{node.name}.{tied}"
        readers = [
            (reader.name, tensor)
            for reader in self.graph.nodes
            for tensor, name in reader.inputs.items()
            if self._viewed_value(name) == self._viewed_value(forward)
            and any(self._viewed_value(v) in self.reaching for v in reader.outputs.values())
        ]
        alone = len(readers) < 2 and not any(
            self._viewed_value(seed) == self._viewed_value(forward) for seed in self.seeds
        )
        tensor = tied.removeprefix(GRADIENT_PREFIX)
        return f"{GRADIENT_PREFIX}{forward}" if alone else f"{GRADIENT_PREFIX}{forward}.{node.name}.{tensor}"

    def _reshaped_gradient(self, name: str, like: str) -> str:
        """Return a gradient in the shape of another value."""
        value, wanted = self.values[name], self.values[like]
        if value.shape == wanted.shape:
            return name
        view = f"{name}.as_{'x'.join(map(str, wanted.shape))}"
        self.values.setdefault(view, Value(view, wanted.shape, value.dtype, wanted.layout, of=name))
        return view

    def _add_part(self, name: str, gradient: str) -> None:
        origin = self._viewed_value(name)
        self.parts.setdefault(origin, []).append(self._reshaped_gradient(gradient, origin))

    def gradient(self, name: str) -> str | None:
        """Return the value that holds the complete gradient of a value; None if no loss depends on the value."""
        origin = self._viewed_value(name)
        if origin not in self.summed:
            if not (parts := self.parts.get(origin)):
                return None
            total = parts[0]
            for number, part in enumerate(parts[1:], start=1):
                last = number + 1 == len(parts)
                total = self._add_sum(
                    origin, total, part, f"{GRADIENT_PREFIX}{origin}" + ("" if last else f".sum{number}")
                )
            self.summed[origin] = total
        return self._reshaped_gradient(self.summed[origin], name)

    def _add_sum(self, origin: str, addend: str, other: str, name: str) -> str:
        value, dtype = self.graph.values[origin], self.values[addend].dtype  # f32 of a parameter that is stored in bf16
        axes = {"op": "add", "outer": 1, "channels": 1, "inner": value.elements, "dtype": dtype}
        problem = self.catalog.operator("elementwise").from_axes(axes)
        self.values[name] = Value(name, value.shape, dtype, value.layout)
        self.nodes.append(Node(f"{name}.add", "elementwise", problem, {"a": addend, "b": other}, {"out": name}))
        return name
