"""The data needed to compile and launch a case, with all numbers evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from opbench.errors import Location
from opbench.kernels.scalar import Argument, Struct
from opbench.kernels.tensor_map import TensorMap
from opbench.kernels.texture import Texture
from opbench.kernels.variant import Variant
from opbench.paths import path_from_here
from opbench.source.declared import declaration

Dim3 = tuple[int, int, int]

MAX_CLUSTER_BLOCKS = 8
"""Largest cluster, in blocks, that every GPU with clusters supports."""


@dataclass(frozen=True)
class LaunchOrigin:
    """The header entry that defines a launch."""

    variant: Variant
    key: tuple[str | int, ...]
    """The entry's key path in the header."""


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel launch of a case with all numbers evaluated; with `zero`, the launch fills a buffer instead."""

    kernel: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    args: tuple[Argument, ...]
    """The arguments in the kernel's order: names of buffers and tensor maps (str), C `int`s (int), C `float`s (float),
    numbers of other types, and structures."""
    zero: str = ""
    """Name of a buffer to fill with `value`; all other fields are then empty."""
    value: float = 0.0
    """The number to fill the buffer with."""
    constant: str = ""
    """Name of a `__constant__` variable to write; only `tensor` and `content` matter then."""
    tensor: str = ""
    """The buffer to copy to the variable; if empty, `content` is copied."""
    content: bytes = b""
    cluster: Dim3 = (1, 1, 1)
    """Size of a thread block cluster, whose blocks can access each other's shared memory."""
    programmatic: bool = False
    """Whether it may start before the previous launch has ended; its kernel waits with griddepcontrol.wait."""
    cooperative: bool = False
    """Whether it is a cooperative launch: all blocks are resident, so that they can synchronise."""
    early: tuple[str, ...] = ()
    """Inputs that it reads before griddepcontrol.wait, which the previous launches in a network must not write."""
    setup: bool = False
    """Whether it only fills workspaces from inputs, so that it runs again only when these inputs change."""
    tensor_maps: tuple[TensorMap, ...] = ()
    """The tensor maps that `args` names."""
    textures: tuple[Texture, ...] = ()
    """The textures and surfaces that `args` names."""
    origin: LaunchOrigin | None = field(default=None, repr=False, compare=False)
    """The header entry; None for a launch without one."""

    def location(self) -> Location | None:
        """Return where the kernel is declared, or the launch's entry in the header; None without a header."""
        if self.origin is None:
            return None
        variant = self.origin.variant
        declared = declaration(variant.sources, self.kernel) if self.kernel else None
        if declared:
            return Location(Path(path_from_here(str(declared.file))), declared.line)
        return variant.location(*self.origin.key)

    def buffers(self) -> set[str]:
        """Return every buffer that the launch can access."""
        maps = {tensor_map.name: tensor_map.tensor for tensor_map in self.tensor_maps}
        named_buffers = {maps.get(argument, argument) for argument in self.args if isinstance(argument, str)}
        named_buffers |= {name for argument in self.args if isinstance(argument, Struct) for name in argument.names()}
        return named_buffers | {name for name in (self.zero, self.tensor) if name}

    def fault_of_cluster(self) -> str | None:
        """Return the reason why no GPU can launch the cluster; None if its size is allowed."""
        sizes = "×".join(map(str, self.cluster))
        if min(self.cluster) < 1 or prod(self.cluster) > MAX_CLUSTER_BLOCKS:
            return f"a cluster of {sizes} blocks is not allowed; use 1 to {MAX_CLUSTER_BLOCKS} blocks"
        for axis, blocks, size in zip("xyz", self.grid, self.cluster, strict=True):
            if blocks % size:
                return (
                    f"grid.{axis} = {blocks} is not allowed with clusters of {sizes} blocks; use a multiple of {size}"
                )
        return None


@dataclass(frozen=True)
class BuildRequest:
    """The source, macros and options that determine a compiled module; they form its cache key."""

    source: Path
    kernels: tuple[str, ...]
    macros: tuple[tuple[str, str], ...] = ()
    compute_capability: str = ""
    """The lowest compute capability that the variant needs ("8.0", "9.0a"); empty for any."""
    include: tuple[Path, ...] = ()
    """Folders in which headers are searched, in this order."""

    constants: tuple[str, ...] = ()
    """`__constant__` variables that the host writes."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the symbols that the module must contain: its kernels and its `__constant__` variables."""
        return (*self.kernels, *self.constants)
