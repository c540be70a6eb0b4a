"""Convert symbols of an object file to the names of variables in the source."""

from __future__ import annotations

import re


def plain_name(symbol: str) -> str:
    """Return the variable's own name, the last part of a mangled name: `_ZZ12matmul_tiledE4tile` → `tile`."""
    if not symbol.startswith("_Z"):
        return symbol
    names = [symbol]
    for match in re.finditer(r"(?=(\d+))", symbol):
        length, start = int(match.group(1)), match.end(1)
        name, rest = symbol[start : start + length], symbol[start + length :]
        if len(name) == length and name.isidentifier() and re.fullmatch(r"E?(_\d+)?", rest):
            # Template arguments may look like a name; the name of a variable in a function follows an E.
            names.insert(0 if symbol[match.start() - 1] == "E" else len(names) - 1, name)
    return names[0]
