"""The values of host variables, and the variables that launches and buffers need."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.host_launches import number_of
from opbench.adopting.host_program import HostProgram
from opbench.adopting.parsed_file import LaunchedKernel
from opbench.adopting.proposal import grid_components
from opbench.errors import UsageError
from opbench.kernels import expression
from opbench.source.c_expression import MAX_DEPTH, UnsupportedExpression, convert
from opbench.source.tokens import Token, closing_bracket, text_of, texts_of

MAX_ASSUMED_TILE = 256
"""A template argument up to this number may be a tile."""
DEVICE_PROPERTY = re.compile(r"(?i)prop|device")
"""Matches variables that hold properties of the device."""
WHOLE_NUMBER_TYPES = frozenset(("int", "unsigned", "size_t", "uint32_t", "int32_t", "int64_t", "long", "const"))
"""First words of the declarations of template parameters that are whole numbers."""
SIZE_FUNCTIONS = frozenset(("size", "numel", "sizes", "length", "rows", "cols", "width", "height"))
"""Member functions that return a size."""


@dataclass
class HostValues:
    """The values of a host program, with those that replace them, and what its launches need of them."""

    program: HostProgram
    launched_kernels: list[LaunchedKernel]
    replacement_values: dict[str, str] = field(default_factory=dict)
    """Values, as text, that replace those of host variables: given, assumed, or of device properties."""

    def names(self) -> list[str]:
        """Return the host variables to which the user may pass a size."""
        parameter_names = [p.name for p in self.program.parameters]
        names = [*parameter_names, *self.program.values_by_name, *self.program.buffers]
        return list(dict.fromkeys([*names, *self.unknown_template_values()]))

    def at(self, launched_kernel: LaunchedKernel | None = None) -> dict[str, Sequence[Token] | str]:
        """Return the values of the host's names; for a launch, their values at that launch."""
        launch_values = launched_kernel.host_launch.values_by_name if launched_kernel else {}
        return {**self.program.values_by_name, **launch_values, **self.replacement_values}

    def evaluate(self, tokens: Sequence[Token], launched_kernel: LaunchedKernel | None = None) -> int:
        """Return the whole number that a host expression equals at a launch.

        Raises UnsupportedExpression if a variable in it has no value.
        """
        return number_of(tokens, self.at(launched_kernel))

    def needed_variables(self) -> list[str]:
        """Return the variables that launches and allocations depend on, each after the variables in its own value."""
        result: dict[str, None] = {}

        def visit(tokens: Sequence[Token], depth: int = 0) -> None:
            for token in tokens:
                if token.kind == "name" and token.text not in result and depth < 16:
                    visit(self.program.values_by_name.get(token.text, ()), depth + 1)
                    result[token.text] = None

        for launch in (launched_kernel.host_launch for launched_kernel in self.launched_kernels):
            for expression_tokens in (*launch.configuration[:3], *launch.arguments):
                visit(expression_tokens)
        for buffer in self.program.buffers.values():
            visit(buffer.byte_count or buffer.element_count)
        return list(result)

    def needed_expressions(self) -> Iterator[Sequence[Token]]:
        """Yield the expressions of grids, blocks and whole numbers, and the values of all needed variables."""
        yield from (self.program.values_by_name.get(name, ()) for name in self.needed_variables())
        for launched_kernel in self.launched_kernels:
            yield from launched_kernel.host_launch.configuration[:3]
            for parameter, argument in launched_kernel.argument_pairs:
                if parameter.is_whole_number:
                    yield argument

    def variables_in(self, *expressions: Sequence[Token]) -> set[str]:
        """Return the variables on which expressions depend, directly or through other variables."""
        result: set[str] = set()
        unvisited = [token.text for tokens in expressions for token in tokens if token.kind == "name"]
        while unvisited:
            name = unvisited.pop()
            if name not in result:
                result.add(name)
                unvisited += [token.text for token in self.program.values_by_name.get(name, ()) if token.kind == "name"]
        return result

    def block_sizes(self, launched_kernel: LaunchedKernel) -> dict[str, int]:
        """Return the variables that block sizes depend on, each with a usual value."""
        block = launched_kernel.host_launch.configuration[1]
        components = grid_components(block, self.at(launched_kernel))
        names = self.variables_in(*components) | {token.text for token in block if len(block) == 1}
        return dict.fromkeys(names, 256 if len(components) == 1 else 16)

    def is_undefined(self, name: str) -> bool:
        """Return whether the file gives a variable no value."""
        name_tokens = (Token("name", name, 0),)
        try:
            self.evaluate(name_tokens)
        except UnsupportedExpression:
            return float_value(name_tokens, self.at()) is None
        return False

    def is_without_size(self, name: str) -> bool:
        """Return whether the file gives a variable no value, or one that is no size, such as 0 before an input."""
        try:
            return self.evaluate((Token("name", name, 0),)) < 1
        except UnsupportedExpression:
            return self.is_undefined(name)

    def differs_at_a_launch(self, name: str) -> bool:
        """Return whether a variable's value at some launch differs from its value at the end of the program."""
        final_value = self.program.values_by_name.get(name, ())
        launches = [launched_kernel.host_launch for launched_kernel in self.launched_kernels]
        values = [launch.values_by_name.get(name, final_value) for launch in launches]
        return name not in self.replacement_values and any(texts_of(value) != texts_of(final_value) for value in values)

    def unknown_variable(self, tokens: Sequence[Token], launched_kernel: LaunchedKernel | None, depth: int = 0) -> str:
        """Return the variable with an unknown value on which an expression depends; "" without one."""
        all_values = self.at(launched_kernel)
        for token in tokens:
            value = all_values.get(token.text, ()) if token.kind == "name" else ()
            if isinstance(value, str) or not value or depth > MAX_DEPTH:
                continue
            try:
                self.evaluate((token,), launched_kernel)
            except UnsupportedExpression:
                return self.unknown_variable(value, launched_kernel, depth + 1) or token.text
        return ""

    def unknown_members(self) -> list[str]:
        """Return the sizes that launches need from objects with no value in the file, such as `x.size(0)`."""
        result: dict[str, None] = {}
        for tokens in self.needed_expressions():
            for member in _member_accesses(tokens):
                text = text_of(member)
                try:
                    self.evaluate(member)
                except UnsupportedExpression:
                    if not DEVICE_PROPERTY.search(text):
                        result[text] = None
        return list(result)

    def unknown_template_values(self) -> list[str]:
        """Return the names of whole numbers in template arguments that the file does not define.

        A macro around the launch can define such a name. Only a name that is the only one of its launch and that no
        block depends on can be assumed: tiles and blocks must fit each other.
        """
        result: dict[str, None] = {}
        for launched_kernel in self.launched_kernels:
            parameters = launched_kernel.kernel.template_parameters()
            arguments = launched_kernel.host_launch.template_arguments()
            values_by_name = self.at(launched_kernel)
            unknown_names = {
                argument[0].text
                for parameter, argument in zip(parameters, arguments, strict=False)
                if parameter and parameter[0].text in WHOLE_NUMBER_TYPES and len(argument) == 1
                if argument[0].kind == "name" and argument[0].text not in values_by_name
            }
            if len(unknown_names) == 1 and not unknown_names & self.block_sizes(launched_kernel).keys():
                result |= dict.fromkeys(unknown_names)
        return list(result)

    def largest_tile(self) -> int:
        """Return the largest template argument of a launch that may be a tile, not its number of threads; 0 if none."""
        tiles = [0]
        for launched_kernel in self.launched_kernels:
            if not launched_kernel.host_launch.template:
                continue
            block = grid_components(launched_kernel.host_launch.configuration[1], self.at(launched_kernel))
            threads = 0
            with contextlib.suppress(UnsupportedExpression):
                threads = math.prod(self.evaluate(component, launched_kernel) for component in block)
            for argument in launched_kernel.host_launch.template_arguments():
                with contextlib.suppress(UnsupportedExpression):  # It may be a type.
                    number = self.evaluate(argument, launched_kernel)
                    tiles += [number] if number != threads and number <= MAX_ASSUMED_TILE else []
        return max(tiles)


def _member_accesses(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield each field or size of an object, such as `x.size(0)`, `p->count` or `strlen(text)`."""
    for index, (token, dot, member) in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False)):
        if token.text == "strlen" and dot.text == "(":
            yield tokens[index : closing_bracket(tokens, index + 1) + 1]
        is_start = token.kind == "name" and (not index or tokens[index - 1].text not in (".", "->"))
        if not is_start or dot.text not in (".", "->") or member.text in ("x", "y", "z"):
            continue
        end = index + 3
        is_call = end < len(tokens) and tokens[end].text == "("
        if is_call and member.text not in SIZE_FUNCTIONS:
            continue
        while end < len(tokens) and tokens[end].text in ("(", "["):
            end = closing_bracket(tokens, end) + 1
        if end == len(tokens) or tokens[end].text not in (".", "->", "<"):
            yield tokens[index:end]


def float_value(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> float | None:
    """Return the value of a floating-point expression; None if it is unknown."""
    try:
        return float(expression.evaluate(convert(tokens, values_by_name, is_real=True), {}, True))
    except (UnsupportedExpression, UsageError):
        return None
