"""Finds the variants of an operator that use a mechanism, as remedies for a variant that lacks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant


def ancestors(variant: Variant, variants: Mapping[str, Variant]) -> list[str]:
    """Return the names of the variants below one on the ladder, the nearest first."""
    names: list[str] = []
    name = variant.builds_on
    while name and name not in names and name != variant.name:
        names.append(name)
        name = variants[name].builds_on if name in variants else ""
    return names


def remedies(mechanism: str, variant: Variant, problem: Operator, variants: Sequence[Variant]) -> list[str]:
    """Return the ids of the operator's variants that use a mechanism, the nearest above `variant` on the ladder first.

    Variants below it, libraries, and variants of which no config supports the problem are excluded.
    """
    by_name = {v.name: v for v in variants}
    below = {variant.name, *ancestors(variant, by_name)}
    ranked = []
    for position, other in enumerate(variants):
        steps = ancestors(other, by_name)
        if mechanism not in other.mechanism or other.is_library or other.name in below:
            continue
        if all(other.unmet_requirement(problem, config) is not None for config in other.configs):
            continue
        above = variant.name in steps
        # A variant on another branch of the ladder is a remedy only if it is at least as far up.
        if above or len(steps) >= len(below) - 1:
            ranked.append((steps.index(variant.name) if above else len(by_name) + position, other.id))
    return [name for _, name in sorted(ranked)]
