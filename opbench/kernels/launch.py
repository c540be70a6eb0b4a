"""What must be compiled and launched for a case, with every number known."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from opbench.errors import Location
from opbench.kernels.scalar import Argument, Struct
from opbench.kernels.tensor_map import TensorMap
from opbench.kernels.texture import Texture
from opbench.kernels.variant import Variant
from opbench.paths import from_here
from opbench.source.declared import declaration

Dim3 = tuple[int, int, int]

CLUSTER_BLOCKS = 8
"""Blocks of a cluster that every GPU with clusters can hold."""


@dataclass(frozen=True)
class Origin:
    """Where a launch is written."""

    variant: Variant
    key: tuple[str | int, ...]
    """Its entry in the header."""


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel of a case with every number known; a `zero` step clears a buffer instead."""

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    args: tuple[Argument, ...]
    """Names of buffers and of tensor maps (str), C `int`s (int), C `float`s (float) and numbers of other types and
    structures, in the kernel's order."""
    zero: str = ""
    """Name of a buffer to fill; then every other field but the next is empty."""
    value: float = 0.0
    """What it is filled with."""
    constant: str = ""
    """Name of a `__constant__` variable to be written; then only the next two matter."""
    tensor: str = ""
    """The buffer whose content it gets, else it gets `content`."""
    content: bytes = b""
    cluster: Dim3 = (1, 1, 1)
    """Blocks that share a multiprocessor's neighbourhood, and may read each other's shared memory."""
    programmatic: bool = False
    """Whether it may start before the launch ahead of it has ended; its kernel waits by griddepcontrol.wait."""
    cooperative: bool = False
    """Whether all its blocks run at once, so that they can wait for each other."""
    early: tuple[str, ...] = ()
    """Inputs that it reads before it waits: what launches ahead of it in a network may not write."""
    setup: bool = False
    """Whether it only fills workspaces from inputs, so that it runs again only when these inputs change."""
    tensor_maps: tuple[TensorMap, ...] = ()
    """Those that `args` names."""
    textures: tuple[Texture, ...] = ()
    """Likewise, with surfaces."""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    """Where it is written; None of a launch that no header has."""

    def location(self) -> Location | None:
        """Return where its kernel is declared, else its entry in the header."""
        if self.origin is None:
            return None
        variant = self.origin.variant
        found = declaration(variant.sources, self.kernel) if self.kernel else None
        if found:
            return Location(Path(from_here(str(found.file))), found.line)
        return variant.location(*self.origin.key)

    def buffers(self) -> set[str]:
        """Every buffer that it can reach."""
        maps = {described.name: described.tensor for described in self.tensor_maps}
        named = {maps.get(argument, argument) for argument in self.args if isinstance(argument, str)}
        named |= {name for argument in self.args if isinstance(argument, Struct) for name in argument.names()}
        return named | {name for name in (self.zero, self.tensor) if name}

    def fault_of_cluster(self) -> str | None:
        """Why no GPU can launch such a cluster, else None."""
        sizes = "×".join(map(str, self.cluster))
        if min(self.cluster) < 1 or prod(self.cluster) > CLUSTER_BLOCKS:
            return f"a cluster of {sizes} blocks; 1 to {CLUSTER_BLOCKS} are allowed"
        for axis, blocks, size in zip("xyz", self.grid, self.cluster, strict=True):
            if blocks % size:
                return f"grid.{axis} = {blocks}; clusters of {sizes} blocks need a multiple of {size}"
        return None


@dataclass(frozen=True)
class BuildRequest:
    """Everything that decides a compiled module, hence the key of its cache."""

    source: Path
    kernels: tuple[str, ...]
    macros: tuple[tuple[str, str], ...] = ()
    compute_capability: str = ""
    """The least capability the variant needs ("8.0", "9.0a"); empty means any."""
    include: tuple[Path, ...] = ()
    """Folders that its headers are searched in, in this order."""

    constants: tuple[str, ...] = ()
    """`__constant__` variables that are written from outside."""

    @property
    def roots(self) -> tuple[str, ...]:
        """What must be there: kernels, by name or as name expressions, and variables."""
        return (*self.kernels, *self.constants)
