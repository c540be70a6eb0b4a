"""Cheats on time and their honest twins: checked and measured on the cpu backend by a clock of the test's own."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import Buffer
from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.checking.contents import TIMED_INPUT_KINDS, load_input_sets
from opbench.checking.measuring import measure_cases
from opbench.emulator import CpuBackend
from opbench.errors import EnvironmentFault
from opbench.gpu.compile import nvrtc
from opbench.gpu.compile.cubin import read_cubin
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.kernels.launch import BuildRequest
from opbench.running.targets import own_variants
from opbench.selftest.cheats import NO_GAIN, RIGHT, expectation
from opbench.timing.clock import RenewableLaunch, Sample
from opbench.timing.measurement import TimingWarning
from opbench.timing.sampling import TimingOptions
from support.common import CATALOG, CHEATS
from support.fakes.quiet_clock import SteadyClock
from support.needs import needs_nvrtc

FOLDER = CHEATS / "time"
FILES = {path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*.cu"))}
TWINS = [name for name in FILES if name.startswith("honest/")]
SMALL = {"relu": "(n=65536)", "softmax": "(rows=64,cols=96)", "matmul": "(m=96,n=64,k=40)"}
"""What a test on the CPU runs a file on, by operator."""


class Watch(SteadyClock):
    """A clock that renews the launch first in the mode "hot"."""

    def __init__(self, mode: str = "cold", before: Callable[[], None] = lambda: None) -> None:
        super().__init__(before)
        self.mode = mode

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        if self.mode == "hot":
            launch()
            assert isinstance(launch, RenewableLaunch)
            launch.renew()
        return super().sample(launch, hold_stream)


def case_of(path: Path) -> Case:
    """The file on its problem, cut to what a CPU does in a moment."""
    (variant,) = own_variants(path, CATALOG)
    return Case(variant, variant.configs[0], CATALOG.operator(variant.operator).parse(SMALL[variant.operator]))


def test_the_softmax_and_the_matmul_that_cheat_run_at_full_size() -> None:
    for name, operator, least in (
        ("softmax_remembers_its_input.cu", "softmax", 1 << 24),
        ("matmul_tests_one_old_output.cu", "matmul", 1 << 22),
    ):
        expected = expectation(FILES[name])
        problem = CATALOG.operator(operator).parse(expected.problems[0])
        assert sum(tensor.elements for tensor in problem.output_tensors()) >= least
        assert expected.twin == FILES[f"honest/{operator}.cu"]
        assert expectation(expected.twin).problems == expected.problems


def outcome(case: Case) -> tuple[str, str]:
    """Status and reason, as a run on a GPU would have them; nothing is traced, as nothing is there."""
    session = Session(open_backend("cpu"), traced_work=0)
    if reason := session.unsupported_reason(case):
        return "unsupported", str(reason)
    for variable in session.backend.load(case.request()).variables().values():
        variable.write(np.zeros(variable.shape, variable.dtype))  # another test of this process may have launched it
    verdict = session.check(case).verdict
    if not verdict.right:
        return "wrong", verdict.reason
    found = measure_cases(session, [case], TimingOptions(warmup_s=0, max_samples=12), Watch())
    session.release()
    if found.wrong_cases:
        return "wrong", found.wrong_cases[case.name]
    if found.invalid_cases:
        assert case.name not in found.measurements
        return "invalid", found.invalid_cases[case.name]
    return "right", ""


@pytest.mark.parametrize("name", FILES)
def test_a_cheat_on_time_is_reported_as_it_says_and_its_twin_has_a_time(name: str) -> None:
    expected = expectation(FILES[name])
    status, reason = outcome(case_of(FILES[name]))
    if expected.texts[0] in (RIGHT, NO_GAIN):  # what a trick gains, only a GPU shows
        assert status == "right" or (status == "unsupported" and "inline PTX" in reason), reason
    else:
        assert any(word in f"{status}: {reason}" for word in expected.texts), f"{status}: {reason}"
    assert (expected.twin is None) == (name in TWINS)
    assert expected.twin is None or expected.twin in FILES.values()


@needs_nvrtc
@pytest.mark.parametrize("name", FILES)
def test_a_cheat_on_time_compiles_for_a_gpu(name: str) -> None:
    cubin = nvrtc.compile_cubin(case_of(FILES[name]).request(), "sm_90").cubin.read_bytes()
    variables = {variable.name for variable in read_cubin(cubin).variables}
    text = FILES[name].read_text()
    assert bool(variables) == ("\n__device__ " in text), variables
    assert read_cubin(cubin).uses_device_heap == ("malloc(" in text.partition("extern")[2])


def test_every_cheat_is_caught_by_what_its_name_says() -> None:
    """So many ways at least, of which each names the rule that catches it."""
    reports = [expectation(FILES[name]).texts[0] for name in FILES if name not in TWINS]
    assert len(reports) >= 14
    assert sum(word.startswith("invalid: keeps state between launches") for word in reports) >= 4
    assert sum("wrong after timing" in word for word in reports) >= 3


# What a sample finds ----------------------------------------------------------------------------------------------


class Recorded(CpuBackend):
    """A backend that knows the buffers which it gave out last."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Buffer] = []

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        self.buffers.append(super().allocate(name, shape, dtype))
        return self.buffers[-1]


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_outputs_and_workspaces_hold_poison_when_a_sample_begins(mode: str) -> None:
    case = case_of(FILES["honest/relu_with_a_workspace.cu"])
    backend = Recorded()
    poisoned: list[bool] = []

    def look() -> None:
        held = [b for b in backend.buffers if b.name in ("out", "seen")]
        poisoned.append(all(bool(np.isnan(b.read()).all()) for b in held) and len(held) == 2)

    options = TimingOptions(mode=mode, warmup_s=0, max_samples=12)
    found = measure_cases(Session(backend), [case], options, Watch(mode, look), check_again=False)
    assert found.wrong_cases == found.invalid_cases == {} and len(poisoned) >= 12 and all(poisoned)


def test_three_contents_of_the_inputs_take_turns() -> None:
    session = Session(open_backend("cpu"))
    prepared = session.prepare(case_named("relu/scalar(n=1000)").problem)
    prepared.load("normal")
    contents = load_input_sets(session.backend, prepared)
    held = [inputs["x"].read() for inputs in contents.sets.values()]
    assert list(contents.sets) == list(TIMED_INPUT_KINDS) and len(held) == 3
    assert all(not np.array_equal(a, b) for a, b in ((held[0], held[1]), (held[0], held[2]), (held[1], held[2])))
    assert np.array_equal(np.sort(held[0]), np.sort(held[2])), "the third one is the first one, moved along"
    contents.free(session.backend)


def test_launches_are_bound_to_each_content_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from opbench.emulator.program import CpuProgram

    genuine, addresses = CpuProgram.bind, list[int]()

    def recorded(self: CpuProgram, launches: object, buffers: dict[str, Buffer]) -> Callable[[], None]:
        enqueue = genuine(self, launches, buffers)  # type: ignore[arg-type]
        return lambda: (addresses.append(buffers["x"].address), enqueue())[1]  # type: ignore[attr-defined]

    monkeypatch.setattr(CpuProgram, "bind", recorded)
    case = case_named("relu/scalar(n=1000)")
    options = TimingOptions(warmup_s=0, min_samples=30, max_samples=30)
    measure_cases(Session(open_backend("cpu")), [case], options, Watch(), check_again=False)
    timed = addresses[3:]
    assert len(set(timed)) == 3 and all(timed.count(address) >= len(timed) // 3 - 1 for address in set(timed))


def test_short_memory_costs_contents_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from opbench.checking import contents

    def short(*_: object) -> dict[str, Buffer]:
        raise EnvironmentFault("no memory")

    monkeypatch.setattr(contents, "allocate", short)
    case = case_named("relu/scalar(n=1000)")
    options = TimingOptions(warmup_s=0, max_samples=12)
    found = measure_cases(Session(open_backend("cpu")), [case], options, Watch())
    assert found.wrong_cases == found.invalid_cases == {}
    assert TimingWarning.FEW_CONTENTS in found.measurements[case.name].warnings


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_an_output_that_is_updated_in_place_gets_its_old_values_back(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "adds_one.cu"
    path.write_text(
        '// /// opbench\n// operator = "relu"\n// title = "in place"\n// in_place = { out = "x" }\n'
        '// launch = [{ kernel = "own", grid = ["cdiv(n, 256)"], block = ["256"] }]\n// ///\n//\n// Why.\n'
        'extern "C" __global__ void own(float* out, int n) {\n    const int i = blockIdx.x * 256 + threadIdx.x;\n'
        "    if (i < n) out[i] = out[i] > 0.0f ? out[i] : 0.0f;\n}\n"
    )
    catalog, backend = CATALOG, Recorded()
    case = Case(catalog.variant_file(path), {}, catalog.operator("relu").parse("(n=1000)"))
    fresh: list[bool] = []

    def look() -> None:
        out = next(b.read() for b in backend.buffers if b.name == "out")
        fresh.append(any(np.array_equal(out, b.read()) for b in backend.buffers if b.name == "x"))

    options = TimingOptions(mode=mode, warmup_s=0, max_samples=12)
    found = measure_cases(Session(backend), [case], options, Watch(mode, look), check_again=False)
    assert found.wrong_cases == found.invalid_cases == {} and len(fresh) >= 12 and all(fresh)
    judged = measure_cases(Session(open_backend("cpu")), [case], options, Watch(mode))
    assert judged.wrong_cases == judged.invalid_cases == {}


@pytest.mark.parametrize(
    "name",
    [
        "maxpool2d/nhwc_window_constant",
        "upsample2d/scale_constant",
        "sum/*",
        "softmax/*",
        "matmul/split_k*",
        "global_norm/*",
    ],
)
def test_shipped_variants_stay_right_and_get_times(name: str) -> None:
    operator, pattern = name.split("/")
    catalog = CATALOG
    variants = [v for v in catalog.variants(operator) if fnmatch.fnmatch(v.name, pattern) and not v.is_library]
    session = Session(open_backend("cpu"))
    tried = 0
    for variant in variants:
        for problem in catalog.operator(operator).examples():
            case = next(
                (Case(variant, c, problem) for c in variant.configs if variant.unmet_requirement(problem, c) is None),
                None,
            )
            if case is None or session.unsupported_reason(case):
                continue
            found = measure_cases(session, [case], TimingOptions(warmup_s=0, max_samples=10), Watch())
            assert found.wrong_cases == found.invalid_cases == {}, case.name
            tried += 1
            break
    assert tried


def test_variables_of_a_module_are_read_from_its_symbols(tmp_path: Path) -> None:
    source = tmp_path / "state.cu"
    source.write_text(
        "__device__ int plain;\nstatic __device__ float hidden[3] = {1, 2, 3};\n__constant__ float fixed[5];\n"
        "namespace { __device__ short nameless; }\n"
        'extern "C" __global__ void k(float* out, int n) {\n'
        "    static __device__ int own;\n    __shared__ float tile[32];\n    tile[threadIdx.x] = fixed[n];\n"
        "    __syncthreads();\n    plain++; hidden[n]++; nameless++; own++; out[0] = tile[n];\n}\n"
    )
    cubin = nvrtc.compile_cubin(BuildRequest(source, ("k",)), "sm_90").cubin.read_bytes()
    sizes = {variable.name: variable.nbytes for variable in read_cubin(cubin).variables}
    assert sizes["plain"] == 4 and sizes["hidden"] == 12 and sizes["fixed"] == 20
    assert sorted(sizes.values()) == [2, 4, 4, 12, 20], "shared memory is none of them"
    assert not read_cubin(cubin).uses_device_heap
