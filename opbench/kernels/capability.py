"""Read compute capabilities, and compare the one of a GPU with the one that a variant requires."""

from __future__ import annotations

import re


def parse_capability(text: str) -> tuple[int, int] | None:
    """Read a compute capability such as "8.6", "sm_86" or "9.0a" as (major, minor); None for other text."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)[af]?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


def missing_capability(have: tuple[int, int], wanted: str) -> str | None:
    """Return why a GPU cannot run code for compute capability `wanted` ("" for any); None if it can.

    A trailing "a" requires exactly that capability (CUDA C++ Programming Guide, architecture-specific
    features).
    """
    needed = parse_capability(wanted)
    if needed is None:
        return None
    if wanted.endswith("a") and have != needed:
        return f"needs compute capability {wanted}, whose features only {needed[0]}.{needed[1]} has"
    if have < needed:
        return f"needs compute capability {wanted}"
    return None
