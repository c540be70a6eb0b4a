"""Read the axes of a problem from text, as in case names."""

from __future__ import annotations


def read_axes(text: str) -> dict[str, int | str]:
    """Read axes from text such as "(m=64,n=64,epilogue=relu)"; the operator need not be known."""
    body = text.strip().removeprefix("(").removesuffix(")")
    pairs = [pair.partition("=") for pair in body.split(",") if pair]
    return {key: int(value) if value.isdigit() else value for key, _, value in pairs}
