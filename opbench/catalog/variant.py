"""A variant: one file with a TOML header that says how it is built, tuned and launched."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opbench.catalog import expression
from opbench.catalog.precision import UNIT_ROUNDOFF
from opbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from opbench.catalog.operator import Operator

Config = dict[str, int]

HEADER_KEYS = {
    "title": str, "operator": str, "builds_on": str, "precision": str, "unit": str, "compute_capability": str,
    "tune": dict, "define": dict, "workspace": dict, "where": list, "supports": dict, "requires": list, "launch": list,
    "modules": list,
}  # fmt: skip
LAUNCH_KEYS = {"kernel", "grid", "block", "shared", "args", "zero"}
PRECISIONS = tuple(UNIT_ROUNDOFF)
COMBINATIONS = 10_000
"""Combinations of tunables of one variant that are looked at, at most."""


@dataclass(frozen=True)
class LaunchTemplate:
    """One entry of a header's `launch`: expressions over axes and tunables."""

    kernel: str = ""
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    shared: str = "0"
    args: tuple[str, ...] = ()
    zero: str = ""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator, as its header declares it."""

    path: Path
    operator: str
    name: str
    title: str
    why: str
    builds_on: str = ""
    precision: str = "f32"
    unit: str = ""
    """What multiplies, where its precision class does not say it: "tf32/3" for three TF32 products in place of one."""
    compute_capability: str = ""
    tune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    define: Mapping[str, str] = field(default_factory=dict)
    supports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each mode of the operator, the values it serves; of a mode not named here only the default."""
    requires: tuple[str, ...] = ()
    workspace: Mapping[str, str] = field(default_factory=dict)
    launch: tuple[LaunchTemplate, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its identity: operator and name, such as "matmul/tiled"."""
        return f"{self.operator}/{self.name}"

    @property
    def is_library(self) -> bool:
        """Whether it is a Python file that calls a library."""
        return self.path.suffix == ".py"

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that it launches, in order, each once."""
        return tuple(dict.fromkeys(step.kernel for step in self.launch if step.kernel))

    @functools.cached_property
    def configs(self) -> list[Config]:
        """Every combination of tunables that its `where` allows."""
        keys = list(self.tune)
        if (count := math.prod(len(values) for values in self.tune.values())) > COMBINATIONS:
            product = " × ".join(f"{len(values)} of {key}" for key, values in self.tune.items())
            raise UsageError(
                f"{self.path}: tune gives {count} combinations ({product}); at most {COMBINATIONS} are allowed: "
                "give fewer values, or make a second variant"
            )
        combinations = (dict(zip(keys, values, strict=True)) for values in itertools.product(*self.tune.values()))
        return [c for c in combinations if all(expression.evaluate(rule, c) for rule in self.where)]

    def unmet(self, problem: Operator, config: Config) -> str | None:
        """The first of its requirements that the problem does not meet, as a reason, else None."""
        modes = problem.modes()
        for mode in self.supports:
            if mode not in modes:
                raise UsageError(f"{self.path}: supports: {unknown('mode', mode, modes)}")
        for mode, default in modes.items():
            allowed, seen = self.supports.get(mode, (default,)), problem.scope[mode]
            if seen not in allowed:
                return f"supports {mode} = {' or '.join(allowed)} (here {mode}={seen})"
        scope = {**problem.scope, **config}
        for rule in self.requires:
            if not expression.evaluate(rule, scope):
                seen = ", ".join(f"{name}={scope[name]}" for name in sorted(expression.names(rule)) if name in scope)
                return f"needs {rule}" + (f" (here {seen})" if seen else "")
        return None

    def where_line(self) -> str:
        """Its path, for messages."""
        return str(self.path)


def print_config(config: Config) -> str:
    """A config as printed in case names, such as "[TILE=16]"; empty for none."""
    return f"[{','.join(f'{k}={v}' for k, v in config.items())}]" if config else ""


def read_variant(path: Path, operator: str = "") -> Variant:
    """Read one variant file; `operator` is the folder's name, else the header must name it.

    Raises UsageError with file:line for a missing header, an unknown key or a value that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    lines = text.splitlines()
    prefix = "//" if path.suffix == ".cu" else ""
    first, header, why = _split_header(path, lines, prefix)
    try:
        table = tomllib.loads("\n".join(header))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}:{first + 1 + _error_line(error)}: the header is no TOML: {error}") from None
    reader = _HeaderReader(path, first + 2, header, table)
    return reader.variant(operator, why)


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
    first_line: int
    lines: list[str]
    table: dict[str, Any]

    def line_of(self, key: str) -> int:
        """Line of a key's first mention."""
        hits = [i for i, line in enumerate(self.lines) if line.split("=")[0].strip() == key]
        hits = hits or [i for i, line in enumerate(self.lines) if key in line]
        return self.first_line + (hits[0] if hits else 0)

    def refuse(self, key: str, message: str) -> UsageError:
        return UsageError(f"{self.path}:{self.line_of(key)}: {message}")

    def variant(self, operator: str, why: str) -> Variant:
        for key, value in self.table.items():
            if key not in HEADER_KEYS:
                raise self.refuse(key, unknown("key", key, HEADER_KEYS))
            if not isinstance(value, HEADER_KEYS[key]):
                raise self.refuse(key, f"{key} = {value!r} is not allowed; it must be a {HEADER_KEYS[key].__name__}")
        table = self.table
        named = table.get("operator", operator)
        if not named:
            raise self.refuse(
                "title",
                'a file outside a variants folder names its operator: operator = "matmul" (opbench list operators)',
            )
        if "title" not in table:
            raise self.refuse("title", 'title is missing: title = "what the variant does, in one line"')
        if table.get("precision", "f32") not in PRECISIONS:
            raise self.refuse(
                "precision", f"precision = {table['precision']!r} is not allowed; one of {', '.join(PRECISIONS)}"
            )
        is_cuda = self.path.suffix == ".cu"
        if is_cuda and not table.get("launch"):
            raise self.refuse(
                "launch", 'launch is missing: launch = [{ kernel = "name", grid = [...], block = [...] }]'
            )
        variant = Variant(
            path=self.path,
            operator=named,
            name=self.path.stem,
            title=table["title"],
            why=why,
            builds_on=table.get("builds_on", ""),
            precision=table.get("precision", "f32"),
            unit=self._unit(),
            compute_capability=table.get("compute_capability", ""),
            tune=self._tune(),
            where=self._expressions("where"),
            define=self._named_expressions("define"),
            supports=self._supports(),
            requires=self._expressions("requires"),
            workspace=self._named_expressions("workspace"),
            launch=tuple(self._launch(i, entry) for i, entry in enumerate(table.get("launch", []))),
            modules=tuple(table.get("modules", ())),
        )
        if not variant.configs:
            raise self.refuse("where", f"no combination of tune passes where = {list(variant.where)}")
        return variant

    def _unit(self) -> str:
        unit = str(self.table.get("unit", ""))
        name, _, products = unit.partition("/")
        if unit and (name not in PRECISIONS or not (products or "1").isdigit() or products == "0"):
            raise self.refuse(
                "unit", f'unit = {unit!r} is not allowed; a precision class, or "tf32/3" for three products'
            )
        return unit

    def _tune(self) -> dict[str, tuple[int, ...]]:
        tune = {}
        for name, values in self.table.get("tune", {}).items():
            if not isinstance(values, list) or not values or not all(isinstance(v, int) for v in values):
                raise self.refuse("tune", f"tune.{name} = {values!r} is not allowed; a list of whole numbers")
            tune[name] = tuple(values)
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

    def _expression(self, key: str, text: Any) -> str:
        if isinstance(text, int):
            return str(text)
        if not isinstance(text, str):
            raise self.refuse(key, f"{key}: {text!r} is no expression")
        try:
            expression.parse(text)
        except UsageError as error:
            raise self.refuse(key, f"{key}: {error}") from None
        return text

    def _launch(self, index: int, entry: Any) -> LaunchTemplate:
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
        for key in ("grid", "block"):
            if not isinstance(entry[key], list) or not 1 <= len(entry[key]) <= 3:
                raise self.refuse(
                    key, f"launch[{index}].{key} = {entry[key]!r} is not allowed; a list of 1 to 3 expressions"
                )
        return LaunchTemplate(
            kernel=entry["kernel"],
            grid=tuple(self._expression("grid", e) for e in entry["grid"]),
            block=tuple(self._expression("block", e) for e in entry["block"]),
            shared=self._expression("shared", entry.get("shared", "0")),
            args=tuple(self._argument(e) for e in entry.get("args", [])),
        )

    def _argument(self, text: Any) -> str:
        """An expression, or a buffer's name with a question mark."""
        if isinstance(text, str) and text.endswith("?") and text[:-1].isidentifier():
            return text
        return self._expression("args", text)


def docstring(path: Path) -> str:
    """The first line of a Python file's docstring, without importing it."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0]
