"""Several sets of inputs for one problem, so that consecutive timed launches get different data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opbench.backend.base import Backend, Buffer
from opbench.checking.binding import allocate
from opbench.checking.expected import PreparedProblem
from opbench.errors import EnvironmentFault

JUDGED_INPUT_KINDS = ("normal", "again")
"""Kinds of inputs with a reference: most samples use them, so the median is of launches whose outputs can be judged."""
SHIFTED_INPUTS = "shifted"
"""A kind of inputs: the normals, each tensor rotated by a random number of elements; or new random numbers."""
TIMED_INPUT_KINDS = (*JUDGED_INPUT_KINDS, SHIFTED_INPUTS)


@dataclass
class InputSets:
    """Sets of input buffers with different data, by kind of inputs; all sets share outputs and workspaces."""

    sets: dict[str, Mapping[str, Buffer]]
    allocated: list[Mapping[str, Buffer]] = field(default_factory=list)
    """The sets whose memory this object owns and must free."""

    def free(self, backend: Backend) -> None:
        """Free the memory; a second call does nothing."""
        while self.allocated:
            backend.free(self.allocated.pop())


def input_kind_of_buffer_set(number: int) -> str:
    """Return the kind of inputs in the buffer set `number` of a CUDA graph."""
    return TIMED_INPUT_KINDS[number % len(TIMED_INPUT_KINDS)]


def load_input_sets(backend: Backend, prepared: PreparedProblem) -> InputSets:
    """Return a problem's buffers and as many further sets with other inputs as memory allows."""
    normal_buffers = {tensor.name: prepared.buffers[tensor.name] for tensor in prepared.problem.input_tensors()}
    input_sets = InputSets({TIMED_INPUT_KINDS[0]: normal_buffers})
    for input_kind in TIMED_INPUT_KINDS[1:]:
        try:
            buffers = allocate(backend, prepared.problem.input_tensors())
        except EnvironmentFault:
            prepared.wait_for_inputs()
            break
        input_sets.allocated.append(buffers)
        _write_inputs_of_kind(prepared, input_kind, normal_buffers, buffers)
        input_sets.sets[input_kind] = buffers
    return input_sets


def _write_inputs_of_kind(
    prepared: PreparedProblem, input_kind: str, normal_buffers: Mapping[str, Buffer], buffers: Mapping[str, Buffer]
) -> None:
    """Write one kind of inputs to input buffers; on the device, if it can be derived from the normals there."""
    if input_kind == SHIFTED_INPUTS and prepared.are_independent:
        rng = prepared.rng(SHIFTED_INPUTS)
        for tensor in prepared.problem.input_tensors():
            shift_elements = rng.randrange(tensor.elements - 1) + 1 if tensor.elements > 1 else 0
            shift_bytes = shift_elements * tensor.nbytes // tensor.elements
            buffers[tensor.name].copy_from(normal_buffers[tensor.name], shift_bytes)
        return
    for name, array in prepared.inputs(input_kind).items():
        buffers[name].write(array)
    if input_kind == SHIFTED_INPUTS:
        del prepared.generated_inputs[
            input_kind
        ]  # it was made for this launch only, and takes as much memory as the inputs
