"""The tile of the output that one block computes, from `tile` in a header."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tile:
    """The part of a matrix product that one block computes; 0 for a size that the header does not state."""

    m: int = 0
    """Rows of the tile."""
    n: int = 0
    """Columns of the tile."""
    k: int = 0
    """Depth of one step of the reduction, in elements."""
    split: int = 1
    """Number of blocks over which the reduction of one tile is split."""
    slices: int = 1
    """Number of parts of a block over which the reduction of one tile is split."""
    patch_height: int = 0
    """Rows of pixels, for a convolution whose tile is a patch of the image."""
    patch_width: int = 0
    """Columns of pixels of that patch."""


TILE_KEYS = tuple(field.name for field in fields(Tile))
