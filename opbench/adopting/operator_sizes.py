"""Match host variables with an operator's axes, and find the sizes that a header must require."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.file_facts import LaunchedKernel
from opbench.adopting.host_launches import HostLaunch, Parameter, number_of, plain_name
from opbench.adopting.host_program import HostProgram, product
from opbench.adopting.matching import NON_INTEGER_TYPE, Match, fields_with_defaults, tensor_axes
from opbench.adopting.proposal import Proposal, launch_parts
from opbench.kernels.pointer_types import dtype_of
from opbench.kernels.scalar import ELEMENT_BYTES
from opbench.kernels.torch_task import TorchOperator
from opbench.source.c_expression import UnsupportedExpression, convert
from opbench.source.tokens import Token

FIRST_SIZES = ("rows", "m", "n")
"""Axes of which a grid may have one block each."""
MOST_SPARE, LEAST_SPARE = 4, 1024
"""A launch with so many times more threads than elements, or than a block has, is not one of these elements."""
LOOP_KEYWORDS = frozenset(("for", "while", "do"))
MIN_LITERAL = 64
"""A smaller number in a launch is not taken for the size of which an argument has the same number."""


@dataclass
class LaunchSizes:
    """The sizes in a launch, those that the file fixes, and the requirements that follow."""

    proposal: Proposal
    read: LaunchedKernel
    match: Match
    program: HostProgram
    known: dict[str, Sequence[Token] | str] = field(default_factory=dict)
    """Names of the host's code: axes, where they stand for some, else their values."""
    fixed: dict[str, int] = field(default_factory=dict)
    """Axes that have one size in the file."""

    def find(self) -> None:
        """Match host variables with axes, and find the sizes that the file fixes."""
        launch, match = self.read.launch, self.match
        self.known |= launch.known if launch else {}
        for parameter, argument in self.read.pairs:
            axis = match.axes.get(parameter.name)
            if axis and len(argument) == 1 and self._may_name(argument[0]):
                self.known[argument[0].text] = axis
        for group, argument in zip(self.read.groups, launch.arguments if launch else (), strict=False):
            if group.is_struct and len(argument) == 1:  # fields of what a function gets, as its own code names them
                own = {
                    f"{argument[0].text}.{p.name}": match.axes[p.name] for p, _ in group.fields if p.name in match.axes
                }
                self.known |= own
        self._note_options()
        self.proposal.requires += match.equal
        self._relate_axes()
        for axis in match.missing:
            self._find_axis(axis)
        self._fix_where_the_kernel_does()
        self._take_defaults()

    def _may_name(self, argument: Token) -> bool:
        return argument.kind != "number" or not argument.text.isdigit() or int(argument.text) >= MIN_LITERAL

    def _relate_axes(self) -> None:
        """Add requirements on axes that share one variable or depend on another axis."""
        first: dict[str, str] = {}
        for parameter, argument in self.read.pairs:
            axis, written = self.match.axes.get(parameter.name), "".join(token.text for token in argument)
            if not axis or all(token.kind == "number" for token in argument):
                continue
            if (same := first.setdefault(written, axis)) != axis:
                self.proposal.require(f"{axis} == {same}")
                self.proposal.guess(axis, same, f"the launch gives {written} for both")
                self.known[argument[0].text] = same if len(argument) == 1 else self.known[argument[0].text]
            elif len(argument) > 1:
                with contextlib.suppress(UnsupportedExpression):
                    text = convert(argument, self.known)
                    if set(re.findall(r"[A-Za-z_]\w*", text)) & set(self.match.axes.values()) - {axis}:
                        self.proposal.require(f"{axis} == {text}")
                        self.proposal.guess(axis, text, "the launch gives this for it")

    def _note_options(self) -> None:
        """Add a note for each default that the command line can change and that the launch depends on."""
        launch = self.read.launch
        if launch is None or not launch.options:
            return
        waiting = [t.text for part in (*launch.configuration, *launch.arguments) for t in part if t.kind == "name"]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            value = launch.known.get(name, ())
            waiting += [token.text for token in value if token.kind == "name"]
            text = "".join(token.text for token in value)
            if (
                name in launch.options
                and text
                and text != launch.options[name]
                and not isinstance(self.known.get(name), str)
            ):
                why = f"its value without arguments; {launch.options[name]} changes it"
                self.proposal.guess(f"'{name}'", text, why)

    def _shape(self, name: str) -> list[str]:
        problem = self.match.problem
        shapes: dict[str, str] = {**problem.inputs, **problem.outputs}
        return shapes.get(self.match.names.get(name, ""), "").split()

    def _find_axis(self, axis: str) -> None:
        """Find the size of an axis that no parameter gives: from the buffers' sizes, or else from the grid."""
        pairs = sorted(self._given(), key=lambda pair: self.match.names.get(pair[0].name) in self.match.problem.outputs)
        for parameter, argument in pairs:  # an input first: its size is written in its own order of axes
            shape = self._shape(parameter.name)
            if axis not in shape:
                continue
            name = self.program.pointer(argument)
            parts = self.program.factors(name) if name else []
            if len(shape) == 1:
                tokens: Sequence[Token] = product(parts)
            else:
                tokens = parts[shape.index(axis)] if len(parts) == len(shape) else ()
            if tokens and self._require_size(axis, tokens, f"the size of '{name}'"):
                return
        launch = self.read.launch
        first = launch.configuration[0] if launch and launch.configuration else ()
        by_blocks = len(tensor_axes(self.match.problem)) > 1 or "threadIdx" not in self.read.facts.names
        if axis in FIRST_SIZES and len(self.match.missing) == 1 and len(first) == 1 and by_blocks:
            if first[0].kind == "name" and first[0].text not in self.known:
                self.known[first[0].text] = axis
                self.proposal.guess(axis, first[0].text, "the grid has so many blocks")
                return
            if self._require_size(axis, first, "the grid has so many blocks"):
                return
        text = f"nothing in the file says the size of {self.match.operator}'s axis {axis}"
        self.proposal.contradict("axis", axis, text)

    def _launch(self) -> HostLaunch | None:
        """Return the first launch of the kernel in the whole program."""
        return next((launch for launch in self.program.launches if launch.kernel == self.read.kernel.name), None)

    def _given(self, launch: HostLaunch | None = None) -> list[tuple[Parameter, tuple[Token, ...]]]:
        """Return the kernel's parameters with the arguments of a launch in the whole program."""
        launch = launch or self._launch()
        if launch is None or any(group.is_struct for group in self.read.groups):
            return self.read.pairs
        return [(p, g) for (p, _), g in zip(self.read.pairs, launch.arguments, strict=False)]

    def _require_size(self, axis: str, tokens: Sequence[Token], why: str) -> bool:
        """Require that an axis has the value of a host expression; return False if the value is unknown or below 1."""
        value = self._value(tokens)
        if value is None or value < 1:
            return False
        self.fixed[axis] = value
        self.proposal.require(f"{axis} == {value}")
        self.proposal.guess(axis, str(value), why)
        return True

    def _contradict_conflicting_sizes(self, parameter: Parameter, axis: str) -> None:
        """Add a contradiction if another launch of the kernel gives an axis a different size."""
        launches = [launch for launch in self.program.launches if launch.kernel == self.read.kernel.name]
        for launch in launches[1:]:
            for other, argument in self._given(launch):
                if other == parameter and self._value(argument) not in (None, self.fixed.get(axis)):
                    text = f"another launch gives the kernel another {parameter.name}"
                    self.proposal.contradict("launch", axis, text)
                    return

    def _value(self, tokens: Sequence[Token]) -> int | None:
        """Return the value of an expression in host code; None if it is unknown."""
        try:
            return self.program.value(tokens)
        except UnsupportedExpression:
            return None

    def _fix_where_the_kernel_does(self) -> None:
        """Require the size of an axis whose argument is a constant that the kernel's code uses, too."""
        for parameter, argument in self._given():
            axis = self.match.axes.get(parameter.name)
            names = {token.text for token in argument if token.kind == "name"}
            if axis and names & self.program.fixed & self.read.facts.names:
                self._require_size(axis, argument, f"the kernel uses {', '.join(sorted(names))} itself")

    def _take_defaults(self) -> None:
        """Require the default of each axis without a tensor and a parameter, such as a stride."""
        match, known_axes = self.match, set(self.match.axes.values())
        sizes, defaults = tensor_axes(match.problem), fields_with_defaults(match.problem)
        for axis, value in match.problem.axes.items():
            if not isinstance(value, int) or axis in sizes or axis in known_axes:
                continue
            if isinstance(match.problem, TorchOperator):  # its tensors have axes of their own, such as x_dim0
                continue
            if axis in defaults:
                self.proposal.require(f"{axis} == {defaults[axis]}")
                why = "no parameter is named so, and this is its default"
                self.proposal.guess(axis, str(defaults[axis]), why)
            else:
                text = f"nothing in the file says {match.operator}'s {axis}"
                self.proposal.contradict("axis", axis, text)

    def number(self, which: int, side: int) -> int | None:
        """Return a component of grid (0) or block (1) in the whole program, if the file fixes all sizes."""
        launch = self._launch()
        if launch is None or len(self.fixed) < len(tensor_axes(self.match.problem)):
            return None
        try:
            return self.program.value(launch_parts(launch.configuration[which], self.program.known)[side])
        except (UnsupportedExpression, IndexError):
            return None

    def require(self, grid: Sequence[str], block: Sequence[str]) -> None:
        """Require what a grid needs: sizes that are multiples of its divisors, or one fixed size."""
        match, loops = self.match, "gridDim" in self.read.facts.names
        axes = [a for a, value in match.problem.axes.items() if isinstance(value, int)]
        self._contradict_grid(grid, axes)
        named = {word for text in (*grid, *block) for word in re.findall(r"[A-Za-z_]\w*", text)}
        if not loops:
            for axis, divisor in re.findall(r"(?<![\w(])\(?(\w+)\)? // (\w+)\b(?!\) \+ 1)", " ".join((*grid, *block))):
                if axis in axes and axis not in self.fixed:
                    self.proposal.require(f"{axis} % {divisor} == 0")
                    why = f"the launch divides {axis} by {divisor} without rounding up"
                    self.proposal.guess(axis, f"a multiple of {divisor}", why)
        if self.read.launch is None or named & set(axes) or loops or len(self.fixed) == len(tensor_axes(match.problem)):
            return
        for parameter, argument in self._given():
            axis = match.axes.get(parameter.name, "")
            if axis in tensor_axes(match.problem) and axis not in self.fixed:
                self._require_size(axis, argument, "the grid is made for this size")
                self._contradict_conflicting_sizes(parameter, axis)
        if not self.fixed:
            text = "the grid names no axis, so that every size gets the same: write an expression of the axes"
            strides = (
                LOOP_KEYWORDS & self.read.facts.names and "blockDim" in self.read.facts.names and list(grid) == ["1"]
            )
            if strides or not self.read.facts.names:
                self.proposal.notes.append(text)
            else:
                self.proposal.contradict("grid", "", text)

    def _contradict_grid(self, grid: Sequence[str], axes: Sequence[str]) -> None:
        """Add a contradiction if a launch covers only a part of buffers, or has more dimensions than the tensors."""
        sizes, add = tensor_axes(self.match.problem), self.proposal.contradict
        several = [side for side in grid if set(re.findall(r"[A-Za-z_]\w*", side)) & set(axes)]
        outer = [axis for axis in self._output_axes() if axis not in self.fixed]
        shown = {word for side in grid for word in re.findall(r"[A-Za-z_]\w*", side)}
        named = [axis for axis in outer if axis in shown]
        if (
            len(several) > 1
            and named
            and not shown & (set(axes) - set(outer))
            and "gridDim" not in self.read.facts.names
        ):
            tied = " ".join(self.proposal.requires)
            for axis in [axis for axis in outer if axis not in shown and not re.search(rf"\b{axis}\b", tied)]:
                self.proposal.require(f"{axis} == {named[0]}")
                why = f"the grid has {named[0]} for both sides"
                self.proposal.guess(axis, named[0], why)
        code = [token.text for token in self.read.kernel.tokens]
        for name in self.match.axes if len(sizes) == 1 else ():
            if [name, "*", name] in (code[index : index + 3] for index in range(len(code))):
                add("sizes", name, f"the kernel has {name} * {name} elements, not {name}")
        if len(sizes) == 1 and len(several) > 1:
            text = f"the grid has {len(several)} sizes of elements, and {self.match.operator}'s tensors have one"
            add("grid", sizes[0], text)
        for parameter, argument in (*self.read.pairs, *self._given()):
            if parameter.is_pointer and parameter.name in self.match.names:
                self._contradict_pointer(parameter, argument)
        for launch in filter(None, (self.read.launch, self._launch())):
            for parameter, argument in self._given(launch):
                changed = [token.text for token in argument if token.text in launch.changing]
                if changed and (not parameter.is_pointer or changed[0] == argument[0].text):
                    text = f"the turns of a loop launch the kernel with other values of '{plain_name(changed[0])}'"
                    self.proposal.contradict("launch", parameter.name, text)

    def _output_axes(self) -> list[str]:
        """Return the axes in the shape of the first output."""
        shapes = [shape.split() for shape in self.match.problem.outputs.values()]
        return [axis for axis in shapes[0] if axis in tensor_axes(self.match.problem)] if shapes else []

    def _contradict_pointer(self, parameter: Parameter, argument: Sequence[Token]) -> None:
        """Add a contradiction for a launch on a part of a buffer, or on one of several buffers."""
        texts = [token.text for token in argument]
        written = "".join(texts)
        part = self.program.place(argument)[1]
        if part or "+" in texts or (texts[:1] == ["&"] and "[" in texts and not written.endswith("[0]")):
            added = "".join(token.text for token in part[0]) if part else written
            text = f"the launch gives '{parameter.name}' a part of a buffer: {plain_name(added)}"
            self.proposal.contradict("launch", parameter.name, text)
        elif "?" in texts:
            self.proposal.contradict(
                "launch", parameter.name, f"'{parameter.name}' is one of several buffers: {written}"
            )

    def contradict_numbers(self) -> None:
        """Add a contradiction if sizes of buffers or numbers of threads in the program differ from the header."""
        self._contradict_vectors()
        self._contradict_sides()
        launch = self._launch()
        if launch is None:
            return
        sizes = self._sizes_there(launch)
        known = {**self.program.known, **launch.known}
        self._contradict_row_column_product(launch, known)
        tensors = {
            tensor.name: tensor
            for tensor in (*self.match.problem.input_tensors(), *self.match.problem.output_tensors())
        }
        for parameter, argument in self._given():
            tensor = tensors.get(self.match.names.get(parameter.name, ""))
            axes = self._shape(parameter.name)
            if tensor is None or not axes or any(axis not in sizes for axis in axes):
                continue
            needed = math.prod(sizes[axis] for axis in axes)
            there = self.program.bytes_of(self.program.pointer(argument))
            if there is not None and there < needed * ELEMENT_BYTES[tensor.dtype]:
                text = (
                    f"'{parameter.name}' has {there} bytes, and {self.match.operator}'s {tensor.name} would have more"
                )
                self.proposal.contradict("sizes", parameter.name, text)
            stored = self.read.facts.indices.get(parameter.name, ())
            if (
                tensor.name in self.match.problem.outputs
                and len(stored) == 1
                and not LOOP_KEYWORDS & self.read.facts.names
            ):
                self._contradict_threads(launch, needed, known)

    def _contradict_vectors(self) -> None:
        """Add a contradiction for a size that counts vectors such as float4 instead of elements."""
        elements = self.read.facts.elements.values()
        width = max((int(kind[-1]) for kind in elements if dtype_of(kind) and kind[-1:] in ("2", "4")), default=0)
        if not width:
            return
        bits = width.bit_length() - 1
        is_scaled = bool({str(width), str(width - 1), str(bits)} & self.read.facts.numbers)
        launch = self._launch() or self.read.launch
        known = {**self.program.known, **(launch.known if launch else {})}
        for parameter, argument in self._given():
            axis = self.match.axes.get(parameter.name, "")
            value = known.get(argument[0].text, argument) if len(argument) == 1 else argument
            is_quotient = [token.text for token in value][-2:] in (["/", str(width)], [">", str(bits)])
            if axis and (is_quotient or not is_scaled):
                text = f"'{parameter.name}' counts vectors of {width}, and {self.match.operator}'s {axis} elements"
                self.proposal.contradict("sizes", parameter.name, text)

    def _contradict_sides(self) -> None:
        """Add a contradiction for a size that is the length of a buffer where the operator needs a square's side."""
        if not self.match.equal:
            return
        names = [self.program.pointer(argument) for p, argument in self._given() if len(self._shape(p.name)) > 1]
        lengths = [factors[0] for name in names if len(factors := self.program.factors(name)) == 1]
        written = [[token.text for token in length] for length in lengths]
        for parameter, argument in self._given():
            if self.match.axes.get(parameter.name) and [token.text for token in argument] in written:
                text = f"a buffer has {plain_name(argument[0].text)} elements, and {self.match.operator}'s are squares"
                self.proposal.contradict("sizes", parameter.name, text)

    def _contradict_row_column_product(self, launch: HostLaunch, values_by_name: Mapping[str, Sequence[Token]]) -> None:
        """Add a contradiction for rows and columns whose product is less than the number of elements."""
        given = [
            g for p, g in self._given(launch) if not (p.is_pointer or p.views or re.search(NON_INTEGER_TYPE, p.type))
        ]
        if self.match.axes or len(given) < 2 or len(self.fixed) != 1:
            return
        with contextlib.suppress(UnsupportedExpression):
            numbers = [number_of(argument, values_by_name) for argument in given]
            if math.prod(numbers) < (needed := next(iter(self.fixed.values()))):
                text = f"the kernel is given {' x '.join(map(str, numbers))} elements, and the buffers have {needed}"
                self.proposal.contradict("sizes", "", text)

    def _sizes_there(self, launch: HostLaunch) -> dict[str, int]:
        """Return the values of the axes at a launch, as far as known."""
        sizes = dict(self.fixed)
        for parameter, argument in self._given(launch):
            axis = self.match.axes.get(parameter.name)
            with contextlib.suppress(UnsupportedExpression):
                if axis and axis not in sizes:
                    sizes[axis] = number_of(argument, {**self.program.known, **launch.known})
        for rule in self.match.equal:
            axis, _, other = rule.partition(" == ")
            sizes |= {axis: sizes[other]} if other in sizes else {}
        return sizes

    def _contradict_threads(
        self, launch: HostLaunch, needed: int, values_by_name: Mapping[str, Sequence[Token]]
    ) -> None:
        """Add a contradiction for a launch with fewer threads than elements whose threads each store one."""
        try:
            parts = [part for sides in launch.configuration[:2] for part in launch_parts(sides, values_by_name)]
            threads = math.prod(number_of(part, values_by_name) for part in parts)
        except UnsupportedExpression:
            return
        if threads < needed or threads >= MOST_SPARE * max(needed, LEAST_SPARE):
            text = f"the launch has {threads} threads, and {self.match.operator}'s output {needed} elements"
            self.proposal.contradict("launch", "grid", text)

    def workspaces(self) -> dict[str, str]:
        """Return the workspaces: pointers without a tensor, with sizes in units of 4 bytes.

        A pointer without a known size is a contradiction.
        """
        result: dict[str, str] = {}
        arguments = {parameter.name: argument for parameter, argument in self._given()}
        for name in self.match.extra:
            buffer = self.program.pointer(arguments.get(name, ()))
            try:
                if not buffer:
                    raise UnsupportedExpression(name)
                result[name] = self.program.elements_of_4_bytes(buffer, self.known)
            except UnsupportedExpression:
                text = f"'{name}' is no tensor of {self.match.operator}, and its size cannot be read"
                self.proposal.contradict("tensors", name, text)
        return result
