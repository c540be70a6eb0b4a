"""A file's host code as one program: its statements, launches, values and buffers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opbench.adopting.host_control_flow import first_switch_cases, follow_pointers, unroll_loops
from opbench.adopting.host_inlining import (
    ALLOCATION_FUNCTIONS,
    MAX_CALL_DEPTH,
    Inliner,
    call_in_order,
    global_shapes,
    host_functions,
    uncalled_launchers,
)
from opbench.adopting.host_launches import (
    HostLaunch,
    Parameter,
    definitions,
    launches_in,
    number_of,
    options_in,
    parameter_of,
    plain_type,
)
from opbench.source.c_expression import TYPE_BYTES, UnsupportedExpression, convert, tokens_of
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split, text_of, texts_of

HOST_VISIBLE_ALLOCATIONS = frozenset(("cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc"))
"""Allocation functions whose memory the host can write without a copy."""
VECTOR_CLASSES = frozenset(("vector", "device_vector", "host_vector"))
TENSOR_FUNCTIONS = {
    "empty": "",
    "zeros": "zero",
    "ones": "inputs",
    "full": "inputs",
    "rand": "inputs",
    "randn": "inputs",
}
"""Functions of PyTorch that allocate a tensor of a shape in braces, with who initialises its memory."""
NON_WRITING_FUNCTIONS = re.compile(
    r"(cuda|hip)[A-Z]|(if|while|for|switch|return|sizeof|printf|fprintf|assert|free)$|[A-Z_0-9]+$"
)
"""Calls that write no buffer: functions of the CUDA runtime other than copies, and error-checking macros."""
TENSOR_POINTERS = frozenset(("data_ptr", "const_data_ptr", "mutable_data_ptr"))
"""Member functions of a PyTorch tensor that return the pointer to its elements."""


@dataclass(frozen=True)
class HostBuffer:
    """Memory that the host allocates for a kernel, or a pointer parameter of the host function."""

    name: str
    element_type: str
    """The C type that the pointer points to; "" if opbench cannot read the declaration."""
    byte_count: tuple[Token, ...] = ()
    """The size in bytes as an expression; empty if the code has none."""
    element_count: tuple[Token, ...] = ()
    """The size in elements as an expression, for vectors; empty for other memory."""
    filled_by: str = ""
    """Who initialises the memory: "inputs" (the host copies or writes data), "zero" or "value" (cudaMemset), "unknown"
    (a parameter of the host function), "" (nobody)."""


@dataclass
class HostProgram:
    """The host's statements in order, with their launches, buffers and values."""

    code: tuple[Token, ...] = ()
    values_by_name: dict[str, Sequence[Token]] = field(default_factory=dict)
    launches: list[HostLaunch] = field(default_factory=list)
    buffers: dict[str, HostBuffer] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    """Parameters of the function at which the program begins; they have no values. Empty if that is `main`."""
    option_expressions: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command line can set, each with the expression that sets it."""
    device_constants: frozenset[str] = frozenset()
    """Macros and constants that device code also uses: their values cannot change."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user about launches that the program does not contain."""
    starts_at_main: bool = False

    def value(self, tokens: Sequence[Token]) -> int:
        """Return the number that an expression equals at the end of the program.

        Raises UnsupportedExpression if a variable in it has no value.
        """
        return number_of(tokens, self.values_by_name)

    def factors(self, name: str) -> list[tuple[Token, ...]]:
        """Return the factors of a buffer's number of elements, as the host code multiplies them; empty if unknown."""
        buffer = self.buffers.get(name)
        if buffer is None or not (buffer.byte_count or buffer.element_count):
            return []
        factors = self._factors(buffer.element_count or buffer.byte_count, 0)
        if buffer.element_count:
            return factors
        element_sizes = [factor for factor in factors if factor[0].text == "sizeof"]
        element_bytes = TYPE_BYTES.get(buffer.element_type, 0)
        if not element_sizes:
            element_sizes = [factor for factor in factors if not factor[1:] and factor[0].text == str(element_bytes)][
                -1:
            ]
        return [factor for factor in factors if factor not in element_sizes] if element_sizes else []

    def _factors(self, tokens: Sequence[Token], depth: int) -> list[tuple[Token, ...]]:
        factor_tokens: tuple[Token, ...] = tuple(_without_casts(tokens))
        while (
            factor_tokens
            and factor_tokens[0].text == "("
            and closing_bracket(factor_tokens, 0) == len(factor_tokens) - 1
        ):
            factor_tokens = factor_tokens[1:-1]
        if (
            len(factor_tokens) == 1
            and depth < MAX_CALL_DEPTH
            and (value := self.values_by_name.get(factor_tokens[0].text))
        ):
            inner_factors = self._factors(value, depth + 1)
            is_product = len(inner_factors) > 1 or (inner_factors and inner_factors[0][0].text == "sizeof")
            return inner_factors if is_product else _as_list(factor_tokens)
        operands = split(factor_tokens, "*")
        if (
            len(operands) < 2
            or any(not operand for operand in operands)
            or _has_operator_outside_brackets(factor_tokens, "+-/%")
        ):
            return _as_list(factor_tokens)
        return [factor for operand in operands for factor in self._factors(operand, depth + 1)]

    def bytes_of(self, name: str) -> int | None:
        """Return the number of bytes that the host allocates for a buffer; None if the number is unknown."""
        buffer = self.buffers.get(name)
        try:
            if buffer and buffer.element_count and buffer.element_type in TYPE_BYTES:
                return self.value(buffer.element_count) * TYPE_BYTES[buffer.element_type]
            return self.value(buffer.byte_count) if buffer and buffer.byte_count else None
        except UnsupportedExpression:
            return None

    def elements_of_4_bytes(self, name: str, values_by_name: Mapping[str, Sequence[Token] | str]) -> str:
        """Return a buffer's size in units of 4 bytes as an expression for a header.

        Raises UnsupportedExpression if the host code does not give the size.
        """
        buffer = self.buffers[name]
        all_values = {**self.values_by_name, **values_by_name}
        if buffer.element_count:
            return convert(buffer.element_count, all_values)
        if not buffer.byte_count:
            raise UnsupportedExpression(name)
        return f"({convert(buffer.byte_count, all_values)}) // 4"

    def buffer_name(self, tokens: Sequence[Token]) -> str:
        """Return the name of the buffer that an argument points into; "" if it points into none."""
        return self.buffer_and_offsets(tokens)[0]

    def buffer_and_offsets(self, tokens: Sequence[Token]) -> tuple[str, tuple[tuple[Token, ...], ...]]:
        """Return the name of the buffer that an argument points into, and the offsets that are added to its address.

        Offsets count elements. An offset from a pointer to bytes is returned as the name of the pointer's type.
        """
        offsets: list[tuple[Token, ...]] = []
        for _ in range(MAX_CALL_DEPTH + 2):
            if (member_path := _member_path(tokens)) in self.buffers:
                return member_path, tuple(offsets)
            tokens_without_casts = _without_casts(tokens)
            names = [i for i, token in enumerate(tokens_without_casts) if token.kind == "name"]
            base = next((i for i in names if tokens_without_casts[i].text in self.buffers), -1)
            base = (
                base
                if base >= 0
                else next((i for i in names if tokens_without_casts[i].text in self.values_by_name), -1)
            )
            if base < 0:
                return "", ()
            added_offsets = _offsets_from(tokens_without_casts, base)
            byte_types = [token for token in tokens if token.text in ("char", "void", "uint8_t")]
            offsets += [tuple(byte_types)] if added_offsets and byte_types else added_offsets
            if tokens_without_casts[base].text in self.buffers:
                return tokens_without_casts[base].text, tuple(offsets)
            tokens = self.values_by_name[tokens_without_casts[base].text]
        return "", ()


def _offsets_from(tokens: Sequence[Token], pointer_index: int) -> list[tuple[Token, ...]]:
    """Return the offsets of an address from the pointer at an index: `i` for `&d[i]`, `n` for `d + n`.

    `d[i]` without `&` is an element of an array of pointers, so `i` is no offset.
    """
    result: list[tuple[Token, ...]] = []
    index = pointer_index + 1
    if index < len(tokens) and tokens[index].text == "[":
        closing = closing_bracket(tokens, index)
        result += (
            [tuple(tokens[index + 1 : closing])] if any(token.text == "&" for token in tokens[:pointer_index]) else []
        )
        index = closing + 1
    start = index
    while index < len(tokens) and tokens[index].text not in (")", "]", "?", ":"):
        index = closing_bracket(tokens, index) + 1 if tokens[index].text in ("(", "[") else index + 1
    if start < index and tokens[start].text in "+-":
        result.append(tuple(tokens[start + (tokens[start].text == "+") : index]))
    return [offset for offset in result if texts_of(offset) != ["0"]]


def product(factors: Sequence[Sequence[Token]], sign: str = "*") -> tuple[Token, ...]:
    """Return the tokens of a product of factors, or of a sum if `sign` is "+"; empty without factors."""
    tokens: list[Token] = []
    for factor in factors:
        tokens += [Token("mark", sign, -1)] if tokens else []
        tokens += [Token("mark", "(", -9), *factor, Token("mark", ")", -9)]
    return tuple(tokens)


def _as_list(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    return [tokens] if tokens else []


def _has_operator_outside_brackets(tokens: Sequence[Token], operators: str) -> bool:
    """Return whether a one-character operator in `operators` occurs outside of all brackets."""
    index = 0
    while index < len(tokens):
        if tokens[index].kind == "mark" and tokens[index].text in "([{":
            index = closing_bracket(tokens, index)
        elif tokens[index].kind == "mark" and tokens[index].text in operators:
            return True
        index += 1
    return False


DEVICE_QUERY = re.compile(r"^cuda(Occupancy|Device|Get|Set)\w*$")
"""Functions of the CUDA runtime that store a property of the device in a variable whose address they get."""
ASSUMED_DEVICE_PROPERTIES = {
    "multiProcessorCount": "8",
    "warpSize": "32",
    "maxThreadsPerBlock": "1024",
    "maxThreadsPerMultiProcessor": "2048",
}
"""Values of device properties that the CPU backend assumes."""


def assumed_device_values(code: Sequence[Token]) -> dict[str, str]:
    """Return assumed values for the device properties that host code queries, such as the number of multiprocessors."""
    values = {"true": "1", "false": "0", "NULL": "0", "nullptr": "0"}
    for index, token in enumerate(code[:-2]):
        if token.text in ASSUMED_DEVICE_PROPERTIES and index > 1 and code[index - 1].text == ".":
            values[f"{code[index - 2].text}.{token.text}"] = ASSUMED_DEVICE_PROPERTIES[token.text]
        if DEVICE_QUERY.match(token.text) and code[index + 1].text == "(":
            for argument in split(code[index + 2 : closing_bracket(code, index + 1)], ","):
                if texts_of(argument[:1]) == ["&"] and len(argument) == 2:
                    values[argument[1].text] = "256" if "lockSize" in token.text else "2"
    return values


def program_of(
    all_declarations: Sequence[Declaration],
    constants: Mapping[str, Sequence[Token]],
    in_order: bool = False,
    entry_points: Sequence[str] = (),
) -> HostProgram:
    """Return the host code from `main`, or from the first function that launches a kernel, with calls inlined.

    `constants` are values that are defined outside of functions. `in_order` unrolls counted loops that launch, takes
    one case of each `switch`, and follows pointers that are assigned or swapped between launches. `entry_points` names
    functions that run one after the other instead. Without a launch, the program has none.
    """
    functions = host_functions(all_declarations)
    device_names = {name for declaration in all_declarations if declaration.is_device for name in declaration.uses}
    shapes = global_shapes(all_declarations)
    inliner = Inliner(functions, frozenset(shapes))
    first_program: HostProgram | None = None
    global_code = tuple(token for shape in shapes for token in tokens_of(f"dim3 {shape};"))
    if entry_points:
        starts = [call_in_order([functions[name] for name in entry_points])]
    else:  # also start at launchers that nothing calls: `main` may call them through a pointer
        starts = [functions[name] for name in ("main", *uncalled_launchers(all_declarations)) if name in functions]
    for start in starts:
        code = (*global_code, *inliner.statements_of(start))
        if start.name != "main" and "main" in functions:  # `main` can set sizes before it passes a function on.
            code = (*global_code, *inliner.statements_of(functions["main"]), *inliner.statements_of(start))
        notes: list[str] = []
        if in_order:
            code = unroll_loops(first_switch_cases(code, notes), constants, notes)
        values_by_name = {**constants, **definitions(code)}
        program = HostProgram(
            code,
            values_by_name,
            launches_in(code, values_by_name),
            {},
            () if start.name == "main" else tuple(map(parameter_of, start.parameters())),
            options_in(code),
            frozenset(device_names & constants.keys()),
            notes,
            start.name == "main",
        )
        program.buffers = _buffers(program, all_declarations)
        if in_order:
            program.launches = launches_in(follow_pointers(code, program.buffers), values_by_name)
        if program.launches:
            return program
        first_program = first_program or program
    return first_program or HostProgram()


# Buffers ----------------------------------------------------------------------------------------------------------


def _without_casts(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens of an argument without casts, such as `(float*)` and `reinterpret_cast<float*>`."""
    result: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "(" and (closing := closing_bracket(tokens, index)) < len(tokens) - 1:
            bracketed = tokens[index + 1 : closing]
            if bracketed and bracketed[-1].text == "*":
                index = closing + 1
                continue
        if token.text.endswith("_cast") and index + 1 < len(tokens) and tokens[index + 1].text == "<":
            index = closing_angle_bracket(tokens, index + 1) + 1
            continue
        result.append(token)
        index += 1
    return result


def _member_path(tokens: Sequence[Token]) -> str:
    """Return a member access such as `list.items` or `list->items`; "" for other tokens."""
    texts = [token.text for token in _without_casts(tokens) if token.text != "&"]
    is_path = len(texts) > 2 and all(text in (".", "->") for text in texts[1::2]) and len(texts) % 2 == 1
    return ".".join(texts[::2]) if is_path else ""


def _variable_name(tokens: Sequence[Token]) -> str:
    """Return the member access or the first name in an expression; "" if there is none."""
    if path := _member_path(tokens):
        return path
    return next((token.text for token in _without_casts(tokens) if token.kind == "name"), "")


def _buffers(program: HostProgram, all_declarations: Sequence[Declaration]) -> dict[str, HostBuffer]:
    """Return the program's buffers by name: pointers that are allocated, and pointers that the host function gets.

    Each buffer says who initialises its memory.
    """
    code, buffers = program.code, program.buffers
    element_types = _pointer_types(code)
    for declaration in all_declarations:
        if declaration.kind == "other" and not declaration.is_device:
            element_types |= _pointer_types((Token("mark", ";", 0), *declaration.tokens))
    for parameter in program.parameters:
        if parameter.is_pointer:
            buffers[parameter.name] = HostBuffer(parameter.name, plain_type(parameter.type), filled_by="unknown")
    _add_tensors_of_pointers(program)
    for index, token in enumerate(code[:-1]):
        next_text = code[index + 1].text
        if token.text in ALLOCATION_FUNCTIONS and next_text in ("(", "<"):
            opening = closing_angle_bracket(code, index + 1) + 1 if next_text == "<" else index + 1
            arguments = split(code[opening + 1 : closing_bracket(code, opening)], ",")
            if len(arguments) > ALLOCATION_FUNCTIONS[token.text]:
                name = _allocated_pointer(program, arguments[0])
                if name:
                    filled_by = "host" if token.text in HOST_VISIBLE_ALLOCATIONS else ""
                    buffers[name] = HostBuffer(name, element_types.get(name, ""), arguments[1], filled_by=filled_by)
        elif token.text in VECTOR_CLASSES and next_text == "<":
            _add_vector(program, index)
        elif token.text in TENSOR_FUNCTIONS and texts_of(code[index + 1 : index + 3]) == ["(", "{"]:
            _add_tensor(program, index)
    _mark_memory_filled_by_calls(
        program, {declaration.name for declaration in all_declarations if declaration.kind == "function"}
    )
    _mark_managed_memory(program)
    return buffers


def _mark_memory_filled_by_calls(program: HostProgram, own_functions: Collection[str]) -> None:
    """Mark buffers that copies initialise, and buffers that functions of other files may initialise."""
    code, buffers = program.code, program.buffers
    for index, token in enumerate(code[:-1]):
        if token.kind != "name" or code[index + 1].text != "(" or (index and code[index - 1].text in (">>>", "::")):
            continue
        arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
        if token.text in ("cudaMemcpy", "cudaMemcpyAsync", "cudaMemset"):
            _mark_destination(program, token.text, arguments)
        elif token.text not in own_functions and not NON_WRITING_FUNCTIONS.match(token.text):
            for argument in arguments:  # A function of a library or of another file may write the buffer.
                name = next((token.text for token in argument if token.kind == "name"), "")
                if name in buffers and not buffers[name].filled_by and len(argument) <= 2:
                    buffers[name] = replace(buffers[name], filled_by="inputs")


def _allocated_pointer(program: HostProgram, tokens: Sequence[Token]) -> str:
    """Return the pointer that an allocation sets: `&d_a`, `(void**)&d_a`, or a parameter that stands for `&d_a`."""
    name = _variable_name(tokens)
    by_address = any(token.text == "&" for token in tokens)
    for _ in range(MAX_CALL_DEPTH):
        value = program.values_by_name.get(name, ())
        if by_address or not value or not any(token.text == "&" for token in value[:1]):
            break
        name, by_address = _variable_name(value), False
    return name


def _add_vector(program: HostProgram, index: int) -> None:
    """Add the buffer of a vector that is declared at `index`, as in `thrust::device_vector<T> name(count, value)`.

    For a vector in host memory, only the size becomes known.
    """
    code, buffers = program.code, program.buffers
    closing = closing_angle_bracket(code, index + 1)
    if closing + 2 >= len(code) or code[closing + 2].text not in ("(", "{"):
        return
    name = code[closing + 1].text
    arguments = split(code[closing + 3 : closing_bracket(code, closing + 2)], ",")
    if arguments:
        program.values_by_name[f"{name}.size"] = arguments[0]
    if arguments and code[index].text == "device_vector":
        element_type = " ".join(token.text for token in code[index + 2 : closing])
        buffers[name] = HostBuffer(name, element_type, element_count=arguments[0], filled_by="inputs")


def _add_tensor(program: HostProgram, index: int) -> None:
    """Add the buffer of a tensor whose allocation is called at `index`, as in `auto out = torch::empty({rows, n})`."""
    code = program.code
    equals = index - 1
    while equals > 0 and (code[equals].text == "::" or code[equals].text in ("torch", "at")):
        equals -= 1
    if code[equals].text == "=" and equals and code[equals - 1].kind == "name":
        name = code[equals - 1].text
        count = product(split(code[index + 3 : closing_bracket(code, index + 2)], ","))
        if count:
            filled_by = TENSOR_FUNCTIONS[code[index].text]
            program.buffers[name] = HostBuffer(name, "", element_count=count, filled_by=filled_by)


def _add_tensors_of_pointers(program: HostProgram) -> None:
    """Add a buffer for each tensor whose pointer the code takes, as in `x.data_ptr<float>()`."""
    values = program.values_by_name
    for tensor, dot, method in zip(program.code, program.code[1:], program.code[2:], strict=False):
        if dot.text == "." and method.text in TENSOR_POINTERS and tensor.kind == "name":
            name = tensor.text
            for _ in range(MAX_CALL_DEPTH):  # The argument of an inlined function has another name there.
                value = values.get(name, ())
                name = value[0].text if len(value) == 1 and value[0].kind == "name" else name
            function = next((token.text for token in value if token.text.endswith("_like")), "")
            filled_by = TENSOR_FUNCTIONS.get(function.removesuffix("_like"), "unknown")
            program.buffers.setdefault(name, HostBuffer(name, "", filled_by=filled_by))


def _mark_destination(program: HostProgram, function_name: str, arguments: Sequence[Sequence[Token]]) -> None:
    """Mark the buffer that a call of cudaMemcpy or cudaMemset initialises."""
    buffers = program.buffers
    if function_name == "cudaMemset" and arguments and (name := program.buffer_name(arguments[0])):
        is_zero = text_of(arguments[1]) == "0" if len(arguments) > 1 else False
        buffers[name] = replace(buffers[name], filled_by=buffers[name].filled_by or ("zero" if is_zero else "value"))
    elif len(arguments) > 1:
        destination = program.buffer_name(arguments[0])
        copy_kind = arguments[3][-1].text if len(arguments) > 3 and arguments[3] else ""
        if destination and copy_kind != "cudaMemcpyDeviceToHost":
            buffers[destination] = replace(buffers[destination], filled_by="inputs")


def _mark_managed_memory(program: HostProgram) -> None:
    """Mark all managed and pinned memory as initialised by the host, which can write it without a copy."""
    code, buffers = program.code, program.buffers
    for index, token in enumerate(code[:-1]):
        name = token.text
        if name in buffers and buffers[name].filled_by == "host":
            continue
        alias = program.buffer_name((token,)) if token.kind == "name" and token.text in program.values_by_name else name
        if alias in buffers and buffers[alias].filled_by == "host" and code[index + 1].text == "[":
            buffers[alias] = replace(buffers[alias], filled_by="inputs")
    for name, buffer in buffers.items():
        if buffer.filled_by == "host":  # A function or a loop of the file may write it.
            buffers[name] = replace(buffer, filled_by="inputs")


def _pointer_types(code: Sequence[Token]) -> dict[str, str]:
    """Return the element types of declared pointers, as in `float *a, *b = nullptr;`."""
    result: dict[str, str] = {}
    for index, token in enumerate(code[:-1]):
        if token.text != "*" or code[index + 1].kind != "name":
            continue
        index_before = index - 1
        while index_before >= 0 and code[index_before].text == "*":
            index_before -= 1
        type_words: list[str] = []
        while index_before >= 0 and (code[index_before].kind == "name" or code[index_before].text == "::"):
            type_words.insert(0, code[index_before].text)
            index_before -= 1
        starts_declaration = index_before < 0 or code[index_before].text in (";", "{", "}", "(", ",", ">")
        next_text = code[index + 2].text if index + 2 < len(code) else ";"
        if type_words and starts_declaration and next_text in (";", ",", "=", ")", "["):
            result.setdefault(code[index + 1].text, plain_type(" ".join(type_words)))
        elif not type_words and index_before >= 0 and code[index_before].text == "," and next_text in (";", ",", "="):
            previous_pointer = next((n for n in (t.text for t in reversed(code[:index_before])) if n in result), "")
            if previous_pointer:
                result.setdefault(code[index + 1].text, result[previous_pointer])
    return result
