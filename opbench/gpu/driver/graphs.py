"""Record many launches as one CUDA graph, in which each waits only for its dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from functools import partial
from typing import TYPE_CHECKING

from opbench.gpu.driver.driver import CAPTURE_RELAXED, STREAM_DEFAULT

if TYPE_CHECKING:
    from opbench.gpu.driver.device import Device

GraphStep = tuple[Callable[[], None], Sequence[int]]
"""A callable that enqueues one step, and the indices of the earlier steps that the step depends on."""


def capture(device: Device, launch: Callable[[], None]) -> c_void_p:
    """Return a graph of the work that a function enqueues on the device's stream."""
    driver, graph = device.driver, c_void_p()
    driver.call("cuStreamBeginCapture_v2", device.stream, CAPTURE_RELAXED)
    try:
        launch()
    finally:
        driver.call("cuStreamEndCapture", device.stream, byref(graph), where="capturing a graph")
    return graph


def instantiate(device: Device, graph: c_void_p) -> c_void_p:
    """Return an executable instance of a graph, and destroy the graph itself."""
    executable = c_void_p(device.driver.get("cuGraphInstantiateWithFlags", c_void_p, graph, 0))
    device.driver.call("cuGraphDestroy", graph)
    return executable


def step_chains(dependencies: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group steps into chains; `dependencies` are the steps that each step waits for.

    Within a chain each step waits only for the one before, and no other step waits for that one.
    """
    dependents = [0] * len(dependencies)
    for step_dependencies in dependencies:
        for step in step_dependencies:
            dependents[step] += 1
    chains: list[list[int]] = []
    chain_by_last_step: dict[int, list[int]] = {}
    for step, step_dependencies in enumerate(dependencies):
        chain = (
            chain_by_last_step.pop(step_dependencies[0])
            if len(step_dependencies) == 1 and dependents[step_dependencies[0]] == 1
            else []
        )
        if not chain:
            chains.append(chain)
        chain.append(step)
        chain_by_last_step[step] = chain
    return chains


def _enqueue(launches: Sequence[Callable[[], None]]) -> None:
    """Call several launches in order."""
    for launch in launches:
        launch()


class CudaGraph:
    """Launches that are recorded once and replayed with one call; each must have run before, to load its code.

    Independent steps may run at the same time, without streams or events. A chain of steps is captured in one
    piece, because programmatic dependent launch between kernels survives only within one capture.
    """

    def __init__(self, device: Device, steps: Sequence[GraphStep]) -> None:
        self._device = device
        driver = device.driver
        chains = step_chains([dependencies for _, dependencies in steps])
        subgraphs = [capture(device, partial(_enqueue, [steps[step][0] for step in chain])) for chain in chains]
        graph = subgraphs.pop() if len(subgraphs) == 1 else c_void_p(driver.get("cuGraphCreate", c_void_p, 0))
        nodes: dict[int, int | None] = {}
        for chain, subgraph in zip(chains, subgraphs, strict=False):
            dependencies = steps[chain[0]][1]
            node_dependencies = (c_void_p * max(1, len(dependencies)))(*(nodes[step] for step in dependencies))
            nodes[chain[-1]] = driver.get(
                "cuGraphAddChildGraphNode", c_void_p, graph, node_dependencies, len(dependencies), subgraph
            )
            driver.call("cuGraphDestroy", subgraph)  # The node has a copy.
        self._executable: c_void_p | None = instantiate(device, graph)
        self._own_stream = c_void_p(driver.get("cuStreamCreate", c_void_p, STREAM_DEFAULT))

    def launch(self) -> None:
        """Enqueue all steps on the device's stream."""
        self._device.driver.call("cuGraphLaunch", self._executable, self._device.stream)

    def run(self) -> None:
        """Run all steps on the graph's own stream and wait for them; several threads may do so at the same time."""
        self._device.driver.call("cuGraphLaunch", self._executable, self._own_stream)
        self._device.driver.call("cuStreamSynchronize", self._own_stream, where="a graph")

    def close(self) -> None:
        """Destroy the graph; a second call does nothing."""
        if self._executable is not None:
            self._device.driver.unchecked("cuGraphExecDestroy")(self._executable)
            self._device.driver.unchecked("cuStreamDestroy_v2")(self._own_stream)
            self._executable = None
