"""Change the inputs of a network between timed replays, poison its activations, and check some of the results."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import numpy as np

from opbench.backend.base import Buffer
from opbench.checking.binding import allocate
from opbench.checking.launch_sources import MAX_COMPARISONS, InputKindOrder, judged_samples, unpredictable_random
from opbench.checking.module_state import HEAP_MESSAGE, module_variables, state_fault, uses_device_heap
from opbench.kernels.tensors import Arrays, Tensor
from opbench.networks.plan.executor import Context
from opbench.timing.clock import Launch

INPUT_SETS = 3
"""Number of different inputs: the given ones, and rotations of them by a random number of elements."""


class NetworkLaunches:
    """Prepare a context before each timed replay, and check random replays against untimed runs.

    Everything that a replay must compute itself is poisoned: activations, outputs and workspaces. State is
    reset. `close` frees the memory of the additional inputs.
    """

    def __init__(
        self,
        context: Context,
        inputs: Mapping[str, np.ndarray],
        allowed: float,
        *,
        complete: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare the inputs; `allowed` is the relative tolerance, in norm, between a timed and an untimed run.

        Without `complete`, nodes are missing: inputs change, but nothing is poisoned or checked.
        """
        self._context, self._allowed, self.complete = context, allowed, complete
        self._chance = rng or unpredictable_random()
        self._schedule: Collection[int] = judged_samples(self._chance) if complete else ()
        self._order = InputKindOrder(range(INPUT_SETS), self._chance)
        self._content, self._number, self._comparisons = 0, 0, 0
        self._allocated: list[Mapping[str, Buffer]] = []
        self.fault = ""
        """What a checked replay computed wrongly; empty if nothing."""
        contents = [inputs, *(rotate_inputs(inputs, self._chance) for _ in range(INPUT_SETS - 1))]
        self._state = self._poisoned_copies(list(context.network.graph.state), context.network.state)
        self._inputs: list[Mapping[str, Buffer]] = []
        self._outputs: list[Arrays] = []
        for content in contents:
            self._restore_state()
            context.write(content)
            self._inputs.append(self._poisoned_copies(list(content), {name: context.buffer(name) for name in content}))
            context.settle()  # `run` uses another stream
            self._outputs.append(context.run(content) if complete else {})
        self.contents: list[Arrays] = [dict(content) for content in contents]
        """The inputs that timed replays take in random order."""
        self._prints = self._fingerprints()

    def _poisoned_copies(self, names: list[str], buffers: Mapping[str, Buffer]) -> Mapping[str, Buffer]:
        values = self._context.network.graph.values
        tensors = [Tensor(name, values[name].shape, values[name].dtype) for name in names]
        self._allocated.append(allocate(self._context.network.backend, tensors))
        for name in names:
            self._allocated[-1][name].copy_from(buffers[name])
        return self._allocated[-1]

    def _restore_state(self) -> None:
        for name, saved in self._state.items():
            self._context.network.state[name].copy_from(saved)

    def renew(self) -> None:
        """Poison all activations, write the next inputs and reset the state, on the device."""
        self._renew_with(self._order.next())

    def _renew_with(self, content_index: int) -> None:
        self._content = content_index
        if self.complete:
            self._context.poison()
        for name, saved in self._inputs[self._content].items():
            self._context.buffer(name).copy_from(saved)
        self._restore_state()

    def _fingerprints(self) -> dict[tuple[str, str], int]:
        """Return the fingerprint of each module variable, by node and name.

        All inputs ran before, so a table that is filled once does not change any more.
        """
        return {
            (node, name): buffer.fingerprint()
            for node, binding in self._context.bindings.items()
            for name, buffer in module_variables(binding).items()
        }

    def check_state(self) -> None:
        """Set `fault` if a variant changes a module variable when it runs, because it may reuse earlier results.

        The inputs of the last timed replay may be those of the first look, so each of the inputs runs once
        more.
        """
        changed: dict[str, str] = {}
        for content_index in range(INPUT_SETS) if self._prints else ():
            self._renew_with(content_index)
            self._context.launch()
            self._context.settle()
            fingerprints = self._fingerprints()
            changed |= {
                node: state_fault([name])
                for (node, name), first_fingerprint in self._prints.items()
                if fingerprints[node, name] != first_fingerprint
            }
        on_heap = {node: HEAP_MESSAGE for node, bound in self._context.bindings.items() if uses_device_heap(bound)}
        for node, fault in (changed | on_heap).items():
            self.fault = self.fault or f"{node}: {self._context.network.cases[node].variant.id} {fault}"

    def next_launch(self) -> Launch:
        """Prepare the context and return its launch."""
        self.renew()
        return self._context.launch

    def after_sample(self) -> None:
        """Count a replay, and compare its outputs if the replay was chosen."""
        if self._number in self._schedule and not self.fault and self._comparisons < MAX_COMPARISONS:
            self._context.settle()
            self._comparisons += 1
            expected = self._outputs[self._content]
            differences = {name: norm_difference(out, expected[name]) for name, out in self._context.read().items()}
            worst = max(
                differences, key=lambda name: differences[name] if differences[name] == differences[name] else np.inf
            )
            if not differences[worst] <= self._allowed:
                self.fault = (
                    f"in timed replay {self._number + 1} the output {worst} differs by {differences[worst]:.2g} in "
                    f"norm from an untimed run on the same inputs ({self._allowed:.2g} allowed)"
                )
        self._number += 1

    def close(self) -> None:
        """Restore the context as after a run on the given inputs, and free the memory; a second call does nothing."""
        if self._allocated:
            for name, saved in self._inputs[0].items():
                self._context.buffer(name).copy_from(saved)
            self._restore_state()
            self._context.network.backend.synchronize()
        while self._allocated:
            self._context.network.backend.free(self._allocated.pop())


def rotate_inputs(inputs: Mapping[str, np.ndarray], rng: random.Random) -> Arrays:
    """Return inputs with their elements rotated by random distances, so that all values stay valid."""
    result = {}
    for name, array in inputs.items():
        shift = rng.randrange(1, array.size) if array.size > 1 else 0
        result[name] = np.roll(array.reshape(-1), shift).reshape(array.shape)
    return result


def norm_difference(measured: np.ndarray, other_values: np.ndarray) -> float:
    """Return the norm of the difference of two arrays, divided by the norm of the second."""
    return float(np.linalg.norm(measured - other_values) / max(float(np.linalg.norm(other_values)), 1e-30))
