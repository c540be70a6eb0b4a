"""Special inputs of an operator: ties, zeros, the tiniest numbers, far from 0, infinities."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from opbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from opbench.kernels.operator import Operator
    from opbench.kernels.tensors import Arrays

FAR = 1000.0
"""Where float32's exponential is infinite, and of its negative 0, and bfloat16 still counts in fours."""
LEVEL = 1.0 / 3
"""No sum of it is exact."""
TINY = 2.0**-132
"""Times a normal: below the least normal number of float32 and bfloat16."""
TINY_F64 = 2.0**-1028
"""The same of float64."""
WHOLE = ("zeros",)
"""Kinds that whole numbers may have: they have no infinity and no fractions."""

MakeSpecial = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _far(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every second row, plane or image far below 0, the others far above; where there is one, below."""
    above = np.arange(len(x)) % 2 == 1
    return x + np.where(above, FAR, -FAR).astype(np.float32).reshape(-1, *[1] * (x.ndim - 1))


def _infinite(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.random(x.shape)
    return np.where(drawn < 0.125, -np.inf, np.where(drawn > 0.875, np.inf, x))


def _masked(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half of a row, but not all of it."""
    hidden = rng.random(x.shape) < 0.5
    columns = x.shape[-1]
    hidden.reshape(-1, columns)[:, rng.integers(columns)] = False
    return np.where(hidden, -np.inf, x)


SPECIAL_INPUTS: dict[str, tuple[str, MakeSpecial]] = {
    "ties": ("many equal inputs", lambda x, rng: np.rint(x)),
    "zeros": ("inputs of nothing but zeros", lambda x, rng: np.zeros_like(x)),
    "level": ("inputs that are all the same", lambda x, rng: np.full_like(x, LEVEL)),
    "tiny": ("inputs below the least normal number", lambda x, rng: x * (TINY_F64 if x.dtype == np.float64 else TINY)),
    "far": (f"inputs {FAR:g} above or below 0", _far),
    "infinite": ("infinities of both signs among the inputs", _infinite),
    "masked": ("-infinity in half of the inputs", _masked),
}
"""What an operator may say its inputs hold, with a result that is defined: in words, and made of seeded inputs."""


def special_inputs_of(problem: Operator) -> list[str]:
    """The kinds that any input of a problem may have; raises UsageError for an unknown one."""
    from opbench.kernels.tensors import INTEGERS

    asked = [kind for kinds in problem.special_inputs.values() for kind in kinds]
    for kind in asked:
        if kind not in SPECIAL_INPUTS:
            raise UsageError(f"{problem.name}: special_inputs: {unknown('kind', kind, SPECIAL_INPUTS)}")
    return [kind for kind in (WHOLE if problem.storage in INTEGERS else SPECIAL_INPUTS) if kind in asked]


def with_special_inputs(problem: Operator, arrays: Arrays, kind: str, seed: int) -> Arrays:
    """Seeded inputs, those that may be so made of one kind."""
    from opbench.kernels.tensors import from_storage, to_storage

    made = dict(arrays)
    for tensor in problem.input_tensors():
        if kind in problem.special_inputs.get(tensor.name, ()) and problem.is_number(tensor):
            rng = np.random.default_rng([seed, zlib.crc32(f"{problem}/{tensor.name}/{kind}".encode())])
            x = from_storage(arrays[tensor.name], tensor.dtype)
            x = x.astype(np.float64 if tensor.dtype == "f64" else np.float32, copy=False)
            made[tensor.name] = to_storage(SPECIAL_INPUTS[kind][1](x, rng).astype(x.dtype), tensor.dtype)
    return made
