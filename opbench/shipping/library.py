"""The content of a library: cases, one per problem, with their launches and the text of their kernels."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opbench.kernels.case import Case
from opbench.kernels.operator import Operator
from opbench.shipping.choosing import ShipTarget
from opbench.shipping.compiling import CompiledText, architecture, compile_text
from opbench.shipping.kernel_text import DeviceText, KernelText, device_text, kernel_texts
from opbench.shipping.launching import LaunchCode, cpp_name, launch_code


@dataclass(frozen=True)
class LibraryCase:
    """One case of the library: its C function, its launches, and a note on its time."""

    function: str
    """Name of the function that launches the case."""
    code: LaunchCode
    time_note: str = ""
    """The measured time of the case as text, with the GPU; empty if no time is known."""

    @property
    def case(self) -> Case:
        """Return the case: variant, config and problem."""
        return self.code.case

    @property
    def tensors(self) -> list[str]:
        """Return the names of the case's inputs and outputs, in the order of its C function's parameters."""
        return [cpp_name(tensor.name) for tensor in (*self.code.inputs, *self.code.outputs)]


@dataclass(frozen=True)
class Library:
    """The data from which a library's header and its source are generated."""

    name: str
    """Name of the files without suffix, and prefix of the functions."""
    gpu: str
    arch: str
    sm_count: int
    cases: Mapping[str, tuple[LibraryCase, ...]]
    """The cases by operator."""
    kernels: tuple[KernelText, ...]
    text: DeviceText
    compiled: CompiledText
    command: str = ""

    def operator(self, name: str) -> type[Operator]:
        """Return the class of one of the library's operators by its name."""
        return type(self.cases[name][0].case.problem)

    @property
    def all_cases(self) -> list[LibraryCase]:
        """Return the cases of all operators, in the order of the library."""
        return [case for cases in self.cases.values() for case in cases]


def make_library(
    cases: Sequence[Case], name: str, gpu: ShipTarget, time_notes: Mapping[str, str], command: str
) -> Library:
    """Return a library of some cases, one per problem; `time_notes` are notes on their times by case."""
    by_request = kernel_texts(cases)
    texts = tuple(by_request.values())
    text = device_text(texts)
    arch = architecture(texts, gpu.arch)
    compiled = compile_text(text, texts, arch)
    cases_by_operator: dict[str, list[LibraryCase]] = {}
    for case in cases:
        operator_list = cases_by_operator.setdefault(case.problem.name, [])
        code = launch_code(case, by_request[case.request()], gpu.sm_count, compiled.parameter_sizes)
        function = f"{cpp_name(case.problem.name)}_{len(operator_list) + 1}"
        operator_list.append(LibraryCase(function, code, time_notes.get(case.name, "")))
    cases_of_operator = {operator: tuple(operator_cases) for operator, operator_cases in cases_by_operator.items()}
    return Library(name, gpu.name, arch, gpu.sm_count, cases_of_operator, texts, text, compiled, command)


def axes_with_defaults(operator: type[Operator]) -> list[tuple[str, str | None]]:
    """Return the name of each axis with None, and the name of each mode, such as `dtype`, with its default."""
    modes = operator.modes()
    return [(name, modes.get(name)) for name in inspect.signature(operator).parameters]


def c_types_by_tensor(cases: Iterable[LibraryCase]) -> dict[str, str]:
    """Return the C type of each tensor of the cases, by name; inputs come first, as in the operator's C function."""
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for case in cases:
        inputs |= {cpp_name(tensor.name): "const void*" for tensor in case.code.inputs}
        outputs |= {cpp_name(tensor.name): "void*" for tensor in case.code.outputs}
    return {**inputs, **{name: c_type for name, c_type in outputs.items() if name not in inputs}}


def c_parameters(cases: Iterable[LibraryCase]) -> str:
    """Return the tensors of the cases as the parameter list of a C function."""
    return ", ".join(f"{c_type} {name}" for name, c_type in c_types_by_tensor(cases).items())
