"""What a library holds: cases, one a problem, with their launches and the text of their kernels."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.shipping.choosing import ShipTarget
from opbench.shipping.compiling import CompiledText, architecture, compile_text
from opbench.shipping.launching import LaunchCode, launch_code, safe
from opbench.shipping.pieces import DeviceText, KernelText, device_text, pieces


@dataclass(frozen=True)
class Held:
    """A case as the library holds it."""

    function: str
    """What launches it."""
    code: LaunchCode
    said: str = ""
    """What is known of its time."""

    @property
    def case(self) -> Case:
        """The case itself."""
        return self.code.case

    @property
    def tensors(self) -> list[str]:
        """Its inputs and outputs, as its function takes them."""
        return [safe(tensor.name) for tensor in (*self.code.inputs, *self.code.outputs)]


@dataclass(frozen=True)
class Library:
    """Everything that the two files are made of."""

    name: str
    """Stem of the files and prefix of the functions."""
    gpu: str
    arch: str
    sm_count: int
    held: Mapping[str, tuple[Held, ...]]
    """By operator."""
    found: tuple[KernelText, ...]
    text: DeviceText
    compiled: CompiledText
    command: str = ""

    def operator(self, name: str) -> type[Operator]:
        """The class of an operator of which problems are held."""
        return type(self.held[name][0].case.problem)

    @property
    def every(self) -> list[Held]:
        """All cases, in their order."""
        return [one for held in self.held.values() for one in held]


def make_library(cases: Sequence[Case], name: str, gpu: ShipTarget, said: Mapping[str, str], command: str) -> Library:
    """A library of some cases, one a problem; `said` are words on their times by case."""
    by_request = pieces(cases)
    found = tuple(by_request.values())
    text = device_text(found)
    arch = architecture(found, gpu.arch)
    compiled = compile_text(text, found, arch)
    held: dict[str, list[Held]] = {}
    for case in cases:
        of_operator = held.setdefault(case.problem.name, [])
        code = launch_code(case, by_request[case.request()], gpu.sm_count, compiled.sizes)
        function = f"{safe(case.problem.name)}_{len(of_operator) + 1}"
        of_operator.append(Held(function, code, said.get(case.name, "")))
    fixed = {operator: tuple(each) for operator, each in held.items()}
    return Library(name, gpu.name, arch, gpu.sm_count, fixed, found, text, compiled, command)


def axes_of(operator: type[Operator]) -> list[tuple[str, str | None]]:
    """Each axis of an operator with None, and each mode with its default."""
    modes = operator.modes()
    return [(name, modes.get(name)) for name in inspect.signature(operator).parameters]


def parameters(held: Iterable[Held]) -> list[str]:
    """The tensors that any of the problems has, inputs first, as an operator's function takes them."""
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for one in held:
        inputs |= dict.fromkeys(f"const void* {safe(tensor.name)}" for tensor in one.code.inputs)
        outputs |= dict.fromkeys(f"void* {safe(tensor.name)}" for tensor in one.code.outputs)
    return [*inputs, *outputs]


def names_of(held: Iterable[Held]) -> list[str]:
    """The names of those alone."""
    return [parameter.rpartition(" ")[2] for parameter in parameters(held)]
