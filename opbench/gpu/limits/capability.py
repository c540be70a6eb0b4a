"""Compute capabilities: parse them, and say what a GPU lacks for a variant."""

from __future__ import annotations

import re

from opbench.errors import UsageError
from opbench.gpu.limits.products import PRODUCTS, product

OLDEST = (6, 1)
"""Every variant that names no compute capability compiles for this one (Pascal, GTX 10) and for all later ones."""


def parse_capability(text: str) -> tuple[int, int] | None:
    """Read "8.6", "sm_86" or "9.0a" as (major, minor); return None for anything else."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)[af]?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


def capability_of(gpu: str) -> tuple[int, int]:
    """Return the compute capability of a GPU given by name ("h100") or number ("8.6", "sm_86").

    Raises UsageError for a GPU that is not known.
    """
    known = product(gpu)
    capability = known.capability if known else parse_capability(gpu)
    if capability is None:
        raise UsageError(
            f"no compute capability is known for GPU '{gpu}'; allowed: {', '.join(PRODUCTS)}, or a number such as 8.6"
        )
    return capability


def missing_capability(have: tuple[int, int], wanted: str) -> str | None:
    """Say why a GPU cannot run what needs compute capability `wanted` ("" for any); None where it can.

    A trailing "a" asks for features that only that very capability has (CUDA C++ Programming Guide,
    architecture-specific features).
    """
    needed = parse_capability(wanted)
    if needed is None:
        return None
    if wanted.endswith("a") and have != needed:
        return f"needs compute capability {wanted}, whose features only {needed[0]}.{needed[1]} has"
    if have < needed:
        return f"needs compute capability {wanted}"
    return None
