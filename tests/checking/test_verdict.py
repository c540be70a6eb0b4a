"""Comparisons: what is let through and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.checking import verdict
from opbench.checking.verdict import changed_input, guard_finding, is_dyadic, judge, sums_stay_exact
from opbench.kernels.tensors import Tolerance, to_storage
from support.common import CATALOG

MATMUL = CATALOG.operator("matmul")


def poison(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, -1, np.int32).view(np.float32)


def test_unwritten_elements_are_counted_and_placed() -> None:
    reference = np.ones((4, 5))
    out = reference.astype(np.float32)
    out[1, 2] = out[3, 4] = poison(())
    mismatch = judge("out", "f32", out, reference, reference, Tolerance(1, 1)).mismatch
    assert mismatch is not None
    assert mismatch.sentence() == "out[1,2] was never written (2 of 20 elements)"


def test_minus_one_where_it_is_wanted_was_written() -> None:
    wanted, out = np.array([3.0, -1.0, 255.0]), np.array([3, -1, -1], np.int32)
    assert judge("out", "i32", out[:2], wanted[:2], None, Tolerance(0, 0)).mismatch is None
    assert judge("out", "i32", out[:2], wanted[:2], np.ones(2), Tolerance(1e-6, 1)).mismatch is None
    mismatch = judge("out", "i32", out, wanted, np.ones(3), Tolerance(1e-6, 1)).mismatch
    assert mismatch is not None and mismatch.kind == "unwritten" and mismatch.index == (2,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_never_passes(bad: float) -> None:
    out = np.ones(9, np.float32)
    out[4] = bad
    mismatch = judge("out", "f32", out, np.ones(9), np.ones(9), Tolerance(1e9, 1e9)).mismatch
    assert mismatch is not None and mismatch.kind == "nan" and mismatch.index == (4,)


@given(st.integers(0, 2**22 + 100))
def test_one_wrong_bit_is_found_anywhere(position: int) -> None:
    reference = ONES
    out = OUT.copy()
    out[position] = np.nextafter(np.float32(1), np.float32(2))
    mismatch = judge("out", "f32", out, reference, None, Tolerance(0, 0)).mismatch
    assert mismatch is not None and mismatch.index == (position,) and mismatch.count == 1


ONES = np.ones(2**22 + 101)
OUT = ONES.astype(np.float32)


@pytest.mark.parametrize("k", [1, 17, 256, 4096])
def test_the_tolerance_lets_float32_through_and_stops_tf32(k: int) -> None:
    problem = MATMUL(m=24, n=24, k=k)
    inputs = problem.make_inputs(3)
    reference, magnitude = problem.reference_outputs(inputs), problem.magnitude_outputs(inputs)
    a, b = inputs["a"], inputs["b"]
    serial = np.zeros((24, 24), np.float32)
    for p in range(k):
        serial += np.outer(a[:, p], b[p])  # one rounding a product, one a sum: worse than any fused kernel
    chopped = [(x.view(np.int32) + 0x1000 & ~0x1FFF).view(np.float32) for x in (a, b)]
    tolerance = problem.tolerance("f32")
    right = judge("out", "f32", serial, reference["out"], magnitude["out"], tolerance)
    wrong = judge("out", "f32", chopped[0] @ chopped[1], reference["out"], magnitude["out"], tolerance)
    assert right.mismatch is None and wrong.mismatch is not None
    relaxed = problem.tolerance("tf32")
    assert judge("out", "f32", chopped[0] @ chopped[1], reference["out"], magnitude["out"], relaxed).mismatch is None


ODD = st.sampled_from([0.0, 1.0, -2.5, 1e-30, 3e38, np.inf, -np.inf, np.nan])


@given(
    st.lists(st.tuples(ODD, ODD, st.sampled_from([0.0, 1e-30, 0.5, 3.0])), min_size=1, max_size=9),
    st.sampled_from([1e-6, 0.3]),
    st.sampled_from([1.0, 2.0]),
    st.integers(0, 9),
)
def test_the_short_way_for_a_right_piece_says_what_the_long_one_says(
    elements: list[tuple[float, float, float]], elementwise: float, scale: float, right: int
) -> None:
    got, want, magnitude = (np.array(column) for column in zip(*elements, strict=True))
    with np.errstate(all="ignore"):
        got = np.where(np.arange(got.size) < right, scale * want, got).astype(np.float32)
        arguments = "out", "f32", got, want, magnitude, Tolerance(elementwise, 1.0), "value", scale
        found = judge(*arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verdict, "_compare_finite", lambda *values: None)
            assert str(judge(*arguments)) == str(found)


def test_a_changed_input_is_placed() -> None:
    before = np.arange(12, dtype=np.float32).reshape(3, 4)
    after = before.copy()
    assert changed_input(before, after) is None
    after[2, 1] = -0.0
    assert changed_input(before, after) == (2, 1)


def test_guard_findings_say_how_far() -> None:
    before, behind = guard_finding("out", -4, 40), guard_finding("out", 44, 40)
    assert (before.rule, before.buffer, before.offset) == ("out-of-bounds", "out", -4)
    assert "before the start" in before.message and "past the end" in behind.message and "40 bytes" in behind.message


def test_a_message_shows_where_numbers_differ_and_hints_at_the_allowance() -> None:
    want = np.array([-2.28116])
    out = (want * (1 + 3e-7)).astype(np.float32)
    found = judge("out", "f32", out, want, np.array([1e-3]), Tolerance(1.5e-5, 1.0)).mismatch
    assert found is not None
    said = found.sentence()
    assert said == "out[0]: got -2.281161, expected -2.28116, allowed ±1.5e-08 (1 of 1 elements)"
    (detail,) = found.finding("my.cu", 3).details
    assert "roundings of float32" in detail and "magnitude_outputs()" in detail
    far = judge("out", "f32", np.float32([7.0]), want, np.array([1e-3]), Tolerance(1.5e-5, 1.0)).mismatch
    assert far is not None and far.finding("my.cu", 3).details == ()


def test_whole_numbers_are_exact_only_where_their_results_are() -> None:
    assert is_dyadic({"out": np.array([3.0, -7.25, 2.0**20])})
    assert not is_dyadic({"out": np.array([3.0, 1 / 3])}) and not is_dyadic({"out": np.array([np.sqrt(2.0)])})


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_every_shipped_operator_that_is_exact_on_whole_numbers_still_has_that_run(name: str) -> None:
    for problem in CATALOG.operator(name).examples():
        if problem.integers_exact:
            assert is_dyadic(problem.reference_outputs(problem.make_inputs(1, integers=True))), problem


def test_whole_numbers_stored_in_bf16_are_numbers_not_bits() -> None:
    """The bits of 8.0 are 16640, whose square would pass 2**24: the run was left out for all that is stored so."""
    problem = CATALOG.operator("elementwise").from_axes({"outer": 3, "channels": 7, "inner": 13, "dtype": "bf16"})
    assert sums_stay_exact(problem, problem.make_inputs(1, integers=True))
    large = {name: to_storage(np.full(array.shape, 4096.0), "bf16") for name, array in problem.make_inputs(1).items()}
    assert not sums_stay_exact(problem, large)
