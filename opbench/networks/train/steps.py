"""The launches of a training step: micro-batches in order, exchanges between ranks, and the update."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opbench import nvtx
from opbench.backend.base import Buffer, GraphBackend, RecordedGraph
from opbench.graph.training_step import Training
from opbench.kernels.tensors import DTYPES, Tensor
from opbench.networks.plan.executor import Context, Network
from opbench.networks.records.training import ExchangedPart, ExchangeTimes
from opbench.networks.train.buckets import gradient_buckets, micro_batch
from opbench.networks.train.train_options import TrainingSettings
from opbench.timing.clock import Launch

WARM_UP, REPEATS = 3, 20
"""Steps before the measurement, and steps that are timed."""
AllReduce = Callable[[Buffer], Launch]
"""A function that returns a launch which sums a buffer over all ranks, in place."""
NamedLaunch = tuple[str, Launch, Mapping[str, str]]
"""A node's name and launch, and the states that it uses in place of others."""


@dataclass(frozen=True)
class StepLaunch:
    """One launch of a step, and the numbers of the launches that must end before it."""

    launch: Launch
    after: tuple[int, ...]
    name: str
    """Name of the node, or of the exchanged range."""
    replaced_states: Mapping[str, str] = field(default_factory=dict)
    """States that the launch uses in place of others."""
    nbytes: int = 0
    """Bytes exchanged between ranks; 0 for a node."""

    @property
    def is_exchange(self) -> bool:
        """Return whether the launch is an exchange between ranks and not a node."""
        return self.nbytes > 0


class Step:
    """A training step on one device; with `graph`, its launches are one CUDA graph if the backend has graphs.

    The first of several micro-batches writes its gradients to the buffer of the sum; each later one writes them
    elsewhere and they are added. With `all_reduce` the sum is then added over the ranks, bucket by bucket, as
    the backward pass completes them; launches that do not wait for a bucket run during its exchange.
    `bucket_bytes` is the minimum size of a bucket.
    """

    def __init__(
        self,
        network: Network,
        training: Training,
        *,
        graph: bool = True,
        parallel: bool = False,
        all_reduce: AllReduce | None = None,
        bucket_bytes: int = TrainingSettings.bucket_bytes,
    ) -> None:
        self.training, self._parallel, self._backend = training, parallel, network.backend
        is_one_graph = training.exchange is None
        self.context = Context(network, graph=graph and is_one_graph, parallel=parallel)
        self._graph: RecordedGraph | None = None
        self.launches: list[StepLaunch] = []
        self._last_launches: list[int] = []
        """Launches that no other launch waits for yet."""
        self._last_exchange = -1
        try:
            if training.exchange is None:
                self._add_phase([(name, launch, {}) for name, launch in self.context.launches.items()])
                return
            self._exchange = training.exchange
            self._build_launches(all_reduce, bucket_bytes)
            if graph and isinstance(self._backend, GraphBackend):
                self._graph = self._record_graph(self._backend)
        except BaseException:
            self.close()
            raise

    # Building the launches -------------------------------------------------------------------------------------------

    def _build_launches(self, all_reduce: AllReduce | None, bucket_bytes: int) -> None:
        exchange, nodes, launches = self._exchange, self.training.graph.nodes, self.context.launches
        names = [node.name for node in micro_batch(self.training, exchange)]
        overlapped = all_reduce is not None and not exchange.adding_node
        self._add_phase(
            self._first_micro_batch(names),
            gradient_buckets(self.training, bucket_bytes) if overlapped else (),
            all_reduce,
        )
        for _ in range(self.training.recipe.accumulate - 1):
            self._add_phase([(name, launches[name], {}) for name in names])
            self._add_phase([(exchange.adding_node, launches[exchange.adding_node], {})])
        if all_reduce is not None and not overlapped:
            self._add_all_reduce(all_reduce, (0, self._gradient_elements), tuple(self._last_launches))
        self._add_phase([(n.name, launches[n.name], {}) for n in nodes if n.name in exchange.nodes_per_step])

    def _first_micro_batch(self, names: Sequence[str]) -> list[NamedLaunch]:
        """Return the launches of the first micro-batch, which writes directly to the buffer of the sum."""
        graph, exchange = self.training.graph, self._exchange
        replaced_states = {exchange.written_state: exchange.total_state} if exchange.adding_node else {}
        launches: list[NamedLaunch] = []
        for name in names:
            node = graph.node(name)
            writes_gradients = any(graph.base(value) == exchange.written_state for value in node.outputs.values())
            if replaced_states and writes_gradients:
                launches.append((name, self.context.bind_node(node, replaced_states), replaced_states))
            else:
                launches.append((name, self.context.launches[name], {}))
        return launches

    def _add_phase(
        self,
        launches: Sequence[NamedLaunch],
        buckets: Sequence[tuple[int, tuple[int, int]]] = (),
        all_reduce: AllReduce | None = None,
    ) -> None:
        """Add the launches of nodes in order, after all earlier launches.

        The exchange of a bucket follows the node that completes it.
        """
        earlier_sinks, number_of_node = tuple(self._last_launches), dict[str, int]()
        self._last_launches = [] if launches else self._last_launches
        bucket_by_node, predecessors = dict(buckets), list[int]()
        for index, (name, launch, replaced_states) in enumerate(launches):
            if self._parallel:
                waits_for = set(self.context.network.waits_for(name))
                predecessors = [number_of_node[n] for n in waits_for if n in number_of_node]
            launch_index = number_of_node[name] = self._add_launch(
                StepLaunch(launch, tuple(sorted(predecessors)) or earlier_sinks, name, replaced_states)
            )
            predecessors = [launch_index]
            if index in bucket_by_node and all_reduce is not None:
                self._add_all_reduce(
                    all_reduce,
                    bucket_by_node[index],
                    tuple(number_of_node.values()) if self._parallel else (launch_index,),
                )

    def _add_all_reduce(self, all_reduce: AllReduce, span: tuple[int, int], after: tuple[int, ...]) -> None:
        """Add the sum of one range of the arena over all ranks, after the previous range: all ranks need the same
        order.
        """
        start, end = span
        arena = self.context.buffer(self._exchange.total_state)
        range_tensor = Tensor(f"{self._exchange.total_state}[{start}:{end}]", (end - start,), "f32")
        view = self._backend.view(arena, range_tensor, start * DTYPES["f32"].itemsize)
        previous_exchange = (self._last_exchange,) if self._last_exchange >= 0 else ()
        predecessors = tuple(sorted({*after, *previous_exchange}))
        self._last_exchange = self._add_launch(
            StepLaunch(all_reduce(view), predecessors, f"all_reduce {start}:{end}", {}, range_tensor.nbytes)
        )

    def _add_launch(self, step_launch: StepLaunch) -> int:
        launch_index = len(self.launches)
        self.launches.append(step_launch)
        self._last_launches = [sink for sink in self._last_launches if sink not in step_launch.after] + [launch_index]
        return launch_index

    @property
    def _gradient_elements(self) -> int:
        return self.training.graph.values[self._exchange.total_state].elements

    # Running the step -----------------------------------------------------------------------------------------------

    def _record_graph(self, backend: GraphBackend) -> RecordedGraph:
        """Run everything once to load code and connect the ranks, then record everything as one graph."""
        network = self.context.network
        for step_launch in self.launches:
            step_launch.launch()
        backend.synchronize()
        written = {value.updates for value in network.graph.values.values()} - {""}
        written |= {self._exchange.written_state, self._exchange.total_state}
        network.write_state({name: network.graph.state[name] for name in sorted(written)})
        return backend.graph([(step_launch.launch, step_launch.after) for step_launch in self.launches])

    def launch(self) -> None:
        """Enqueue the whole step."""
        if self._graph is not None:
            self._graph.launch()
        elif self.training.exchange is None:
            self.context.launch()
        else:
            for _ in self.launch_parts():
                pass

    def launch_parts(self) -> Iterator[StepLaunch]:
        """Launch all parts of the step one after the other; yield each after its launch."""
        for step_launch in self.launches:
            with nvtx.case_range(step_launch.name, "exchange" if step_launch.is_exchange else "step"):
                step_launch.launch()
            yield step_launch

    def launch_exchanges(self) -> None:
        """Enqueue only the exchanges between ranks."""
        for step_launch in self.launches:
            if step_launch.is_exchange:
                step_launch.launch()

    @contextmanager
    def without_exchange(self) -> Iterator[Launch]:
        """Yield a launch of the step without exchanges, to measure how much time they add."""
        kept_indices = [index for index, step_launch in enumerate(self.launches) if not step_launch.is_exchange]
        predecessors: list[set[int]] = []
        for step_launch in self.launches:  # a launch after an exchange now waits for the launches before the exchange
            predecessors.append(
                set[int]().union(*(predecessors[n] if self.launches[n].is_exchange else {n} for n in step_launch.after))
            )
        steps = [
            (self.launches[n].launch, [kept_indices.index(predecessor) for predecessor in sorted(predecessors[n])])
            for n in kept_indices
        ]

        def one_by_one() -> None:
            for launch, _ in steps:
                launch()

        if self._graph is None or not isinstance(self._backend, GraphBackend):
            yield one_by_one
            return
        recording = self._backend.graph(steps)
        try:
            yield recording.launch
        finally:
            recording.close()

    def close(self) -> None:
        """Free memory and graph."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self.context.close()


def exchange_times(step: Step, gather: Callable[[float], list[float]] = lambda own: [own]) -> ExchangeTimes:
    """Return mean times in seconds: of the step, of the step without exchanges on each rank, and of the exchanges.

    Steps run back to back. All ranks call it at the same time. It continues training on each rank separately:
    read everything that you need first.
    """

    def mean(launch: Launch) -> float:
        for _ in range(WARM_UP):
            launch()
        step.context.settle()
        began_s = time.perf_counter()
        for _ in range(REPEATS):
            launch()
        step.context.settle()
        return (time.perf_counter() - began_s) / REPEATS

    with step.without_exchange() as local:
        local_s = gather(mean(local))
    step_s, exchange_s = mean(step.launch), mean(step.launch_exchanges)
    exchanged_parts: list[ExchangedPart] = []
    for step_launch in step.launches:
        if step_launch.is_exchange:
            last_node_index = max(
                launch_index for launch_index in step_launch.after if not step.launches[launch_index].is_exchange
            )
            seconds = mean(step_launch.launch)
            exchanged_parts.append(ExchangedPart(step.launches[last_node_index].name, step_launch.nbytes, seconds))
    return ExchangeTimes(step_s, tuple(local_s), exchange_s, tuple(exchanged_parts))


def launches_of(training: Training, name: str) -> int:
    """Return how often a step launches a node on one device."""
    exchange, times = training.exchange, training.recipe.accumulate
    if exchange is None or name in exchange.nodes_per_step:
        return 1
    return times - 1 if name == exchange.adding_node else times
