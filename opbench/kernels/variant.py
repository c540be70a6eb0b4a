"""A variant: a file with a TOML header that says how it is built, tuned and launched, or one of several in a file."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from opbench.errors import Location, UsageError, located, unknown
from opbench.kernels import expression
from opbench.kernels.header_text import header_location
from opbench.kernels.scalar import Scalar, Struct
from opbench.kernels.space import Config, Space
from opbench.kernels.tensor_map import TensorMapTemplate
from opbench.kernels.texture import TextureTemplate
from opbench.paths import from_here
from opbench.source.precision import PRODUCTS
from opbench.source.sources import Source

if TYPE_CHECKING:
    from opbench.kernels.operator import Operator

__all__ = ["Config", "ConstantTemplate", "LaunchTemplate", "Variant", "print_config", "read_config"]

SPREAD = 7
"""Configs of a variant with ranges that a run and a check take beside its default."""


@dataclass(frozen=True)
class ConstantTemplate:
    """A `__constant__` variable and what it holds: a tensor's content, or numbers."""

    name: str
    tensor: str = ""
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class LaunchTemplate:
    """One entry of a header's `launch`: expressions over axes and tunables."""

    kernel: str = ""
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    shared: str = "0"
    args: tuple[str | Scalar | Struct, ...] | None = None
    """The arguments in the kernel's order, none of them where it is empty; None for the operator's own order."""
    zero: str = ""
    value: str | float = 0
    """What `zero` is filled with."""
    cluster: tuple[str, ...] = ()
    programmatic: str = "False"
    cooperative: bool = False
    early: tuple[str, ...] = ()
    setup: bool = False
    """Whether this is a setup launch, see `opbench.kernels.setup`."""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator, as its header declares it."""

    path: Path
    operator: str
    name: str
    title: str
    why: str
    builds_on: str = ""
    mechanism: tuple[str, ...] = ()
    """All mechanisms that it uses, of `opbench.kernels.mechanism.MECHANISMS`, also those of the variants below it."""
    tile: Mapping[str, str] = field(default_factory=dict)
    """Expressions over tunables and macros for fields of `opbench.kernels.tile.Tile`."""
    precision: str = "f32"
    product: str = ""
    """What the tensor cores multiply, of `precision.PRODUCTS`; empty where its precision class says it."""
    compute_capability: str = ""
    tune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The values of each tunable, the default first."""
    searched: bool = False
    """Whether tunables have ranges: `opbench tune` searches them all, a run and a check take a few."""
    where: tuple[str, ...] = ()
    define: Mapping[str, str] = field(default_factory=dict)
    """Macros, each after those that its expression names."""
    supports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each mode of the operator, the values it serves; of a mode not named here only the default."""
    requires: tuple[str, ...] = ()
    workspace: Mapping[str, str] = field(default_factory=dict)
    tensor_maps: tuple[TensorMapTemplate, ...] = ()
    textures: tuple[TextureTemplate, ...] = ()
    """Which `args` may name."""
    constants: tuple[ConstantTemplate, ...] = ()
    launch: tuple[LaunchTemplate, ...] = ()
    modules: tuple[str, ...] = ()
    flops: str = ""
    """The operations that it makes, where they are fewer or more than the problem's."""
    reproducible: bool = True
    """Whether it gives the same bits every time; false where float atomics add in the order of arrival. No network
    takes one that does not."""
    in_place: bool | Mapping[str, str] = False
    """Whether it updates what the operator lets lie in one memory: it gets that alone, already filled. Or the outputs
    that begin as inputs, by name."""
    include: tuple[Path, ...] = ()
    """Folders that its headers are searched in."""
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)
    """Its file and the headers that it includes, as they were when it was read."""
    header: str = field(default="", repr=False, compare=False)
    """The header that was proposed for a file that has none; empty where the file has its own."""
    source_sha256: str = ""
    """The checksum of `sources` without `mechanism` and `tile` keys: a result stands for this text."""
    text_sha256: str = ""
    """The checksum of `sources` as they are: line numbers stand for this text."""

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

    def location(self, *key: str | int) -> Location:
        """Return where its header has a key or list item, such as `"launch", 0, "grid"`."""
        text = self.header or (self.sources[0].text if self.sources else "")
        return header_location(Path(from_here(str(self.path))), text, key, self.name)

    @property
    def unit(self) -> str:
        """What bounds its multiplications where its class does not say it: "tf32/3" for three TF32 products."""
        return PRODUCTS[self.product].unit if self.product else ""

    def defines(self, scope: Mapping[str, expression.ExpressionValue]) -> dict[str, expression.ExpressionValue]:
        """Its macros' values; those that need a name which the scope lacks are left out."""
        found: dict[str, expression.ExpressionValue] = {}
        for name, text in self.define.items():
            known = {**found, **scope}
            if expression.names(text) <= known.keys():
                found[name] = expression.evaluate(text, known)
        return found

    @property
    def space(self) -> Space:
        """Every combination of tunables that its `where` allows, not yet made."""
        return Space(self.tune, self.where, self.define)

    @functools.cached_property
    def configs(self) -> list[Config]:
        """The configs that a run and a check take: all, or of ranges the default and a few from all over."""
        return self.space.spread(SPREAD) if self.searched else list(self.space)

    def rule_scope(self, problem: Operator, config: Config) -> dict[str, expression.ExpressionValue]:
        """What the rules of `requires` may name: axes and properties of the problem, tunables and macros."""
        scope: dict[str, expression.ExpressionValue] = {**problem.scope, **config}
        if any(expression.names(rule) & self.define.keys() for rule in self.requires):
            scope = {**self.defines(scope), **scope}
        return scope

    def unmet(self, problem: Operator, config: Config) -> str | None:
        """The first of its requirements that the problem does not meet, as a reason, else None."""
        modes = problem.modes()
        for mode in self.supports:
            if mode not in modes:
                raise UsageError(f"supports: {unknown('mode', mode, modes)}", self.location("supports", mode))
        for mode, default in modes.items():
            allowed, seen = self.supports.get(mode, (default,)), problem.scope[mode]
            if seen not in allowed:
                return f"supports {mode} = {' or '.join(allowed)} (here {mode}={seen})"
        scope = self.rule_scope(problem, config)
        for index, rule in enumerate(self.requires):
            with located(functools.partial(self.location, "requires", index)):
                is_met = expression.evaluate(rule, scope)
            if not is_met:
                seen = ", ".join(f"{name}={scope[name]}" for name in sorted(expression.names(rule)) if name in scope)
                return f"needs {rule}" + (f" (here {seen})" if seen else "")
        return None


def print_config(config: Config) -> str:
    """A config as printed in case names, such as "[TILE=16]"; empty for none."""
    return f"[{','.join(f'{k}={v}' for k, v in config.items())}]" if config else ""


def read_config(text: str | None) -> Config:
    """A config as printed, without its brackets; empty where it is none."""
    pairs = [part.partition("=") for part in (text or "").split(",")]
    return {k: int(v) for k, _, v in pairs} if all(v.lstrip("-").isdigit() for _, _, v in pairs) else {}
