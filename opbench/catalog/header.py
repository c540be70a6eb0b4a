"""Reads the TOML header of a variant's file, and refuses what is wrong in it with file and line."""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opbench.catalog import expression
from opbench.catalog.precision import PRODUCTS, UNIT_ROUNDOFF, mistaken_product
from opbench.catalog.sources import Source, checksum, closure, matrix_classes, without_comments
from opbench.catalog.tensor_map import PROMOTIONS, SPANS, TensorMapTemplate
from opbench.catalog.variant import LaunchTemplate, Variant
from opbench.errors import UsageError, unknown
from opbench.paths import shipped

HEADER_KEYS = {
    "title": str, "operator": str, "builds_on": str, "precision": str, "product": str, "compute_capability": str,
    "tune": dict, "define": dict, "workspace": dict, "where": list, "supports": dict, "requires": list,
    "tensor_maps": dict, "launch": list, "modules": list, "flops": str, "reproducible": bool,
    "in_place": bool, "rung": dict,
}  # fmt: skip
RUNG_KEYS = {key: kind for key, kind in HEADER_KEYS.items() if key not in ("operator", "rung")}
ADDED = ("where", "requires")
"""Lists of which a rung has the common items and its own; tables it has merged by key, all else it replaces."""
LAUNCH_KEYS = {"kernel", "grid", "block", "shared", "args", "zero", "cluster", "programmatic", "cooperative", "early"}
MAP_LISTS = ("dims", "strides", "box", "element_strides", "lower", "upper")
MAP_KEYS = {"tensor", "type", "swizzle", "l2", "im2col", *MAP_LISTS[:4], "offset"}
IM2COL_KEYS = ("lower", "upper", "channels", "pixels")
PRECISIONS = tuple(UNIT_ROUNDOFF)
COMBINATIONS = 10_000
"""Combinations of tunables of one variant that are looked at, at most."""


def read_variants(path: Path, operator: str = "", include: Sequence[Path] | None = None) -> tuple[Variant, ...]:
    """The variants of one file: its rungs, or itself; `operator` is the folder's name, else the header must name it.

    `include` are the folders of headers, those that ship with opbench unless told. Raises UsageError with file:line
    for a missing header, an unknown key or a value that is not allowed.
    """
    folders = tuple(include) if include is not None else (shipped("variants") / "include",)
    try:
        sources = closure(path, folders)
        lines = sources[0].content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    prefix = "//" if path.suffix == ".cu" else ""
    first, header, why = _split_header(path, lines, prefix)
    try:
        table = tomllib.loads("\n".join(header))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}:{first + 1 + _error_line(error)}: the header is no TOML: {error}") from None
    parts = _parts(header, first + 2)
    whole = _HeaderReader(path, parts[""], table, sources, folders)
    whole.require_known(HEADER_KEYS)
    rungs = table.pop("rung", {})
    if not rungs:
        return (whole.variant(path.stem, operator, why),)
    found = []
    for name, own in rungs.items():
        reader = _HeaderReader(path, [*parts.get(name, []), *parts[""]], own, sources, folders)
        if not isinstance(own, dict) or not re.fullmatch(r"[\w-]+", name):
            raise reader.refuse("rung", f"rung.{name} = {own!r} is not allowed; write a table [rung.name_of_the_rung]")
        reader.require_known(RUNG_KEYS)
        found.append(replace(reader, table=_merged(table, own)).variant(name, operator, why))
    return tuple(found)


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A rung's whole table."""
    merged = {**common, **own}
    for key in common.keys() & own.keys():
        if key in ADDED:
            merged[key] = [*common[key], *own[key]]
        elif isinstance(common[key], dict):
            merged[key] = {**common[key], **own[key]}
    return merged


def _parts(header: Sequence[str], first_line: int) -> dict[str, list[tuple[int, str]]]:
    """The header's numbered lines by the rung that they belong to; those of all rungs under the empty name."""
    parts: dict[str, list[tuple[int, str]]] = {"": []}
    rung = ""
    for number, line in enumerate(header, first_line):
        if line.lstrip().startswith("["):
            with contextlib.suppress(tomllib.TOMLDecodeError):  # a line of a list
                rung = next(iter(tomllib.loads(line).get("rung", {})), "")
        parts.setdefault(rung, []).append((number, line))
    return parts


def _error_line(error: tomllib.TOMLDecodeError) -> int:
    text = str(error)
    return int(text.split("at line ")[1].split(",", maxsplit=1)[0]) if "at line " in text else 1


def _split_header(path: Path, lines: Sequence[str], prefix: str) -> tuple[int, list[str], str]:
    """The index of the opening line, the TOML lines without their comment sign, and the paragraph that follows."""
    opening, closing = f"{prefix} /// opbench".strip(), f"{prefix} ///".strip()
    stripped = [line.strip() for line in lines]
    if opening not in stripped:
        raise UsageError(
            f"{path}:1: no opbench header; it begins with the line '{opening}' "
            "(see 'Write your own kernel' in README.md)"
        )
    first = stripped.index(opening)
    if closing not in stripped[first + 1 :]:
        raise UsageError(f"{path}:{first + 1}: the header has no closing line '{closing}'")
    last = stripped.index(closing, first + 1)
    header = [line.removeprefix(prefix).removeprefix(" ") if prefix else line for line in stripped[first + 1 : last]]
    why = []
    for line in stripped[last + 1 :]:
        if (prefix and not line.startswith(prefix)) or (not prefix and line.endswith('"""')):
            break
        why.append(line.removeprefix(prefix).strip())
    return first, header, "\n".join(why).strip()


@dataclass
class _HeaderReader:
    """Turns a header's table into a Variant; every complaint names file, line, value and what is allowed."""

    path: Path
    lines: list[tuple[int, str]]
    """Numbered lines of the header: the rung's own, then those of all rungs."""
    table: dict[str, Any]
    sources: tuple[Source, ...]
    include: tuple[Path, ...]

    def line_of(self, key: str, value: str = "") -> int:
        """Line of the first mention of a value, else of a key."""
        named = re.compile(rf"\s*(?:\[+.*\.)?\s*{re.escape(key)}\b\s*[=.\]]")
        hits = [number for number, line in self.lines if value and value in line]
        hits = hits or [number for number, line in self.lines if named.match(line)]
        hits = hits or [number for number, line in self.lines if key in line]
        return hits[0] if hits else self.lines[0][0] if self.lines else 1

    def refuse(self, key: str, message: str, value: str = "") -> UsageError:
        return UsageError(f"{self.path}:{self.line_of(key, value)}: {message}")

    def require_known(self, known: Mapping[str, type]) -> None:
        """Refuse an unknown key and a value of the wrong type."""
        for key, value in self.table.items():
            if key not in known:
                raise self.refuse(key, unknown("key", key, known))
            if not isinstance(value, known[key]):
                raise self.refuse(key, f"{key} = {value!r} is not allowed; it must be a {known[key].__name__}")

    def variant(self, name: str, operator: str, why: str) -> Variant:
        table = self.table
        named = table.get("operator", operator)
        if not named:
            raise self.refuse(
                "title",
                'a file outside a variants folder names its operator: operator = "matmul" (opbench list operators)',
            )
        if self.path.suffix == ".cu" and not table.get("launch"):
            raise self.refuse(
                "launch", 'launch is missing: launch = [{ kernel = "name", grid = [...], block = [...] }]'
            )
        product = self._product()
        variant = Variant(
            path=self.path,
            operator=named,
            name=name,
            title=table.get("title", name),
            why=why,
            builds_on=table.get("builds_on", ""),
            precision=self._precision(),
            product=product,
            compute_capability=table.get("compute_capability", ""),
            tune=self._tune(),
            where=self._expressions("where"),
            define=self._define(product),
            supports=self._supports(),
            requires=self._expressions("requires"),
            workspace=self._named_expressions("workspace"),
            tensor_maps=tuple(self._tensor_map(name, entry) for name, entry in table.get("tensor_maps", {}).items()),
            launch=tuple(self._launch(i, entry) for i, entry in enumerate(table.get("launch", []))),
            modules=tuple(table.get("modules", ())),
            flops=self._flops(),
            reproducible=table.get("reproducible", True),
            in_place=self._in_place(),
            include=self.include,
            sources=self.sources,
            source_sha256=checksum(self.sources),
        )
        try:
            configs = variant.configs
        except UsageError as error:
            raise self.refuse("where", f"where: {error}") from None
        if not configs:
            raise self.refuse("where", f"no combination of tune passes where = {list(variant.where)}")
        return variant

    def _flops(self) -> str:
        text = self.table.get("flops", "")
        return self._expression("flops", text) if text else ""

    def _in_place(self) -> bool:
        if (asked := bool(self.table.get("in_place", False))) and self.path.suffix == ".cu":
            raise self.refuse(
                "in_place", "in_place = true is for what a library does; kernels are checked in place and apart anyway"
            )
        return asked

    def _precision(self) -> str:
        product = PRODUCTS.get(self.table.get("product", ""))
        precision = str(self.table.get("precision", product.precision if product else "f32"))
        if precision not in PRECISIONS:
            raise self.refuse("precision", f"precision = {precision!r} is not allowed; one of {', '.join(PRECISIONS)}")
        return precision

    def _product(self) -> str:
        """What the tensor cores multiply; refused where its roof would be that of something else."""
        named, precision = str(self.table.get("product", "")), self._precision()
        if named and named not in PRODUCTS:
            raise self.refuse("product", unknown("product", named, PRODUCTS))
        if self.path.suffix == ".cu" and (fault := mistaken_product(named, precision, matrix_classes(self.sources))):
            raise self.refuse("product" if named else "precision", fault)
        return named

    def _define(self, product: str) -> dict[str, str]:
        """Macros in an order in which each follows those that it names."""
        waiting = self._named_expressions("define")
        if product and waiting.setdefault("PRODUCT", f"'{product}'") != f"'{product}'":
            raise self.refuse("define", f'define.PRODUCT is what product says: leave it to product = "{product}"')
        for name in waiting:
            if name in self.table.get("tune", {}):
                raise self.refuse("define", f"define.{name} is not allowed: tune.{name} is that macro already")
        ordered: dict[str, str] = {}
        while waiting:
            ready = [n for n, text in waiting.items() if not (expression.names(text) - {n}) & waiting.keys()]
            if not ready:
                raise self.refuse("define", f"define: {', '.join(waiting)} need each other's values")
            ordered |= {name: waiting.pop(name) for name in ready}
        return ordered

    def _tune(self) -> dict[str, tuple[int, ...]]:
        tune = {}
        for name, values in self.table.get("tune", {}).items():
            if not isinstance(values, list) or not values or not all(isinstance(v, int) for v in values):
                raise self.refuse("tune", f"tune.{name} = {values!r} is not allowed; a list of whole numbers")
            tune[name] = tuple(values)
        if (count := math.prod(map(len, tune.values()))) > COMBINATIONS:
            product = " × ".join(f"{len(values)} of {key}" for key, values in tune.items())
            raise self.refuse(
                "tune",
                f"tune gives {count} combinations ({product}); at most {COMBINATIONS} are allowed: give fewer values, "
                "or make a second variant",
            )
        return tune

    def _supports(self) -> dict[str, tuple[str, ...]]:
        supports = {}
        for mode, values in self.table.get("supports", {}).items():
            if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
                raise self.refuse(
                    "supports", f"supports.{mode} = {values!r} is not allowed; a list of the mode's values"
                )
            supports[mode] = tuple(values)
        return supports

    def _expressions(self, key: str) -> tuple[str, ...]:
        return tuple(self._expression(key, text) for text in self.table.get(key, []))

    def _named_expressions(self, key: str) -> dict[str, str]:
        return {name: self._expression(key, text) for name, text in self.table.get(key, {}).items()}

    def _expression(self, key: str, text: object) -> str:
        if isinstance(text, int):
            return str(text)
        if not isinstance(text, str):
            raise self.refuse(key, f"{key}: {text!r} is no expression")
        try:
            expression.parse(text)
        except UsageError as error:
            raise self.refuse(key, f"{key}: {error}", text) from None
        return text

    def _launch(self, index: int, entry: object) -> LaunchTemplate:
        if not isinstance(entry, dict):
            raise self.refuse(
                "launch", f"launch[{index}] = {entry!r} is not allowed; a table with kernel, grid and block"
            )
        for key in entry:
            if key not in LAUNCH_KEYS:
                raise self.refuse(key, f"launch[{index}]: {unknown('key', key, LAUNCH_KEYS)}")
        if "zero" in entry:
            return LaunchTemplate(zero=entry["zero"])
        for key in ("kernel", "grid", "block"):
            if key not in entry:
                raise self.refuse("launch", f"launch[{index}]: {key} is missing")
        for key in {"grid", "block", "cluster"} & entry.keys():
            if not isinstance(entry[key], list) or not 1 <= len(entry[key]) <= 3:
                raise self.refuse(
                    key, f"launch[{index}].{key} = {entry[key]!r} is not allowed; a list of 1 to 3 expressions"
                )
        programmatic = entry.get("programmatic", False)
        if not isinstance(programmatic, bool):
            raise self.refuse(
                "programmatic", f"launch[{index}].programmatic = {programmatic!r}; true or false is allowed"
            )
        if programmatic and not any("griddepcontrol.wait" in without_comments(source.text) for source in self.sources):
            raise self.refuse(
                "programmatic",
                f"launch[{index}].programmatic: no griddepcontrol.wait in the kernel or its headers; without it the "
                "kernel reads what the launch ahead of it has not written",
            )
        early = entry.get("early", [])
        if (early and not programmatic) or not isinstance(early, list) or not all(isinstance(e, str) for e in early):
            raise self.refuse(
                "early", f"launch[{index}].early = {early!r}; names of inputs, where programmatic = true, are allowed"
            )
        return LaunchTemplate(
            kernel=entry["kernel"],
            grid=tuple(self._expression("grid", e) for e in entry["grid"]),
            block=tuple(self._expression("block", e) for e in entry["block"]),
            shared=self._expression("shared", entry.get("shared", "0")),
            args=tuple(self._argument(e) for e in entry.get("args", [])),
            cluster=tuple(self._expression("cluster", e) for e in entry.get("cluster", ())),
            programmatic=programmatic,
            cooperative=self._cooperative(index, entry),
            early=tuple(early),
        )

    def _cooperative(self, index: int, entry: Mapping[str, Any]) -> bool:
        asked = entry.get("cooperative", False)
        if not isinstance(asked, bool) or (asked and {"cluster", "programmatic"} & entry.keys()):
            raise self.refuse(
                "cooperative",
                f"launch[{index}].cooperative = {asked!r}; true or false is allowed, without cluster and programmatic",
            )
        return asked

    def _tensor_map(self, name: str, entry: object) -> TensorMapTemplate:
        where = f"tensor_maps.{name}"
        if not isinstance(entry, dict) or not isinstance(entry.get("tensor"), str):
            raise self.refuse(
                name, f'{where} = {entry!r} is not allowed; a table such as {{ tensor = "a", box = [64, 128] }}'
            )
        walk = entry.get("im2col", {})
        for key, value, known in (
            *((k, v, MAP_KEYS) for k, v in entry.items()),
            *((k, v, IM2COL_KEYS) for k, v in walk.items()),
        ):
            if key not in known:
                raise self.refuse(key, f"{where}: {unknown('key', key, known)}", key)
            if key in MAP_LISTS and not (isinstance(value, list) and 1 <= len(value) <= 5):
                raise self.refuse(key, f"{where}.{key} = {value!r} is not allowed; a list of 1 to 5 expressions", key)
        for key, allowed in (("swizzle", tuple(SPANS)), ("l2", PROMOTIONS)):
            if entry.get(key, allowed[-1]) not in allowed:
                listed = ", ".join(map(str, allowed))
                raise self.refuse(key, f"{where}.{key} = {entry[key]!r} is not allowed; one of {listed}", key)
        if bool(walk) == ("box" in entry) or (walk and walk.keys() != set(IM2COL_KEYS)):
            needed = "box, or im2col with " + ", ".join(IM2COL_KEYS)
            raise self.refuse(name, f"{where}: has {', '.join((*entry, *walk))}; it needs {needed}", name)
        given = {**entry, **walk}
        lists = {key: tuple(self._expression(key, e) for e in given.get(key, ())) for key in MAP_LISTS}
        return TensorMapTemplate(
            name=name,
            tensor=entry["tensor"],
            type=self._expression("type", entry["type"]) if "type" in entry else "",
            dims=lists["dims"],
            strides=lists["strides"],
            box=lists["box"],
            element_strides=lists["element_strides"],
            swizzle=entry.get("swizzle", "128B"),
            l2=entry.get("l2", PROMOTIONS[-1]),
            offset=self._expression("offset", given.get("offset", "0")),
            lower=lists["lower"],
            upper=lists["upper"],
            channels=self._expression("channels", given.get("channels", "0")),
            pixels=self._expression("pixels", given.get("pixels", "0")),
        )

    def _argument(self, text: object) -> str:
        """An expression, or a buffer's name with a question mark."""
        if isinstance(text, str) and text.endswith("?") and text[:-1].isidentifier():
            return text
        return self._expression("args", text)
