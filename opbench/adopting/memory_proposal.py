"""Propose a header without an operator: read the launches, buffers and sizes of host code."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.adopting.host_launches import Parameter, number_of, parameter_of, plain_name, plain_type
from opbench.adopting.host_program import (
    HostBuffer,
    HostProgram,
    assumed_device_values,
    product,
    program_of,
    uncalled_launchers,
)
from opbench.adopting.host_structs import sizes_of
from opbench.adopting.matching import NON_INTEGER_TYPE
from opbench.adopting.parsed_file import LaunchedKernel, ParsedFile, require_kernels
from opbench.adopting.proposal import (
    Proposal,
    grid_components,
    launch_text,
    missing_template_arguments,
    plain_quotient,
    template_arguments,
)
from opbench.errors import UsageError, unknown_name
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
from opbench.source.c_expression import MAX_DEPTH, TYPE_BYTES, UnsupportedExpression, convert, tokens_of
from opbench.source.scan import Declaration, declarations
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split

ASSUMED_ONLY_SIZE = 1000
"""The assumed size of a host function that nothing calls and that has one size; it is no multiple of a block."""
ASSUMED_SIZE_OF_SEVERAL, MAX_ASSUMED_TILE = 64, 256
"""The assumed value of each size of a host function that nothing calls and that has several sizes, unless a template
argument up to the second number is larger: it may be a tile, and kernels without bounds checks need whole tiles."""
ASSUMED_UNLAUNCHED_SIZE = 1024
"""The assumed size of a kernel that nothing launches; it is a multiple of usual blocks."""
ASSUMED_SHARED_BYTES = 16 << 10
"""The assumed bytes of dynamic shared memory of a kernel that nothing launches."""
ASSUMED_WINDOW = 3
"""The assumed size of a filter or a window, which the sizes of images and signals must exceed."""
WINDOW_SIZE = re.compile(
    r"(?i)(kernel|filter|mask|window|conv)_?(size|width|height|len|length|rows|cols|w|h|n|dim)$|ksize"
)
"""Matches names of the sizes of filters and windows."""
STEP_OR_BORDER = re.compile(r"(?i)(stride|dilation|step|padding|pad|radius)(_?[a-z0-9])?$")
"""Matches names of a window's step, distance and border; 1 is valid for each."""
BATCH_SIZE = re.compile(r"(?i)(^|_)(batch(es|_?size)?|bsz?|bsize|n?_?heads?|num_?heads?|head_?num)$")
"""Matches names of numbers of images, sequences or heads, which need no large value."""
ASSUMED_BATCH, MIN_SIZES_WITH_BATCH = 2, 3
"""The assumed number of images or heads, and the fewest sizes of a file with which it is assumed."""
DEVICE_PROPERTY = re.compile(r"(?i)prop|device")
"""Matches variables that hold properties of the device."""
WHOLE_NUMBER_TYPES = frozenset(("int", "unsigned", "size_t", "uint32_t", "int32_t", "int64_t", "long", "const"))
"""First words of the declarations of template parameters that are whole numbers."""
SIZE_FUNCTIONS = frozenset(("size", "numel", "sizes", "length", "rows", "cols", "width", "height"))
"""Member functions that return a size."""
MAX_BLOCK_SIDE = 32
"""The largest value of a kernel's only template argument that is taken for a side of its block."""


def propose_memory(file: ParsedFile, sizes: Mapping[str, int] | None = None) -> Proposal:
    """Propose a header without an operator, for checks of memory accesses and races only.

    If `main` launches nothing, all functions that launch are called in the order of the text; a note names each one
    that cannot be read. `sizes` are values of host variables, and numbers of elements of pointers, by name. Raises
    UsageError if nothing is launched, or if a size is not in the file; the message names the option to pass.
    """
    require_kernels(file)
    program = file.program(in_order=True)
    functions = uncalled_launchers(file.declarations) if program.launches and not program.starts_at_main else []
    if len(functions) < 2:
        return _propose(file, program, sizes)
    readable: list[str] = []
    first_error: UsageError | None = None
    notes = []
    for function in functions:
        try:
            _propose(file, file.program(True, [*readable, function]), sizes, are_sizes_known=False)
            readable.append(function)
        except UsageError as error:
            first_error = first_error or error
            notes.append(f"the launches in {function} are not checked: {error}")
    if first_error and not readable:
        raise first_error
    proposal = _propose(file, file.program(True, readable), sizes)
    proposal.notes += notes
    return proposal


def _propose(
    file: ParsedFile, program: HostProgram, sizes: Mapping[str, int] | None, are_sizes_known: bool = True
) -> Proposal:
    """Propose a header for the launches of a host program.

    `are_sizes_known` refuses names in `sizes` that the program does not have.
    """
    path, kernels = file.path, file.kernels
    launches = [launch for launch in program.launches if launch.kernel in kernels]
    proposal = Proposal(NO_OPERATOR, next(iter(kernels)))
    launched_elsewhere = {launch.kernel for launch in file.launches} & kernels.keys() - {
        launch.kernel for launch in launches
    }
    if launches and launched_elsewhere and program.starts_at_main:
        names = ", ".join(sorted(launched_elsewhere))
        proposal.notes.append(
            f"launches of {names} are in functions that nothing calls; add these launches to the header"
        )
    proposal.notes += program.notes
    has_assumed_launches = not launches
    if has_assumed_launches:
        host_source = assumed_host_source(file)
        device_declarations = [
            declaration for declaration in file.declarations if declaration.kind != "function" or declaration.is_device
        ]
        program = program_of([*device_declarations, *declarations(host_source)], file.constants)
        if not program.launches:
            raise UsageError(
                f"{path}: opbench can neither read nor propose a launch of {', '.join(kernels)}; add host code with "
                f"a launch such as {next(iter(kernels))}<<<grid, block>>>(…), or write a header by hand (see 'Write "
                "your own kernel' in README.md)",
                kind="no-launch",
                subject=path,
            )
        grid_synchronised = {name for name, kernel in kernels.items() if "this_grid" in kernel.uses}
        launches = [replace(launch, cooperative=launch.kernel in grid_synchronised) for launch in program.launches]
        proposal.guess("each launch", "one thread per element of the first size", "opbench cannot read a launch")
        proposal.notes.append(
            "grid, block and shared bytes are assumed, and a fault may come from them; write your launch into the "
            f"header after: {next_command('adopt', path, write=True)}"
        )
    program.launches = launches
    launched_kernels = [file.read_kernel(launch.kernel, launch) for launch in launches]
    for launched_kernel in launched_kernels:
        if missing := missing_template_arguments(launched_kernel):
            raise UsageError(
                f"{path}: no launch gives the template parameters {', '.join(missing)} of "
                f"{launched_kernel.kernel.name}; add host code that launches {launched_kernel.kernel.name} with its "
                "template arguments",
                kind="unknown-template-arguments",
                subject=path,
                value=tuple(missing),
            )
    writer = _Writer(path, proposal, program, launched_kernels, dict(sizes or {}), has_assumed_launches)
    writer.replacement_values |= {f"sizeof {name}": str(size) for name, size in sizes_of(file.structs).items()}
    if not are_sizes_known:
        known_names = set(map(plain_name, writer.host_names()))
        writer.given_sizes = {name: size for name, size in writer.given_sizes.items() if name in known_names}
    writer.write()
    return proposal


def assumed_host_source(file: ParsedFile) -> str:
    """Return the source of a host function that launches all kernels of a file without launches.

    Raises UsageError for a kernel whose block has three dimensions, because no shape of it is usual.
    """
    parameters: dict[str, str] = {}
    launches = []
    for kernel in file.kernels.values():
        dimensions = _dimensions(kernel, file.functions)
        if "z" in dimensions:
            raise UsageError(
                f"{file.path}: nothing launches {kernel.name}, and opbench assumes no launch for a kernel that uses "
                f"threadIdx.z; add host code with a launch such as {kernel.name}<<<grid, dim3(32, 2, 2)>>>(…), or "
                "write a header by hand (see 'Write your own kernel' in README.md)",
                kind="no-launch",
                subject=file.path,
                value=kernel.name,
            )
        parameters_of_kernel = [parameter for parameter in map(parameter_of, kernel.parameters()) if parameter.name]
        parameters |= {parameter.name: f"{parameter.type} {parameter.name}" for parameter in parameters_of_kernel}
        size_names = [
            parameter.name
            for parameter in parameters_of_kernel
            if not parameter.is_pointer and not re.search(NON_INTEGER_TYPE, parameter.type)
        ]
        first_size = size_names[0] if size_names else "1024"
        configuration = f"({first_size} + 255) / 256, 256"
        if "y" in dimensions:
            last_size = size_names[1] if len(size_names) > 1 else first_size
            configuration = f"dim3(({first_size} + 15) / 16, ({last_size} + 15) / 16), dim3(16, 16)"
        if "extern" in {token.text for token in kernel.tokens}:
            configuration += f", {ASSUMED_SHARED_BYTES}"
        launches.append(
            f"{kernel.name}<<<{configuration}>>>({', '.join(parameter.name for parameter in parameters_of_kernel)});"
        )
    return f"void launch_all({', '.join(parameters.values())}) {{ {' '.join(launches)} }}\n"


def _dimensions(kernel: Declaration, functions: Mapping[str, Declaration]) -> set[str]:
    """Return the dimensions of the thread's index or the block's index that a kernel and its functions use."""
    result: set[str] = set()
    unvisited, visited = [kernel], {kernel.name}
    while unvisited:
        tokens = unvisited.pop().tokens
        for index, dot, member in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if dot.text == "." and index.text in ("threadIdx", "blockIdx"):
                result |= {member.text} if (index.text, member.text) != ("blockIdx", "z") else set()
            if index.text in functions and index.text not in visited:
                visited.add(index.text)
                unvisited.append(functions[index.text])
    return result


@dataclass
class _Writer:
    """Write a header's lines from a host program, with numbers as expressions of the header's sizes."""

    path: Path
    proposal: Proposal
    program: HostProgram
    launched_kernels: list[LaunchedKernel]
    given_sizes: dict[str, int]
    """Sizes that the user passed, by name."""
    has_assumed_launches: bool = False
    """Whether the launches are assumed, because the file has none."""
    replacement_values: dict[str, str] = field(default_factory=dict)
    """Values, as text, that replace those of host variables: given, assumed, or of device properties."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes in the header by name, with their values in the host code."""
    size_name_by_variable: dict[str, str] = field(default_factory=dict)
    """Host variables that become sizes of the header, each with the size's name."""
    buffer_name_by_variable: dict[str, str] = field(default_factory=dict)
    """Host buffers, each with the name of its buffer in the header."""
    buffers: dict[str, BufferTemplate] = field(default_factory=dict)

    def write(self) -> None:
        """Write the lines of the proposed header."""
        device_properties = assumed_device_values(self.program.code)
        self.replacement_values |= {
            name: value
            for name, value in device_properties.items()
            if name not in self.program.values_by_name or self._is_undefined(name)
        }
        self._apply_given_sizes()
        self._assume_sizes()
        self._name_sizes()
        for name, buffer in self.program.buffers.items():
            self.buffer_name_by_variable[name] = self._free_name(plain_name(name).replace(".", "_"))
            self.buffers[name] = self._buffer_template(name, buffer)
        launches = [self._launch(launched_kernel) for launched_kernel in self.launched_kernels]
        used_names = {name for _, pointers in launches for name in pointers}
        used_buffers = [buffer for buffer in self.buffers.values() if buffer.name in used_names]
        launch_entries = [text for text, _ in launches]
        text = "\n".join([*launch_entries, *(template.elements for template in used_buffers)])
        used_sizes = {name: str(value) for name, value in self.sizes.items() if re.search(rf"\b{name}\b", text)}
        self.proposal.lines = [f'operator = "{NO_OPERATOR}"', f'title = "{self.path.stem}"']
        self.proposal.lines += [f"sizes = {table_of(used_sizes)}"] if used_sizes else []
        self.proposal.lines += ["launch = [", *(f"  {entry}," for entry in launch_entries), "]"]
        self.proposal.lines += (
            ["[buffers]", *(f"{template.name} = {buffer_text(template)}" for template in used_buffers)]
            if used_buffers
            else []
        )

    # Sizes --------------------------------------------------------------------------------------------------------

    def _apply_given_sizes(self) -> None:
        """Use the sizes that the user passed instead of those in the file; raise UsageError for an unknown name."""
        variables_by_plain_name: dict[str, list[str]] = {plain_name(name): [] for name in self.host_names()}
        for name in self.host_names():
            variables_by_plain_name[plain_name(name)].append(name)
        for name, value in self.given_sizes.items():
            if name not in variables_by_plain_name:
                raise UsageError(
                    unknown_name(
                        "variable of the host's code", name, variables_by_plain_name, place=f"{self.path}: --size"
                    )
                )
            self.replacement_values |= dict.fromkeys(variables_by_plain_name[name], str(value))

    def host_names(self) -> list[str]:
        """Return the host variables to which the user may pass a size."""
        parameter_names = [p.name for p in self.program.parameters]
        names = [*parameter_names, *self.program.values_by_name, *self.program.buffers]
        return list(dict.fromkeys([*names, *self._unknown_template_values()]))

    def _assume_sizes(self) -> None:
        """Assume a value for each needed size that the file does not give: a parameter or a command-line option."""
        external_names = [
            p.name for p in self.program.parameters if not p.is_pointer and not re.search(NON_INTEGER_TYPE, p.type)
        ]
        external_names += [name for name in self.program.option_expressions if self._is_without_size(name)]
        members = self._unknown_members()
        variable_by_member = {
            member: name
            for name in self._needed_variables()
            if (member := _text_without_cast(self.program.values_by_name.get(name, ()))) in members
        }
        external_names += variable_by_member.values()
        needed_names = [
            name for name in self._needed_variables() if name in external_names and name not in self.replacement_values
        ]
        block_sizes = {
            name: side
            for launched_kernel in self.launched_kernels
            for name, side in self._block_sizes(launched_kernel).items()
        }
        for parameter in self.program.parameters:
            if parameter.type.split()[-1:] == ["dim3"] and parameter.name in self._needed_variables():
                self._assume_block(parameter.name, needed_names)
        needed_names += [member for member in members if member not in variable_by_member]
        needed_names += [name for name in self._unknown_template_values() if name not in self.replacement_values]
        small_sizes = {name: size for name in needed_names if (size := _small_size(plain_name(name)))}
        if len(needed_names) >= MIN_SIZES_WITH_BATCH:
            batch_names = [name for name in needed_names if BATCH_SIZE.search(plain_name(name))]
            small_sizes |= dict.fromkeys(batch_names, ASSUMED_BATCH)
        sizes = [name for name in needed_names if name not in block_sizes and name not in small_sizes]
        single_size = ASSUMED_UNLAUNCHED_SIZE if self.has_assumed_launches else ASSUMED_ONLY_SIZE
        self.replacement_values |= dict.fromkeys(
            sizes, str(single_size if len(sizes) == 1 else max(ASSUMED_SIZE_OF_SEVERAL, self._largest_tile()))
        )
        self.replacement_values |= {
            name: str(size) for name, size in (small_sizes | block_sizes).items() if name in needed_names
        }
        self.replacement_values |= {
            member: self.replacement_values[name]
            for member, name in variable_by_member.items()
            if name in self.replacement_values
        }
        for name in needed_names:
            option = f"; change it with --size {plain_name(name)}=…" if is_identifier(plain_name(name)) else ""
            self.proposal.guess(plain_name(name), self.replacement_values[name], f"the file does not give it{option}")
        for name in self._needed_variables():
            if (
                name in self.program.option_expressions
                and name not in needed_names
                and name not in self.replacement_values
            ):
                value = "".join(token.text for token in self.program.values_by_name.get(name, ()))
                reason = f"its default; the host code can set it by {self.program.option_expressions[name]}"
                if value != self.program.option_expressions[name]:
                    self.proposal.guess(plain_name(name), plain_name(value), reason)

    def _unknown_members(self) -> list[str]:
        """Return the sizes that launches need from objects with no value in the file, such as `x.size(0)`."""
        result: dict[str, None] = {}
        for tokens in self._needed_expressions():
            for member in _member_accesses(tokens):
                text = "".join(token.text for token in member)
                try:
                    self._evaluate(member)
                except UnsupportedExpression:
                    if not DEVICE_PROPERTY.search(text):
                        result[text] = None
        return list(result)

    def _unknown_template_values(self) -> list[str]:
        """Return the names of whole numbers in template arguments that the file does not define.

        A macro around the launch can define such a name. Only a name that is the only one of its launch and that no
        block depends on can be assumed: tiles and blocks must fit each other.
        """
        result: dict[str, None] = {}
        for launched_kernel in self.launched_kernels:
            if not launched_kernel.kernel.is_template or launched_kernel.launch is None:
                continue
            declared = launched_kernel.kernel.tokens
            parameters = split(declared[2 : closing_angle_bracket(declared, 1)], ",")
            arguments = split(tokens_of(launched_kernel.launch.template)[1:-1], ",")
            values_by_name = self._values_at(launched_kernel)
            unknown_names = {
                argument[0].text
                for parameter, argument in zip(parameters, arguments, strict=False)
                if parameter and parameter[0].text in WHOLE_NUMBER_TYPES and len(argument) == 1
                if argument[0].kind == "name" and argument[0].text not in values_by_name
            }
            if len(unknown_names) == 1 and not unknown_names & self._block_sizes(launched_kernel).keys():
                result |= dict.fromkeys(unknown_names)
        return list(result)

    def _largest_tile(self) -> int:
        """Return the largest template argument of a launch that may be a tile, not its number of threads; 0 if none."""
        tiles = [0]
        for launched_kernel in self.launched_kernels:
            if launched_kernel.launch is None or not launched_kernel.launch.template:
                continue
            block = grid_components(launched_kernel.launch.configuration[1], self._values_at(launched_kernel))
            threads = 0
            with contextlib.suppress(UnsupportedExpression):
                threads = math.prod(self._evaluate(component, launched_kernel) for component in block)
            for argument in split(tokens_of(launched_kernel.launch.template)[1:-1], ","):
                with contextlib.suppress(UnsupportedExpression):  # It may be a type.
                    number = self._evaluate(argument, launched_kernel)
                    tiles += [number] if number != threads and number <= MAX_ASSUMED_TILE else []
        return max(tiles)

    def _needed_expressions(self) -> Iterator[Sequence[Token]]:
        """Yield the expressions of grids, blocks and whole numbers, and the values of all needed variables."""
        yield from (self.program.values_by_name.get(name, ()) for name in self._needed_variables())
        for launched_kernel in self.launched_kernels:
            assert launched_kernel.launch is not None
            yield from launched_kernel.launch.configuration[:3]
            for parameter, argument in launched_kernel.argument_pairs:
                if not parameter.is_pointer and not re.search(NON_INTEGER_TYPE, parameter.type):
                    yield argument

    def _assume_block(self, name: str, needed_names: list[str]) -> None:
        """Assume a usual block size for a parameter of type dim3."""
        code = self.program.code
        used_components = {
            component.text for token, _, component in zip(code, code[1:], code[2:], strict=False) if token.text == name
        }
        template_values = (re.fullmatch(r"<\s*(\d+)\s*>", launch.template) for launch in self.program.launches)
        block_side = next((match[1] for match in template_values if match and int(match[1]) <= MAX_BLOCK_SIDE), "16")
        block = f"dim3({block_side}, {block_side})" if "y" in used_components else "dim3(256)"
        self.program.values_by_name[name] = tokens_of(block)
        if name in needed_names:
            needed_names.remove(name)
        self.proposal.guess(plain_name(name), block, "the file does not give it")

    def _block_sizes(self, launched_kernel: LaunchedKernel) -> dict[str, int]:
        """Return the variables that block sizes depend on, each with a usual value."""
        assert launched_kernel.launch is not None
        block = launched_kernel.launch.configuration[1]
        components = grid_components(block, self._values_at(launched_kernel))
        names = self._variables_in(*components) | {token.text for token in block if len(block) == 1}
        return dict.fromkeys(names, 256 if len(components) == 1 else 16)

    def _variables_in(self, *expressions: Sequence[Token]) -> set[str]:
        """Return the variables on which expressions depend, directly or through other variables."""
        result: set[str] = set()
        unvisited = [
            token.text for expression_tokens in expressions for token in expression_tokens if token.kind == "name"
        ]
        while unvisited:
            name = unvisited.pop()
            if name not in result:
                result.add(name)
                unvisited += [token.text for token in self.program.values_by_name.get(name, ()) if token.kind == "name"]
        return result

    def _is_undefined(self, name: str) -> bool:
        """Return whether the file gives a variable no value."""
        name_tokens = (Token("name", name, 0),)
        try:
            return self._evaluate(name_tokens) is None
        except UnsupportedExpression:
            return _float_value(name_tokens, self._values_at()) is None

    def _is_without_size(self, name: str) -> bool:
        """Return whether the file gives a variable no value, or one that is no size, such as 0 before an input."""
        try:
            return self._evaluate((Token("name", name, 0),)) < 1
        except UnsupportedExpression:
            return self._is_undefined(name)

    def _needed_variables(self) -> list[str]:
        """Return the variables that launches and allocations depend on, each after the variables in its own value."""
        result: dict[str, None] = {}

        def visit(tokens: Sequence[Token], depth: int = 0) -> None:
            for token in tokens:
                if token.kind == "name" and token.text not in result and depth < 16:
                    visit(self.program.values_by_name.get(token.text, ()), depth + 1)
                    result[token.text] = None

        for launched_kernel in self.launched_kernels:
            assert launched_kernel.launch is not None
            for expression_tokens in (*launched_kernel.launch.configuration[:3], *launched_kernel.launch.arguments):
                visit(expression_tokens)
        for buffer in self.program.buffers.values():
            visit(buffer.byte_count or buffer.element_count)
        return list(result)

    def _name_sizes(self) -> None:
        """Add each host variable that has the same whole number at every launch to the header's sizes."""
        template_names = {
            token
            for launched_kernel in self.launched_kernels
            for token in re.findall(r"[\w$]+", launched_kernel.launch.template if launched_kernel.launch else "")
        }
        for name in sorted(
            self._needed_variables(), key=lambda name: "$" in name
        ):  # Names of inlined variables have a "$".
            value = self.program.values_by_name.get(name, ())
            is_literal = bool(value) and all(t.kind == "number" or t.text in "()*<+-" for t in value)
            if (
                name in template_names
                or name in self.program.buffers
                or not (is_literal or name in self.replacement_values)
                or self._differs_at_a_launch(name)
            ):
                continue
            try:
                number = self._evaluate((Token("name", name, 0),))
            except UnsupportedExpression:  # A float cannot be a size.
                continue
            size_name = plain_name(name)
            if number > 1 and is_identifier(size_name):
                is_free_or_equal = self.sizes.get(size_name, number) == number
                self.size_name_by_variable[name] = size_name if is_free_or_equal else self._free_name(size_name)
                self.sizes[self.size_name_by_variable[name]] = number

    def _differs_at_a_launch(self, name: str) -> bool:
        """Return whether a variable's value at some launch differs from its value at the end of the program."""
        if name in self.replacement_values:
            return False
        final_value = [token.text for token in self.program.values_by_name.get(name, ())]
        values_at_launches = [
            launched_kernel.launch.values_by_name.get(name)
            for launched_kernel in self.launched_kernels
            if launched_kernel.launch
        ]
        return any(
            value_tokens is not None and [token.text for token in value_tokens] != final_value
            for value_tokens in values_at_launches
        )

    def _free_name(self, preferred_name: str) -> str:
        """Return `preferred_name`, with a number at the end if a size or buffer of the header already has it."""
        used_names = {
            *self.sizes,
            *self.buffer_name_by_variable.values(),
            *(buffer.name for buffer in self.buffers.values()),
        }
        base_name = re.sub(r"\W", "_", preferred_name)
        return next(
            candidate
            for candidate in (base_name, *(f"{base_name}_{i}" for i in range(2, 10_000)))
            if candidate not in used_names
        )

    # Expressions --------------------------------------------------------------------------------------------------

    def _values_at(self, launched_kernel: LaunchedKernel | None = None) -> dict[str, Sequence[Token] | str]:
        """Return the values of the host's names; for a launch, their values at that launch."""
        launch_values = launched_kernel.launch.values_by_name if launched_kernel and launched_kernel.launch else {}
        return {**self.program.values_by_name, **launch_values, **self.replacement_values}

    def _evaluate(self, tokens: Sequence[Token], launched_kernel: LaunchedKernel | None = None) -> int:
        """Return the whole number that a host expression equals at a launch.

        Raises UnsupportedExpression if a variable in it has no value.
        """
        return number_of(tokens, self._values_at(launched_kernel))

    def _size_text(
        self, tokens: Sequence[Token], subject: str, name: str, launched_kernel: LaunchedKernel | None = None
    ) -> str:
        """Return a host expression as an expression of the header's sizes, or as a number.

        `subject` says in the error what the expression is, and `name` is its name or text. Raises UsageError with the
        option to pass if the value is unknown.
        """
        try:
            number = self._evaluate(tokens, launched_kernel)
        except UnsupportedExpression as error:
            variable = self._unknown_variable(tokens, launched_kernel) or name
            plain_variable = plain_name(variable)
            is_option = is_identifier(plain_variable)
            option = f"{plain_variable}={self._example_size(variable)}" if is_option else "NAME=1024"
            remedy = "give the value with" if is_option else "assign it to a variable NAME, and give its value with"
            raise UsageError(
                f"{self.path}: {subject} cannot be read ({plain_name(str(error))}); {remedy}: "
                + next_command("check", self.path, size=option),
                kind="unreadable-expression",
                subject=variable,
            ) from None
        return self._expression(tokens, number, launched_kernel)

    def _example_size(self, name: str) -> int:
        """Return a size that a message can propose for a variable: a usual side of a block if a block depends on it."""
        for launched_kernel in self.launched_kernels:
            assert launched_kernel.launch is not None
            block = launched_kernel.launch.configuration[1]
            if name in self._variables_in(block):
                return 256 if len(grid_components(block, self._values_at(launched_kernel))) == 1 else 16
        return ASSUMED_UNLAUNCHED_SIZE

    def _expression(self, tokens: Sequence[Token], number: int, launched_kernel: LaunchedKernel | None = None) -> str:
        """Return a host expression as an expression of the header's sizes, if that equals `number`; else the number."""
        try:
            text = plain_quotient(convert(tokens, {**self._values_at(launched_kernel), **self.size_name_by_variable}))
            return text if self._equals_size_expression(text, number) else str(number)
        except (UnsupportedExpression, UsageError):
            return str(number)

    def _equals_size_expression(self, text: str, number: int) -> bool:
        """Return whether an expression contains sizes of the header and equals a number."""
        return bool(expression.names(text)) and int(expression.evaluate(text, self.sizes)) == number

    def _unknown_variable(self, tokens: Sequence[Token], launched_kernel: LaunchedKernel | None, depth: int = 0) -> str:
        """Return the variable with an unknown value on which an expression depends; "" without one."""
        all_values = self._values_at(launched_kernel)
        for token in tokens:
            value = all_values.get(token.text, ()) if token.kind == "name" else ()
            if isinstance(value, str) or not value or depth > MAX_DEPTH:
                continue
            try:
                self._evaluate((token,), launched_kernel)
            except UnsupportedExpression:
                return self._unknown_variable(value, launched_kernel, depth + 1) or token.text
        return ""

    # Launches -----------------------------------------------------------------------------------------------------

    def _launch(self, launched_kernel: LaunchedKernel) -> tuple[str, list[str]]:
        """Return a launch as header text, and the buffers that it receives."""
        launch = launched_kernel.launch
        assert launch is not None
        dimension_texts = []
        for dimension, dimension_tokens in zip(("grid", "block"), launch.configuration, strict=False):
            text = "".join(plain_name(token.text) for token in dimension_tokens)
            components = grid_components(
                dimension_tokens, {**self._values_at(launched_kernel), **self.size_name_by_variable}
            )
            dimension_texts.append(
                [
                    self._size_text(component, f"{dimension} '{text}' of {launch.kernel}", text, launched_kernel)
                    for component in components
                ]
            )
        shared = (
            self._size_text(launch.configuration[2], "'shared' bytes", "shared", launched_kernel)
            if len(launch.configuration) > 2
            else "0"
        )
        args: list[str] = []
        pointers: list[str] = []
        for argument_group in launched_kernel.argument_groups:
            if argument_group.unreadable:
                raise UsageError(
                    f"{self.path}: structure '{argument_group.parameter.name}' of {launch.kernel} has a member that a "
                    f"header cannot set ({argument_group.unreadable}); give the kernel one parameter for each field of "
                    "the structure",
                    kind="unsupported-structure",
                    subject=argument_group.parameter.name,
                    value=argument_group.unreadable,
                )
            if not argument_group.parameter.name and not argument_group.is_struct:
                continue  # f(void)
            field_texts = []
            for parameter, argument_tokens in argument_group.fields:
                buffer, text = self._argument(launched_kernel, parameter, argument_tokens)
                pointers += [buffer] if buffer else []
                if argument_group.is_struct and text.startswith("{ buffer"):
                    self.proposal.guess(
                        f"the offset into '{buffer}'",
                        "0",
                        "an address in a structure cannot have an offset",
                    )
                    text = f'"{buffer}"'
                field_texts.append(text)
            args.append(f"{{ struct = [{', '.join(field_texts)}] }}" if argument_group.is_struct else field_texts[0])
        kernel_text = launched_kernel.kernel.qualified_name + template_arguments(
            launched_kernel, self._values_at(launched_kernel) | self._value_tokens()
        )
        return launch_text(
            kernel_text, dimension_texts[0], dimension_texts[1], shared, args, launch.cooperative
        ), pointers

    def _value_tokens(self) -> dict[str, Sequence[Token]]:
        """Return the values that replace those of host variables, as tokens."""
        return {name: tokens_of(value) for name, value in self.replacement_values.items()}

    def _argument(
        self, launched_kernel: LaunchedKernel, parameter: Parameter, tokens: Sequence[Token]
    ) -> tuple[str, str]:
        """Return the buffer that an argument points to ("" for a number), and the argument as header text."""
        if parameter.texture_kind:
            raise UsageError(
                f"{self.path}: {launched_kernel.kernel.name} takes {parameter.texture_kind} ('{parameter.name}'); a "
                "check without an operator supports only numbers, pointers and structures; write a header with an "
                f"operator: {next_command('adopt', self.path, operator='NAME')}",
                kind="needs-header",
                subject=parameter.name,
                value=parameter.texture_kind,
            )
        if parameter.is_pointer:
            return self._pointer(launched_kernel, parameter, tokens)
        dtype = C_TYPES.get(plain_type(parameter.type), "i32")
        token_texts = [token.text for token in tokens]
        if token_texts in (["true"], ["false"]):
            return "", token_texts[0]
        if dtype in FLOATS:
            return "", table_of({dtype: self._float_text(tokens, parameter, launched_kernel)})
        size_text = self._size_text(
            tokens,
            f"argument '{parameter.name}' of {launched_kernel.kernel.name}",
            parameter.name,
            launched_kernel,
        )
        return "", f'"{size_text}"' if dtype == "i32" else table_of({dtype: f'"{size_text}"'})

    def _float_text(self, tokens: Sequence[Token], parameter: Parameter, launched_kernel: LaunchedKernel) -> str:
        """Return a floating-point argument as header text; 1.0 if its value is unknown."""
        all_values = self._values_at(launched_kernel)
        number = _float_value(tokens, all_values)
        try:
            if number is None:
                raise UnsupportedExpression(parameter.name)
            text = convert(tokens, {**all_values, **self.size_name_by_variable}, is_real=True)
            has_sizes = any(re.search(rf"\b{name}\b", text) for name in self.sizes)
            is_equal = has_sizes and float(expression.evaluate(text, self.sizes, True)) == number
            return f'"{text}"' if is_equal else repr(number)
        except (UnsupportedExpression, UsageError):
            reason = "the host's value cannot be read"
            self.proposal.guess(f"'{parameter.name}' of {launched_kernel.kernel.name}", "1.0", reason)
            return "1.0"

    # Buffers ------------------------------------------------------------------------------------------------------

    def _bytes(self, buffer: HostBuffer) -> int | None:
        """Return the number of bytes that the host allocates for a buffer; None if the number is unknown."""
        if buffer.name in self.replacement_values:
            return int(self.replacement_values[buffer.name]) * _item_bytes(buffer.element_type)
        try:
            if buffer.byte_count:
                return self._evaluate(buffer.byte_count)
            if buffer.element_count:
                return self._evaluate(buffer.element_count) * _item_bytes(buffer.element_type)
        except UnsupportedExpression as error:
            name = plain_name(buffer.name)
            reason = f"opbench cannot read {plain_name(str(error))}; pass the size with --size {name}=…"
            self.proposal.guess(f"the size of '{name}'", "large enough; bounds are not checked", reason)
        return None

    def _buffer_template(self, name: str, buffer: HostBuffer) -> BufferTemplate:
        """Return a buffer's entry in the header."""
        alias_tokens = self.program.values_by_name.get(buffer.element_type, ())
        if alias_tokens and all(token.kind == "name" for token in alias_tokens):  # The type is a typedef or a macro.
            buffer = replace(buffer, element_type=" ".join(token.text for token in alias_tokens))
        if not buffer.element_type:
            buffer = replace(buffer, element_type=self._element_in_kernels(name))
        for launched_kernel in self.launched_kernels:
            if template_type := launched_kernel.template_types.get(plain_name(buffer.element_type)):
                buffer = replace(buffer, element_type=" ".join(token.text for token in template_type))
        dtype, size_bytes = _dtype(buffer.element_type), self._bytes(buffer)
        if size_bytes is not None and size_bytes % ELEMENT_BYTES[dtype]:
            dtype = "u8"
        content = {"inputs": "random", "value": "random", "zero": "zero", "": "uninitialised"}.get(
            buffer.filled_by, "random"
        )
        if buffer.filled_by == "unknown":
            content = "random" if self._is_read_first(name) else "uninitialised"
        if content == "random" and _is_own_type(buffer.element_type):
            content = "zero"
            reason = f"its elements are '{buffer.element_type}', a type for which only zeros are surely valid"
            self.proposal.guess(f"the content of '{plain_name(name)}'", "zeros", reason)
        elif content == "zero" and dtype in FLOATS and self._is_only_read(name):
            content = "random"
            reason = "the host only zeroes it, and equal values would hide races"
            self.proposal.guess(f"the content of '{plain_name(name)}'", "random numbers", reason)
        elements = (
            ""
            if size_bytes is None
            else self._elements(name, buffer, max(1, size_bytes // ELEMENT_BYTES[dtype]), dtype)
        )
        return BufferTemplate(self.buffer_name_by_variable[name], dtype, elements, content)

    def _elements(self, name: str, buffer: HostBuffer, count: int, dtype: str) -> str:
        """Return the number of elements of a buffer as an expression of the sizes."""
        if name in self.replacement_values:
            return str(count)
        elements_per_item = _item_bytes(buffer.element_type) // ELEMENT_BYTES[dtype]
        element_tokens = product(self.program.factors(name)) or buffer.element_count
        for tokens, multiplier in (
            (element_tokens, f" * {elements_per_item}" if elements_per_item > 1 else ""),
            (buffer.byte_count, ""),
        ):
            if not tokens:
                continue
            divisor = f" // {ELEMENT_BYTES[dtype]}" if tokens is buffer.byte_count and ELEMENT_BYTES[dtype] > 1 else ""
            try:
                converted = convert(tokens, {**self._values_at(), **self.size_name_by_variable})
                text = converted if re.fullmatch(r"\w+", converted) else f"({converted})"
                text = f"{text}{multiplier}{divisor}" if multiplier or divisor else converted
                if self._equals_size_expression(text, count):
                    return text
            except (UnsupportedExpression, UsageError):
                continue
        return str(count)

    def _element_in_kernels(self, name: str) -> str:
        """Return the C type of a buffer's elements, from the first kernel that receives the buffer; else "float"."""
        for launched_kernel in self.launched_kernels:
            for parameter, argument in launched_kernel.argument_pairs:
                if parameter.is_pointer and self.program.buffer_name(argument) == name:
                    return launched_kernel.summary.element_types.get(parameter.name, "float")
        return "float"

    def _is_read_first(self, name: str) -> bool:
        """Return whether the first kernel that uses a buffer may read values from before the launch."""
        for launched_kernel, pointer in self._kernels_with_buffer(name):
            atomic = any(name.startswith("atomic") for name in launched_kernel.summary.body_names)
            return (
                atomic
                or pointer in launched_kernel.summary.read_pointers
                or pointer not in launched_kernel.summary.store_kinds
            )
        return True

    def _is_only_read(self, name: str) -> bool:
        """Return whether all kernels that get a buffer read it, and no kernel writes to it."""
        return all(
            pointer in launched_kernel.summary.read_pointers and pointer not in launched_kernel.summary.store_kinds
            for launched_kernel, pointer in self._kernels_with_buffer(name)
        )

    def _kernels_with_buffer(self, name: str) -> Iterator[tuple[LaunchedKernel, str]]:
        """Yield each kernel that gets a buffer, in launch order, and the name of the pointer parameter."""
        for launched_kernel in self.launched_kernels:
            for parameter, argument in launched_kernel.argument_pairs:
                if parameter.is_pointer and self.program.buffer_name(argument) == name:
                    yield launched_kernel, parameter.name

    def _pointer(
        self, launched_kernel: LaunchedKernel, parameter: Parameter, tokens: Sequence[Token]
    ) -> tuple[str, str]:
        """Return the buffer that a pointer argument points to, and the argument as header text.

        If the host code has no such buffer, a new one is added to the header.
        """
        if parameter.type.count("*") + parameter.type.count("[") > 1:
            raise UsageError(
                f"{self.path}: '{parameter.name}' of {launched_kernel.kernel.name} points to pointers, which a "
                "header cannot set; give the kernel one pointer and an index instead",
                kind="pointer-to-pointers",
                subject=parameter.name,
                value=launched_kernel.kernel.name,
            )
        name, offsets = self.program.buffer_and_offsets(tokens)
        if name:
            return self.buffer_name_by_variable[name], self._address_text(
                launched_kernel, name, offsets
            ) if offsets else f'"{self.buffer_name_by_variable[name]}"'
        name = plain_name("".join(t.text for t in tokens if t.kind == "name")) or parameter.name
        name = name if re.fullmatch(r"[A-Za-z_]\w*", name) else parameter.name
        if name not in self.buffers:
            element = launched_kernel.summary.element_types.get(parameter.name, "float")
            content = "zero" if _is_own_type(element) else "random"
            elements = str(self.given_sizes[name]) if name in self.given_sizes else ""
            self.buffers[name] = BufferTemplate(self._free_name(name), _dtype(element), elements, content)
        return self.buffers[name].name, f'"{self.buffers[name].name}"'

    def _address_text(self, launched_kernel: LaunchedKernel, name: str, offsets: Sequence[Sequence[Token]]) -> str:
        """Return an address within a buffer as header text.

        If the offset is unknown, return the address of the buffer and add a guess.
        """
        buffer_name, element_type = self.buffer_name_by_variable[name], self.program.buffers[name].element_type
        offset_tokens = product(offsets, "+")
        try:
            offset = self._evaluate(offset_tokens, launched_kernel)
        except UnsupportedExpression as error:
            reason = f"{plain_name(str(error))} cannot be read"
            self.proposal.guess(f"the offset into '{plain_name(name)}'", "0", reason)
            return f'"{buffer_name}"'
        if not offset:
            return f'"{buffer_name}"'
        elements_per_item = _item_bytes(element_type) // ELEMENT_BYTES[self.buffers[name].type]
        text = self._expression(offset_tokens, offset, launched_kernel)
        return table_of(
            {
                "buffer": f'"{buffer_name}"',
                "offset": f'"{f"({text}) * {elements_per_item}" if elements_per_item > 1 else text}"',
            }
        )


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


def _text_without_cast(tokens: Sequence[Token]) -> str:
    """Return an expression as text, without a cast before it."""
    if [token.text for token in tokens[:1]] == ["("] and (closing := closing_bracket(tokens, 0)) < len(tokens) - 1:
        tokens = tokens[closing + 1 :]
    if [token.text for token in tokens[:2]] == ["static_cast", "<"] and tokens[-1].text == ")":
        tokens = tokens[closing_angle_bracket(tokens, 1) + 2 : -1]
    return "".join(token.text for token in tokens)


def _small_size(name: str) -> int:
    """Return the size to assume for a variable that is no size of a tensor, by its name; 0 for others."""
    return ASSUMED_WINDOW if WINDOW_SIZE.search(name) else int(bool(STEP_OR_BORDER.search(name)))


def _float_value(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> float | None:
    """Return the value of a floating-point expression; None if it is unknown."""
    try:
        return float(expression.evaluate(convert(tokens, values_by_name, is_real=True), {}, True))
    except (UnsupportedExpression, UsageError):
        return None


def _dtype(element: str) -> str:
    """Return the dtype with which a header describes elements of a C type; `f32` for a structure."""
    dtype = dtype_of(element) or "f32"
    return {"bool": "u8", "u16": "i16"}.get(dtype, dtype)


def _is_own_type(element: str) -> bool:
    """Return whether the file itself defines a type, so that only zeros are known to be a valid value."""
    return not dtype_of(element)


def _item_bytes(element: str) -> int:
    return TYPE_BYTES.get(element, ELEMENT_BYTES[_dtype(element)])
