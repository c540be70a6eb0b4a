"""Several sets of inputs for one problem, so that consecutive timed launches get different data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opbench.backend.base import Backend, Buffer
from opbench.checking.binding import allocate
from opbench.checking.expected import PreparedProblem
from opbench.errors import EnvironmentFault

JUDGED_CONTENTS = ("normal", "again")
"""Contents with a reference. They are the majority, so that the median time is that of a launch that may be judged."""
SHIFTED_CONTENT = "shifted"
"""The normals with each tensor rotated by a random number of elements; or new random numbers."""
CONTENTS = (*JUDGED_CONTENTS, SHIFTED_CONTENT)


@dataclass
class InputSets:
    """Sets of buffers with different inputs, by kind of content; all sets share outputs and workspaces."""

    sets: dict[str, Mapping[str, Buffer]]
    allocated: list[Mapping[str, Buffer]] = field(default_factory=list)
    """The sets whose memory this object owns and must free."""

    def free(self, backend: Backend) -> None:
        """Free the memory; a second call does nothing."""
        while self.allocated:
            backend.free(self.allocated.pop())


def content_of_buffer_set(number: int) -> str:
    """Return the kind of content of a graph's buffer set with this number."""
    return CONTENTS[number % len(CONTENTS)]


def load_contents(backend: Backend, prepared: PreparedProblem) -> InputSets:
    """Return a problem's buffers and as many further sets with other inputs as memory allows."""
    own = {tensor.name: prepared.buffers[tensor.name] for tensor in prepared.problem.input_tensors()}
    contents = InputSets({CONTENTS[0]: own})
    for kind in CONTENTS[1:]:
        try:
            buffers = allocate(backend, prepared.problem.input_tensors())
        except EnvironmentFault:
            break
        contents.allocated.append(buffers)
        _write_content(prepared, kind, own, buffers)
        contents.sets[kind] = buffers
    return contents


def _write_content(
    prepared: PreparedProblem, kind: str, own: Mapping[str, Buffer], buffers: Mapping[str, Buffer]
) -> None:
    """Write one kind of content to input buffers; on the device, if it can be derived from the normals there."""
    if kind == SHIFTED_CONTENT and prepared.are_independent:
        chance = prepared.chance(SHIFTED_CONTENT)
        for tensor in prepared.problem.input_tensors():
            elements = chance.randrange(tensor.elements - 1) + 1 if tensor.elements > 1 else 0
            shift = elements * tensor.nbytes // tensor.elements
            buffers[tensor.name].copy_from(own[tensor.name], shift)
        return
    for name, array in prepared.inputs(kind).items():
        buffers[name].write(array)
    if kind == SHIFTED_CONTENT:
        del prepared.made[kind]  # it was made for this launch only, and takes as much memory as the inputs
