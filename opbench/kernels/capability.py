"""Read compute capabilities, and compare that of a GPU with the capability that a variant requires."""

from __future__ import annotations

import re


def parse_capability(text: str) -> tuple[int, int] | None:
    """Read a compute capability such as "8.6", "sm_86" or "9.0a" as (major, minor); None for other text."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)[af]?", text.strip().lower())
    return (int(match[1]), int(match[2])) if match else None


def missing_capability(available: tuple[int, int], required: str) -> str | None:
    """Return why a GPU cannot run code for compute capability `required` ("" for any); None if it can.

    A trailing "a" requires exactly that capability (CUDA C++ Programming Guide, architecture-specific
    features).
    """
    minimum = parse_capability(required)
    if minimum is None:
        return None
    if required.endswith("a") and available != minimum:
        return f"needs compute capability {required}, whose features only {minimum[0]}.{minimum[1]} has"
    if available < minimum:
        return f"needs compute capability {required}"
    return None
