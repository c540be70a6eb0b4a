"""Names of variables as the source has them, out of names as an object file has them."""

from __future__ import annotations

import re


def plain_name(symbol: str) -> str:
    """The variable's own name, the last part of a mangled one: `_ZZ12matmul_tiledE4tile` → `tile`."""
    if not symbol.startswith("_Z"):
        return symbol
    found = [symbol]
    for match in re.finditer(r"(?=(\d+))", symbol):
        length, start = int(match.group(1)), match.end(1)
        name, rest = symbol[start : start + length], symbol[start + length :]
        if len(name) == length and name.isidentifier() and re.fullmatch(r"E?(_\d+)?", rest):
            # A template's arguments may look like one; the variable of a function comes behind an E.
            found.insert(0 if symbol[match.start() - 1] == "E" else len(found) - 1, name)
    return found[0]
