"""A network as data: values, and nodes that are problems; the constructor checks it."""

from __future__ import annotations

import graphlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from html import escape

import numpy as np

from opbench import units
from opbench.errors import UsageError, unknown_name
from opbench.graph.values import Node, Value, fits_flat_axes, splits_axes
from opbench.kernels.arrays import compute_on_gpu
from opbench.kernels.operator import LONG_FLOPS, Operator
from opbench.kernels.tensors import DTYPES, INTEGERS, Arrays, from_storage, to_storage

MAX_SHOWN_NODES = 40
"""The most nodes that a notebook shows; `Graph.nodes` has all of them."""
LEFT_ALIGNED = 'style="text-align:left;overflow-wrap:anywhere"'


@dataclass(frozen=True, repr=False)
class Graph:
    """A directed acyclic graph of problems; its nodes are in topological order.

    State outlives a run: a node may overwrite it (`Value.updates`) after all its readers, or write parts of it,
    which all other nodes then read. Construction raises UsageError, naming the node, for a cycle, an unknown
    value, a value that two nodes produce, and shapes, dtypes or layouts that do not fit.
    """

    name: str
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, np.ndarray] = field(repr=False)
    """Constants in float32, whatever dtype they are stored in, in the memory order of their value."""
    state: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    """Values that outlive a run (parameters, moments, counters, data), with their initial content in stored form."""

    def __repr__(self) -> str:
        return f"<Graph {self.title()}>"

    def make_inputs(self, seed: int) -> Arrays:
        """Return seeded normals for each input, and valid integers for inputs that hold indices."""
        rng = np.random.default_rng(seed)
        result = {}
        for name in self.inputs:
            value = self.values[name]
            # Integers are drawn as the node that reads them requires: not every integer is a valid index.
            if value.dtype in INTEGERS:
                node, tensor = next((node, t) for node in self.nodes for t, v in node.inputs.items() if v == name)
                result[name] = node.problem.make_inputs(seed)[tensor].reshape(value.shape)
            else:
                result[name] = rng.standard_normal(value.shape, np.float32)
        return result

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        return self.to_html(self.title(), {})

    def title(self) -> str:
        """Return a summary such as "lenet: 7 nodes, 61,706 weights, 833 kFLOP"."""
        weights = sum(math.prod(array.shape) for array in (*self.weights.values(), *self.state.values()))
        flops = sum(node.problem.flops() for node in self.nodes)
        return (
            f"{self.name}: {units.count_noun(len(self.nodes), 'node')}, {weights:,} weights, {units.si(flops, 'FLOP')}"
        )

    def to_html(self, title: str, variants: Mapping[str, str]) -> str:
        """Return an HTML table of the nodes: problem, outputs and, if known, variant.

        All text is escaped.
        """
        column_names = ("node", "problem", "output", *(("variant",) if variants else ()))
        rows = ""
        for node in self.nodes[:MAX_SHOWN_NODES]:
            shapes = ["×".join(map(str, self.values[name].shape)) for name in node.outputs.values()]
            cells = [node.name, f"{node.operator}{node.problem}", ", ".join(shapes)]
            cells += [variants.get(node.name, "–")] if variants else []
            rows += "<tr>" + "".join(f"<td {LEFT_ALIGNED}>{escape(cell)}</td>" for cell in cells) + "</tr>"
        hidden_count = len(self.nodes) - MAX_SHOWN_NODES
        hidden_text = f"<p>… and {hidden_count} more nodes</p>" if hidden_count > 0 else ""
        header_cells = "".join(f"<th {LEFT_ALIGNED}>{name}</th>" for name in column_names)
        table = f"<table><thead><tr>{header_cells}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<div><p><b>{escape(title)}</b></p>{table}{hidden_text}</div>"

    def __post_init__(self) -> None:
        name_counts = Counter(node.name for node in self.nodes)
        if duplicate := next((name for name, count in name_counts.items() if count > 1), None):
            raise UsageError(
                f"{self.name}: two nodes are called '{duplicate}'; give one of them another name",
                kind="duplicate-name",
                subject=duplicate,
            )
        self._check_inputs_and_weights()
        for value in self.values.values():
            self._check_view(value)
        for node in self.nodes:
            self._check_tensors(node)
        self._check_outputs()
        predecessors = self._predecessors()
        object.__setattr__(self, "nodes", self._topological_order(predecessors))
        object.__setattr__(self, "_waits", {name: tuple(names) for name, names in predecessors.items()})

    def _check_outputs(self) -> None:
        """Check that one node at most produces each value, and that state is written as its operator allows."""
        producers: dict[str, str] = {}
        written_ranges: dict[str, list[tuple[int, int, str]]] = {}
        for node in self.nodes:
            for tensor, out in node.outputs.items():
                value, base = self.values[out], self.base(out)
                is_part_of_state = value.of and base in self.state
                is_given = (
                    out in self.inputs
                    or out in self.weights
                    or out in self.state
                    or (value.of and not is_part_of_state)
                )
                if out in producers or is_given:
                    other_producer = producers.get(out, "")
                    other_source = (
                        f"the result of {other_producer}"
                        if other_producer
                        else "a view"
                        if value.of
                        else "an input, weight or state"
                    )
                    raise UsageError(
                        f"{node.name}: this node produces '{out}', but '{out}' is already {other_source}; give the "
                        "result of this node another name",
                        kind="two-producers",
                        subject=node.name,
                        value=out,
                    )
                producers[out] = node.name
                if is_part_of_state:
                    written_ranges.setdefault(base, []).append((*self.memory_range(out)[1:], node.name))
                if value.updates:
                    self._check_update(node, tensor, value)
        for base, ranges in written_ranges.items():
            ranges.sort()
            for (_, end, first_writer), (start, _, second_writer) in itertools.pairwise(ranges):
                if start < end:
                    raise UsageError(
                        f"{second_writer}: this node writes elements of '{base}' that the node {first_writer} also "
                        f"writes; give the two results separate ranges of '{base}'",
                        kind="written-twice",
                        subject=second_writer,
                    )
        for name in self.outputs:
            if (base := self.base(name)) not in producers and base not in (*self.inputs, *self.state):
                raise UsageError(
                    f"{self.name}: no node produces the output '{name}'; add a node that outputs '{name}', or remove "
                    f"'{name}' from outputs",
                    kind="no-producer",
                    subject="outputs",
                    value=name,
                )

    def _check_update(self, node: Node, tensor: str, value: Value) -> None:
        """Check that a node either does not read the state that it overwrites, or may update it in place."""
        state = self._require_value(node.name, value.updates)
        if state.name not in self.state or (state.shape, state.dtype) != (value.shape, value.dtype):
            raise UsageError(
                f"{node.name}: '{value.name}' updates '{state.name}', which is not a state of shape {value.shape} "
                f"and dtype {value.dtype}; declare such a state, or update another one",
                kind="other-shape",
                subject=node.name,
            )
        in_place_input = node.problem.in_place.get(tensor)
        is_unread = all(self.base(name) != state.name for name in node.inputs.values())
        if not (is_unread if in_place_input is None else node.inputs[in_place_input] == state.name):
            replaceable = ", ".join(node.problem.in_place.values())
            over = (
                f"{node.operator} may overwrite only {replaceable}"
                if replaceable
                else "the operator overwrites no input"
            )
            raise UsageError(
                f"{node.name}: {node.operator} cannot write '{tensor}' over the state '{state.name}', because "
                f"{over}; write '{tensor}' to a new value",
                kind="not-in-place",
                subject=node.name,
            )
        if other_updates := [v.name for v in self.values.values() if v.updates == state.name and v.name != value.name]:
            raise UsageError(
                f"{node.name}: the state '{state.name}' is updated twice, by '{value.name}' and "
                f"'{other_updates[0]}'; remove one of the two updates",
                kind="updated-twice",
                subject=node.name,
            )

    def _require_value(self, owner: str, name: str) -> Value:
        """Return a value by name; raise UsageError that names the owner for an unknown name."""
        if name not in self.values:
            raise UsageError(unknown_name("value", name, self.values, place=owner))
        return self.values[name]

    def _check_inputs_and_weights(self) -> None:
        """Check that inputs, outputs, weights and state are values, and that arrays have the right shape and dtype."""
        names_by_role = {"inputs": self.inputs, "outputs": self.outputs, "weights": self.weights, "state": self.state}
        for role, names in names_by_role.items():
            for name in names:
                self._require_value(f"{self.name}: the {role}", name)
        given_names = [*self.inputs, *self.weights, *self.state]
        for name in given_names:
            if self.values[name].of or self.values[name].updates:
                raise UsageError(
                    f"{self.name}: '{name}' is an input, weight or state, so '{name}' cannot be a view of another "
                    f"value; remove the fields 'of' and 'updates' of '{name}'",
                    kind="view-of-input",
                    subject=name,
                )
            if given_names.count(name) > 1:
                raise UsageError(
                    f"{self.name}: '{name}' occurs twice among inputs, weights and state; remove one of the two "
                    "entries",
                    kind="duplicate-name",
                    subject=name,
                )
        for name, array in self.state.items():
            value = self.values[name]
            if (array.shape, array.dtype) != (value.shape, DTYPES[value.dtype]):
                raise UsageError(
                    f"state '{name}' is {array.dtype}{list(array.shape)}; give an array of "
                    f"{value.dtype}{list(value.shape)}",
                    kind="other-shape",
                    subject=name,
                    value=(str(array.dtype), array.shape),
                    allowed=(value.dtype, value.shape),
                )
        for name, array in self.weights.items():
            if array.shape != self.values[name].shape:
                raise UsageError(
                    f"the array for weight '{name}' has shape {array.shape}; give an array of shape "
                    f"{self.values[name].shape}",
                    kind="other-shape",
                    subject=name,
                    value=array.shape,
                    allowed=self.values[name].shape,
                )
            if array.dtype != np.float32:
                raise UsageError(
                    f"weight '{name}' is {array.dtype}; convert the array with .astype('float32')",
                    kind="other-dtype",
                    subject=name,
                    value=str(array.dtype),
                    allowed="float32",
                )

    def _check_view(self, value: Value) -> None:
        """Check that a view refers to a value with memory, and that its size, offset and dtype fit."""
        visited = [value.name]
        while of := self.values[visited[-1]].of:
            base = self._require_value(value.name, of)
            if of in visited:
                raise UsageError(
                    f"{self.name}: views refer to each other in a cycle, {' -> '.join([*visited, of])}; "
                    "let one of them refer to a value with memory",
                    kind="view-cycle",
                    subject=self.name,
                    value=(*visited, of),
                )
            is_inside = 0 <= value.offset <= base.elements - value.elements
            # A view of a part needs a base with one axis.
            is_flat_or_whole = base.elements == value.elements or len(base.shape) == 1
            if base.dtype != value.dtype or not is_inside or not is_flat_or_whole:
                raise UsageError(
                    f"{self.name}: '{value.name}' {value.shape} {value.dtype} cannot be a view of '{base.name}' "
                    f"{base.shape} {base.dtype} from its element {value.offset} on; a view needs the dtype of "
                    f"'{base.name}', and either as many elements as '{base.name}' or a range of a '{base.name}' with "
                    "one axis",
                    kind="view-does-not-fit",
                    subject=value.name,
                    value=value.offset,
                    allowed=base.name,
                )
            visited.append(of)
            value = replace(value, offset=value.offset + base.offset) if base.of else value

    def _check_tensors(self, node: Node) -> None:
        """Check that every tensor is connected to a value of the same shape, dtype and layout."""
        value_by_tensor = {**node.inputs, **node.outputs}
        tensors = (*node.problem.input_tensors(), *node.problem.output_tensors())
        if extra_tensors := sorted(value_by_tensor.keys() - {tensor.name for tensor in tensors}):
            raise UsageError(unknown_name("tensor", extra_tensors[0], [t.name for t in tensors], place=node.name))
        layouts = node.layouts
        images: list[Value] = []
        for tensor in tensors:
            if tensor.name not in value_by_tensor:
                raise UsageError(
                    f"{node.name}: the tensor '{tensor.name}' {tensor.shape} of this node has no value; connect "
                    f"'{tensor.name}' to a value of that shape",
                    kind="missing-tensor",
                    subject=node.name,
                    value=tensor.name,
                )
            value = self._require_value(node.name, value_by_tensor[tensor.name])
            splits = tensor.name not in layouts and splits_axes(value.shape, tensor.shape)
            if value.shape != tensor.shape and not splits and not fits_flat_axes(value.shape, tensor.shape):
                raise UsageError(
                    f"{node.name}: {node.operator} needs '{tensor.name}' of shape {tensor.shape}, but '{value.name}' "
                    f"has {value.shape}; connect a value of the right shape, or change the sizes of the node",
                    kind="other-shape",
                    subject=node.name,
                    value=value.shape,
                    allowed=tensor.shape,
                )
            if value.dtype != tensor.dtype:
                raise UsageError(
                    f"{node.name}: {node.operator} needs '{tensor.name}' in {tensor.dtype}, but '{value.name}' is "
                    f"{value.dtype}; connect a value in {tensor.dtype}, or change the dtype of the node",
                    kind="other-dtype",
                    subject=node.name,
                    value=value.dtype,
                    allowed=tensor.dtype,
                )
            if len(value.shape) != 4:
                continue
            images.append(value)
            if value.layout != layouts.get(tensor.name, value.layout):
                raise UsageError(
                    f"{node.name}: {node.operator} needs '{tensor.name}' in layout {layouts[tensor.name]}, but "
                    f"'{value.name}' is in layout {value.layout}; change the layout of the value or of the node",
                    kind="other-layout",
                    subject=node.name,
                    value=value.layout,
                    allowed=layouts[tensor.name],
                )
        if not layouts and (other := next((v for v in images if v.layout != images[0].layout), None)):
            raise UsageError(
                f"{node.name}: '{images[0].name}' is in layout {images[0].layout}, but '{other.name}' is in layout "
                f"{other.layout}; {node.operator} needs both in one layout, so change one of the two layouts",
                kind="mixed-layouts",
                subject=node.name,
                value=other.layout,
                allowed=images[0].layout,
            )

    def _predecessors(self) -> dict[str, list[str]]:
        """Return the nodes that must run before each node: producers of its inputs, readers of state it overwrites."""
        produced_ranges: dict[str, list[tuple[int, int, str]]] = {}
        readers: dict[str, list[str]] = {}
        for node in self.nodes:
            for out in node.outputs.values():
                base, start, end = self.memory_range(out)
                produced_ranges.setdefault(base, []).append((start, end, node.name))
            for value in node.inputs.values():
                readers.setdefault(self.base(value), []).append(node.name)
        given_names = {*self.inputs, *self.weights, *self.state}
        predecessors: dict[str, list[str]] = {}
        for node in self.nodes:
            names: dict[str, None] = {}
            for value in node.inputs.values():
                base, start, end = self.memory_range(value)
                if base not in produced_ranges and base not in given_names:
                    raise UsageError(
                        f"{node.name}: no node produces '{base}', and the graph has no such input, weight or state; "
                        f"add a node that outputs '{base}', or declare '{base}' as an input, weight or state",
                        kind="no-producer",
                        subject=node.name,
                        value=base,
                    )
                names |= {
                    name: None
                    for start_written, end_written, name in produced_ranges.get(base, ())
                    if start_written < end and start < end_written
                }
            for out in node.outputs.values():
                if state := self.values[out].updates:
                    names |= {name: None for name in readers.get(state, ()) if name != node.name}
            predecessors[node.name] = list(names)
        return predecessors

    def _topological_order(self, predecessors: Mapping[str, list[str]]) -> tuple[Node, ...]:
        """Return the nodes in topological order, with as few changes of the given order as possible."""
        nodes = {node.name: node for node in self.nodes}
        sorter = graphlib.TopologicalSorter(predecessors)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            raise UsageError(
                f"{self.name}: the graph has a cycle: {' -> '.join(error.args[1])}; change the input of one of these "
                "nodes",
                kind="graph-cycle",
                subject=self.name,
                value=tuple(error.args[1]),
            ) from None
        waiting, ordered = {name: set(before) for name, before in predecessors.items()}, []
        while waiting:  # take the first node that can run, so a correct order stays unchanged
            name = next(n for n, before in waiting.items() if not before)
            del waiting[name]
            for before in waiting.values():
                before.discard(name)
            ordered.append(nodes[name])
        return tuple(ordered)

    def base(self, name: str) -> str:
        """Return the value whose memory a value uses: itself, or the origin of a view."""
        value = self._require_value(self.name, name)
        return self.base(value.of) if value.of else name

    def memory_range(self, name: str) -> tuple[str, int, int]:
        """Return the value that owns a value's memory, and the range of elements [start, end) within that memory."""
        value, start = self._require_value(self.name, name), 0
        elements = value.elements
        while value.of:
            start, value = start + value.offset, self._require_value(self.name, value.of)
        return value.name, start, start + elements

    def memory(self, name: str) -> tuple[str, int]:
        """Return the value or the updated state that owns a value's memory, and the first element within that
        memory.
        """
        base, start, _ = self.memory_range(name)
        return self.values[base].updates or base, start

    def waits_for(self, node: str) -> tuple[str, ...]:
        """Return the nodes that must end before one starts.

        These are the producers of its inputs and the readers of state that it updates.
        """
        waits: Mapping[str, tuple[str, ...]] = vars(self)["_waits"]
        return waits[node]

    def producer(self, value: str) -> Node | None:
        """Return the node that computes a value; None for an input or a weight."""
        base = self.base(value)
        return next((node for node in self.nodes if base in node.outputs.values()), None)

    def consumers(self, value: str) -> list[Node]:
        """Return the nodes that read a value or a view of the value, in order."""
        base = self.base(value)
        return [node for node in self.nodes if any(self.base(name) == base for name in node.inputs.values())]

    def node(self, name: str) -> Node:
        """Return a node by name; raise UsageError for an unknown name."""
        nodes = {node.name: node for node in self.nodes}
        if name not in nodes:
            raise UsageError(unknown_name("node", name, nodes, place=self.name))
        return nodes[name]

    def with_weights(self, weights: Mapping[str, np.ndarray]) -> Graph:
        """Return the same network with other weights; all are required, with the right shapes."""
        for name in weights:
            if name not in self.weights:
                raise UsageError(unknown_name("weight", name, self.weights, place=self.name))
        missing = [name for name in self.weights if name not in weights]
        if missing:
            raise UsageError(
                f"{self.name}: weight '{missing[0]}' is missing ({len(missing)} of {len(self.weights)} weights are "
                "missing); add the missing arrays",
                kind="missing-weight",
                subject=missing[0],
                value=len(missing),
            )
        return replace(self, weights={name: np.asarray(weights[name], np.float32) for name in self.weights})

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise UsageError for missing or unknown inputs, and for wrong shapes or dtypes."""
        for name in self.inputs:
            if name not in inputs:
                raise UsageError(
                    f"{self.name}: input '{name}' is missing; pass {name}= an array of shape {self.values[name].shape}",
                    kind="missing-input",
                    subject=name,
                    allowed=self.values[name].shape,
                )
        for name, array in inputs.items():
            if name not in self.inputs:
                raise UsageError(unknown_name("input", name, self.inputs, place=self.name))
            if array.shape != self.values[name].shape:
                required_shape = self.values[name].shape
                raise UsageError(
                    f"{self.name}: input '{name}' has shape {array.shape}; pass an array of shape {required_shape}",
                    kind="other-shape",
                    subject=name,
                    value=array.shape,
                    allowed=required_shape,
                )
            stored_dtype = self.values[name].dtype
            required_dtype = DTYPES[stored_dtype].name if stored_dtype in INTEGERS else "float32"
            if array.dtype != required_dtype:
                raise UsageError(
                    f"{self.name}: input '{name}' is {array.dtype}; convert the array with .astype('{required_dtype}')",
                    kind="other-dtype",
                    subject=name,
                    value=str(array.dtype),
                    allowed=required_dtype,
                )

    def reference(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return every value of the network in float64, computed by the operators' references.

        Network inputs and weights are first rounded to their stored dtype.
        """
        return self._compute_values(self._float64_values(inputs), lambda problem, tensors: problem.evaluated(tensors))

    def reference_outputs(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs in float64, computed by the operators' references.

        A large network is computed on the GPU, if there is one with enough memory.
        """

        def outputs(**inputs: np.ndarray) -> Arrays:
            values = self._compute_values(inputs, lambda problem, tensors: problem.computed(**tensors))
            return {name: values[name] for name in self.outputs}

        is_large = sum(node.problem.flops() for node in self.nodes) >= LONG_FLOPS
        result: Arrays | None = compute_on_gpu(outputs, self._float64_values(inputs)) if is_large else None
        if result is not None:
            return result
        values = self.reference(inputs)
        return {name: values[name] for name in self.outputs}

    def _float64_values(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return inputs, weights and state in float64 after rounding to their stored dtypes."""
        self.check_inputs(inputs)
        arrays: Arrays = {}
        for name, array in {**inputs, **self.weights}.items():
            dtype = self.values[name].dtype
            arrays[name] = from_storage(to_storage(np.asarray(array), dtype), dtype).astype(np.float64)
        for name, array in self.state.items():
            arrays[name] = from_storage(array, self.values[name].dtype).astype(np.float64)
        return arrays

    def _compute_values(
        self, inputs: Mapping[str, np.ndarray], compute: Callable[[Operator, Arrays], Arrays]
    ) -> Arrays:
        """Return every value of the network, node by node; `compute` returns the outputs of a problem."""
        arrays = {name: array.copy() if name in self.state else array for name, array in inputs.items()}

        def view_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
            base, start, end = self.memory_range(name)
            return arrays[base].reshape(-1)[start:end].reshape(shape)

        for node in self.nodes:
            tensors = {t.name: view_of(node.inputs[t.name], t.shape) for t in node.problem.input_tensors()}
            result = compute(node.problem, tensors)
            for tensor, value in node.outputs.items():
                base, start, end = self.memory_range(value)
                if base == value:
                    arrays[value] = result[tensor].reshape(self.values[value].shape)
                else:
                    arrays[base].reshape(-1)[start:end] = result[tensor].reshape(-1)
        return arrays | {name: view_of(name, value.shape) for name, value in self.values.items() if value.of}
