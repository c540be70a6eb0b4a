"""References in a device's memory: computed there alike, compared alike, and sealed."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbench.backend.base import Buffer
from opbench.checking import checking, on_device
from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.checking.expected import PreparedProblem
from opbench.checking.verdict import judge
from opbench.kernels.tensors import Arrays, Tensor, Tolerance
from support.common import CATALOG
from support.fakes.device_arrays import Foreign, stand_in


@pytest.mark.parametrize("name", CATALOG.operator_names())
def test_each_operators_reference_is_the_same_on_arrays_of_a_device(name: str) -> None:
    for problem in CATALOG.operator(name).examples():
        inputs = problem.make_inputs(3)
        there: Arrays = {key: Foreign(array) for key, array in inputs.items()}
        with np.errstate(all="ignore"):
            for function in (problem.reference_outputs, problem.magnitude_outputs):
                wanted, found = function(inputs), function(there)
                for key, array in wanted.items():
                    held = found[key]
                    assert isinstance(held, Foreign), f"{function.__name__} of {problem} leaves the device: {key}"
                    np.testing.assert_array_equal(held.array, array, str(problem))


VALUES = st.sampled_from([0.0, 1.0, 1.0 + 2**-20, -3.5, 1e30, np.inf, -np.inf, np.nan, 2.0])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@given(
    st.lists(st.tuples(VALUES, VALUES, st.sampled_from([0.0, 1e-3, 1.0, 1e30])), min_size=1, max_size=80),
    st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
    st.sampled_from([1e-6, 1.0]),
    st.sampled_from([1.0, 2.0]),
    st.integers(0, 80),
    st.booleans(),
    st.sampled_from(["f32", "i32", "bf16"]),
)
def test_what_is_right_there_is_right_here_with_the_same_errors(
    elements: list[tuple[float, float, float]],
    elementwise: float,
    norm: float,
    scale: float,
    right: int,
    exact: bool,
    dtype: str,
) -> None:
    got, want, magnitude = (np.array(column) for column in zip(*elements, strict=True))
    with np.errstate(all="ignore"):
        got = np.where(np.arange(got.size) < right, scale * want, got)
        stored = on_device.to_storage(got.astype(np.float32), dtype)
        arguments = Tolerance(0.0, 0.0) if exact else Tolerance(elementwise, norm)
        allowance = None if exact else magnitude
        here = judge("out", dtype, stored, want, allowance, arguments, "value", scale)
        there = on_device.judge_if_right(dtype, stored, want, allowance, arguments, scale)
    assert there is None or here.mismatch is None
    if there is not None:
        assert (there.error, there.norm_error) == pytest.approx((here.error, here.norm_error), rel=1e-12)
    elif here.mismatch is None and dtype != "i32" and np.isfinite(want).all():
        raise AssertionError(f"right here, but not seen there: {stored} {want} {allowance} {arguments}")


class Memory:
    """Memory that holds an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def fingerprint(self) -> int:
        return hash(self.array.tobytes())

    def read(self) -> np.ndarray:
        return self.array


class Device:
    """As much of a GPU as references need."""

    stream_handle = 0

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        yield

    def arrays(self, buffers: Mapping[str, Memory]) -> dict[str, Foreign]:
        return {name: Foreign(buffer.array) for name, buffer in buffers.items()}

    def buffer_of(self, array: Foreign) -> Memory:
        return Memory(array.array)

    def synchronize(self) -> list[object]:
        return []


DEVICE = Device()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of CuPy."""
    found: list[str] = []
    monkeypatch.setattr(on_device, "cupy_module", lambda: stand_in(1 << 40, found))
    monkeypatch.setattr(on_device, "LibraryBackend", Device)
    monkeypatch.setattr(on_device, "MIN_DEVICE_ELEMENTS", 1)
    return found


def judged(prepared: PreparedProblem, out: np.ndarray) -> str:
    expected = prepared.expect("normal", "f32")
    tensor = Tensor("out", out.shape, "f32")
    magnitude = expected.magnitude["out"] if expected.magnitude else None
    terms = expected.tolerance, "value", expected.scale
    found = on_device.judge_buffer(DEVICE, tensor, Memory(out), expected.reference["out"], magnitude, *terms)
    return found.mismatch.sentence() if found.mismatch else ""


@pytest.mark.parametrize("case", ["matmul(m=33,n=17,k=65)", "relu(n=999)", "sum(n=1001)"])
def test_an_output_is_judged_where_it_lies_and_a_wrong_one_here(calls: list[str], case: str) -> None:
    name, _, axes = case.partition("(")
    problem = CATALOG.operator(name).parse("(" + axes)
    here, there = PreparedProblem(problem, 5, {}), PreparedProblem(problem, 5, {}, backend=DEVICE)
    right = here.expect("normal", "f32").reference["out"].astype(np.float32)
    assert judged(there, right) == "" and "from" not in calls
    wrong = right.copy()
    wrong.reshape(-1)[-1] += 1
    assert judged(there, wrong).startswith("out[") and "from" in calls
    assert judged(there, wrong) == judged(here, wrong)


def test_what_a_kernel_writes_into_a_reference_is_seen(calls: list[str]) -> None:
    prepared = PreparedProblem(CATALOG.operator("sum").parse("(n=1001)"), 5, {}, backend=DEVICE)
    sealed = prepared.expect("normal", "f32").fingerprinted_memory
    assert len(sealed) == 2 and not prepared.is_overwritten()
    memory: Buffer = sealed[0][0]
    memory.array[...] += 1
    assert prepared.is_overwritten()


def test_the_host_computes_what_the_device_cannot(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CATALOG.operator("sum").parse("(n=1001)")
    inputs = problem.make_inputs(1)
    assert on_device.expected_on_device(DEVICE, problem, inputs, exact=False)
    assert on_device.expected_on_device(None, problem, inputs, exact=False) is None
    monkeypatch.setattr(type(problem), "reference", lambda self, x: np.add.reduce(x, keepdims=True))
    assert on_device.expected_on_device(DEVICE, problem, inputs, exact=False) is None
    expected = PreparedProblem(problem, 5, {}, backend=DEVICE).expect("normal", "f32")
    assert isinstance(expected.reference["out"], np.ndarray) and not expected.fingerprinted_memory


def test_a_released_problem_leaves_nothing_in_cupys_pool(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pool keeps what is freed, and buffers are not allocated there."""
    monkeypatch.setitem(sys.modules, "cupy", on_device.cupy_module())
    session = Session(open_backend("cpu"))
    before = weakref.ref(session.prepare(CATALOG.operator("sum").parse("(n=1001)")))
    seen: list[object] = []
    release_device_cache = on_device.release_device_cache
    monkeypatch.setattr(checking, "release_device_cache", lambda: (seen.append(before()), release_device_cache()))
    del calls[:]
    session.prepare(CATALOG.operator("sum").parse("(n=31)"))
    assert calls == ["freed"] and seen == [None], "nobody holds the references when the pool is emptied"
