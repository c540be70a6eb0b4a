"""Find the declaration of a kernel in its file and headers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from opbench.errors import Location
from opbench.source.names import plain_kernel
from opbench.source.sources import Source
from opbench.source.tokens import tokens


def declaration(sources: Sequence[Source], kernel: str) -> Location | None:
    """Return the file and line at which a kernel is declared; None without a declaration."""
    name = plain_kernel(kernel)
    for source in sources:
        code, is_kernel = list(tokens(source.text)), False
        for token, next_token in itertools.pairwise(code):
            is_kernel = token.text == "__global__" or (is_kernel and token.text not in (";", "{"))
            if is_kernel and token.text == name and next_token.text == "(":
                return Location(source.path, source.text.count("\n", 0, token.start) + 1)
    return None
