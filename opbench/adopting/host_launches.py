"""Find the kernel launches in a file's host code, and the values that are defined before them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.errors import UsageError
from opbench.kernels.expression import evaluate
from opbench.source.c_expression import CAST_TYPES, UnsupportedExpression, convert, tokens_of
from opbench.source.scan import Declaration
from opbench.source.tokens import (
    CLOSING,
    OPENING,
    Token,
    closing_angle_bracket,
    closing_bracket,
    split,
    text_of,
    texts_of,
)

BLOCK_SIZE_NAME = re.compile(r"(?i)block|thread|tile|bdim")


LAUNCH_FUNCTIONS = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel")
"""Functions that launch a kernel; parameters: kernel, grid, block, addresses of its arguments, shared bytes, stream."""

MEMBER_OPERATORS = (".", "->")
NUMERIC_TYPES = frozenset(("int", "size_t", "unsigned", "long", "int64_t", "uint32_t", "float", "double"))
TEXTURE_TYPES = ("cudaTextureObject_t", "cudaSurfaceObject_t")


MemberValues = dict[str, dict[str, Sequence[Token]]]
"""Values by variable and member: `description.addressMode[0] = point;` is {"description": {"addressMode": point}}."""


@dataclass(frozen=True)
class HostLaunch:
    """A kernel launch in host code, and the values that are defined before the launch.

    The launch is `kernel<<<grid, block, shared>>>(arguments)` or a call of `cudaLaunchKernel`.
    """

    kernel: str
    template: str
    """The kernel's template arguments as text with angle brackets; empty without template arguments."""
    configuration: tuple[tuple[Token, ...], ...]
    """The tokens of the grid and the block, then those of the shared bytes and the stream if the launch has them."""
    arguments: tuple[tuple[Token, ...], ...]
    values_by_name: Mapping[str, Sequence[Token]]
    """Variables, constants and macros that are defined before the launch, each with the tokens of its value."""
    members: MemberValues
    block_size_parameters: tuple[str, ...]
    """Parameters of the host function that are named like block sizes, such as BLOCK: values that can be tuned."""
    cooperative: bool = False
    option_expressions: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command line can set, each with the expression that sets it."""
    loop_variables: frozenset[str] = frozenset()
    """Variables that change between iterations of the loops around the launch."""

    def template_arguments(self) -> list[tuple[Token, ...]]:
        """Return the tokens of each template argument; empty without template arguments."""
        return split(tokens_of(self.template)[1:-1], ",")


NON_INTEGER_TYPE = re.compile(r"\b(float|double|bool|half|__half|bfloat16|Tensor)\b")
"""Matches types of numbers with a fraction, of truth values and of tensors."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool

    @property
    def is_whole_number(self) -> bool:
        """Return whether the parameter is a number without a fraction, such as a size."""
        return not (self.is_pointer or self.texture_kind or NON_INTEGER_TYPE.search(self.type))

    @property
    def texture_kind(self) -> str:
        """Return "textures" or "surfaces" for a texture or surface object; "" for other parameters."""
        return "textures" if TEXTURE_TYPES[0] in self.type else "surfaces" if TEXTURE_TYPES[1] in self.type else ""


INLINE_SUFFIX = re.compile(r"\$\d+")
"""A suffix that makes the variables of an inlined function unique, such as `$3`."""


def plain_name(name: str) -> str:
    """Return a variable's name as in the file, without the suffix that inlining added."""
    return INLINE_SUFFIX.sub("", name)


QUALIFIERS = frozenset(
    ("const", "volatile", "static", "struct", "__restrict__", "__restrict", "restrict", "*", "&", "[", "]", "std", "::")
)


def plain_type(c_type: str) -> str:
    """Return a C type without qualifiers, pointers and references."""
    return " ".join(word for word in c_type.split() if word not in QUALIFIERS)


def parameter_of(tokens: Sequence[Token]) -> Parameter:
    """Return the name and type of a kernel parameter from the tokens of its declaration."""
    token_texts = texts_of(tokens)
    token_texts = token_texts[: token_texts.index("=")] if "=" in token_texts else token_texts
    name = next((word for word in reversed(token_texts) if re.fullmatch(r"[A-Za-z_]\w*", word)), "")
    pointer = "*" in token_texts or "[" in token_texts
    star = token_texts.index("*") if "*" in token_texts else len(token_texts)
    return Parameter("" if name == "void" else name, " ".join(token_texts[:-1]), pointer, "const" in token_texts[:star])


def global_definitions(all_declarations: Sequence[Declaration]) -> dict[str, Sequence[Token]]:
    """Return the values that a file defines outside of functions: macros, constants, enumerators and type aliases."""
    values_by_name: dict[str, Sequence[Token]] = {}
    for declaration in all_declarations:
        if declaration.kind == "directive":
            match = re.match(r"#\s*define\s+(\w+)[ \t]+(.+)", declaration.tokens[0].text)
            if match:
                values_by_name[match[1]] = tokens_of(re.sub(r"\\\n", " ", match[2].split("//")[0]))
        elif declaration.kind == "other" and declaration.tokens[0].text == "typedef" and len(declaration.tokens) > 3:
            values_by_name[declaration.tokens[-2].text] = declaration.tokens[1:-2]
        elif (declaration.kind == "prototype" and declaration.tokens[0].text == "dim3") or (
            declaration.kind == "other" and (not declaration.is_device or "constexpr" in declaration.specifiers)
        ):  # The scanner takes `dim3 block(16, 16);` for a prototype.
            values_by_name |= definitions(declaration.tokens)
        elif declaration.kind == "type" and "enum" in texts_of(declaration.tokens[:2]):
            values_by_name |= _enumerators(declaration.tokens)
    return values_by_name


def _enumerators(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Return the values of enumerators such as `enum { A = 16, B }`, where B is 17."""
    opening_brace = next((i for i, token in enumerate(code) if token.text == "{"), len(code))
    result: dict[str, Sequence[Token]] = {}
    previous_value: Sequence[Token] = tokens_of("0")
    for position, enumerator in enumerate(
        split(code[opening_brace + 1 : closing_bracket(code, opening_brace)], ",") if opening_brace < len(code) else []
    ):
        if not enumerator or enumerator[0].kind != "name":
            continue
        if len(enumerator) > 2 and enumerator[1].text == "=":
            previous_value = enumerator[2:]
        elif position:
            previous_value = [*tokens_of("("), *previous_value, *tokens_of(") + 1")]
        result[enumerator[0].text] = previous_value
    return result


def launches_of(all_declarations: Sequence[Declaration], constants: Mapping[str, Sequence[Token]]) -> list[HostLaunch]:
    """Return every launch in a file, in order; `constants` are values that are defined outside of functions."""
    result = []
    for declaration in all_declarations:
        if declaration.kind == "function" and not declaration.is_device:
            block_size_parameters = tuple(
                p.name
                for p in map(parameter_of, declaration.parameters())
                if not p.is_pointer and BLOCK_SIZE_NAME.search(p.name)
            )
            result += launches_in(declaration.tokens, constants, max(0, declaration.body), block_size_parameters)
    return result


def launches_in(
    code: Sequence[Token],
    outer_values: Mapping[str, Sequence[Token]],
    body_start: int = 0,
    block_size_parameters: tuple[str, ...] = (),
) -> list[HostLaunch]:
    """Return every launch in the tokens of a function, in order.

    The function's statements begin at index `body_start`; `outer_values` are defined outside of the function.
    `block_size_parameters` are the function's parameters that are named like block sizes.
    """
    result = []
    for index, token in enumerate(code):
        read_launch = (
            _triple_bracket_launch
            if token.text == "<<<"
            else _function_launch
            if token.text in LAUNCH_FUNCTIONS
            else None
        )
        launch_tokens = read_launch(code, index) if read_launch else None
        if launch_tokens is None:
            continue
        kernel, configuration, arguments = launch_tokens
        name, template = _kernel_name(kernel)
        if name:
            preceding_code = code[body_start:index]
            result.append(
                HostLaunch(
                    name,
                    template,
                    tuple(tuple(value) for value in configuration),
                    tuple(_without_cast_of_name(argument) for argument in arguments),
                    {**outer_values, **definitions(preceding_code)},
                    members(preceding_code),
                    block_size_parameters,
                    token.text == LAUNCH_FUNCTIONS[1],
                    options_in(preceding_code),
                    _loop_variables(code, index),
                )
            )
    return result


def _without_cast_of_name(argument: Sequence[Token]) -> tuple[Token, ...]:
    """Return an argument without its cast to a number if it is a cast of one name, such as `(int)n`."""
    *cast, name = [token.text for token in argument if token.text != ")"] or [""]
    is_cast = cast[:1] == ["("] and len(cast) > 1 and set(cast[1:]) <= CAST_TYPES
    is_cast = is_cast or (cast[:2] == ["static_cast", "<"] and cast[-2:] == [">", "("])
    names = [token for token in argument if token.text == name and token.kind == "name"]
    return tuple(names) if is_cast and len(names) == 1 else tuple(argument)


ALLOCATION = re.compile(r"(cuda|hip)(Malloc|HostAlloc)")
"""Functions that allocate memory and set a pointer to it."""


def loops_around(code: Sequence[Token], index: int) -> Iterator[tuple[int, int, int]]:
    """Yield the loops that contain a token, outermost first.

    Each is three indices: of the loop's keyword, and of the first and the last token of its body.
    """
    for loop_start, token in enumerate(code[:index]):
        if token.text not in ("for", "while", "do") or code[loop_start + 1].text not in ("(", "{"):
            continue
        body_start = closing_bracket(code, loop_start + 1) + 1 if code[loop_start + 1].text == "(" else loop_start + 1
        if body_start < len(code) and body_start <= index < (body_end := statement_end(code, body_start)):
            yield loop_start, body_start, body_end


def statement_end(code: Sequence[Token], start: int) -> int:
    """Return the index of the last token of the statement, or of the block in braces, that begins at `start`."""
    if code[start].text == "{":
        return closing_bracket(code, start)
    return next((i for i in range(start, len(code)) if code[i].text == ";"), len(code) - 1)


def _loop_variables(code: Sequence[Token], index: int) -> frozenset[str]:
    """Return the variables that change between iterations of the loops around a token.

    A variable that is declared in a loop's body counts only if the body allocates no memory: then all iterations work
    on the same buffers.
    """
    result: set[str] = set()
    for loop_start, body_start, body_end in loops_around(code, index):
        loop_head = code[loop_start + 1 : body_start]
        result |= (
            {name for name, declared in assigned_variables(loop_head)} if code[loop_start].text == "for" else set()
        )
        assignments_in_body = assigned_variables(code[body_start:body_end])
        declared_in_body = {name for name, declared in assignments_in_body if declared}
        result |= {name for name, declared in assignments_in_body if name not in declared_in_body}
        if not any(ALLOCATION.match(token.text) for token in code[body_start:body_end]):
            values = list(_assignments(code[body_start:body_end]))
            for _ in range(len(declared_in_body)):
                result |= {
                    name for name, value in values if name in declared_in_body and any(t.text in result for t in value)
                }
    return frozenset(result)


def assigned_variables(code: Sequence[Token]) -> list[tuple[str, bool]]:
    """Return the variables that code assigns, increments or swaps, each with whether the code also declares it."""
    result = []
    for index, token in enumerate(code[:-1]):
        if token.kind != "name" or (index and code[index - 1].text in MEMBER_OPERATORS):
            continue
        following_text = code[index + 1].text + (code[index + 2].text if index + 2 < len(code) else "")
        preceding_text = code[index - 1].text if index else ";"
        is_incremented = following_text in ("++", "--") or (
            index > 1 and preceding_text + code[index - 2].text in ("++", "--")
        )
        if (
            is_incremented
            or (following_text[:1] == "=" and following_text != "==")
            or (following_text[1:] == "=" and following_text[0] in "+-*/%&|^")
        ):
            is_declaration = index > 0 and (code[index - 1].kind == "name" or preceding_text in ("*", "&", ">"))
            result.append((token.text, is_declaration and not is_incremented))
        elif token.text == "swap" and following_text[0] == "(":
            arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
            result += [(argument[-1].text, False) for argument in arguments if argument]
    return result


LaunchTokens = tuple[Sequence[Token], Sequence[Sequence[Token]], Sequence[Sequence[Token]]]
"""The tokens of a launch: those up to the kernel's name, those of its configuration, and those of its arguments."""


def _triple_bracket_launch(code: Sequence[Token], index: int) -> LaunchTokens | None:
    """Read the launch `kernel<<<grid, block>>>(arguments)` whose `<<<` is at `index`; None if it is incomplete."""
    closing_index = next((i for i in range(index, len(code)) if code[i].text == ">>>"), -1)
    if closing_index < 0 or closing_index + 1 >= len(code) or code[closing_index + 1].text != "(":
        return None
    configuration = split(code[index + 1 : closing_index], ",")
    arguments = split(code[closing_index + 2 : closing_bracket(code, closing_index + 1)], ",")
    return (code[:index], configuration, arguments) if len(configuration) > 1 else None


def _function_launch(code: Sequence[Token], index: int) -> LaunchTokens | None:
    """Read a launch by a call of one of `LAUNCH_FUNCTIONS`, which is at `index`; None if the call is incomplete.

    The call passes an array with the addresses of the kernel's arguments.
    """
    call_arguments = (
        split(code[index + 2 : closing_bracket(code, index + 1)], ",") if code[index + 1].text == "(" else []
    )
    if len(call_arguments) < 4:
        return None
    array_name = next((token.text for token in reversed(call_arguments[3]) if token.kind == "name"), "")
    arguments: list[Sequence[Token]] = [
        [token for token in element if token.text != "&"][-1:] for element in _array_elements(code[:index], array_name)
    ]
    return call_arguments[0], (*call_arguments[1:3], *call_arguments[4:]), arguments


def _array_elements(code: Sequence[Token], name: str) -> Sequence[Sequence[Token]]:
    """Return the elements of an array from its definition, such as `void* name[] = {&x, &out};`."""
    for index, (token, next_token) in enumerate(itertools.pairwise(code)):
        if token.text == name and next_token.text == "[":
            opening = closing_bracket(code, index + 1) + 1
            opening += opening < len(code) and code[opening].text == "="
            if opening < len(code) and code[opening].text == "{":
                return split(code[opening + 1 : closing_bracket(code, opening)], ",")
    return []


def _kernel_name(tokens: Sequence[Token]) -> tuple[str, str]:
    """Return the kernel's name and template arguments at the end of `tokens`; two empty strings without a name."""
    if not tokens:
        return "", ""
    last, template = len(tokens) - 1, ""
    if tokens[last].text == ">":
        opening = next(
            (i for i in range(last, -1, -1) if tokens[i].text == "<" and closing_angle_bracket(tokens, i) == last), -1
        )
        if opening < 1:
            return "", ""
        template = _text_with_inlined_names(tokens[opening : last + 1])
        last = opening - 1
    return tokens[last].text, template


def _text_with_inlined_names(code: Sequence[Token]) -> str:
    """Return tokens as text with single spaces; the names of inlined functions keep their suffix."""
    texts: list[str] = []
    end = code[0].start if code else 0
    for token in code:
        texts += [" "] if token.start > end else []
        texts.append(token.text)
        end = token.start + len(plain_name(token.text))
    return "".join(texts)


COMMAND_LINE_NAMES = re.compile(
    r"^(argv|optarg|argc|getenv|cin|ato[ifl]l?|sto[iul]l?|strto[lu]+|getCmdLineArgument\w*|checkCmdLine\w*|FLAGS_\w+)$"
)
"""Names in expressions whose value comes from the command line, the environment or a file."""


INPUT_FUNCTIONS = ("scanf", "fscanf", "sscanf", "cudaMemcpy", "cudaMemcpyAsync")
"""Functions that set a variable whose address is an argument."""


def _is_from_command_line(value: Sequence[Token]) -> bool:
    return any(token.kind == "name" and COMMAND_LINE_NAMES.match(token.text) for token in value)


def _default_value(value: Sequence[Token]) -> Sequence[Token]:
    """Return the default in `argc > 1 ? atoi(argv[1]) : 512`, here 512; return any other value unchanged."""
    depth, question_mark = 0, -1
    for index, token in enumerate(value):
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "mark" else 0
        if token.text == "?" and depth == 0 and question_mark < 0:
            question_mark = index
        elif token.text == ":" and depth == 0 and question_mark >= 0 and _is_from_command_line(value[:question_mark]):
            alternatives = value[question_mark + 1 : index], value[index + 1 :]
            return next(
                (alternative for alternative in reversed(alternatives) if not _is_from_command_line(alternative)), value
            )
    if value and value[0].text == "(" and closing_bracket(value, 0) == len(value) - 1:
        return _default_value(value[1:-1]) if _is_from_command_line(value) else value
    return value


def _last_assigned_value(value: Sequence[Token]) -> Sequence[Token]:
    """Return the value at the end of a chain of assignments, such as 2048 in `m = n = 2048`."""
    depth, start = 0, 0
    for index, token in enumerate(value[:-1]):
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "mark" else 0
        neighbours = {value[index - 1].text, value[index + 1].text} if index else {"="}
        if token.text == "=" and depth == 0 and not neighbours & {"=", "<", ">", "!"}:
            start = index + 1
    return value[start:]


def options_in(code: Sequence[Token]) -> dict[str, str]:
    """Return the variables that the command line or input functions may set, each with the expression that sets it."""
    result: dict[str, str] = {}
    for name, value in _assignments(code):
        if _is_from_command_line(value):
            result.setdefault(name, text_of(value))
    return result | _variables_set_by_input(code)


def _variables_set_by_input(code: Sequence[Token]) -> dict[str, str]:
    """Return the variables that input functions set, such as n in `scanf("%d", &n)`, each with the function's name."""
    result: dict[str, str] = {}
    for index, token in enumerate(code[:-2]):
        if token.text in INPUT_FUNCTIONS and code[index + 1].text == "(":
            arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
            for argument in arguments[:1] if "Memcpy" in token.text else arguments:
                if texts_of(argument[:1]) == ["&"] and len(argument) == 2:
                    result.setdefault(argument[1].text, f"{token.text}()")
        elif token.text == "cin":
            stream_tokens = value_until(code, index + 1)
            result |= {token.text: "cin" for token in stream_tokens if token.kind == "name"}
    return result


def definitions(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Return each variable with the tokens of its last value.

    Definitions are `name = value;`, `name(value)` after a numeric type, and `dim3 name(x, y);`. If one value of a
    variable comes from the command line and another does not, the other one is the default and is returned.
    """
    result: dict[str, Sequence[Token]] = {}
    clamps = _clamps(code)
    for name, assigned in _assignments(code):
        value = _last_assigned_value(_default_value(assigned))
        if name in result and (clamp := clamps.get((name, *(token.text for token in assigned)))):
            value = [*tokens_of(f"{clamp}("), *result[name], *tokens_of(","), *assigned, *tokens_of(")")]
        is_update = any(token.text == name for token in value)  # An update such as n = n + 1 depends on the old value.
        if name not in result or not (is_update or _is_from_command_line(value)):
            result[name] = value
    return result | _dim3_components(code)


def _clamps(code: Sequence[Token]) -> dict[tuple[str, ...], str]:
    """Return the statements that limit a variable, such as `if (name > value) name = value;`.

    The key has the name and the tokens of the value; the result is "min" or "max", the equivalent function.
    """
    result: dict[tuple[str, ...], str] = {}
    for index, token in enumerate(code[:-3]):
        if token.text == "if" and code[index + 1].text == "(" and code[index + 3].text in "<>":
            closing = closing_bracket(code, index + 1)
            name, *value = (token.text for token in (code[index + 2], *code[index + 4 : closing]))
            value = value[1:] if value[:1] == ["="] else value
            following = [token.text for token in code[closing + 1 : closing + 5 + len(value)] if token.text != "{"]
            if following[: len(value) + 3] == [name, "=", *value, ";"]:
                result[(name, *value)] = "min" if code[index + 3].text == ">" else "max"
    return result


def names_without_value(code: Sequence[Token]) -> list[str]:
    """Return the names in a declaration after its type, such as `a, b;`; none if one of them has a value."""
    end = next((index for index, token in enumerate(code) if token.text == ";"), len(code))
    declarators = split(code[:end], ",")
    are_names = all(len(declarator) == 1 and declarator[0].kind == "name" for declarator in declarators)
    return [declarator[0].text for declarator in declarators] if are_names else []


def _dim3_components(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Return each variable `dim3 name;` whose components are assigned later, with a value such as `dim3(4, 1, 1)`."""
    values_by_component: dict[str, dict[str, Sequence[Token]]] = {}
    for index, token in enumerate(code[:-4]):
        following = [other.text for other in code[index + 1 : index + 5]]
        if token.text == "dim3":
            values_by_component |= {name: {} for name in names_without_value(code[index + 1 :])}
        elif (
            token.text in values_by_component
            and following[0] == "."
            and following[1] in ("x", "y", "z")
            and following[2] == "="
        ):
            values_by_component[token.text][following[1]] = value_until(code, index + 4)
    dim3_values: dict[str, Sequence[Token]] = {}
    for name, values in values_by_component.items():
        components = [list(values.get(component, tokens_of("1"))) for component in "xyz"]
        comma, bracket = tokens_of(",)")
        dim3_values |= (
            {name: [*tokens_of("dim3("), *components[0], comma, *components[1], comma, *components[2], bracket]}
            if values
            else {}
        )
    return dim3_values


def _assignments(code: Sequence[Token]) -> Iterator[tuple[str, Sequence[Token]]]:
    """Yield the name and the value of each assignment and each initialised declaration, in order."""
    for index in range(1, len(code) - 1):
        token, next_token = code[index], code[index + 1]
        if token.kind != "name" or code[index - 1].text in MEMBER_OPERATORS or token.text in NUMERIC_TYPES:
            continue
        if next_token.text == "=" and code[index + 2 : index + 3] and code[index + 2].text != "=":
            yield token.text, value_until(code, index + 2)
        elif next_token.text in ("(", "{"):  # A dim3 can be a later variable: dim3 block(256), grid(blocks);
            preceding = (code[i] for i in range(index - 1, -1, -1) if code[i].text in ("dim3", "=", ";", "{", "}"))
            closing = closing_bracket(code, index + 1)
            if (declaring := next(preceding, token)).text == "dim3":
                yield token.text, [declaring, *code[index + 1 : closing + 1]]
            elif code[index - 1].text in NUMERIC_TYPES and closing - index > 2:
                yield token.text, code[index + 2 : closing]


def members(code: Sequence[Token]) -> MemberValues:
    """Return the first value that code assigns to each member of a variable, by variable and member."""
    values: MemberValues = {}
    for index in range(1, len(code) - 1):
        token, previous, following = code[index], code[index - 1], code[index + 1]
        if token.kind == "name" and following.text in MEMBER_OPERATORS and previous.text not in MEMBER_OPERATORS:
            member, value_start = _member_assignment(code, index)
            if member:
                values.setdefault(token.text, {}).setdefault(member, value_until(code, value_start))
    return values


def _member_assignment(code: Sequence[Token], index: int) -> tuple[str, int]:
    """Return the member and the index of the value in `name.member.member[0] = value;` whose name is at `index`.

    The member is "member.member"; it is empty for other statements.
    """
    member_names, position = [], index + 1
    while position + 1 < len(code) and code[position].text in MEMBER_OPERATORS:
        member_names.append(code[position + 1].text)
        position += 2
        while position < len(code) and code[position].text == "[":
            position = closing_bracket(code, position) + 1
    return (
        (".".join(member_names), position + 1)
        if position + 1 < len(code) and code[position].text == "="
        else ("", position)
    )


def value_until(code: Sequence[Token], start: int) -> Sequence[Token]:
    """Return the tokens from `start` up to the comma or semicolon that ends a value."""
    index = start
    while index < len(code) and code[index].text not in (",", ";"):
        index = (
            closing_bracket(code, index) + 1 if code[index].kind == "mark" and code[index].text in "([{" else index + 1
        )
    return code[start:index]


def number_of(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> int:
    """Return the whole number that an expression equals; raise UnsupportedExpression for a variable without a value."""
    text = convert(tokens, values_by_name)
    try:
        return int(evaluate(text, {}))
    except UsageError:
        raise UnsupportedExpression(text) from None
