"""Match host variables with an operator's axes, and find the sizes that a header must require."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.host_launches import HostLaunch, Parameter, number_of, plain_name
from opbench.adopting.host_program import HostProgram, product
from opbench.adopting.matching import Match, axis_defaults, tensor_axes
from opbench.adopting.parsed_file import LaunchedKernel
from opbench.adopting.proposal import Proposal, grid_components
from opbench.errors import OpbenchError
from opbench.kernels.expression import evaluate, names
from opbench.kernels.pointer_types import dtype_of
from opbench.kernels.scalar import ELEMENT_BYTES
from opbench.kernels.torch_task import TorchOperator
from opbench.source.c_expression import UnsupportedExpression, convert
from opbench.source.tokens import Token, text_of, texts_of

GRID_AXES = ("rows", "m", "n")
"""Axes for which a grid may have one block per element."""
MAX_THREADS_PER_ELEMENT, MIN_BLOCK_ELEMENTS = 4, 1024
"""A launch contradicts a size if it has this many threads per element, with at least this many elements."""
LOOP_KEYWORDS = frozenset(("for", "while", "do"))
MIN_LITERAL = 64
"""The smallest number in a launch that stands for the size with the same value."""


@dataclass
class LaunchSizes:
    """The sizes of axes at a launch, and the requirements on them that a header needs."""

    proposal: Proposal
    launched_kernel: LaunchedKernel
    match: Match
    program: HostProgram
    values_by_name: dict[str, Sequence[Token] | str] = field(default_factory=dict)
    """Host variables: each with the name of its axis (a string) if it has one, else with the tokens of its value."""
    required_sizes: dict[str, int] = field(default_factory=dict)
    """Axes whose size the header must require, with the size."""

    def match_variables(self) -> None:
        """Match host variables with axes, and require the sizes that the file fixes."""
        launch, match = self.launched_kernel.launch, self.match
        self.values_by_name |= launch.values_by_name if launch else {}
        for parameter, argument in self.launched_kernel.argument_pairs:
            axis = match.axis_by_parameter.get(parameter.name)
            if axis and len(argument) == 1 and self._can_stand_for_axis(argument[0]):
                self.values_by_name[argument[0].text] = axis
        for argument_group, argument in zip(
            self.launched_kernel.argument_groups, launch.arguments if launch else (), strict=False
        ):
            if argument_group.is_struct and len(argument) == 1:  # Host code can use the fields of a structure by name.
                axes_of_fields = {
                    f"{argument[0].text}.{p.name}": match.axis_by_parameter[p.name]
                    for p, _ in argument_group.fields
                    if p.name in match.axis_by_parameter
                }
                self.values_by_name |= axes_of_fields
        self._note_options()
        self.proposal.requires += [f"{axis} == {other}" for axis, other in match.equal_axes.items()]
        self._relate_axes()
        for axis in match.missing_axes:
            self._find_axis(axis)
        self._require_constants_of_the_kernel()
        self._require_defaults()

    def _can_stand_for_axis(self, argument: Token) -> bool:
        """Return whether an argument means the same axis everywhere: a variable, or a number from `MIN_LITERAL` on."""
        return argument.kind != "number" or not argument.text.isdigit() or int(argument.text) >= MIN_LITERAL

    def _relate_axes(self) -> None:
        """Add requirements on axes that share one variable or depend on another axis."""
        axis_by_argument: dict[str, str] = {}
        for parameter, argument in self.launched_kernel.argument_pairs:
            axis, argument_text = (self.match.axis_by_parameter.get(parameter.name), text_of(argument))
            if not axis or all(token.kind == "number" for token in argument):
                continue
            if (first_axis := axis_by_argument.setdefault(argument_text, axis)) != axis:
                self.proposal.require(f"{axis} == {first_axis}")
                self.proposal.guess(axis, first_axis, f"the launch passes {argument_text} for both")
                self.values_by_name[argument[0].text] = (
                    first_axis if len(argument) == 1 else self.values_by_name[argument[0].text]
                )
            elif len(argument) > 1:
                with contextlib.suppress(UnsupportedExpression):
                    text = convert(argument, self.values_by_name)
                    if set(re.findall(r"[A-Za-z_]\w*", text)) & set(self.match.axis_by_parameter.values()) - {axis}:
                        self.proposal.require(f"{axis} == {text}")
                        self.proposal.guess(axis, text, "the launch passes this expression")

    def _note_options(self) -> None:
        """Add a guess for each default value of a command-line option that the launch depends on."""
        launch = self.launched_kernel.launch
        if launch is None or not launch.option_expressions:
            return
        unvisited = [
            t.text for tokens in (*launch.configuration, *launch.arguments) for t in tokens if t.kind == "name"
        ]
        visited: set[str] = set()
        while unvisited:
            name = unvisited.pop()
            if name in visited:
                continue
            visited.add(name)
            value = launch.values_by_name.get(name, ())
            unvisited += [token.text for token in value if token.kind == "name"]
            value_text = text_of(value)
            if (
                name in launch.option_expressions
                and value_text
                and value_text != launch.option_expressions[name]
                and not isinstance(self.values_by_name.get(name), str)
            ):
                reason = f"its default; the host code can set it by {launch.option_expressions[name]}"
                self.proposal.guess(f"'{name}'", value_text, reason)

    def _shape(self, name: str) -> list[str]:
        """Return the axes of the tensor that a pointer parameter stands for; empty without a tensor."""
        problem = self.match.problem
        shapes: dict[str, str] = {**problem.inputs, **problem.outputs}
        return shapes.get(self.match.tensor_by_pointer.get(name, ""), "").split()

    def _find_axis(self, axis: str) -> None:
        """Find the size of an axis that no parameter gives: from the sizes of buffers, else from the grid.

        Adds a contradiction if the file does not give the size.
        """
        pairs = sorted(
            self._arguments_of(),
            key=lambda pair: self.match.tensor_by_pointer.get(pair[0].name) in self.match.problem.outputs,
        )
        for parameter, argument in pairs:  # Inputs first: their factors are in the order of their axes.
            shape = self._shape(parameter.name)
            if axis not in shape:
                continue
            buffer_name = self.program.buffer_name(argument)
            factors = self.program.factors(buffer_name) if buffer_name else []
            if len(shape) == 1:
                tokens: Sequence[Token] = product(factors)
            else:
                tokens = factors[shape.index(axis)] if len(factors) == len(shape) else ()
            if tokens and self._require_size(axis, tokens, f"the size of '{buffer_name}'"):
                return
        launch = self.launched_kernel.launch
        grid_x = launch.configuration[0] if launch and launch.configuration else ()
        may_be_per_block = (
            len(tensor_axes(self.match.problem)) > 1 or "threadIdx" not in self.launched_kernel.summary.body_names
        )
        if axis in GRID_AXES and len(self.match.missing_axes) == 1 and len(grid_x) == 1 and may_be_per_block:
            if grid_x[0].kind == "name" and grid_x[0].text not in self.values_by_name:
                self.values_by_name[grid_x[0].text] = axis
                self.proposal.guess(axis, grid_x[0].text, "the grid has this number of blocks")
                return
            if self._require_size(axis, grid_x, "the grid has this number of blocks"):
                return
        text = f"the file does not give the size of {self.match.operator}'s axis {axis}"
        self.proposal.contradict("axis", axis, text)

    def _launch(self) -> HostLaunch | None:
        """Return the first launch of the kernel in the whole program."""
        return next(
            (launch for launch in self.program.launches if launch.kernel == self.launched_kernel.kernel.name), None
        )

    def _arguments_of(self, launch: HostLaunch | None = None) -> list[tuple[Parameter, tuple[Token, ...]]]:
        """Return the kernel's parameters with the arguments of a launch in the whole program."""
        launch = launch or self._launch()
        if launch is None or any(argument_group.is_struct for argument_group in self.launched_kernel.argument_groups):
            return self.launched_kernel.argument_pairs
        return [(p, g) for (p, _), g in zip(self.launched_kernel.argument_pairs, launch.arguments, strict=False)]

    def _require_size(self, axis: str, tokens: Sequence[Token], reason: str) -> bool:
        """Require that an axis has the value of a host expression; return False if the value is unknown or below 1."""
        value = self._value(tokens)
        if value is None or value < 1:
            return False
        self.required_sizes[axis] = value
        self.proposal.require(f"{axis} == {value}")
        self.proposal.guess(axis, str(value), reason)
        return True

    def _contradict_conflicting_sizes(self, parameter: Parameter, axis: str) -> None:
        """Add a contradiction if another launch of the kernel gives an axis a different size."""
        launches = [launch for launch in self.program.launches if launch.kernel == self.launched_kernel.kernel.name]
        for launch in launches[1:]:
            for other_parameter, argument in self._arguments_of(launch):
                if other_parameter == parameter and self._value(argument) not in (None, self.required_sizes.get(axis)):
                    text = f"another launch passes another value of {parameter.name}"
                    self.proposal.contradict("launch", axis, text)
                    return

    def _value(self, tokens: Sequence[Token]) -> int | None:
        """Return the value of an expression at the end of the host program; None if it is unknown."""
        try:
            return self.program.value(tokens)
        except UnsupportedExpression:
            return None

    def _require_constants_of_the_kernel(self) -> None:
        """Require the size of an axis whose argument is a constant that the kernel's code uses, too."""
        for parameter, argument in self._arguments_of():
            axis = self.match.axis_by_parameter.get(parameter.name)
            names = {token.text for token in argument if token.kind == "name"}
            if axis and names & self.program.device_constants & self.launched_kernel.summary.body_names:
                self._require_size(axis, argument, f"the kernel's code uses {', '.join(sorted(names))}")

    def _require_defaults(self) -> None:
        """Require the default of each axis without a tensor and a parameter, such as a stride."""
        match, matched_axes = self.match, set(self.match.axis_by_parameter.values())
        axes_of_tensors, defaults = tensor_axes(match.problem), axis_defaults(match.problem)
        for axis, value in match.problem.axes.items():
            if not isinstance(value, int) or axis in axes_of_tensors or axis in matched_axes:
                continue
            if isinstance(match.problem, TorchOperator):  # Its tensors have axes of their own, such as x_dim0.
                continue
            if axis in defaults:
                self.proposal.require(f"{axis} == {defaults[axis]}")
                reason = "no parameter has this name, and this is the default"
                self.proposal.guess(axis, str(defaults[axis]), reason)
            else:
                text = f"the file does not give {match.operator}'s {axis}"
                self.proposal.contradict("axis", axis, text)

    def component_value(self, dimension_index: int, component_index: int) -> int | None:
        """Return a component of the grid (`dimension_index` 0) or of the block (1); None if it depends on a size."""
        launch = self._launch()
        if launch is None or len(self.required_sizes) < len(tensor_axes(self.match.problem)):
            return None
        try:
            return self.program.value(
                grid_components(launch.configuration[dimension_index], self.program.values_by_name)[component_index]
            )
        except (UnsupportedExpression, IndexError):
            return None

    def require(self, grid: Sequence[str], block: Sequence[str]) -> None:
        """Add the requirements of a grid without rounding up: multiples of its divisors, or one fixed size."""
        match, has_grid_stride_loop = self.match, "gridDim" in self.launched_kernel.summary.body_names
        axes = [a for a, value in match.problem.axes.items() if isinstance(value, int)]
        self._contradict_grid(grid, axes)
        names_in_launch = {word for text in (*grid, *block) for word in re.findall(r"[A-Za-z_]\w*", text)}
        if not has_grid_stride_loop:
            quotients = [
                (text, axis, divisor)
                for text in (*grid, *block)
                for axis, divisor in re.findall(r"(?<![\w(])\(?(\w+)\)? // (\w+)\b(?!\) \+ 1)", text)
            ]
            for text, axis, divisor in quotients:
                if axis in axes and axis not in self.required_sizes and not _grows_for_a_remainder(text, axis, divisor):
                    self.proposal.require(f"{axis} % {divisor} == 0")
                    reason = f"the launch divides {axis} by {divisor} without rounding up"
                    self.proposal.guess(axis, f"a multiple of {divisor}", reason)
        if (
            self.launched_kernel.launch is None
            or names_in_launch & set(axes)
            or has_grid_stride_loop
            or len(self.required_sizes) == len(tensor_axes(match.problem))
        ):
            return
        for parameter, argument in self._arguments_of():
            axis = match.axis_by_parameter.get(parameter.name, "")
            if axis in tensor_axes(match.problem) and axis not in self.required_sizes:
                self._require_size(axis, argument, "the grid fits only this size")
                self._contradict_conflicting_sizes(parameter, axis)
        if not self.required_sizes:
            text = "the grid does not depend on an axis; write an expression of the axes"
            has_block_stride_loop = (
                LOOP_KEYWORDS & self.launched_kernel.summary.body_names
                and "blockDim" in self.launched_kernel.summary.body_names
                and list(grid) == ["1"]
            )
            if has_block_stride_loop or not self.launched_kernel.summary.body_names:
                self.proposal.notes.append(text)
            else:
                self.proposal.contradict("grid", "", text)

    def _contradict_grid(self, grid: Sequence[str], axes: Sequence[str]) -> None:
        """Add a contradiction if a launch covers only a part of buffers, or has more dimensions than the tensors."""
        sizes, add = tensor_axes(self.match.problem), self.proposal.contradict
        sized_components = [component for component in grid if set(re.findall(r"[A-Za-z_]\w*", component)) & set(axes)]
        varying_axes = [axis for axis in self._output_axes() if axis not in self.required_sizes]
        names_in_grid = {word for component in grid for word in re.findall(r"[A-Za-z_]\w*", component)}
        axes_in_grid = [axis for axis in varying_axes if axis in names_in_grid]
        if (
            len(sized_components) > 1
            and axes_in_grid
            and not names_in_grid & (set(axes) - set(varying_axes))
            and "gridDim" not in self.launched_kernel.summary.body_names
        ):
            requirements = " ".join(self.proposal.requires)
            for axis in [
                axis
                for axis in varying_axes
                if axis not in names_in_grid and not re.search(rf"\b{axis}\b", requirements)
            ]:
                self.proposal.require(f"{axis} == {axes_in_grid[0]}")
                reason = f"both dimensions of the grid use {axes_in_grid[0]}"
                self.proposal.guess(axis, axes_in_grid[0], reason)
        token_texts = texts_of(self.launched_kernel.kernel.tokens)
        for name in self.match.axis_by_parameter if len(sizes) == 1 else ():
            if [name, "*", name] in (token_texts[index : index + 3] for index in range(len(token_texts))):
                add("sizes", name, f"the kernel has {name} * {name} elements, not {name}")
        if len(sizes) == 1 and len(sized_components) > 1:
            text = (
                f"the grid depends on {len(sized_components)} sizes, and {self.match.operator}'s tensors have one axis"
            )
            add("grid", sizes[0], text)
        for parameter, argument in (*self.launched_kernel.argument_pairs, *self._arguments_of()):
            if parameter.is_pointer and parameter.name in self.match.tensor_by_pointer:
                self._contradict_pointer(parameter, argument)
        for launch in filter(None, (self.launched_kernel.launch, self._launch())):
            for parameter, argument in self._arguments_of(launch):
                loop_variables = [token.text for token in argument if token.text in launch.loop_variables]
                if loop_variables and (not parameter.is_pointer or loop_variables[0] == argument[0].text):
                    text = f"a loop launches the kernel with different values of '{plain_name(loop_variables[0])}'"
                    self.proposal.contradict("launch", parameter.name, text)

    def _output_axes(self) -> list[str]:
        """Return the axes in the shape of the first output."""
        shapes = [shape.split() for shape in self.match.problem.outputs.values()]
        return [axis for axis in shapes[0] if axis in tensor_axes(self.match.problem)] if shapes else []

    def _contradict_pointer(self, parameter: Parameter, argument: Sequence[Token]) -> None:
        """Add a contradiction for a launch on a part of a buffer, or on one of several buffers."""
        texts = texts_of(argument)
        argument_text = "".join(texts)
        offsets = self.program.buffer_and_offsets(argument)[1]
        if offsets or "+" in texts or (texts[:1] == ["&"] and "[" in texts and not argument_text.endswith("[0]")):
            offset_text = text_of(offsets[0]) if offsets else argument_text
            text = f"the launch passes an offset into a buffer as '{parameter.name}': {plain_name(offset_text)}"
            self.proposal.contradict("launch", parameter.name, text)
        elif "?" in texts:
            self.proposal.contradict(
                "launch", parameter.name, f"'{parameter.name}' is one of several buffers: {argument_text}"
            )

    def contradict_numbers(self) -> None:
        """Add a contradiction if a buffer is too small, or if the threads do not fit the number of elements."""
        self._contradict_vectors()
        self._contradict_lengths()
        launch = self._launch()
        if launch is None:
            return
        axis_sizes = self._sizes_at(launch)
        all_values = {**self.program.values_by_name, **launch.values_by_name}
        self._contradict_row_column_product(launch, all_values)
        tensors = {
            tensor.name: tensor
            for tensor in (*self.match.problem.input_tensors(), *self.match.problem.output_tensors())
        }
        for parameter, argument in self._arguments_of():
            tensor = tensors.get(self.match.tensor_by_pointer.get(parameter.name, ""))
            axes = self._shape(parameter.name)
            if tensor is None or not axes or any(axis not in axis_sizes for axis in axes):
                continue
            needed_elements = math.prod(axis_sizes[axis] for axis in axes)
            buffer_bytes = self.program.bytes_of(self.program.buffer_name(argument))
            if buffer_bytes is not None and buffer_bytes < needed_elements * ELEMENT_BYTES[tensor.dtype]:
                text = (
                    f"'{parameter.name}' has {buffer_bytes} bytes, and {self.match.operator}'s {tensor.name} "
                    f"needs {needed_elements * ELEMENT_BYTES[tensor.dtype]}"
                )
                self.proposal.contradict("sizes", parameter.name, text)
            store_indices = self.launched_kernel.summary.store_indices.get(parameter.name, ())
            if (
                tensor.name in self.match.problem.outputs
                and len(store_indices) == 1
                and not LOOP_KEYWORDS & self.launched_kernel.summary.body_names
            ):
                self._contradict_threads(launch, needed_elements, all_values)

    def _contradict_vectors(self) -> None:
        """Add a contradiction for a size that counts vectors such as float4 instead of elements."""
        element_types = self.launched_kernel.summary.element_types.values()
        width = max(
            (
                int(element_type[-1])
                for element_type in element_types
                if dtype_of(element_type) and element_type[-1:] in ("2", "4")
            ),
            default=0,
        )
        if not width:
            return
        bits = width.bit_length() - 1
        is_scaled = bool({str(width), str(width - 1), str(bits)} & self.launched_kernel.summary.number_literals)
        launch = self._launch() or self.launched_kernel.launch
        all_values = {**self.program.values_by_name, **(launch.values_by_name if launch else {})}
        for parameter, argument in self._arguments_of():
            axis = self.match.axis_by_parameter.get(parameter.name, "")
            value = all_values.get(argument[0].text, argument) if len(argument) == 1 else argument
            is_quotient = texts_of(value)[-2:] in (["/", str(width)], [">", str(bits)])
            if axis and (is_quotient or not is_scaled):
                text = (
                    f"'{parameter.name}' counts vectors of {width}, and {self.match.operator}'s {axis} counts elements"
                )
                self.proposal.contradict("sizes", parameter.name, text)

    def _contradict_lengths(self) -> None:
        """Add a contradiction for a size that is a buffer's length, if the operator needs the side of a square."""
        if not self.match.equal_axes:
            return
        names = [
            self.program.buffer_name(argument) for p, argument in self._arguments_of() if len(self._shape(p.name)) > 1
        ]
        lengths = [factors[0] for name in names if len(factors := self.program.factors(name)) == 1]
        length_texts = [texts_of(length) for length in lengths]
        for parameter, argument in self._arguments_of():
            if self.match.axis_by_parameter.get(parameter.name) and texts_of(argument) in length_texts:
                length = plain_name(argument[0].text)
                text = f"a buffer has only {length} elements, and the tensors of {self.match.operator} are squares"
                self.proposal.contradict("sizes", parameter.name, text)

    def _contradict_row_column_product(self, launch: HostLaunch, values_by_name: Mapping[str, Sequence[Token]]) -> None:
        """Add a contradiction for rows and columns whose product is less than the number of elements."""
        size_arguments = [g for p, g in self._arguments_of(launch) if p.is_whole_number]
        if self.match.axis_by_parameter or len(size_arguments) < 2 or len(self.required_sizes) != 1:
            return
        with contextlib.suppress(UnsupportedExpression):
            sizes = [number_of(argument, values_by_name) for argument in size_arguments]
            if math.prod(sizes) < (element_count := next(iter(self.required_sizes.values()))):
                text = f"the launch passes {' x '.join(map(str, sizes))} elements, and the buffers have {element_count}"
                self.proposal.contradict("sizes", "", text)

    def _sizes_at(self, launch: HostLaunch) -> dict[str, int]:
        """Return the sizes of the axes at a launch, as far as the file gives them."""
        sizes = dict(self.required_sizes)
        for parameter, argument in self._arguments_of(launch):
            axis = self.match.axis_by_parameter.get(parameter.name)
            with contextlib.suppress(UnsupportedExpression):
                if axis and axis not in sizes:
                    sizes[axis] = number_of(argument, {**self.program.values_by_name, **launch.values_by_name})
        for axis, other in self.match.equal_axes.items():
            sizes |= {axis: sizes[other]} if other in sizes else {}
        return sizes

    def _contradict_threads(
        self, launch: HostLaunch, element_count: int, values_by_name: Mapping[str, Sequence[Token]]
    ) -> None:
        """Add a contradiction if each thread stores one element, and a launch has too few or far too many threads."""
        try:
            components = [
                component
                for dimension_tokens in launch.configuration[:2]
                for component in grid_components(dimension_tokens, values_by_name)
            ]
            threads = math.prod(number_of(component, values_by_name) for component in components)
        except UnsupportedExpression:
            return
        if threads < element_count or threads >= MAX_THREADS_PER_ELEMENT * max(element_count, MIN_BLOCK_ELEMENTS):
            text = f"the launch has {threads} threads, and {self.match.operator}'s output has {element_count} elements"
            self.proposal.contradict("launch", "grid", text)

    def workspaces(self) -> dict[str, str]:
        """Return the size of each workspace in units of 4 bytes, as an expression, by the name of its pointer.

        Workspaces are the pointers without a tensor. A workspace without a known size adds a contradiction.
        """
        result: dict[str, str] = {}
        arguments = {parameter.name: argument for parameter, argument in self._arguments_of()}
        for name in self.match.workspace_pointers:
            buffer = self.program.buffer_name(arguments.get(name, ()))
            try:
                if not buffer:
                    raise UnsupportedExpression(name)
                result[name] = self.program.elements_of_4_bytes(buffer, self.values_by_name)
            except UnsupportedExpression:
                text = f"'{name}' is no tensor of {self.match.operator}, and its size cannot be read"
                self.proposal.contradict("tensors", name, text)
        return result


def _grows_for_a_remainder(text: str, axis: str, divisor: str) -> bool:
    """Return whether a grid has more blocks for one element more than a multiple of the divisor.

    It then rounds up, however that is written: `n // 256 + (n % 256 != 0)`.
    """
    step = int(divisor) if divisor.isdigit() else 64
    with contextlib.suppress(OpbenchError):
        scope = {**dict.fromkeys(names(text), 1), divisor: step}
        multiple, more = (evaluate(text, {**scope, axis: size}) for size in (4 * step, 4 * step + 1))
        return bool(more > multiple)
    return False
