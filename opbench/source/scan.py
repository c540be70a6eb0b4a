"""Split CUDA C++ into the declarations of its namespaces without running the preprocessor.

A C++ parser would need every included header and a meaning for every macro, and both may be missing here.
Brackets, names and directives are enough to find where a declaration begins and ends and what its name is,
whatever its macros mean.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opbench.source.names import ATTRIBUTES, called_names, local_names, macro_names, used_names
from opbench.source.tokens import (
    CLOSING,
    OPENING,
    Token,
    closing_angle_bracket,
    closing_bracket,
    directive,
    split,
    tokens,
    words,
)

DEVICE = frozenset(("__global__", "__device__", "__constant__", "__shared__", "__managed__"))
TYPES = frozenset(("class", "struct", "union", "enum"))
ATTRIBUTE_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)\([^)\n]*\)[ \t]*(?:__attribute__|__declspec|\[\[)", re.MULTILINE
)
KEYWORDS = words(
    """
    alignas auto bool char class const constexpr decltype default delete double enum explicit extern final float
    for friend if inline int long mutable namespace noexcept operator override private protected public register
    short signed sizeof static struct switch template this typedef typename union unsigned using virtual void
    volatile while static_assert size_t
    """
)
"""Words that are never the name of a declaration."""


@dataclass(frozen=True)
class Declaration:
    """A declaration in a namespace, or a preprocessor directive between two declarations."""

    start: int
    end: int
    line: int
    names: frozenset[str]
    """The names that it declares; for a member's definition also its class."""
    uses: frozenset[str]
    """Every name in it except members and local variables."""
    calls: frozenset[str]
    """The names in `uses` that are followed by a call or by template arguments."""
    tokens: tuple[Token, ...]
    kind: str
    """function, type, directive, using or other."""
    marks: frozenset[str]
    """CUDA's specifiers, `constexpr` and `extern "C"` (as "C") before its name."""
    scope: str
    """The enclosing namespaces, such as "a::b"."""
    body: int = -1
    """For a function's definition, the index of the token that opens its body; otherwise -1."""

    @property
    def is_device(self) -> bool:
        """Return whether the declaration is device code."""
        return bool(self.marks & DEVICE)

    @property
    def is_kernel(self) -> bool:
        """Return whether the declaration defines a kernel."""
        return "__global__" in self.marks and self.body >= 0

    @property
    def is_template(self) -> bool:
        """Return whether the declaration is a template without an explicit instantiation."""
        first = [token.text for token in self.tokens[:3]]
        return first[:1] == ["template"] and first[1:] != ["<", ">"]

    @property
    def name(self) -> str:
        """Return the name of the declared function."""
        return _function_name(self.tokens)[0]

    @property
    def qualified(self) -> str:
        """Return the name of the declared function with its namespaces."""
        return f"{self.scope}::{self.name}" if self.scope else self.name

    def parameters(self) -> list[tuple[Token, ...]]:
        """Return the tokens of each parameter of the declared function."""
        opened = _function_name(self.tokens)[1]
        return split(self.tokens[opened + 1 : closing_bracket(self.tokens, opened)], ",") if opened >= 0 else []


@functools.lru_cache(256)
def declarations(text: str) -> tuple[Declaration, ...]:
    """Return the declarations and directives in all namespaces of a text, in order."""
    return tuple(_Scanner(text).declarations())


@dataclass
class _Scanner:
    """Scan the tokens of a text once and split them into declarations."""

    text: str

    @functools.cached_property
    def attributes(self) -> frozenset[str]:
        """Return the macros with arguments that expand to an attribute of the next declaration."""
        return frozenset(ATTRIBUTE_MACRO.findall(self.text))

    def declarations(self) -> Iterator[Declaration]:
        file_tokens = list(tokens(self.text))
        spaces: list[tuple[str, bool]] = []  # namespaces, and whether each is `extern "C"`
        index = line = position = 0
        while index < len(file_tokens):
            token = file_tokens[index]
            line += self.text.count("\n", position, token.start)
            position = token.start
            scope = "::".join(name for name, _ in spaces if name)
            if token.kind == "directive":
                yield self._made([token], line + 1, "directive", scope, False)
                index += 1
                continue
            if token.text == "}" and spaces:
                spaces.pop()
                index += 1
                continue
            if token.text in (";", "}"):
                index += 1
                continue
            if (opened := _namespace(file_tokens, index)) is not None:
                name, index, in_c = opened
                spaces.append((name, in_c))
                continue
            end = _end(file_tokens, index, self.attributes)
            in_c = any(flag for _, flag in spaces)
            yield self._made(file_tokens[index:end], line + 1, "", scope, in_c)
            index = end

    def _made(self, found: Sequence[Token], line: int, kind: str, scope: str, in_c: bool) -> Declaration:
        code = [token for token in found if token.kind != "directive"]
        if kind == "directive":
            names, uses = macro_names(found[0])
            uses -= KEYWORDS | DEVICE | ATTRIBUTES
            return Declaration(
                found[0].start, found[-1].end, line, names, uses, uses, tuple(found), kind, frozenset(), scope
            )
        body = _body(code)
        head = code[: body if body >= 0 else len(code)]
        marks = {token.text for token in head if token.text in DEVICE or token.text in ("constexpr", "consteval")}
        if in_c or any(a.text == "extern" and b.text == '"C"' for a, b in itertools.pairwise(head)):
            marks.add("C")
        kind = _kind(code, body)
        declared = _names(code, kind)
        local = local_names(code)
        uses = frozenset(used_names(code)) - local
        # A function's own name precedes its parameters.
        calls = frozenset(called_names(code[max(0, _function_name(code)[1]) if kind == "function" else 0 :]))
        names = frozenset(declared - KEYWORDS) | (frozenset(("operator",)) & declared)
        place = (found[0].start, found[-1].end, line)
        body = body if kind == "function" else -1
        return Declaration(
            *place, names, uses - KEYWORDS, calls - local, tuple(code), kind, frozenset(marks), scope, body
        )


def _namespace(code: Sequence[Token], index: int) -> tuple[str, int, bool] | None:
    """Return the name of a namespace that opens here, the index after its bracket, and whether it is `extern "C"`."""
    ahead = [token.text for token in code[index : index + 12]]
    if ahead[:2] == ["extern", '"C"'] and ahead[2:3] == ["{"]:
        return "", index + 3, True
    if ahead[:1] == ["inline"] and ahead[1:2] == ["namespace"]:
        ahead, index = ahead[1:], index + 1
    if ahead[:1] != ["namespace"] or "{" not in ahead:
        return None
    opened = ahead.index("{")
    if "=" in ahead[:opened] or ";" in ahead[:opened]:
        return None
    return "".join(ahead[1:opened]), index + opened + 1, False


def _end(code: Sequence[Token], index: int, attributes: frozenset[str]) -> int:
    """Return the index after the last token of the declaration that starts at `index`."""
    depth, conditions, first = 0, [], index
    while index < len(code):
        token = code[index]
        if token.kind == "directive":
            word = directive(token)
            if word in ("if", "ifdef", "ifndef"):
                conditions.append(depth)
            elif word in ("else", "elif", "elifdef") and conditions:
                depth = conditions[-1]
            elif word == "endif" and conditions:
                conditions.pop()
            elif depth == 0 and not conditions and word in ("include", "define", "undef", "pragma"):
                return index  # a macro's use without a semicolon
        elif token.kind == "mark" and token.text in OPENING:
            depth += 1
        elif token.kind == "mark" and token.text in CLOSING:
            depth -= 1
            if depth < 0:
                return max(index, first + 1)  # the end of a namespace, after a macro's use
            if depth == 0 and token.text == "}" and _is_body(code, first, index):
                return index + 1
            alone = depth == 0 and token.text == ")" and code[first].text not in attributes
            if alone and _is_use(code, first, index):
                return index + 1
        elif token.text == ";" and depth == 0:
            return index + 1
        index += 1
    return index


def _is_use(code: Sequence[Token], first: int, closed: int) -> bool:
    """Return whether these tokens are a macro call that ends without a semicolon."""
    named = code[first].kind == "name" and code[first].text not in ATTRIBUTES
    alone = named and code[first + 1].text == "(" and closing_bracket(code, first + 1) == closed
    return alone and closed + 1 < len(code) and code[closed + 1].kind == "name"


def _is_body(found: Sequence[Token], first: int, closed: int) -> bool:
    """Return whether the brace that closes here ends a function's body.

    A type or an initialiser ends with a semicolon.
    """
    code = [token for token in found[first : closed + 1] if token.kind != "directive"]
    return _body(code) >= 0


def _body(code: Sequence[Token]) -> int:
    """Return the index of the brace that opens a function's body, or -1."""
    index, parameters = 0, False
    while index < len(code):
        token = code[index]
        if token.text == "template" and index + 1 < len(code) and code[index + 1].text == "<":
            index = closing_angle_bracket(code, index + 1)
        elif token.text in TYPES and not parameters and _opens_type(code, index):
            return -1
        elif token.kind == "mark" and token.text in "([":
            ends = closing_bracket(code, index)
            called = index > 0 and (code[index - 1].kind == "name" or code[index - 1].text in (">", ")", "]"))
            ours = token.text == "(" and called and code[index - 1].text not in ATTRIBUTES
            parameters = parameters or ours or (token.text == "(" and _after_operator(code, index))
            index = ends
        elif token.text == "=" and not _after_operator(code, index + 1):
            return -1
        elif token.text == "{":
            return index if parameters else -1
        elif token.text == ";":
            return -1
        index += 1
    return -1


def _opens_type(code: Sequence[Token], index: int) -> bool:
    """Return whether `struct` (or class, union, enum) defines a type here, and is not part of a function's result."""
    depth = 0
    for position in range(index, len(code)):
        text = code[position].text
        if text == "(" and code[position - 1].text not in ATTRIBUTES and depth == 0:
            return False
        depth += (text in "([") - (text in ")]") if code[position].kind == "mark" else 0
        if text == "{" and depth == 0:
            return True
        if text == ";" and depth == 0:
            return False
    return False


def _after_operator(code: Sequence[Token], index: int) -> bool:
    """Return whether the tokens before an index are `operator` and its symbol."""
    return any(token.text == "operator" for token in code[max(0, index - 3) : index])


def _kind(code: Sequence[Token], body: int) -> str:
    first = next((t.text for t in code), "")
    if first == "using" and len(code) > 1 and code[1].text == "namespace":
        return "using"
    if body >= 0:
        return "function"
    start = 0
    while start < len(code) and code[start].text == "template" and code[start + 1 : start + 2]:
        start = closing_angle_bracket(code, start + 1) + 1 if code[start + 1].text == "<" else start + 1
    if any(code[i].text in TYPES and _opens_type(code, i) for i in range(start, min(start + 3, len(code)))):
        return "type"
    # A prototype declares the same name as its definition.
    name, opened = _function_name(code)
    ends = closing_bracket(code, opened) if opened >= 0 else len(code)
    if name and opened >= 2 and ends < len(code) and first not in ("typedef", "using", "static_assert"):
        after = [t.text for t in code[ends + 1 :]]
        if after[:1] in ([";"], ["const"], ["noexcept"]) and "=" not in [t.text for t in code[:opened]]:
            return "prototype"
    return "other"


def _function_name(code: Sequence[Token]) -> tuple[str, int]:
    """Return the name before a function's parameters and the index of the opening bracket; "" and -1 without one."""
    index = 0
    while index < len(code):
        text = code[index].text
        if text == "template" and index + 1 < len(code) and code[index + 1].text == "<":
            index = closing_angle_bracket(code, index + 1)
        elif text == "operator":
            opened = next((i for i in range(index + 2, len(code)) if code[i].text == "("), -1)
            return "operator", opened
        elif text == "<" and index and code[index - 1].kind == "name":
            ends = closing_angle_bracket(code, index)
            if ends > index and ends + 1 < len(code) and code[ends + 1].text == "(":
                return code[index - 1].text, ends + 1
            index = max(ends, index)
        elif text == "(" and code[index].kind == "mark":
            before = code[index - 1] if index else None
            if before is not None and before.kind == "name" and before.text not in ATTRIBUTES:
                return before.text, index
            index = closing_bracket(code, index)
        elif text in ("=", "{", ";"):
            break
        index += 1
    return "", -1


def _names(code: Sequence[Token], kind: str) -> set[str]:
    """Return the names that a declaration declares; a name too many does no harm."""
    if kind in ("function", "prototype"):
        name, opened = _function_name(code)
        names = {name}
        index = opened - 1
        while index > 1 and code[index - 1].text == "::":  # a member's definition belongs to its class
            index -= 2
            if code[index].text == ">":
                index = max((i for i in range(index) if code[i].text == "<"), default=1) - 1
            names.add(code[index].text)
        return names - {""}
    names = set()
    for index, token in enumerate(code):
        if token.text in TYPES:
            names |= _type_names(code, index)
    depth = index = 0
    while index < len(code):
        token = code[index]
        if token.kind == "mark" and token.text in OPENING:
            if token.text == "(" and code[index + 1 : index + 2] and code[index + 1].text in ("*", "&"):
                names |= {t.text for t in code[index + 1 : closing_bracket(code, index)] if t.kind == "name"}
            depth, index = 0, closing_bracket(code, index)
        elif token.kind == "name" and depth == 0:
            follows = code[index + 1].text if index + 1 < len(code) else ";"
            if follows in ("=", "[", ";", ",", "{", ":", "(") or (follows == "<" and kind == "type"):
                names.add(token.text)
        index += 1
    return names


def _type_names(code: Sequence[Token], index: int) -> set[str]:
    """Return the name of a type and, for an enumeration, its enumerators."""
    is_enumeration = code[index].text == "enum"
    opened = next((i for i in range(index, len(code)) if code[i].text in ("{", ";")), len(code))
    position, names = index + 1, set()
    while position < opened:
        if code[position].text in ATTRIBUTES and position + 1 < opened and code[position + 1].text == "(":
            position = closing_bracket(code, position + 1)
        elif code[position].kind == "name" and code[position].text not in TYPES:
            names.add(code[position].text)
            break
        position += 1
    if is_enumeration and opened < len(code) and code[opened].text == "{":
        names |= {token.text for token in code[opened : closing_bracket(code, opened)] if token.kind == "name"}
    return names
