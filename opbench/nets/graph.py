"""A network as data: values, and nodes that are problems; checked when it is made."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from opbench.errors import UsageError, unknown
from opbench.operator import DTYPES, Arrays, Operator, Tensor, from_storage, to_storage


@dataclass(frozen=True)
class Value:
    """One array of a network: an input, a weight, or what a node computes."""

    name: str
    shape: tuple[int, ...]
    """As it lies in memory: an image is (n, c, h, w), or (n, h, w, c) where `layout` is "nhwc"."""
    dtype: str = "f32"
    layout: str = "nchw"
    """Order of an image's axes; of no meaning to a value of fewer than four."""
    of: str = ""
    """Name of the value whose memory this is, seen in another shape (a flattened image)."""

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def image(self) -> tuple[int, int, int, int]:
        """(n, c, h, w) of an image, whatever its layout; raises UsageError for anything else."""
        if len(self.shape) != 4:
            raise UsageError(f"'{self.name}' {self.shape} is no image: four axes are needed")
        n, *rest = self.shape
        c, h, w = rest if self.layout == "nchw" else (rest[2], rest[0], rest[1])
        return n, c, h, w


@dataclass(frozen=True)
class Node:
    """A problem with its tensors tied to values."""

    name: str
    operator: str
    problem: Operator
    inputs: Mapping[str, str]
    """Tensor of the problem to value."""
    outputs: Mapping[str, str]

    def tensors(self) -> Iterable[tuple[Tensor, str]]:
        """Every tensor of the problem with the name of its value, inputs first."""
        tied = {**self.inputs, **self.outputs}
        for tensor in (*self.problem.input_tensors(), *self.problem.output_tensors()):
            yield tensor, tied[tensor.name]


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of problems; nodes lie in an order in which they can run.

    Making one raises UsageError, naming the node, for a cycle, an unknown value, a value that two nodes produce, and
    shapes or dtypes that do not fit.
    """

    name: str
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, np.ndarray] = field(repr=False)
    """Constant values in float32, whatever they are stored as; in the memory order of their value."""

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"{self.name}: two nodes are called '{twice}'; give one of them another name")
        producers: dict[str, str] = {}
        for node in self.nodes:
            self._check_tensors(node)
            for value in node.outputs.values():
                if value in producers or value in self.inputs or value in self.weights:
                    other = producers.get(value, "an input or weight")
                    raise UsageError(f"{node.name}: it produces '{value}', as {other} does")
                producers[value] = node.name
        for name in self.outputs:
            self._known("the outputs", name)
        for name, array in self.weights.items():
            if self._known("the weights", name).shape != array.shape:
                raise UsageError(
                    f"weight '{name}' has shape {array.shape}; the network needs {self.values[name].shape}"
                )
        object.__setattr__(self, "nodes", self._ordered(producers))

    def _known(self, where: str, name: str) -> Value:
        if name not in self.values:
            raise UsageError(f"{where}: {unknown('value', name, self.values)}")
        return self.values[name]

    def _check_tensors(self, node: Node) -> None:
        """Every tensor is tied to a value that fits: of its shape or, where the problem takes it flat, of its size."""
        tied = {**node.inputs, **node.outputs}
        for tensor in (*node.problem.input_tensors(), *node.problem.output_tensors()):
            if tensor.name not in tied:
                raise UsageError(f"{node.name}: its tensor '{tensor.name}' {tensor.shape} has no value")
            value = self._known(node.name, tied[tensor.name])
            flat = len(tensor.shape) == 1 and value.elements == tensor.elements
            if value.shape != tensor.shape and not flat:
                raise UsageError(
                    f"{node.name}: {node.operator} needs '{tensor.name}' of shape {tensor.shape}, "
                    f"but '{value.name}' has {value.shape}"
                )
            if value.dtype != tensor.dtype:
                raise UsageError(
                    f"{node.name}: {node.operator} needs '{tensor.name}' in {tensor.dtype}, "
                    f"but '{value.name}' is {value.dtype}"
                )
            layout = node.problem.scope.get("layout")
            if len(tensor.shape) == 4 and layout and value.layout != layout and value.name not in self.weights:
                raise UsageError(f"{node.name}: it works in {layout}, but '{value.name}' lies in {value.layout}")

    def _ordered(self, producers: Mapping[str, str]) -> tuple[Node, ...]:
        """The nodes sorted so that each follows what it needs, otherwise as given."""
        nodes = {node.name: node for node in self.nodes}
        needs: dict[str, list[str]] = {}
        for node in self.nodes:
            needs[node.name] = []
            for value in node.inputs.values():
                base = self.base(value)
                if base in producers:
                    needs[node.name].append(producers[base])
                elif base not in self.inputs and base not in self.weights:
                    raise UsageError(f"{node.name}: nothing produces '{base}'; it is no input and no weight")
        sorter = graphlib.TopologicalSorter(needs)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise UsageError(f"{self.name}: the graph has a cycle: {' -> '.join(error.args[1])}") from None
        order: list[str] = []
        while len(order) < len(nodes):  # of those that can run the first given, so that a right order stays as it is
            order.append(next(n for n in nodes if n not in order and set(needs[n]) <= set(order)))
        return tuple(nodes[name] for name in order)

    def base(self, name: str) -> str:
        """The value in whose memory a value lies."""
        value = self._known(self.name, name)
        return self.base(value.of) if value.of else name

    def producer(self, value: str) -> Node | None:
        """The node that computes a value; None for inputs and weights."""
        base = self.base(value)
        return next((node for node in self.nodes if base in node.outputs.values()), None)

    def consumers(self, value: str) -> list[Node]:
        """The nodes that read a value, or a view of it, in order."""
        base = self.base(value)
        return [node for node in self.nodes if any(self.base(name) == base for name in node.inputs.values())]

    def node(self, name: str) -> Node:
        """A node by name."""
        nodes = {node.name: node for node in self.nodes}
        if name not in nodes:
            raise UsageError(f"{self.name}: {unknown('node', name, nodes)}")
        return nodes[name]

    def with_weights(self, weights: Mapping[str, np.ndarray]) -> Graph:
        """The same network with other weights; all must be there, in the right shapes."""
        missing = [name for name in self.weights if name not in weights]
        if missing:
            raise UsageError(f"{self.name}: weight '{missing[0]}' is missing ({len(missing)} of {len(self.weights)})")
        return replace(self, weights={name: np.asarray(weights[name], np.float32) for name in self.weights})

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Refuse missing or unknown inputs and those of another shape or kind, before anything runs."""
        for name in self.inputs:
            if name not in inputs:
                raise UsageError(f"{self.name}: input '{name}' {self.values[name].shape} is missing")
        for name, array in inputs.items():
            if name not in self.inputs:
                raise UsageError(f"{self.name}: {unknown('input', name, self.inputs)}")
            if array.shape != self.values[name].shape:
                wanted = self.values[name].shape
                raise UsageError(f"{self.name}: input '{name}' has shape {array.shape}; the network takes {wanted}")
            if array.dtype != np.float32:
                raise UsageError(
                    f"{self.name}: input '{name}' is {array.dtype}; give it as float32 (.astype('float32'))"
                )

    def reference(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Every value in float64, each node computed by its operator's reference from exact values before it.

        Inputs and weights are rounded to what they are stored in first.
        """
        self.check_inputs(inputs)
        known: Arrays = {}
        for name, array in {**inputs, **self.weights}.items():
            dtype = self.values[name].dtype
            known[name] = from_storage(to_storage(np.asarray(array, np.float32), dtype), dtype).astype(np.float64)
        for node in self.nodes:
            given = {t: self._seen(known, node, t) for t in node.inputs}
            result = node.problem.reference(**given)
            if not isinstance(result, dict):
                result = {next(iter(node.outputs)): result}
            for tensor, value in node.outputs.items():
                known[value] = result[tensor].reshape(self.values[value].shape)
        return known

    def _seen(self, known: Mapping[str, np.ndarray], node: Node, tensor: str) -> np.ndarray:
        """A value in the shape that a node's tensor has."""
        shape = next(t.shape for t in node.problem.input_tensors() if t.name == tensor)
        return known[self.base(node.inputs[tensor])].reshape(shape)
