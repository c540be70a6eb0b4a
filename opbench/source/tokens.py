"""Split CUDA C++ into tokens before the preprocessor runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_TOKENS = re.compile(
    r"""
    (?P<space>[ \t\r\f\v\n]+|\\\r?\n)
  | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<directive>\#(?:\\\r?\n|//[^\n]*|/\*.*?\*/|[^\n\\]|\\)*)
  | (?P<string>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?
      |'(?:\\.|[^'\\\n])*'?)
  | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
  | (?P<name>[A-Za-z_$][\w$]*)
  | (?P<mark><<[ ]?<|>>[ ]?>|::|->|\.\.\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#\s*(\w+)")
_INCLUDE = re.compile(r'#\s*include\s*(<[^>\n]+>|"[^"\n]+")')
OPENING, CLOSING = "([{", ")]}"


class Token(NamedTuple):
    """A word, symbol or directive of the code; blanks and comments are no tokens."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Return the offset after the token."""
        return self.start + len(self.text)


def words(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text; a directive is one token."""
    at_line_start = True  # only space so far in this line: only then # begins a directive
    position = 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        assert match is not None
        kind = str(match.lastgroup if match.lastgroup != "delimiter" else "string")
        if kind == "directive" and not at_line_start:
            yield Token("mark", "#", position)
            position += 1
            continue
        position = match.end()
        if kind in ("space", "comment"):
            at_line_start = at_line_start or "\n" in match[0]
            continue
        token_text = match[0].replace(" ", "") if kind == "mark" else match[0]  # << <, as some editors write it
        yield Token(kind, token_text, match.start())
        at_line_start = kind == "directive"


def closing_bracket(code: Sequence[Token], open_index: int) -> int:
    """Return the index of the bracket that closes the one at `open_index`; the number of tokens if there is none."""
    depth = 0
    for index in range(open_index, len(code)):
        if code[index].kind == "mark":
            depth += (code[index].text in OPENING) - (code[index].text in CLOSING)
            if depth == 0:
                return index
    return len(code)


def closing_angle_bracket(code: Sequence[Token], open_index: int) -> int:
    """Return the index of the `>` that closes the template arguments at `open_index`; `open_index` if there is none."""
    depth, index = 0, open_index
    while index < len(code):
        text = code[index].text if code[index].kind == "mark" else ""
        if text in OPENING and text:
            index = closing_bracket(code, index)
        elif text in ("<", "<<<"):
            depth += len(text)
        elif text in (">", ">>>"):
            depth -= len(text)
            if depth <= 0:
                return index
        elif text in (";", "}"):
            break
        index += 1
    return open_index


def text_of(code: Iterable[Token]) -> str:
    """Return tokens as text without blanks."""
    return "".join(token.text for token in code)


def texts_of(code: Iterable[Token]) -> list[str]:
    """Return the text of each token."""
    return [token.text for token in code]


def split(code: Sequence[Token], separator: str) -> list[tuple[Token, ...]]:
    """Split tokens at separators outside of brackets and template arguments; return [] for no tokens."""
    parts: list[tuple[Token, ...]] = []
    start = index = 0
    while index < len(code):
        token = code[index]
        if token.kind == "mark" and token.text in OPENING:
            index = closing_bracket(code, index)
        elif token.text == "<" and index and code[index - 1].kind == "name":
            index = closing_angle_bracket(code, index)
        elif token.text == separator:
            parts.append(tuple(code[start:index]))
            start = index + 1
        index += 1
    last_piece = tuple(code[start:])
    return [*parts, last_piece] if last_piece or parts else []


def directive(token: Token) -> str:
    """Return the name of a directive, such as `include` or `define`."""
    match = _DIRECTIVE.match(token.text)
    return match[1] if match else ""


def included(token: Token) -> str:
    """Return the name in an include, with its quotes; "" for any other directive."""
    match = _INCLUDE.match(token.text)
    return match[1] if match else ""
