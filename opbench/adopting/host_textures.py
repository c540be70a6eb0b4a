"""Textures and surfaces that host code creates, as entries of a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.adopting.host_launches import Fields, definitions, members
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_bracket, split

FILTER_MODES = {"cudaFilterModePoint": "point", "cudaFilterModeLinear": "linear"}
ADDRESS_MODES = {
    "cudaAddressModeClamp": "clamp", "cudaAddressModeBorder": "border", "cudaAddressModeWrap": "wrap",
    "cudaAddressModeMirror": "mirror",
}  # fmt: skip
READ_MODES = {"cudaReadModeElementType": "element", "cudaReadModeNormalizedFloat": "normalized"}
CREATE_FUNCTIONS = ("cudaCreateTextureObject", "cudaCreateSurfaceObject")
ARRAY_ALLOCATIONS = ("cudaMallocArray", "cudaMalloc3DArray", "cudaMallocMipmappedArray")


@dataclass(frozen=True)
class HostTexture:
    """The description that `cudaCreateTextureObject` or `cudaCreateSurfaceObject` received."""

    words: Mapping[str, str]
    """Of a header's entry, beside its tensor and size, as TOML."""
    size: tuple[tuple[Token, ...], ...] = ()
    """Width and height as the host has them; empty where they cannot be read."""


def textures_of(everything: Sequence[Declaration]) -> dict[str, HostTexture]:
    """Return every texture and surface object that host functions create, by its variable."""
    result: dict[str, HostTexture] = {}
    fields: Fields = {}
    arrays: dict[str, list[tuple[Token, ...]]] = {}
    values: dict[str, Sequence[Token]] = {}
    created: list[list[tuple[Token, ...]]] = []
    for declaration in everything:
        if declaration.kind != "function" or declaration.is_device or declaration.body < 0:
            continue
        code = declaration.tokens[declaration.body :]
        values |= definitions(code)
        fields |= members(code)
        for index, token in enumerate(code[:-1]):
            if token.text in (*CREATE_FUNCTIONS, *ARRAY_ALLOCATIONS) and code[index + 1].text == "(":
                arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
                if token.text in CREATE_FUNCTIONS:
                    created.append(arguments)
                elif arguments:
                    arrays[_variable(arguments[0])] = arguments
    for arguments in created:
        if len(arguments) > 1:
            resource = fields.get(_variable(arguments[1]), {})
            description = fields.get(_variable(arguments[2]), {}) if len(arguments) > 2 else {}
            result[_variable(arguments[0])] = _texture(resource, description, arrays, values)
    return result


def _variable(tokens: Sequence[Token]) -> str:
    """Return the name in `&name` or `name`."""
    return next((token.text for token in tokens if token.kind == "name"), "")


def _texture(
    resource: Mapping[str, Sequence[Token]],
    description: Mapping[str, Sequence[Token]],
    arrays: Mapping[str, Sequence[tuple[Token, ...]]],
    values: Mapping[str, Sequence[Token]],
) -> HostTexture:
    words: dict[str, str] = {}
    for key, member, known in (
        ("filter", "filterMode", FILTER_MODES),
        ("address", "addressMode", ADDRESS_MODES),
        ("read", "readMode", READ_MODES),
    ):
        name = _variable(description.get(member, ()))
        if known.get(name, next(iter(known.values()))) != next(iter(known.values())):
            words[key] = f'"{known[name]}"'
    if "".join(token.text for token in description.get("normalizedCoords", ())) in ("1", "true"):
        words["normalized"] = "true"
    size: tuple[tuple[Token, ...], ...] = ()
    channel: Sequence[Token] = ()
    if "res.linear.devPtr" in resource:
        words["memory"] = '"linear"'
        channel = resource.get("res.linear.desc", ())
    elif "res.pitch2D.devPtr" in resource:
        size = tuple(tuple(resource.get(f"res.pitch2D.{side}", ())) for side in ("width", "height"))
        channel = resource.get("res.pitch2D.desc", ())
    elif given := arrays.get(_variable(resource.get("res.array.array", ()))):
        size, channel = tuple(given[2:4]), given[1] if len(given) > 1 else ()
        if len(size) == 2 and "".join(token.text for token in size[1]) == "0":
            size = size[:1]
    if (channels := _channels(values.get(_variable(channel), channel))) > 1:
        words["channels"] = str(channels)
    return HostTexture(words, size if all(size) else ())


def _channels(description: Sequence[Token]) -> int:
    """Return the channels in `cudaCreateChannelDesc<float4>()` or `cudaCreateChannelDesc(8, 8, 8, 8, kind)`."""
    texts = [token.text for token in description]
    if "<" in texts and ">" in texts:
        last = texts[texts.index(">") - 1][-1:]
        return int(last) if last in ("2", "4") else 1
    bits = [text for text in texts[1:] if text.isdigit()][:4]
    return max(1, sum(text != "0" for text in bits))
