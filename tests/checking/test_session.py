"""What is measured is checked once more: kernels that are right until they have been timed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.backend.base import Backend, Buffer
from opbench.checking import contents, measuring
from opbench.checking.backends import open_backend
from opbench.checking.binding import Binding, _repeated, bind, rebind
from opbench.checking.checking import Session
from opbench.checking.contents import TIMED_INPUT_KINDS
from opbench.checking.expected import PreparedProblem
from opbench.checking.measuring import MeasureResult, measure_cases
from opbench.emulator import CpuBackend, buffer
from opbench.emulator.buffer import CpuArray
from opbench.errors import EnvironmentFault
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.kernels.header import read_variants
from opbench.timing.clock import Sample
from opbench.timing.sampling import TimingOptions
from support.checks.errors import refuses
from support.common import CATALOG, RELU
from support.fakes.quiet_clock import SteadyClock

BODY = "if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;"
CHEATS = {
    "stops working": ("__device__ int calls;", f"if (i == 0) ++calls; if (calls < 12) {{ {BODY} }}"),
    "gives the old output again": (
        "__device__ int calls; __device__ float kept[1024];",
        f"if (i == 0) ++calls; if (calls < 12) {{ {BODY} if (i < n) kept[i] = out[i]; }} "
        "else if (i < n) out[i] = kept[i];",
    ),
    "is tied to an address": (
        "__device__ const float* first;",
        f"if (first == nullptr) first = x; if (x == first) {{ {BODY} }}",
    ),
}


def measured(folder: Path, globals_: str, body: str, check_again: bool = True) -> MeasureResult:
    """A kernel of this body and an honest one, measured on the cpu backend by a fake clock."""
    path = folder / "cheat.cu"
    path.write_text(RELU.replace(BODY, body).replace('extern "C"', f'{globals_}\nextern "C"'))
    catalog = CATALOG
    cheat = Case(catalog.variant_file(path), {}, catalog.operator("relu").from_axes({"n": 1000}))
    honest = case_named("relu/scalar(n=1000)")
    session = Session(open_backend("cpu"))
    options = TimingOptions(warmup_s=0, max_samples=10)
    started: list[str] = []
    found = measure_cases(session, [cheat, honest], options, SteadyClock(), started.append, check_again=check_again)
    assert honest.name in found.measurements and {*found.wrong_cases, *found.invalid_cases} <= {cheat.name}
    assert (cheat.name in found.measurements) == (cheat.name not in found.invalid_cases)
    assert started[-1] in (cheat.name, honest.name)
    return found


@pytest.mark.parametrize(
    ("cheat", "variables"), [("stops working", ["calls"]), ("gives the old output again", ["calls", "kept"])]
)
def test_who_is_right_only_until_timed_gets_no_time(tmp_path: Path, cheat: str, variables: list[str]) -> None:
    found = measured(tmp_path, *CHEATS[cheat])
    (reason,) = found.invalid_cases.values()
    assert reason.startswith("keeps state between launches: ") and found.wrong_cases == {}
    assert sorted(re.findall(r"'(\w+)'", reason.partition(". ")[0])) == variables


def test_who_is_tied_to_an_address_is_caught_in_a_timed_sample(tmp_path: Path) -> None:
    (reason,) = measured(tmp_path, *CHEATS["is tied to an address"]).wrong_cases.values()
    assert re.match(r"wrong in timed sample \d+: .*(unwritten-output|wrong-result): out", reason), reason


def test_an_honest_kernel_stays_right(tmp_path: Path) -> None:
    assert measured(tmp_path, "", BODY).wrong_cases == {}


def test_a_kernel_that_damages_its_neighbours_late_costs_only_itself(tmp_path: Path) -> None:
    late = f"if (i == 0) ++calls; {BODY} if (calls > 12 && i == 0) out[n + 4] = 1.0f;"
    (reason,) = measured(tmp_path, "__device__ int calls;", late).wrong_cases.values()
    assert "on new inputs: " in reason and "out" in reason


def test_who_is_not_asked_to_does_not_check_again(tmp_path: Path) -> None:
    assert measured(tmp_path, *CHEATS["stops working"], check_again=False).wrong_cases == {}


class Counted(CpuBackend):
    """A backend whose buffers count what is fetched from them."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = Counter[str]()

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        buffer = super().allocate(name, shape, dtype)
        read = buffer.read

        def counted() -> np.ndarray:
            self.fetched[name] += 1
            return read()

        buffer.read = counted  # type: ignore[method-assign]
        return buffer


def test_bits_that_were_right_before_are_not_fetched_again(tmp_path: Path) -> None:
    backend = Counted()
    session = Session(backend)
    cases = [case_named(f"relu/{name}(n=1000)") for name in ("scalar", "grid_stride", "vec4")]
    assert all(session.check(case).verdict.right for case in cases)
    assert backend.fetched == {"out": 4}, "one output of each kind of inputs for all variants, no input at all"
    options = TimingOptions(warmup_s=0, max_samples=10)
    found = measure_cases(session, cases, options, SteadyClock())
    assert found.wrong_cases == {} and backend.fetched == {"out": 5}, "once more, for other content"
    path = tmp_path / "wrong.cu"
    path.write_text(RELU.replace(BODY, "if (i < n) out[i] = x[i] > 0.0f ? x[i] : -1.0f;"))
    wrong = Case(CATALOG.variant_file(path), {}, cases[0].problem)
    assert not session.check(wrong).verdict.right and not session.check(wrong).verdict.right
    assert backend.fetched == {"out": 9}, "what is wrong is always looked at"


def test_a_changed_input_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "changes.cu"
    path.write_text(RELU.replace("const float*", "float*").replace(BODY, f"{BODY} if (i == 7) x[i] = 5.0f;"))
    case = Case(CATALOG.variant_file(path), {}, CATALOG.operator("relu").from_axes({"n": 1000}))
    session = Session(open_backend("cpu"), traced_work=0)
    assert "changes.cu:8: changed-input: the kernel changed its input x[7]" in session.check(case).verdict.reason
    honest = session.check(case_named("relu/scalar(n=1000)")).verdict
    assert honest.right, honest.reason


class WithLibrary(CpuBackend):
    """Hands out NumPy's own arrays, as another backend does its library's."""

    stream_handle = 0

    def arrays(self, buffers: Mapping[str, Buffer]) -> dict[str, object]:
        return {name: buffer._content for name, buffer in buffers.items() if isinstance(buffer, CpuArray)}

    def buffer_of(self, array: object) -> Buffer:
        raise NotImplementedError  # only references on a device need it, and these tests have none

    def on_stream(self) -> AbstractContextManager[object]:
        return nullcontext()


def test_a_library_that_updates_in_place_gets_the_outputs_alone_filled(tmp_path: Path) -> None:
    """Also when it is checked once more, after many updates; one that says nothing of it changes its input."""
    header = '"""By NumPy.\n\n/// opbench\ntitle = "p -= lr g"\n{}\n///\n"""\n'
    body = (
        "def bind(problem, buffers):\n    p, g, r, h = (buffers[name] for name in ('parameter', 'gradient', 'rates', "
        "'hyper'))\n    def run():\n        p[...] -= r[0] * (r[3] * g + h[3] * p)\n    return run\n"
    )
    path = tmp_path / "own.py"
    problem = CATALOG.operator("sgd").from_axes({"n": 999})
    for says, right in (("in_place = true", True), ("", False)):
        path.write_text(header.format(says) + body)
        (variant,) = read_variants(path, "sgd")
        session, case = Session(WithLibrary()), Case(variant, {}, problem)
        verdict = session.check(case).verdict
        assert verdict.right == right and (right or "changed its input parameter" in verdict.reason), verdict.reason
        if right:
            assert measure_cases(session, [case], TimingOptions(budget_s=0.01), SteadyClock()).wrong_cases == {}
        session.release()
    path.write_text(header.format('in_place = { updated = "parameter" }') + body)
    with refuses("not-allowed", "in_place"):
        read_variants(path, "sgd")


def write(folder: Path, text: str) -> Path:
    path = folder / "own.cu"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name, axes", [("relu", {"n": 1 << 20}), ("matmul", {"m": 512, "n": 1024, "k": 1024})])
def test_inputs_that_another_thread_makes_are_the_same(name: str, axes: dict[str, int]) -> None:
    problem = CATALOG.operator(name).from_axes(axes)
    alone, ahead = (PreparedProblem(problem, 7, {}, secret="8") for _ in range(2))
    ahead.prefetch("again")
    assert "again" in ahead.pending_inputs
    made = ahead.inputs("again")
    assert not ahead.pending_inputs and made.keys() == alone.inputs("again").keys()
    assert all(np.array_equal(array, alone.inputs("again")[key]) for key, array in made.items())


def test_dependent_inputs_of_all_kinds_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"batch": 1, "heads": 16, "kv_heads": 8, "queries": 512, "keys": 512, "depth": 64}
    problem = CATALOG.operator("attention_backward").from_axes(axes)
    alone, ahead, without_memory = (PreparedProblem(problem, 7, {}, secret="8") for _ in range(3))
    for kind in TIMED_INPUT_KINDS[1:]:
        ahead.prefetch(kind)
    assert set(ahead.pending_inputs) == {"again", "shifted"} and not ahead.generated_inputs, "before the normals"
    for kind in TIMED_INPUT_KINDS:
        assert all(np.array_equal(array, alone.inputs(kind)[key]) for key, array in ahead.inputs(kind).items())
    monkeypatch.setattr(buffer, "available_memory", lambda: 1 << 20)
    for kind in TIMED_INPUT_KINDS[1:]:
        without_memory.prefetch(kind)
    assert set(without_memory.pending_inputs) == {"again"} and "normal" in without_memory.generated_inputs


def test_no_thread_makes_inputs_while_cases_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"batch": 1, "heads": 16, "kv_heads": 8, "queries": 512, "keys": 512, "depth": 64}
    prepared = PreparedProblem(CATALOG.operator("attention_backward").from_axes(axes), 7, {})
    prepared.buffers = dict.fromkeys(t.name for t in prepared.problem.input_tensors())  # type: ignore[arg-type]
    for kind in TIMED_INPUT_KINDS[1:]:
        prepared.prefetch(kind)

    def no_memory(*_: Any) -> Any:
        raise EnvironmentFault("no memory", kind="gpu-memory")

    monkeypatch.setattr(contents, "allocate", no_memory)
    contents.load_input_sets(open_backend("cpu"), prepared)
    assert prepared.pending_inputs and all(future.done() for future in prepared.pending_inputs.values())


@pytest.mark.parametrize("shape", [(), (0,), (3,), (7,), (2, 9), (14,)])
def test_numbers_are_repeated_to_any_shape(shape: tuple[int, ...]) -> None:
    values = np.arange(1, 8, dtype=np.uint16)
    assert np.array_equal(_repeated(values, shape), np.resize(values, shape))


SETUP_CASE = (
    "upsample_concat_conv2d/nhwc_four_filters_tf32[BM=64,BN=64,STAGES=4]"
    "(n=1,c1=8,c2=8,h=4,w=4,k=8,r=3,s=3,padding=1,layout=nhwc)"
)


def test_setup_launches_of_a_prepared_case_are_not_part_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_named(SETUP_CASE)
    assert case.setup.launches
    bound: list[bool | None] = []
    timed: list[bool | None] = []

    def recorded(launch: Callable[[], None], setup: bool) -> Callable[[], None]:
        def run() -> None:
            (timed if clock.sampling else bound).append(setup)
            launch()

        return run

    def bind_and_record(*args: Any, setup: bool) -> Binding:
        binding = bind(*args, setup=setup)
        return replace(binding, launch=recorded(binding.launch, setup))

    def rebind_and_record(backend: Backend, case: Case, part: Binding, buffers: Mapping[str, Buffer]) -> Any:
        return recorded(rebind(backend, case, part, buffers), part.launches[0].setup)

    class Sampling(SteadyClock):
        sampling = False

        def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
            self.sampling = True
            try:
                return super().sample(launch, hold_stream)
            finally:
                self.sampling = False

    clock = Sampling()
    monkeypatch.setattr(measuring, "bind", bind_and_record)
    monkeypatch.setattr(measuring, "rebind", rebind_and_record)
    options = TimingOptions(warmup_s=0, max_samples=10)
    found = measure_cases(Session(open_backend("cpu")), [case], options, clock, prepared_cases={case.name})
    assert found.measurements.keys() == {case.name} and not found.wrong_cases and not found.invalid_cases
    assert len(timed) >= 10 and set(timed) == {False}, "no setup launch within a sample"
    assert bound.count(True) >= len(timed), "a setup launch before each sample, as its workspace is poisoned"
