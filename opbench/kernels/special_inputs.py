"""Special inputs of an operator: ties, zeros, subnormal numbers, values far from 0, infinities, NaN."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from opbench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from opbench.kernels.operator import Operator
    from opbench.kernels.tensors import Arrays

FAR_VALUE = 1000.0
"""A number whose float32 exponential is infinite (0 for its negative), and near which bfloat16 has steps of 4."""
INEXACT_VALUE = 1.0 / 3
"""A number without an exact binary representation, so that its sums are never exact."""
TINY_F32 = 2.0**-132
"""Factor that makes a random normal subnormal in float32 and bfloat16."""
TINY_F64 = 2.0**-1028
"""Factor that makes a random normal subnormal in float64."""
INTEGER_KINDS = ("zeros",)
"""Kinds for whole numbers, which have no infinity and no fractions."""

MakeSpecial = Callable[[np.ndarray, "np.random.Generator", str], np.ndarray]
"""Makes special inputs from random normal numbers, for storage as the dtype that is the last argument."""


def _shift_far(x: np.ndarray, rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Shift every second row, plane or image far above 0, and the others far below 0."""
    is_shifted_up = np.arange(len(x)) % 2 == 1
    return x + np.where(is_shifted_up, FAR_VALUE, -FAR_VALUE).astype(np.float32).reshape(-1, *[1] * (x.ndim - 1))


def _set_infinite(x: np.ndarray, rng: np.random.Generator, dtype: str) -> np.ndarray:
    drawn = rng.random(x.shape)
    return np.where(drawn < 0.125, -np.inf, np.where(drawn > 0.875, np.inf, x))


def _mask_rows(x: np.ndarray, rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Set about half of each row to -infinity, but never a whole row."""
    hidden = rng.random(x.shape) < 0.5
    columns = x.shape[-1]
    hidden.reshape(-1, columns)[:, rng.integers(columns)] = False
    return np.where(hidden, -np.inf, x)


def _mask_rows_finitely(x: np.ndarray, rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Set about 15 of 16 elements of each row to the lowest finite number, but never a whole row.

    PyTorch code masks attention scores so (torch.finfo(dtype).min). Most threads of a block see only such elements.
    """
    from opbench.kernels.tensors import lowest_number

    hidden = rng.random(x.shape) < 15 / 16
    columns = x.shape[-1]
    hidden.reshape(-1, columns)[:, rng.integers(columns)] = False
    return np.where(hidden, lowest_number(dtype), x)


def _set_nan(x: np.ndarray, rng: np.random.Generator, dtype: str) -> np.ndarray:
    return np.where(rng.random(x.shape) < 1 / 64, np.nan, x)


SPECIAL_INPUTS: dict[str, tuple[str, MakeSpecial]] = {
    "ties": ("many equal inputs", lambda x, rng, dtype: np.rint(x)),
    "zeros": ("inputs of nothing but zeros", lambda x, rng, dtype: np.zeros_like(x)),
    "level": ("inputs that are all the same", lambda x, rng, dtype: np.full_like(x, INEXACT_VALUE)),
    "tiny": (
        "inputs below the least normal number",
        lambda x, rng, dtype: x * (TINY_F64 if dtype == "f64" else TINY_F32),
    ),
    "far": (f"inputs {FAR_VALUE:g} above or below 0", _shift_far),
    "infinite": ("infinities of both signs among the inputs", _set_infinite),
    "masked": ("-infinity in half of the inputs", _mask_rows),
    "finite_mask": ("the lowest finite number in 15 of 16 inputs", _mask_rows_finitely),
    "nan": ("NaN in one of 64 inputs", _set_nan),
    "descending": ("inputs in descending order", lambda x, rng, dtype: -np.sort(-x, axis=-1)),
}
"""Kinds of special inputs that an operator may allow: a description, and a function of seeded inputs."""


def special_inputs_of(problem: Operator) -> list[str]:
    """Return the kinds of special inputs that a problem's inputs allow; raise UsageError for an unknown kind."""
    from opbench.kernels.tensors import INTEGERS

    kinds_declared = [kind for kinds_of_input in problem.special_inputs.values() for kind in kinds_of_input]
    for kind in kinds_declared:
        if kind not in SPECIAL_INPUTS:
            raise UsageError(unknown_name("kind", kind, SPECIAL_INPUTS, place=f"{problem.name}: special_inputs"))
    return [
        kind for kind in (INTEGER_KINDS if problem.storage in INTEGERS else SPECIAL_INPUTS) if kind in kinds_declared
    ]


def with_special_inputs(problem: Operator, arrays: Arrays, kind: str, seed: int) -> Arrays:
    """Return the inputs; those that allow this kind of special inputs are replaced."""
    from opbench.kernels.tensors import from_storage, to_storage

    special = dict(arrays)
    for tensor in problem.input_tensors():
        if kind in problem.special_inputs.get(tensor.name, ()) and problem.is_number(tensor):
            rng = np.random.default_rng([seed, zlib.crc32(f"{problem}/{tensor.name}/{kind}".encode())])
            x = from_storage(arrays[tensor.name], tensor.dtype)
            x = x.astype(np.float64 if tensor.dtype == "f64" else np.float32, copy=False)
            special[tensor.name] = to_storage(
                SPECIAL_INPUTS[kind][1](x, rng, tensor.dtype).astype(x.dtype), tensor.dtype
            )
    return special
