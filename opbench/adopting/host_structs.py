"""Structures that kernels receive by value: their fields, and the values that the host assigns to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opbench.adopting.host_launches import HostLaunch, Parameter, parameter_of, plain_type
from opbench.kernels.pointer_types import C_TYPES
from opbench.kernels.scalar import ELEMENT_BYTES
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_bracket, split

STRUCT_KEYWORDS = ("struct", "class", "typedef", "alignas", "__align__")


@dataclass(frozen=True)
class ParameterArguments:
    """A kernel's parameter as one value, or as the fields of its structure."""

    parameter: Parameter
    fields: tuple[tuple[Parameter, tuple[Token, ...]], ...]
    """With what the launch gives for each."""
    is_struct: bool = False
    unreadable: str = ""
    """A structure's member that a header has no words for."""


def structs_of(everything: Sequence[Declaration]) -> dict[str, list[Parameter] | str]:
    """Return the fields of each structure in order; or the member that a header cannot express."""
    result: dict[str, list[Parameter] | str] = {}
    for declaration in everything:
        texts = [token.text for token in declaration.tokens]
        if declaration.kind != "type" or "{" not in texts or not {"struct", "class"} & set(texts[:2]):
            continue
        opened = texts.index("{")
        ends = closing_bracket(declaration.tokens, opened)
        names = [t.text for t in (*declaration.tokens[:opened], *declaration.tokens[ends + 1 :]) if t.kind == "name"]
        fields = _fields(declaration.tokens[opened + 1 : ends])
        result |= dict.fromkeys((name for name in names if name not in STRUCT_KEYWORDS), fields)
    return result


def _fields(body: Sequence[Token]) -> list[Parameter] | str:
    parameters: list[Parameter] = []
    for declared in filter(None, split(body, ";")):
        first, *more = split(declared, ",")
        texts = [token.text for token in declared]
        field = parameter_of(first)
        if {"(", "[", "{", ":"} & set(texts) or not (field.is_pointer or plain_type(field.type) in C_TYPES):
            return " ".join(texts)
        parameters.append(field)
        for other in map(parameter_of, more):
            parameters.append(replace(field, name=other.name, is_pointer=other.is_pointer))
    return parameters or "it is empty"


def sizes_of(structs: Mapping[str, list[Parameter] | str]) -> dict[str, int]:
    """Return the size in bytes that C gives each structure with known fields."""
    result: dict[str, int] = {}
    for name, fields in structs.items():
        if isinstance(fields, str):
            continue
        end, widest = 0, 1
        for field in fields:
            size = 8 if field.is_pointer else ELEMENT_BYTES[C_TYPES[plain_type(field.type)]]
            end += -end % size + size
            widest = max(widest, size)
        result[name] = end + -end % widest
    return result


def arguments_by_field(
    parameters: Sequence[Parameter], launch: HostLaunch | None, structs: Mapping[str, list[Parameter] | str]
) -> list[ParameterArguments]:
    """Return every parameter with the arguments of a launch; a structure has one argument for each field."""
    arguments = launch.arguments if launch else ()
    result = []
    for index, parameter in enumerate(parameters):
        argument = arguments[index] if index < len(arguments) else ()
        fields = structs.get(plain_type(parameter.type))
        if fields is None or parameter.is_pointer:
            result.append(ParameterArguments(parameter, ((parameter, argument),)))
        elif isinstance(fields, str):
            result.append(ParameterArguments(parameter, (), True, fields))
        else:
            result.append(
                ParameterArguments(parameter, tuple(zip(fields, _values(argument, fields, launch), strict=True)), True)
            )
    return result


def _values(
    argument: Sequence[Token], fields: Sequence[Parameter], launch: HostLaunch | None
) -> list[tuple[Token, ...]]:
    """Return the value of each field of a struct argument; `variable.field = …` has precedence over `= {…}`."""
    values: list[tuple[Token, ...]] = [()] * len(fields)
    if launch is None or len(argument) != 1:
        return values
    name = argument[0].text
    listed = launch.known.get(name, ())
    if listed and listed[0].text == "{":
        for index, value in enumerate(split(listed[1:-1], ",")[: len(values)]):
            values[index] = value
    members = launch.members.get(name, {})
    return [tuple(members.get(field.name, value)) for field, value in zip(fields, values, strict=True)]


def typed_value(text: str, written: str) -> str:
    """Return a field's value with the type that C gives it; a number without a type is an `int` or a `float`."""
    kind = C_TYPES.get(plain_type(written), "i32")
    if kind in ("i32", "f32") or text.startswith("{") or text in ("true", "false"):
        return text
    return f"{{ {kind} = {text} }}"
