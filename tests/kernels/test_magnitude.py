"""The scale of allowances: right kernels of operators that subtract pass, coarse ones are still caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from opbench.checking.verdict import judge, sums_stay_exact
from opbench.kernels.activated_product import ActivatedProduct
from opbench.kernels.magnitude import reference_subtracts
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import Arrays, magnitude_of_rounded, rounded
from support.common import CATALOG

Function = Callable[..., np.ndarray]


@dataclass(frozen=True, kw_only=True)
class _Rows(Operator):
    """Rows of x with a scale and a shift of each column; what an author defines besides is nothing."""

    rows: int
    cols: int

    inputs = {"x": "rows cols", "gamma": "cols", "beta": "cols"}
    outputs = {"out": "rows cols"}
    name = "of_a_test"

    def flops(self) -> int:
        """Some."""
        return 8 * self.rows * self.cols

    @classmethod
    def examples(cls) -> Sequence[Any]:
        """Odd ones."""
        return [cls(rows=r, cols=c) for r, c in ((1, 1), (3, 5), (67, 31), (2, 1021))]


def layernorm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + x.dtype.type(1e-5)) * gamma + beta


def rmsnorm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(1e-5)) * gamma - beta


def log_softmax(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def silu(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def product_difference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return x * gamma - gamma * beta


def square_less_one(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return x * x - x.dtype.type(1)


def centred_by_sum(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return x - x.sum(axis=1, keepdims=True)


FUNCTIONS = [layernorm, rmsnorm, log_softmax, silu, product_difference, square_less_one, centred_by_sum]


def judged(function: Function, out: Callable[..., np.ndarray], rows: int, cols: int) -> str:
    """What is said of an output; "" where it is right."""
    operator = type("_Own", (_Rows,), {"reference": lambda self, **tensors: function(**tensors)})
    problem = operator(rows=rows, cols=cols)
    inputs = problem.make_inputs(20260)
    reference, magnitude = problem.reference_outputs(inputs), problem.magnitude_outputs(inputs)
    found = out(**inputs).astype(np.float32)
    result = judge("out", "f32", found, reference["out"], magnitude["out"], problem.tolerance("f32"))
    return result.mismatch.sentence() if result.mismatch else ""


@pytest.mark.parametrize("shape", [(1, 1), (67, 31), (3, 1021), (2048, 256)], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_right_float32_kernel_passes_without_a_word_from_the_author(
    function: Function, shape: tuple[int, int]
) -> None:
    assert judged(function, function, *shape) == ""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rounding_to_half_and_a_wrong_element_are_still_caught(function: Function) -> None:
    def in_half(**inputs: np.ndarray) -> np.ndarray:
        return function(**{name: a.astype(np.float16).astype(np.float32) for name, a in inputs.items()})

    def output_in_half(**inputs: np.ndarray) -> np.ndarray:
        return function(**inputs).astype(np.float16)

    def one_off(**inputs: np.ndarray) -> np.ndarray:
        out = function(**inputs)
        out[5, 7] += np.float32(1e-3) * max(1, abs(out[5, 7]))
        return out

    for cheat in (in_half, output_in_half, one_off):
        assert judged(function, cheat, 67, 31), cheat.__name__


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_no_shipped_operator_that_takes_the_default_subtracts(name: str) -> None:
    """So that each allowance is the reference on absolute values, as ever.

    A product with an activation takes the default, except for hardsigmoid, which would hide the size of its sum.
    """
    operator = CATALOG.operator(name)
    own = operator.magnitude_outputs not in (Operator.magnitude_outputs, ActivatedProduct.magnitude_outputs)
    assert any(map(reference_subtracts, operator.examples())) == own


@dataclass(frozen=True, kw_only=True)
class _Picked(Operator):
    """out[r] = x[r, place[r]] - 1: an index, and a subtraction."""

    rows: int
    cols: int

    inputs = {"x": "rows cols", "place": "rows"}
    outputs = {"out": "rows"}
    name = "of_a_test"

    def tensor_dtype(self, name: str) -> str:
        """Places are integers."""
        return "i32" if name == "place" else "f32"

    def reference(self, x: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Refuses a place that is none."""
        assert np.all(place == place.astype(np.int64)) and place.min() >= 0 and place.max() < self.cols
        return x[np.arange(self.rows), place.astype(np.int64)] - 1.0

    def make_inputs(self, seed: int, integers: bool = False) -> Arrays:
        """The last places, which a perturbation would take out of the row."""
        place = np.full(self.rows, self.cols - 1, np.int32)
        return {**super().make_inputs(seed, integers), "place": place}

    @classmethod
    def examples(cls) -> Sequence[Any]:
        """Odd ones."""
        return [cls(rows=r, cols=c) for r, c in ((1, 1), (67, 31))]


def test_labels_and_indices_are_neither_perturbed_nor_added_up() -> None:
    problem = _Picked(rows=67, cols=31)
    inputs = problem.make_inputs(3)
    magnitude = problem.magnitude_outputs(inputs)["out"]
    x = inputs["x"][:, -1].astype(np.float64)
    np.testing.assert_allclose(magnitude, np.maximum.reduce([np.abs(x), abs(np.abs(x) - 1), abs(x - 1)]), rtol=1e-6)
    assert reference_subtracts(problem) and problem.reduction() == 1
    assert sums_stay_exact(_Picked(rows=3, cols=9999), {"x": np.ones(3), "place": np.array([9998])})


def test_a_second_copy_in_bf16_is_the_nearest_number_except_next_to_a_tie() -> None:
    exact = np.array([1.0, 1.0 + 2**-9, 1.0 + 2**-8 - 2**-30, 1.0 + 2**-8 + 2**-20])  # bf16 has 1 and 1 + 2**-7
    magnitude = magnitude_of_rounded(exact, np.ones(4), 2**-22, "bf16")
    np.testing.assert_array_equal(rounded(exact, "bf16"), [1.0, 1.0, 1.0, 1.0 + 2**-7])
    np.testing.assert_array_equal(magnitude * 2**-22, [0.0, 0.0, 2**-7, 0.0])
