"""Propose a header with an operator, from a kernel's parameters and a launch of the kernel."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

from opbench.adopting.file_facts import FileFacts, LaunchedKernel
from opbench.adopting.host_launches import HostLaunch, Parameter, definitions, number_of, plain_name
from opbench.adopting.host_structs import ParameterArguments, typed_value
from opbench.adopting.host_textures import HostTexture, textures_of
from opbench.adopting.matching import PLAIN, Match, tensor_axes
from opbench.adopting.operator_sizes import LaunchSizes
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
from opbench.source.c_expression import UnsupportedExpression, convert, tokens_of
from opbench.source.tokens import Token

SCALE_FACTOR_NAMES = frozenset(("alpha", "beta", "scale"))
"""Numbers that a kernel takes and that change nothing where they are 1, of beta 0."""


def write_header(proposal: Proposal, file: FileFacts, read: LaunchedKernel, match: Match) -> None:
    """Write the lines of a proposed header."""
    _Writer(proposal, file, read, match).write()


class _Writer:
    """Write a kernel's launch with expressions of the operator's axes."""

    def __init__(self, proposal: Proposal, file: FileFacts, read: LaunchedKernel, match: Match) -> None:
        self.proposal, self.file, self.read, self.match = proposal, file, read, match
        self.sizes = LaunchSizes(proposal, read, match, file.program())
        self.known = self.sizes.known

    def write(self) -> None:
        """Write the lines of the proposed header."""
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
        """Add contradictions: pointers to structures or pointers, and an output whose old content matters."""
        match, contradict = self.match, self.proposal.contradict
        has_beta = match.operator in PLAIN and any(p.name.lower() == "beta" for p, _ in self.read.pairs)
        for parameter in (p for p, _ in self.read.pairs if p.is_pointer):
            name, type_words = parameter.name, parameter.type.split()
            if pointed := next((word for word in type_words if word in self.file.structs), ""):
                text = f"'{name}' is a pointer to structure '{pointed}', which no header fills: take it by value"
                contradict("tensors", name, text)
            elif type_words.count("*") + type_words.count("[") > 1:
                contradict("tensors", name, f"'{name}' points to pointers, which no header fills")
            is_output = match.names.get(name) in match.problem.outputs and not match.in_place
            if has_beta and is_output and name in self.read.facts.read:
                text = f"the kernel adds beta times the old '{name}', and {match.operator}'s output holds nothing then"
                contradict("output read", name, text)

    def _called(self) -> str:
        """Return the kernel's name with its template arguments as header text."""
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
                if channels := texture.words.get("channels"):
                    size = [f"{size[0]} // {channels}"]
                    self.proposal.notes.append(
                        f"a texel of '{parameter.name}' is {channels} elements: what counts texels is {size[0]}"
                    )
            else:
                size = self._texels(parameter.name, texture, sides)
            words = texture.words if texture and parameter.views == "textures" else {}
            table = table_of({"tensor": f'"{tensor}"', "size": list_text(size), **words})
            entries.setdefault(parameter.views, {})[parameter.name] = table
        return [f"{kind} = {table_of(tables)}" for kind, tables in entries.items()]

    def _texels(self, name: str, texture: HostTexture | None, sides: Sequence[str]) -> list[str]:
        """Return the width and height of the array that the host allocated, else of the tensor."""
        why = "no cudaMallocArray of it"
        if texture is not None and texture.size:
            try:
                return [plain_quotient(convert(part, self.known)) for part in texture.size]
            except UnsupportedExpression as error:
                why = str(error)
        self.proposal.notes.append(f"the size of '{name}' in texels is guessed from its tensor ({why})")
        return list(sides[:-3:-1])

    # Arguments --------------------------------------------------------------------------------------------------------

    def _group(self, group: ParameterArguments) -> str:
        """Return a parameter's argument as header text."""
        texts = [self._argument(parameter, argument) for parameter, argument in group.fields]
        if not group.is_struct:
            return texts[0]
        fields = (typed_value(text, parameter.type) for text, (parameter, _) in zip(texts, group.fields, strict=True))
        return f"{{ struct = [{', '.join(fields)}] }}"

    def _argument(self, parameter: Parameter, tokens: tuple[Token, ...]) -> str:
        """Return one argument as header text."""
        name = parameter.name
        if parameter.views:
            return f'"{name}"'
        if parameter.is_pointer:
            return f'"{self.match.names.get(name, name)}"'
        if name in self.match.axes:
            return f'"{self.match.axes[name]}"'
        token_texts = [token.text for token in tokens]
        if token_texts in (["true"], ["false"]):
            return token_texts[0]
        if re.search(r"\b(float|double)\b", parameter.type):
            return self._real(parameter, tokens)
        try:
            return f'"{plain_quotient(convert(tokens, self.known))}"'
        except UnsupportedExpression as error:
            text = f"what '{name}' is cannot be read ({plain_name(str(error))}): write an expression of the axes"
            self.proposal.contradict("launch", name, text)
            return f'"{name}"'

    def _real(self, parameter: Parameter, tokens: tuple[Token, ...]) -> str:
        """Return a float as header text; add a contradiction if the operator has no such number."""
        kind = "f64" if "double" in parameter.type else "f32"
        neutral = 0.0 if parameter.name.lower() == "beta" else 1.0
        value = _float(tokens, self.known)
        written = str(value)
        if value is None:
            try:
                written = f'"{convert(tokens, self.known, real=True)}"'
            except UnsupportedExpression:
                value, written = neutral, str(neutral)
                self.proposal.guess(f"'{parameter.name}'", written, "the host's value cannot be read")
        operator = self.proposal.operator
        if operator in PLAIN and (parameter.name.lower() not in SCALE_FACTOR_NAMES or value != neutral):
            text = f"the kernel takes a number '{parameter.name}' = {written}, which {operator} does not have"
            self.proposal.contradict("formula", parameter.name, text)
        return written if kind == "f32" and value is not None else table_of({kind: written})

    # Geometry ---------------------------------------------------------------------------------------------------------

    def _assumed_geometry(self) -> tuple[list[str], list[str], str]:
        """Return grid and block for a kernel that is never launched: one thread per element of the output."""
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
        """Add a contradiction if a kernel does not compute one element per thread, as `blockIdx.x * TILE` shows."""
        known = {**self.file.constants, **definitions(self.read.kernel.tokens)}
        code = [token.text for token in self.read.kernel.tokens]
        for index in [index for index, text in enumerate(code) if text == "blockIdx"]:
            left = code[index - 4 if code[index - 3] == "." else index - 2] if code[index - 1] == "*" else ""
            factor = code[index + 4] if code[index + 3] == "*" else left
            with contextlib.suppress(UnsupportedExpression):
                if factor == "blockDim" or number_of(tokens_of(factor), known) == side:
                    continue
            text = "nothing in the file launches the kernel, and a block computes more or less than a thread an element"
            self.proposal.contradict("launch", "grid", text)
            return

    def _geometry(self, launch: HostLaunch) -> tuple[list[str], list[str], str]:
        """Return the grid, the block and the bytes of shared memory as header text."""
        grid, block = (self._sides(number, sides) for number, sides in enumerate(launch.configuration[:2]))
        shared = ""
        if len(launch.configuration) > 2:
            try:
                shared = plain_quotient(convert(launch.configuration[2], self.known))
            except UnsupportedExpression as error:
                self.proposal.contradict("launch", "shared", f"shared bytes cannot be read ({error})")
        return grid, block, shared

    def _sides(self, number: int, tokens: Sequence[Token]) -> list[str]:
        """Return one to three expressions for a grid (0) or a block (1)."""
        sides = []
        for index, part in enumerate(launch_parts(tokens, self.known)):
            try:
                sides.append(plain_quotient(convert(part, self.known)))
            except UnsupportedExpression as error:
                value = self.sizes.number(number, index)
                sides.append("1" if value is None else str(value))
                if value is None:
                    dimension, written = ("grid", "block")[number], "".join(token.text for token in part)
                    text = f"{dimension} '{written}' cannot be read ({error}): write an expression of the axes"
                    self.proposal.contradict("launch", dimension, text)
        return sides


def _float(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> float | None:
    """Return the number of a float argument, directly or from a variable."""
    text = "".join(token.text for token in tokens).rstrip("fF")
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", text):
        return float(text)
    value = values_by_name.get(text)
    return None if value is None or isinstance(value, str) or len(value) > 2 else _float(value, {})
