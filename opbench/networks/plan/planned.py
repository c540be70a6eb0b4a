"""A network that is planned and ready to run, as `opbench.plan` returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from opbench.checking import backends
from opbench.graph.graph import Graph
from opbench.insight.defaults import ranking_gpu
from opbench.kernels.folders import Catalog
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.choosing import apply_enabled_passes, collect_results, given_plan, plan_network
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import Plan
from opbench.networks.plan.running import make_graph
from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS
from opbench.running.runner import OnProgress


@dataclass(repr=False)
class PlannedNetwork:
    """A network with a variant for each node and its memory on the device; close it to free the memory."""

    plan: Plan
    """The chosen case of each node."""
    network: Network
    """The graph after the passes, and its weights on the device."""
    context: Context
    notes: tuple[str, ...]
    """Notes on the changes of the passes and the choice of layouts."""

    def run(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> Arrays:
        """Run the network and return the outputs by name, in float32.

        `inputs` are arrays by name; for one input its array is enough. Raises UsageError for inputs of another
        name, shape or dtype, before anything runs.
        """
        if isinstance(inputs, np.ndarray):
            inputs = {self.network.graph.inputs[0]: inputs}
        return self.context.run(inputs)

    def close(self) -> None:
        """Free the memory on the device."""
        self.context.close()
        self.network.close()

    def __enter__(self) -> PlannedNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PlannedNetwork {self.network!r}>"

    def _repr_html_(self) -> str:
        """Show the graph with its variants in a notebook."""
        return self.network._repr_html_()


def network(name: str, *, weights: str = "", training: bool = False, **sizes: int) -> Graph:
    """Return a network that is part of opbench, such as `network("unet", batch=1)`, or one from a saved .json file.

    `weights` are as `opbench net run --weights` takes them. With `training` it is in the form that
    `opbench.train` takes: that of `gpt2` scores the tokens after all places, the others have one form. Raises
    UsageError for an unknown name or size.
    """
    return make_graph(NetOptions(name, sizes, weights=weights), training=training)


def plan(graph: Graph, *, on_progress: OnProgress = lambda progress: None, **changes: Any) -> PlannedNetwork:
    """Choose a variant for each node of a network, place its memory, and return it ready to run.

    `changes` are options of `opbench net run` under their names in Python (`NetOptions`): `backend="cpu"`,
    `precision="bf16"`, `results=[folder]`, `plan=file`, `without=["fuse_relu"]`. Raises UsageError for what does not
    fit together, EnvironmentFault for a device that is missing or too small.
    """
    options = NetOptions(graph.name, **changes)
    name, catalog = options.resolved_backend(), Catalog(options.variants)
    earlier_plan = given_plan(graph, options)
    fused, passes = apply_enabled_passes(graph, options, earlier_plan)
    results = collect_results(fused, options, name, on_progress, catalog)
    backend = backends.open_backend(name)
    environment = backend.environment()
    planned_graph, chosen_plan, layout_passes = plan_network(
        fused, options, results, environment.gpu, backend.sm_count, catalog, ranking_gpu(environment), earlier_plan
    )
    executor = Network(
        planned_graph,
        chosen_plan.cases(planned_graph, catalog),
        backend,
        prepare=PREPARE_WEIGHTS not in options.without,
    )
    try:
        context = Context(executor, graph=options.graph, parallel=options.parallel)
    except BaseException:
        executor.close()
        raise
    return PlannedNetwork(
        chosen_plan, executor, context, tuple(note for rewrite in (*passes, *layout_passes) for note in rewrite.notes)
    )
