"""Precision classes, and what tensor cores multiply in each: what a variant may claim, and what bounds its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNIT_ROUNDOFF = {"f32": 2.0**-24, "tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}
"""Half a unit in the last place of 1, per precision class."""
CLASSES = (*UNIT_ROUNDOFF, "i32")
"""The classes that results are ranked in: those of floats, and whole numbers."""


@dataclass(frozen=True)
class Product:
    """One way to multiply on tensor cores."""

    precision: str
    """The class of its results."""
    unit: str
    """The rate that bounds it: "tf32/3" is a third of TF32's."""
    multiplies: frozenset[str]
    """The types of the operands of its instructions."""
    does: str


PRODUCTS = {
    "bf16": Product("bf16", "bf16", frozenset({"bf16"}), "operands stored in bf16"),
    "f16": Product("f16", "f16", frozenset({"f16"}), "operands stored in f16"),
    "tf32": Product("tf32", "tf32", frozenset({"tf32"}), "floats rounded to tf32"),
    "tf32x3": Product("f32", "tf32/3", frozenset({"tf32"}), "three tf32 products of split floats"),
    "f16x3": Product("f32", "f16/3", frozenset({"f16"}), "three f16 products of floats in two planes"),
    "tf32_corrected": Product(
        "f32", "tf32/2", frozenset({"tf32", "bf16"}), "one tf32 product, and two in bf16 of the digits cut off"
    ),
}
"""What a header's `product` may name."""

UNTOLD = "an unnamed type"
"""The operands of a matrix instruction whose type a macro or a template parameter decides."""


def mistaken_product(named: str, precision: str, seen: Mapping[str, str]) -> str | None:
    """Why a product, or none, would give a wrong roof to a kernel whose matrix instructions multiply what was `seen`.

    `seen` has the types of operands with the file:line of their first instruction.
    """
    if named:
        lacking = PRODUCTS[named].multiplies - seen.keys()
        if not lacking or UNTOLD in seen:
            return None
        does = f"; they multiply in {', '.join(sorted(seen))}" if seen else ""
        return (
            f'product = "{named}" multiplies in {" and ".join(sorted(lacking))} on tensor cores, which neither the '
            f"file nor its headers do{does}"
        )
    other = next((name for name in seen if name != precision), None)
    if other is None:
        return None
    choices = "; ".join(f'product = "{name}": {product.does}' for name, product in PRODUCTS.items())
    return (
        f'precision = "{precision}", but {seen[other]} multiplies in {other} on tensor cores, whose rate decides the '
        f"roof; name what is multiplied: {choices}"
    )
