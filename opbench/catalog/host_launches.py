"""Launches that the host's part of a file makes, with what their functions define before them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.catalog.c_expression import tokens_of
from opbench.catalog.scan import Declaration
from opbench.catalog.tokens import Token, closing, closing_angle, split

SIZE = re.compile(r"(?i)block|thread|tile|bdim")


MEMBER = (".", "->")
OBJECTS = ("cudaTextureObject_t", "cudaSurfaceObject_t")


Fields = dict[str, dict[str, Sequence[Token]]]
"""By variable, what was assigned to its members: `description.addressMode[0] = …` as "addressMode"."""


@dataclass(frozen=True)
class HostLaunch:
    """A launch `kernel<<<grid, block, shared>>>(arguments)` with what its function and file define before it."""

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
            if token.text == "<<<" and (launch := _launch(one, index, defined, text)):
                found.append(launch)
    return found


def _launch(one: Declaration, index: int, defined: Mapping[str, Sequence[Token]], text: str) -> HostLaunch | None:
    code = one.tokens
    ends = next((i for i in range(index, len(code)) if code[i].text == ">>>"), -1)
    if ends < 0 or code[ends + 1].text != "(":
        return None
    at, template = index - 1, ""
    if code[at].text == ">":
        opened = next((i for i in range(at, -1, -1) if code[i].text == "<" and closing_angle(code, i) == at), -1)
        if opened < 1:
            return None
        template = text[code[opened].start : code[at].end] if code[at].end <= len(text) else ""
        at = opened - 1
    closed = closing(code, ends + 1)
    return HostLaunch(
        code[at].text,
        " ".join(template.split()),
        one.line,
        tuple(split(code[index + 1 : ends], ",")),
        tuple(split(code[ends + 2 : closed], ",")),
        {**defined, **definitions(code[one.body : index])},
        members(code[one.body : index]),
        tuple(p.name for p in map(parameter_of, one.parameters()) if not p.is_pointer and SIZE.search(p.name)),
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
