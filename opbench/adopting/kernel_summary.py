"""Summarize a kernel from its text: which pointers it reads and writes, and the formula of its results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from opbench.adopting.host_launches import Parameter, definitions, plain_type
from opbench.adopting.stores import (
    ATOMIC_CALL,
    COMPOUND_OPERATORS,
    pointers_read,
    read_before_stored,
    statements,
    stored_index,
    stores,
)
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_bracket, text_of, texts_of

ZERO = r"(?:0|0\.|0\.0|0\.f|0\.0f|0f|T\(0\))"
FORMULAS = {
    "add": (r"@(\w+)\+@(?!\1\b)\w+", r"(?:__fadd_r[nzud]|add)\(@(\w+),@(?!\1\b)\w+\)"),
    "relu": (rf"f?maxf?\({ZERO},@\w+\)", rf"f?maxf?\(@\w+,{ZERO}\)", rf"\(?@(\w+)>=?{ZERO}\)?\?@\1:{ZERO}"),
    "same": (r"@\w+",),
}  # fmt: skip
"""Regular expressions of a stored value by formula; `@x` stands for an element that the kernel read from `x`."""


@dataclass(frozen=True)
class KernelSummary:
    """A kernel's reads, writes, indices and formula, from its text."""

    name: str
    parameters: tuple[Parameter, ...]
    """The kernel's parameters; a structure counts as one parameter for each field."""
    store_kinds: Mapping[str, str]
    """Pointers that the kernel stores to, with "stored", or "added" if it only adds to the old content."""
    read_pointers: frozenset[str]
    """Pointers that the kernel reads from."""
    body_names: frozenset[str]
    """Every identifier and keyword in the kernel's body."""
    reachable_names: frozenset[str] = frozenset()
    """Identifiers and keywords in the kernel's body and in the device functions that it calls."""
    read_before_store: frozenset[str] = frozenset()
    """Pointers that the kernel reads before it stores to them."""
    formula: str = ""
    """The formula of all stored values: "add", "relu" or "same" (a copy); "" for any other or several."""
    is_moved: bool = False
    """For the formula "same": whether an element is stored at another index than it was read at."""
    store_indices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The index expressions of stores, by pointer; a variable that stands for a product is replaced by the product."""
    load_indices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The index expressions of reads, by pointer."""
    element_types: Mapping[str, str] = field(default_factory=dict)
    """The C type of each pointer's elements, with template parameters replaced."""
    copied_indices: tuple[str, ...] = ()
    """For the formula "same": the index expressions of the elements that are read."""
    multiplied_names: frozenset[str] = frozenset()
    """Names in the kernel's body that stand next to a `*`."""
    number_literals: frozenset[str] = frozenset()
    """Number literals in the kernel's body."""

    @property
    def pointers(self) -> list[Parameter]:
        """Return the parameters that are pointers."""
        return [parameter for parameter in self.parameters if parameter.is_pointer]

    @property
    def is_readable(self) -> bool:
        """Return whether the kernel's body contains a store that the scan recognises."""
        return bool(self.store_kinds)


def summarize_kernel(
    kernel: Declaration, parameters: Sequence[Parameter], functions: Mapping[str, Declaration]
) -> KernelSummary:
    """Return what a kernel's body, and the device functions that it calls, read, write and compute."""
    pointers = [parameter.name for parameter in parameters if parameter.is_pointer]
    body = kernel.tokens[kernel.body + 1 :]
    names = frozenset(token.text for token in body if token.kind == "name")
    store_kinds = stores(kernel, pointers, functions)
    index_values = _index_values(body)
    formula, is_moved, copied_indices = _formula(body, pointers, index_values)
    factors = [token.text for pair in pairwise(body) for token in pair if "*" in (pair[0].text, pair[1].text)]
    return KernelSummary(
        kernel.name,
        tuple(parameters),
        store_kinds,
        frozenset(pointers_read(kernel, pointers, functions)),
        names,
        _reachable_names(names, functions),
        frozenset(read_before_stored(kernel, pointers, functions)),
        formula,
        is_moved,
        *_store_and_read_indices(body, pointers, index_values),
        {parameter.name: plain_type(parameter.type) for parameter in parameters if parameter.is_pointer},
        copied_indices,
        names & frozenset(factors),
        frozenset(token.text for token in body if token.kind == "number"),
    )


def _index_values(body: Sequence[Token]) -> dict[str, str]:
    """Return each variable that is assigned a product once, with the product, as in `int i = row * n + col;`."""
    reassigned = _reassigned_variables(body)
    values = {name: text_of(value) for name, value in definitions(body).items()}
    return {name: value for name, value in values.items() if "*" in value and name not in reassigned}


def _formula(
    body: Sequence[Token], pointers: Sequence[str], index_values: Mapping[str, str]
) -> tuple[str, bool, tuple[str, ...]]:
    """Return the formula that all stores of a kernel share, whether elements move, and the indices of its reads.

    The formula is a key of `FORMULAS`, or "" if the stores have another formula or several.
    """
    loaded: dict[str, tuple[str, str]] = {}
    reassigned = _reassigned_variables(body)
    formulas_and_moves: set[tuple[str, bool]] = set()
    copied_indices: list[str] = []
    for statement in statements(body):
        store = stored_index(statement, pointers)
        if store is not None:
            _, index, value = store
            index = index_values.get(index, index)
            text, read_indices = _with_reads_marked(
                value, pointers, {k: v for k, v in loaded.items() if k not in reassigned}
            )
            formula = next((k for k, patterns in FORMULAS.items() if any(re.fullmatch(p, text) for p in patterns)), "")
            read_indices = [index_values.get(read_index, read_index) for read_index in read_indices]
            formulas_and_moves.add((formula, formula == "same" and read_indices != [index]))
            copied_indices += read_indices
        elif [token.text for token in statement[:1] if token.text in pointers]:
            formulas_and_moves.add(("", False))  # an update such as +=
        else:
            _add_load(statement, pointers, loaded)
    formula_names = {formula for formula, _ in formulas_and_moves}
    return (
        (formula_names.pop(), any(is_moved for _, is_moved in formulas_and_moves), tuple(copied_indices))
        if len(formula_names) == 1
        else ("", False, ())
    )


def _reassigned_variables(body: Sequence[Token]) -> set[str]:
    """Return the variables that are assigned more than once, or incremented."""
    result: set[str] = set()
    assigned: set[str] = set()
    for previous, token, following, second_following in zip(body, body[1:], body[2:], body[3:], strict=False):
        if token.kind != "name":
            continue
        is_increment = (following.text == second_following.text and following.text in "+-") or (
            previous.text in "+-" and following.text == ";"
        )
        if is_increment or (following.text in "+-*/" and second_following.text == "="):
            result.add(token.text)
        elif following.text == "=" and second_following.text != "=":
            result |= {token.text} & assigned
            assigned.add(token.text)
    return result


def _add_load(statement: Sequence[Token], pointers: Sequence[str], loaded: dict[str, tuple[str, str]]) -> None:
    """Add a load such as `float v = x[i]` to `loaded`: the variable, with the pointer and the index."""
    texts = texts_of(statement)
    if "=" not in texts:
        return
    equals = texts.index("=")
    value = statement[equals + 1 :]
    is_indexed_read = len(value) > 3 and value[0].text in pointers and value[1].text == "["
    if equals and is_indexed_read and closing_bracket(value, 1) == len(value) - 1:
        loaded[texts[equals - 1]] = (value[0].text, text_of(value[2:-1]))


def _with_reads_marked(
    value: Sequence[Token], pointers: Sequence[str], loaded: Mapping[str, tuple[str, str]]
) -> tuple[str, list[str]]:
    """Return a stored value with `@x` in place of each element read from `x`, and the indices of the reads."""
    texts: list[str] = []
    indices: list[str] = []
    index = 0
    while index < len(value):
        token = value[index]
        if token.text in pointers and index + 1 < len(value) and value[index + 1].text == "[":
            closing = closing_bracket(value, index + 1)
            indices.append(text_of(value[index + 2 : closing]))
            texts.append(f"@{token.text}")
            index = closing + 1
            continue
        if token.text in loaded:
            texts.append(f"@{loaded[token.text][0]}")
            indices.append(loaded[token.text][1])
        else:
            texts.append(token.text)
        index += 1
    return "".join(texts), indices


def _reachable_names(names: frozenset[str], functions: Mapping[str, Declaration]) -> frozenset[str]:
    """Return `names`, and the names in the device functions that are reachable from them."""
    all_names, unvisited = set(names), list(names & functions.keys())
    while unvisited:
        names_in_function = {token.text for token in functions[unvisited.pop()].tokens if token.kind == "name"}
        unvisited += list((names_in_function & functions.keys()) - all_names)
        all_names |= names_in_function
    return frozenset(all_names)


def _store_and_read_indices(
    body: Sequence[Token], pointers: Sequence[str], index_values: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the index expressions of stores and of reads, each by pointer.

    Updates such as `+=` and atomic operations count as stores.
    """
    stores_and_reads: tuple[dict[str, tuple[str, ...]], ...] = {}, {}
    for index, token in enumerate(body[:-1]):
        if token.text not in pointers or body[index + 1].text != "[":
            continue
        closing = closing_bracket(body, index + 1)
        following_text = "".join(other.text for other in body[closing + 1 : closing + 3])
        is_stored = (
            (following_text[:1] == "=" and following_text != "==")
            or (following_text[:1] in COMPOUND_OPERATORS and following_text[1:] == "=")
            or following_text in ("++", "--")
        )
        preceding_texts = [other.text for other in body[max(0, index - 3) : index]]
        is_atomic = preceding_texts[1:] == ["(", "&"] and ATOMIC_CALL.match(preceding_texts[0]) is not None
        index_text = "".join(other.text for other in body[index + 2 : closing])
        indices_by_pointer = stores_and_reads[0 if is_stored or is_atomic else 1]
        indices_by_pointer[token.text] = (
            *indices_by_pointer.get(token.text, ()),
            index_values.get(index_text, index_text),
        )
    return stores_and_reads[0], stores_and_reads[1]
