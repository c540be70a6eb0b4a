"""The header that a kernel would need, written from its parameters and a launch of it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opbench.adopting.host_launches import HostLaunch, Parameter, definitions, number_of, parameter_of
from opbench.adopting.host_program import HostProgram, plain_name, product
from opbench.adopting.host_structs import GivenParameter, grouped, typed
from opbench.adopting.host_textures import HostTexture
from opbench.adopting.kernel_facts import KernelFacts, facts_of
from opbench.adopting.matching import NO_NUMBER, PLAIN, Contradiction, Guess, Match, fields_with_defaults, tensor_axes
from opbench.adopting.stores import ADDED
from opbench.kernels.operator import Operator
from opbench.kernels.pointer_types import dtype_of
from opbench.kernels.scalar import ELEMENT_BYTES
from opbench.source.c_expression import Unreadable, convert, tokens_of
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_angle, split

UNTOLD = frozenset(("scalar_t",))
"""Types that PyTorch's AT_DISPATCH macros declare about a launch."""
FIRST_SIZES = ("rows", "m", "n")
"""Axes of which a grid may have one block each."""
FACTORS = frozenset(("alpha", "beta", "scale"))
"""Numbers that a kernel takes and that change nothing where they are 1, of beta 0."""
MOST_SPARE, LEAST_SPARE = 4, 1024
"""A launch with so many times more threads than elements, or than a block has, is not one of these elements."""
LOOPS = frozenset(("for", "while", "do"))
LEAST_LITERAL = 64
"""A smaller number in a launch is not taken for the size of which an argument has the same number."""


@dataclass
class Proposal:
    """A header, with what of it is guessed, could not be read or contradicts the file."""

    operator: str
    kernel: str
    lines: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    """The kernel's arguments as the header has them."""
    requires: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    """What speaks for the operator."""
    guesses: list[Guess] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    """What the file does and the header would deny: with any of these it is not written."""
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The header as it goes on top of the file."""
        return "\n".join(f"// {line}".rstrip() for line in ("/// opbench", *self.lines, "///")) + "\n"


@dataclass(frozen=True)
class KernelRead:
    """A kernel with what its launch gives it."""

    kernel: Declaration
    launch: HostLaunch | None
    groups: list[GivenParameter]
    types: Mapping[str, Sequence[Token]]
    """What the parameters of its template are."""
    facts: KernelFacts

    @property
    def pairs(self) -> list[tuple[Parameter, tuple[Token, ...]]]:
        """Each parameter, of structures each field, with its argument."""
        return [pair for group in self.groups for pair in group.fields]


def read_kernel(
    kernel: Declaration,
    launch: HostLaunch | None,
    structs: Mapping[str, list[Parameter] | str],
    functions: Mapping[str, Declaration],
) -> KernelRead:
    """Read a kernel's parameters and body together with a launch of it."""
    types = _types(kernel, launch)
    named = types | dict(launch.known if launch else {})
    groups = grouped([_by_its_type(parameter_of(tokens), named) for tokens in kernel.parameters()], launch, structs)
    parameters = [parameter for group in groups for parameter, _ in group.fields]
    return KernelRead(kernel, launch, groups, types, facts_of(kernel, parameters, functions))


def write_header(
    proposal: Proposal,
    read: KernelRead,
    match: Match,
    program: HostProgram | None,
    textures: Mapping[str, HostTexture],
    structs: Mapping[str, list[Parameter] | str],
    constants: Mapping[str, Sequence[Token]],
) -> None:
    """Fill in a proposal's lines; `constants` are the names that have a value outside of functions."""
    kernel, launch, problem = read.kernel, read.launch, match.problem
    proposal.guesses += match.guesses
    proposal.contradictions += match.contradictions
    sizes = SizesRead(proposal, read, match, program)
    sizes.find()
    known = sizes.known
    tuned = {name: name.upper() for name in (launch.sizes if launch else ()) if name not in known}
    known |= tuned
    proposal.args = [_group(proposal, group, match.names, match.axes, known) for group in read.groups]
    called = _called(proposal, read, known)
    _contradict_parameters(proposal, read, match, structs)
    if launch is None:
        grid, block, shared = _assumed_geometry(proposal, read.facts, match)
        _contradict_assumed(proposal, kernel, {**constants, **definitions(kernel.tokens)}, 16 if "," in block else 256)
    else:
        grid, block, shared = _geometry(proposal, launch, sizes)
    sizes.require(grid, block)
    sizes.contradict_numbers()
    entry = [f'kernel = "{called}"', f"grid = {grid}", f"block = {block}"]
    entry += [f'shared = "{shared}"'] if shared not in ("", "0") else []
    entry += [f"args = [{', '.join(proposal.args)}]"]
    entry += ["cooperative = true"] if launch and launch.cooperative else []
    proposal.lines = [f'operator = "{proposal.operator}"', f'title = "{kernel.name}"']
    if match.in_place:
        new, old = match.in_place
        proposal.lines.append(f'in_place = {{ {new} = "{old}" }}' if new else "in_place = true")
    if match.modes:
        listed = ", ".join(f'{mode} = ["{value}"]' for mode, value in match.modes.items())
        proposal.lines.append(f"supports = {{ {listed} }}")
    if proposal.requires:
        proposal.lines.append("requires = [" + ", ".join(f'"{rule}"' for rule in proposal.requires) + "]")
    used = {name: macro for name, macro in tuned.items() if any(macro in part for part in (grid, block, shared))}
    if used:
        values = "[16, 32, 8]" if len(_listed(block)) > 1 else "[256, 128, 512]"
        proposal.lines.append(f"tune = {{ {', '.join(f'{macro} = {values}' for macro in used.values())} }}")
    if workspaces := sizes.workspaces():
        listed = ", ".join(f'{name} = "{size}"' for name, size in workspaces.items())
        proposal.lines.append(f"workspace = {{ {listed} }}")
    proposal.lines += _textures(proposal, read.pairs, match.names, problem, textures, known)
    added = _zeroed(read.facts, match, workspaces)
    if added:
        proposal.notes.append(f"it adds to {', '.join(added)}, which is zeroed before")
        steps = [*(f'{{ zero = "{name}" }}' for name in added), f"{{ {', '.join(entry)} }}"]
        proposal.lines += ["launch = [", *(f"  {step}," for step in steps), "]"]
    else:
        proposal.lines.append(f"launch = [{{ {', '.join(entry)} }}]")


def _contradict_parameters(
    proposal: Proposal, read: KernelRead, match: Match, structs: Mapping[str, list[Parameter] | str]
) -> None:
    """Contradict pointers to structures and to pointers, and an output whose old content counts."""
    add = proposal.contradictions.append
    has_beta = proposal.operator in PLAIN and any(p.name.lower() == "beta" for p, _ in read.pairs)
    for parameter in (p for p, _ in read.pairs if p.is_pointer):
        name, words = parameter.name, parameter.type.split()
        if pointed := next((word for word in words if word in structs), ""):
            text = f"'{name}' is a pointer to structure '{pointed}', which no header fills: take it by value"
            add(Contradiction("tensors", name, text))
        elif words.count("*") + words.count("[") > 1:
            add(Contradiction("tensors", name, f"'{name}' points to pointers, which no header fills"))
        is_output = match.names.get(name) in match.problem.outputs and not match.in_place
        if has_beta and is_output and name in read.facts.read:
            text = f"the kernel adds beta times the old '{name}', and {proposal.operator}'s output holds nothing then"
            add(Contradiction("output read", name, text))


def template_arguments(read: KernelRead, known: Mapping[str, Sequence[Token] | str]) -> str:
    """A launch's template arguments with their brackets, `float` for a type that nothing names; "" without any."""
    if not read.kernel.is_template:
        return ""
    given = _template(read.launch.template, known) if read.launch else ""
    untold = (UNTOLD | read.types.keys()) - known.keys()
    told = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: "float" if word[0] in untold else word[0], given)
    return told or f"<{', '.join('float' for _ in read.types)}>"


def untold_arguments(read: KernelRead) -> list[str]:
    """Return the numbers of a kernel's template that have no default and that no launch gives."""
    if not read.kernel.is_template or (read.launch and read.launch.template):
        return []
    declared = split(read.kernel.tokens[2 : closing_angle(read.kernel.tokens, 1)], ",")
    numbers = [words for words in declared if words and words[0].text not in ("typename", "class")]
    return [words[-1].text for words in numbers if "=" not in {token.text for token in words}]


def _called(proposal: Proposal, read: KernelRead, known: Mapping[str, Sequence[Token] | str]) -> str:
    """The kernel's name with its template arguments, as a header has it."""
    if untold := untold_arguments(read):
        text = f"no launch says {', '.join(untold)} of the kernel's template"
        proposal.contradictions.append(Contradiction("launch", untold[0], text))
    called = read.kernel.qualified + template_arguments(read, known)
    written = _template(read.launch.template, known) if read.launch else ""
    if called != read.kernel.qualified + written:
        proposal.guesses.append(Guess("the kernel with its template's arguments", called, ("no launch says them",)))
    return called


def _zeroed(facts: KernelFacts, match: Match, workspaces: Collection[str]) -> list[str]:
    """The outputs and workspaces that a kernel only adds to; an input is never zeroed."""
    if match.in_place or match.problem.in_place:
        return []
    added = [match.names.get(name, name) for name, how in facts.stored.items() if how == ADDED]
    return [name for name in added if name in match.problem.outputs or name in workspaces]


@dataclass
class SizesRead:
    """The sizes that a launch names or fixes, and what the header requires of them."""

    proposal: Proposal
    read: KernelRead
    match: Match
    program: HostProgram | None
    known: dict[str, Sequence[Token] | str] = field(default_factory=dict)
    """Names of the host's code: axes, where they stand for some, else their values."""
    fixed: dict[str, int] = field(default_factory=dict)
    """Axes that have one size in the file."""

    def find(self) -> None:
        """Find which host variable is which axis, and the sizes that the file fixes."""
        launch, match = self.read.launch, self.match
        self.known = dict(launch.known) if launch else {}
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
        return argument.kind != "number" or not argument.text.isdigit() or int(argument.text) >= LEAST_LITERAL

    def _relate_axes(self) -> None:
        """Require what the launch says of axes: one variable for several, or an expression of another one."""
        first: dict[str, str] = {}
        for parameter, argument in self.read.pairs:
            axis, written = self.match.axes.get(parameter.name), "".join(token.text for token in argument)
            if not axis or all(token.kind == "number" for token in argument):
                continue
            if (same := first.setdefault(written, axis)) != axis:
                self._require(f"{axis} == {same}")
                self.proposal.guesses.append(Guess(axis, same, (f"the launch gives {written} for both",)))
                self.known[argument[0].text] = same if len(argument) == 1 else self.known[argument[0].text]
            elif len(argument) > 1:
                with contextlib.suppress(Unreadable):
                    text = convert(argument, self.known)
                    if set(re.findall(r"[A-Za-z_]\w*", text)) & set(self.match.axes.values()) - {axis}:
                        self._require(f"{axis} == {text}")
                        self.proposal.guesses.append(Guess(axis, text, ("the launch gives this for it",)))

    def _note_options(self) -> None:
        """List the defaults of what the command line can change, as far as the launch depends on it."""
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
                self.proposal.guesses.append(Guess(f"'{name}'", text, (why,)))

    def _shape(self, name: str) -> list[str]:
        problem = self.match.problem
        shapes: dict[str, str] = {**problem.inputs, **problem.outputs}
        return shapes.get(self.match.names.get(name, ""), "").split()

    def _find_axis(self, axis: str) -> None:
        """Find the size of an axis that no parameter gives: by the buffers' sizes, else by the grid."""
        given = sorted(self._given(), key=lambda pair: self.match.names.get(pair[0].name) in self.match.problem.outputs)
        for parameter, argument in given:  # an input first: its size is written in its own order of axes
            shape = self._shape(parameter.name)
            if axis not in shape or self.program is None:
                continue
            name = self.program.pointer(argument)
            parts = self.program.factors(name) if name else []
            if len(shape) == 1:
                part: Sequence[Token] = product(parts)
            else:
                part = parts[shape.index(axis)] if len(parts) == len(shape) else ()
            if part and self._fix(axis, part, f"the size of '{name}'"):
                return
        launch = self.read.launch
        first = launch.configuration[0] if launch and launch.configuration else ()
        by_blocks = len(tensor_axes(self.match.problem)) > 1 or "threadIdx" not in self.read.facts.names
        if axis in FIRST_SIZES and len(self.match.missing) == 1 and len(first) == 1 and by_blocks:
            if first[0].kind == "name" and first[0].text not in self.known:
                self.known[first[0].text] = axis
                self.proposal.guesses.append(Guess(axis, first[0].text, ("the grid has so many blocks",)))
                return
            if self._fix(axis, first, "the grid has so many blocks"):
                return
        text = f"nothing in the file says the size of {self.match.operator}'s axis {axis}"
        self.proposal.contradictions.append(Contradiction("axis", axis, text))

    def _launch(self) -> HostLaunch | None:
        """The first launch of the kernel as the whole program makes it."""
        launches = self.program.launches if self.program else []
        return next((one for one in launches if one.kernel == self.read.kernel.name), None)

    def _given(self, launch: HostLaunch | None = None) -> list[tuple[Parameter, tuple[Token, ...]]]:
        """The kernel's parameters with what a launch gives for them, else the whole program."""
        launch = launch or self._launch()
        if launch is None or any(group.is_struct for group in self.read.groups):
            return self.read.pairs
        return [(p, g) for (p, _), g in zip(self.read.pairs, launch.arguments, strict=False)]

    def _fix(self, axis: str, part: Sequence[Token], why: str) -> bool:
        """Require the size that an expression is; whether it is a number."""
        value = self._value(part)
        if value is None or value < 1:
            return False
        self.fixed[axis] = value
        self._require(f"{axis} == {value}")
        self.proposal.guesses.append(Guess(axis, str(value), (why,)))
        return True

    def _contradict_other_sizes(self, parameter: Parameter, axis: str) -> None:
        """Refuse one size for an axis where another launch of the kernel gives another."""
        launches = [one for one in self.program.launches if one.kernel == self.read.kernel.name] if self.program else []
        for launch in launches[1:]:
            for other, argument in self._given(launch):
                if other == parameter and self._value(argument) not in (None, self.fixed.get(axis)):
                    text = f"another launch gives the kernel another {parameter.name}"
                    self.proposal.contradictions.append(Contradiction("launch", axis, text))
                    return

    def _value(self, part: Sequence[Token]) -> int | None:
        """Return the number that an expression of the host is; None if it cannot be read."""
        try:
            return self.program.value(part) if self.program else None
        except Unreadable:
            return None

    def _fix_where_the_kernel_does(self) -> None:
        """Require the size of an axis whose argument is a constant that the kernel's own code uses, too."""
        for parameter, argument in self._given():
            axis = self.match.axes.get(parameter.name)
            names = {token.text for token in argument if token.kind == "name"}
            if axis and self.program and names & self.program.fixed & self.read.facts.names:
                self._fix(axis, argument, f"the kernel uses {', '.join(sorted(names))} itself")

    def _take_defaults(self) -> None:
        """Require the default of each axis that no tensor has and no parameter gives, such as a stride."""
        match, given = self.match, set(self.match.axes.values())
        sizes, defaults = tensor_axes(match.problem), fields_with_defaults(match.problem)
        for axis, value in match.problem.axes.items():
            if not isinstance(value, int) or axis in sizes or axis in given:
                continue
            if axis in defaults:
                self._require(f"{axis} == {defaults[axis]}")
                why = "no parameter is named so, and this is its default"
                self.proposal.guesses.append(Guess(axis, str(defaults[axis]), (why,)))
            else:
                text = f"nothing in the file says {match.operator}'s {axis}"
                self.proposal.contradictions.append(Contradiction("axis", axis, text))

    def _require(self, rule: str) -> None:
        if rule not in self.proposal.requires:
            self.proposal.requires.append(rule)

    def number(self, which: int, side: int) -> int | None:
        """A side of the grid (0) or block (1) as the whole program launches it, where the file fixes all sizes."""
        launch = self._launch()
        if self.program is None or launch is None or len(self.fixed) < len(tensor_axes(self.match.problem)):
            return None
        try:
            return self.program.value(launch_parts(launch.configuration[which], self.program.known)[side])
        except (Unreadable, IndexError):
            return None

    def require(self, grid: str, block: str) -> None:
        """Require what a grid needs: sizes that it divides by without rounding up, or the size that it is made for."""
        match, loops = self.match, "gridDim" in self.read.facts.names
        axes = [a for a, value in match.problem.axes.items() if isinstance(value, int)]
        self._contradict_grid(_listed(grid), axes)
        named = {word for text in _listed(grid) + _listed(block) for word in re.findall(r"[A-Za-z_]\w*", text)}
        if not loops:
            for axis, divisor in re.findall(r"(?<![\w(])\(?(\w+)\)? // (\w+)\b(?!\) \+ 1)", f"{grid} {block}"):
                if axis in axes and axis not in self.fixed:
                    self._require(f"{axis} % {divisor} == 0")
                    why = f"the launch divides {axis} by {divisor} without rounding up"
                    guess = Guess(axis, f"a multiple of {divisor}", (why,))
                    self.proposal.guesses += [guess] if guess not in self.proposal.guesses else []
        if self.read.launch is None or named & set(axes) or loops or len(self.fixed) == len(tensor_axes(match.problem)):
            return
        for parameter, argument in self._given():
            axis = match.axes.get(parameter.name, "")
            if axis in tensor_axes(match.problem) and axis not in self.fixed:
                self._fix(axis, argument, "the grid is made for this size")
                self._contradict_other_sizes(parameter, axis)
        if not self.fixed:
            text = "the grid names no axis, so that every size gets the same: write an expression of the axes"
            strides = LOOPS & self.read.facts.names and "blockDim" in self.read.facts.names and _listed(grid) == ["1"]
            if strides or not self.read.facts.names:
                self.proposal.notes.append(text)
            else:
                self._contradict("grid", "", text)

    def _contradict_grid(self, grid: Sequence[str], axes: Sequence[str]) -> None:
        """Contradict where the launch is of parts of buffers, or of more dimensions than the tensors have."""
        sizes, add = tensor_axes(self.match.problem), self.proposal.contradictions.append
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
                self._require(f"{axis} == {named[0]}")
                why = f"the grid has {named[0]} for both sides"
                self.proposal.guesses.append(Guess(axis, named[0], (why,)))
        code = [token.text for token in self.read.kernel.tokens]
        for name in self.match.axes if len(sizes) == 1 else ():
            if [name, "*", name] in (code[index : index + 3] for index in range(len(code))):
                add(Contradiction("sizes", name, f"the kernel has {name} * {name} elements, not {name}"))
        if len(sizes) == 1 and len(several) > 1:
            text = f"the grid has {len(several)} sizes of elements, and {self.match.operator}'s tensors have one"
            add(Contradiction("grid", sizes[0], text))
        for parameter, argument in (*self.read.pairs, *self._given()):
            if parameter.is_pointer and parameter.name in self.match.names:
                self._contradict_pointer(parameter, argument)
        for launch in filter(None, (self.read.launch, self._launch())):
            for parameter, argument in self._given(launch):
                changed = [token.text for token in argument if token.text in launch.changing]
                if changed and (not parameter.is_pointer or changed[0] == argument[0].text):
                    text = f"the turns of a loop launch the kernel with other values of '{plain_name(changed[0])}'"
                    self._contradict("launch", parameter.name, text)

    def _output_axes(self) -> list[str]:
        """The axes of the first output, those that are sizes of tensors."""
        shapes = [shape.split() for shape in self.match.problem.outputs.values()]
        return [axis for axis in shapes[0] if axis in tensor_axes(self.match.problem)] if shapes else []

    def _contradict(self, kind: str, name: str, text: str) -> None:
        if (found := Contradiction(kind, name, text)) not in self.proposal.contradictions:
            self.proposal.contradictions.append(found)

    def _contradict_pointer(self, parameter: Parameter, argument: Sequence[Token]) -> None:
        """Contradict a launch on a part of a buffer, and on one of several buffers."""
        texts = [token.text for token in argument]
        written = "".join(texts)
        part = self.program.place(argument)[1] if self.program else ()
        if part or "+" in texts or (texts[:1] == ["&"] and "[" in texts and not written.endswith("[0]")):
            added = "".join(token.text for token in part[0]) if part else written
            text = f"the launch gives '{parameter.name}' a part of a buffer: {plain_name(added)}"
            self._contradict("launch", parameter.name, text)
        elif "?" in texts:
            self._contradict("launch", parameter.name, f"'{parameter.name}' is one of several buffers: {written}")

    def contradict_numbers(self) -> None:
        """Contradict where the numbers of the whole program say something else than the header: buffers, threads."""
        self._contradict_vectors()
        if self.program is not None:
            self._contradict_sides(self.program)
        launch = self._launch()
        if self.program is None or launch is None:
            return
        sizes = self._sizes_there(launch)
        known = {**self.program.known, **launch.known}
        self._contradict_sides_of_elements(launch, known)
        tensors = {one.name: one for one in (*self.match.problem.input_tensors(), *self.match.problem.output_tensors())}
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
                self._contradict("sizes", parameter.name, text)
            stored = self.read.facts.indices.get(parameter.name, ())
            if tensor.name in self.match.problem.outputs and len(stored) == 1 and not LOOPS & self.read.facts.names:
                self._contradict_threads(launch, needed, known)

    def _contradict_vectors(self) -> None:
        """Contradict a size that counts vectors such as float4 instead of elements."""
        elements = self.read.facts.elements.values()
        width = max((int(kind[-1]) for kind in elements if dtype_of(kind) and kind[-1:] in ("2", "4")), default=0)
        if not width:
            return
        bits = width.bit_length() - 1
        is_scaled = bool({str(width), str(width - 1), str(bits)} & self.read.facts.numbers)
        launch = self._launch() or self.read.launch
        known = {**(self.program.known if self.program else {}), **(launch.known if launch else {})}
        for parameter, argument in self._given():
            axis = self.match.axes.get(parameter.name, "")
            given = known.get(argument[0].text, argument) if len(argument) == 1 else argument
            is_quotient = [token.text for token in given][-2:] in (["/", str(width)], [">", str(bits)])
            if axis and (is_quotient or not is_scaled):
                text = f"'{parameter.name}' counts vectors of {width}, and {self.match.operator}'s {axis} elements"
                self._contradict("sizes", parameter.name, text)

    def _contradict_sides(self, program: HostProgram) -> None:
        """Contradict a size that is the length of a whole buffer where the operator takes the side of a square."""
        if not self.match.equal:
            return
        names = [program.pointer(given) for p, given in self._given() if len(self._shape(p.name)) > 1]
        lengths = [factors[0] for name in names if len(factors := program.factors(name)) == 1]
        written = [[token.text for token in length] for length in lengths]
        for parameter, argument in self._given():
            if self.match.axes.get(parameter.name) and [token.text for token in argument] in written:
                text = f"a buffer has {plain_name(argument[0].text)} elements, and {self.match.operator}'s are squares"
                self._contradict("sizes", parameter.name, text)

    def _contradict_sides_of_elements(self, launch: HostLaunch, known: Mapping[str, Sequence[Token]]) -> None:
        """Contradict rows and columns that a kernel is given and that are fewer than the elements."""
        given = [g for p, g in self._given(launch) if not (p.is_pointer or p.views or re.search(NO_NUMBER, p.type))]
        if self.match.axes or len(given) < 2 or len(self.fixed) != 1:
            return
        with contextlib.suppress(Unreadable):
            numbers = [number_of(argument, known) for argument in given]
            if math.prod(numbers) < (needed := next(iter(self.fixed.values()))):
                text = f"the kernel is given {' x '.join(map(str, numbers))} elements, and the buffers have {needed}"
                self._contradict("sizes", "", text)

    def _sizes_there(self, launch: HostLaunch) -> dict[str, int]:
        """The axes whose numbers the program says."""
        assert self.program is not None
        found = dict(self.fixed)
        for parameter, argument in self._given(launch):
            axis = self.match.axes.get(parameter.name)
            with contextlib.suppress(Unreadable):
                if axis and axis not in found:
                    found[axis] = number_of(argument, {**self.program.known, **launch.known})
        for rule in self.match.equal:
            axis, _, other = rule.partition(" == ")
            found |= {axis: found[other]} if other in found else {}
        return found

    def _contradict_threads(self, launch: HostLaunch, needed: int, known: Mapping[str, Sequence[Token]]) -> None:
        """Contradict where a launch has fewer threads than elements, and each thread stores one."""
        try:
            parts = [part for given in launch.configuration[:2] for part in launch_parts(given, known)]
            threads = math.prod(number_of(part, known) for part in parts)
        except Unreadable:
            return
        if threads < needed or threads >= MOST_SPARE * max(needed, LEAST_SPARE):
            text = f"the launch has {threads} threads, and {self.match.operator}'s output {needed} elements"
            self._contradict("launch", "grid", text)

    def workspaces(self) -> dict[str, str]:
        """The pointers that are no tensor's with their sizes in elements of 4 bytes; what has none contradicts."""
        found: dict[str, str] = {}
        arguments = {parameter.name: argument for parameter, argument in self._given()}
        for name in self.match.extra:
            buffer = self.program.pointer(arguments.get(name, ())) if self.program else ""
            try:
                if not buffer or self.program is None:
                    raise Unreadable(name)
                found[name] = self.program.elements_of_4_bytes(buffer, self.known)
            except Unreadable:
                text = f"'{name}' is no tensor of {self.match.operator}, and its size cannot be read"
                self.proposal.contradictions.append(Contradiction("tensors", name, text))
        return found


def _by_its_type(parameter: Parameter, known: Mapping[str, Sequence[Token]]) -> Parameter:
    """The same with the type that a name of the file's own stands for."""
    found = known.get(parameter.type.split()[-1], ()) if parameter.type else ()
    if not found or any(token.kind != "name" for token in found):
        return parameter
    return replace(parameter, type=" ".join(token.text for token in found))


def _template(given: str, known: Mapping[str, Sequence[Token] | str]) -> str:
    """Template arguments as written, with what the host calls its numbers by its own names as numbers."""
    parts = []
    constants = {name: value for name, value in known.items() if not isinstance(value, str)}  # an axis is none
    for part in split(tokens_of(given)[1:-1], ","):
        text = given[part[0].start : part[-1].end]
        value = constants.get(text, ())
        if len(value) == 1 and value[0].kind == "name":
            text = value[0].text  # true, false or a type
        elif any(token.text in constants for token in part):
            with contextlib.suppress(Unreadable):
                text = convert(part, constants).replace("//", "/")
        parts.append(text)
    return f"<{', '.join(parts)}>" if given else ""


def _textures(
    proposal: Proposal,
    pairs: Sequence[tuple[Parameter, tuple[Token, ...]]],
    names: Mapping[str, str],
    problem: Operator,
    textures: Mapping[str, HostTexture],
    known: Mapping[str, Sequence[Token] | str],
) -> list[str]:
    """How the kernel's textures and surfaces see their tensors, a line of each kind."""
    entries: dict[str, list[str]] = {}
    for parameter, argument in pairs:
        if not parameter.views:
            continue
        tensor = names.get(parameter.name, parameter.name)
        made = textures.get(argument[0].text if len(argument) == 1 else "")
        made = made or (next(iter(textures.values())) if len(textures) == 1 else None)
        sides = {**problem.inputs, **problem.outputs}.get(tensor, "n").split()
        if made is not None and "memory" in made.words:
            size = [" * ".join(sides)]
            if each := made.words.get("channels"):
                size = [f"{size[0]} // {each}"]
                proposal.notes.append(
                    f"a texel of '{parameter.name}' is {each} elements: what counts texels is {size[0]}"
                )
        else:
            size = _texels(proposal, parameter.name, made, sides, known)
        words = {"tensor": f'"{tensor}"', "size": "[" + ", ".join(f'"{part}"' for part in size) + "]"}
        words |= (made.words if made else {}) if parameter.views == "textures" else {}
        table = ", ".join(f"{key} = {value}" for key, value in words.items())
        entries.setdefault(parameter.views, []).append(f"{parameter.name} = {{ {table} }}")
    return [f"{kind} = {{ {', '.join(listed)} }}" for kind, listed in entries.items()]


def _texels(
    proposal: Proposal,
    name: str,
    made: HostTexture | None,
    sides: Sequence[str],
    known: Mapping[str, Sequence[Token] | str],
) -> list[str]:
    """Width and height of the array that the host allocated, else of the tensor."""
    why = "no cudaMallocArray of it"
    if made is not None and made.size:
        try:
            return [plain_quotient(convert(part, known)) for part in made.size]
        except Unreadable as error:
            why = str(error)
    proposal.notes.append(f"the size of '{name}' in texels is guessed from its tensor ({why})")
    return list(sides[:-3:-1])


def _listed(text: str) -> list[str]:
    """The items of a list of expressions as the header has it."""
    return re.findall(r'"([^"]*)"', text)


def _types(kernel: Declaration, launch: HostLaunch | None) -> dict[str, Sequence[Token]]:
    """What a template's types are: as the launch has them, else float."""
    if not kernel.is_template:
        return {}
    declared = split(kernel.tokens[2 : closing_angle(kernel.tokens, 1)], ",")
    given = split(tokens_of(launch.template)[1:-1], ",") if launch and launch.template else []
    found: dict[str, Sequence[Token]] = {}
    for index, words in enumerate(declared):
        if len(words) > 1 and words[0].text in ("typename", "class"):
            told = given[index] if index < len(given) else ()
            unknown = not told or (len(told) == 1 and told[0].text in UNTOLD | {words[1].text})
            found[words[1].text] = tokens_of("float") if unknown else told
    return found


def _group(
    proposal: Proposal,
    group: GivenParameter,
    names: Mapping[str, str],
    axes: Mapping[str, str],
    known: Mapping[str, Sequence[Token] | str],
) -> str:
    """A parameter's argument as the header has it."""
    found = [_argument(proposal, parameter, names, axes, given, known) for parameter, given in group.fields]
    if not group.is_struct:
        return found[0]
    listed = (typed(text, parameter.type) for text, (parameter, _) in zip(found, group.fields, strict=True))
    return f"{{ struct = [{', '.join(listed)}] }}"


def _argument(
    proposal: Proposal,
    parameter: Parameter,
    names: Mapping[str, str],
    axes: Mapping[str, str],
    given: tuple[Token, ...],
    known: Mapping[str, Sequence[Token] | str],
) -> str:
    """One argument as the header has it."""
    if parameter.views:
        return f'"{parameter.name}"'
    if parameter.is_pointer:
        if parameter.name in names:
            return f'"{names[parameter.name]}"'
        return f'"{parameter.name}"'
    if parameter.name in axes:
        return f'"{axes[parameter.name]}"'
    words = [token.text for token in given]
    if words in (["true"], ["false"]):
        return words[0]
    if re.search(r"\b(float|double)\b", parameter.type):
        kind = "f64" if "double" in parameter.type else "f32"
        name, value = parameter.name.lower(), _float(given, known)
        written = str(value)
        if value is None:
            try:
                written = f'"{convert(given, known, real=True)}"'
            except Unreadable:
                value = 0.0 if name == "beta" else 1.0
                written, why = str(value), "the host's value cannot be read"
                proposal.guesses.append(Guess(f"'{parameter.name}'", written, (why,)))
        if proposal.operator in PLAIN and (name not in FACTORS or value != (0.0 if name == "beta" else 1.0)):
            text = f"the kernel takes a number '{parameter.name}' = {written}, which {proposal.operator} does not have"
            proposal.contradictions.append(Contradiction("formula", parameter.name, text))
        return written if kind == "f32" and value is not None else f"{{ {kind} = {written} }}"
    try:
        return f'"{plain_quotient(convert(given, known))}"'
    except Unreadable as error:
        text = f"what '{parameter.name}' is cannot be read ({plain_name(str(error))}): write an expression of the axes"
        proposal.contradictions.append(Contradiction("launch", parameter.name, text))
        return f'"{parameter.name}"'


def _float(given: Sequence[Token], known: Mapping[str, Sequence[Token] | str]) -> float | None:
    """The number that an argument is, directly or by a variable's value."""
    text = "".join(token.text for token in given).rstrip("fF")
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", text):
        return float(text)
    value = known.get(text)
    return None if value is None or isinstance(value, str) or len(value) > 2 else _float(value, {})


def _assumed_geometry(proposal: Proposal, facts: KernelFacts, match: Match) -> tuple[str, str, str]:
    """Grid and block of a kernel that nothing launches: a thread an element of the output."""
    sides = match.problem.outputs[next(iter(match.problem.outputs))].split()
    axes = [axis for axis in sides if isinstance(match.problem.axes.get(axis), int)]
    if "y" in facts.names and len(axes) == 2:
        longest = f"cdiv(max({axes[0]}, {axes[1]}), 16)"
        grid, block = f'["{longest}", "{longest}"]', '["16", "16"]'
    else:
        size = " * ".join(axes) or next(iter(tensor_axes(match.problem)), "1")
        grid, block = f'["cdiv({size}, 256)"]', '["256"]'
    why = "nothing in the file launches the kernel; a thread an element"
    proposal.guesses.append(Guess("the launch", f"grid = {grid}, block = {block}", (why,)))
    return grid, block, ""


def _contradict_assumed(
    proposal: Proposal, kernel: Declaration, known: Mapping[str, Sequence[Token]], side: int
) -> None:
    """Contradict a thread an element where a block is given more or less: `blockIdx.x * TILE`, a row."""
    code = [token.text for token in kernel.tokens]
    for index in [index for index, text in enumerate(code) if text == "blockIdx"]:
        left = code[index - 4 if code[index - 3] == "." else index - 2] if code[index - 1] == "*" else ""
        factor = code[index + 4] if code[index + 3] == "*" else left
        with contextlib.suppress(Unreadable):
            if factor == "blockDim" or number_of(tokens_of(factor), known) == side:
                continue
        text = "nothing in the file launches the kernel, and a block computes more or less than a thread an element"
        proposal.contradictions.append(Contradiction("launch", "grid", text))
        return


def _geometry(proposal: Proposal, launch: HostLaunch, sizes: SizesRead) -> tuple[str, str, str]:
    """Grid, block and shared bytes as the header has them."""
    sides = [
        _sides(proposal, number, given, sizes) for number, given in zip((0, 1), launch.configuration, strict=False)
    ]
    shared = ""
    if len(launch.configuration) > 2:
        try:
            shared = plain_quotient(convert(launch.configuration[2], sizes.known))
        except Unreadable as error:
            proposal.contradictions.append(Contradiction("launch", "shared", f"shared bytes cannot be read ({error})"))
    return sides[0], sides[1], shared


def _sides(proposal: Proposal, number: int, given: Sequence[Token], sizes: SizesRead) -> str:
    """A list of one to three expressions."""
    parts = launch_parts(given, sizes.known)
    found = []
    for index, part in enumerate(parts):
        try:
            found.append(plain_quotient(convert(part, sizes.known)))
        except Unreadable as error:
            if (value := sizes.number(number, index)) is not None:
                found.append(str(value))
                continue
            what = ("grid", "block")[number]
            written = "".join(token.text for token in part)
            text = f"{what} '{written}' cannot be read ({error}): write an expression of the axes"
            proposal.contradictions.append(Contradiction("launch", what, text))
            found.append("1")
    return "[" + ", ".join(f'"{text}"' for text in found) + "]"


def launch_parts(given: Sequence[Token], known: Mapping[str, Sequence[Token] | str]) -> Sequence[Sequence[Token]]:
    """The sides of a grid or block, through the names that stand for it."""
    for _ in range(4):  # a name may stand for another
        if len(given) == 1 and isinstance(value := known.get(given[0].text), Sequence) and not isinstance(value, str):
            given = value
    if given and given[0].text == "dim3" and len(given) > 1:
        return split(given[2:-1], ",")
    return split(given[1:-1], ",") if given and given[0].text == "{" else [given]


def plain_quotient(text: str) -> str:
    """A quotient that is rounded up, by its name."""
    for pattern in (r"\(\((.+?)\) \+ (\d+)\) // (\d+)", r"\((.+?) \+ (\d+)\) // (\d+)"):
        match = re.fullmatch(pattern, text)
        if match and int(match[2]) == int(match[3]) - 1:
            return f"cdiv({match[1]}, {match[3]})"
    match = re.fullmatch(r"\(\((.+?) \+ (\w+)\) - 1\) // (\w+)", text)
    return f"cdiv({match[1]}, {match[2]})" if match and match[2] == match[3] else text
