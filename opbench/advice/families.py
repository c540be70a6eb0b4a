"""Families of variants by the mechanism they share, told from what variants say of themselves, and who cures what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opbench.catalog.operator import Operator
from opbench.catalog.variant import Variant


@dataclass(frozen=True)
class Family:
    """Variants that use one mechanism."""

    name: str
    does: str
    """What to do, as an imperative."""
    says: str
    """A pattern that names and titles of such variants match."""
    explains: str = ""
    """A stricter pattern for the paragraph below the header, where other rungs' mechanisms are told of too."""

    def match(self, variant: Variant) -> int:
        """2 when name or title say so, 1 when only the paragraph does, else 0."""
        if re.search(self.says, f"{variant.name.replace('_', ' ')}: {variant.title}", re.IGNORECASE):
            return 2
        why = " ".join(variant.why.split())
        return int(bool(self.explains and re.search(self.explains, why, re.IGNORECASE)))


COALESCED = Family(
    "coalesced",
    "let threadIdx.x run along the contiguous axis",
    r"\bcoalesced: |out coalesced|both sides coalesced|\bwidth on x|float4 on all",
    r"neighbouring threads now compute neighbouring|stores are contiguous and",
)
SHARED_TRANSPOSE = Family(
    "shared transpose",
    "turn a tile in shared memory, so that both sides run along their rows",
    r"turned in shared|transposed in shared|transposed on the way into|padding word per tile row|swizzled tile",
)
SHARED_TILE = Family(
    "shared tile",
    "stage a tile in shared memory and use each element many times",
    r"staged in shared|(over|into) (two )?shared (tiles|buffers)|tile in shared memory"
    r"|implicit matrix product|register-tiled",
)
REGISTER_TILE = Family(
    "register tile",
    "compute several outputs per thread, so that each value fetched feeds several operations",
    r"per thread in registers|(outputs|pixels) per thread|register-tiled|warp tile|output channels of a pixel"
    r"|register-tiled blocks",
)
VECTOR = Family("float4", "move 16 bytes per lane (float4)", r"float4|\bvec4|vector loads|16 bytes at a time")
PADDED = Family(
    "padded or swizzled",
    "pad the rows of the shared array by one element, or swizzle its index",
    r"\bpadded|padding word|swizzl|no bank conflicts",
    r"free of (bank )?conflicts|pad(ded|ding)[^.]* conflicts|conflicts[^.]* pad(ded|ding)|without (bank )?conflicts",
)
BLOCK_REDUCTION = Family(
    "reduced before the atomic",
    "reduce within the warp or block first and let one lane add",
    r"one atomic addition per block|block sums|shuffle",
)
UNIFORM_WARPS = Family(
    "warps that do not part",
    "let whole warps take the same branch",
    r"sequential addressing|shuffle|last six steps|instead of a tree|float4 loads in a grid-stride loop",
    r"whole warps retire",
)
FEWER_BARRIERS = Family(
    "fewer barriers",
    "synchronise warps in place of blocks, or do more between two barriers",
    r"shuffle|without barriers of the block|shared buffers|first addition happens while loading",
    r"buys fewer barriers|one barrier per block",
)

FAMILIES = (
    COALESCED, SHARED_TRANSPOSE, SHARED_TILE, REGISTER_TILE, VECTOR, PADDED, BLOCK_REDUCTION, UNIFORM_WARPS,
    FEWER_BARRIERS,
)  # fmt: skip
"""A test reads the tree and fails when one of these matches no variant."""


def ancestors(variant: Variant, variants: Mapping[str, Variant]) -> list[str]:
    """Names of the rungs below a variant, the nearest first."""
    found: list[str] = []
    name = variant.builds_on
    while name and name not in found and name != variant.name:
        found.append(name)
        name = variants[name].builds_on if name in variants else ""
    return found


def cures(family: Family, variant: Variant, problem: Operator, variants: Sequence[Variant]) -> list[str]:
    """Ids of the operator's variants of a family that may cure this one, the nearest above it on the ladder first.

    A rung below it is none, nor is one that supports the problem in no config, nor a library.
    """
    by_name = {v.name: v for v in variants}
    below = {variant.name, *ancestors(variant, by_name)}
    ranked = []
    for position, other in enumerate(variants):
        strength, steps = family.match(other), ancestors(other, by_name)
        fits = any(other.unmet(problem, config) is None for config in other.configs)
        # On another branch of the ladder only what stands as high is any better.
        higher = variant.name in steps or len(steps) >= len(below) - 1
        if not strength or other.name in below or other.is_library or not fits or not higher:
            continue
        distance = steps.index(variant.name) if variant.name in steps else len(by_name) + position
        ranked.append((-strength, distance, other.id))
    return [name for _, _, name in sorted(ranked)]
