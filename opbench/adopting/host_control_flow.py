"""Put the host's statements in the order of execution: unroll loops, choose a case of `switch`, follow pointers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from opbench.adopting.host_launches import definitions, launches_in, number_of, statement_end
from opbench.source.c_expression import UnsupportedExpression, tokens_of
from opbench.source.tokens import Token, closing_bracket, split, texts_of

MAX_UNROLLED_ITERATIONS = 4
"""The greatest number of iterations of a loop that are unrolled."""


def first_switch_cases(code: Sequence[Token], notes: list[str]) -> tuple[Token, ...]:
    """Return code in which each `switch` keeps only the first of its cases that launch a kernel.

    Each changed `switch` adds a note to `notes`.
    """
    for index, token in enumerate(code[:-1]):
        if token.text != "switch" or code[index + 1].text != "(":
            continue
        opening = closing_bracket(code, index + 1) + 1
        if opening >= len(code) or code[opening].text != "{":
            continue
        closing = closing_bracket(code, opening)
        label_indices = [i for i in range(opening, closing) if code[i].text in ("case", "default")]
        sections = [code[start:end] for start, end in zip(label_indices, [*label_indices[1:], closing], strict=True)]
        launching_sections = [section for section in sections if any(token.text == "<<<" for token in section)]
        if len(launching_sections) > 1:
            used_sections = [section for section in sections if section not in launching_sections[1:]]
            notes.append(
                f"only the first of the {len(launching_sections)} cases of a switch that launch kernels is used"
            )
            used_tokens = [statement for section in used_sections for statement in section]
            return first_switch_cases((*code[: opening + 1], *used_tokens, *code[closing:]), notes)
    return tuple(code)


def unroll_loops(
    code: Sequence[Token], constants: Mapping[str, Sequence[Token]], notes: list[str]
) -> tuple[Token, ...]:
    """Return code with the first iterations of each counted loop unrolled, if its launches differ between iterations.

    Each shortened loop adds a note to `notes`.
    """
    for index, token in enumerate(code[:-1]):
        if token.text != "for" or code[index + 1].text != "(":
            continue
        head_end = closing_bracket(code, index + 1)
        if head_end + 1 >= len(code):
            continue
        loop_end = statement_end(code, head_end + 1)
        body = code[head_end + 2 : loop_end] if code[head_end + 1].text == "{" else code[head_end + 1 : loop_end + 1]
        loop_clauses = split(code[index + 2 : head_end], ";")
        if (
            not any(token.text == "<<<" for token in body)
            or len(loop_clauses) != 3
            or not _launches_differ(code[index : loop_end + 1])
        ):
            continue
        iterations = _loop_assignments(loop_clauses, {**constants, **definitions(code[:index])})
        if not iterations:
            continue
        name = iterations[0][0].text
        if len(iterations) > MAX_UNROLLED_ITERATIONS:
            notes.append(f"only the first {MAX_UNROLLED_ITERATIONS} iterations of the loop over '{name}' are used")
        semicolon = Token("mark", ";", token.start)
        tokens: list[Token] = []
        for assignment in iterations[:MAX_UNROLLED_ITERATIONS]:
            tokens += [semicolon, *assignment, semicolon, *body, semicolon]
        return unroll_loops((*code[:index], *tokens, *code[loop_end + 1 :]), constants, notes)
    return tuple(code)


def _launches_differ(loop: Sequence[Token]) -> bool:
    """Return whether a launch in a loop uses a variable that the loop changes."""
    for launch in launches_in(loop, {}):
        used_names = {
            token.text
            for expression_tokens in (*launch.configuration[:3], *launch.arguments)
            for token in expression_tokens
        }
        unvisited = list(used_names)
        while unvisited:
            further_names = {token.text for token in launch.values_by_name.get(unvisited.pop(), ())} - used_names
            used_names |= further_names
            unvisited += further_names
        if used_names & launch.loop_variables:
            return True
    return False


def _loop_assignments(
    loop_clauses: Sequence[Sequence[Token]], values_by_name: Mapping[str, Sequence[Token]]
) -> list[tuple[Token, ...]]:
    """Return an assignment of the loop's variable for each iteration, at most one more than loops are unrolled.

    The values are expressions of the loop's initial value. The result is empty if the loop cannot be counted.
    """
    initialisation, test, increment = loop_clauses
    equals = next((i for i, token in enumerate(initialisation) if token.text == "="), 0)
    if not equals or initialisation[equals - 1].kind != "name":
        return []
    name, value = initialisation[equals - 1], tuple(initialisation[equals + 1 :])
    result: list[tuple[Token, ...]] = []
    try:
        while len(result) <= MAX_UNROLLED_ITERATIONS:
            if not number_of(test, {**values_by_name, name.text: value}):
                break
            result.append((name, Token("mark", "=", name.start), *value))
            value = _value_after_increment(increment, name.text, value)
            if all(token.kind != "name" for token in value):
                value = tuple(tokens_of(str(number_of(value, {}))))
    except UnsupportedExpression:
        return []
    return result


def _value_after_increment(increment: Sequence[Token], name: str, value: Sequence[Token]) -> tuple[Token, ...]:
    """Return a variable's value after a loop's increment, such as `i++`, `i += 2` or `i >>= 1`.

    Raises UnsupportedExpression for another increment.
    """
    texts = texts_of(increment)
    bracketed_value = (Token("mark", "(", -9), *value, Token("mark", ")", -9))
    if name not in texts:
        raise UnsupportedExpression(" ".join(texts))
    signs = "".join(text for text in texts if text in "+-*/<>=")
    if len(increment) == 3 and signs in ("++", "--"):
        return (*bracketed_value, Token("mark", signs[0], -1), *tokens_of("1"))
    equals = texts.index("=") if "=" in texts else 0
    if not equals or texts[0] != name:
        raise UnsupportedExpression(" ".join(texts))
    if equals == 1:
        return tuple(
            replacement
            for token in increment[2:]
            for replacement in (bracketed_value if token.text == name else (token,))
        )
    sign = Token("mark", "".join(texts[1:equals]), -1)
    return (*bracketed_value, sign, Token("mark", "(", -9), *increment[equals + 1 :], Token("mark", ")", -9))


def follow_pointers(code: Sequence[Token], buffers: Collection[str]) -> tuple[Token, ...]:
    """Return code in which each use of an assigned or swapped pointer is replaced by the buffer that it points to."""
    buffer_by_pointer: dict[str, str] = {}
    tokens: list[Token] = []

    def buffer_of(name: str) -> str:
        return buffer_by_pointer.get(name, name if name in buffers else "")

    for index, token in enumerate(code):
        following = texts_of(code[index + 1 : index + 4])
        if token.text == "swap" and following[:1] == ["("]:
            argument_names = [
                argument[-1].text
                for argument in split(code[index + 2 : closing_bracket(code, index + 1)], ",")
                if argument
            ]
            if len(argument_names) == 2 and buffer_of(argument_names[0]) and buffer_of(argument_names[1]):
                buffer_by_pointer[argument_names[0]], buffer_by_pointer[argument_names[1]] = (
                    buffer_of(argument_names[1]),
                    buffer_of(argument_names[0]),
                )
        is_member = bool(tokens) and tokens[-1].text in (".", "->")
        is_assigned = token.kind == "name" and following[:1] == ["="]
        if is_assigned and not is_member and following[2:] in ([";"], [","]) and buffer_of(following[1]):
            buffer_by_pointer[token.text] = buffer_of(following[1])
        is_use = token.kind == "name" and not is_assigned and not is_member and token.text in buffer_by_pointer
        tokens.append(token._replace(text=buffer_by_pointer[token.text]) if is_use else token)
    return tuple(tokens)
