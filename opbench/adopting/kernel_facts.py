"""Facts about a kernel from its text: which pointers it reads and writes, and the formula of its results."""

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
from opbench.source.tokens import Token, closing_bracket

ZERO = r"(?:0|0\.|0\.0|0\.f|0\.0f|0f|T\(0\))"
FORMULAS = {
    "add": (r"@(\w+)\+@(?!\1\b)\w+", r"(?:__fadd_r[nzud]|add)\(@(\w+),@(?!\1\b)\w+\)"),
    "relu": (rf"f?maxf?\({ZERO},@\w+\)", rf"f?maxf?\(@\w+,{ZERO}\)", rf"\(?@(\w+)>=?{ZERO}\)?\?@\1:{ZERO}"),
    "same": (r"@\w+",),
}  # fmt: skip
"""What is stored where each element read is written `@pointer`, by what it computes."""


@dataclass(frozen=True)
class KernelFacts:
    """A kernel's reads, writes, indices and formula, from its text."""

    name: str
    parameters: tuple[Parameter, ...]
    """Those of structures among them, field by field."""
    stored: Mapping[str, str]
    """The pointers that it stores to, with how."""
    read: frozenset[str]
    """The pointers that it reads from."""
    names: frozenset[str]
    """Every name in its body, with the keywords."""
    called_names: frozenset[str] = frozenset()
    """The same with the names in the functions that it calls."""
    read_first: frozenset[str] = frozenset()
    """The pointers that it reads before it stores to them."""
    formula: str = ""
    """ "add", "relu" or "same" where one store says all; "" where it takes more to see."""
    moved: bool = False
    """Of "same": whether the element read has another index than the one written."""
    indices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each pointer the indices at which it is stored to, as written; of a variable its value."""
    loaded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same of those at which it is only read."""
    elements: Mapping[str, str] = field(default_factory=dict)
    """The C type of each pointer's elements, template parameters replaced."""
    loaded_at: tuple[str, ...] = ()
    """Of "same": the indices of the elements read, as written."""
    multiplied: frozenset[str] = frozenset()
    """The names in its body next to a `*`."""
    numbers: frozenset[str] = frozenset()
    """The whole numbers in its body, as written."""

    @property
    def pointers(self) -> list[Parameter]:
        """Return the parameters that are pointers."""
        return [parameter for parameter in self.parameters if parameter.is_pointer]

    @property
    def is_readable(self) -> bool:
        """Return whether the kernel's body contains a store that the scan recognises."""
        return bool(self.stored)


def facts_of(kernel: Declaration, parameters: Sequence[Parameter], functions: Mapping[str, Declaration]) -> KernelFacts:
    """Read a kernel's body and the device functions that it calls."""
    pointers = [parameter.name for parameter in parameters if parameter.is_pointer]
    body = kernel.tokens[kernel.body + 1 :]
    names = frozenset(token.text for token in body if token.kind == "name")
    stored = stores(kernel, pointers, functions)
    index_values = _index_values(body)
    formula, moved, loaded_at = _formula(body, pointers, index_values)
    factors = [token.text for pair in pairwise(body) for token in pair if "*" in (pair[0].text, pair[1].text)]
    return KernelFacts(
        kernel.name,
        tuple(parameters),
        stored,
        frozenset(pointers_read(kernel, pointers, functions)),
        names,
        _called_names(names, functions),
        frozenset(read_before_stored(kernel, pointers, functions)),
        formula,
        moved,
        *_indices(body, pointers, index_values),
        {parameter.name: plain_type(parameter.type) for parameter in parameters if parameter.is_pointer},
        loaded_at,
        names & frozenset(factors),
        frozenset(token.text for token in body if token.kind == "number"),
    )


def _index_values(body: Sequence[Token]) -> dict[str, str]:
    """Return products that constant variables stand for, as in `int at = row * n + col;`."""
    changed = _changed(body)
    values = {name: "".join(token.text for token in value) for name, value in definitions(body).items()}
    return {name: value for name, value in values.items() if "*" in value and name not in changed}


def _formula(
    body: Sequence[Token], pointers: Sequence[str], index_values: Mapping[str, str]
) -> tuple[str, bool, tuple[str, ...]]:
    """Return the formula that all stores share, whether it only copies an element, and the indices of its reads."""
    loaded: dict[str, tuple[str, str]] = {}
    changed = _changed(body)
    seen: set[tuple[str, bool]] = set()
    loaded_at: list[str] = []
    for statement in statements(body):
        at = stored_index(statement, pointers)
        if at is not None:
            _, index, value = at
            index = index_values.get(index, index)
            text, read = _reduced(value, pointers, {k: v for k, v in loaded.items() if k not in changed})
            kind = next((k for k, patterns in FORMULAS.items() if any(re.fullmatch(p, text) for p in patterns)), "")
            read = [index_values.get(one, one) for one in read]
            seen.add((kind, kind == "same" and read != [index]))
            loaded_at += read
        elif [token.text for token in statement[:1] if token.text in pointers]:
            seen.add(("", False))  # an update such as +=
        else:
            _note_load(statement, pointers, loaded)
    kinds = {kind for kind, _ in seen}
    return (kinds.pop(), any(moved for _, moved in seen), tuple(loaded_at)) if len(kinds) == 1 else ("", False, ())


def _changed(body: Sequence[Token]) -> set[str]:
    """Return the variables that are assigned more than once, or incremented."""
    result: set[str] = set()
    seen: set[str] = set()
    for before, token, after, last in zip(body, body[1:], body[2:], body[3:], strict=False):
        if token.kind != "name":
            continue
        counts = (after.text == last.text and after.text in "+-") or (before.text in "+-" and after.text == ";")
        if counts or (after.text in "+-*/" and last.text == "="):
            result.add(token.text)
        elif after.text == "=" and last.text != "=":
            result |= {token.text} & seen
            seen.add(token.text)
    return result


def _note_load(statement: Sequence[Token], pointers: Sequence[str], loaded: dict[str, tuple[str, str]]) -> None:
    """Record a load such as `float v = x[i]`."""
    texts = [token.text for token in statement]
    if "=" not in texts:
        return
    equals = texts.index("=")
    value = statement[equals + 1 :]
    simple = len(value) > 3 and value[0].text in pointers and value[1].text == "["
    if equals and simple and closing_bracket(value, 1) == len(value) - 1:
        loaded[texts[equals - 1]] = (value[0].text, "".join(token.text for token in value[2:-1]))


def _reduced(
    value: Sequence[Token], pointers: Sequence[str], loaded: Mapping[str, tuple[str, str]]
) -> tuple[str, list[str]]:
    """Return a stored value with `@x` in place of each element read from `x`, and the indices of the reads."""
    parts: list[str] = []
    indices: list[str] = []
    index = 0
    while index < len(value):
        token = value[index]
        if token.text in pointers and index + 1 < len(value) and value[index + 1].text == "[":
            ends = closing_bracket(value, index + 1)
            indices.append("".join(t.text for t in value[index + 2 : ends]))
            parts.append(f"@{token.text}")
            index = ends + 1
            continue
        if token.text in loaded:
            parts.append(f"@{loaded[token.text][0]}")
            indices.append(loaded[token.text][1])
        else:
            parts.append(token.text)
        index += 1
    return "".join(parts), indices


def _called_names(names: frozenset[str], functions: Mapping[str, Declaration]) -> frozenset[str]:
    """Return names, and the names in the functions that some of them call."""
    called, waiting = set(names), list(names & functions.keys())
    while waiting:
        inner = {token.text for token in functions[waiting.pop()].tokens if token.kind == "name"}
        waiting += list((inner & functions.keys()) - called)
        called |= inner
    return frozenset(called)


def _indices(
    body: Sequence[Token], pointers: Sequence[str], index_values: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the indices of stores, of updates such as `+=`, of atomic operations, and of all other accesses."""
    result: tuple[dict[str, tuple[str, ...]], ...] = {}, {}
    for index, token in enumerate(body[:-1]):
        if token.text not in pointers or body[index + 1].text != "[":
            continue
        ends = closing_bracket(body, index + 1)
        sign = "".join(other.text for other in body[ends + 1 : ends + 3])
        stored = (
            (sign[:1] == "=" and sign != "==")
            or (sign[:1] in COMPOUND_OPERATORS and sign[1:] == "=")
            or sign in ("++", "--")
        )
        before = [other.text for other in body[max(0, index - 3) : index]]
        atomic = before[1:] == ["(", "&"] and ATOMIC_CALL.match(before[0]) is not None
        written = "".join(other.text for other in body[index + 2 : ends])
        kind = result[0 if stored or atomic else 1]
        kind[token.text] = (*kind.get(token.text, ()), index_values.get(written, written))
    return result[0], result[1]
