"""The header of an operator that a kernel would need, written from its parameters and a launch of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

from opbench.adopting.file_facts import FileFacts, KernelRead
from opbench.adopting.host_launches import HostLaunch, Parameter, definitions, number_of, plain_name
from opbench.adopting.host_structs import GivenParameter, typed
from opbench.adopting.host_textures import HostTexture, textures_of
from opbench.adopting.matching import PLAIN, Match, tensor_axes
from opbench.adopting.operator_sizes import SizesRead
from opbench.adopting.proposal import (
    Proposal,
    launch_parts,
    launch_text,
    list_text,
    missing_template_arguments,
    plain_quotient,
    template_arguments,
    written_template,
)
from opbench.adopting.stores import ADDED
from opbench.kernels.memory_header import table_of
from opbench.source.c_expression import Unreadable, convert, tokens_of
from opbench.source.tokens import Token

FACTORS = frozenset(("alpha", "beta", "scale"))
"""Numbers that a kernel takes and that change nothing where they are 1, of beta 0."""


def write_header(proposal: Proposal, file: FileFacts, read: KernelRead, match: Match) -> None:
    """Fill in a proposal's lines."""
    _Writer(proposal, file, read, match).write()


class _Writer:
    """Writes a kernel's launch as expressions of the operator's axes."""

    def __init__(self, proposal: Proposal, file: FileFacts, read: KernelRead, match: Match) -> None:
        self.proposal, self.file, self.read, self.match = proposal, file, read, match
        self.sizes = SizesRead(proposal, read, match, file.program())
        self.known = self.sizes.known

    def write(self) -> None:
        """Fill in the proposal's lines."""
        proposal, read, match, launch = self.proposal, self.read, self.match, self.read.launch
        proposal.guesses += match.guesses
        proposal.contradictions += match.contradictions
        self.sizes.find()
        tuned = {name: name.upper() for name in (launch.sizes if launch else ()) if name not in self.known}
        self.known |= tuned
        proposal.args = [self._group(group) for group in read.groups]
        called = self._called()
        self._contradict_parameters()
        grid, block, shared = self._geometry(launch) if launch else self._assumed_geometry()
        self.sizes.require(grid, block)
        self.sizes.contradict_numbers()
        lines = proposal.lines = [f'operator = "{proposal.operator}"', f'title = "{read.kernel.name}"']
        if match.in_place:
            new, old = match.in_place
            lines.append(f'in_place = {{ {new} = "{old}" }}' if new else "in_place = true")
        if match.modes:
            lines.append(f"supports = {table_of({mode: list_text([value]) for mode, value in match.modes.items()})}")
        if proposal.requires:
            lines.append(f"requires = {list_text(proposal.requires)}")
        used = [macro for macro in tuned.values() if any(macro in part for part in (*grid, *block, shared))]
        if used:
            lines.append(f"tune = {table_of(dict.fromkeys(used, '[16, 32, 8]' if block[1:] else '[256, 128, 512]'))}")
        if workspaces := self.sizes.workspaces():
            lines.append("workspace = " + table_of({name: f'"{size}"' for name, size in workspaces.items()}))
        lines += self._textures()
        entry = launch_text(called, grid, block, shared, proposal.args, launch is not None and launch.cooperative)
        added = [match.names.get(name, name) for name, how in read.facts.stored.items() if how == ADDED]
        added = [name for name in added if name in match.problem.outputs or name in workspaces]  # never an input
        if added and not (match.in_place or match.problem.in_place):
            proposal.notes.append(f"it adds to {', '.join(added)}, which is zeroed before")
            steps = [*(f'{{ zero = "{name}" }}' for name in added), entry]
            lines += ["launch = [", *(f"  {step}," for step in steps), "]"]
        else:
            lines.append(f"launch = [{entry}]")

    def _contradict_parameters(self) -> None:
        """Contradict pointers to structures and to pointers, and an output whose old content counts."""
        match, contradict = self.match, self.proposal.contradict
        has_beta = match.operator in PLAIN and any(p.name.lower() == "beta" for p, _ in self.read.pairs)
        for parameter in (p for p, _ in self.read.pairs if p.is_pointer):
            name, words = parameter.name, parameter.type.split()
            if pointed := next((word for word in words if word in self.file.structs), ""):
                text = f"'{name}' is a pointer to structure '{pointed}', which no header fills: take it by value"
                contradict("tensors", name, text)
            elif words.count("*") + words.count("[") > 1:
                contradict("tensors", name, f"'{name}' points to pointers, which no header fills")
            is_output = match.names.get(name) in match.problem.outputs and not match.in_place
            if has_beta and is_output and name in self.read.facts.read:
                text = f"the kernel adds beta times the old '{name}', and {match.operator}'s output holds nothing then"
                contradict("output read", name, text)

    def _called(self) -> str:
        """The kernel's name with its template arguments, as a header has it."""
        read, known = self.read, self.known
        if missing := missing_template_arguments(read):
            text = f"no launch says {', '.join(missing)} of the kernel's template"
            self.proposal.contradict("launch", missing[0], text)
        called = read.kernel.qualified + template_arguments(read, known)
        if called != read.kernel.qualified + written_template(read, known):
            self.proposal.guess("the kernel with its template's arguments", called, "no launch says them")
        return called

    # Textures ---------------------------------------------------------------------------------------------------------

    def _textures(self) -> list[str]:
        """Return the header lines that describe the kernel's textures and surfaces, one line for each kind."""
        entries: dict[str, dict[str, str]] = {}
        viewing = [(parameter, argument) for parameter, argument in self.read.pairs if parameter.views]
        textures = textures_of(self.file.declarations) if viewing else {}
        for parameter, argument in viewing:
            tensor = self.match.names.get(parameter.name, parameter.name)
            texture = textures.get(argument[0].text if len(argument) == 1 else "")
            texture = texture or (next(iter(textures.values())) if len(textures) == 1 else None)
            problem = self.match.problem
            sides = {**problem.inputs, **problem.outputs}.get(tensor, "n").split()
            if texture is not None and "memory" in texture.words:
                size = [" * ".join(sides)]
                if each := texture.words.get("channels"):
                    size = [f"{size[0]} // {each}"]
                    self.proposal.notes.append(
                        f"a texel of '{parameter.name}' is {each} elements: what counts texels is {size[0]}"
                    )
            else:
                size = self._texels(parameter.name, texture, sides)
            words = texture.words if texture and parameter.views == "textures" else {}
            table = table_of({"tensor": f'"{tensor}"', "size": list_text(size), **words})
            entries.setdefault(parameter.views, {})[parameter.name] = table
        return [f"{kind} = {table_of(tables)}" for kind, tables in entries.items()]

    def _texels(self, name: str, texture: HostTexture | None, sides: Sequence[str]) -> list[str]:
        """Width and height of the array that the host allocated, else of the tensor."""
        why = "no cudaMallocArray of it"
        if texture is not None and texture.size:
            try:
                return [plain_quotient(convert(part, self.known)) for part in texture.size]
            except Unreadable as error:
                why = str(error)
        self.proposal.notes.append(f"the size of '{name}' in texels is guessed from its tensor ({why})")
        return list(sides[:-3:-1])

    # Arguments --------------------------------------------------------------------------------------------------------

    def _group(self, group: GivenParameter) -> str:
        """A parameter's argument as the header has it."""
        texts = [self._argument(parameter, given) for parameter, given in group.fields]
        if not group.is_struct:
            return texts[0]
        fields = (typed(text, parameter.type) for text, (parameter, _) in zip(texts, group.fields, strict=True))
        return f"{{ struct = [{', '.join(fields)}] }}"

    def _argument(self, parameter: Parameter, given: tuple[Token, ...]) -> str:
        """One argument as the header has it."""
        name = parameter.name
        if parameter.views:
            return f'"{name}"'
        if parameter.is_pointer:
            return f'"{self.match.names.get(name, name)}"'
        if name in self.match.axes:
            return f'"{self.match.axes[name]}"'
        words = [token.text for token in given]
        if words in (["true"], ["false"]):
            return words[0]
        if re.search(r"\b(float|double)\b", parameter.type):
            return self._real(parameter, given)
        try:
            return f'"{plain_quotient(convert(given, self.known))}"'
        except Unreadable as error:
            text = f"what '{name}' is cannot be read ({plain_name(str(error))}): write an expression of the axes"
            self.proposal.contradict("launch", name, text)
            return f'"{name}"'

    def _real(self, parameter: Parameter, given: tuple[Token, ...]) -> str:
        """A float as the header has it; contradicts one that the operator has no place for."""
        kind = "f64" if "double" in parameter.type else "f32"
        neutral = 0.0 if parameter.name.lower() == "beta" else 1.0
        value = _float(given, self.known)
        written = str(value)
        if value is None:
            try:
                written = f'"{convert(given, self.known, real=True)}"'
            except Unreadable:
                value, written = neutral, str(neutral)
                self.proposal.guess(f"'{parameter.name}'", written, "the host's value cannot be read")
        operator = self.proposal.operator
        if operator in PLAIN and (parameter.name.lower() not in FACTORS or value != neutral):
            text = f"the kernel takes a number '{parameter.name}' = {written}, which {operator} does not have"
            self.proposal.contradict("formula", parameter.name, text)
        return written if kind == "f32" and value is not None else table_of({kind: written})

    # Geometry ---------------------------------------------------------------------------------------------------------

    def _assumed_geometry(self) -> tuple[list[str], list[str], str]:
        """Grid and block of a kernel that nothing launches: a thread an element of the output."""
        problem = self.match.problem
        sides = problem.outputs[next(iter(problem.outputs))].split()
        axes = [axis for axis in sides if isinstance(problem.axes.get(axis), int)]
        if "y" in self.read.facts.names and len(axes) == 2:
            grid, block = [f"cdiv(max({axes[0]}, {axes[1]}), 16)"] * 2, ["16", "16"]
        else:
            size = " * ".join(axes) or next(iter(tensor_axes(problem)), "1")
            grid, block = [f"cdiv({size}, 256)"], ["256"]
        value = f"grid = {list_text(grid)}, block = {list_text(block)}"
        self.proposal.guess("the launch", value, "nothing in the file launches the kernel; a thread an element")
        self._contradict_assumed(int(block[0]))
        return grid, block, ""

    def _contradict_assumed(self, side: int) -> None:
        """Contradict a thread an element where a block is given more or less: `blockIdx.x * TILE`, a row."""
        known = {**self.file.constants, **definitions(self.read.kernel.tokens)}
        code = [token.text for token in self.read.kernel.tokens]
        for index in [index for index, text in enumerate(code) if text == "blockIdx"]:
            left = code[index - 4 if code[index - 3] == "." else index - 2] if code[index - 1] == "*" else ""
            factor = code[index + 4] if code[index + 3] == "*" else left
            with contextlib.suppress(Unreadable):
                if factor == "blockDim" or number_of(tokens_of(factor), known) == side:
                    continue
            text = "nothing in the file launches the kernel, and a block computes more or less than a thread an element"
            self.proposal.contradict("launch", "grid", text)
            return

    def _geometry(self, launch: HostLaunch) -> tuple[list[str], list[str], str]:
        """Return the grid, the block and the bytes of shared memory, written as in a kernel's header."""
        grid, block = (self._sides(number, given) for number, given in enumerate(launch.configuration[:2]))
        shared = ""
        if len(launch.configuration) > 2:
            try:
                shared = plain_quotient(convert(launch.configuration[2], self.known))
            except Unreadable as error:
                self.proposal.contradict("launch", "shared", f"shared bytes cannot be read ({error})")
        return grid, block, shared

    def _sides(self, number: int, given: Sequence[Token]) -> list[str]:
        """One to three expressions of a grid (0) or block (1)."""
        sides = []
        for index, part in enumerate(launch_parts(given, self.known)):
            try:
                sides.append(plain_quotient(convert(part, self.known)))
            except Unreadable as error:
                value = self.sizes.number(number, index)
                sides.append("1" if value is None else str(value))
                if value is None:
                    what, written = ("grid", "block")[number], "".join(token.text for token in part)
                    text = f"{what} '{written}' cannot be read ({error}): write an expression of the axes"
                    self.proposal.contradict("launch", what, text)
        return sides


def _float(given: Sequence[Token], known: Mapping[str, Sequence[Token] | str]) -> float | None:
    """The number that an argument is, directly or by a variable's value."""
    text = "".join(token.text for token in given).rstrip("fF")
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", text):
        return float(text)
    value = known.get(text)
    return None if value is None or isinstance(value, str) or len(value) > 2 else _float(value, {})
