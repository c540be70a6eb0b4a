"""What the base class derives for every operator in the tree."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.checking.expected import PreparedProblem
from opbench.errors import UsageError
from opbench.kernels import arrays
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import from_storage, to_storage
from support.checks.errors import refuses_name
from support.common import CATALOG


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_a_printed_problem_parses_back(name: str) -> None:
    examples = CATALOG.operator(name).examples()
    assert [type(problem).parse(str(problem)) for problem in examples] == list(examples)


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_the_reference_has_the_declared_shapes_and_is_finite(name: str) -> None:
    for problem in CATALOG.operator(name).examples():
        outputs = problem.reference_outputs(problem.make_inputs(1))
        declared = {tensor.name: tensor.shape for tensor in problem.output_tensors()}
        assert {key: array.shape for key, array in outputs.items()} == declared, problem
        assert all(np.isfinite(array).all() for array in outputs.values()), problem
        takes_all = type(problem).bytes is Operator.bytes
        tensors = problem.input_tensors() if takes_all else problem.output_tensors()
        assert problem.bytes() >= sum(tensor.nbytes for tensor in tensors), problem


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_examples_hold_odd_sizes_and_there_are_random_ones(name: str) -> None:
    operator = CATALOG.operator(name)
    sizes = [v for p in operator.examples() for v in p.axes.values() if isinstance(v, int)]
    assert any(v % 2 and v > 4 for v in sizes) and 1 in sizes
    random = operator.random_problems(1, 3)
    assert len(random) == 3 and random == operator.random_problems(1, 3) != operator.random_problems(2, 3)


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_inputs_are_seeded_and_zero_mean(name: str) -> None:
    problem = CATALOG.operator(name).examples()[-1]
    first, again, other = problem.make_inputs(1), problem.make_inputs(1), problem.make_inputs(2)
    for key, array in first.items():
        assert np.array_equal(array, again[key])
        assert array.size < 8 or not np.array_equal(array, other[key])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_results_of_small_whole_numbers_fit_in_outputs_of_16_bits(name: str, dtype: str) -> None:
    """A variant may round more than once, and is still exact: PyTorch rounds a convolution before it adds the bias."""
    operator = CATALOG.operator(name)
    if dtype not in operator.choices.get("dtype", ()):
        pytest.skip(f"{name} has no {dtype}")
    for problem in (p for p in operator.all_examples([dtype]) if p.storage == dtype and p.integers_exact):
        outputs = problem.reference_outputs(problem.make_inputs(1, integers=True))
        for tensor in (t for t in problem.output_tensors() if t.dtype == dtype):
            exact = outputs[tensor.name][np.abs(outputs[tensor.name]) % 1 == 0]
            if name != "reduce":  # whose products of many numbers are large
                assert np.array_equal(from_storage(to_storage(exact, dtype), dtype), exact), problem


def test_whole_numbers_for_bf16_are_few_where_many_products_are_added() -> None:
    for reduction, share_of_zeros in ((64, 0.3), (4096, 0.65), (262144, 0.96)):
        problem = CATALOG.operator("matmul").from_axes({"m": 64, "n": 64, "k": reduction, "dtype": "bf16"})
        inputs = problem.make_inputs(1, integers=True)
        out = problem.reference_outputs(inputs)["out"]
        assert 16 < np.abs(out).max() <= 256, "large enough to reveal a missing term, small enough for bf16"
        assert float(np.mean(problem.widened(inputs)["a"] == 0)) < share_of_zeros


def test_unknown_axis_names_the_nearest() -> None:
    with refuses_name("axis", "kk", "k", where="matmul"):
        CATALOG.operator("matmul").from_axes({"m": 1, "n": 1, "kk": 1})


@pytest.mark.parametrize("value", [-1, 0, "many", 1.5, True])
def test_bad_axis_values_are_refused(value: object) -> None:
    with pytest.raises(UsageError) as raised:
        CATALOG.operator("relu").from_axes({"n": value})
    assert (raised.value.kind, raised.value.value) in (("not-allowed", value), ("empty-tensor", (value,)))


def test_bf16_rounds_to_nearest_even_and_back() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.0e38, 0.0], np.float32)  # two ties: down to even, up to even
    assert from_storage(to_storage(values, "bf16"), "bf16").tolist()[:3] == [1.0, 1.0, 1.015625]


def test_every_bf16_survives_the_round_trip() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide = from_storage(bits, "bf16")
    finite = np.isfinite(wide)
    assert np.array_equal(to_storage(wide[finite], "bf16"), bits[finite])


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_a_degree_is_true_bit_for_bit(name: str) -> None:
    """By what a check changes content with, for the first six examples and one of each combination of modes."""
    examples = CATALOG.operator(name).examples()
    of_modes = {tuple(p.axes[mode] for mode in p.modes()): p for p in reversed(examples)}
    for problem in {*examples[:6], *of_modes.values()}:
        if problem.degree is None:
            continue
        prepared = PreparedProblem(problem, 3, {})
        doubled = problem.reference_outputs(prepared.doubled_inputs())
        for key, array in problem.reference_outputs(prepared.inputs("normal")).items():
            np.testing.assert_array_equal(doubled[key], 2.0**problem.degree * array)


def test_large_inputs_are_drawn_piece_by_piece_and_the_same_by_any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    draw: arrays.Draw = lambda rng, count: rng.standard_normal(count, np.float32)  # noqa: E731
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 1000)
    several = arrays.draw_random([7, 8], (3, 1501), draw)
    monkeypatch.setattr(arrays, "MAX_THREADS", 1)
    np.testing.assert_array_equal(arrays.draw_random([7, 8], (3, 1501), draw), several)
    flat = several.reshape(-1)
    np.testing.assert_array_equal(flat[:1000], np.random.default_rng([7, 8]).standard_normal(1000, np.float32))
    assert abs(flat.mean()) < 0.1 and len({float(x) for x in flat}) > 4490, "no piece is drawn twice"
    monkeypatch.setattr(arrays, "CACHED_ELEMENTS", 1000)
    wide = arrays.by_pieces(several, lambda part: 2 * part, "f8")
    assert wide.dtype == np.float64 and wide.shape == (3, 1501)
    np.testing.assert_array_equal(wide, 2 * several)
