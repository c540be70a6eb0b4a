"""Find the line of each key and list item of a TOML text, which tomllib does not report.

tomlkit preserves the layout of a text but has no line numbers, and tree-sitter would be a compiled dependency
only for error messages. So tomllib reads the values, and this scanner finds the lines in a text that tomllib
accepts. The scanner runs only if an error message must name a line number.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]
"""Keys from the outermost table inwards, and indices of list items: ("launch", 0, "grid")."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
_KEY = re.compile(rf"[ \t]*({_STRING}|[\w-]+)[ \t]*", re.DOTALL)
_SCALAR = re.compile(rf"{_STRING}|[^,\]}}#\n]+", re.DOTALL)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line, counted from 1, on which each key and list item of a TOML text begins."""
    lines: dict[KeyPath, int] = {}
    for path, offset in _Scanner(text).document():
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], text.count("\n", 0, offset) + 1)
    return lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text, self._offset = text, 0

    def document(self) -> Iterator[tuple[KeyPath, int]]:
        """Yield the path and the offset of every value and of each table in the text."""
        table: KeyPath = ()
        tables: dict[KeyPath, int] = {}
        """The number of tables of each `[[list]]` so far."""
        while self._skip():
            start = self._offset
            brackets = 2 if self._text.startswith("[[", start) else int(self._next() == "[")
            if not brackets:
                yield from self._pair(table)
                continue
            self._offset += brackets
            *outer_keys, last_key = self._keys()
            self._offset += brackets
            table = ()
            for key in outer_keys:
                table = (*table, key)
                table = (*table, tables[table] - 1) if table in tables else table
            table = (*table, last_key)
            if brackets == 2:
                tables[table] = tables.get(table, 0) + 1
                table = (*table, tables[table] - 1)
            yield table, start

    def _next(self) -> str:
        return self._text[self._offset : self._offset + 1]

    def _skip(self) -> bool:
        """Skip blanks and comments; return whether more text follows."""
        self._offset = self._match(_BLANK).end()
        return self._offset < len(self._text)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._offset)
        assert match is not None, "tomllib refuses such a text"
        self._offset = match.end()
        return match

    def _keys(self) -> list[str]:
        """Read a dotted key and return its parts."""
        keys: list[str] = []
        while not keys or self._next() == ".":
            self._offset += bool(keys)
            key = self._match(_KEY)[1]
            keys.append(tomllib.loads(f"key = {key}")["key"] if key[0] in "\"'" else key)
        return keys

    def _pair(self, table: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        start = self._offset
        path = (*table, *self._keys())
        self._offset += 1  # the equals sign
        yield path, start
        yield from self._value(path)

    def _value(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        self._skip()
        opening = self._next()
        if opening not in ("[", "{"):
            self._match(_SCALAR)
            return
        self._offset += 1
        index = 0
        while self._skip() and self._next() not in ("]", "}"):
            if opening == "{":
                yield from self._pair(path)
            else:
                yield (*path, index), self._offset
                yield from self._value((*path, index))
                index += 1
            self._skip()
            self._offset += self._next() == ","
        self._offset += 1
