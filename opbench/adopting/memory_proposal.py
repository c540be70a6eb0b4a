"""Propose a header without an operator: read the launches, buffers and sizes of host code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opbench.adopting.assumed_values import ASSUMED_ONLY_SIZE, ASSUMED_UNLAUNCHED_SIZE, assume_sizes, assumed_program
from opbench.adopting.host_inlining import uncalled_launchers
from opbench.adopting.host_launches import Parameter, plain_name, plain_type
from opbench.adopting.host_program import HostBuffer, HostProgram, assumed_device_values, product
from opbench.adopting.host_structs import sizes_of
from opbench.adopting.host_values import HostValues, float_value
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
from opbench.kernels.memory_header import NO_OPERATOR, BufferTemplate, buffer_text, is_identifier, table_of
from opbench.kernels.pointer_types import C_TYPES, dtype_of
from opbench.kernels.scalar import ELEMENT_BYTES, FLOATS
from opbench.paths import next_command
from opbench.source.c_expression import TYPE_BYTES, UnsupportedExpression, convert, tokens_of
from opbench.source.tokens import Token, texts_of


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
    only_size = ASSUMED_ONLY_SIZE
    if not launches:
        program, only_size = assumed_program(file), ASSUMED_UNLAUNCHED_SIZE
        launches = program.launches
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
    sizes_of_structs = {f"sizeof {name}": str(size) for name, size in sizes_of(file.structs).items()}
    values = HostValues(program, launched_kernels, sizes_of_structs)
    known_names = set(map(plain_name, values.names()))
    given_sizes = {name: size for name, size in (sizes or {}).items() if are_sizes_known or name in known_names}
    _Writer(path, proposal, values, given_sizes, only_size).write()
    return proposal


@dataclass
class _Writer:
    """Write a header's lines from a host program, with numbers as expressions of the header's sizes."""

    path: Path
    proposal: Proposal
    values: HostValues
    given_sizes: dict[str, int]
    """Sizes that the user passed, by name."""
    only_size: int
    """The value to assume for a size if the file gives no other size either."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes in the header by name, with their values in the host code."""
    size_name_by_variable: dict[str, str] = field(default_factory=dict)
    """Host variables that become sizes of the header, each with the size's name."""
    buffer_name_by_variable: dict[str, str] = field(default_factory=dict)
    """Host buffers, each with the name of its buffer in the header."""
    buffers: dict[str, BufferTemplate] = field(default_factory=dict)

    def write(self) -> None:
        """Write the lines of the proposed header."""
        device_properties = assumed_device_values(self.values.program.code)
        self.values.replacement_values |= {
            name: value
            for name, value in device_properties.items()
            if name not in self.values.program.values_by_name or self.values.is_undefined(name)
        }
        self._apply_given_sizes()
        assume_sizes(self.values, self.proposal, self.only_size)
        self._name_sizes()
        for name, buffer in self.values.program.buffers.items():
            self.buffer_name_by_variable[name] = self._free_name(plain_name(name).replace(".", "_"))
            self.buffers[name] = self._buffer_template(name, buffer)
        launches = [self._launch(launched_kernel) for launched_kernel in self.values.launched_kernels]
        used_names = {name for _, pointers in launches for name in pointers}
        used_buffers = [buffer for buffer in self.buffers.values() if buffer.name in used_names]
        launch_entries = [text for text, _ in launches]
        text = "\n".join([*launch_entries, *(template.elements for template in used_buffers)])
        used_sizes = {name: str(value) for name, value in self.sizes.items() if re.search(rf"\b{name}\b", text)}
        self.proposal.lines = [f'operator = "{NO_OPERATOR}"', f'title = "{self.path.stem}"']
        self.proposal.lines += [f"sizes = {table_of(used_sizes)}"] if used_sizes else []
        self.proposal.lines += ["launch = [", *(f"  {entry}," for entry in launch_entries), "]"]
        if used_buffers:
            self.proposal.lines += ["[buffers]", *(f"{buffer.name} = {buffer_text(buffer)}" for buffer in used_buffers)]

    # Sizes ------------------------------------------------------------------------------------------------------------

    def _apply_given_sizes(self) -> None:
        """Use the sizes that the user passed instead of those in the file; raise UsageError for an unknown name."""
        variables_by_plain_name: dict[str, list[str]] = {}
        for name in self.values.names():
            variables_by_plain_name.setdefault(plain_name(name), []).append(name)
        for name, value in self.given_sizes.items():
            if name not in variables_by_plain_name:
                place = f"{self.path}: --size"
                raise UsageError(
                    unknown_name("variable of the host's code", name, variables_by_plain_name, place=place)
                )
            self.values.replacement_values |= dict.fromkeys(variables_by_plain_name[name], str(value))

    def _name_sizes(self) -> None:
        """Add each host variable that has the same whole number at every launch to the header's sizes."""
        template_names = {
            token
            for launched_kernel in self.values.launched_kernels
            for token in re.findall(r"[\w$]+", launched_kernel.host_launch.template)
        }
        # Variables of inlined functions, whose names have a "$", come last.
        for name in sorted(self.values.needed_variables(), key=lambda name: "$" in name):
            value = self.values.program.values_by_name.get(name, ())
            is_literal = bool(value) and all(t.kind == "number" or t.text in "()*<+-" for t in value)
            if (
                name in template_names
                or name in self.values.program.buffers
                or not (is_literal or name in self.values.replacement_values)
                or self.values.differs_at_a_launch(name)
            ):
                continue
            try:
                number = self.values.evaluate((Token("name", name, 0),))
            except UnsupportedExpression:  # A float cannot be a size.
                continue
            size_name = plain_name(name)
            if number > 1 and is_identifier(size_name):
                is_free_or_equal = self.sizes.get(size_name, number) == number
                self.size_name_by_variable[name] = size_name if is_free_or_equal else self._free_name(size_name)
                self.sizes[self.size_name_by_variable[name]] = number

    def _free_name(self, preferred_name: str) -> str:
        """Return `preferred_name`, with a number at the end if a size or buffer of the header already has it."""
        buffer_names = (buffer.name for buffer in self.buffers.values())
        used_names = {*self.sizes, *self.buffer_name_by_variable.values(), *buffer_names}
        base_name = re.sub(r"\W", "_", preferred_name)
        candidates = (base_name, *(f"{base_name}_{i}" for i in range(2, 10_000)))
        return next(candidate for candidate in candidates if candidate not in used_names)

    # Expressions ------------------------------------------------------------------------------------------------------

    def _size_text(
        self, tokens: Sequence[Token], subject: str, name: str, launched_kernel: LaunchedKernel | None = None
    ) -> str:
        """Return a host expression as an expression of the header's sizes, or as a number.

        `subject` says in the error what the expression is, and `name` is its name or text. Raises UsageError with the
        option to pass if the value is unknown.
        """
        try:
            number = self.values.evaluate(tokens, launched_kernel)
        except UnsupportedExpression as error:
            variable = self.values.unknown_variable(tokens, launched_kernel) or name
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
        for launched_kernel in self.values.launched_kernels:
            if name in (sizes := self.values.block_sizes(launched_kernel)):
                return sizes[name]
        return ASSUMED_UNLAUNCHED_SIZE

    def _expression(self, tokens: Sequence[Token], number: int, launched_kernel: LaunchedKernel | None = None) -> str:
        """Return a host expression as an expression of the header's sizes, if that equals `number`; else the number."""
        try:
            text = plain_quotient(convert(tokens, {**self.values.at(launched_kernel), **self.size_name_by_variable}))
            return text if self._equals_size_expression(text, number) else str(number)
        except (UnsupportedExpression, UsageError):
            return str(number)

    def _equals_size_expression(self, text: str, number: int) -> bool:
        """Return whether an expression contains sizes of the header and equals a number."""
        return bool(expression.names(text)) and int(expression.evaluate(text, self.sizes)) == number

    # Launches ---------------------------------------------------------------------------------------------------------

    def _launch(self, launched_kernel: LaunchedKernel) -> tuple[str, list[str]]:
        """Return a launch as header text, and the buffers that it receives."""
        launch = launched_kernel.host_launch
        dimension_texts = []
        for dimension, dimension_tokens in zip(("grid", "block"), launch.configuration, strict=False):
            text = "".join(plain_name(token.text) for token in dimension_tokens)
            subject, all_values = f"{dimension} '{text}' of {launch.kernel}", self.values.at(launched_kernel)
            components = grid_components(dimension_tokens, {**all_values, **self.size_name_by_variable})
            dimension_texts.append([self._size_text(c, subject, text, launched_kernel) for c in components])
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
                if argument_group.is_struct and buffer and text != f'"{buffer}"':
                    reason = "an address in a structure cannot have an offset"
                    self.proposal.guess(f"the offset into '{buffer}'", "0", reason)
                    text = f'"{buffer}"'
                field_texts.append(text)
            args.append(f"{{ struct = [{', '.join(field_texts)}] }}" if argument_group.is_struct else field_texts[0])
        replacement_tokens = {name: tokens_of(value) for name, value in self.values.replacement_values.items()}
        kernel_text = launched_kernel.kernel.qualified_name + template_arguments(
            launched_kernel, self.values.at(launched_kernel) | replacement_tokens
        )
        grid, block = dimension_texts
        return launch_text(kernel_text, grid, block, shared, args, launch.cooperative), pointers

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
        token_texts = texts_of(tokens)
        if token_texts in (["true"], ["false"]):
            return "", token_texts[0]
        if dtype in FLOATS:
            return "", table_of({dtype: self._float_text(tokens, parameter, launched_kernel)})
        subject = f"argument '{parameter.name}' of {launched_kernel.kernel.name}"
        size_text = self._size_text(tokens, subject, parameter.name, launched_kernel)
        return "", f'"{size_text}"' if dtype == "i32" else table_of({dtype: f'"{size_text}"'})

    def _float_text(self, tokens: Sequence[Token], parameter: Parameter, launched_kernel: LaunchedKernel) -> str:
        """Return a floating-point argument as header text; 1.0 if its value is unknown."""
        all_values = self.values.at(launched_kernel)
        number = float_value(tokens, all_values)
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

    # Buffers ----------------------------------------------------------------------------------------------------------

    def _bytes(self, buffer: HostBuffer) -> int | None:
        """Return the number of bytes that the host allocates for a buffer; None if the number is unknown."""
        if buffer.name in self.values.replacement_values:
            return int(self.values.replacement_values[buffer.name]) * _item_bytes(buffer.element_type)
        try:
            if buffer.byte_count:
                return self.values.evaluate(buffer.byte_count)
            if buffer.element_count:
                return self.values.evaluate(buffer.element_count) * _item_bytes(buffer.element_type)
        except UnsupportedExpression as error:
            name = plain_name(buffer.name)
            reason = f"opbench cannot read {plain_name(str(error))}; pass the size with --size {name}=…"
            self.proposal.guess(f"the size of '{name}'", "large enough; bounds are not checked", reason)
        return None

    def _buffer_template(self, name: str, buffer: HostBuffer) -> BufferTemplate:
        """Return a buffer's entry in the header."""
        alias_tokens = self.values.program.values_by_name.get(buffer.element_type, ())
        if alias_tokens and all(token.kind == "name" for token in alias_tokens):  # The type is a typedef or a macro.
            buffer = replace(buffer, element_type=" ".join(token.text for token in alias_tokens))
        if not buffer.element_type:
            buffer = replace(buffer, element_type=self._element_in_kernels(name))
        for launched_kernel in self.values.launched_kernels:
            if template_type := launched_kernel.template_types.get(plain_name(buffer.element_type)):
                buffer = replace(buffer, element_type=" ".join(token.text for token in template_type))
        dtype, size_bytes = _dtype(buffer.element_type), self._bytes(buffer)
        if size_bytes is not None and size_bytes % ELEMENT_BYTES[dtype]:
            dtype = "u8"
        content = {"zero": "zero", "": "uninitialised"}.get(buffer.filled_by, "random")
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
        elements = ""
        if size_bytes is not None:
            elements = self._elements(name, buffer, max(1, size_bytes // ELEMENT_BYTES[dtype]), dtype)
        return BufferTemplate(self.buffer_name_by_variable[name], dtype, elements, content)

    def _elements(self, name: str, buffer: HostBuffer, count: int, dtype: str) -> str:
        """Return the number of elements of a buffer as an expression of the sizes."""
        if name in self.values.replacement_values:
            return str(count)
        elements_per_item = _item_bytes(buffer.element_type) // ELEMENT_BYTES[dtype]
        element_tokens = product(self.values.program.factors(name)) or buffer.element_count
        for tokens, multiplier in (
            (element_tokens, f" * {elements_per_item}" if elements_per_item > 1 else ""),
            (buffer.byte_count, ""),
        ):
            if not tokens:
                continue
            divisor = f" // {ELEMENT_BYTES[dtype]}" if tokens is buffer.byte_count and ELEMENT_BYTES[dtype] > 1 else ""
            try:
                converted = convert(tokens, {**self.values.at(), **self.size_name_by_variable})
                text = converted if re.fullmatch(r"\w+", converted) else f"({converted})"
                text = f"{text}{multiplier}{divisor}" if multiplier or divisor else converted
                if self._equals_size_expression(text, count):
                    return text
            except (UnsupportedExpression, UsageError):
                continue
        return str(count)

    def _element_in_kernels(self, name: str) -> str:
        """Return the C type of a buffer's elements, from the first kernel that receives the buffer; else "float"."""
        for launched_kernel, pointer in self._kernels_with_buffer(name):
            return launched_kernel.summary.element_types.get(pointer, "float")
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
        """Yield each launched kernel, in launch order, with each of its pointer parameters that gets the buffer."""
        for launched_kernel in self.values.launched_kernels:
            for parameter, argument in launched_kernel.argument_pairs:
                if parameter.is_pointer and self.values.program.buffer_name(argument) == name:
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
        name, offsets = self.values.program.buffer_and_offsets(tokens)
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
        buffer_name, element_type = self.buffer_name_by_variable[name], self.values.program.buffers[name].element_type
        offset_tokens = product(offsets, "+")
        try:
            offset = self.values.evaluate(offset_tokens, launched_kernel)
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


def _dtype(element: str) -> str:
    """Return the dtype with which a header describes elements of a C type; `f32` for a structure."""
    dtype = dtype_of(element) or "f32"
    return {"bool": "u8", "u16": "i16"}.get(dtype, dtype)


def _is_own_type(element: str) -> bool:
    """Return whether the file itself defines a type, so that only zeros are known to be a valid value."""
    return not dtype_of(element)


def _item_bytes(element: str) -> int:
    return TYPE_BYTES.get(element, ELEMENT_BYTES[_dtype(element)])
