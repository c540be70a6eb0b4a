"""Launches that the host's part of a file makes, with what their functions define before them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.catalog.c_expression import tokens_of
from opbench.catalog.scan import Declaration
from opbench.catalog.tokens import Token, closing, closing_angle, split

SIZE = re.compile(r"(?i)block|thread|tile|bdim")


CALLS = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel")
"""Functions that launch: a kernel with its grid, its block, the addresses of its arguments, shared bytes, a stream."""

MEMBER = (".", "->")
OBJECTS = ("cudaTextureObject_t", "cudaSurfaceObject_t")


Fields = dict[str, dict[str, Sequence[Token]]]
"""By variable, what was assigned to its members: `description.addressMode[0] = …` as "addressMode"."""


@dataclass(frozen=True)
class HostLaunch:
    """A launch as `kernel<<<grid, block, shared>>>(arguments)` or by a function, with what is defined before it."""

    kernel: str
    template: str
    """Its template arguments as written, with their brackets; empty without."""
    line: int
    configuration: tuple[tuple[Token, ...], ...]
    arguments: tuple[tuple[Token, ...], ...]
    known: Mapping[str, Sequence[Token]]
    members: Fields
    sizes: tuple[str, ...]
    """Whole numbers that its function is given and that are called as sizes of blocks are: what one tunes."""
    cooperative: bool = False


@dataclass(frozen=True)
class Parameter:
    """One of a kernel's."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool

    @property
    def views(self) -> str:
        """ "textures" or "surfaces" of an object by which memory is seen; "" of all else."""
        return "textures" if OBJECTS[0] in self.type else "surfaces" if OBJECTS[1] in self.type else ""


def parameter_of(found: Sequence[Token]) -> Parameter:
    """A parameter as it is declared."""
    words = [token.text for token in found]
    words = words[: words.index("=")] if "=" in words else words
    name = next((word for word in reversed(words) if re.fullmatch(r"[A-Za-z_]\w*", word)), "")
    pointer = "*" in words or "[" in words
    star = words.index("*") if "*" in words else len(words)
    return Parameter(name, " ".join(words[:-1]), pointer, "const" in words[:star])


def launches_of(everything: Sequence[Declaration], text: str) -> list[HostLaunch]:
    """Every launch of a file, in order."""
    defined: dict[str, Sequence[Token]] = {}
    for one in everything:
        if one.kind == "directive":
            match = re.match(r"#\s*define\s+(\w+)[ \t]+(?!\()(.+)", one.tokens[0].text)
            if match:
                defined[match[1]] = tokens_of(re.sub(r"\\\n", " ", match[2].split("//")[0]))
        elif one.kind == "other" and one.tokens[0].text == "typedef" and len(one.tokens) > 3:
            defined[one.tokens[-2].text] = one.tokens[1:-2]
        elif one.kind == "other" and not one.is_device:
            defined |= definitions(one.tokens)
    found = []
    for one in everything:
        if one.kind != "function" or one.is_device:
            continue
        for index, token in enumerate(one.tokens):
            read = _launch if token.text == "<<<" else _called if token.text in CALLS else None
            if read and (launch := read(one, index, defined, text)):
                found.append(launch)
    return found


def _launch(one: Declaration, index: int, defined: Mapping[str, Sequence[Token]], text: str) -> HostLaunch | None:
    code = one.tokens
    ends = next((i for i in range(index, len(code)) if code[i].text == ">>>"), -1)
    if ends < 0 or code[ends + 1].text != "(":
        return None
    configuration = split(code[index + 1 : ends], ",")
    arguments = split(code[ends + 2 : closing(code, ends + 1)], ",")
    return _made(one, index, code[:index], configuration, arguments, defined, text)


def _called(one: Declaration, index: int, defined: Mapping[str, Sequence[Token]], text: str) -> HostLaunch | None:
    """A launch by one of `CALLS`, whose arguments an array of their addresses lists."""
    code = one.tokens
    given = split(code[index + 2 : closing(code, index + 1)], ",") if code[index + 1].text == "(" else []
    if len(given) < 4:
        return None
    array = next((token.text for token in reversed(given[3]) if token.kind == "name"), "")
    arguments: list[Sequence[Token]] = [
        [token for token in part if token.text != "&"][-1:] for part in _listed(code[:index], array)
    ]
    return _made(one, index, given[0], (*given[1:3], *given[4:]), arguments, defined, text)


def _listed(code: Sequence[Token], name: str) -> Sequence[Sequence[Token]]:
    """The elements of an array as it is defined: `void* name[] = {&x, &out};`."""
    for index, (token, after) in enumerate(itertools.pairwise(code)):
        if token.text == name and after.text == "[":
            opened = closing(code, index + 1) + 1
            opened += opened < len(code) and code[opened].text == "="
            if opened < len(code) and code[opened].text == "{":
                return split(code[opened + 1 : closing(code, opened)], ",")
    return []


def _made(
    one: Declaration,
    index: int,
    kernel: Sequence[Token],
    configuration: Sequence[Sequence[Token]],
    arguments: Sequence[Sequence[Token]],
    defined: Mapping[str, Sequence[Token]],
    text: str,
) -> HostLaunch | None:
    """The launch at a token of a function, of the kernel whose name and template arguments end `kernel`."""
    at, template = len(kernel) - 1, ""
    if kernel[at].text == ">":
        opened = next((i for i in range(at, -1, -1) if kernel[i].text == "<" and closing_angle(kernel, i) == at), -1)
        if opened < 1:
            return None
        template = text[kernel[opened].start : kernel[at].end] if kernel[at].end <= len(text) else ""
        at = opened - 1
    before = one.tokens[one.body : index]
    return HostLaunch(
        kernel[at].text,
        " ".join(template.split()),
        one.line,
        tuple(tuple(part) for part in configuration),
        tuple(tuple(part) for part in arguments),
        {**defined, **definitions(before)},
        members(before),
        tuple(p.name for p in map(parameter_of, one.parameters()) if not p.is_pointer and SIZE.search(p.name)),
        one.tokens[index].text == CALLS[1],
    )


def definitions(code: Sequence[Token]) -> dict[str, Sequence[Token]]:
    """Variables with their last values: `name = value;` and `dim3 name(x, y);`."""
    found: dict[str, Sequence[Token]] = {}
    for index in range(1, len(code) - 1):
        token, after = code[index], code[index + 1]
        if token.kind != "name" or code[index - 1].text in MEMBER:
            continue
        if after.text == "=" and code[index + 2 : index + 3] and code[index + 2].text != "=":
            value = value_until(code, index + 2)
            found[token.text] = value
        elif after.text in ("(", "{"):  # the first of a declaration or a later one: dim3 block(256), grid(blocks);
            before = (code[i] for i in range(index - 1, -1, -1) if code[i].text in ("dim3", "=", ";", "{", "}"))
            if (kind := next(before, token)).text == "dim3":
                found[token.text] = [kind, *code[index + 1 : closing(code, index + 1) + 1]]
    return found


def members(code: Sequence[Token]) -> Fields:
    """What is assigned to members of variables, by the first value of each."""
    found: Fields = {}
    for index in range(1, len(code) - 1):
        token, before, after = code[index], code[index - 1], code[index + 1]
        if token.kind == "name" and after.text in MEMBER and before.text not in MEMBER:
            path, value = _assigned(code, index)
            if path:
                found.setdefault(token.text, {}).setdefault(path, value_until(code, value))
    return found


def _assigned(code: Sequence[Token], index: int) -> tuple[str, int]:
    """The path of `name.member.member[0] = value;` that begins at a name, and where its value does; "" of all else."""
    path, at = [], index + 1
    while at + 1 < len(code) and code[at].text in MEMBER:
        path.append(code[at + 1].text)
        at += 2
        while at < len(code) and code[at].text == "[":
            at = closing(code, at) + 1
    return (".".join(path), at + 1) if at + 1 < len(code) and code[at].text == "=" else ("", at)


def value_until(code: Sequence[Token], start: int) -> Sequence[Token]:
    """The tokens up to the comma or semicolon that ends a value."""
    index = start
    while index < len(code) and code[index].text not in (",", ";"):
        index = closing(code, index) + 1 if code[index].kind == "mark" and code[index].text in "([{" else index + 1
    return code[start:index]
