"""A file's host code as one list of statements, with functions that launch kernels inlined at their calls."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from opbench.adopting.host_turns import first_switch_cases, follow_pointers, unroll_loops
from opbench.source.c_expression import SIZES, UnsupportedExpression, convert, tokens_of
from opbench.source.names import NOT_A_TYPE, local_names
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split

ALLOCATION_FUNCTIONS = {
    "cudaMalloc": 1, "cudaMallocManaged": 1, "cudaMallocHost": 1, "cudaHostAlloc": 1, "cudaMallocAsync": 1,
    "hipMalloc": 1,
}  # fmt: skip
"""Functions that give memory to the pointer in their first argument, with the argument that counts its bytes."""
HOST_VISIBLE_ALLOCATIONS = frozenset(("cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc"))
"""Those whose memory the host may fill without a copy."""
VECTOR_CLASSES = frozenset(("vector", "device_vector", "host_vector"))
NON_WRITING_FUNCTIONS = re.compile(
    r"(cuda|hip)[A-Z]|(if|while|for|switch|return|sizeof|printf|fprintf|assert|free)$|[A-Z_0-9]+$"
)
"""Names of calls that fill no memory: functions of the CUDA runtime other than copies, and error-checking macros."""
TYPENAMES = ("typename", "class")
MAX_CALL_DEPTH = 8
"""Calls within calls that are put where they are called."""


@dataclass(frozen=True)
class HostBuffer:
    """Memory that the host allocates for a kernel, or a pointer parameter of the host function."""

    name: str
    element: str
    """The C type that the pointer points to; "" where its declaration cannot be read."""
    bytes: tuple[Token, ...] = ()
    """An expression of its size in bytes; empty where there is none to be read."""
    elements: tuple[Token, ...] = ()
    """The same in elements, of `new` and of vectors."""
    filled: str = ""
    """ "inputs" where the host copies or writes something into it, "zero" or "value" by cudaMemset, "" by nobody."""


@dataclass
class HostProgram:
    """The host's statements in order, with their launches, buffers and values."""

    code: tuple[Token, ...] = ()
    known: dict[str, Sequence[Token]] = field(default_factory=dict)
    launches: list[HostLaunch] = field(default_factory=list)
    buffers: dict[str, HostBuffer] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    """Of the function that it begins with, where no call in the file gives them values."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command line can change, with what it changes them by."""
    fixed: frozenset[str] = frozenset()
    """Names that the device's code uses, too: macros and constants."""
    notes: list[str] = field(default_factory=list)
    """The launches that are left out, for the user."""

    def value(self, tokens: Sequence[Token]) -> int:
        """Return the number that an expression equals at the end of the program; raise Unreadable."""
        return number_of(tokens, self.known)

    def factors(self, name: str) -> list[tuple[Token, ...]]:
        """Return the factors of the number of elements of a buffer, from the host's product; empty if unknown."""
        buffer = self.buffers.get(name)
        if buffer is None or not (buffer.bytes or buffer.elements):
            return []
        parts = self._factors(buffer.elements or buffer.bytes, 0)
        if buffer.elements:
            return parts
        of_type = [p for p in parts if p[0].text == "sizeof"]
        size = SIZES.get(buffer.element, 0)
        if not of_type:
            of_type = [p for p in parts if not p[1:] and p[0].text == str(size)][-1:]
        return [p for p in parts if p not in of_type] if of_type else []

    def _factors(self, tokens: Sequence[Token], depth: int) -> list[tuple[Token, ...]]:
        factor_tokens: tuple[Token, ...] = tuple(_without_casts(tokens))
        while (
            factor_tokens
            and factor_tokens[0].text == "("
            and closing_bracket(factor_tokens, 0) == len(factor_tokens) - 1
        ):
            factor_tokens = factor_tokens[1:-1]
        if len(factor_tokens) == 1 and depth < MAX_CALL_DEPTH and (value := self.known.get(factor_tokens[0].text)):
            inner = self._factors(value, depth + 1)
            is_product = len(inner) > 1 or (inner and inner[0][0].text == "sizeof")
            return inner if is_product else _one(factor_tokens)
        parts = split(factor_tokens, "*")
        if len(parts) < 2 or any(not part for part in parts) or _has_outer(factor_tokens, "+-/%"):
            return _one(factor_tokens)
        return [factor for part in parts for factor in self._factors(part, depth + 1)]

    def bytes_of(self, name: str) -> int | None:
        """Return the number of bytes that the host allocates for a buffer; None if the number is unknown."""
        buffer = self.buffers.get(name)
        try:
            if buffer and buffer.elements and buffer.element in SIZES:
                return self.value(buffer.elements) * SIZES[buffer.element]
            return self.value(buffer.bytes) if buffer and buffer.bytes else None
        except UnsupportedExpression:
            return None

    def elements_of_4_bytes(self, name: str, values_by_name: Mapping[str, Sequence[Token] | str]) -> str:
        """Return a buffer's size in units of 4 bytes as an expression for a header; raise Unreadable."""
        buffer = self.buffers[name]
        whole = {**self.known, **values_by_name}
        if buffer.elements:
            return convert(buffer.elements, whole)
        if not buffer.bytes:
            raise UnsupportedExpression(name)
        return f"({convert(buffer.bytes, whole)}) // 4"

    def pointer(self, tokens: Sequence[Token]) -> str:
        """Return the buffer that an argument points into, also through parameters of functions; "" for none."""
        return self.place(tokens)[0]

    def place(self, tokens: Sequence[Token]) -> tuple[str, tuple[tuple[Token, ...], ...]]:
        """Return the buffer that an argument points into, and the offset in elements."""
        offsets: list[tuple[Token, ...]] = []
        for _ in range(MAX_CALL_DEPTH + 2):
            if (path := _path(tokens)) in self.buffers:
                return path, tuple(offsets)
            left = _without_casts(tokens)
            names = [i for i, token in enumerate(left) if token.kind == "name"]
            first = next((i for i in names if left[i].text in self.buffers), -1)
            first = first if first >= 0 else next((i for i in names if left[i].text in self.known), -1)
            if first < 0:
                return "", ()
            added = _added(left, first)
            in_bytes = [token for token in tokens if token.text in ("char", "void", "uint8_t")]
            offsets += [tuple(in_bytes)] if added and in_bytes else added
            if left[first].text in self.buffers:
                return left[first].text, tuple(offsets)
            tokens = self.known[left[first].text]
        return "", ()


def _added(tokens: Sequence[Token], at: int) -> list[tuple[Token, ...]]:
    """Return the offset of an address from the pointer at a token: `i` for `&d[i]`, `n` for `d + n`.

    `d[i]` itself is an element of an array of pointers.
    """
    result: list[tuple[Token, ...]] = []
    index = at + 1
    if index < len(tokens) and tokens[index].text == "[":
        ends = closing_bracket(tokens, index)
        result += [tuple(tokens[index + 1 : ends])] if any(token.text == "&" for token in tokens[:at]) else []
        index = ends + 1
    start = index
    while index < len(tokens) and tokens[index].text not in (")", "]", "?", ":"):
        index = closing_bracket(tokens, index) + 1 if tokens[index].text in ("(", "[") else index + 1
    if start < index and tokens[start].text in "+-":
        result.append(tuple(tokens[start + (tokens[start].text == "+") : index]))
    return [one for one in result if [token.text for token in one] != ["0"]]


def product(factors: Sequence[Sequence[Token]], sign: str = "*") -> tuple[Token, ...]:
    """Join factors to a product, or terms to a sum if `sign` is "+"; return an empty text for none."""
    tokens: list[Token] = []
    for factor in factors:
        tokens += [Token("mark", sign, -1)] if tokens else []
        tokens += [Token("mark", "(", -9), *factor, Token("mark", ")", -9)]
    return tuple(tokens)


def _one(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    return [tokens] if tokens else []


def _has_outer(tokens: Sequence[Token], signs: str) -> bool:
    """Return whether one of these operators occurs outside of all brackets."""
    index = 0
    while index < len(tokens):
        if tokens[index].kind == "mark" and tokens[index].text in "([{":
            index = closing_bracket(tokens, index)
        elif tokens[index].kind == "mark" and tokens[index].text in signs:
            return True
        index += 1
    return False


DEVICE_QUERY = re.compile(r"^cuda(Occupancy|Device|Get|Set)\w*$")
"""Functions of the runtime that put what they answer into a variable whose address they get."""
ASSUMED_DEVICE_PROPERTIES = {
    "multiProcessorCount": "8",
    "warpSize": "32",
    "maxThreadsPerBlock": "1024",
    "maxThreadsPerMultiProcessor": "2048",
}
"""Properties of a device as these runs have them."""


def device_values(code: Sequence[Token]) -> dict[str, str]:
    """Return values for the device properties that a program queries, such as the number of multiprocessors."""
    found = {"true": "1", "false": "0", "NULL": "0", "nullptr": "0"}
    for index, token in enumerate(code[:-2]):
        if token.text in ASSUMED_DEVICE_PROPERTIES and index > 1 and code[index - 1].text == ".":
            found[f"{code[index - 2].text}.{token.text}"] = ASSUMED_DEVICE_PROPERTIES[token.text]
        if DEVICE_QUERY.match(token.text) and code[index + 1].text == "(":
            for part in split(code[index + 2 : closing_bracket(code, index + 1)], ","):
                if [t.text for t in part[:1]] == ["&"] and len(part) == 2:
                    found[part[1].text] = "256" if "lockSize" in token.text else "2"
    return found


def program_of(
    everything: Sequence[Declaration], constants: Mapping[str, Sequence[Token]], in_order: bool = False
) -> HostProgram:
    """Return the host code from `main`, or from the first function that launches; empty without a launch.

    `constants` are values that are defined outside of functions. `in_order` unrolls counted loops that launch,
    takes one case of each `switch`, and follows pointers that are assigned or swapped between launches.
    """
    functions = {
        declaration.name: declaration
        for declaration in everything
        if declaration.kind == "function" and not declaration.is_device
    }
    launching = [name for name, function in functions.items() if any(token.text == "<<<" for token in function.tokens)]
    called = {token.text for function in functions.values() for token in function.tokens[max(0, function.body) :]}
    own = [name for name in launching if name not in called] or launching
    roots = [*(name for name in functions if name == "main"), *own]  # main may launch by a pointer to a function
    device = {name for declaration in everything if declaration.is_device for name in declaration.uses}
    host_program: HostProgram | None = None
    for root in roots:
        root_function = functions[root]
        code = tuple(
            _flatten_calls(root_function.tokens[root_function.body + 1 :], functions, itertools.count(1), (root,))
        )
        notes: list[str] = []
        if in_order:
            code = unroll_loops(first_switch_cases(code, notes), constants, notes)
        known = {**constants, **definitions(code)}
        program = HostProgram(
            code,
            known,
            launches_in(code, known),
            {},
            () if root == "main" else tuple(map(parameter_of, root_function.parameters())),
            options_in(code),
            frozenset(device & constants.keys()),
            notes,
        )
        program.buffers = _buffers(program, everything)
        if in_order:
            program.launches = launches_in(follow_pointers(code, program.buffers), known)
        if program.launches:
            return program
        host_program = host_program or program
    return host_program or HostProgram()


def _flatten_calls(
    code: Sequence[Token], functions: Mapping[str, Declaration], numbers: Iterator[int], path: tuple[str, ...]
) -> Iterator[Token]:
    """Return the statements of a function, with calls of the file's functions replaced by their statements."""
    start = 0
    for index, token in enumerate(code):
        if token.text in functions and token.text not in path and len(path) < MAX_CALL_DEPTH and index + 1 < len(code):
            opened = closing_angle_bracket(code, index + 1) + 1 if code[index + 1].text == "<" else index + 1
            if opened < len(code) and code[opened].text == "(" and _is_of_interest(functions[token.text], functions):
                yield from code[start:index]
                ends = min(closing_bracket(code, opened), len(code) - 1)
                yield Token("mark", ";", token.start)
                template = code[index + 2 : opened - 1] if opened > index + 1 else ()
                yield from _inline_call(
                    functions[token.text], code[opened + 1 : ends], template, functions, numbers, path
                )
                yield Token("mark", ";", token.start)
                start = ends + 1
    yield from code[start:]


def _is_of_interest(declaration: Declaration, functions: Mapping[str, Declaration], depth: int = 0) -> bool:
    """Return whether a function launches, allocates or copies, directly or through functions that it calls."""
    token_texts = {token.text for token in declaration.tokens[max(0, declaration.body) :]}
    if "<<<" in token_texts or ALLOCATION_FUNCTIONS.keys() & token_texts or "cudaMemcpy" in token_texts:
        return True
    inner = [functions[word] for word in token_texts & functions.keys() if functions[word] is not declaration]
    return depth < MAX_CALL_DEPTH and any(_is_of_interest(other, functions, depth + 1) for other in inner)


def _inline_call(
    declaration: Declaration,
    argument_tokens: Sequence[Token],
    template: Sequence[Token],
    functions: Mapping[str, Declaration],
    numbers: Iterator[int],
    path: tuple[str, ...],
) -> Iterator[Token]:
    """Return a function's statements with renamed local variables, after assignments of its parameters."""
    suffix = f"${next(numbers)}"
    parameters = [parameter_of(tokens) for tokens in declaration.parameters()]
    own = (
        {p.name for p in parameters}
        | local_names(declaration.tokens)
        | _further_names(declaration.tokens[declaration.body :])
    )
    at = declaration.tokens[0].start
    declared = (
        split(declaration.tokens[2 : closing_angle_bracket(declaration.tokens, 1)], ",")
        if declaration.is_template
        else []
    )
    values = [*zip(declared, split(template, ","), strict=False)]
    named = [(parameter_of(words), value) for words, value in values if words and words[0].text not in TYPENAMES]
    for parameter, argument in (*named, *zip(parameters, split(argument_tokens, ","), strict=False)):
        yield from (
            *(token for token in tokens_of(parameter.type or "auto") if token.text != "const"),
            Token("name", parameter.name + suffix, at),
            Token("mark", "=", at),
            *argument,
            Token("mark", ";", at),
        )
    body = [
        replace(token, text=token.text + suffix) if token.kind == "name" and token.text in own else token
        for token in declaration.tokens[declaration.body + 1 : closing_bracket(declaration.tokens, declaration.body)]
    ]
    yield from _flatten_calls(body, functions, numbers, (*path, declaration.name))


def _further_names(code: Sequence[Token]) -> set[str]:
    """Return the second and later variables of declarations such as `float *a, *b = 0, **c;`."""
    result: set[str] = set()
    for index, token in enumerate(code[:-2]):
        opens = index == 0 or code[index - 1].text in (";", "{", "}", "const", "unsigned")
        after = next((token for token in code[index + 1 :] if token.text != "*"), token)
        if opens and token.kind == "name" and token.text not in NOT_A_TYPE and after.kind == "name":
            statement = code[index + 1 : next((i for i in range(index, len(code)) if code[i].text == ";"), index)]
            for part in split(statement, ",")[1:]:
                result |= {
                    token.text
                    for token in [token for token in part if token.text not in ("*", "&")][:1]
                    if token.kind == "name"
                }
    return result


# Buffers ----------------------------------------------------------------------------------------------------------


def _without_casts(tokens: Sequence[Token]) -> list[Token]:
    """Return an argument without casts, `&` and `thrust::raw_pointer_cast`."""
    left: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "(" and (ends := closing_bracket(tokens, index)) < len(tokens) - 1:
            inner = tokens[index + 1 : ends]
            if inner and inner[-1].text == "*":
                index = ends + 1
                continue
        if token.text.endswith("_cast") and index + 1 < len(tokens) and tokens[index + 1].text == "<":
            index = closing_angle_bracket(tokens, index + 1) + 1
            continue
        left.append(token)
        index += 1
    return left


def _path(tokens: Sequence[Token]) -> str:
    """Return a member access such as `list.items` or `list->items`; "" for other tokens."""
    texts = [token.text for token in _without_casts(tokens) if token.text != "&"]
    is_path = len(texts) > 2 and all(text in (".", "->") for text in texts[1::2]) and len(texts) % 2 == 1
    return ".".join(texts[::2]) if is_path else ""


def _variable(tokens: Sequence[Token]) -> str:
    if path := _path(tokens):
        return path
    return next((token.text for token in _without_casts(tokens) if token.kind == "name"), "")


def _buffers(program: HostProgram, everything: Sequence[Declaration]) -> dict[str, HostBuffer]:
    """Return every pointer that is allocated, with the content that the host gives its memory."""
    code, buffers = program.code, program.buffers
    elements = _pointer_types(code)
    for declaration in everything:
        if declaration.kind == "other" and not declaration.is_device:
            elements |= _pointer_types((Token("mark", ";", 0), *declaration.tokens))
    for parameter in program.parameters:
        if parameter.is_pointer:
            buffers[parameter.name] = HostBuffer(parameter.name, plain_type(parameter.type), filled="unknown")
    for index, token in enumerate(code[:-1]):
        after = code[index + 1].text
        if token.text in ALLOCATION_FUNCTIONS and after in ("(", "<"):
            opened = closing_angle_bracket(code, index + 1) + 1 if after == "<" else index + 1
            arguments = split(code[opened + 1 : closing_bracket(code, opened)], ",")
            if len(arguments) > ALLOCATION_FUNCTIONS[token.text]:
                name = _target_of(program, arguments[0])
                if name:
                    filled = "host" if token.text in HOST_VISIBLE_ALLOCATIONS else ""
                    buffers[name] = HostBuffer(name, elements.get(name, ""), arguments[1], filled=filled)
        elif token.text in VECTOR_CLASSES and after == "<":
            _add_vector(program, index)
    _filled_by_calls(program, {declaration.name for declaration in everything if declaration.kind == "function"})
    _filled_by_the_host(program)
    return buffers


def _filled_by_calls(program: HostProgram, known: Collection[str]) -> None:
    """Mark memory that copies fill, and memory that functions of other files may fill."""
    code, buffers = program.code, program.buffers
    for index, token in enumerate(code[:-1]):
        if token.kind != "name" or code[index + 1].text != "(" or (index and code[index - 1].text in (">>>", "::")):
            continue
        arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
        if token.text in ("cudaMemcpy", "cudaMemcpyAsync", "cudaMemset"):
            _copied(program, token.text, arguments)
        elif token.text not in known and not NON_WRITING_FUNCTIONS.match(token.text):
            for part in arguments:  # a library's function, or one of another file, may fill it
                name = next((token.text for token in part if token.kind == "name"), "")
                if name in buffers and not buffers[name].filled and len(part) <= 2:
                    buffers[name] = replace(buffers[name], filled="inputs")


def _target_of(program: HostProgram, tokens: Sequence[Token]) -> str:
    """Return the pointer that an allocation fills: `&d_a`, `(void**)&d_a`, or a parameter that stands for `&d_a`."""
    name = _variable(tokens)
    by_address = any(token.text == "&" for token in tokens)
    for _ in range(MAX_CALL_DEPTH):
        value = program.known.get(name, ())
        if by_address or not value or not any(token.text == "&" for token in value[:1]):
            break
        name, by_address = _variable(value), False
    return name


def _add_vector(program: HostProgram, index: int) -> None:
    """Add the buffer of `thrust::device_vector<T> name(count)` or `(count, value)`; for a host vector only its size."""
    code, buffers = program.code, program.buffers
    ends = closing_angle_bracket(code, index + 1)
    if ends + 2 >= len(code) or code[ends + 2].text not in ("(", "{"):
        return
    name = code[ends + 1].text
    arguments = split(code[ends + 3 : closing_bracket(code, ends + 2)], ",")
    if arguments:
        program.known[f"{name}.size"] = arguments[0]
    if arguments and code[index].text == "device_vector":
        element = " ".join(token.text for token in code[index + 2 : ends])
        buffers[name] = HostBuffer(name, element, elements=arguments[0], filled="inputs")


def _copied(program: HostProgram, call: str, arguments: Sequence[Sequence[Token]]) -> None:
    buffers = program.buffers
    if call == "cudaMemset" and arguments and (name := program.pointer(arguments[0])):
        zero = "".join(token.text for token in arguments[1]) == "0" if len(arguments) > 1 else False
        buffers[name] = replace(buffers[name], filled=buffers[name].filled or ("zero" if zero else "value"))
    elif len(arguments) > 1:
        to = program.pointer(arguments[0])
        kind = arguments[3][-1].text if len(arguments) > 3 and arguments[3] else ""
        if to and kind != "cudaMemcpyDeviceToHost":
            buffers[to] = replace(buffers[to], filled="inputs")


def _filled_by_the_host(program: HostProgram) -> None:
    """Mark managed memory as filled if host code stores to it or passes it to one of the file's functions."""
    code, buffers = program.code, program.buffers
    for index, token in enumerate(code[:-1]):
        name = token.text
        if name in buffers and buffers[name].filled == "host":
            continue
        alias = program.pointer((token,)) if token.kind == "name" and token.text in program.known else name
        if alias in buffers and buffers[alias].filled == "host" and code[index + 1].text == "[":
            buffers[alias] = replace(buffers[alias], filled="inputs")
    for name, buffer in buffers.items():
        if buffer.filled == "host":  # a function of the file or a loop may fill it: nothing says that nobody does
            buffers[name] = replace(buffer, filled="inputs")


def _pointer_types(code: Sequence[Token]) -> dict[str, str]:
    """Return the element types of declared pointers, as in `float *a, *b = nullptr;`."""
    result: dict[str, str] = {}
    for index, token in enumerate(code[:-1]):
        if token.text != "*" or code[index + 1].kind != "name":
            continue
        before = index - 1
        while before >= 0 and code[before].text == "*":
            before -= 1
        words: list[str] = []
        while before >= 0 and (code[before].kind == "name" or code[before].text == "::"):
            words.insert(0, code[before].text)
            before -= 1
        opens = before < 0 or code[before].text in (";", "{", "}", "(", ",", ">")
        follows = code[index + 2].text if index + 2 < len(code) else ";"
        if words and opens and follows in (";", ",", "=", ")", "["):
            result.setdefault(code[index + 1].text, plain_type(" ".join(words)))
        elif not words and before >= 0 and code[before].text == "," and follows in (";", ",", "="):
            previous = next((n for n in (t.text for t in reversed(code[:before])) if n in result), "")
            if previous:
                result.setdefault(code[index + 1].text, result[previous])
    return result
