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
"""Regular expressions of statements that update an element, after all spaces are removed."""
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
    index = column - 1
    if not 0 <= index < len(text) or text[index].isspace():
        return None
    if text[index] in OPENING_BRACKETS:
        return Span(_postfix_start(text, index + 1) + 1, index + 2)
    if re.match(r"(?:[-+*/&|^%]|<<|>>)?=(?!=)|\+\+|--", text[index:]) and (before_operator := text[:index].rstrip()):
        start = _postfix_start(text, len(before_operator))
        if start < len(before_operator):
            return Span(start + 1, len(before_operator) + 1)
    if text[index] == "(" and (function_name := re.search(r"\w+$", text[:index])):
        argument = re.search(rf"(?<!\w){re.escape(name)}(?=\s*\[)", text[index:]) if name.isidentifier() else None
        if argument:
            start = index + argument.start()
            return Span(start + 1, _postfix_end(text, index + argument.end()) + 1)
        return Span(function_name.start() + 1, index + 1)
    if name_match := re.match(r"\w+" if not _is_dereference(text, index) else r"\*\w+", text[index:]):
        return Span(column, _postfix_end(text, index + name_match.end()) + 1)
    if name.isidentifier() and (matches := list(re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text))):
        nearest = min(matches, key=lambda match: abs(match.end() - index))
        return Span(nearest.start() + 1, _postfix_end(text, nearest.end()) + 1)
    return Span(column, column + 1)


def is_update(text: str, *columns: int) -> bool:
    """Return whether a line reads and writes one element in one statement, such as `sum += x` or `sum = sum + x`.

    The columns must not name another element. A column of 0 is unknown: the answer is then False.
    """
    spans = [expression_at(text, column) for column in columns]
    expressions = {re.sub(r"\s", "", text[span.start - 1 : span.end - 1]) if span else "" for span in spans}
    elements = {name for name in expressions if re.search(r"\w", name)}
    if "" in expressions or len(elements) != 1:
        return False
    (element,) = elements
    # The expression at a bare operator may name another element.
    if element != min(expressions, key=len) and not element.isidentifier():
        return False
    statement = re.sub(r"\s", "", text)
    return any(re.search(pattern.format(element=re.escape(element)), statement) for pattern in UPDATE_STATEMENTS)


def combines_elements(text: str, column: int) -> bool:
    """Return whether a line updates an element by another element of the same array, as a step of a reduction does.

    An example is `sums[i] += sums[i + step]`. The column must name the updated element.
    """
    span = expression_at(text, column)
    element = text[span.start - 1 : span.end - 1] if span else ""
    array = re.match(r"\w+(?=\s*\[)", element)
    if not array:
        return False
    other_elements = re.findall(rf"(?<!\w){array[0]}\s*\[[^]]*\]", text.replace(element, ""))
    return bool(other_elements)


def _is_dereference(text: str, index: int) -> bool:
    """Return whether the asterisk at a position is a dereference, and not a product."""
    preceding_text = text[:index].rstrip()
    return text[index] == "*" and (not preceding_text or preceding_text[-1] in "(;{}=,&|+-<>!?:")


def _postfix_start(text: str, end: int) -> int:
    """Return the start of the postfix expression that ends before `end`, such as `a.b[i][j]`."""
    start = end
    while start > 0:
        if text[start - 1] in OPENING_BRACKETS:
            opening = _opening_bracket(text, start - 1)
            if opening < 0:
                return start
            start = opening
        elif name := MEMBER_ACCESS.search(text[:start]):
            start = name.start()
        else:
            break
        if start == 0 or (text[start - 1] not in OPENING_BRACKETS and not MEMBER_ACCESS.search(text[:start])):
            break
    return start - 1 if start > 0 and _is_dereference(text, start - 1) else start


def _postfix_end(text: str, end: int) -> int:
    """Return the end of the subscripts that follow a name."""
    while end < len(text) and text[end] == "[":
        depth = 0
        for index in range(end, len(text)):
            depth += (text[index] == "[") - (text[index] == "]")
            if depth == 0:
                break
        else:
            return end
        end = index + 1
    return end


def _opening_bracket(text: str, closing_index: int) -> int:
    """Return the position of the bracket that matches a closing one; -1 without a match."""
    depth = 0
    for index in range(closing_index, -1, -1):
        depth += (text[index] == text[closing_index]) - (text[index] == OPENING_BRACKETS[text[closing_index]])
        if depth == 0:
            return index
    return -1
