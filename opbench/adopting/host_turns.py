"""The host's statements in the order of execution: unrolled loops, chosen cases of `switch`, swapped pointers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from opbench.adopting.host_launches import definitions, launches_in, number_of, statement_end
from opbench.source.c_expression import UnsupportedExpression, tokens_of
from opbench.source.tokens import Token, closing_bracket, split

MAX_UNROLLED_ITERATIONS = 4
"""Turns of a loop that are written out: a size of 32, the least of a check, can be halved so often."""


def first_switch_cases(code: Sequence[Token], notes: list[str]) -> tuple[Token, ...]:
    """Keep the first case that launches a kernel in each `switch`; add a note for each omitted case."""
    for index, token in enumerate(code[:-1]):
        if token.text != "switch" or code[index + 1].text != "(":
            continue
        opened = closing_bracket(code, index + 1) + 1
        if opened >= len(code) or code[opened].text != "{":
            continue
        ends = closing_bracket(code, opened)
        labels = [i for i in range(opened, ends) if code[i].text in ("case", "default")]
        sections = [code[a:b] for a, b in zip(labels, [*labels[1:], ends], strict=True)]
        launching = [section for section in sections if any(token.text == "<<<" for token in section)]
        if len(launching) > 1:
            left = [section for section in sections if section not in launching[1:]]
            notes.append(f"of a switch with {len(launching)} cases that launch, the first is taken")
            kept = [statement for section in left for statement in section]
            return first_switch_cases((*code[: opened + 1], *kept, *code[ends:]), notes)
    return tuple(code)


def unroll_loops(
    code: Sequence[Token], constants: Mapping[str, Sequence[Token]], notes: list[str]
) -> tuple[Token, ...]:
    """Unroll the first iterations of each counted loop whose launches differ between iterations."""
    for index, token in enumerate(code[:-1]):
        if token.text != "for" or code[index + 1].text != "(":
            continue
        head = closing_bracket(code, index + 1)
        if head + 1 >= len(code):
            continue
        ends = statement_end(code, head + 1)
        body = code[head + 2 : ends] if code[head + 1].text == "{" else code[head + 1 : ends + 1]
        parts = split(code[index + 2 : head], ";")
        if not any(token.text == "<<<" for token in body) or len(parts) != 3 or not _differs(code[index : ends + 1]):
            continue
        turns = _turns(parts, {**constants, **definitions(code[:index])})
        if not turns:
            continue
        name = turns[0][0].text
        if len(turns) > MAX_UNROLLED_ITERATIONS:
            notes.append(f"of the loop over '{name}' the first {MAX_UNROLLED_ITERATIONS} turns are launched")
        semicolon = Token("mark", ";", token.start)
        tokens: list[Token] = []
        for turn in turns[:MAX_UNROLLED_ITERATIONS]:
            tokens += [semicolon, *turn, semicolon, *body, semicolon]
        return unroll_loops((*code[:index], *tokens, *code[ends + 1 :]), constants, notes)
    return tuple(code)


def _differs(loop: Sequence[Token]) -> bool:
    """Return whether a launch in a loop uses a variable that the loop changes."""
    for launch in launches_in(loop, {}):
        used = {token.text for part in (*launch.configuration[:3], *launch.arguments) for token in part}
        waiting = list(used)
        while waiting:
            inner = {token.text for token in launch.known.get(waiting.pop(), ())} - used
            used |= inner
            waiting += inner
        if used & launch.changing:
            return True
    return False


def _turns(parts: Sequence[Sequence[Token]], values_by_name: Mapping[str, Sequence[Token]]) -> list[tuple[Token, ...]]:
    """Return a statement for each iteration that assigns the loop's variable, and one for the iteration after.

    The values are expressions of the loop's initial value. The result is empty if the loop cannot be counted.
    """
    first, test, step = parts
    at = next((i for i, token in enumerate(first) if token.text == "="), 0)
    if not at or first[at - 1].kind != "name":
        return []
    name, value = first[at - 1], tuple(first[at + 1 :])
    result: list[tuple[Token, ...]] = []
    try:
        while len(result) <= MAX_UNROLLED_ITERATIONS:
            if not number_of(test, {**values_by_name, name.text: value}):
                break
            result.append((name, Token("mark", "=", name.start), *value))
            value = _value_after_step(step, name.text, value)
            if all(token.kind != "name" for token in value):
                value = tuple(tokens_of(str(number_of(value, {}))))
    except UnsupportedExpression:
        return []
    return result


def _value_after_step(step: Sequence[Token], name: str, value: Sequence[Token]) -> tuple[Token, ...]:
    """Return a variable's value after a loop's step such as `i++`, `i += 2` or `i >>= 1`; raise Unreadable."""
    texts = [token.text for token in step]
    own = (Token("mark", "(", -9), *value, Token("mark", ")", -9))
    if name not in texts:
        raise UnsupportedExpression(" ".join(texts))
    signs = "".join(text for text in texts if text in "+-*/<>=")
    if len(step) == 3 and signs in ("++", "--"):
        return (*own, Token("mark", signs[0], -1), *tokens_of("1"))
    equals = texts.index("=") if "=" in texts else 0
    if not equals or texts[0] != name:
        raise UnsupportedExpression(" ".join(texts))
    if equals == 1:
        return tuple(one for token in step[2:] for one in (own if token.text == name else (token,)))
    sign = Token("mark", "".join(texts[1:equals]), -1)
    return (*own, sign, Token("mark", "(", -9), *step[equals + 1 :], Token("mark", ")", -9))


def follow_pointers(code: Sequence[Token], buffers: Collection[str]) -> tuple[Token, ...]:
    """Replace each pointer that was assigned or swapped by the buffer that it points to at that statement."""
    now: dict[str, str] = {}
    tokens: list[Token] = []

    def buffer(name: str) -> str:
        return now.get(name, name if name in buffers else "")

    for index, token in enumerate(code):
        after = [token.text for token in code[index + 1 : index + 4]]
        if token.text == "swap" and after[:1] == ["("]:
            argument_names = [
                part[-1].text for part in split(code[index + 2 : closing_bracket(code, index + 1)], ",") if part
            ]
            if len(argument_names) == 2 and buffer(argument_names[0]) and buffer(argument_names[1]):
                now[argument_names[0]], now[argument_names[1]] = buffer(argument_names[1]), buffer(argument_names[0])
        member = bool(tokens) and tokens[-1].text in (".", "->")
        assigned = token.kind == "name" and after[:1] == ["="]
        if assigned and not member and after[2:] in ([";"], [","]) and buffer(after[1]):
            now[token.text] = buffer(after[1])
        is_use = token.kind == "name" and not assigned and not member and token.text in now
        tokens.append(replace(token, text=now[token.text]) if is_use else token)
    return tuple(tokens)
