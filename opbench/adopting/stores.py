"""Find the pointers that a kernel stores to or reads from, without expanding macros."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from opbench.adopting.host_launches import Parameter, parameter_of
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split

STORED, ADDED = "stored", "added"
ATOMIC_CALL = re.compile(r"^atomic(Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)\w*$")
STORE_FUNCTION = re.compile(r"(?i)^(?:store|write|st_)|(?:_store|store\d*|_write)$|^store_matrix_sync$")
"""Functions that store through the pointer that they are given first, or alone."""
CAST_KEYWORDS = frozenset(
    ("reinterpret_cast", "static_cast", "float", "half", "int", "unsigned", "void", "const", "char")
)
MAX_CALL_DEPTH = 3
"""Calls within calls that are looked into."""
COMPOUND_OPERATORS = "+-*/%&|^"
"""Signs that make `=` an update."""


def stores(
    function: Declaration, pointers: Sequence[str], functions: Mapping[str, Declaration], depth: int = 0
) -> dict[str, str]:
    """Return the pointers that a function stores to, directly or in functions that it calls.

    The kind is "added" if the function only adds to the old content, else "stored".
    """
    names = {name: name for name in pointers}
    result: dict[str, str] = {}
    for statement in statements(function.tokens[function.body + 1 :]):
        if alias := _alias(statement, names):
            names |= alias
            continue
        called = _called(statement, names, functions, depth) if depth < MAX_CALL_DEPTH else ()
        for name, how in (*_stored(statement, names), *called):
            result[name] = STORED if STORED in (how, result.get(name)) else ADDED
    return result


def pointers_read(
    function: Declaration, pointers: Sequence[str], functions: Mapping[str, Declaration], depth: int = 0
) -> set[str]:
    """Return the pointers that a function reads from, directly or in functions that it calls.

    An atomic operation is no read, and neither is a comparison with a null pointer.
    """
    names = {name: name for name in pointers}
    result: set[str] = set()
    for statement in statements(function.tokens[function.body + 1 :]):
        if alias := _alias(statement, names):
            names |= alias
            continue
        result |= {names[statement[index].text] for index in _read_at(statement, names, functions)}
        if depth < MAX_CALL_DEPTH:
            for inner, taken, arguments in _calls(statement, functions):
                read = pointers_read(
                    inner, [parameter.name for parameter in taken if parameter.is_pointer], functions, depth + 1
                )
                for parameter, argument in zip(taken, arguments, strict=False):
                    first = next((t.text for t in argument if t.text in names), "")
                    if first and parameter.name in read:
                        result.add(names[first])
    return result


def read_before_stored(
    function: Declaration, pointers: Sequence[str], functions: Mapping[str, Declaration]
) -> set[str]:
    """Return the pointers that a function reads in or before the statement that first stores to them."""
    result: set[str] = set()
    seen: set[str] = set()
    for statement in statements(function.tokens[function.body + 1 :]):
        names = {name: name for name in pointers if name not in seen}
        if not _alias(statement, names):
            read = {statement[index].text for index in _read_at(statement, names, functions)}
            result |= read
            seen |= read | {name for name, _ in _stored(statement, names)}
    return result


def _read_at(
    statement: Sequence[Token], names: Mapping[str, str], functions: Mapping[str, Declaration]
) -> Iterator[int]:
    """Yield the index of each pointer's name in a statement through which the statement reads."""
    written: set[int] = set()
    equals = _assignment(statement)
    if equals > 0 and statement[equals - 1].text not in COMPOUND_OPERATORS:
        target = _target(statement[:equals], names)
        written |= {next((i for i in range(equals) if statement[i].text == target), -1)} if target in names else set()
    for index, (token, after) in enumerate(itertools.pairwise(statement)):
        if token.kind != "name" or after.text not in ("(", "<"):
            continue
        opened = closing_angle_bracket(statement, index + 1) + 1 if after.text == "<" else index + 1
        if opened >= len(statement) or statement[opened].text != "(":
            continue
        ends = closing_bracket(statement, opened)
        if token.text in functions:
            written |= set(range(opened, ends))  # looked into
        elif ATOMIC_CALL.match(token.text) or STORE_FUNCTION.search(token.text):
            depth = 0
            for at in range(opened + 1, ends):
                depth += (statement[at].text in "([{") - (statement[at].text in ")]}")
                if depth == 0 and statement[at].text == ",":
                    break
                if statement[at].text in names:
                    written.add(at)
                    break
    for index, token in enumerate(statement):
        if token.kind != "name" or token.text not in names or index in written:
            continue
        following = [other.text for other in statement[index + 1 : index + 4]]
        tested = following[:2] in (["=", "="], ["!", "="]) or (index and statement[index - 1].text == "!")
        if not tested and len(statement) > 1:
            yield index


def _calls(
    statement: Sequence[Token], functions: Mapping[str, Declaration]
) -> Iterator[tuple[Declaration, list[Parameter], list[tuple[Token, ...]]]]:
    """Return the functions that a statement calls, with their parameters and arguments."""
    for index, token in enumerate(statement[:-1]):
        if token.text not in functions:
            continue
        opened = closing_angle_bracket(statement, index + 1) + 1 if statement[index + 1].text == "<" else index + 1
        if opened < len(statement) and statement[opened].text == "(":
            inner = functions[token.text]
            arguments = split(statement[opened + 1 : closing_bracket(statement, opened)], ",")
            yield inner, [parameter_of(tokens) for tokens in inner.parameters()], arguments


def _called(
    statement: Sequence[Token], names: Mapping[str, str], functions: Mapping[str, Declaration], depth: int
) -> Iterator[tuple[str, str]]:
    """Yield each pointer that a function called in a statement stores to, with the kind of store."""
    for inner, taken, arguments in _calls(statement, functions):
        how = stores(inner, [parameter.name for parameter in taken if parameter.is_pointer], functions, depth + 1)
        for parameter, argument in zip(taken, arguments, strict=False):
            first = next((t.text for t in argument if t.text in names), "")
            if first and parameter.name in how:
                yield names[first], how[parameter.name]


def statements(body: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split a function's body at semicolons and braces; the parts in `for (…)` and `if (…)` are pieces, too."""
    start, inside = 0, 0
    for index, token in enumerate(body):
        sign = token.text if token.kind == "mark" else ""
        inside = 0 if sign in ("{", "}") else max(0, inside + (sign == "(") - (sign == ")"))
        if sign in ("{", "}") or (sign == ";" and not inside):
            yield from _without_heads(body[start:index])
            start = index + 1


def stored_index(statement: Sequence[Token], pointers: Sequence[str]) -> tuple[str, str, Sequence[Token]] | None:
    """Return pointer, index and value of `pointer[index] = value`; None for other statements."""
    equals = _assignment(statement)
    if equals < 4 or statement[0].text not in pointers or statement[1].text != "[":
        return None
    ends = closing_bracket(statement, 1)
    if ends != equals - 1:
        return None
    return statement[0].text, "".join(token.text for token in statement[2:ends]), statement[equals + 1 :]


def _without_heads(statement: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Return a statement without the `if (…)` before it, and the content of those brackets."""
    while len(statement) > 1 and statement[0].text in ("if", "while", "for", "else", "do"):
        ends = closing_bracket(statement, 1) if statement[1].text == "(" else 0
        yield from split(statement[2:ends], ";")
        statement = statement[ends + 1 :]
    yield statement


def _alias(statement: Sequence[Token], names: Mapping[str, str]) -> dict[str, str]:
    """Return a local pointer and the pointer assigned to it, as in `float* row = out + first`."""
    equals = _assignment(statement)
    if equals < 1 or statement[equals - 1].kind != "name" or statement[equals - 1].text in names:
        return {}
    before = [token.text for token in statement[: equals - 1]]
    pointed = bool({"*", "auto", "&"} & set(before))
    value = statement[equals + 1 :]
    if not pointed or ("[" in [token.text for token in value] and "&" not in [token.text for token in value]):
        return {}
    first = next((token.text for token in value if token.text in names), "")
    return {statement[equals - 1].text: names[first]} if first else {}


def _stored(statement: Sequence[Token], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    equals = _assignment(statement)
    if equals > 0:
        compound = statement[equals - 1].text in COMPOUND_OPERATORS
        name = _target(statement[: equals - 1 if compound else equals], names)
        if name in names:
            yield names[name], ADDED if compound and statement[equals - 1].text in "+-" else STORED
    for index, (token, after) in enumerate(itertools.pairwise(statement)):
        if token.kind != "name" or after.text != "(":
            continue
        atomic = ATOMIC_CALL.match(token.text)
        if not atomic and not STORE_FUNCTION.search(token.text):
            continue
        parts = split(statement[index + 2 : closing_bracket(statement, index + 1)], ",")
        name = next(
            (t.text for part in parts[:1] for t in part if t.kind == "name" and t.text not in CAST_KEYWORDS), ""
        )
        if name in names:
            yield names[name], ADDED if atomic and (atomic[1] or "Add").startswith(("Add", "Sub")) else STORED


def _assignment(statement: Sequence[Token]) -> int:
    """Return the index of the `=` of an assignment outside of brackets; -1 without one."""
    index = 0
    while index < len(statement):
        token = statement[index]
        if token.kind == "mark" and token.text in "([":
            index = closing_bracket(statement, index)
        elif token.text == "=":
            around = (*statement[index - 1 : index], *statement[index + 1 : index + 2])
            if not any(other.text in ("=", "!", "<", ">") for other in around):
                return index
            index += 1
        index += 1
    return -1


def _target(left: Sequence[Token], names: Mapping[str, str]) -> str:
    """Return the pointer that the left side of an assignment stores through: the first indexed name; "" if none."""
    for index, token in enumerate(left):
        after = left[index + 1].text if index + 1 < len(left) else ""
        if token.kind == "name" and (after == "[" or (token.text in names and len(left) > 1)):
            return token.text
    return ""
