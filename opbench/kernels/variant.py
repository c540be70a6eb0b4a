"""A variant: one implementation of an operator, whose TOML header gives build, tunables and launches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from opbench.errors import Location, Reason, UsageError, unknown_name, with_location
from opbench.kernels import expression
from opbench.kernels.header_text import header_location
from opbench.kernels.scalar import Scalar, Struct
from opbench.kernels.space import Config, Space
from opbench.kernels.task_file import TorchTask
from opbench.kernels.tensor_map import TensorMapTemplate
from opbench.kernels.texture import TextureTemplate
from opbench.paths import path_from_here
from opbench.source.precision import PRODUCTS
from opbench.source.sources import Source, code_checksum

if TYPE_CHECKING:
    from opbench.kernels.operator import Operator

__all__ = ["Config", "ConstantTemplate", "LaunchTemplate", "Variant", "print_config", "read_config"]

SPREAD_CONFIGS = 7
"""For a variant with ranges: configs that a run and a check take in addition to the default."""


@dataclass(frozen=True)
class ConstantTemplate:
    """A `__constant__` variable and its value: the name of a tensor, or numbers."""

    name: str
    tensor: str = ""
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class LaunchTemplate:
    """One launch in a header, with expressions over axes and tunables."""

    kernel: str = ""
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    shared: str = "0"
    args: tuple[str | Scalar | Struct, ...] | None = None
    """The arguments in the kernel's order, () for no arguments; None for the operator's default order."""
    zero: str = ""
    value: str | float = 0
    """The number that fills the buffer `zero`."""
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
    """All mechanisms that it uses, keys of `opbench.kernels.mechanism.MECHANISMS`, including inherited ones."""
    tile: Mapping[str, str] = field(default_factory=dict)
    """Expressions over tunables and macros for fields of `opbench.kernels.tile.Tile`."""
    precision: str = "f32"
    product: str = ""
    """The operand format of the tensor cores, a key of `precision.PRODUCTS`; empty if the precision class decides."""
    compute_capability: str = ""
    tune: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The values of each tunable, the default first."""
    searched: bool = False
    """Whether tunables have ranges: `opbench tune` searches all configs, a run and a check use a few."""
    where: tuple[str, ...] = ()
    define: Mapping[str, str] = field(default_factory=dict)
    """Expressions of macros, each after those of the macros that it names."""
    supports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each mode of the operator, the supported values; only the default for a mode that is missing here."""
    requires: tuple[str, ...] = ()
    workspace: Mapping[str, str] = field(default_factory=dict)
    tensor_maps: tuple[TensorMapTemplate, ...] = ()
    textures: tuple[TextureTemplate, ...] = ()
    """Textures and surfaces that `args` may name."""
    constants: tuple[ConstantTemplate, ...] = ()
    launch: tuple[LaunchTemplate, ...] = ()
    modules: tuple[str, ...] = ()
    flops: str = ""
    """An expression for the number of operations; empty if it equals the problem's."""
    reproducible: bool = True
    """Whether results have the same bits every time; false if float atomics add in arbitrary order. Networks use only
    reproducible variants."""
    in_place: bool | Mapping[str, str] = False
    """True if the variant updates the operator's `in_place` inputs: its kernel receives only the output, which contains
    the input. A mapping names the outputs that the variant updates, each with its input."""
    include: tuple[Path, ...] = ()
    """Folders in which headers are searched."""
    sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)
    """The file and the headers that it includes, as they were when read."""
    header: str = field(default="", repr=False, compare=False)
    """The header proposed for a file without one; empty if the file has a header."""
    settings: str = field(default="", repr=False, compare=False)
    """The keys of the header that decide how a config runs, as text."""
    torch_task: TorchTask | None = None
    """The PyTorch task that the header names as its operator."""
    text_sha256: str = ""
    """The checksum of the texts in `sources`; line numbers refer to these texts."""

    @functools.cached_property
    def source_sha256(self) -> str:
        """Return the checksum of what a config runs; results are valid for this code and these settings.

        Comments, titles and the lists of values to try are not part of it.
        """
        return code_checksum(self.sources, self.settings)

    @property
    def id(self) -> str:
        """Return the name with its operator, such as "matmul/tiled"."""
        return f"{self.operator}/{self.name}"

    @property
    def is_library(self) -> bool:
        """Return whether the variant is a Python file that calls a library."""
        return self.path.suffix == ".py"

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the kernels that the variant launches, in order, without repetition."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launch if launch.kernel))

    def location(self, *key: str | int) -> Location:
        """Return the location of a header's key or list item, such as `"launch", 0, "grid"`."""
        text = self.header or (self.sources[0].text if self.sources else "")
        return header_location(Path(path_from_here(str(self.path))), text, key, self.name)

    @property
    def unit(self) -> str:
        """Return the unit whose rate limits the product, such as "tf32/3" for three TF32 products; "" without one."""
        return PRODUCTS[self.product].unit if self.product else ""

    def defines(self, scope: Mapping[str, expression.ExpressionValue]) -> dict[str, expression.ExpressionValue]:
        """Return the macros' values; omit macros that depend on names without a value in `scope`."""
        macros: dict[str, expression.ExpressionValue] = {}
        values = dict(scope)
        for name, text in self.define.items():
            if expression.names(text) <= values.keys():
                macros[name] = expression.evaluate(text, values)
                values.setdefault(name, macros[name])
        return macros

    @property
    def space(self) -> Space:
        """Return all combinations of tunables that `where` allows, enumerated lazily."""
        return Space(self.tune, self.where, self.define)

    @functools.cached_property
    def configs(self) -> list[Config]:
        """Return the configs for runs and checks: all of them; for ranges, the default and a few others."""
        return self.space.spread(SPREAD_CONFIGS) if self.searched else list(self.space)

    def rule_scope(self, problem: Operator, config: Config) -> dict[str, expression.ExpressionValue]:
        """Return the variables that `requires` may use, with values: axes, properties, tunables and macros."""
        scope: dict[str, expression.ExpressionValue] = {**problem.scope, **config}
        if any(expression.names(rule) & self.define.keys() for rule in self.requires):
            scope = {**self.defines(scope), **scope}
        return scope

    def unmet_requirement(self, problem: Operator, config: Config) -> Reason | None:
        """Return the first requirement that the problem violates, as a reason; None if it violates none."""
        modes = problem.modes()
        for mode in self.supports:
            if mode not in modes:
                raise UsageError(unknown_name("mode", mode, modes, place="supports"), self.location("supports", mode))
        for mode, default in modes.items():
            allowed, actual = self.supports.get(mode, (default,)), problem.scope[mode]
            if actual not in allowed:
                message = f"supports {mode} = {' or '.join(allowed)} (here {mode}={actual})"
                return Reason(message, kind="requirement", subject=mode)
        scope = self.rule_scope(problem, config)
        for index, rule in enumerate(self.requires):
            with with_location(functools.partial(self.location, "requires", index)):
                is_met = expression.evaluate(rule, scope)
            if not is_met:
                actual = ", ".join(f"{name}={scope[name]}" for name in sorted(expression.names(rule)) if name in scope)
                message = f"needs {rule}" + (f" (here {actual})" if actual else "")
                return Reason(message, kind="requirement", subject=rule)
        return None


def print_config(config: Config) -> str:
    """Format a config as in case names, such as "[TILE=16]"; "" for an empty config."""
    return f"[{','.join(f'{k}={v}' for k, v in config.items())}]" if config else ""


def read_config(text: str | None) -> Config:
    """Read a config that was printed without its brackets; return an empty config for any other text."""
    pairs = [setting.partition("=") for setting in (text or "").split(",")]
    return {k: int(v) for k, _, v in pairs} if all(v.lstrip("-").isdigit() for _, _, v in pairs) else {}
