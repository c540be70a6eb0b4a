"""Find the names that a declaration uses, and those that it declares."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from opbench.source.tokens import CLOSING, OPENING, Token, closing_angle_bracket, words

_DEFINE = re.compile(r"#\s*define\s+(\w+)(?P<parameters>\([^)]*\))?")
_WORD = re.compile(r"[A-Za-z_]\w*")
NOT_A_TYPE = words(
    """
    return else case goto throw new delete sizeof do in and or not typename co_return break continue
    """
)
"""Words that may precede a name without declaring it."""

ARITHMETIC = words("void bool char short int long float double unsigned signed auto half size_t")
"""Words before `*` that are types, so that `*` is no multiplication."""

ATTRIBUTES = words(
    """
    __launch_bounds__ __attribute__ __declspec alignas __align__ decltype noexcept requires __maxnreg__
    __cluster_dims__ __block_size__ explicit __noinline__ throw _Pragma __pragma
    """
)
"""Words that may have their own parentheses before a function's parameters."""


FOREIGN_NAMESPACES = words("std cg cooperative_groups cub thrust nvcuda wmma cuda ptx")
"""Namespaces of libraries, whose functions are not the user's."""


def plain_kernel(name: str) -> str:
    """Return a kernel's name without namespaces and template arguments: `ops::add<float, 4>` → `add`."""
    return name.split("<", maxsplit=1)[0].rsplit("::", maxsplit=1)[-1].strip()


def used_names(code: Sequence[Token]) -> Iterator[str]:
    """Yield the names that a declaration uses, except names of members."""
    for index, token in enumerate(code):
        if token.kind == "name" and not (index and code[index - 1].text in (".", "->")):
            yield token.text


def called_names(code: Sequence[Token]) -> Iterator[str]:
    """Yield the names, except members, that are called or have template arguments."""
    for index, (token, after) in enumerate(itertools.pairwise(code)):
        before = [token.text for token in code[max(0, index - 2) : index]]
        others = before[-1:] in (["."], ["->"]) or (before[-1:] == ["::"] and before[0] in FOREIGN_NAMESPACES)
        if token.kind == "name" and after.text in ("(", "<", "::", "<<<") and not others:
            yield token.text


def local_names(code: Sequence[Token]) -> frozenset[str]:
    """Return the names of a function's parameters and local variables."""
    names = set(_template_parameters(code))
    around: list[str] = []  # the enclosing brackets, each after the token before it
    for index, token in enumerate(code):
        if token.kind == "mark" and token.text in OPENING:
            around.append((code[index - 1].text if index else "") + token.text)
        elif token.kind == "mark" and token.text in CLOSING and around:
            around.pop()
        if token.kind != "name" or not around or index == 0 or index + 1 >= len(code):
            continue
        if code[index + 1].text not in ("=", ";", ",", ")", "[", "{", "(", ":"):
            continue
        back = index - 1
        while back > 0 and code[back].text in ("*", "&", "const", "__restrict__", "__restrict", "restrict"):
            back -= 1
        before = code[back]
        pointer = back < index - 1
        is_type = before.kind == "name" and before.text not in NOT_A_TYPE
        if is_type and (not pointer or code[index + 1].text in ("=", ";", ",", ")", "[")):
            # `a * b)` looks like a declaration, but is one only at the start of a statement or parameter.
            lead = code[back - 1].text if back else ""
            if pointer and lead in ("(", ",") and _may_be_product(around, before, code[index + 1]):
                continue
            if not pointer or lead in ("(", ",", "{", ";", "}", "const", "unsigned", "::", "volatile", "static"):
                names.add(token.text)
        elif before.text == ">" and code[index + 1].text in ("=", ";", ",", ")", "[", "{"):
            names.add(token.text)
    return frozenset(names)


def _may_be_product(around: Sequence[str], left: Token, after: Token) -> bool:
    """Return whether `(left * name,` may be a product: in an attribute or a body, but not in a lambda's head."""
    if any(bracket[:-1] in ATTRIBUTES for bracket in around):
        return True
    in_body = any(bracket.endswith("{") for bracket in around)
    return in_body and after.text in (",", ")", "[") and left.text not in ARITHMETIC


def _template_parameters(code: Sequence[Token]) -> Iterator[str]:
    if len(code) > 1 and code[0].text == "template":
        for before, token, after in zip(code[1:], code[2:], code[3 : closing_angle_bracket(code, 1) + 1], strict=False):
            if token.kind == "name" and before.text not in ("<", ",") and after.text in (",", ">", "="):
                yield token.text


def macro_names(token: Token) -> tuple[frozenset[str], frozenset[str]]:
    """Return the name that a `#define` defines, and the names in its replacement."""
    match = _DEFINE.match(token.text)
    if match is None:
        return frozenset(), frozenset()
    named = set(_WORD.findall(token.text[match.end() :]))
    return frozenset((match[1],)), frozenset(named - set(_WORD.findall(match["parameters"] or "")))
