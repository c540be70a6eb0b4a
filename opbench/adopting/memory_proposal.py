"""Propose a header without an operator from host code: launches, buffers and sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.adopting.file_facts import FileFacts, LaunchedKernel
from opbench.adopting.host_launches import Parameter, number_of, parameter_of, plain_name, plain_type
from opbench.adopting.host_program import HostBuffer, HostProgram, device_values, product, program_of
from opbench.adopting.host_structs import sizes_of
from opbench.adopting.matching import NON_INTEGER_TYPE
from opbench.adopting.proposal import (
    Proposal,
    launch_parts,
    launch_text,
    missing_template_arguments,
    plain_quotient,
    template_arguments,
)
from opbench.errors import UsageError, unknown
from opbench.kernels import expression
from opbench.kernels.memory_header import (
    NO_OPERATOR,
    BufferTemplate,
    buffer_text,
    is_identifier,
    table_of,
)
from opbench.kernels.pointer_types import C_TYPES, dtype_of
from opbench.kernels.scalar import ELEMENT_BYTES, FLOATS
from opbench.paths import next_command
from opbench.source.c_expression import MAX_DEPTH, SIZES, UnsupportedExpression, convert, tokens_of
from opbench.source.scan import Declaration, declarations
from opbench.source.tokens import Token

ASSUMED, ASSUMED_EACH, ASSUMED_UNLAUNCHED = 1000, 64, 1024
"""The one size of a function that nothing in the file calls, which no block divides; each of several sizes, and a size
of a kernel that nothing launches, which blocks divide: who would round up is not known."""
ASSUMED_SHARED_BYTES = 16 << 10
MAX_BLOCK_SIDE = 32
"""The largest number that a kernel's template has alone and that is taken for a side of its block."""


def propose_memory(file: FileFacts, sizes: Mapping[str, int] | None = None) -> Proposal:
    """Propose a header without an operator.

    `sizes` are values of host variables, and elements of pointers, by name. Raises UsageError if nothing is
    launched, or if a size is not in the file: the message names the option to pass.
    """
    path, kernels = file.path, file.kernels
    if not kernels:
        raise UsageError(f"{path}: defines no __global__ function that can be read")
    program = file.program(in_order=True)
    launches = [launch for launch in program.launches if launch.kernel in kernels]
    proposal = Proposal(NO_OPERATOR, next(iter(kernels)))
    uncalled = {launch.kernel for launch in file.launches} & kernels.keys() - {launch.kernel for launch in launches}
    if launches and uncalled:
        names = ", ".join(sorted(uncalled))
        proposal.notes.append(f"launches of {names} are in functions that are not called: add them")
    proposal.notes += program.notes
    is_unlaunched = not launches
    if is_unlaunched:
        text = assumed_host(list(kernels.values()))
        others = [
            declaration for declaration in file.declarations if declaration.kind != "function" or declaration.is_device
        ]
        program = program_of([*others, *declarations(text)], file.constants)
        if not program.launches:
            raise UsageError(f"{path}: no launch of its kernels can be read, nor written for {', '.join(kernels)}")
        synchronised = {name for name, kernel in kernels.items() if "this_grid" in kernel.uses}
        launches = [replace(launch, cooperative=launch.kernel in synchronised) for launch in program.launches]
        proposal.guess("each launch", "a thread an element of the first size", "no launch of its kernels can be read")
    program.launches = launches
    reads = [file.read(launch.kernel, launch) for launch in launches]
    for read in reads:
        if missing := missing_template_arguments(read):
            raise UsageError(f"{path}: no launch says {', '.join(missing)} of the template of {read.kernel.name}")
    writer = _Writer(path, proposal, program, reads, dict(sizes or {}), is_unlaunched)
    writer.values |= {f"sizeof {name}": str(size) for name, size in sizes_of(file.structs).items()}
    writer.write()
    return proposal


def assumed_host(kernels: Sequence[Declaration]) -> str:
    """Return the text of a host function that launches kernels which the file never launches."""
    parameters: dict[str, str] = {}
    calls = []
    for kernel in kernels:
        taken = [parameter for parameter in map(parameter_of, kernel.parameters()) if parameter.name]
        parameters |= {parameter.name: f"{parameter.type} {parameter.name}" for parameter in taken}
        numbers = [
            parameter.name
            for parameter in taken
            if not parameter.is_pointer and not re.search(NON_INTEGER_TYPE, parameter.type)
        ]
        size = numbers[0] if numbers else "1024"
        shape = f"({size} + 255) / 256, 256"
        if any(a.text == "." and b.text == "y" for a, b in itertools.pairwise(kernel.tokens)):
            last = numbers[1] if len(numbers) > 1 else size
            shape = f"dim3(({size} + 15) / 16, ({last} + 15) / 16), dim3(16, 16)"
        if "extern" in {token.text for token in kernel.tokens}:
            shape += f", {ASSUMED_SHARED_BYTES}"
        calls.append(f"{kernel.name}<<<{shape}>>>({', '.join(parameter.name for parameter in taken)});")
    return f"void launch_all({', '.join(parameters.values())}) {{ {' '.join(calls)} }}\n"


@dataclass
class _Writer:
    """Write the launches of a program, with every number as an expression of host variables."""

    path: Path
    proposal: Proposal
    program: HostProgram
    reads: list[LaunchedKernel]
    given: dict[str, int]
    is_unlaunched: bool = False
    """Whether the launches are made up, as the file has none."""
    values: dict[str, str] = field(default_factory=dict)
    """Host variables with the values that stand in place of their own."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes in the header by name, with their values in the host code."""
    roots: dict[str, str] = field(default_factory=dict)
    """Host variables, each with its name in the header."""
    names: dict[str, str] = field(default_factory=dict)
    """Host buffers, each with its name in the header."""
    buffers: dict[str, BufferTemplate] = field(default_factory=dict)

    def write(self) -> None:
        """Write the lines of the proposed header."""
        of_device = device_values(self.program.code)
        self.values |= {k: v for k, v in of_device.items() if k not in self.program.known or self._is_from_outside(k)}
        self._use_given()
        self._assume()
        self._name_sizes()
        for name, buffer in self.program.buffers.items():
            self.names[name] = self._free_name(plain_name(name).replace(".", "_"))
            self.buffers[name] = self._template(name, buffer)
        launches = [self._launch(read) for read in self.reads]
        reached = {name for _, pointers in launches for name in pointers}
        used = [buffer for buffer in self.buffers.values() if buffer.name in reached]
        entries = [text for text, _ in launches]
        text = "\n".join([*entries, *(one.elements for one in used)])
        named = {name: str(value) for name, value in self.sizes.items() if re.search(rf"\b{name}\b", text)}
        self.proposal.lines = [f'operator = "{NO_OPERATOR}"', f'title = "{self.path.stem}"']
        self.proposal.lines += [f"sizes = {table_of(named)}"] if named else []
        self.proposal.lines += ["launch = [", *(f"  {entry}," for entry in entries), "]"]
        self.proposal.lines += ["[buffers]", *(f"{one.name} = {buffer_text(one)}" for one in used)] if used else []

    # Sizes --------------------------------------------------------------------------------------------------------

    def _use_given(self) -> None:
        """Replace sizes in the file by those that the user passed."""
        names: dict[str, list[str]] = {plain_name(name): [] for name in self._host_names()}
        for name in self._host_names():
            names[plain_name(name)].append(name)
        for name, value in self.given.items():
            if name not in names:
                raise UsageError(unknown("variable of the host's code", name, names, where=f"{self.path}: --size"))
            self.values |= dict.fromkeys(names[name], str(value))

    def _host_names(self) -> list[str]:
        """Return the host variables to which the user may pass a size."""
        own = [p.name for p in self.program.parameters]
        return list(dict.fromkeys([*own, *self.program.known, *self.program.buffers]))

    def _assume(self) -> None:
        """Assume a value for each size from outside the file: a function's parameter, or the command line."""
        outside = [
            p.name for p in self.program.parameters if not p.is_pointer and not re.search(NON_INTEGER_TYPE, p.type)
        ]
        outside += [name for name in self.program.options if self._is_from_outside(name)]
        needed = [name for name in self._used() if name in outside and name not in self.values]
        shapes = {name: side for read in self.reads for name, side in self._shapes(read).items()}
        for parameter in self.program.parameters:
            if parameter.type.split()[-1:] == ["dim3"] and parameter.name in self._used():
                self._assume_shape(parameter.name, needed)
        sizes = [name for name in needed if name not in shapes]
        alone = ASSUMED_UNLAUNCHED if self.is_unlaunched else ASSUMED
        self.values |= dict.fromkeys(sizes, str(alone if len(sizes) == 1 else ASSUMED_EACH))
        self.values |= {name: str(shapes[name]) for name in needed if name in shapes}
        for name in needed:
            why = f"nothing in the file says it; another: --size {plain_name(name)}=…"
            self.proposal.guess(plain_name(name), self.values[name], why)
        for name in self._used():
            if name in self.program.options and name not in needed and name not in self.values:
                value = "".join(token.text for token in self.program.known.get(name, ()))
                why = f"its value without arguments; {self.program.options[name]} changes it"
                if value != self.program.options[name]:
                    self.proposal.guess(plain_name(name), plain_name(value), why)

    def _assume_shape(self, name: str, needed: list[str]) -> None:
        """Assume a usual block size for a parameter that is one."""
        code = self.program.code
        sides = {side.text for token, _, side in zip(code, code[1:], code[2:], strict=False) if token.text == name}
        tiles = (re.fullmatch(r"<\s*(\d+)\s*>", launch.template) for launch in self.program.launches)
        tile = next((match[1] for match in tiles if match and int(match[1]) <= MAX_BLOCK_SIDE), "16")
        shape = f"dim3({tile}, {tile})" if "y" in sides else "dim3(256)"
        self.program.known[name] = tokens_of(shape)
        if name in needed:
            needed.remove(name)
        why = "nothing in the file says it"
        self.proposal.guess(plain_name(name), shape, why)

    def _shapes(self, read: LaunchedKernel) -> dict[str, int]:
        """Return the variables that block sizes depend on, each with a usual value."""
        assert read.launch is not None
        sides = launch_parts(read.launch.configuration[1], self._known(read))
        return dict.fromkeys(self._names_in(*sides), 256 if len(sides) == 1 else 16)

    def _names_in(self, *parts: Sequence[Token]) -> set[str]:
        result: set[str] = set()
        waiting = [token.text for part in parts for token in part if token.kind == "name"]
        while waiting:
            name = waiting.pop()
            if name not in result:
                result.add(name)
                waiting += [token.text for token in self.program.known.get(name, ()) if token.kind == "name"]
        return result

    def _is_from_outside(self, name: str) -> bool:
        name_tokens = (Token("name", name, 0),)
        try:
            return self._number(name_tokens) is None
        except UnsupportedExpression:
            return _real_number(name_tokens, self._known()) is None

    def _used(self) -> list[str]:
        """Return the variables that launches and allocations depend on, each after the variables in its own value."""
        result: dict[str, None] = {}

        def visit(tokens: Sequence[Token], depth: int = 0) -> None:
            for token in tokens:
                if token.kind == "name" and token.text not in result and depth < 16:
                    visit(self.program.known.get(token.text, ()), depth + 1)
                    result[token.text] = None

        for read in self.reads:
            assert read.launch is not None
            for part in (*read.launch.configuration[:3], *read.launch.arguments):
                visit(part)
        for buffer in self.program.buffers.values():
            visit(buffer.bytes or buffer.elements)
        return list(result)

    def _name_sizes(self) -> None:
        """Make a size in the header of each host variable with the same whole number at every use."""
        fixed = {
            token for read in self.reads for token in re.findall(r"\w+", read.launch.template if read.launch else "")
        }
        for name in sorted(self._used(), key=lambda name: "$" in name):  # a macro's name is its own
            value = self.program.known.get(name, ())
            is_literal = bool(value) and all(t.kind == "number" or t.text in "()*<+-" for t in value)
            if name in fixed or not (is_literal or name in self.values) or self._changes(name):
                continue
            try:
                number = self._number((Token("name", name, 0),))
            except UnsupportedExpression:  # a float
                continue
            plain = plain_name(name)
            if number > 1 and is_identifier(plain):
                known = self.sizes.get(plain, number) == number
                self.roots[name] = plain if known else self._free_name(plain)
                self.sizes[self.roots[name]] = number

    def _changes(self, name: str) -> bool:
        """Return whether a variable's value at some launch differs from its value at the end of the program."""
        if name in self.values:
            return False
        own = [token.text for token in self.program.known.get(name, ())]
        there = [read.launch.known.get(name) for read in self.reads if read.launch]
        return any(value is not None and [token.text for token in value] != own for value in there)

    def _free_name(self, plain: str) -> str:
        """Return a name that nothing in the header has yet."""
        taken = {*self.sizes, *self.names.values(), *(buffer.name for buffer in self.buffers.values())}
        name = re.sub(r"\W", "_", plain)
        return next(
            candidate for candidate in (name, *(f"{name}_{i}" for i in range(2, 10_000))) if candidate not in taken
        )

    # Expressions --------------------------------------------------------------------------------------------------

    def _known(self, read: LaunchedKernel | None = None) -> dict[str, Sequence[Token] | str]:
        """Return the values of the host's names; for a launch, their values at that launch."""
        there = read.launch.known if read and read.launch else {}
        return {**self.program.known, **there, **self.values}

    def _number(self, tokens: Sequence[Token], read: LaunchedKernel | None = None) -> int:
        return number_of(tokens, self._known(read))

    def _size(self, tokens: Sequence[Token], what: str, read: LaunchedKernel | None = None) -> str:
        """Return an expression of the sizes, or its number.

        Raise UsageError with the option to pass for an unknown one.
        """
        try:
            number = self._number(tokens, read)
        except UnsupportedExpression as error:
            name = self._culprit(tokens, read) or what.split("'")[1]
            raise UsageError(
                f"{self.path}: {what} cannot be read ({plain_name(str(error))}); pass its value: "
                + next_command("check", self.path, size=f"{plain_name(name)}=1024")
            ) from None
        return self._expression(tokens, number, read)

    def _expression(self, tokens: Sequence[Token], number: int, read: LaunchedKernel | None = None) -> str:
        """Return an expression of the sizes that equals a number, or the number if no expression can be written."""
        try:
            text = plain_quotient(convert(tokens, {**self._known(read), **self.roots}))
            return text if self._says(text, number) else str(number)
        except (UnsupportedExpression, UsageError):
            return str(number)

    def _says(self, text: str, number: int) -> bool:
        """Return whether an expression contains sizes and equals this number."""
        return bool(expression.names(text)) and int(expression.evaluate(text, self.sizes)) == number

    def _culprit(self, tokens: Sequence[Token], read: LaunchedKernel | None, depth: int = 0) -> str:
        """Return the variable with an unknown value on which an expression depends; "" without one."""
        known = self._known(read)
        for token in tokens:
            value = known.get(token.text, ()) if token.kind == "name" else ()
            if isinstance(value, str) or not value or depth > MAX_DEPTH:
                continue
            try:
                self._number((token,), read)
            except UnsupportedExpression:
                return self._culprit(value, read, depth + 1) or token.text
        return ""

    # Launches -----------------------------------------------------------------------------------------------------

    def _launch(self, read: LaunchedKernel) -> tuple[str, list[str]]:
        """Return a launch as header text, and the buffers that it receives."""
        launch = read.launch
        assert launch is not None
        sides = []
        for dimension, given in zip(("grid", "block"), launch.configuration, strict=False):
            text = "".join(plain_name(token.text) for token in given)
            parts = launch_parts(given, {**self._known(read), **self.roots})
            listed = [self._size(part, f"{dimension} '{text}' of {launch.kernel}", read) for part in parts]
            sides.append(listed)
        shared = self._size(launch.configuration[2], "'shared' bytes", read) if len(launch.configuration) > 2 else "0"
        args: list[str] = []
        pointers: list[str] = []
        for group in read.groups:
            if group.unreadable:
                raise UsageError(
                    f"{self.path}: structure '{group.parameter.name}' of {launch.kernel} has a member that cannot be "
                    f"given ({group.unreadable}); let the kernel take its fields one by one"
                )
            if not group.parameter.name and not group.is_struct:
                continue  # f(void)
            result = []
            for parameter, given in group.fields:
                buffer, text = self._argument(read, parameter, given)
                pointers += [buffer] if buffer else []
                if group.is_struct and text.startswith("{ buffer"):
                    self.proposal.guess(f"the offset into '{buffer}'", "0", "it is in a structure")
                    text = f'"{buffer}"'
                result.append(text)
            args.append(f"{{ struct = [{', '.join(result)}] }}" if group.is_struct else result[0])
        called = read.kernel.qualified + template_arguments(read, self._known(read) | self._numbers())
        return launch_text(called, sides[0], sides[1], shared, args, launch.cooperative), pointers

    def _numbers(self) -> dict[str, Sequence[Token]]:
        return {name: tokens_of(value) for name, value in self.values.items()}

    def _argument(self, read: LaunchedKernel, parameter: Parameter, tokens: Sequence[Token]) -> tuple[str, str]:
        """Return the buffer that an argument points to ("" for a number), and the argument as header text."""
        if parameter.views:
            raise UsageError(
                f"{self.path}: {read.kernel.name} takes {parameter.views} ('{parameter.name}'); a check without an "
                f"operator knows numbers, pointers and structures only; name the operator, whose header describes "
                f"{parameter.name}: {next_command('adopt', self.path, operator='NAME')}",
                kind="needs-header",
                subject=parameter.name,
                value=parameter.views,
            )
        if parameter.is_pointer:
            return self._pointer(read, parameter, tokens)
        kind = C_TYPES.get(plain_type(parameter.type), "i32")
        token_texts = [token.text for token in tokens]
        if token_texts in (["true"], ["false"]):
            return "", token_texts[0]
        if kind in FLOATS:
            return "", table_of({kind: self._real(tokens, parameter, read)})
        value = self._size(tokens, f"argument '{parameter.name}' of {read.kernel.name}", read)
        return "", f'"{value}"' if kind == "i32" else table_of({kind: f'"{value}"'})

    def _real(self, tokens: Sequence[Token], parameter: Parameter, read: LaunchedKernel) -> str:
        """Return a float's value; 1 if it is unknown, because no size depends on it."""
        known = self._known(read)
        number = _real_number(tokens, known)
        try:
            if number is None:
                raise UnsupportedExpression(parameter.name)
            text = convert(tokens, {**known, **self.roots}, real=True)
            named = any(re.search(rf"\b{name}\b", text) for name in self.sizes)
            same = named and float(expression.evaluate(text, self.sizes, True)) == number
            return f'"{text}"' if same else repr(number)
        except (UnsupportedExpression, UsageError):
            why = "the host's value cannot be read"
            self.proposal.guess(f"'{parameter.name}' of {read.kernel.name}", "1.0", why)
            return "1.0"

    # Buffers ------------------------------------------------------------------------------------------------------

    def _bytes(self, buffer: HostBuffer) -> int | None:
        """Return the number of bytes that the host allocates for a buffer; None if the number is unknown."""
        if buffer.name in self.values:
            return int(self.values[buffer.name]) * _item_bytes(buffer.element)
        try:
            if buffer.bytes:
                return self._number(buffer.bytes)
            if buffer.elements:
                return self._number(buffer.elements) * _item_bytes(buffer.element)
        except UnsupportedExpression as error:
            name = plain_name(buffer.name)
            why = f"{plain_name(str(error))} cannot be read; give it with --size {name}=…"
            self.proposal.guess(f"the size of '{name}'", "large enough, its bounds are not checked", why)
        return None

    def _template(self, name: str, buffer: HostBuffer) -> BufferTemplate:
        """Return a buffer's entry in the header."""
        resolved = self.program.known.get(buffer.element, ())
        if resolved and all(token.kind == "name" for token in resolved):  # a typedef or a macro
            buffer = replace(buffer, element=" ".join(token.text for token in resolved))
        if not buffer.element:
            buffer = replace(buffer, element=self._element_in_kernels(name))
        dtype, size = _dtype(buffer.element), self._bytes(buffer)
        if size is not None and size % ELEMENT_BYTES[dtype]:
            dtype = "u8"
        content = {"inputs": "random", "value": "random", "zero": "zero", "": "uninitialised"}.get(
            buffer.filled, "random"
        )
        if buffer.filled == "unknown":
            content = "random" if self._is_read_first(name) else "uninitialised"
        if content == "random" and _is_opaque(buffer.element):
            content = "zero"
            why = f"its elements are '{buffer.element}', of which only zeros are a value for sure"
            self.proposal.guess(f"the content of '{plain_name(name)}'", "zeros", why)
        if content == "zero" and dtype in FLOATS and self._is_only_read(name):
            content = "random"
            why = "the host only sets it to zero, and a race between equal values cannot be seen"
            self.proposal.guess(f"the content of '{plain_name(name)}'", "random numbers", why)
        elements = "" if size is None else self._elements(name, buffer, max(1, size // ELEMENT_BYTES[dtype]), dtype)
        return BufferTemplate(self.names[name], dtype, elements, content)

    def _elements(self, name: str, buffer: HostBuffer, number: int, dtype: str) -> str:
        """Return the number of elements of a buffer as an expression of the sizes."""
        if name in self.values:
            return str(number)
        per_item = _item_bytes(buffer.element) // ELEMENT_BYTES[dtype]
        counted = product(self.program.factors(name)) or buffer.elements
        for tokens, factor in ((counted, f" * {per_item}" if per_item > 1 else ""), (buffer.bytes, "")):
            if not tokens:
                continue
            divided = f" // {ELEMENT_BYTES[dtype]}" if tokens is buffer.bytes and ELEMENT_BYTES[dtype] > 1 else ""
            try:
                inner = convert(tokens, {**self._known(), **self.roots})
                text = inner if re.fullmatch(r"\w+", inner) else f"({inner})"
                text = f"{text}{factor}{divided}" if factor or divided else inner
                if self._says(text, number):
                    return text
            except (UnsupportedExpression, UsageError):
                continue
        return str(number)

    def _element_in_kernels(self, name: str) -> str:
        """Return the element type of a buffer in the first kernel that receives it."""
        for read in self.reads:
            for parameter, argument in read.pairs:
                if parameter.is_pointer and self.program.pointer(argument) == name:
                    return read.facts.elements.get(parameter.name, "float")
        return "float"

    def _is_read_first(self, name: str) -> bool:
        """Return whether the first kernel that uses a buffer may read old values of the buffer."""
        for read, pointer in self._uses(name):
            atomic = any(used.startswith("atomic") for used in read.facts.names)
            return atomic or pointer in read.facts.read or pointer not in read.facts.stored
        return True

    def _is_only_read(self, name: str) -> bool:
        """Return whether every kernel that gets a buffer reads it, and none writes to it."""
        return all(
            pointer in read.facts.read and pointer not in read.facts.stored for read, pointer in self._uses(name)
        )

    def _uses(self, name: str) -> Iterator[tuple[LaunchedKernel, str]]:
        """Yield each kernel that gets a buffer, in order of launch, and the parameter that points to it."""
        for read in self.reads:
            for parameter, argument in read.pairs:
                if parameter.is_pointer and self.program.pointer(argument) == name:
                    yield read, parameter.name

    def _pointer(self, read: LaunchedKernel, parameter: Parameter, tokens: Sequence[Token]) -> tuple[str, str]:
        """Return the buffer of an argument (a new one if unknown), and the argument as header text."""
        if parameter.type.count("*") + parameter.type.count("[") > 1:
            raise UsageError(
                f"{self.path}: '{parameter.name}' of {read.kernel.name} points to pointers, which no header fills; "
                "let the kernel take one pointer and an index",
                kind="pointer-to-pointers",
                subject=parameter.name,
                value=read.kernel.name,
            )
        name, offsets = self.program.place(tokens)
        if name:
            return self.names[name], self._part(read, name, offsets) if offsets else f'"{self.names[name]}"'
        name = plain_name("".join(t.text for t in tokens if t.kind == "name")) or parameter.name
        name = name if re.fullmatch(r"[A-Za-z_]\w*", name) else parameter.name
        if name not in self.buffers:
            element = read.facts.elements.get(parameter.name, "float")
            content = "zero" if _is_opaque(element) else "random"
            elements = str(self.given[name]) if name in self.given else ""
            self.buffers[name] = BufferTemplate(self._free_name(name), _dtype(element), elements, content)
        return self.buffers[name].name, f'"{self.buffers[name].name}"'

    def _part(self, read: LaunchedKernel, name: str, offsets: Sequence[Sequence[Token]]) -> str:
        """Return an address within a buffer as header text.

        The start of the buffer, as a guess, if the offset is unknown.
        """
        own, element = self.names[name], self.program.buffers[name].element
        added = product(offsets, "+")
        try:
            number = self._number(added, read)
        except UnsupportedExpression as error:
            why = f"{plain_name(str(error))} cannot be read"
            self.proposal.guess(f"the offset into '{plain_name(name)}'", "0", why)
            return f'"{own}"'
        if not number:
            return f'"{own}"'
        per_item = _item_bytes(element) // ELEMENT_BYTES[self.buffers[name].type]
        text = self._expression(added, number, read)
        return table_of({"buffer": f'"{own}"', "offset": f'"{f"({text}) * {per_item}" if per_item > 1 else text}"'})


def _real_number(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> float | None:
    """Return the value of a floating-point expression; None if it is unknown."""
    try:
        return float(expression.evaluate(convert(tokens, values_by_name, real=True), {}, True))
    except (UnsupportedExpression, UsageError):
        return None


def _dtype(element: str) -> str:
    """Return the dtype that stores elements of a C type; `f32` for a structure."""
    dtype = dtype_of(element) or "f32"
    return {"bool": "u8", "u16": "i16"}.get(dtype, dtype)


def _is_opaque(element: str) -> bool:
    """Return whether the file itself defines a type; then only zeros are known to be a valid value."""
    return not dtype_of(element)


def _item_bytes(element: str) -> int:
    return SIZES.get(element, ELEMENT_BYTES[_dtype(element)])
