"""A parsed .cu file: its kernels, structures and constants, and how its host code uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from opbench.adopting.host_launches import HostLaunch, Parameter, global_definitions, launches_of, parameter_of
from opbench.adopting.host_program import HostProgram, program_of
from opbench.adopting.host_structs import ParameterArguments, arguments_by_field, structs_of
from opbench.adopting.kernel_summary import KernelSummary, summarize_kernel
from opbench.errors import Unreadable, UsageError
from opbench.source.c_expression import tokens_of
from opbench.source.device_part import missing_headers
from opbench.source.project import project_folders
from opbench.source.scan import Declaration, declarations
from opbench.source.sources import Source, include_closure, includes
from opbench.source.tokens import Token

LIBRARY_CALL = re.compile(r"\b(?:thrust|cub)::(?!device_vector|host_vector|device_ptr)\w+(?:::\w+)?(?=\s*\()")
"""Matches calls of algorithms of Thrust and CUB in host code."""
PYTORCH_TYPES = frozenset(("scalar_t",))
"""Names of types that PyTorch's AT_DISPATCH macros define in the code around a launch."""


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel with a summary of its body, and with the arguments of one of its launches."""

    kernel: Declaration
    launch: HostLaunch | None
    argument_groups: list[ParameterArguments]
    """Each parameter with its argument; a structure has one argument for each field."""
    template_types: Mapping[str, Sequence[Token]]
    """Type parameters of the kernel's template, each with the type that the launch gives it."""
    summary: KernelSummary

    @property
    def host_launch(self) -> HostLaunch:
        """Return the launch of a kernel that host code launches."""
        assert self.launch is not None
        return self.launch

    @property
    def argument_pairs(self) -> list[tuple[Parameter, tuple[Token, ...]]]:
        """Return each parameter with its argument; a structure gives one pair for each field."""
        return [pair for argument_group in self.argument_groups for pair in argument_group.fields]


@dataclass(frozen=True)
class ParsedFile:
    """A file with the headers that it includes; each property is computed at its first use."""

    path: Path
    sources: Sequence[Source]

    @cached_property
    def own_declarations(self) -> Sequence[Declaration]:
        """Return the declarations in the file itself, without its headers."""
        return declarations(self.sources[0].text)

    @cached_property
    def declarations(self) -> list[Declaration]:
        """Return the declarations in the file, then those in its headers."""
        return [
            *self.own_declarations,
            *(declaration for source in self.sources[1:] for declaration in declarations(source.text)),
        ]

    @cached_property
    def kernels(self) -> dict[str, Declaration]:
        """Return the file's kernels by name."""
        return {declaration.name: declaration for declaration in self.declarations if declaration.is_kernel}

    @cached_property
    def functions(self) -> dict[str, Declaration]:
        """Return the device functions by name."""
        return {
            declaration.name: declaration
            for declaration in self.declarations
            if declaration.kind == "function" and declaration.is_device
        }

    @cached_property
    def structs(self) -> dict[str, list[Parameter] | str]:
        """Return the fields of each structure by its name; for a structure that no header can express, the reason."""
        return structs_of(self.declarations)

    @cached_property
    def constants(self) -> dict[str, Sequence[Token]]:
        """Return macros, constants, enumerators and type aliases outside of functions, each with its value's tokens."""
        return global_definitions(self.declarations)

    @cached_property
    def launches(self) -> list[HostLaunch]:
        """Return all launches of kernels in the order of the text, each with the values defined before it."""
        return launches_of(self.declarations, self.constants)

    def program(self, in_order: bool = False, entry_points: Sequence[str] = ()) -> HostProgram:
        """Return the host's statements from `main` on as one program; `program_of` explains the parameters."""
        return program_of(self.declarations, self.constants, in_order, entry_points)

    def read_kernel(self, kernel_name: str, launch: HostLaunch | None) -> LaunchedKernel:
        """Return a kernel's parameters and the summary of its body, with the arguments of `launch`.

        Without a launch (None), each argument is empty.
        """
        kernel = self.kernels[kernel_name]
        types = _template_types(kernel, launch)
        types_and_values = types | dict(launch.values_by_name if launch else {})
        parameters = [_with_alias_resolved(parameter_of(tokens), types_and_values) for tokens in kernel.parameters()]
        groups = arguments_by_field(parameters, launch, self.structs)
        fields = [parameter for argument_group in groups for parameter, _ in argument_group.fields]
        return LaunchedKernel(kernel, launch, groups, types, summarize_kernel(kernel, fields, self.functions))


def read_file(path: Path, include: Sequence[Path] = ()) -> ParsedFile:
    """Read a file with its headers in `include` and in its project; raise UsageError if the file cannot be read."""
    try:
        return ParsedFile(path, include_closure(path, (*include, *project_folders(path, include))))
    except OSError as error:
        raise Unreadable(path, error) from None


def require_kernels(file: ParsedFile) -> None:
    """Raise UsageError if a file and its headers define no kernel; the message says where the GPU's work is instead."""
    if file.kernels:
        return
    missing = [name for _, name in missing_headers(file.sources, ())]
    missing += [
        written[1:-1]
        for source in file.sources
        for _, written in includes(source.text)
        if re.fullmatch(r"<[\w.-]+\.cuh>", written)
    ]
    library_call = next((match[0] for source in file.sources for match in LIBRARY_CALL.finditer(source.text)), "")
    if missing:
        text = (
            f"defines no __global__ function, and header '{missing[0]}' was not found, which may define it; put the "
            "header into the folder of the file, or into DIR/include with --variants DIR"
        )
    elif library_call:
        text = (
            f"defines no __global__ function: its work is done by calls such as {library_call}, and opbench checks "
            "only kernels; write a kernel in this file, or list the shipped ones: opbench list variants"
        )
    elif any("__global__" in source.text for source in file.sources):
        text = (
            "defines no __global__ function that opbench can read; write the kernel's header by hand (see 'Your own "
            "kernel' in README.md)"
        )
    else:
        fault = "contains no __global__ function" if any(s.text.strip() for s in file.sources) else "this file is empty"
        text = f"{fault}; name the .cu file with the kernel, or copy a shipped kernel: opbench new variant relu/mine"
    raise UsageError(f"{file.path}: {text}", kind="no-kernel", subject=file.path)


def _with_alias_resolved(parameter: Parameter, values_by_name: Mapping[str, Sequence[Token]]) -> Parameter:
    """Return the parameter with its type alias replaced by the type."""
    tokens = values_by_name.get(parameter.type.split()[-1], ()) if parameter.type else ()
    if not tokens or any(token.kind != "name" for token in tokens):
        return parameter
    return replace(parameter, type=" ".join(token.text for token in tokens))


def _template_types(kernel: Declaration, launch: HostLaunch | None) -> dict[str, Sequence[Token]]:
    """Return a kernel template's type parameters with their types: from the launch, else float."""
    arguments = launch.template_arguments() if launch else []
    types: dict[str, Sequence[Token]] = {}
    for index, parameter_tokens in enumerate(kernel.template_parameters()):
        if len(parameter_tokens) > 1 and parameter_tokens[0].text in ("typename", "class"):
            argument = arguments[index] if index < len(arguments) else ()
            is_unknown = not argument or (
                len(argument) == 1 and argument[0].text in PYTORCH_TYPES | {parameter_tokens[1].text}
            )
            types[parameter_tokens[1].text] = tokens_of("float") if is_unknown else argument
    return types
