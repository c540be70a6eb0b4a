"""Read compute capabilities, and compare a GPU's with the one that a variant needs."""

from __future__ import annotations

import re


def parse_capability(text: str) -> tuple[int, int] | None:
    """Read "8.6", "sm_86" or "9.0a" as (major, minor); return None for anything else."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)[af]?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


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
