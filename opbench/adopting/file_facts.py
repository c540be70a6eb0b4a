"""A .cu file read once: its kernels, structures and constants, and what its host code does with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from opbench.adopting.host_launches import HostLaunch, Parameter, global_definitions, launches_of, parameter_of
from opbench.adopting.host_program import HostProgram, program_of
from opbench.adopting.host_structs import GivenParameter, grouped, structs_of
from opbench.adopting.kernel_facts import KernelFacts, facts_of
from opbench.errors import UsageError
from opbench.source.c_expression import tokens_of
from opbench.source.project import project_folders
from opbench.source.scan import Declaration, declarations
from opbench.source.sources import Source, closure
from opbench.source.tokens import Token, closing_angle, split

PYTORCH_TYPES = frozenset(("scalar_t",))
"""Types that PyTorch's AT_DISPATCH macros declare about a launch."""


@dataclass(frozen=True)
class KernelRead:
    """A kernel with what its launch gives it."""

    kernel: Declaration
    launch: HostLaunch | None
    groups: list[GivenParameter]
    types: Mapping[str, Sequence[Token]]
    """The parameters of its template."""
    facts: KernelFacts

    @property
    def pairs(self) -> list[tuple[Parameter, tuple[Token, ...]]]:
        """Each parameter, of structures each field, with its argument."""
        return [pair for group in self.groups for pair in group.fields]


@dataclass(frozen=True)
class FileFacts:
    """A file with the headers that it includes; each fact is computed when it is first needed."""

    path: Path
    sources: Sequence[Source]

    @cached_property
    def own_declarations(self) -> Sequence[Declaration]:
        """The declarations of the file without its headers."""
        return declarations(self.sources[0].text)

    @cached_property
    def declarations(self) -> list[Declaration]:
        """The declarations of the file, then those of its headers."""
        return [*self.own_declarations, *(one for source in self.sources[1:] for one in declarations(source.text))]

    @cached_property
    def kernels(self) -> dict[str, Declaration]:
        """The kernels by name."""
        return {one.name: one for one in self.declarations if one.is_kernel}

    @cached_property
    def functions(self) -> dict[str, Declaration]:
        """The functions of the device's code by name."""
        return {one.name: one for one in self.declarations if one.kind == "function" and one.is_device}

    @cached_property
    def structs(self) -> dict[str, list[Parameter] | str]:
        """The fields of each structure, or the member that a header cannot give."""
        return structs_of(self.declarations)

    @cached_property
    def constants(self) -> dict[str, Sequence[Token]]:
        """The names that are defined outside of functions."""
        return global_definitions(self.declarations)

    @cached_property
    def launches(self) -> list[HostLaunch]:
        """The launches in the order of the text, each with what its own function defines."""
        return launches_of(self.declarations, self.constants)

    def program(self, in_order: bool = False) -> HostProgram:
        """Return what the host does from `main` on; see `program_of`."""
        return program_of(self.declarations, self.constants, in_order)

    def read(self, name: str, launch: HostLaunch | None) -> KernelRead:
        """Read a kernel's parameters and body together with a launch of it."""
        kernel = self.kernels[name]
        types = _types(kernel, launch)
        named = types | dict(launch.known if launch else {})
        parameters = [_with_alias_resolved(parameter_of(tokens), named) for tokens in kernel.parameters()]
        groups = grouped(parameters, launch, self.structs)
        fields = [parameter for group in groups for parameter, _ in group.fields]
        return KernelRead(kernel, launch, groups, types, facts_of(kernel, fields, self.functions))


def read_file(path: Path, include: Sequence[Path] = ()) -> FileFacts:
    """Read a file with its headers in `include` and in its project; raises UsageError where it cannot be read."""
    try:
        return FileFacts(path, closure(path, (*include, *project_folders(path, include))))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _with_alias_resolved(parameter: Parameter, known: Mapping[str, Sequence[Token]]) -> Parameter:
    """The same with the type that a name of the file's own stands for."""
    tokens = known.get(parameter.type.split()[-1], ()) if parameter.type else ()
    if not tokens or any(token.kind != "name" for token in tokens):
        return parameter
    return replace(parameter, type=" ".join(token.text for token in tokens))


def _types(kernel: Declaration, launch: HostLaunch | None) -> dict[str, Sequence[Token]]:
    """Return the types of a template: those of the launch, else float."""
    if not kernel.is_template:
        return {}
    declared = split(kernel.tokens[2 : closing_angle(kernel.tokens, 1)], ",")
    arguments = split(tokens_of(launch.template)[1:-1], ",") if launch and launch.template else []
    types: dict[str, Sequence[Token]] = {}
    for index, words in enumerate(declared):
        if len(words) > 1 and words[0].text in ("typename", "class"):
            given = arguments[index] if index < len(arguments) else ()
            unknown = not given or (len(given) == 1 and given[0].text in PYTORCH_TYPES | {words[1].text})
            types[words[1].text] = tokens_of("float") if unknown else given
    return types
