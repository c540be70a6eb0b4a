"""Propose a header with an operator, from a kernel's parameters and a launch of the kernel."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

from opbench.adopting.host_launches import HostLaunch, Parameter, definitions, number_of, plain_name
from opbench.adopting.host_structs import ParameterArguments, typed_value
from opbench.adopting.host_textures import HostTexture, textures_of
from opbench.adopting.matching import Match, tensor_axes
from opbench.adopting.operator_sizes import LaunchSizes
from opbench.adopting.parsed_file import LaunchedKernel, ParsedFile
from opbench.adopting.proposal import (
    Proposal,
    grid_components,
    launch_text,
    list_text,
    missing_template_arguments,
    plain_quotient,
    template_arguments,
    template_text,
)
from opbench.adopting.ranking import ARITHMETIC_OPERATORS
from opbench.adopting.stores import ADDED
from opbench.kernels.memory_header import table_of
from opbench.source.c_expression import UnsupportedExpression, convert, tokens_of
from opbench.source.tokens import Token, text_of, texts_of

SCALE_FACTOR_NAMES = frozenset(("alpha", "beta", "scale"))
"""Names of parameters that scale a matrix product: they have no effect if they are 1, or 0 for beta."""


def write_header(proposal: Proposal, file: ParsedFile, launched_kernel: LaunchedKernel, match: Match) -> None:
    """Fill a proposal with the lines of a header for `match`, and with guesses, contradictions and notes."""
    _Writer(proposal, file, launched_kernel, match).write()


class _Writer:
    """Write a header's lines from one launch, with numbers as expressions of the operator's axes."""

    def __init__(self, proposal: Proposal, file: ParsedFile, launched_kernel: LaunchedKernel, match: Match) -> None:
        self.proposal, self.file, self.launched_kernel, self.match = proposal, file, launched_kernel, match
        self.sizes = LaunchSizes(proposal, launched_kernel, match, file.program())
        self.values_by_name = self.sizes.values_by_name

    def write(self) -> None:
        """Write the lines of the proposed header."""
        proposal, launched_kernel, match, launch = (
            self.proposal,
            self.launched_kernel,
            self.match,
            self.launched_kernel.launch,
        )
        proposal.guesses += match.guesses
        proposal.contradictions += match.contradictions
        self.sizes.match_variables()
        tunables = {
            name: name.upper()
            for name in (launch.block_size_parameters if launch else ())
            if name not in self.values_by_name
        }
        self.values_by_name |= tunables
        proposal.args = [self._argument_text(argument_group) for argument_group in launched_kernel.argument_groups]
        kernel_text = self._kernel_text()
        self._contradict_parameters()
        grid, block, shared = self._geometry(launch) if launch else self._assumed_geometry()
        self.sizes.require(grid, block)
        self.sizes.contradict_numbers()
        lines = proposal.lines = [f'operator = "{proposal.operator}"', f'title = "{launched_kernel.kernel.name}"']
        if match.in_place:
            output, input = match.in_place
            lines.append(f'in_place = {{ {output} = "{input}" }}' if output else "in_place = true")
        if match.modes:
            lines.append(f"supports = {table_of({mode: list_text([value]) for mode, value in match.modes.items()})}")
        if proposal.requires:
            lines.append(f"requires = {list_text(proposal.requires)}")
        used_tunables = [
            macro
            for macro in tunables.values()
            if any(macro in dimension_text for dimension_text in (*grid, *block, shared))
        ]
        if used_tunables:
            lines.append(
                f"tune = {table_of(dict.fromkeys(used_tunables, '[16, 32, 8]' if block[1:] else '[256, 128, 512]'))}"
            )
        if workspaces := self.sizes.workspaces():
            lines.append("workspace = " + table_of({name: f'"{size}"' for name, size in workspaces.items()}))
        lines += self._textures()
        entry = launch_text(kernel_text, grid, block, shared, proposal.args, launch is not None and launch.cooperative)
        accumulated_outputs = [
            match.tensor_by_pointer.get(name, name)
            for name, store_kind in launched_kernel.summary.store_kinds.items()
            if store_kind == ADDED
        ]
        accumulated_outputs = [
            name for name in accumulated_outputs if name in match.problem.outputs or name in workspaces
        ]  # An input is never zeroed.
        if accumulated_outputs and not (match.in_place or match.problem.in_place):
            proposal.notes.append(
                f"the kernel adds to {', '.join(accumulated_outputs)}, so the header zeroes it before the launch"
            )
            steps = [*(f'{{ zero = "{name}" }}' for name in accumulated_outputs), entry]
            lines += ["launch = [", *(f"  {step}," for step in steps), "]"]
        else:
            lines.append(f"launch = [{entry}]")

    def _contradict_parameters(self) -> None:
        """Add contradictions for pointers to structures or pointers, and for an output that is scaled by beta."""
        match, contradict = self.match, self.proposal.contradict
        has_beta = match.operator in ARITHMETIC_OPERATORS and any(
            p.name.lower() == "beta" for p, _ in self.launched_kernel.argument_pairs
        )
        for parameter in (p for p, _ in self.launched_kernel.argument_pairs if p.is_pointer):
            name, type_words = parameter.name, parameter.type.split()
            if struct_name := next((word for word in type_words if word in self.file.structs), ""):
                text = (
                    f"'{name}' is a pointer to structure '{struct_name}', which a header cannot set; pass it by value"
                )
                contradict("tensors", name, text)
            elif type_words.count("*") + type_words.count("[") > 1:
                contradict("tensors", name, f"'{name}' points to pointers, which a header cannot set")
            is_output = match.tensor_by_pointer.get(name) in match.problem.outputs and not match.in_place
            if has_beta and is_output and name in self.launched_kernel.summary.read_pointers:
                text = f"the kernel adds beta times the old '{name}', and {match.operator}'s output is uninitialised"
                contradict("output read", name, text)

    def _kernel_text(self) -> str:
        """Return the kernel's name with its template arguments as header text."""
        launched_kernel, values_by_name = self.launched_kernel, self.values_by_name
        if missing := missing_template_arguments(launched_kernel):
            text = f"no launch gives the template arguments {', '.join(missing)}"
            self.proposal.contradict("launch", missing[0], text)
        kernel_text = launched_kernel.kernel.qualified_name + template_arguments(launched_kernel, values_by_name)
        if kernel_text != launched_kernel.kernel.qualified_name + template_text(launched_kernel, values_by_name):
            self.proposal.guess("the kernel with its template arguments", kernel_text, "no launch gives them")
        return kernel_text

    # Textures ---------------------------------------------------------------------------------------------------------

    def _textures(self) -> list[str]:
        """Return the header lines that describe the kernel's textures and surfaces, one line for each kind."""
        entries: dict[str, dict[str, str]] = {}
        texture_arguments = [
            (parameter, argument)
            for parameter, argument in self.launched_kernel.argument_pairs
            if parameter.texture_kind
        ]
        textures = textures_of(self.file.declarations) if texture_arguments else {}
        for parameter, argument in texture_arguments:
            tensor = self.match.tensor_by_pointer.get(parameter.name, parameter.name)
            texture = textures.get(argument[0].text if len(argument) == 1 else "")
            texture = texture or (next(iter(textures.values())) if len(textures) == 1 else None)
            problem = self.match.problem
            tensor_shape = {**problem.inputs, **problem.outputs}.get(tensor, "n").split()
            if texture is not None and "memory" in texture.header_keys:
                size = [" * ".join(tensor_shape)]
                if channels := texture.header_keys.get("channels"):
                    size = [f"{size[0]} // {channels}"]
                    self.proposal.notes.append(
                        f"a texel of '{parameter.name}' has {channels} elements, so the size in texels is {size[0]}"
                    )
            else:
                size = self._texture_size(parameter.name, texture, tensor_shape)
            header_keys = texture.header_keys if texture and parameter.texture_kind == "textures" else {}
            table = table_of({"tensor": f'"{tensor}"', "size": list_text(size), **header_keys})
            entries.setdefault(parameter.texture_kind, {})[parameter.name] = table
        return [f"{kind} = {table_of(tables)}" for kind, tables in entries.items()]

    def _texture_size(self, name: str, texture: HostTexture | None, tensor_shape: Sequence[str]) -> list[str]:
        """Return the width and height in texels, from the host's allocation, else from the tensor's shape."""
        reason = "the file has no cudaMallocArray for it"
        if texture is not None and texture.size:
            try:
                return [plain_quotient(convert(dimension, self.values_by_name)) for dimension in texture.size]
            except UnsupportedExpression as error:
                reason = str(error)
        self.proposal.notes.append(f"the size of '{name}' in texels is guessed from its tensor ({reason})")
        return list(tensor_shape[:-3:-1])

    # Arguments --------------------------------------------------------------------------------------------------------

    def _argument_text(self, argument_group: ParameterArguments) -> str:
        """Return a parameter's argument as header text."""
        texts = [self._argument(parameter, argument) for parameter, argument in argument_group.fields]
        if not argument_group.is_struct:
            return texts[0]
        fields = (
            typed_value(text, parameter.type) for text, (parameter, _) in zip(texts, argument_group.fields, strict=True)
        )
        return f"{{ struct = [{', '.join(fields)}] }}"

    def _argument(self, parameter: Parameter, tokens: tuple[Token, ...]) -> str:
        """Return one argument as header text."""
        name = parameter.name
        if parameter.texture_kind:
            return f'"{name}"'
        if parameter.is_pointer:
            return f'"{self.match.tensor_by_pointer.get(name, name)}"'
        if name in self.match.axis_by_parameter:
            return f'"{self.match.axis_by_parameter[name]}"'
        token_texts = texts_of(tokens)
        if token_texts in (["true"], ["false"]):
            return token_texts[0]
        if re.search(r"\b(float|double)\b", parameter.type):
            return self._float_text(parameter, tokens)
        try:
            return f'"{plain_quotient(convert(tokens, self.values_by_name))}"'
        except UnsupportedExpression as error:
            text = (
                f"opbench cannot read the argument '{name}' ({plain_name(str(error))}); write an expression of the axes"
            )
            self.proposal.contradict("launch", name, text)
            return f'"{name}"'

    def _float_text(self, parameter: Parameter, tokens: tuple[Token, ...]) -> str:
        """Return a float as header text; add a contradiction if the operator has no such number."""
        dtype = "f64" if "double" in parameter.type else "f32"
        neutral_value = 0.0 if parameter.name.lower() == "beta" else 1.0
        value = _float_value(tokens, self.values_by_name)
        value_text = str(value)
        if value is None:
            try:
                value_text = f'"{convert(tokens, self.values_by_name, is_real=True)}"'
            except UnsupportedExpression:
                value, value_text = neutral_value, str(neutral_value)
                self.proposal.guess(f"'{parameter.name}'", value_text, "opbench cannot read the host's value")
        operator = self.proposal.operator
        if operator in ARITHMETIC_OPERATORS and (
            parameter.name.lower() not in SCALE_FACTOR_NAMES or value != neutral_value
        ):
            text = f"the kernel takes a number '{parameter.name}' = {value_text}, which {operator} does not have"
            self.proposal.contradict("formula", parameter.name, text)
        return value_text if dtype == "f32" and value is not None else table_of({dtype: value_text})

    # Geometry ---------------------------------------------------------------------------------------------------------

    def _assumed_geometry(self) -> tuple[list[str], list[str], str]:
        """Return grid, block and shared bytes as header text, with one thread per element, for an unlaunched kernel."""
        problem = self.match.problem
        output_shape = problem.outputs[next(iter(problem.outputs))].split()
        axes = [axis for axis in output_shape if isinstance(problem.axes.get(axis), int)]
        if "y" in self.launched_kernel.summary.body_names and len(axes) == 2:
            grid, block = [f"cdiv(max({axes[0]}, {axes[1]}), 16)"] * 2, ["16", "16"]
        else:
            element_count = " * ".join(axes) or next(iter(tensor_axes(problem)), "1")
            grid, block = [f"cdiv({element_count}, 256)"], ["256"]
        value = f"grid = {list_text(grid)}, block = {list_text(block)}"
        self.proposal.guess(
            "the launch", value, "nothing in the file launches the kernel; one thread per element is assumed"
        )
        self._contradict_assumed_geometry(int(block[0]))
        return grid, block, ""

    def _contradict_assumed_geometry(self, block_size: int) -> None:
        """Add a contradiction if a block computes another number of elements, as in `blockIdx.x * TILE`."""
        values_by_name = {**self.file.constants, **definitions(self.launched_kernel.kernel.tokens)}
        token_texts = texts_of(self.launched_kernel.kernel.tokens)
        for index in [index for index, text in enumerate(token_texts) if text == "blockIdx"]:
            left_factor = (
                token_texts[index - 4 if token_texts[index - 3] == "." else index - 2]
                if token_texts[index - 1] == "*"
                else ""
            )
            factor = token_texts[index + 4] if token_texts[index + 3] == "*" else left_factor
            with contextlib.suppress(UnsupportedExpression):
                if factor == "blockDim" or number_of(tokens_of(factor), values_by_name) == block_size:
                    continue
            text = "nothing in the file launches the kernel, and a thread does not compute exactly one element"
            self.proposal.contradict("launch", "grid", text)
            return

    def _geometry(self, launch: HostLaunch) -> tuple[list[str], list[str], str]:
        """Return the grid, the block and the bytes of shared memory as header text."""
        grid, block = (
            self._dimension_texts(dimension_index, dimension_tokens)
            for dimension_index, dimension_tokens in enumerate(launch.configuration[:2])
        )
        shared = ""
        if len(launch.configuration) > 2:
            try:
                shared = plain_quotient(convert(launch.configuration[2], self.values_by_name))
            except UnsupportedExpression as error:
                self.proposal.contradict(
                    "launch",
                    "shared",
                    f"opbench cannot read the shared bytes ({error}); write an expression of the axes",
                )
        return grid, block, shared

    def _dimension_texts(self, dimension_index: int, tokens: Sequence[Token]) -> list[str]:
        """Return the components of a grid (`dimension_index` 0) or a block (1) as header text."""
        texts = []
        for index, component in enumerate(grid_components(tokens, self.values_by_name)):
            try:
                texts.append(plain_quotient(convert(component, self.values_by_name)))
            except UnsupportedExpression as error:
                value = self.sizes.component_value(dimension_index, index)
                texts.append("1" if value is None else str(value))
                if value is None:
                    dimension, component_text = (("grid", "block")[dimension_index], text_of(component))
                    text = (
                        f"opbench cannot read {dimension} '{component_text}' ({error}); write an expression of the axes"
                    )
                    self.proposal.contradict("launch", dimension, text)
        return texts


def _float_value(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> float | None:
    """Return the value of a floating-point argument, written directly or as a variable; None if unknown."""
    text = text_of(tokens).rstrip("fF")
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", text):
        return float(text)
    value = values_by_name.get(text)
    return None if value is None or isinstance(value, str) or len(value) > 2 else _float_value(value, {})
