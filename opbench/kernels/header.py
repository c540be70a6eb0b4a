"""Read the TOML header of a variant's file, and report errors in it with file and line."""

from __future__ import annotations

import functools
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opbench.errors import Location, UnknownName, Unreadable, UsageError, unknown_name
from opbench.kernels import expression
from opbench.kernels.header_text import MERGED_LISTS, HeaderText, header_location, header_table, split_header
from opbench.kernels.launch_header import constant, read_launch, tensor_map, texture
from opbench.kernels.mechanism import MECHANISMS
from opbench.kernels.memory_header import (
    BUFFER_TYPES,
    INITIAL_CONTENTS,
    NO_OPERATOR,
    BufferTemplate,
    MemoryHeader,
    is_identifier,
)
from opbench.kernels.space import tunable_values
from opbench.kernels.task_file import TASK_PREFIX, TorchTask, read_reference
from opbench.kernels.tile import TILE_KEYS
from opbench.kernels.toml_lines import KeyPath
from opbench.kernels.variant import Variant
from opbench.paths import next_command, shipped_folder
from opbench.source.precision import PRODUCTS, UNIT_ROUNDOFF, product_contradiction
from opbench.source.project import project_folders
from opbench.source.sources import Source, include_closure, tensor_core_operand_types, text_checksum

KeyTypes = type | tuple[type, ...]
"""The type or types that the value of a key may have."""
TOML_NAMES = {str: "string", dict: "table", list: "list", bool: "boolean"}
"""The names of the types in error messages."""

HEADER_KEYS: Mapping[str, KeyTypes] = {
    "title": str, "operator": str, "builds_on": str, "mechanism": list, "tile": dict, "precision": str,
    "product": str, "compute_capability": str,
    "tune": dict, "define": dict, "workspace": dict, "where": list, "supports": dict, "requires": list,
    "tensor_maps": dict, "textures": dict, "surfaces": dict, "launch": list, "modules": list, "flops": str,
    "reproducible": bool,
    "in_place": (bool, dict), "constants": dict, "variant": dict,
}  # fmt: skip
MEMORY_KEYS: Mapping[str, KeyTypes] = {
    "title": str, "operator": str, "sizes": dict, "buffers": dict, "launch": list,
}  # fmt: skip
"""The keys of a header without an operator."""
DESCRIPTIVE_KEYS = ("title", "builds_on", "mechanism", "tile", "tune", "where")
"""The keys that change nothing in how one config of a variant runs."""
BUFFER_KEYS = ("type", "elements", "content")
VARIANT_KEYS = {key: kind for key, kind in HEADER_KEYS.items() if key not in ("operator", "variant")}
PRECISIONS = tuple(UNIT_ROUNDOFF)
CACHED_FILES = 1024
"""Number of files whose variants are cached."""
MAX_CONFIGS = 10_000
"""Most combinations of tunables of one variant."""


def has_header(path: Path) -> bool:
    """Return whether a file has a line that opens or closes a header; True for an unreadable file."""
    try:
        return re.search(r"^[ \t]*//[ \t]+///(?!/)", path.read_text(errors="replace"), re.MULTILINE) is not None
    except OSError:
        return True


def read_variants(
    path: Path, operator: str = "", include: Sequence[Path] | None = None, header: str = ""
) -> tuple[Variant, ...]:
    """Return the variants of one file: one for each `[variant.NAME]` table, or one for the whole file.

    `operator` is the folder's name; without it, the header must name the operator. `include` are the folders of
    headers, by default those shipped with opbench; folders of the file's project with headers that it includes
    are added. `header` is a proposed header for a file without one. Raises UsageError with file:line for a
    missing header, an unknown key or a value that is not allowed.
    """
    folders = tuple(include) if include is not None else (shipped_folder("variants") / "include",)
    try:
        folders += project_folders(path, folders) if path.suffix == ".cu" else ()
        sources = include_closure(path, folders)
        sources[0].content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read: {error}; check the path and its permissions with: ls -l {path}",
            kind="unreadable",
            subject=path,
        ) from None
    return _variants_of(path, operator, folders, sources, header)


def has_memory_header(path: Path) -> bool:
    """Return whether a file has a header for memory checks, which names no operator."""
    if not has_header(path):
        return False
    try:
        return _read_toml(path, split_header(path, path.read_text(errors="replace"))).get("operator") == NO_OPERATOR
    except (OSError, UsageError):  # reading the header reports the error
        return False


def torch_task_of(path: Path) -> TorchTask | None:
    """Return the PyTorch task that a kernel's header names; None for any other file."""
    if path.suffix != ".cu" or not path.is_file() or not has_header(path):
        return None
    try:
        operator_name = _read_toml(path, split_header(path, path.read_text(errors="replace"))).get("operator", "")
        return (
            read_reference(operator_name, path.resolve().parent) if str(operator_name).startswith(TASK_PREFIX) else None
        )
    except (OSError, UsageError):  # reading the header reports the error
        return None


def read_memory_header(path: Path, include: Sequence[Path] = (), header: str = "") -> MemoryHeader:
    """Read a header that names no operator.

    `header` is a proposed header for a file without one; `include` are folders of headers. Raises UsageError
    with file:line for a key or value that is not allowed.
    """
    folders = (*include, *project_folders(path, include))
    try:
        sources = include_closure(path, folders)
    except OSError as error:
        raise Unreadable(path, error) from None
    text = header or sources[0].text
    reader = _MemoryReader(path, text, "", _read_toml(path, split_header(path, text)), sources, folders)
    reader.require_known(MEMORY_KEYS)
    return reader.memory_header()


def _read_toml(path: Path, header: HeaderText) -> dict[str, Any]:
    """Return the table of a file's header; raise UsageError for invalid TOML."""
    try:
        return header_table(header.toml)
    except tomllib.TOMLDecodeError as error:
        location = Location(path, header.opening_line + _error_line(error))
        raise UsageError(
            f"the header is not valid TOML: {error}; correct the header at this line", location, kind="not-toml"
        ) from None
    except RecursionError:
        location = Location(path, header.opening_line)
        raise UsageError(
            "the header has too many nested arrays or tables for the TOML reader; use fewer levels",
            location,
            kind="nested-too-deeply",
        ) from None


@functools.lru_cache(CACHED_FILES)
def _variants_of(
    path: Path, operator: str, folders: tuple[Path, ...], sources: tuple[Source, ...], proposed: str = ""
) -> tuple[Variant, ...]:
    """Return the variants of a file and its headers.

    Catalogs of one process share the variants while the files are unchanged.
    """
    text = proposed or sources[0].content.decode()
    header = split_header(path, text)
    table, why = _read_toml(path, header), header.why
    common_reader = _HeaderReader(path, text, "", table, sources, folders)
    if table.get("operator") == NO_OPERATOR:
        raise common_reader.error_at(
            ("operator",),
            f'operator = "{NO_OPERATOR}": without an operator there is no reference, so the file can only be checked '
            f"for memory errors and races: {next_command('check', path)}; to run and explain it, "
            "write its operator (opbench new operator NAME --in mine), then name it in the header",
            kind="no-operator",
            value=NO_OPERATOR,
        )
    common_reader.require_known(HEADER_KEYS)
    tables = table.pop("variant", {})
    if not tables:
        return (replace(common_reader.variant(path.stem, operator, why), header=proposed),)
    variants = []
    for name, own_table in tables.items():
        reader = _HeaderReader(path, text, name, own_table, sources, folders)
        if not isinstance(own_table, dict) or not re.fullmatch(r"[\w-]+", name):
            raise reader.error_at(
                ("variant", name),
                f"variant.{name} = {own_table!r} is not allowed; write a table [variant.NAME], with "
                "letters, digits, _ and - in NAME",
                value=own_table,
            )
        reader.require_known(VARIANT_KEYS)
        variants.append(replace(reader, table=_merge_tables(table, own_table)).variant(name, operator, why))
    return tuple(variants)


def _merge_tables(common: Mapping[str, Any], own_table: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the common keys with those of one variant."""
    merged = {**common, **own_table}
    for key in common.keys() & own_table.keys():
        if key in MERGED_LISTS:
            merged[key] = [*common[key], *own_table[key]]
        elif isinstance(common[key], dict):
            merged[key] = {**common[key], **own_table[key]}
    return merged


def _error_line(error: tomllib.TOMLDecodeError) -> int:
    text = str(error)
    return int(text.split("at line ")[1].split(",", maxsplit=1)[0]) if "at line " in text else 1


@dataclass
class _HeaderReader:
    """Convert a header's table to a Variant; every error names file, line, value and the allowed values."""

    path: Path
    text: str
    """The text of the file, or of a header proposed for it."""
    own_table: str
    """The NAME of its `[variant.NAME]` table; empty for the common keys, and for a file without such tables."""
    table: dict[str, Any]
    sources: tuple[Source, ...]
    include: tuple[Path, ...]

    def error_at(
        self,
        key: KeyPath,
        message: str | UnknownName,
        kind: str = "",
        *,
        value: object = None,
        allowed: object = None,
        cause: UsageError | None = None,
    ) -> UsageError:
        """Return an error at the line of a header's key or list item; the subject is the key, as in `launch.0.args`."""
        location, subject = header_location(self.path, self.text, key, self.own_table), ".".join(map(str, key))
        kind = kind or ("" if cause else "not-allowed")
        return UsageError(message, location, kind=kind, subject=subject, value=value, allowed=allowed, cause=cause)

    def require_known(self, allowed_keys: Mapping[str, KeyTypes]) -> None:
        """Raise UsageError for an unknown key or a value of the wrong type."""
        for key, value in self.table.items():
            if key not in allowed_keys:
                raise self.error_at((key,), unknown_name("key", key, allowed_keys))
            if not isinstance(value, allowed_keys[key]):
                expected = allowed_keys[key]
                expected_types = expected if isinstance(expected, tuple) else (expected,)
                expected_text = " or ".join(TOML_NAMES[k] for k in expected_types)
                raise self.error_at(
                    (key,),
                    f"{key} = {value!r} is not allowed; write a {expected_text}",
                    value=value,
                    allowed=expected_text,
                )

    def variant(self, name: str, operator: str, why: str) -> Variant:
        table = self.table
        operator_name = table.get("operator", operator)
        if not operator_name:
            raise self.error_at(
                ("title",),
                "the key operator is missing, and a file outside a variants folder needs it; add it, for example: "
                'operator = "matmul"; list all operators with: opbench list operators',
            )
        if self.path.suffix == ".cu" and not table.get("launch"):
            raise self.error_at(
                ("launch",),
                'launch is missing; add it, for example: launch = [{ kernel = "name", grid = ["cdiv(n, 256)"], '
                "block = [256] }]",
            )
        task = self._torch_task(operator_name)
        product = self._product()
        variant = Variant(
            path=self.path,
            operator=task.name if task else operator_name,
            torch_task=task,
            name=name,
            title=table.get("title", name),
            why=why,
            builds_on=table.get("builds_on", ""),
            mechanism=self._mechanism(),
            tile=self._tile(),
            precision=self._precision(),
            product=product,
            compute_capability=table.get("compute_capability", "") or self._implied_capability(),
            tune=self._tune(),
            searched=any(isinstance(values, dict) for values in table.get("tune", {}).values()),
            where=self._expressions("where"),
            define=self._define(product),
            supports=self._supports(),
            requires=self._expressions("requires"),
            workspace=self._named_expressions("workspace"),
            tensor_maps=tuple(tensor_map(self, name, entry) for name, entry in table.get("tensor_maps", {}).items()),
            textures=tuple(
                texture(self, kind, name, entry)
                for kind in ("textures", "surfaces")
                for name, entry in table.get(kind, {}).items()
            ),
            constants=tuple(constant(self, *item) for item in table.get("constants", {}).items()),
            launch=tuple(read_launch(self, i, entry) for i, entry in enumerate(table.get("launch", []))),
            modules=tuple(table.get("modules", ())),
            flops=self._flops(),
            reproducible=table.get("reproducible", True),
            in_place=self._in_place(),
            include=self.include,
            sources=self.sources,
            settings=self._settings(),
            text_sha256=text_checksum(self.sources),
        )
        try:
            configs = variant.configs
        except UsageError as error:
            raise self.error_at(("where",), f"where: {error.message}", cause=error) from None
        if not configs:
            raise self.error_at(
                ("where",),
                f"no combination of the tune values satisfies where = {list(variant.where)}; change one of the "
                "conditions, or add values to tune",
            )
        return variant

    def _settings(self) -> str:
        """Return the keys that decide how a config runs, as text."""
        settings = {key: value for key, value in self.table.items() if key not in DESCRIPTIVE_KEYS}
        return json.dumps(settings, sort_keys=True, default=str)

    def _torch_task(self, operator_name: str) -> TorchTask | None:
        """Return the PyTorch task that a header names as its operator, relative to the kernel's folder."""
        if not operator_name.startswith(TASK_PREFIX):
            return None
        try:
            return read_reference(operator_name, self.path.resolve().parent)
        except UsageError as error:
            raise self.error_at(("operator",), error.message, cause=error) from None

    def _implied_capability(self) -> str:
        """Return the compute capability that clusters or tensor maps require; "" without either of them."""
        clusters = [entry.get("cluster") for entry in self.table.get("launch", []) if isinstance(entry, dict)]
        sizes = [str(size) for cluster in clusters if isinstance(cluster, list) for size in cluster]
        return "9.0" if self.table.get("tensor_maps") or any(size != "1" for size in sizes) else ""

    def _flops(self) -> str:
        text = self.table.get("flops", "")
        return self.expression("flops", text, ("flops",)) if text else ""

    def _in_place(self) -> bool | dict[str, str]:
        in_place: object = self.table.get("in_place", False)
        if not isinstance(in_place, dict):
            return bool(in_place)
        if self.path.suffix == ".py" or not in_place or not all(isinstance(v, str) for v in in_place.values()):
            raise self.error_at(
                ("in_place",),
                f"in_place = {in_place!r} is not allowed; write in_place = true, or in a .cu file a table such as "
                'in_place = { out = "x" }',
                value=in_place,
            )
        return in_place

    def _mechanism(self) -> tuple[str, ...]:
        names = self.table.get("mechanism", [])
        for index, name in enumerate(names):
            if name not in MECHANISMS:
                raise self.error_at(("mechanism", index), unknown_name("mechanism", str(name), MECHANISMS))
        return tuple(dict.fromkeys(names))

    def _tile(self) -> dict[str, str]:
        allowed_names = {*self.table.get("tune", {}), *self.table.get("define", {})}
        for key in self.table.get("tile", {}):
            if key not in TILE_KEYS:
                raise self.error_at(("tile", key), unknown_name("key", key, TILE_KEYS, place="tile"))
        tile = self._named_expressions("tile")
        for key, text in tile.items():
            for name in expression.names(text) - allowed_names:
                raise self.error_at(
                    ("tile", key), unknown_name("tunable or macro", name, allowed_names, place=f"tile.{key}")
                )
        return tile

    def _precision(self) -> str:
        product = PRODUCTS.get(self.table.get("product", ""))
        precision = str(self.table.get("precision", product.precision if product else "f32"))
        if precision not in PRECISIONS:
            raise self.error_at(
                ("precision",),
                f"precision = {precision!r} is not allowed; write one of {', '.join(PRECISIONS)}",
                value=precision,
            )
        return precision

    def _product(self) -> str:
        """Return the format that tensor cores multiply; raise UsageError if the source has other instructions."""
        product, precision = str(self.table.get("product", "")), self._precision()
        if product and product not in PRODUCTS:
            raise self.error_at(("product",), unknown_name("product", product, PRODUCTS))
        if self.path.suffix == ".cu" and (
            fault := product_contradiction(product, precision, tensor_core_operand_types(self.sources))
        ):
            raise self.error_at(("product" if product else "precision",), fault)
        return product

    def _define(self, product: str) -> dict[str, str]:
        """Return the macros, each after the macros that its expression uses."""
        pending = self._named_expressions("define")
        if product and pending.setdefault("PRODUCT", f"'{product}'") != f"'{product}'":
            raise self.error_at(
                ("define", "PRODUCT"),
                f'define.PRODUCT is set by the key product; remove this line and keep product = "{product}"',
            )
        for name in pending:
            if name in self.table.get("tune", {}):
                raise self.error_at(
                    ("define", name),
                    f"define.{name} is not allowed: tune.{name} already defines this macro; remove one of the two",
                )
        ordered: dict[str, str] = {}
        while pending:
            resolved = [n for n, text in pending.items() if not (expression.names(text) - {n}) & pending.keys()]
            if not resolved:
                raise self.error_at(
                    ("define",),
                    f"define: {', '.join(pending)} are defined in terms of each other; "
                    "give one of them a value that names no other macro",
                )
            ordered |= {name: pending.pop(name) for name in resolved}
        return ordered

    def _tune(self) -> dict[str, tuple[int, ...]]:
        tune = {}
        for name, values in self.table.get("tune", {}).items():
            try:
                tune[name] = tunable_values(values)
            except UsageError as error:
                raise self.error_at(("tune", name), f"tune.{name} {error.message}", cause=error) from None
        if any(isinstance(values, dict) for values in self.table.get("tune", {}).values()):
            return tune
        if (count := math.prod(map(len, tune.values()))) > MAX_CONFIGS:
            product = " × ".join(f"{len(values)} of {key}" for key, values in tune.items())
            raise self.error_at(
                ("tune",),
                f"tune gives {count} combinations ({product}); at most {MAX_CONFIGS} are allowed: give fewer values, "
                "make a second variant, or write ranges, of which a run takes a few and opbench tune finds the best",
                kind="too-many-configs",
                value=count,
                allowed=MAX_CONFIGS,
            )
        return tune

    def _supports(self) -> dict[str, tuple[str, ...]]:
        supports = {}
        for mode, values in self.table.get("supports", {}).items():
            if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
                raise self.error_at(
                    ("supports", mode),
                    f"supports.{mode} = {values!r} is not allowed; write a list of values of this mode",
                    value=values,
                )
            supports[mode] = tuple(values)
        return supports

    def _expressions(self, key: str) -> tuple[str, ...]:
        return tuple(self.expression(key, text, (key, index)) for index, text in enumerate(self.table.get(key, [])))

    def _named_expressions(self, key: str) -> dict[str, str]:
        return {name: self.expression(key, text, (key, name)) for name, text in self.table.get(key, {}).items()}

    def expression(self, label: str, text: object, key: KeyPath, is_real: bool = False) -> str:
        """Check an expression and return its text; errors start with `label`.

        With `is_real`, the expression computes floats.
        """
        if isinstance(text, int):
            return str(text)
        if not isinstance(text, str):
            raise self.error_at(
                key,
                f'{label}: {text!r} is not a valid expression; write an integer or a text such as "cdiv(n, 256)"',
                value=text,
            )
        try:
            expression.parse(text, is_real)
        except UsageError as error:
            raise self.error_at(key, f"{label}: {error.message}", cause=error) from None
        return text


class _MemoryReader(_HeaderReader):
    """Read a header that names no operator."""

    def memory_header(self) -> MemoryHeader:
        """Return the whole header; raise UsageError for a key or value that is not allowed."""
        for name, value in self.table.get("sizes", {}).items():
            if type(value) is not int or not is_identifier(name):
                raise self.error_at(
                    ("sizes", name),
                    f"sizes.{name} = {value!r} is not allowed; write a name and a whole number, such as sizes = "
                    "{ n = 1024 }",
                    value=value,
                )
        if not self.table.get("launch"):
            raise self.error_at(
                ("launch",),
                'launch is missing; add it, for example: launch = [{ kernel = "name", grid = ["cdiv(n, 256)"], '
                'block = [256], args = ["x", "out", "n"] }]',
            )
        return MemoryHeader(
            self.path,
            self.table.get("sizes", {}),
            tuple(self._buffer(name, entry) for name, entry in self.table.get("buffers", {}).items()),
            tuple(read_launch(self, index, entry) for index, entry in enumerate(self.table["launch"])),
            self.include,
            self.sources,
        )

    def _buffer(self, name: str, entry: object) -> BufferTemplate:
        if not isinstance(entry, dict):
            raise self.error_at(
                ("buffers", name),
                f'buffers.{name} = {entry!r} is not allowed; write a table such as {{ type = "f32", elements = "n" }}',
                value=entry,
            )
        for key, allowed in (("type", BUFFER_TYPES), ("content", INITIAL_CONTENTS)):
            if entry.get(key, allowed[0]) not in allowed:
                raise self.error_at(
                    ("buffers", name, key),
                    f"buffers.{name}.{key} = {entry[key]!r} is not allowed; write one of {', '.join(allowed)}",
                    value=entry[key],
                )
        for key in entry:
            if key not in BUFFER_KEYS:
                raise self.error_at(
                    ("buffers", name, key), unknown_name("key", key, BUFFER_KEYS, place=f"buffers.{name}")
                )
        elements = ""
        if "elements" in entry:
            elements = self.expression("buffers", entry["elements"], ("buffers", name, "elements"))
        return BufferTemplate(name, entry.get("type", "f32"), elements, entry.get("content", INITIAL_CONTENTS[0]))

    def expression(self, label: str, text: object, key: KeyPath, is_real: bool = False) -> str:
        """Check an expression over the sizes and return its text; return an argument that names a buffer unchanged."""
        if label == "args" and isinstance(text, str) and text in self.table.get("buffers", {}):
            return text
        return super().expression(label, text, key, is_real)
