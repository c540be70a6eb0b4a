"""Find the kernel launches in a file's host code, and the values that are defined before them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opbench.errors import UsageError
from opbench.kernels.expression import evaluate
from opbench.source.c_expression import UnsupportedExpression, convert, tokens_of
from opbench.source.scan import Declaration
from opbench.source.tokens import CLOSING, OPENING, Token, closing_angle_bracket, closing_bracket, split

BLOCK_SIZE_NAME = re.compile(r"(?i)block|thread|tile|bdim")


LAUNCH_FUNCTIONS = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel")
"""Functions that launch: a kernel with its grid, its block, the addresses of its arguments, shared bytes, a stream."""

MEMBER_OPERATORS = (".", "->")
INTEGER_TYPES = frozenset(("int", "size_t", "unsigned", "long", "int64_t", "uint32_t", "float", "double"))
TEXTURE_TYPES = ("cudaTextureObject_t", "cudaSurfaceObject_t")


Fields = dict[str, dict[str, Sequence[Token]]]
"""By variable, what was assigned to its members: `description.addressMode[0] = …` as "addressMode"."""


@dataclass(frozen=True)
class HostLaunch:
    """A launch in host code, and the values that are defined before it.

    The launch is `kernel<<<grid, block, shared>>>(arguments)` or the call of a launch function.
    """

    kernel: str
    template: str
    """Its template arguments as written, with their brackets; empty without."""
    configuration: tuple[tuple[Token, ...], ...]
    arguments: tuple[tuple[Token, ...], ...]
    known: Mapping[str, Sequence[Token]]
    members: Fields
    sizes: tuple[str, ...]
    """Whole numbers that its function is given and that are called as sizes of blocks are: what one tunes."""
    cooperative: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command line can change, with what it changes them by."""
    changing: frozenset[str] = frozenset()
    """Variables that the loops around the launch change from one turn to the next."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool

    @property
    def views(self) -> str:
        """Return "textures" or "surfaces" for a texture or surface object; "" for other parameters."""
        return "textures" if TEXTURE_TYPES[0] in self.type else "surfaces" if TEXTURE_TYPES[1] in self.type else ""


INLINE_SUFFIX = re.compile(r"\$\d+")
"""The suffix of the names of a function's variables where its body replaces its call."""


def plain_name(name: str) -> str:
    """Return the name of a variable as in the file, without the suffix of inlining."""
    return INLINE_SUFFIX.sub("", name)


QUALIFIERS = frozenset(
    ("const", "volatile", "static", "struct", "__restrict__", "__restrict", "restrict", "*", "&", "[", "]", "std", "::")
)


def plain_type(written: str) -> str:
    """Return a type without qualifiers, pointers and references."""
    return " ".join(word for word in written.split() if word not in QUALIFIERS)


def parameter_of(tokens: Sequence[Token]) -> Parameter:
    """Read a parameter from its declaration."""
    token_texts = [token.text for token in tokens]
    token_texts = token_texts[: token_texts.index("=")] if "=" in token_texts else token_texts
    name = next((word for word in reversed(token_texts) if re.fullmatch(r"[A-Za-z_]\w*", word)), "")
    pointer = "*" in token_texts or "[" in token_texts
    star = token_texts.index("*") if "*" in token_texts else len(token_texts)
    return Parameter("" if name == "void" else name, " ".join(token_texts[:-1]), pointer, "const" in token_texts[:star])


def global_definitions(everything: Sequence[Declaration]) -> dict[str, Sequence[Token]]:
    """Return the values that a file defines outside of functions: macros, constants, enumerators and type aliases."""
    defined: dict[str, Sequence[Token]] = {}
    for declaration in everything:
        if declaration.kind == "directive":
            match = re.match(r"#\s*define\s+(\w+)[ \t]+(.+)", declaration.tokens[0].text)
            if match:
                defined[match[1]] = tokens_of(re.sub(r"\\\n", " ", match[2].split("//")[0]))
        elif declaration.kind == "other" and declaration.tokens[0].text == "typedef" and len(declaration.tokens) > 3:
            defined[declaration.tokens[-2].text] = declaration.tokens[1:-2]
        elif (declaration.kind == "prototype" and declaration.tokens[0].text == "dim3") or (
            declaration.kind == "other" and (not declaration.is_device or "constexpr" in declaration.marks)
        ):  # dim3 block(16, 16); looks like one
            defined |= definitions(declaration.tokens)
        elif declaration.kind == "type" and "enum" in [token.text for token in declaration.tokens[:2]]:
            defined |= _enumerators(declaration.tokens)
    return defined


def _enumerators(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Return the values of enumerators such as `enum { A = 16, B }`, where B is 17."""
    opened = next((i for i, token in enumerate(code) if token.text == "{"), len(code))
    result: dict[str, Sequence[Token]] = {}
    last: Sequence[Token] = tokens_of("0")
    for number, part in enumerate(
        split(code[opened + 1 : closing_bracket(code, opened)], ",") if opened < len(code) else []
    ):
        if not part or part[0].kind != "name":
            continue
        if len(part) > 2 and part[1].text == "=":
            last = part[2:]
        elif number:
            last = [*tokens_of("("), *last, *tokens_of(") + 1")]
        result[part[0].text] = last
    return result


def launches_of(everything: Sequence[Declaration], constants: Mapping[str, Sequence[Token]]) -> list[HostLaunch]:
    """Return every launch in a file, in order; `constants` are values that are defined outside of functions."""
    result = []
    for declaration in everything:
        if declaration.kind == "function" and not declaration.is_device:
            sizes = tuple(
                p.name
                for p in map(parameter_of, declaration.parameters())
                if not p.is_pointer and BLOCK_SIZE_NAME.search(p.name)
            )
            result += launches_in(declaration.tokens, constants, max(0, declaration.body), sizes)
    return result


def launches_in(
    code: Sequence[Token],
    defined: Mapping[str, Sequence[Token]],
    body: int = 0,
    sizes: tuple[str, ...] = (),
) -> list[HostLaunch]:
    """Return every launch in a function whose statements begin at `body`, in order."""
    result = []
    for index, token in enumerate(code):
        read = _launch if token.text == "<<<" else _called if token.text in LAUNCH_FUNCTIONS else None
        parts = read(code, index) if read else None
        if parts is None:
            continue
        kernel, configuration, arguments = parts
        name, template = _named(kernel)
        if name:
            before = code[body:index]
            result.append(
                HostLaunch(
                    name,
                    template,
                    tuple(tuple(part) for part in configuration),
                    tuple(tuple(argument) for argument in arguments),
                    {**defined, **definitions(before)},
                    members(before),
                    sizes,
                    token.text == LAUNCH_FUNCTIONS[1],
                    options_in(before),
                    _changing(code, index),
                )
            )
    return result


ALLOCATION = re.compile(r"(cuda|hip)(Malloc|HostAlloc)")
"""Functions that give memory to a pointer."""


def loops_around(code: Sequence[Token], index: int) -> Iterator[tuple[int, int, int]]:
    """Return the loops that contain a token, outermost first: the start, and first and last token of the body."""
    for position, token in enumerate(code[:index]):
        if token.text not in ("for", "while", "do") or code[position + 1].text not in ("(", "{"):
            continue
        first = closing_bracket(code, position + 1) + 1 if code[position + 1].text == "(" else position + 1
        if first < len(code) and first <= index < (last := statement_end(code, first)):
            yield position, first, last


def statement_end(code: Sequence[Token], first: int) -> int:
    """Return the index of the last token of a loop's body: a closing brace, or the semicolon of one statement."""
    if code[first].text == "{":
        return closing_bracket(code, first)
    return next((i for i in range(first, len(code)) if code[i].text == ";"), len(code) - 1)


def _changing(code: Sequence[Token], index: int) -> frozenset[str]:
    """Return the variables that change in the loops around a token.

    A variable declared within a loop counts only if the iterations share their buffers: then each iteration
    does a part of the work.
    """
    result: set[str] = set()
    for at, first, last in loops_around(code, index):
        head = code[at + 1 : first]
        result |= {name for name, declared in assigned_in(head)} if code[at].text == "for" else set()
        inner = assigned_in(code[first:last])
        own = {name for name, declared in inner if declared}
        result |= {name for name, declared in inner if name not in own}
        if not any(ALLOCATION.match(token.text) for token in code[first:last]):
            values = list(_assignments(code[first:last]))
            for _ in range(len(own)):
                result |= {name for name, value in values if name in own and any(t.text in result for t in value)}
    return frozenset(result)


def assigned_in(code: Sequence[Token]) -> list[tuple[str, bool]]:
    """Return the variables that statements assign, increment or swap, each with whether it is declared there."""
    result = []
    for index, token in enumerate(code[:-1]):
        if token.kind != "name" or (index and code[index - 1].text in MEMBER_OPERATORS):
            continue
        sign = code[index + 1].text + (code[index + 2].text if index + 2 < len(code) else "")
        before = code[index - 1].text if index else ";"
        counted = sign in ("++", "--") or (index > 1 and before + code[index - 2].text in ("++", "--"))
        if counted or (sign[:1] == "=" and sign != "==") or (sign[1:] == "=" and sign[0] in "+-*/%&|^"):
            declared = index > 0 and (code[index - 1].kind == "name" or before in ("*", "&", ">"))
            result.append((token.text, declared and not counted))
        elif token.text == "swap" and sign[0] == "(":
            arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
            result += [(part[-1].text, False) for part in arguments if part]
    return result


Parts = tuple[Sequence[Token], Sequence[Sequence[Token]], Sequence[Sequence[Token]]]
"""The tokens that end with a launch's kernel, its configuration, its arguments."""


def _launch(code: Sequence[Token], index: int) -> Parts | None:
    ends = next((i for i in range(index, len(code)) if code[i].text == ">>>"), -1)
    if ends < 0 or ends + 1 >= len(code) or code[ends + 1].text != "(":
        return None
    configuration = split(code[index + 1 : ends], ",")
    arguments = split(code[ends + 2 : closing_bracket(code, ends + 1)], ",")
    return (code[:index], configuration, arguments) if len(configuration) > 1 else None


def _called(code: Sequence[Token], index: int) -> Parts | None:
    """Read a launch by one of the functions in `LAUNCH_FUNCTIONS`, which takes an array of the arguments' addresses."""
    call_arguments = (
        split(code[index + 2 : closing_bracket(code, index + 1)], ",") if code[index + 1].text == "(" else []
    )
    if len(call_arguments) < 4:
        return None
    array = next((token.text for token in reversed(call_arguments[3]) if token.kind == "name"), "")
    arguments: list[Sequence[Token]] = [
        [token for token in element if token.text != "&"][-1:] for element in _array_elements(code[:index], array)
    ]
    return call_arguments[0], (*call_arguments[1:3], *call_arguments[4:]), arguments


def _array_elements(code: Sequence[Token], name: str) -> Sequence[Sequence[Token]]:
    """Return the elements of an array from its definition, such as `void* name[] = {&x, &out};`."""
    for index, (token, after) in enumerate(itertools.pairwise(code)):
        if token.text == name and after.text == "[":
            opened = closing_bracket(code, index + 1) + 1
            opened += opened < len(code) and code[opened].text == "="
            if opened < len(code) and code[opened].text == "{":
                return split(code[opened + 1 : closing_bracket(code, opened)], ",")
    return []


def _named(kernel: Sequence[Token]) -> tuple[str, str]:
    """Return the name and the template arguments of the kernel that these tokens end with; "" for other tokens."""
    if not kernel:
        return "", ""
    at, template = len(kernel) - 1, ""
    if kernel[at].text == ">":
        opened = next(
            (i for i in range(at, -1, -1) if kernel[i].text == "<" and closing_angle_bracket(kernel, i) == at), -1
        )
        if opened < 1:
            return "", ""
        template = text_of(kernel[opened : at + 1])
        at = opened - 1
    return kernel[at].text, template


def text_of(code: Sequence[Token]) -> str:
    """Return code as text with single spaces and the variables' original names."""
    parts: list[str] = []
    end = code[0].start if code else 0
    for token in code:
        written = plain_name(token.text)
        parts += [" "] if token.start > end else []
        parts.append(written)
        end = token.start + len(written)
    return "".join(parts)


COMMAND_LINE_NAMES = re.compile(
    r"^(argv|optarg|argc|getenv|cin|ato[ifl]l?|sto[iul]l?|strto[lu]+|getCmdLineArgument\w*|checkCmdLine\w*|FLAGS_\w+)$"
)
"""Names by which a value comes from the command line."""


INPUT_FUNCTIONS = ("scanf", "fscanf", "sscanf", "cudaMemcpy", "cudaMemcpyAsync")
"""Functions that set the variables whose addresses they are given."""


def _is_option(value: Sequence[Token]) -> bool:
    return any(token.kind == "name" and COMMAND_LINE_NAMES.match(token.text) for token in value)


def _default(value: Sequence[Token]) -> Sequence[Token]:
    """Return the default in `argc > 1 ? atoi(argv[1]) : 512`, and any other value unchanged."""
    depth, question_mark = 0, -1
    for index, token in enumerate(value):
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "mark" else 0
        if token.text == "?" and depth == 0 and question_mark < 0:
            question_mark = index
        elif token.text == ":" and depth == 0 and question_mark >= 0 and _is_option(value[:question_mark]):
            sides = value[question_mark + 1 : index], value[index + 1 :]
            return next((side for side in reversed(sides) if not _is_option(side)), value)
    if value and value[0].text == "(" and closing_bracket(value, 0) == len(value) - 1:
        return _default(value[1:-1]) if _is_option(value) else value
    return value


def _last(value: Sequence[Token]) -> Sequence[Token]:
    """Return the value at the end of a chain of assignments, such as 2048 in `m = n = 2048`."""
    depth, start = 0, 0
    for index, token in enumerate(value[:-1]):
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "mark" else 0
        around = {value[index - 1].text, value[index + 1].text} if index else {"="}
        if token.text == "=" and depth == 0 and not around & {"=", "<", ">", "!"}:
            start = index + 1
    return value[start:]


def options_in(code: Sequence[Token]) -> dict[str, str]:
    """Return the variables that the command line or a copy from the device may set, with the setting expression."""
    result: dict[str, str] = {}
    for name, value in _assignments(code):
        if _is_option(value):
            result.setdefault(name, "".join(token.text for token in value))
    return result | _read_in(code)


def _read_in(code: Sequence[Token]) -> dict[str, str]:
    """Return the variables that code reads into, such as `scanf("%d", &n)` or `cudaMemcpy(&total, …)`."""
    result: dict[str, str] = {}
    for index, token in enumerate(code[:-2]):
        if token.text in INPUT_FUNCTIONS and code[index + 1].text == "(":
            arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
            for part in arguments[:1] if "Memcpy" in token.text else arguments:
                if [token.text for token in part[:1]] == ["&"] and len(part) == 2:
                    result.setdefault(part[1].text, f"{token.text}()")
        elif token.text == "cin":
            shifted = value_until(code, index + 1)
            result |= {token.text: "cin" for token in shifted if token.kind == "name"}
    return result


def definitions(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Return variables with their last values.

    Definitions are `name = value;`, `name(value)` for a number's type and `dim3 name(x, y);`. A value from the
    command line counts only if the variable has no other: it is an option, and the other value its default.
    """
    result: dict[str, Sequence[Token]] = {}
    limits = _limits(code)
    for name, given in _assignments(code):
        value = _last(_default(given))
        if name in result and (limit := limits.get((name, *(token.text for token in given)))):
            value = [*tokens_of(f"{limit}("), *result[name], *tokens_of(","), *given, *tokens_of(")")]
        changed = any(token.text == name for token in value)  # counts on from what it was
        if name not in result or not (changed or _is_option(value)):
            result[name] = value
    return result | _shapes_by_sides(code)


def _limits(code: Sequence[Token]) -> dict[tuple[str, ...], str]:
    """Return the name and value of assignments `if (name > value) name = value;`, with an equivalent function."""
    result: dict[tuple[str, ...], str] = {}
    for index, token in enumerate(code[:-3]):
        if token.text == "if" and code[index + 1].text == "(" and code[index + 3].text in "<>":
            ends = closing_bracket(code, index + 1)
            name, *value = (token.text for token in (code[index + 2], *code[index + 4 : ends]))
            value = value[1:] if value[:1] == ["="] else value
            after = [token.text for token in code[ends + 1 : ends + 5 + len(value)] if token.text != "{"]
            if after[: len(value) + 3] == [name, "=", *value, ";"]:
                result[(name, *value)] = "min" if code[index + 3].text == ">" else "max"
    return result


def _shapes_by_sides(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Return each `dim3 name;` whose components are assigned one by one, as `dim3(4, 1, 1)`."""
    sides: dict[str, dict[str, Sequence[Token]]] = {}
    for index, token in enumerate(code[:-4]):
        following = [other.text for other in code[index + 1 : index + 5]]
        if token.text == "dim3" and following[1] == ";":
            sides[following[0]] = {}
        elif token.text in sides and following[0] == "." and following[1] in ("x", "y", "z") and following[2] == "=":
            sides[token.text][following[1]] = value_until(code, index + 4)
    made: dict[str, Sequence[Token]] = {}
    for name, values in sides.items():
        parts = [list(values.get(side, tokens_of("1"))) for side in "xyz"]
        comma, closed = tokens_of(",)")
        made |= {name: [*tokens_of("dim3("), *parts[0], comma, *parts[1], comma, *parts[2], closed]} if values else {}
    return made


def _assignments(code: Sequence[Token]) -> Iterator[tuple[str, Sequence[Token]]]:
    for index in range(1, len(code) - 1):
        token, after = code[index], code[index + 1]
        if token.kind != "name" or code[index - 1].text in MEMBER_OPERATORS or token.text in INTEGER_TYPES:
            continue
        if after.text == "=" and code[index + 2 : index + 3] and code[index + 2].text != "=":
            yield token.text, value_until(code, index + 2)
        elif after.text in ("(", "{"):  # the first of a declaration or a later one: dim3 block(256), grid(blocks);
            before = (code[i] for i in range(index - 1, -1, -1) if code[i].text in ("dim3", "=", ";", "{", "}"))
            ends = closing_bracket(code, index + 1)
            if (kind := next(before, token)).text == "dim3":
                yield token.text, [kind, *code[index + 1 : ends + 1]]
            elif code[index - 1].text in INTEGER_TYPES and ends - index > 2:
                yield token.text, code[index + 2 : ends]


def members(code: Sequence[Token]) -> Fields:
    """Return the first value that code assigns to each member, by variable and path of the member."""
    fields: Fields = {}
    for index in range(1, len(code) - 1):
        token, before, after = code[index], code[index - 1], code[index + 1]
        if token.kind == "name" and after.text in MEMBER_OPERATORS and before.text not in MEMBER_OPERATORS:
            path, value = _assigned(code, index)
            if path:
                fields.setdefault(token.text, {}).setdefault(path, value_until(code, value))
    return fields


def _assigned(code: Sequence[Token], index: int) -> tuple[str, int]:
    """Return the path in `name.member.member[0] = value;` and the index of the value; "" for other statements."""
    path, at = [], index + 1
    while at + 1 < len(code) and code[at].text in MEMBER_OPERATORS:
        path.append(code[at + 1].text)
        at += 2
        while at < len(code) and code[at].text == "[":
            at = closing_bracket(code, at) + 1
    return (".".join(path), at + 1) if at + 1 < len(code) and code[at].text == "=" else ("", at)


def value_until(code: Sequence[Token], start: int) -> Sequence[Token]:
    """Return the tokens up to the comma or semicolon that ends a value."""
    index = start
    while index < len(code) and code[index].text not in (",", ";"):
        index = (
            closing_bracket(code, index) + 1 if code[index].kind == "mark" and code[index].text in "([{" else index + 1
        )
    return code[start:index]


def number_of(tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]) -> int:
    """Return the number that an expression equals; raise Unreadable with the name of a variable without a value."""
    text = convert(tokens, values_by_name)
    try:
        return int(evaluate(text, {}))
    except UsageError:
        raise UnsupportedExpression(text) from None
