"""Structures that kernels receive by value: their fields, and the values that the host assigns to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opbench.adopting.host_launches import HostLaunch, Parameter, parameter_of, plain_type
from opbench.kernels.pointer_types import C_TYPES
from opbench.kernels.scalar import ELEMENT_BYTES
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_bracket, split, texts_of

STRUCT_KEYWORDS = ("struct", "class", "typedef", "alignas", "__align__")


@dataclass(frozen=True)
class ParameterArguments:
    """A parameter of a kernel with its argument, or with one argument for each field of its structure."""

    parameter: Parameter
    fields: tuple[tuple[Parameter, tuple[Token, ...]], ...]
    """The parameter, or the fields of its structure, each with the tokens of its argument."""
    is_struct: bool = False
    unreadable: str = ""
    """The declaration of a structure's member that a header cannot express; empty if there is none."""


def structs_of(all_declarations: Sequence[Declaration]) -> dict[str, list[Parameter] | str]:
    """Return the fields of each structure by its name; for a structure that no header can express, the reason."""
    result: dict[str, list[Parameter] | str] = {}
    for declaration in all_declarations:
        texts = texts_of(declaration.tokens)
        if declaration.kind != "type" or "{" not in texts or not {"struct", "class"} & set(texts[:2]):
            continue
        opening = texts.index("{")
        closing = closing_bracket(declaration.tokens, opening)
        names = [
            t.text for t in (*declaration.tokens[:opening], *declaration.tokens[closing + 1 :]) if t.kind == "name"
        ]
        fields = _fields(declaration.tokens[opening + 1 : closing])
        result |= dict.fromkeys((name for name in names if name not in STRUCT_KEYWORDS), fields)
    return result


def _fields(body: Sequence[Token]) -> list[Parameter] | str:
    """Return the fields that a structure's body declares, or the first declaration that a header cannot express."""
    parameters: list[Parameter] = []
    for declaration in filter(None, split(body, ";")):
        first, *further_tokens = split(declaration, ",")
        texts = texts_of(declaration)
        field = parameter_of(first)
        if {"(", "[", "{", ":"} & set(texts) or not (field.is_pointer or plain_type(field.type) in C_TYPES):
            return " ".join(texts)
        parameters.append(field)
        for other in map(parameter_of, further_tokens):
            parameters.append(replace(field, name=other.name, is_pointer=other.is_pointer))
    return parameters or "it is empty"


def sizes_of(structs: Mapping[str, list[Parameter] | str]) -> dict[str, int]:
    """Return the size in bytes of each structure with known fields, including padding as in C."""
    result: dict[str, int] = {}
    for name, fields in structs.items():
        if isinstance(fields, str):
            continue
        end_bytes, alignment_bytes = 0, 1
        for field in fields:
            field_bytes = 8 if field.is_pointer else ELEMENT_BYTES[C_TYPES[plain_type(field.type)]]
            end_bytes += -end_bytes % field_bytes + field_bytes
            alignment_bytes = max(alignment_bytes, field_bytes)
        result[name] = end_bytes + -end_bytes % alignment_bytes
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
                ParameterArguments(
                    parameter, tuple(zip(fields, _field_values(argument, fields, launch), strict=True)), True
                )
            )
    return result


def _field_values(
    argument: Sequence[Token], fields: Sequence[Parameter], launch: HostLaunch | None
) -> list[tuple[Token, ...]]:
    """Return the value of each field of a struct argument; `variable.field = …` has precedence over `= {…}`."""
    values: list[tuple[Token, ...]] = [()] * len(fields)
    if launch is None or len(argument) != 1:
        return values
    name = argument[0].text
    initializer = launch.values_by_name.get(name, ())
    if initializer and initializer[0].text == "{":
        for index, value in enumerate(split(initializer[1:-1], ",")[: len(values)]):
            values[index] = value
    assigned_members = launch.members.get(name, {})
    return [tuple(assigned_members.get(field.name, value)) for field, value in zip(fields, values, strict=True)]


def typed_value(value: str, c_type: str) -> str:
    """Return a field's value as header text, with its dtype unless the dtype is i32 or f32.

    `value` is the value as header text, `c_type` is the field's type.
    """
    dtype = C_TYPES.get(plain_type(c_type), "i32")
    if dtype in ("i32", "f32") or value.startswith("{") or value in ("true", "false"):
        return value
    return f"{{ {dtype} = {value} }}"
