"""Source lines of findings: locate the expression at a compiler's column, and classify its statement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

UPDATE_STATEMENTS = (
    r"(?<![\w.\]]){element}(?:[-+*/%&|^]|<<|>>)=",
    r"(?<![\w.\]]){element}(?:\+\+|--)|(?:\+\+|--){element}(?!\w)",
    r"(?<![\w.\]]){element}=(?!=)[^;]*(?<![\w.\]]){element}(?![\w\[])",
)
"""Statements that read and write an element, without blanks."""
OPENING_BRACKETS = {"]": "[", ")": "("}
MEMBER_ACCESS = re.compile(r"(?:\w|\.|->|::)+$")


class Span(NamedTuple):
    """Columns of an expression, from 1 on; `end` is behind its last character."""

    start: int
    end: int


def source_lines(file: str) -> tuple[str, ...]:
    """Return a file's lines; none if it cannot be read."""
    try:
        return tuple(Path(file).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()


def source_line(file: str, line: int) -> str:
    """Return one line of a file, counted from 1; empty where there is none."""
    lines = source_lines(file)
    return lines[line - 1] if 0 < line <= len(lines) else ""


def expression_at(text: str, column: int, name: str = "") -> Span | None:
    """Return the expression that a compiler's column refers to; None for a column outside of the line.

    GCC marks an element of an array at its closing bracket, a store at its assignment, and a plain variable at
    the operator that uses it; Clang marks the start. The use of `name` next to a bare operator replaces it.
    """
    at = column - 1
    if not 0 <= at < len(text) or text[at].isspace():
        return None
    if text[at] in OPENING_BRACKETS:
        return Span(_postfix_start(text, at + 1) + 1, at + 2)
    if re.match(r"(?:[-+*/&|^%]|<<|>>)?=(?!=)|\+\+|--", text[at:]) and (left := text[:at].rstrip()):
        start = _postfix_start(text, len(left))
        if start < len(left):
            return Span(start + 1, len(left) + 1)
    if text[at] == "(" and (called := re.search(r"\w+$", text[:at])):
        argument = re.search(rf"(?<!\w){re.escape(name)}(?=\s*\[)", text[at:]) if name.isidentifier() else None
        if argument:
            start = at + argument.start()
            return Span(start + 1, _postfix_end(text, at + argument.end()) + 1)
        return Span(called.start() + 1, at + 1)
    if word := re.match(r"\w+" if not _is_dereference(text, at) else r"\*\w+", text[at:]):
        return Span(column, _postfix_end(text, at + word.end()) + 1)
    if name.isidentifier() and (seen := list(re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text))):
        nearest = min(seen, key=lambda match: abs(match.end() - at))
        return Span(nearest.start() + 1, _postfix_end(text, nearest.end()) + 1)
    return Span(column, column + 1)


def is_update(text: str, *columns: int) -> bool:
    """Return whether a line reads and writes one element in one statement, such as `sum += x` or `sum = sum + x`.

    The columns must not name another element. A column of 0 is unknown: the answer is then False.
    """
    spans = [expression_at(text, column) for column in columns]
    named = {re.sub(r"\s", "", text[span.start - 1 : span.end - 1]) if span else "" for span in spans}
    elements = {name for name in named if re.search(r"\w", name)}
    if "" in named or len(elements) != 1:
        return False
    (element,) = elements
    if element != min(named, key=len) and not element.isidentifier():  # a bare operator may use any other element
        return False
    statement = re.sub(r"\s", "", text)
    return any(re.search(form.format(element=re.escape(element)), statement) for form in UPDATE_STATEMENTS)


def _is_dereference(text: str, at: int) -> bool:
    """Return whether the asterisk at a position is a dereference, and not a product."""
    before = text[:at].rstrip()
    return text[at] == "*" and (not before or before[-1] in "(;{}=,&|+-<>!?:")


def _postfix_start(text: str, end: int) -> int:
    """Return the start of the postfix expression that ends before `end`, such as `a.b[i][j]`."""
    at = end
    while at > 0:
        if text[at - 1] in OPENING_BRACKETS:
            opening = _opening_bracket(text, at - 1)
            if opening < 0:
                return at
            at = opening
        elif name := MEMBER_ACCESS.search(text[:at]):
            at = name.start()
        else:
            break
        if at == 0 or (text[at - 1] not in OPENING_BRACKETS and not MEMBER_ACCESS.search(text[:at])):
            break
    return at - 1 if at > 0 and _is_dereference(text, at - 1) else at


def _postfix_end(text: str, end: int) -> int:
    """Return the end of the subscripts that follow a name."""
    while end < len(text) and text[end] == "[":
        depth = 0
        for at in range(end, len(text)):
            depth += (text[at] == "[") - (text[at] == "]")
            if depth == 0:
                break
        else:
            return end
        end = at + 1
    return end


def _opening_bracket(text: str, closing: int) -> int:
    """Return the position of the bracket that matches a closing one; -1 without a match."""
    depth = 0
    for at in range(closing, -1, -1):
        depth += (text[at] == text[closing]) - (text[at] == OPENING_BRACKETS[text[closing]])
        if depth == 0:
            return at
    return -1
