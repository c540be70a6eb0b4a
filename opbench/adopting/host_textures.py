"""Describe the textures and surfaces that host code creates, as entries of a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.adopting.host_launches import MemberValues, definitions, members
from opbench.source.scan import Declaration
from opbench.source.tokens import Token, closing_bracket, split, text_of, texts_of

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
    """A texture or surface object as host code describes it to the CUDA runtime."""

    header_keys: Mapping[str, str]
    """Keys of the header's entry with values as TOML, such as filter and address; without tensor and size."""
    size: tuple[tuple[Token, ...], ...] = ()
    """Width and height in texels, as expressions of the host code; empty if the code has none."""


def textures_of(all_declarations: Sequence[Declaration]) -> dict[str, HostTexture]:
    """Return every texture and surface object that host functions create, by the name of its variable."""
    result: dict[str, HostTexture] = {}
    member_values: MemberValues = {}
    array_allocations: dict[str, list[tuple[Token, ...]]] = {}
    values: dict[str, Sequence[Token]] = {}
    create_calls: list[list[tuple[Token, ...]]] = []
    for declaration in all_declarations:
        if declaration.kind != "function" or declaration.is_device or declaration.body < 0:
            continue
        code = declaration.tokens[declaration.body :]
        values |= definitions(code)
        member_values |= members(code)
        for index, token in enumerate(code[:-1]):
            if token.text in (*CREATE_FUNCTIONS, *ARRAY_ALLOCATIONS) and code[index + 1].text == "(":
                arguments = split(code[index + 2 : closing_bracket(code, index + 1)], ",")
                if token.text in CREATE_FUNCTIONS:
                    create_calls.append(arguments)
                elif arguments:
                    array_allocations[_variable_name(arguments[0])] = arguments
    for arguments in create_calls:
        if len(arguments) > 1:
            resource = member_values.get(_variable_name(arguments[1]), {})
            description = member_values.get(_variable_name(arguments[2]), {}) if len(arguments) > 2 else {}
            result[_variable_name(arguments[0])] = _texture(resource, description, array_allocations, values)
    return result


def _variable_name(tokens: Sequence[Token]) -> str:
    """Return the name in `&name` or `name`."""
    return next((token.text for token in tokens if token.kind == "name"), "")


def _texture(
    resource: Mapping[str, Sequence[Token]],
    description: Mapping[str, Sequence[Token]],
    array_allocations: Mapping[str, Sequence[tuple[Token, ...]]],
    values: Mapping[str, Sequence[Token]],
) -> HostTexture:
    """Return the texture that a resource description and a texture description define.

    `resource` and `description` have the values of their members; `array_allocations` has the arguments of each
    allocation.
    """
    header_keys: dict[str, str] = {}
    for key, member, modes in (
        ("filter", "filterMode", FILTER_MODES),
        ("address", "addressMode", ADDRESS_MODES),
        ("read", "readMode", READ_MODES),
    ):
        name = _variable_name(description.get(member, ()))
        if modes.get(name, next(iter(modes.values()))) != next(iter(modes.values())):
            header_keys[key] = f'"{modes[name]}"'
    if text_of(description.get("normalizedCoords", ())) in ("1", "true"):
        header_keys["normalized"] = "true"
    size: tuple[tuple[Token, ...], ...] = ()
    channel_description: Sequence[Token] = ()
    if "res.linear.devPtr" in resource:
        header_keys["memory"] = '"linear"'
        channel_description = resource.get("res.linear.desc", ())
    elif "res.pitch2D.devPtr" in resource:
        size = tuple(tuple(resource.get(f"res.pitch2D.{side}", ())) for side in ("width", "height"))
        channel_description = resource.get("res.pitch2D.desc", ())
    elif allocation := array_allocations.get(_variable_name(resource.get("res.array.array", ()))):
        size, channel_description = tuple(allocation[2:4]), allocation[1] if len(allocation) > 1 else ()
        if len(size) == 2 and text_of(size[1]) == "0":
            size = size[:1]
    if (channels := _channels(values.get(_variable_name(channel_description), channel_description))) > 1:
        header_keys["channels"] = str(channels)
    return HostTexture(header_keys, size if all(size) else ())


def _channels(description: Sequence[Token]) -> int:
    """Return the channels in `cudaCreateChannelDesc<float4>()` or `cudaCreateChannelDesc(8, 8, 8, 8, kind)`."""
    texts = texts_of(description)
    if "<" in texts and ">" in texts:
        type_suffix = texts[texts.index(">") - 1][-1:]
        return int(type_suffix) if type_suffix in ("2", "4") else 1
    bits = [text for text in texts[1:] if text.isdigit()][:4]
    return max(1, sum(text != "0" for text in bits))
