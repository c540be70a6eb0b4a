"""Precision classes, and the tensor-core products in each class; they determine ranking and peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNIT_ROUNDOFF = {"f32": 2.0**-24, "tf32": 2.0**-11, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53, "fp8": 2.0**-4}
"""Half a unit in the last place of 1, per precision class."""
OPERAND_ROUNDOFF = {**UNIT_ROUNDOFF, "e4m3": 2.0**-4, "e5m2": 2.0**-3}
"""The same per type of an operand of tensor cores; the class fp8 has two of them."""
PRECISION_CLASSES = (*UNIT_ROUNDOFF, "i32")
"""The classes in which results are ranked: floats, and whole numbers."""


@dataclass(frozen=True)
class Product:
    """One way to multiply matrices on tensor cores."""

    precision: str
    """The precision class of the results."""
    unit: str
    """The unit whose rate is the peak: "tf32/3" is a third of TF32's."""
    operand_types: frozenset[str]
    """The operand types of the instructions."""
    description: str


PRODUCTS = {
    "bf16": Product("bf16", "bf16", frozenset({"bf16"}), "operands stored in bf16"),
    "fp8": Product("fp8", "fp8", frozenset({"e4m3", "e5m2"}), "operands stored in e4m3 or e5m2"),
    "s8": Product("f32", "s8", frozenset({"s8"}), "whole numbers of 8 bits"),
    "f16": Product("f16", "f16", frozenset({"f16"}), "operands stored in f16"),
    "tf32": Product("tf32", "tf32", frozenset({"tf32"}), "floats rounded to tf32"),
    "tf32x3": Product("f32", "tf32/3", frozenset({"tf32"}), "three tf32 products of split floats"),
    "f16x3": Product("f32", "f16/3", frozenset({"f16"}), "three f16 products of floats in two planes"),
    "tf32_corrected": Product(
        "f32", "tf32/2", frozenset({"tf32", "bf16"}), "one tf32 product, and two in bf16 of the digits cut off"
    ),
}
"""The allowed values of a header's `product`."""

UNNAMED_TYPE = "an unnamed type"
"""The operand type of a matrix instruction if a macro or a template parameter determines it."""


def product_contradiction(product: str, precision: str, operand_types: Mapping[str, str]) -> str | None:
    """Return why a header contradicts the matrix instructions of a kernel; None if it does not.

    The contradiction is of the header's `product`, or of its `precision` if `product` is empty.
    `operand_types` has the operand types of these instructions, each with the file:line of the first one.
    """
    if product:
        missing = PRODUCTS[product].operand_types - operand_types.keys()
        if not missing or UNNAMED_TYPE in operand_types:
            return None
        instruction_text = f"; they multiply in {', '.join(sorted(operand_types))}" if operand_types else ""
        return (
            f'product = "{product}" multiplies in {" and ".join(sorted(missing))} on tensor cores, which neither the '
            f"file nor its headers do{instruction_text}"
        )
    other_type = next((name for name in operand_types if name != precision), None)
    if other_type is None:
        return None
    choices = "; ".join(f'product = "{name}": {product.description}' for name, product in PRODUCTS.items())
    return (
        f'precision = "{precision}", but {operand_types[other_type]} multiplies in {other_type} on tensor cores, which '
        f"determines the peak; name the type of the factors: {choices}"
    )
