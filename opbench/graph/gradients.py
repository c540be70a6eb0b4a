"""Reverse-mode differentiation: add the nodes that compute the gradients of a network's parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.values import Node, Value, fits_flat_axes, splits_axes
from opbench.kernels.backward import forward_tensor_of, gradient_entries, problem_of_entry
from opbench.kernels.folders import Catalog
from opbench.kernels.gradient import GRADIENT_PREFIX, Gradient


def append_backward(
    graph: Graph, seeds: Mapping[str, str], wanted_values: Collection[str]
) -> tuple[Graph, dict[str, str]]:
    """Return the network with backward nodes, and the gradient's value for each wanted value.

    `seeds` maps values to the values that hold the loss's gradient with respect to them. The backward nodes of
    a node follow its operator's rule. The gradients from several readers of a value are added in the order of
    the backward pass, which is the reverse node order. Raises UsageError, naming the node, for an operator
    without a rule, and for a wanted value that the seeds do not depend on.
    """
    backward = _Backward(graph, seeds, wanted_values)
    for node in reversed(graph.nodes):
        backward.add_gradients_of(node)
    gradients = {}
    for name in wanted_values:
        gradient = backward.gradient(name)
        if gradient is None:
            raise UsageError(
                f"{graph.name}: no loss depends on '{name}'; exclude '{name}' from training",
                kind="no-gradient-path",
                subject=name,
            )
        gradients[name] = gradient
    return replace(graph, values=backward.values, nodes=(*graph.nodes, *backward.nodes)), gradients


@dataclass
class _Backward:
    """The nodes and values that compute the gradients of some values, under construction."""

    graph: Graph
    seeds: Mapping[str, str]
    wanted_values: Collection[str]
    nodes: list[Node] = field(default_factory=list)
    reader_gradients: dict[str, list[str]] = field(default_factory=dict)
    """For each value with its own memory, the gradients from its readers."""
    total_gradients: dict[str, str] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)
        self.needing_gradient, self.reaching = self._depending_on_wanted(), self._reaching_seeds()
        for name, gradient in self.seeds.items():
            self._add_reader_gradient(name, gradient)

    def _depending_on_wanted(self) -> set[str]:
        """Return the values that depend on a wanted value; views are represented by their origin."""
        depending = {self._origin(name) for name in self.wanted_values}
        for node in self.graph.nodes:
            if any(self._origin(name) in depending for name in node.inputs.values()):
                depending |= {self._origin(name) for name in node.outputs.values()}
        return depending

    def _reaching_seeds(self) -> set[str]:
        """Return the values on which a seed depends; views are represented by their origin."""
        reaching = {self._origin(name) for name in self.seeds}
        for node in reversed(self.graph.nodes):
            if any(self._origin(name) in reaching for name in node.outputs.values()):
                reaching |= {self._origin(name) for name in node.inputs.values()}
        return reaching

    def _origin(self, name: str) -> str:
        """Return the value that a view shows completely; a partial view, such as a parameter, is returned itself."""
        value = self.graph.values[name]
        is_whole_view = value.of and self.graph.values[value.of].elements == value.elements
        return self._origin(value.of) if is_whole_view else name

    def add_gradients_of(self, node: Node) -> None:
        """Add the nodes that compute the gradients of a node's inputs from those of its results."""
        wanted_tensors = [tensor for tensor, name in node.inputs.items() if self._origin(name) in self.needing_gradient]
        output_gradients = {tensor: self.gradient(name) for tensor, name in node.outputs.items()}
        if not wanted_tensors or not any(output_gradients.values()):
            return
        names = {**node.inputs, **node.outputs}
        names |= {GRADIENT_PREFIX + tensor: gradient for tensor, gradient in output_gradients.items() if gradient}
        entries = [
            entry
            for entry in gradient_entries(node.problem, wanted_tensors, node.name)
            if entry.operator or entry.outputs
        ]
        for entry in entries:
            if missing := [tensor_name for tensor_name in entry.inputs.values() if tensor_name not in names]:
                raise UsageError(
                    f"{node.name}: the gradient of this node needs '{missing[0]}', on which no loss depends; use all "
                    "results of the node, or remove the unused ones",
                    kind="no-gradient-path",
                    subject=node.name,
                    value=missing[0],
                )
            if entry.operator:
                self._append_node(node, entry, names)
            else:
                (source,), (target,) = entry.inputs.values(), entry.outputs.values()
                names[target] = self._reshaped_gradient(names[source], names[target.removeprefix(GRADIENT_PREFIX)])
        for tensor in wanted_tensors:
            self._add_reader_gradient(node.inputs[tensor], names[GRADIENT_PREFIX + tensor])

    def _append_node(self, node: Node, entry: Gradient, names: dict[str, str]) -> None:
        """Add the node that one entry of an operator's gradient rule describes, and its results to `names`."""
        problem = problem_of_entry(entry, self.catalog.operator, node.name)
        outputs = {}
        for tensor in problem.output_tensors():
            tensor_name = entry.outputs.get(tensor.name, f"{entry.operator}.{tensor.name}")
            if tensor.name in entry.outputs:
                forward_value = self.graph.values[names[forward_tensor_of(node.problem, tensor_name).name]]
                name = self._gradient_name(forward_value.name, node, tensor_name)
                shape, layout = forward_value.shape, forward_value.layout
                if not (
                    shape == tensor.shape or fits_flat_axes(shape, tensor.shape) or splits_axes(shape, tensor.shape)
                ):
                    # The operator merges axes, so the gradient is a view in the value's shape.
                    shape, layout = tensor.shape, "nchw"
            else:  # The gradient rule does not name this output.
                name, shape, layout = f"{node.name}.{tensor_name}", tensor.shape, "nchw"
            self.values[name] = Value(name, shape, tensor.dtype, layout)
            outputs[tensor.name] = names[tensor_name] = name
        inputs = {tensor: names[tensor_name] for tensor, tensor_name in entry.inputs.items()}
        name, used_names = f"{node.name}.{entry.operator}", {other.name for other in self.nodes}
        if name in used_names:
            name += f".{next(iter(entry.outputs.values())).removeprefix(GRADIENT_PREFIX)}"
        self.nodes.append(Node(name, entry.operator, problem, inputs, outputs))

    def _gradient_name(self, forward_name: str, node: Node, tensor_name: str) -> str:
        """Return the name of a gradient: d.VALUE if it is the only one of a value, else with node and tensor."""
        if not tensor_name.startswith(GRADIENT_PREFIX):
            return f"{GRADIENT_PREFIX}{node.name}.{tensor_name}"
        readers = [
            (reader.name, tensor)
            for reader in self.graph.nodes
            for tensor, name in reader.inputs.items()
            if self._origin(name) == self._origin(forward_name)
            and any(self._origin(v) in self.reaching for v in reader.outputs.values())
        ]
        is_only_gradient = len(readers) < 2 and not any(
            self._origin(seed) == self._origin(forward_name) for seed in self.seeds
        )
        tensor = tensor_name.removeprefix(GRADIENT_PREFIX)
        return (
            f"{GRADIENT_PREFIX}{forward_name}"
            if is_only_gradient
            else f"{GRADIENT_PREFIX}{forward_name}.{node.name}.{tensor}"
        )

    def _reshaped_gradient(self, name: str, shape_source: str) -> str:
        """Return a gradient in the shape of another value."""
        value, shape_value = self.values[name], self.values[shape_source]
        if value.shape == shape_value.shape:
            return name
        view = f"{name}.as_{'x'.join(map(str, shape_value.shape))}"
        self.values.setdefault(view, Value(view, shape_value.shape, value.dtype, shape_value.layout, of=name))
        return view

    def _add_reader_gradient(self, name: str, gradient: str) -> None:
        """Record the gradient of a value that one of its readers gives."""
        origin = self._origin(name)
        self.reader_gradients.setdefault(origin, []).append(self._reshaped_gradient(gradient, origin))

    def gradient(self, name: str) -> str | None:
        """Return the value that holds the complete gradient of a value; None if no loss depends on the value."""
        origin = self._origin(name)
        if origin not in self.total_gradients:
            if not (gradients := self.reader_gradients.get(origin)):
                return None
            total = gradients[0]
            for number, gradient in enumerate(gradients[1:], start=1):
                is_last = number + 1 == len(gradients)
                total = self._add_sum(
                    origin, total, gradient, f"{GRADIENT_PREFIX}{origin}" + ("" if is_last else f".sum{number}")
                )
            self.total_gradients[origin] = total
        return self._reshaped_gradient(self.total_gradients[origin], name)

    def _add_sum(self, origin: str, addend: str, other: str, name: str) -> str:
        """Add the node that adds two gradients of a value; return the name of the sum."""
        # The sum is f32 even if the parameter is stored in bf16.
        value, dtype = self.graph.values[origin], self.values[addend].dtype
        axes = {"op": "add", "outer": 1, "channels": 1, "inner": value.elements, "dtype": dtype}
        problem = self.catalog.operator("elementwise").from_axes(axes)
        self.values[name] = Value(name, value.shape, dtype, value.layout)
        self.nodes.append(Node(f"{name}.add", "elementwise", problem, {"a": addend, "b": other}, {"out": name}))
        return name
