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
    texts_of,
    tokens,
    words,
)

DEVICE_SPECIFIERS = frozenset(("__global__", "__device__", "__constant__", "__shared__", "__managed__"))
TYPE_KEYWORDS = frozenset(("class", "struct", "union", "enum"))
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
    specifiers: frozenset[str]
    """CUDA's specifiers, `constexpr` and `extern "C"` (as "C") before its name."""
    scope: str
    """The enclosing namespaces, such as "a::b"."""
    body: int = -1
    """For a function's definition, the index of the token that opens its body; otherwise -1."""

    @property
    def is_device(self) -> bool:
        """Return whether the declaration is device code."""
        return bool(self.specifiers & DEVICE_SPECIFIERS)

    @property
    def is_kernel(self) -> bool:
        """Return whether the declaration defines a kernel."""
        return "__global__" in self.specifiers and self.body >= 0

    @property
    def is_template(self) -> bool:
        """Return whether the declaration is a template without an explicit instantiation."""
        first = texts_of(self.tokens[:3])
        return first[:1] == ["template"] and first[1:] != ["<", ">"]

    @property
    def name(self) -> str:
        """Return the name of the declared function."""
        return _function_name(self.tokens)[0]

    @property
    def qualified_name(self) -> str:
        """Return the name of the declared function with its namespaces."""
        return f"{self.scope}::{self.name}" if self.scope else self.name

    def template_parameters(self) -> list[tuple[Token, ...]]:
        """Return the tokens of each parameter of a template; empty for other declarations."""
        return split(self.tokens[2 : closing_angle_bracket(self.tokens, 1)], ",") if self.is_template else []

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
        open_namespaces: list[tuple[str, bool]] = []  # namespaces, and whether each is `extern "C"`
        index = line = position = 0
        while index < len(file_tokens):
            token = file_tokens[index]
            line += self.text.count("\n", position, token.start)
            position = token.start
            scope = "::".join(name for name, _ in open_namespaces if name)
            if token.kind == "directive":
                yield self._declaration([token], line + 1, "directive", scope, False)
                index += 1
                continue
            if token.text == "}" and open_namespaces:
                open_namespaces.pop()
                index += 1
                continue
            if token.text in (";", "}"):
                index += 1
                continue
            if (namespace_opening := _namespace(file_tokens, index)) is not None:
                name, index, is_extern_c = namespace_opening
                open_namespaces.append((name, is_extern_c))
                continue
            end = _end_index(file_tokens, index, self.attributes)
            is_extern_c = any(flag for _, flag in open_namespaces)
            yield self._declaration(file_tokens[index:end], line + 1, "", scope, is_extern_c)
            index = end

    def _declaration(
        self, declaration_tokens: Sequence[Token], line: int, kind: str, scope: str, is_extern_c: bool
    ) -> Declaration:
        code = [token for token in declaration_tokens if token.kind != "directive"]
        if kind == "directive":
            names, uses = macro_names(declaration_tokens[0])
            uses -= KEYWORDS | DEVICE_SPECIFIERS | ATTRIBUTES
            return Declaration(
                declaration_tokens[0].start,
                declaration_tokens[-1].end,
                line,
                names,
                uses,
                uses,
                tuple(declaration_tokens),
                kind,
                frozenset(),
                scope,
            )
        body = _body_index(code)
        head_tokens = code[: body if body >= 0 else len(code)]
        specifiers = {
            token.text
            for token in head_tokens
            if token.text in DEVICE_SPECIFIERS or token.text in ("constexpr", "consteval")
        }
        if is_extern_c or any(a.text == "extern" and b.text == '"C"' for a, b in itertools.pairwise(head_tokens)):
            specifiers.add("C")
        kind = _kind(code, body)
        declared_names = _names(code, kind)
        locals_ = local_names(code)
        uses = frozenset(used_names(code)) - locals_
        # A function's own name precedes its parameters.
        calls = frozenset(called_names(code[max(0, _function_name(code)[1]) if kind == "function" else 0 :]))
        names = frozenset(declared_names - KEYWORDS) | (frozenset(("operator",)) & declared_names)
        position = (declaration_tokens[0].start, declaration_tokens[-1].end, line)
        body = body if kind == "function" else -1
        return Declaration(
            *position, names, uses - KEYWORDS, calls - locals_, tuple(code), kind, frozenset(specifiers), scope, body
        )


def _namespace(code: Sequence[Token], index: int) -> tuple[str, int, bool] | None:
    """Return the namespace or `extern "C"` block that the tokens at `index` open; None if they open neither.

    The result is the namespace's name (empty for `extern "C"` and a namespace without a name), the index after the
    opening brace, and whether it is `extern "C"`.
    """
    next_words = texts_of(code[index : index + 12])
    if next_words[:2] == ["extern", '"C"'] and next_words[2:3] == ["{"]:
        return "", index + 3, True
    if next_words[:1] == ["inline"] and next_words[1:2] == ["namespace"]:
        next_words, index = next_words[1:], index + 1
    if next_words[:1] != ["namespace"] or "{" not in next_words:
        return None
    opened = next_words.index("{")
    if "=" in next_words[:opened] or ";" in next_words[:opened]:
        return None
    return "".join(next_words[1:opened]), index + opened + 1, False


def _end_index(code: Sequence[Token], index: int, attributes: frozenset[str]) -> int:
    """Return the index after the last token of the declaration that starts at `index`."""
    depth, conditions, first_index = 0, [], index
    while index < len(code):
        token = code[index]
        if token.kind == "directive":
            directive_name = directive(token)
            if directive_name in ("if", "ifdef", "ifndef"):
                conditions.append(depth)
            elif directive_name in ("else", "elif", "elifdef") and conditions:
                depth = conditions[-1]
            elif directive_name == "endif" and conditions:
                conditions.pop()
            elif depth == 0 and not conditions and directive_name in ("include", "define", "undef", "pragma"):
                return index  # a macro's use without a semicolon
        elif token.kind == "mark" and token.text in OPENING:
            depth += 1
        elif token.kind == "mark" and token.text in CLOSING:
            depth -= 1
            if depth < 0:
                return max(index, first_index + 1)  # the end of a namespace, after a macro's use
            if depth == 0 and token.text == "}" and _is_body(code, first_index, index):
                return index + 1
            is_complete = depth == 0 and token.text == ")" and code[first_index].text not in attributes
            if is_complete and _is_macro_use(code, first_index, index):
                return index + 1
        elif token.text == ";" and depth == 0:
            return index + 1
        index += 1
    return index


def _is_macro_use(code: Sequence[Token], first_index: int, closing: int) -> bool:
    """Return whether these tokens are a macro call that ends without a semicolon."""
    starts_with_name = code[first_index].kind == "name" and code[first_index].text not in ATTRIBUTES
    is_macro_call = (
        starts_with_name and code[first_index + 1].text == "(" and closing_bracket(code, first_index + 1) == closing
    )
    return is_macro_call and closing + 1 < len(code) and code[closing + 1].kind == "name"


def _is_body(scanned: Sequence[Token], first_index: int, closing: int) -> bool:
    """Return whether the brace that closes here ends a function's body.

    A type or an initialiser ends with a semicolon.
    """
    code = [token for token in scanned[first_index : closing + 1] if token.kind != "directive"]
    return _body_index(code) >= 0


def _body_index(code: Sequence[Token]) -> int:
    """Return the index of the brace that opens a function's body, or -1."""
    index, has_parameters = 0, False
    while index < len(code):
        token = code[index]
        if token.text == "template" and index + 1 < len(code) and code[index + 1].text == "<":
            index = closing_angle_bracket(code, index + 1)
        elif token.text in TYPE_KEYWORDS and not has_parameters and _opens_type(code, index):
            return -1
        elif token.kind == "mark" and token.text in "([":
            closing = closing_bracket(code, index)
            follows_name = index > 0 and (code[index - 1].kind == "name" or code[index - 1].text in (">", ")", "]"))
            opens_parameters = token.text == "(" and follows_name and code[index - 1].text not in ATTRIBUTES
            has_parameters = has_parameters or opens_parameters or (token.text == "(" and _after_operator(code, index))
            index = closing
        elif token.text == "=" and not _after_operator(code, index + 1):
            return -1
        elif token.text == "{":
            return index if has_parameters else -1
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
    if any(code[i].text in TYPE_KEYWORDS and _opens_type(code, i) for i in range(start, min(start + 3, len(code)))):
        return "type"
    # A prototype declares the same name as its definition.
    name, opened = _function_name(code)
    closing = closing_bracket(code, opened) if opened >= 0 else len(code)
    if name and opened >= 2 and closing < len(code) and first not in ("typedef", "using", "static_assert"):
        following = texts_of(code[closing + 1 :])
        if following[:1] in ([";"], ["const"], ["noexcept"]) and "=" not in texts_of(code[:opened]):
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
            closing = closing_angle_bracket(code, index)
            if closing > index and closing + 1 < len(code) and code[closing + 1].text == "(":
                return code[index - 1].text, closing + 1
            index = max(closing, index)
        elif text == "(" and code[index].kind == "mark":
            previous = code[index - 1] if index else None
            if previous is not None and previous.kind == "name" and previous.text not in ATTRIBUTES:
                return previous.text, index
            index = closing_bracket(code, index)
        elif text in ("=", "{", ";"):
            break
        index += 1
    return "", -1


def _names(code: Sequence[Token], kind: str) -> set[str]:
    """Return the names that a declaration declares; an additional name is harmless."""
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
        if token.text in TYPE_KEYWORDS:
            names |= _type_names(code, index)
    depth = index = 0
    while index < len(code):
        token = code[index]
        if token.kind == "mark" and token.text in OPENING:
            if token.text == "(" and code[index + 1 : index + 2] and code[index + 1].text in ("*", "&"):
                names |= {t.text for t in code[index + 1 : closing_bracket(code, index)] if t.kind == "name"}
            depth, index = 0, closing_bracket(code, index)
        elif token.kind == "name" and depth == 0:
            next_text = code[index + 1].text if index + 1 < len(code) else ";"
            if next_text in ("=", "[", ";", ",", "{", ":", "(") or (next_text == "<" and kind == "type"):
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
        elif code[position].kind == "name" and code[position].text not in TYPE_KEYWORDS:
            names.add(code[position].text)
            break
        position += 1
    if is_enumeration and opened < len(code) and code[opened].text == "{":
        names |= {token.text for token in code[opened : closing_bracket(code, opened)] if token.kind == "name"}
    return names
