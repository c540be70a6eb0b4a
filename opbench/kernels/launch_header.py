"""Read the launches of a header: kernels in order, their arguments, tensor maps, textures and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from opbench.errors import UnknownName, UsageError, unknown_name
from opbench.kernels.scalar import FLOATS, SPECIAL_VALUES, STRUCT_FORMATS, BufferAddress, Scalar, Struct
from opbench.kernels.tensor_map import L2_PROMOTION_BYTES, SWIZZLE_BYTES, TensorMapTemplate
from opbench.kernels.texture import ALLOWED_CHANNELS, ALLOWED_MODES, TextureTemplate
from opbench.kernels.toml_lines import KeyPath
from opbench.kernels.variant import ConstantTemplate, LaunchTemplate
from opbench.source.sources import Source, without_comments

FORMER_SETUP_KEY = "once"
"""The name of `setup` in headers of earlier versions."""
LAUNCH_KEYS = {
    "kernel", "grid", "block", "shared", "args", "zero", "fill", "value", "cluster", "programmatic", "cooperative",
    "early", "setup", FORMER_SETUP_KEY,
}  # fmt: skip
LAUNCH_EXAMPLES = {
    "kernel": 'kernel = "name"', "grid": 'grid = ["cdiv(n, 256)"]', "block": "block = [256]",
    "cluster": "cluster = [2]",
}  # fmt: skip
"""A line of a header for each key of a launch that error messages show."""
MAP_LISTS = ("dims", "strides", "box", "element_strides", "lower", "upper")
MAP_KEYS = {"tensor", "type", "swizzle", "l2", "im2col", *MAP_LISTS[:4], "offset"}
IM2COL_KEYS = ("lower", "upper", "channels", "pixels")
TEXTURE_KEYS = {"tensor", "size", "channels", "normalized", *ALLOWED_MODES}
SURFACE_KEYS = {"tensor", "size", "channels"}


class HeaderReader(Protocol):
    """The methods of a header reader that reading a launch needs."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the kernel's file and its headers."""

    def error_at(
        self,
        key: KeyPath,
        message: str | UnknownName,
        kind: str = "",
        *,
        value: object = None,
        cause: UsageError | None = None,
    ) -> UsageError:
        """Return an error at the line of a header's key or list item."""

    def expression(self, label: str, text: object, key: KeyPath, is_real: bool = False) -> str:
        """Check an expression and return its text; errors start with `label`.

        With `is_real`, the expression computes floats.
        """


def _expressions(reader: HeaderReader, label: str, texts: Sequence[object], key: KeyPath) -> tuple[str, ...]:
    return tuple(reader.expression(label, text, (*key, index)) for index, text in enumerate(texts))


def read_launch(reader: HeaderReader, index: int, entry: object) -> LaunchTemplate:
    key_path: KeyPath = ("launch", index)
    if not isinstance(entry, dict):
        raise reader.error_at(
            key_path,
            f"launch[{index}] = {entry!r} is not allowed; write a table such as "
            '{ kernel = "name", grid = ["cdiv(n, 256)"], block = [256] }',
            value=entry,
        )
    for key in entry:
        if key not in LAUNCH_KEYS:
            raise reader.error_at((*key_path, key), unknown_name("key", key, LAUNCH_KEYS, place=f"launch[{index}]"))
    if fill_keys := {"zero", "fill"} & entry.keys():
        return _fill_launch(reader, index, entry, fill_keys.pop())
    for key in ("kernel", "grid", "block"):
        if key not in entry:
            raise reader.error_at(
                key_path,
                f"launch[{index}]: {key} is missing; add it, for example: {LAUNCH_EXAMPLES[key]}",
            )
    for key in {"grid", "block", "cluster"} & entry.keys():
        if not isinstance(entry[key], list) or not 1 <= len(entry[key]) <= 3:
            raise reader.error_at(
                (*key_path, key),
                f"launch[{index}].{key} = {entry[key]!r} is not allowed; write a list of 1 to 3 expressions, "
                f"such as {LAUNCH_EXAMPLES[key]}",
                value=entry[key],
            )
    if not isinstance(entry.get("args", []), list):
        raise reader.error_at(
            (*key_path, "args"),
            f'launch[{index}].args = {entry["args"]!r} is not allowed; write a list, such as args = ["x", "out", "n"]',
            value=entry["args"],
        )
    programmatic = entry.get("programmatic", False)
    if not isinstance(programmatic, bool | str):
        raise reader.error_at(
            (*key_path, "programmatic"),
            f"launch[{index}].programmatic = {programmatic!r} is not allowed; write true, false or an expression",
            value=programmatic,
        )
    if programmatic and not any("griddepcontrol.wait" in without_comments(source.text) for source in reader.sources):
        raise reader.error_at(
            (*key_path, "programmatic"),
            f"launch[{index}].programmatic: the kernel and its headers contain no griddepcontrol.wait, so the kernel "
            "could read data that the previous launch has not written yet; add the instruction to the kernel, or "
            "remove programmatic",
        )
    early = entry.get("early", [])
    if (early and not programmatic) or not isinstance(early, list) or not all(isinstance(e, str) for e in early):
        raise reader.error_at(
            (*key_path, "early"),
            f"launch[{index}].early = {early!r} is not allowed; write a list of names of inputs, such as early = "
            '["x"], and set programmatic = true',
            value=early,
        )
    return LaunchTemplate(
        kernel=entry["kernel"],
        grid=_expressions(reader, "grid", entry["grid"], (*key_path, "grid")),
        block=_expressions(reader, "block", entry["block"], (*key_path, "block")),
        shared=reader.expression("shared", entry.get("shared", "0"), (*key_path, "shared")),
        args=(
            tuple(_argument(reader, e, (*key_path, "args", n)) for n, e in enumerate(entry["args"]))
            if "args" in entry
            else None
        ),
        cluster=_expressions(reader, "cluster", entry.get("cluster", ()), (*key_path, "cluster")),
        programmatic=reader.expression("programmatic", programmatic, (*key_path, "programmatic")),
        cooperative=_cooperative(reader, index, entry),
        early=tuple(early),
        setup=_setup(reader, index, entry),
    )


def _setup(reader: HeaderReader, index: int, entry: Mapping[str, object]) -> bool:
    key = FORMER_SETUP_KEY if FORMER_SETUP_KEY in entry else "setup"
    is_setup = entry.get(key, False)
    if not isinstance(is_setup, bool) or (is_setup and not entry.get("args")):
        raise reader.error_at(
            ("launch", index, key),
            f"launch[{index}].{key} = {is_setup!r} is not allowed; write true or false, and give the launch args if "
            f"{key} is true",
            value=is_setup,
        )
    return is_setup


def _cooperative(reader: HeaderReader, index: int, entry: Mapping[str, object]) -> bool:
    is_cooperative = entry.get("cooperative", False)
    if not isinstance(is_cooperative, bool) or (is_cooperative and {"cluster", "programmatic"} & entry.keys()):
        raise reader.error_at(
            ("launch", index, "cooperative"),
            f"launch[{index}].cooperative = {is_cooperative!r} is not allowed; write true or false, and remove "
            "cluster and programmatic if cooperative is true",
            value=is_cooperative,
        )
    return is_cooperative


def tensor_map(reader: HeaderReader, name: str, entry: object) -> TensorMapTemplate:
    label, key_path = f"tensor_maps.{name}", ("tensor_maps", name)
    if not isinstance(entry, dict) or not isinstance(entry.get("tensor"), str):
        raise reader.error_at(
            key_path,
            f'{label} = {entry!r} is not allowed; write a table such as {{ tensor = "a", box = [64, 128] }}',
            value=entry,
        )
    im2col = entry.get("im2col", {})
    key_paths = {key: (*key_path, *(("im2col",) if key in im2col else ()), key) for key in (*entry, *im2col)}
    for key, value, allowed_keys in (
        *((k, v, MAP_KEYS) for k, v in entry.items()),
        *((k, v, IM2COL_KEYS) for k, v in im2col.items()),
    ):
        if key not in allowed_keys:
            raise reader.error_at(key_paths[key], unknown_name("key", key, allowed_keys, place=label))
        if key in MAP_LISTS and not (isinstance(value, list) and 1 <= len(value) <= 5):
            raise reader.error_at(
                key_paths[key],
                f"{label}.{key} = {value!r} is not allowed; write a list of 1 to 5 expressions, such as {key} = "
                '["64", "128"]',
                value=value,
            )
    for key, allowed in (("swizzle", tuple(SWIZZLE_BYTES)), ("l2", L2_PROMOTION_BYTES)):
        setting = entry.get(key, allowed[-1])
        if setting not in allowed and not (key == "swizzle" and " if " in str(setting)):
            allowed_text = ", ".join(map(str, allowed))
            raise reader.error_at(
                key_paths[key],
                f"{label}.{key} = {entry[key]!r} is not allowed; write one of {allowed_text}",
                value=entry[key],
            )
    if bool(im2col) == ("box" in entry) or (im2col and im2col.keys() != set(IM2COL_KEYS)):
        needed = "box, or im2col with " + ", ".join(IM2COL_KEYS)
        raise reader.error_at(key_path, f"{label} has the keys {', '.join((*entry, *im2col))}; write either {needed}")
    merged = {**entry, **im2col}
    lists = {key: _expressions(reader, key, merged.get(key, ()), key_paths.get(key, key_path)) for key in MAP_LISTS}

    def read(key: str, text: object) -> str:
        return reader.expression(key, text, key_paths.get(key, key_path))

    return TensorMapTemplate(
        name=name,
        tensor=entry["tensor"],
        type=read("type", entry["type"]) if "type" in entry else "",
        dims=lists["dims"],
        strides=lists["strides"],
        box=lists["box"],
        element_strides=lists["element_strides"],
        swizzle=entry["swizzle"]
        if entry.get("swizzle") in SWIZZLE_BYTES
        else read("swizzle", entry.get("swizzle", "'128B'")),
        l2=entry.get("l2", L2_PROMOTION_BYTES[-1]),
        offset=read("offset", merged.get("offset", "0")),
        lower=lists["lower"],
        upper=lists["upper"],
        channels=read("channels", merged.get("channels", "0")),
        pixels=read("pixels", merged.get("pixels", "0")),
    )


def texture(reader: HeaderReader, table_name: str, name: str, entry: object) -> TextureTemplate:
    """Read one entry of the header's `textures` or `surfaces`."""
    label, key_path, allowed_keys = (
        f"{table_name}.{name}",
        (table_name, name),
        TEXTURE_KEYS if table_name == "textures" else SURFACE_KEYS,
    )
    shape = entry.get("size") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(entry.get("tensor"), str) or not isinstance(shape, list):
        example = f'{{ tensor = "{name}", size = ["width", "height"] }}'
        raise reader.error_at(
            key_path, f"{label} = {entry!r} is not allowed; write a table such as {example}", value=entry
        )
    for key, value in entry.items():
        if key not in allowed_keys:
            raise reader.error_at((*key_path, key), unknown_name("key", key, allowed_keys, place=label))
        allowed = {"channels": ALLOWED_CHANNELS, "normalized": (False, True), **ALLOWED_MODES}.get(key)
        if allowed is not None and (value not in allowed or isinstance(value, bool) != (key == "normalized")):
            allowed_text = ", ".join(str(name).lower() for name in allowed)
            raise reader.error_at(
                (*key_path, key), f"{label}.{key} = {value!r} is not allowed; write one of {allowed_text}", value=value
            )
    if not 1 <= len(shape) <= 2:
        raise reader.error_at(
            (*key_path, "size"),
            f"{label}.size = {shape!r} is not allowed; write a list of the width, or of width and height, such "
            'as size = ["width", "height"]',
            value=shape,
        )
    return TextureTemplate(
        name,
        entry["tensor"],
        _expressions(reader, "size", shape, (*key_path, "size")),
        entry.get("channels", 1),
        table_name == "surfaces",
        entry.get("normalized", False),
        tuple((key, entry[key]) for key in ALLOWED_MODES if key in entry),
    )


def _fill_launch(reader: HeaderReader, index: int, entry: Mapping[str, object], key: str) -> LaunchTemplate:
    value, name = entry.get("value", 0), entry[key]
    if (
        not isinstance(name, str)
        or not isinstance(value, (str, int, float))
        or (key == "fill") != ("value" in entry)
        or len(entry) > 2
    ):
        raise reader.error_at(
            ("launch", index, key),
            f'launch[{index}] = {entry!r} is not allowed; write {{ zero = "out" }} or '
            '{ fill = "out", value = "-inf" }',
            value=entry,
        )
    if isinstance(value, str) and value not in SPECIAL_VALUES:
        reader.expression("value", value, ("launch", index, "value"))
    return LaunchTemplate(zero=name, value=value)


def _argument(reader: HeaderReader, entry: object, key: KeyPath) -> str | Scalar | Struct:
    """Read one kernel argument: an expression, an optional buffer "x?", a buffer with an offset, or a struct."""
    if isinstance(entry, dict) and "struct" in entry:
        struct_entries = entry["struct"]
        if len(entry) != 1 or not isinstance(struct_entries, list) or not struct_entries:
            raise reader.error_at(
                key,
                f"args: {entry!r} is not allowed; write the structure's fields as "
                '{ struct = ["x", "n", { f32 = 1.0 }] }',
                value=entry,
            )
        fields = [_argument(reader, entry, (*key, "struct", n)) for n, entry in enumerate(struct_entries)]
        if any(isinstance(field, Struct) for field in fields):
            raise reader.error_at(
                key,
                f"args: {entry!r}: a struct in a struct is not allowed; write the fields of the inner struct in the "
                "list of the outer struct",
            )
        return Struct(tuple(field for field in fields if not isinstance(field, Struct)))
    if isinstance(entry, dict) and "buffer" in entry:
        if entry.keys() != {"buffer", "offset"} or not isinstance(entry["buffer"], str):
            raise reader.error_at(
                key,
                f'args: {entry!r} is not allowed; write {{ buffer = "x", offset = "n" }}, with the offset in elements',
                value=entry,
            )
        return BufferAddress((entry["buffer"],), reader.expression("args", entry["offset"], key))
    if isinstance(entry, bool):
        return Scalar("bool", entry)
    if isinstance(entry, float):
        return Scalar("f32", entry)
    if isinstance(entry, dict):
        type_name, value = next(iter(entry.items()), ("", None))
        if len(entry) != 1 or type_name not in STRUCT_FORMATS or not isinstance(value, (str, int, float)):
            type_names = ", ".join(STRUCT_FORMATS)
            raise reader.error_at(
                key,
                f'args: {entry!r} is not allowed; write one type and its value, such as {{ i64 = "n" }}; types: '
                f"{type_names}, struct",
                value=entry,
            )
        if isinstance(value, str) and value not in SPECIAL_VALUES:
            reader.expression("args", value, key, type_name in FLOATS)
        return Scalar(type_name, value)
    if isinstance(entry, str) and entry.endswith("?") and entry[:-1].isidentifier():
        return entry
    return reader.expression("args", entry, key)


def constant(reader: HeaderReader, name: str, entry: object) -> ConstantTemplate:
    """Read the value of a `__constant__` variable: the name of a tensor, or numbers."""
    if isinstance(entry, str):
        return ConstantTemplate(name, tensor=entry)
    type_name, values = next(iter(entry.items()), ("", None)) if isinstance(entry, dict) else ("", entry)
    numbers = [v for v in (values if isinstance(values, list) else [values]) if isinstance(v, (str, int, float))]
    if not type_name:
        type_name = "i32" if all(isinstance(v, int) for v in numbers) else "f32"
    if type_name not in STRUCT_FORMATS or len(numbers) != (len(values) if isinstance(values, list) else 1):
        raise reader.error_at(
            ("constants", name),
            f"constants.{name} = {entry!r} is not allowed; write a tensor's name, numbers, or a table with a type "
            f"such as {{ f64 = [0.5, 1] }}; types: {', '.join(STRUCT_FORMATS)}",
            value=entry,
        )
    for value in numbers:
        if isinstance(value, str) and value not in SPECIAL_VALUES:
            reader.expression("constants", value, ("constants", name), type_name in FLOATS)
    return ConstantTemplate(name, values=tuple(Scalar(type_name, value) for value in numbers))
