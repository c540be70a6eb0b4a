"""Find the pointers that a kernel stores to or reads from, without expanding macros."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from opbench.adopting.host_launches import parameter_of
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_angle_bracket, closing_bracket, split, text_of, texts_of

STORED, ADDED = "stored", "added"
"""Kinds of stores: one that can replace the old content, and one that only adds to the old content."""
ATOMIC_CALL = re.compile(r"^atomic(Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)\w*$")
STORE_FUNCTION = re.compile(r"(?i)^(?:store|write|st_)|(?:_store|store\d*|_write)$|^store_matrix_sync$")
"""Names of functions that store through their first pointer argument."""
CAST_KEYWORDS = frozenset(
    ("reinterpret_cast", "static_cast", "float", "half", "int", "unsigned", "void", "const", "char")
)
MAX_CALL_DEPTH = 3
"""The greatest depth of nested calls that are searched."""
COMPOUND_OPERATORS = "+-*/%&|^"
"""Characters before `=` that make the assignment an update."""


def stores(
    function: Declaration, pointers: Sequence[str], functions: Mapping[str, Declaration], depth: int = 0
) -> dict[str, str]:
    """Return the pointers to which a function stores, directly or in functions that it calls.

    The value of a pointer is "added" if the function only adds to the old content, else "stored". `depth` counts
    nested calls.
    """
    pointer_by_name = {name: name for name in pointers}
    result: dict[str, str] = {}
    for statement in statements(function.tokens[function.body + 1 :]):
        if alias := _alias(statement, pointer_by_name):
            pointer_by_name |= alias
            continue
        stores_in_calls = (
            _stores_in_calls(statement, pointer_by_name, functions, depth) if depth < MAX_CALL_DEPTH else ()
        )
        for name, store_kind in (*_stores_in_statement(statement, pointer_by_name), *stores_in_calls):
            result[name] = STORED if STORED in (store_kind, result.get(name)) else ADDED
    return result


def pointers_read(
    function: Declaration, pointers: Sequence[str], functions: Mapping[str, Declaration], depth: int = 0
) -> set[str]:
    """Return the pointers that a function reads from, directly or in functions that it calls.

    An atomic operation is no read, and neither is a comparison with a null pointer.
    """
    pointer_by_name = {name: name for name in pointers}
    result: set[str] = set()
    for statement in statements(function.tokens[function.body + 1 :]):
        if alias := _alias(statement, pointer_by_name):
            pointer_by_name |= alias
            continue
        result |= {
            pointer_by_name[statement[index].text] for index in _read_indices(statement, pointer_by_name, functions)
        }
        if depth < MAX_CALL_DEPTH:
            for called_function, parameters, passed_pointers in _called_functions(
                statement, pointer_by_name, functions
            ):
                pointers_read_inside = pointers_read(called_function, parameters, functions, depth + 1)
                result |= {passed_pointers[name] for name in pointers_read_inside & passed_pointers.keys()}
    return result


def read_before_stored(
    function: Declaration, pointers: Sequence[str], functions: Mapping[str, Declaration]
) -> set[str]:
    """Return the pointers that a function reads in or before the statement that first stores to them."""
    result: set[str] = set()
    accessed: set[str] = set()
    for statement in statements(function.tokens[function.body + 1 :]):
        pointer_by_name = {name: name for name in pointers if name not in accessed}
        if not _alias(statement, pointer_by_name):
            read_here = {statement[index].text for index in _read_indices(statement, pointer_by_name, functions)}
            result |= read_here
            accessed |= read_here | {name for name, _ in _stores_in_statement(statement, pointer_by_name)}
    return result


def _read_indices(
    statement: Sequence[Token], pointer_by_name: Mapping[str, str], functions: Mapping[str, Declaration]
) -> Iterator[int]:
    """Yield the index of each token in a statement that is the name of a pointer that the statement reads through."""
    non_reads: set[int] = set()
    equals_index = _assignment_index(statement)
    if equals_index > 0 and statement[equals_index - 1].text not in COMPOUND_OPERATORS:
        stored_pointer = _stored_pointer(statement[:equals_index], pointer_by_name)
        non_reads |= (
            {next((i for i in range(equals_index) if statement[i].text == stored_pointer), -1)}
            if stored_pointer in pointer_by_name
            else set()
        )
    for index, (token, next_token) in enumerate(itertools.pairwise(statement)):
        if token.kind != "name" or next_token.text not in ("(", "<"):
            continue
        opening = closing_angle_bracket(statement, index + 1) + 1 if next_token.text == "<" else index + 1
        if opening >= len(statement) or statement[opening].text != "(":
            continue
        closing = closing_bracket(statement, opening)
        if token.text in functions:
            non_reads |= set(range(opening, closing))  # `pointers_read` searches the called function itself.
        elif ATOMIC_CALL.match(token.text) or STORE_FUNCTION.search(token.text):
            depth = 0
            for argument_index in range(opening + 1, closing):
                depth += (statement[argument_index].text in "([{") - (statement[argument_index].text in ")]}")
                if depth == 0 and statement[argument_index].text == ",":
                    break
                if statement[argument_index].text in pointer_by_name:
                    non_reads.add(argument_index)
                    break
    for index, token in enumerate(statement):
        if token.kind != "name" or token.text not in pointer_by_name or index in non_reads:
            continue
        next_texts = [other.text for other in statement[index + 1 : index + 4]]
        is_null_test = next_texts[:2] in (["=", "="], ["!", "="]) or (index and statement[index - 1].text == "!")
        if not is_null_test and len(statement) > 1:
            yield index


def _called_functions(
    statement: Sequence[Token], pointer_by_name: Mapping[str, str], functions: Mapping[str, Declaration]
) -> Iterator[tuple[Declaration, list[str], dict[str, str]]]:
    """Yield the functions that a statement calls, with their pointer parameters and the pointer passed to each name."""
    for index, token in enumerate(statement[:-1]):
        if token.text not in functions:
            continue
        opening = closing_angle_bracket(statement, index + 1) + 1 if statement[index + 1].text == "<" else index + 1
        if opening < len(statement) and statement[opening].text == "(":
            function = functions[token.text]
            parameters = [parameter_of(tokens) for tokens in function.parameters()]
            arguments = split(statement[opening + 1 : closing_bracket(statement, opening)], ",")
            passed_pointers = {
                parameter.name: pointer_by_name[pointer]
                for parameter, argument in zip(parameters, arguments, strict=False)
                if (pointer := next((t.text for t in argument if t.text in pointer_by_name), ""))
            }
            yield function, [parameter.name for parameter in parameters if parameter.is_pointer], passed_pointers


def _stores_in_calls(
    statement: Sequence[Token], pointer_by_name: Mapping[str, str], functions: Mapping[str, Declaration], depth: int
) -> Iterator[tuple[str, str]]:
    """Yield each pointer that a function called in a statement stores to, with the kind of store."""
    for function, parameters, passed_pointers in _called_functions(statement, pointer_by_name, functions):
        store_kinds = stores(function, parameters, functions, depth + 1)
        yield from ((passed_pointers[name], kind) for name, kind in store_kinds.items() if name in passed_pointers)


def statements(body: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the statements in a function's body; the clauses in `for (…)` and `if (…)` are statements, too."""
    start, bracket_depth = 0, 0
    for index, token in enumerate(body):
        mark = token.text if token.kind == "mark" else ""
        bracket_depth = 0 if mark in ("{", "}") else max(0, bracket_depth + (mark == "(") - (mark == ")"))
        if mark in ("{", "}") or (mark == ";" and not bracket_depth):
            yield from _without_control_heads(body[start:index])
            start = index + 1


def stored_index(statement: Sequence[Token], pointers: Sequence[str]) -> tuple[str, str, Sequence[Token]] | None:
    """Return pointer, index and value of `pointer[index] = value`; None for other statements."""
    equals_index = _assignment_index(statement)
    if equals_index < 4 or statement[0].text not in pointers or statement[1].text != "[":
        return None
    closing = closing_bracket(statement, 1)
    if closing != equals_index - 1:
        return None
    return statement[0].text, text_of(statement[2:closing]), statement[equals_index + 1 :]


def _without_control_heads(statement: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the clauses of the `if (…)` or `for (…)` before a statement, then the statement itself."""
    while len(statement) > 1 and statement[0].text in ("if", "while", "for", "else", "do"):
        closing = closing_bracket(statement, 1) if statement[1].text == "(" else 0
        yield from split(statement[2:closing], ";")
        statement = statement[closing + 1 :]
    yield statement


def _alias(statement: Sequence[Token], pointer_by_name: Mapping[str, str]) -> dict[str, str]:
    """Return a local pointer with the pointer that it is derived from, as in `float* row = out + first`; else empty."""
    equals_index = _assignment_index(statement)
    if (
        equals_index < 1
        or statement[equals_index - 1].kind != "name"
        or statement[equals_index - 1].text in pointer_by_name
    ):
        return {}
    declaration_texts = texts_of(statement[: equals_index - 1])
    is_pointer = bool({"*", "auto", "&"} & set(declaration_texts))
    value = statement[equals_index + 1 :]
    if not is_pointer or ("[" in texts_of(value) and "&" not in texts_of(value)):
        return {}
    pointer = next((token.text for token in value if token.text in pointer_by_name), "")
    return {statement[equals_index - 1].text: pointer_by_name[pointer]} if pointer else {}


def _stores_in_statement(statement: Sequence[Token], pointer_by_name: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each pointer to which a statement stores, with "added" or "stored"."""
    equals_index = _assignment_index(statement)
    if equals_index > 0:
        is_update = statement[equals_index - 1].text in COMPOUND_OPERATORS
        name = _stored_pointer(statement[: equals_index - 1 if is_update else equals_index], pointer_by_name)
        if name in pointer_by_name:
            yield pointer_by_name[name], ADDED if is_update and statement[equals_index - 1].text in "+-" else STORED
    for index, (token, next_token) in enumerate(itertools.pairwise(statement)):
        if token.kind != "name" or next_token.text != "(":
            continue
        atomic_match = ATOMIC_CALL.match(token.text)
        if not atomic_match and not STORE_FUNCTION.search(token.text):
            continue
        arguments = split(statement[index + 2 : closing_bracket(statement, index + 1)], ",")
        name = next(
            (
                t.text
                for argument in arguments[:1]
                for t in argument
                if t.kind == "name" and t.text not in CAST_KEYWORDS
            ),
            "",
        )
        if name in pointer_by_name:
            yield (
                pointer_by_name[name],
                ADDED if atomic_match and (atomic_match[1] or "Add").startswith(("Add", "Sub")) else STORED,
            )


def _assignment_index(statement: Sequence[Token]) -> int:
    """Return the index of the `=` of an assignment outside of brackets; -1 without one."""
    index = 0
    while index < len(statement):
        token = statement[index]
        if token.kind == "mark" and token.text in "([":
            index = closing_bracket(statement, index)
        elif token.text == "=":
            neighbours = (*statement[index - 1 : index], *statement[index + 1 : index + 2])
            if not any(other.text in ("=", "!", "<", ">") for other in neighbours):
                return index
            index += 1
        index += 1
    return -1


def _stored_pointer(left_side: Sequence[Token], pointer_by_name: Mapping[str, str]) -> str:
    """Return the pointer that the left side of an assignment stores through: the first indexed name; "" if none."""
    for index, token in enumerate(left_side):
        next_text = left_side[index + 1].text if index + 1 < len(left_side) else ""
        if token.kind == "name" and (next_text == "[" or (token.text in pointer_by_name and len(left_side) > 1)):
            return token.text
    return ""
