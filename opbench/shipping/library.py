"""What a library holds: cases, one a problem, with their launches and the text of their kernels."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.shipping.choosing import ShipTarget
from opbench.shipping.compiling import CompiledText, architecture, compile_text
from opbench.shipping.kernel_text import DeviceText, KernelText, device_text, kernel_texts
from opbench.shipping.launching import LaunchCode, launch_code, safe


@dataclass(frozen=True)
class LibraryCase:
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
    cases: Mapping[str, tuple[LibraryCase, ...]]
    """By operator."""
    kernels: tuple[KernelText, ...]
    text: DeviceText
    compiled: CompiledText
    command: str = ""

    def operator(self, name: str) -> type[Operator]:
        """The class of an operator of which problems are held."""
        return type(self.cases[name][0].case.problem)

    @property
    def all_cases(self) -> list[LibraryCase]:
        """All cases, in their order."""
        return [one for cases in self.cases.values() for one in cases]


def make_library(cases: Sequence[Case], name: str, gpu: ShipTarget, said: Mapping[str, str], command: str) -> Library:
    """A library of some cases, one a problem; `said` are words on their times by case."""
    by_request = kernel_texts(cases)
    found = tuple(by_request.values())
    text = device_text(found)
    arch = architecture(found, gpu.arch)
    compiled = compile_text(text, found, arch)
    held: dict[str, list[LibraryCase]] = {}
    for case in cases:
        of_operator = held.setdefault(case.problem.name, [])
        code = launch_code(case, by_request[case.request()], gpu.sm_count, compiled.sizes)
        function = f"{safe(case.problem.name)}_{len(of_operator) + 1}"
        of_operator.append(LibraryCase(function, code, said.get(case.name, "")))
    fixed = {operator: tuple(each) for operator, each in held.items()}
    return Library(name, gpu.name, arch, gpu.sm_count, fixed, found, text, compiled, command)


def axes_of(operator: type[Operator]) -> list[tuple[str, str | None]]:
    """Each axis of an operator with None, and each mode with its default."""
    modes = operator.modes()
    return [(name, modes.get(name)) for name in inspect.signature(operator).parameters]


def names_of(cases: Iterable[LibraryCase]) -> dict[str, str]:
    """Return the C type of each tensor that any of the problems has, by name, in the order of the operator's function.

    Inputs come first.
    """
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for one in cases:
        inputs |= {safe(tensor.name): "const void*" for tensor in one.code.inputs}
        outputs |= {safe(tensor.name): "void*" for tensor in one.code.outputs}
    return {**inputs, **{name: kind for name, kind in outputs.items() if name not in inputs}}


def parameters(cases: Iterable[LibraryCase]) -> str:
    """Return these tensors as parameters of a function in C."""
    return ", ".join(f"{kind} {name}" for name, kind in names_of(cases).items())
