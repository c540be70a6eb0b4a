"""Find the names that a declaration uses, and those that it declares."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from opbench.source.tokens import CLOSING, OPENING, Token, closing_angle_bracket, texts_of, words

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
    for index, (token, following) in enumerate(itertools.pairwise(code)):
        preceding = texts_of(code[max(0, index - 2) : index])
        is_foreign = preceding[-1:] in (["."], ["->"]) or (
            preceding[-1:] == ["::"] and preceding[0] in FOREIGN_NAMESPACES
        )
        if token.kind == "name" and following.text in ("(", "<", "::", "<<<") and not is_foreign:
            yield token.text


def local_names(code: Sequence[Token]) -> frozenset[str]:
    """Return the names of a function's parameters and local variables."""
    names = set(_template_parameters(code))
    open_brackets: list[str] = []  # the enclosing brackets, each after the token before it
    for index, token in enumerate(code):
        if token.kind == "mark" and token.text in OPENING:
            open_brackets.append((code[index - 1].text if index else "") + token.text)
        elif token.kind == "mark" and token.text in CLOSING and open_brackets:
            open_brackets.pop()
        if token.kind != "name" or not open_brackets or index == 0 or index + 1 >= len(code):
            continue
        if code[index + 1].text not in ("=", ";", ",", ")", "[", "{", "(", ":"):
            continue
        previous_index = index - 1
        while previous_index > 0 and code[previous_index].text in (
            "*",
            "&",
            "const",
            "__restrict__",
            "__restrict",
            "restrict",
        ):
            previous_index -= 1
        previous = code[previous_index]
        is_pointer = previous_index < index - 1
        is_type = previous.kind == "name" and previous.text not in NOT_A_TYPE
        if is_type and (not is_pointer or code[index + 1].text in ("=", ";", ",", ")", "[")):
            # `a * b)` looks like a declaration, but is one only at the start of a statement or parameter.
            word_before_type = code[previous_index - 1].text if previous_index else ""
            if (
                is_pointer
                and word_before_type in ("(", ",")
                and _may_be_product(open_brackets, previous, code[index + 1])
            ):
                continue
            if not is_pointer or word_before_type in (
                "(",
                ",",
                "{",
                ";",
                "}",
                "const",
                "unsigned",
                "::",
                "volatile",
                "static",
            ):
                names.add(token.text)
        elif previous.text == ">" and code[index + 1].text in ("=", ";", ",", ")", "[", "{"):
            names.add(token.text)
    return frozenset(names)


def _may_be_product(open_brackets: Sequence[str], left: Token, following: Token) -> bool:
    """Return whether `(left * name,` may be a product: in an attribute or a body, but not in a lambda's head."""
    if any(bracket[:-1] in ATTRIBUTES for bracket in open_brackets):
        return True
    in_body = any(bracket.endswith("{") for bracket in open_brackets)
    return in_body and following.text in (",", ")", "[") and left.text not in ARITHMETIC


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
    names_in_body = set(_WORD.findall(token.text[match.end() :]))
    return frozenset((match[1],)), frozenset(names_in_body - set(_WORD.findall(match["parameters"] or "")))
