"""A proposed header, and functions to write headers with and without an operator."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.file_facts import PYTORCH_TYPES, LaunchedKernel
from opbench.adopting.matching import Contradiction, Guess
from opbench.kernels.memory_header import table_of
from opbench.source.c_expression import UnsupportedExpression, convert, tokens_of
from opbench.source.tokens import Token, closing_angle_bracket, split


@dataclass
class Proposal:
    """A proposed header, with guesses, evidence and contradictions to the file."""

    operator: str
    kernel: str
    lines: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    """The kernel's arguments as the header has them."""
    requires: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    """What speaks for the operator."""
    guesses: list[Guess] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    """What the file does and the header would deny: with any of these it is not written."""
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the header as text to insert at the top of the file."""
        return "\n".join(f"// {line}".rstrip() for line in ("/// opbench", *self.lines, "///")) + "\n"

    def guess(self, what: str, value: str, why: str) -> None:
        """Add a guess unless it exists already."""
        if (guess := Guess(what, value, (why,))) not in self.guesses:
            self.guesses.append(guess)

    def contradict(self, kind: str, name: str, text: str) -> None:
        """Add a contradiction unless it exists already; see `Contradiction` for its kinds."""
        if (contradiction := Contradiction(kind, name, text)) not in self.contradictions:
            self.contradictions.append(contradiction)

    def require(self, rule: str) -> None:
        """Add a requirement unless it exists already."""
        if rule not in self.requires:
            self.requires.append(rule)


def list_text(texts: Sequence[str]) -> str:
    """Return a list of expressions as TOML text."""
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"


def launch_text(
    called: str, grid: Sequence[str], block: Sequence[str], shared: str, args: Sequence[str], cooperative: bool
) -> str:
    """Return a launch's table as TOML text."""
    entry = {"kernel": f'"{called}"', "grid": list_text(grid), "block": list_text(block)}
    entry |= {"shared": f'"{shared}"'} if shared not in ("", "0") else {}
    entry |= {"args": f"[{', '.join(args)}]"} | ({"cooperative": "true"} if cooperative else {})
    return table_of(entry)


def template_arguments(read: LaunchedKernel, values_by_name: Mapping[str, Sequence[Token] | str]) -> str:
    """Return a launch's template arguments in brackets; "" without any.

    A type without a known argument is `float`.
    """
    if not read.kernel.is_template:
        return ""
    written = written_template(read, values_by_name)
    unknown = (PYTORCH_TYPES | read.types.keys()) - values_by_name.keys()
    named = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: "float" if word[0] in unknown else word[0], written)
    return named or f"<{', '.join('float' for _ in read.types)}>"


def missing_template_arguments(read: LaunchedKernel) -> list[str]:
    """Return the template parameters of a kernel that are numbers and have neither a default nor an argument."""
    if not read.kernel.is_template or (read.launch and read.launch.template):
        return []
    declared = split(read.kernel.tokens[2 : closing_angle_bracket(read.kernel.tokens, 1)], ",")
    numbers = [words for words in declared if words and words[0].text not in ("typename", "class")]
    return [number[-1].text for number in numbers if "=" not in {token.text for token in number}]


def written_template(read: LaunchedKernel, values_by_name: Mapping[str, Sequence[Token] | str]) -> str:
    """Return a launch's template arguments as written, with host constants replaced by numbers; "" without any."""
    template = read.launch.template if read.launch else ""
    parts = []
    constants = {name: value for name, value in values_by_name.items() if not isinstance(value, str)}  # an axis is none
    for part in filter(None, split(tokens_of(template)[1:-1], ",")):
        text = template[part[0].start : part[-1].end]
        value = constants.get(text, ())
        if len(value) == 1 and value[0].kind == "name":
            text = value[0].text  # true, false or a type
        elif any(token.text in constants for token in part):
            with contextlib.suppress(UnsupportedExpression):
                text = convert(part, constants).replace("//", "/")
        parts.append(text)
    return f"<{', '.join(parts)}>" if template else ""


def launch_parts(
    tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]
) -> Sequence[Sequence[Token]]:
    """Return the components of a grid or block, with variables replaced by their definitions."""
    for _ in range(4):  # a name may stand for another
        if (
            len(tokens) == 1
            and isinstance(value := values_by_name.get(tokens[0].text), Sequence)
            and not isinstance(value, str)
        ):
            tokens = value
    if tokens and tokens[0].text == "dim3" and len(tokens) > 1:
        return split(tokens[2:-1], ",")
    return split(tokens[1:-1], ",") if tokens and tokens[0].text == "{" else [tokens]


def plain_quotient(text: str) -> str:
    """Replace a quotient that is rounded up by a call of `cdiv`."""
    for pattern in (r"\(\((.+?)\) \+ (\d+)\) // (\d+)", r"\((.+?) \+ (\d+)\) // (\d+)"):
        match = re.fullmatch(pattern, text)
        if match and int(match[2]) == int(match[3]) - 1:
            return f"cdiv({match[1]}, {match[3]})"
    match = re.fullmatch(r"\(\((.+?) \+ (\w+)\) - 1\) // (\w+)", text)
    return f"cdiv({match[1]}, {match[2]})" if match and match[2] == match[3] else text
