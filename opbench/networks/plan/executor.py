"""Run a network: one copy of the weights on the device, and several contexts with their own activations."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from opbench import nvtx
from opbench.backend.base import ArenaBackend, Backend, Buffer, GraphBackend, RecordedGraph
from opbench.backend.findings import headline
from opbench.checking.binding import Binding, allocate, bind
from opbench.errors import LaunchError, UsageError
from opbench.graph.graph import Graph
from opbench.graph.values import Node
from opbench.kernels.case import Case
from opbench.kernels.expression import round_up
from opbench.kernels.launch import BuildRequest
from opbench.kernels.setup import Setup
from opbench.kernels.tensors import DTYPES, WORKSPACE_ALIGNMENT, Arrays, Tensor, from_storage, to_storage
from opbench.kernels.variant import print_config
from opbench.networks.plan.memory import MemoryPlan, plan_memory
from opbench.networks.plan.plan import NEW_PLAN
from opbench.networks.plan.setup_launches import weight_setup, workspace_of
from opbench.timing.clock import Launch

_RUN_LOCK = threading.RLock()
"""Contexts of several threads take turns: the session's stream and the cpu runtime accept one caller at a time."""


NO_REPLACEMENTS: Mapping[str, str] = {}


@dataclass(repr=False)
class Network:
    """A graph with a case for every node, and with weights and state on the device.

    State is one for all contexts: of a graph that updates its own there is one context. Making one raises
    UsageError for a node without a case or with one of another problem, EnvironmentFault when weights and state
    do not fit into the device's memory.
    """

    graph: Graph
    cases: Mapping[str, Case]
    backend: Backend
    weights: dict[str, Buffer] = field(default_factory=dict)
    state: dict[str, Buffer] = field(default_factory=dict)
    sm_counts: Mapping[str, int] = field(default_factory=dict)
    """Multiprocessors by which a node's grid is sized, for nodes that share the GPU with another kernel."""
    prepare: bool = True
    """Whether setup launches, which read only weights, run once when weights are written instead of in each run."""
    _prepared: dict[str, dict[str, Buffer]] = field(default_factory=dict, init=False, repr=False)
    """The buffers that setup launches filled, by node and workspace."""

    def __repr__(self) -> str:
        return f"<Network {self._title()}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        variant_of_node = {name: f"{case.variant.name}{print_config(case.config)}" for name, case in self.cases.items()}
        return self.graph.to_html(self._title(), variant_of_node)

    def _title(self) -> str:
        return f"{self.graph.title()}, on the {self.backend.name} backend"

    def __post_init__(self) -> None:
        require_fitting(self.graph, self.cases)
        try:
            for name, array in self.graph.weights.items():
                value = self.graph.values[name]
                self.weights[name] = self.backend.allocate(name, value.shape, value.dtype)
                self.weights[name].write(np.ascontiguousarray(to_storage(array, value.dtype)))
            for name in self.graph.state:
                value = self.graph.values[name]
                self.state[name] = self.backend.allocate(name, value.shape, value.dtype)
            self.write_state(self.graph.state)
        except BaseException:
            self.close()
            raise

    def sm_count(self, node: Node) -> int:
        """Return the number of multiprocessors that determines the grid sizes of a node."""
        return self.sm_counts.get(node.name, self.backend.sm_count)

    def waits_for(self, name: str) -> tuple[str, ...]:
        """Return the nodes that must end before one starts: those of the graph, and another one with the same barrier.

        A barrier between the blocks of a cooperative launch may count them in a variable of its module.
        """
        return (*self.graph.waits_for(name), *self._same_barrier.get(name, ()))

    @cached_property
    def _same_barrier(self) -> dict[str, tuple[str]]:
        """Return, for each node with a cooperative launch, the previous node that has one of the same module."""
        before: dict[str, tuple[str]] = {}
        last_of_module: dict[BuildRequest, str] = {}
        for node in self.graph.nodes:
            case = self.cases[node.name]
            if not case.variant.is_library and any(launch.cooperative for launch in case.launches(self.sm_count(node))):
                if case.request() in last_of_module:
                    before[node.name] = (last_of_module[case.request()],)
                last_of_module[case.request()] = node.name
        return before

    def workspaces(self, node: Node) -> list[Tensor]:
        """Return the workspaces of a node's variant that each run fills; each has its own place in the arena."""
        return workspace_of(self.graph, node, self.cases[node.name], self.sm_count(node), self.prepare)

    # Setup launches -----------------------------------------------------------------------------------------------

    def node_setup(self, node: Node) -> Setup:
        """Return the setup launches of a node's variant if they read only weights."""
        return weight_setup(self.graph, node, self.cases[node.name]) if self.prepare else Setup()

    def prepared_tensors(self, node: Node) -> list[Tensor]:
        """Return the buffers that hold the results of setup launches; the network owns them."""
        persistent = self.node_setup(node).persistent
        return [t for t in self.cases[node.name].workspace(self.sm_count(node)) if t.name in persistent]

    def prepared(self, node: Node) -> Mapping[str, Buffer]:
        """Return the results of a node's setup launches, which run at the first call.

        Raises LaunchError if a launch fails.
        """
        if node.name not in self._prepared:
            self._prepared[node.name] = allocate(self.backend, self.prepared_tensors(node))
            try:
                self._prepare(node)
            except BaseException:
                self.backend.free(self._prepared.pop(node.name))
                raise
        return self._prepared[node.name]

    def _prepare(self, node: Node) -> None:
        if not self._prepared[node.name]:
            return
        case, preparation = self.cases[node.name], self.node_setup(node)
        temporary_names = set(preparation.workspaces) - set(preparation.persistent)
        scratch = allocate(self.backend, [t for t in case.workspace(self.sm_count(node)) if t.name in temporary_names])
        buffers = {t.name: self._weight(value) for t, value in node.tensors() if t.name in preparation.inputs}
        try:
            all_buffers = {**buffers, **self._prepared[node.name], **scratch}
            bind(self.backend, case, all_buffers, self.sm_count(node), setup=True).launch()
            if findings := self.backend.synchronize():
                raise LaunchError(f"{node.name}: {headline(findings[0])}", kind="setup-failed", subject=node.name)
        finally:
            self.backend.free(scratch)

    def _weight(self, name: str) -> Buffer:
        """Return the memory of a weight, or of the part of a weight."""
        base, start, _ = self.graph.memory_range(name)
        value, base_buffer = self.graph.values[name], self.weights[base]
        if base == name:
            return base_buffer
        tensor = Tensor(name, value.shape, value.dtype)
        return self.backend.view(base_buffer, tensor, start * DTYPES[value.dtype].itemsize)

    def write_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Overwrite some of the weights, in their stored dtypes, and run the setup launches that read them."""
        with _RUN_LOCK:
            for name, array in weights.items():
                self.weights[name].write(np.ascontiguousarray(array))
            for node in self.graph.nodes:
                if node.name in self._prepared:
                    self._prepare(node)

    # Memory and state ---------------------------------------------------------------------------------------------

    def memory(self, parallel: bool = False, share: bool = True) -> MemoryPlan:
        """Return the offsets of activations and workspaces in one allocation; without `share`, none overlap."""
        sizes = {
            node.name: sum(round_up(t.nbytes, WORKSPACE_ALIGNMENT) for t in self.workspaces(node))
            for node in self.graph.nodes
        }
        workspace_bytes = {name: size for name, size in sizes.items() if size}
        return plan_memory(self.graph, workspace_bytes, parallel=parallel, share=share)

    def write_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Overwrite arrays of the state by name, in their stored dtypes (uint16 for bf16)."""
        for name, array in state.items():
            self.state[name].write(np.ascontiguousarray(array))

    def read_state(self, *names: str) -> Arrays:
        """Return arrays of the current state by name, in their stored dtypes; all of them without names."""
        return {name: self.state[name].read() for name in names or self.state}

    def close(self) -> None:
        """Free the weights and the state."""
        self.backend.free(self.weights | self.state)
        for buffers in self._prepared.values():
            self.backend.free(buffers)
        self._prepared.clear()
        self.weights.clear()
        self.state.clear()


def require_fitting(graph: Graph, cases: Mapping[str, Case]) -> None:
    """Raise UsageError for a node without a case, or with a case that does not fit its problem."""
    for node in graph.nodes:
        case = cases.get(node.name)
        if case is None:
            raise UsageError(
                f"{node.name}: the plan has no variant for this node of {graph.name}; {NEW_PLAN}",
                kind="no-variant",
                subject=node.name,
            )
        if case.problem != node.problem:
            raise UsageError(
                f"{node.name}: the plan has {case.name} for this node, but the problem of the node is "
                f"{node.operator}{node.problem}, so the plan is for other sizes or passes; {NEW_PLAN}",
                kind="other-problem",
                subject=node.name,
                value=case.name,
            )
        if reason := case.unmet_requirement():
            raise UsageError(
                f"{node.name}: {case.variant.id} does not accept {node.problem}: the variant {reason}; {NEW_PLAN}",
                kind="unsupported-problem",
                subject=node.name,
                value=case.name,
            )


class Context:
    """The activations of one user of a network, with launches bound to them.

    On `cuda` all activations share one arena. With `graph` the whole network is one CUDA graph; with
    `parallel`, branches that do not depend on each other may run at the same time. On `cpu` every value has its
    own buffer between guard bands, so that writes outside it are detected.
    """

    def __init__(
        self,
        network: Network,
        *,
        graph: bool = True,
        parallel: bool = False,
        excluded: Collection[str] = (),
        overlapped: bool = True,
        share_memory: bool = True,
    ) -> None:
        """Create a context without the nodes in `excluded`; if nodes are excluded, the others can only be timed.

        Without `overlapped`, each kernel starts after the end of the kernel before it, and without
        `share_memory` each value has memory of its own.
        """
        self.network, self._overlapped = network, overlapped
        nodes = [node for node in network.graph.nodes if node.name not in excluded]
        self.memory = network.memory(parallel, share_memory)
        self._allocated: dict[str, Buffer] = {}
        self._graph: RecordedGraph | None = None
        self.bindings: dict[str, Binding] = {}
        """The bound case of each node."""
        with _RUN_LOCK:
            try:
                self._placed = self._allocate_values()
                self._parts: dict[tuple[str, int, str], Buffer] = {}
                self.launches = {node.name: self.bind_node(node) for node in nodes}
                if graph and not excluded and isinstance(network.backend, GraphBackend):
                    self._graph = self._record_graph(network.backend, parallel)
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        return f"<Context of {self.network!r}>"

    # Memory -------------------------------------------------------------------------------------------------------

    def _allocate_values(self) -> dict[str, Buffer]:
        graph, backend = self.network.graph, self.network.backend
        weights_and_state = {**self.network.weights, **self.network.state}
        with_own_memory = [
            v for v in graph.values.values() if not v.of and not v.updates and v.name not in weights_and_state
        ]
        if not isinstance(backend, ArenaBackend):
            self._allocated = {v.name: backend.allocate(v.name, v.shape, v.dtype) for v in with_own_memory}
            return {**weights_and_state, **self._allocated}
        self._allocated = {"activations": backend.allocate_arena(self.memory.peak_bytes)}
        arena, offsets = self._allocated["activations"], self.memory.offsets
        placed = {
            v.name: backend.view(arena, Tensor(v.name, v.shape, v.dtype), offsets[v.name]) for v in with_own_memory
        }
        return {**weights_and_state, **placed}

    def buffer(self, name: str, replaced_state: Mapping[str, str] = NO_REPLACEMENTS) -> Buffer:
        """Return the memory of a value: its own, or that of the value which it views or updates.

        `replaced_state` maps the names of some memory to the state used in its place.
        """
        base, start = self.network.graph.memory(name)
        base = replaced_state.get(base, base)
        value, base_buffer = self.network.graph.values[name], self._placed[base]
        if value.elements == self.network.graph.values[base].elements:
            return base_buffer
        key = (base, start, name)
        if key not in self._parts:
            tensor = Tensor(name, value.shape, value.dtype)
            offset = start * DTYPES[value.dtype].itemsize
            self._parts[key] = self.network.backend.view(base_buffer, tensor, offset)
        return self._parts[key]

    def _workspaces(self, node: Node) -> dict[str, Buffer]:
        backend, offset = self.network.backend, self.memory.workspaces.get(node.name, 0)
        placed: dict[str, Buffer] = {}
        for tensor in self.network.workspaces(node):
            if isinstance(backend, ArenaBackend):
                placed[tensor.name] = backend.view(self._allocated["activations"], tensor, offset)
                offset += round_up(tensor.nbytes, WORKSPACE_ALIGNMENT)
            else:
                key = f"{node.name}.{tensor.name}"
                if key not in self._allocated:
                    self._allocated[key] = backend.allocate(tensor.name, tensor.shape, tensor.dtype)
                placed[tensor.name] = self._allocated[key]
        return placed

    # Launches -----------------------------------------------------------------------------------------------------

    def bind_node(self, node: Node, replaced_state: Mapping[str, str] = NO_REPLACEMENTS) -> Launch:
        """Return a node's launch, bound to the memory of its values.

        `replaced_state` maps the names of some memory to the state used in its place.
        """
        buffers = {tensor.name: self.buffer(value, replaced_state) for tensor, value in node.tensors()}
        graph = self.network.graph
        written = [tensor.name for tensor, value in node.tensors() if graph.base(value) not in graph.weights]
        try:
            case, backend = self.network.cases[node.name], self.network.backend
            buffers |= {**self._workspaces(node), **self.network.prepared(node)}
            setup = False if self.network.node_setup(node).launches else None
            sm_count, overlapped = self.network.sm_count(node), self._overlapped
            binding = bind(backend, case, buffers, sm_count, pending_inputs=written, setup=setup, overlapped=overlapped)
        except LaunchError as error:
            raise LaunchError(f"{node.name}: {error}", cause=error) from None
        self.bindings[node.name] = binding
        return binding.launch

    def _record_graph(self, backend: GraphBackend, parallel: bool) -> RecordedGraph:
        """Run every node once to load its code, then record all of them as one graph."""
        graph = self.network.graph
        order = {node.name: index for index, node in enumerate(graph.nodes)}
        steps = []
        for index, node in enumerate(graph.nodes):
            self.launches[node.name]()
            predecessors = sorted({order[name] for name in self.network.waits_for(node.name)})
            dependencies = predecessors if parallel else [index - 1] if index else []
            steps.append((self.launches[node.name], dependencies))
        backend.synchronize()
        self.network.write_state(
            {name: graph.state[name] for name in {v.updates for v in graph.values.values()} if name}
        )
        return backend.graph(steps)

    def launch(self) -> None:
        """Enqueue the whole network on the backend's stream.

        Without a graph, each node has its own NVTX range.
        """
        if self._graph is not None:
            self._graph.launch()
            return
        for node in self.network.graph.nodes:
            with nvtx.case_range(f"{node.name}/{self.network.cases[node.name].variant.name}()", node.operator):
                self.launches[node.name]()

    # Use ----------------------------------------------------------------------------------------------------------

    def write(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs, float32 arrays in the network's shapes, to the device."""
        graph = self.network.graph
        graph.check_inputs(inputs)
        for name, array in inputs.items():
            self.buffer(name).write(np.ascontiguousarray(to_storage(array, graph.values[name].dtype)))

    def read(self) -> Arrays:
        """Return the outputs in float32."""
        graph = self.network.graph
        arrays = {}
        for name in graph.outputs:
            value = graph.values[name]
            stored = self.buffer(name).read().reshape(value.shape)
            arrays[name] = from_storage(stored, value.dtype).astype(np.float32)
        return arrays

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Run the network on inputs and return the outputs; any thread may call this.

        Raises UsageError, before anything runs, for unfit inputs.
        """
        self.network.graph.check_inputs(inputs)
        with _RUN_LOCK:
            if isinstance(self.network.backend, GraphBackend):
                self.network.backend.enter_thread()
            self.write(inputs)
            if self._graph is None:
                self.launch()
                self.settle()
                return self.read()
        self._graph.run()
        with _RUN_LOCK:
            return self.read()

    def poison(self) -> None:
        """Fill the memory of all activations and workspaces, including inputs and outputs, with 0xFF bytes."""
        for buffer in self._allocated.values():
            buffer.poison()

    def settle(self) -> None:
        """Wait for all launches; raise LaunchError for a fault."""
        findings = self.network.backend.synchronize()
        if findings:
            name = self.network.graph.name
            raise LaunchError(f"{name}: {headline(findings[0])}", kind="launch-failed", subject=name)

    def close(self) -> None:
        """Free the memory."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self.network.backend.free(self._allocated)
        self._allocated = {}
