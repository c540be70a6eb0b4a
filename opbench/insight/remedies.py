"""Find the variants of an operator that use a mechanism, as remedies for a variant that lacks the mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opbench.kernels.operator import Operator
from opbench.kernels.variant import Variant


def ancestors(variant: Variant, variants: Mapping[str, Variant]) -> list[str]:
    """Return the names of the variants that a variant builds on, directly or through others, nearest first."""
    names: list[str] = []
    name = variant.builds_on
    while name and name not in names and name != variant.name:
        names.append(name)
        name = variants[name].builds_on if name in variants else ""
    return names


def remedies(mechanism: str, variant: Variant, problem: Operator, variants: Sequence[Variant]) -> list[str]:
    """Return the ids of an operator's variants that use a mechanism and that could replace a variant without it.

    `variant` is the one without the mechanism. The variants that build on `variant` come first, nearest first. Excluded
    are `variant` itself, the variants that it builds on, libraries, and variants without a config for `problem`.
    """
    variants_by_name = {v.name: v for v in variants}
    improved_names = {variant.name, *ancestors(variant, variants_by_name)}
    ranked_ids = []
    for ladder_index, other in enumerate(variants):
        ancestor_names = ancestors(other, variants_by_name)
        if mechanism not in other.mechanism or other.is_library or other.name in improved_names:
            continue
        if all(other.unmet_requirement(problem, config) is not None for config in other.configs):
            continue
        builds_on_variant = variant.name in ancestor_names
        # A variant on another branch of the ladder is a remedy only if it is at least as far up.
        if builds_on_variant or len(ancestor_names) >= len(improved_names) - 1:
            ranked_ids.append(
                (
                    ancestor_names.index(variant.name) if builds_on_variant else len(variants_by_name) + ladder_index,
                    other.id,
                )
            )
    return [name for _, name in sorted(ranked_ids)]
