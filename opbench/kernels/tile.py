"""The output tile of a block, as a header's `tile` declares it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tile:
    """What one block computes of a matrix product; 0 where the header does not say."""

    m: int = 0
    """Rows of the tile."""
    n: int = 0
    """Columns of the tile."""
    k: int = 0
    """Depth of one step of the reduction, in elements."""
    split: int = 1
    """Blocks that share the reduction of one tile."""
    slices: int = 1
    """Parts of a block that share the reduction of one tile."""
    patch_height: int = 0
    """Rows of pixels, of a convolution whose tile is a patch of the image."""
    patch_width: int = 0
    """Columns of pixels of that patch."""


TILE_KEYS = tuple(field.name for field in fields(Tile))
