"""The axes of a problem, as case names print them."""

from __future__ import annotations


def read_axes(text: str) -> dict[str, int | str]:
    """The axes of a problem as printed, such as "(m=64,n=64,epilogue=relu)", of whatever operator."""
    body = text.strip().removeprefix("(").removesuffix(")")
    pairs = [part.partition("=") for part in body.split(",") if part]
    return {key: int(value) if value.isdigit() else value for key, _, value in pairs}
