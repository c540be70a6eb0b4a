"""Store a proposed header, and write the launches of headers with and without an operator."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opbench.adopting.host_launches import plain_name
from opbench.adopting.matching import Contradiction, Guess
from opbench.adopting.parsed_file import PYTORCH_TYPES, LaunchedKernel
from opbench.kernels.memory_header import table_of
from opbench.source.c_expression import UnsupportedExpression, convert, tokens_of
from opbench.source.tokens import Token, split


@dataclass
class Proposal:
    """A proposed header, with its guesses, its evidence, and its contradictions with the file."""

    operator: str
    kernel: str
    lines: list[str] = field(default_factory=list)
    """The header's lines in TOML, without comment marks."""
    args: list[str] = field(default_factory=list)
    """The kernel's arguments as header text."""
    requires: list[str] = field(default_factory=list)
    """Expressions over the axes that must be true, such as "n % 4 == 0"."""
    evidence: list[str] = field(default_factory=list)
    """The reasons for the choice of the operator."""
    guesses: list[Guess] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    """Properties of the file that the header contradicts; `opbench adopt` does not write such a header."""
    notes: list[str] = field(default_factory=list)
    """Sentences that `opbench adopt` prints for the user."""

    @property
    def text(self) -> str:
        """Return the header as text to insert at the top of the file."""
        return "\n".join(f"// {line}".rstrip() for line in ("/// opbench", *self.lines, "///")) + "\n"

    def guess(self, subject: str, value: str, reason: str) -> None:
        """Add a guess unless it exists already."""
        if (guess := Guess(subject, value, (reason,))) not in self.guesses:
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
    kernel: str, grid: Sequence[str], block: Sequence[str], shared: str, args: Sequence[str], cooperative: bool
) -> str:
    """Return a launch as a TOML table; all parameters are header text."""
    table = {"kernel": f'"{kernel}"', "grid": list_text(grid), "block": list_text(block)}
    table |= {"shared": f'"{shared}"'} if shared not in ("", "0") else {}
    table |= {"args": f"[{', '.join(args)}]"} | ({"cooperative": "true"} if cooperative else {})
    return table_of(table)


def template_arguments(launched_kernel: LaunchedKernel, values_by_name: Mapping[str, Sequence[Token] | str]) -> str:
    """Return a launch's template arguments in angle brackets, with float for unknown types; "" for a function."""
    if not launched_kernel.kernel.is_template:
        return ""
    source_text = template_text(launched_kernel, values_by_name)
    unknown_types = (PYTORCH_TYPES | launched_kernel.template_types.keys()) - values_by_name.keys()
    text = re.sub(r"\b[A-Za-z_]\w*\b", lambda match: "float" if match[0] in unknown_types else match[0], source_text)
    return text or f"<{', '.join('float' for _ in launched_kernel.template_types)}>"


def missing_template_arguments(launched_kernel: LaunchedKernel) -> list[str]:
    """Return the value parameters of a kernel's template that have neither a default nor an argument."""
    if launched_kernel.launch and launched_kernel.launch.template:
        return []
    return [
        tokens[-1].text
        for tokens in launched_kernel.kernel.template_parameters()
        if tokens and tokens[0].text not in ("typename", "class") and "=" not in {token.text for token in tokens}
    ]


def template_text(launched_kernel: LaunchedKernel, values_by_name: Mapping[str, Sequence[Token] | str]) -> str:
    """Return a launch's template arguments in angle brackets, with host constants replaced by numbers; "" if none."""
    template = launched_kernel.launch.template if launched_kernel.launch else ""
    texts = []
    constants = {
        name: value for name, value in values_by_name.items() if not isinstance(value, str)
    }  # An axis is no constant.
    for argument in filter(None, split(tokens_of(template)[1:-1], ",")):
        text = template[argument[0].start : argument[-1].end]
        value = constants.get(text, ())
        if len(value) == 1 and value[0].kind == "name":
            text = value[0].text  # It is true, false or a type.
        elif any(token.text in constants for token in argument):
            with contextlib.suppress(UnsupportedExpression):
                text = convert(argument, constants).replace("//", "/")
                text = f"({text})" if ">" in text else text  # Outside of brackets, it would end the arguments.
        texts.append(plain_name(text))
    return f"<{', '.join(texts)}>" if template else ""


def grid_components(
    tokens: Sequence[Token], values_by_name: Mapping[str, Sequence[Token] | str]
) -> Sequence[Sequence[Token]]:
    """Return the components of a grid or block, such as the three in `dim3(a, b, c)`, each as tokens.

    A variable is replaced by its definition.
    """
    for _ in range(4):  # A variable can stand for another one.
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
    """Return an expression that rounds a quotient up as a call of `cdiv`; any other expression unchanged."""
    for pattern in (r"\(\((.+?)\) \+ (\d+)\) // (\d+)", r"\((.+?) \+ (\d+)\) // (\d+)"):
        match = re.fullmatch(pattern, text)
        if match and int(match[2]) == int(match[3]) - 1:
            return f"cdiv({match[1]}, {match[3]})"
    match = re.fullmatch(r"\(\((.+?) \+ (\w+)\) - 1\) // (\w+)", text)
    return f"cdiv({match[1]}, {match[2]})" if match and match[2] == match[3] else text
