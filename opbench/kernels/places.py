"""Where in a variant's files a refusal points: the kernel that it names, else the line of the header that says so."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from opbench.errors import LaunchError, UsageError
from opbench.kernels.variant import Variant
from opbench.paths import from_here
from opbench.source.names import plain_kernel
from opbench.source.sources import Source
from opbench.source.tokens import tokens

_PLACED = re.compile(r"\S+:\d+: ")
_NAMED = re.compile(r"'([^'\n]+)'|\b(?:constants|define)\.(\w+)")
_KEY = re.compile(r"\b(?:in_place|zero|early|constants)\b")


@contextlib.contextmanager
def placed(variant: Variant) -> Iterator[None]:
    """Have refusals of a variant's launches begin with file:line."""
    try:
        yield
    except (LaunchError, UsageError) as error:
        raise type(error)(at(variant.sources, variant.kernels, str(error))) from error


def at(sources: Sequence[Source], kernels: Iterable[str], refusal: str) -> str:
    """A refusal behind the place that it is about: "my.cu:12: kernel scale takes 2 arguments; …".

    `sources` are a file and what it includes; of `kernels` it may name one.
    """
    if not sources or _PLACED.match(refusal):
        return refusal
    for kernel in kernels:
        if re.search(rf"(?<![\w']){re.escape(plain_kernel(kernel))}\b", refusal) and (
            found := declared(sources, kernel)
        ):
            return f"{from_here(found[0])}:{found[1]}: {refusal}"
    return f"{from_here(str(sources[0].path))}:{_header_line(sources[0].text, refusal)}: {refusal}"


def declared(sources: Sequence[Source], kernel: str) -> tuple[str, int] | None:
    """Return file and line where a kernel is declared, in the file or in a header of it; None where none is found."""
    name = plain_kernel(kernel)
    for source in sources:
        code, is_kernel = list(tokens(source.text)), False
        for token, following in itertools.pairwise(code):
            is_kernel = token.text == "__global__" or (is_kernel and token.text not in (";", "{"))
            if is_kernel and token.text == name and following.text == "(":
                return str(source.path), source.text.count("\n", 0, token.start) + 1
    return None


def _header_line(text: str, refusal: str) -> int:
    """The first line of the header that has what a refusal quotes, else the key that it mentions, else its launches."""
    quoted = [word for pair in _NAMED.findall(refusal) for word in pair if word]
    for word in (*quoted, *_KEY.findall(refusal), "launch"):
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line):
                return number
            if line.strip().endswith("///"):
                break
    return 1
