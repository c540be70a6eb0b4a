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
"""A callable that enqueues one step, and the numbers of the earlier steps that the step depends on."""


def capture(device: Device, launch: Callable[[], None]) -> c_void_p:
    """Capture as a graph the work that a function enqueues on the device's stream."""
    driver, graph = device.driver, c_void_p()
    driver.call("cuStreamBeginCapture_v2", device.stream, CAPTURE_RELAXED)
    try:
        launch()
    finally:
        driver.call("cuStreamEndCapture", device.stream, byref(graph), where="capturing a graph")
    return graph


def instantiate(device: Device, graph: c_void_p) -> c_void_p:
    """Return an executable instance of a graph, and destroy the graph itself."""
    ready = c_void_p(device.driver.get("cuGraphInstantiateWithFlags", c_void_p, graph, 0))
    device.driver.call("cuGraphDestroy", graph)
    return ready


def step_chains(waits: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group steps into chains: each step waits only for the one before it, and no other step waits for that one."""
    waiting = [0] * len(waits)
    for after in waits:
        for number in after:
            waiting[number] += 1
    runs: list[list[int]] = []
    ends: dict[int, list[int]] = {}
    for number, after in enumerate(waits):
        run = ends.pop(after[0]) if len(after) == 1 and waiting[after[0]] == 1 else []
        if not run:
            runs.append(run)
        run.append(number)
        ends[number] = run
    return runs


def _enqueue(launches: Sequence[Callable[[], None]]) -> None:
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
        runs = step_chains([after for _, after in steps])
        parts = [capture(device, partial(_enqueue, [steps[number][0] for number in run])) for run in runs]
        whole = parts.pop() if len(parts) == 1 else c_void_p(driver.get("cuGraphCreate", c_void_p, 0))
        nodes: dict[int, int | None] = {}
        for run, part in zip(runs, parts, strict=False):
            after = steps[run[0]][1]
            waits = (c_void_p * max(1, len(after)))(*(nodes[number] for number in after))
            nodes[run[-1]] = driver.get("cuGraphAddChildGraphNode", c_void_p, whole, waits, len(after), part)
            driver.call("cuGraphDestroy", part)  # the node has a copy
        self._ready: c_void_p | None = instantiate(device, whole)
        self._own = c_void_p(driver.get("cuStreamCreate", c_void_p, STREAM_DEFAULT))

    def launch(self) -> None:
        """Enqueue all steps on the device's stream."""
        self._device.driver.call("cuGraphLaunch", self._ready, self._device.stream)

    def run(self) -> None:
        """Run all steps on a stream of their own and wait; several threads may do so at the same time."""
        self._device.driver.call("cuGraphLaunch", self._ready, self._own)
        self._device.driver.call("cuStreamSynchronize", self._own, where="a graph")

    def close(self) -> None:
        """Destroy the graph; a second call does nothing."""
        if self._ready is not None:
            self._device.driver.raw("cuGraphExecDestroy")(self._ready)
            self._device.driver.raw("cuStreamDestroy_v2")(self._own)
            self._ready = None
