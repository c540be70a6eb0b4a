"""Other clocks' records are read right, and cheats that concern time are caught on a driver made of host memory."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common import CHEATS
from test_cuda_fake import backend, fake  # noqa: F401 (fixtures)

from opbench.backends.cuda import CudaBackend, why_missing
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.errors import EnvironmentFault, LaunchError
from opbench.runs.runner import floor_s
from opbench.runs.targets import own_variants
from opbench.selftest import witnesses
from opbench.selftest.cheats import expected
from opbench.session.checking import Session
from opbench.session.measuring import measure_cases
from opbench.timing.clock import Sample
from opbench.timing.sampling import TimingOptions

OWN = ["fill", "drain", "stamp", "hold", "stamp"]
TIME_CHEATS = {path.stem: path for path in sorted((CHEATS / "time").glob("*.py"))}


class FakeCupti(types.ModuleType):
    """Records what is launched between enable and disable, kernels of 100 ns and a callable's own."""

    class ActivityKind:
        CONCURRENT_KERNEL = 10

    class cuptiError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.now_ns, self.enabled, self.records = 1_700_000_000_000_000_000, False, []

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        assert requested() == (witnesses.BUFFER_BYTES, 0)
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        self.enabled = True

    def activity_disable(self, kind: int) -> None:
        self.enabled = False

    def activity_flush_all(self, flag: int) -> None:
        # Records need not come in order.
        self.completed(list(reversed(self.records)))
        self.records = []

    def kernel(self, name: str, length_ns: int = 100) -> None:
        if self.enabled:
            ended = self.now_ns + length_ns
            self.records.append(types.SimpleNamespace(name=name, start=self.now_ns, end=ended))
        self.now_ns += length_ns + 50


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    """In the place of cupti-python."""
    module, package = FakeCupti(), types.ModuleType("cupti")
    package.cupti = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", module)
    return module


class RecordedClock:
    """Launches what a real clock does."""

    def __init__(self, cupti: FakeCupti) -> None:
        self.cupti = cupti

    def nothing(self) -> None:
        self.cupti.kernel("nothing")

    def sample(self, launch: Callable[[], None], hold: bool = True) -> Sample:
        for name in OWN[:4]:
            self.cupti.kernel(name)
        launch()
        self.cupti.kernel(OWN[4])
        return Sample(0.0)


def test_cupti_times_are_those_of_the_callables_kernels_alone(cupti: FakeCupti) -> None:
    def two() -> None:
        cupti.kernel("one", 1000)
        cupti.kernel("other", 2000)

    launches = {"drain": lambda: cupti.kernel("drain", 7000), "two": two}
    found = witnesses.cupti_times(RecordedClock(cupti), launches, samples=5)
    assert found == {"drain": pytest.approx([7e-6] * 5), "two": pytest.approx([3.05e-6] * 5)}
    assert not cupti.enabled


def test_dropped_records_and_a_refusal_are_said(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFault, match="0 kernels of 3 samples"):
        witnesses.kernel_times([], 3, 5, 4)
    with pytest.raises(EnvironmentFault, match="for one kernel more than"):
        witnesses.place_of(["fill", "drain"], ["hold"])

    def refuse(kind: int) -> None:
        raise cupti.cuptiError("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setattr(cupti, "activity_enable", refuse)
    with pytest.raises(EnvironmentFault, match="CUPTI refuses: ERROR_MULTIPLE"):
        witnesses.cupti_times(RecordedClock(cupti), {})


def summary(tag: str, value: str) -> dict[str, Any]:
    """As nvbench writes it: numbers are strings."""
    return {"tag": tag, "data": [{"name": "value", "type": "float64", "value": value}]}


def test_nvbench_json_is_read_by_cell() -> None:
    def state(cell: str, *summaries: dict[str, Any]) -> dict[str, Any]:
        return {"axis_values": [{"name": "Cell", "type": "int64", "value": cell}], "summaries": list(summaries)}

    mean, median = summary("nv/cold/time/gpu/mean", "2e-06"), summary("nv/cold/time/gpu/median", "1e-06")
    states = [state("1", mean), state("0", mean, median), {**state("2"), "is_skipped": True, "summaries": None}]
    assert witnesses.read_bench({"benchmarks": [{"states": states}]}) == {1: 2e-6, 0: 1e-6}


def test_nvbench_is_given_every_cell_on_our_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its API as in cuda-bench 0.3: what it calls, and the file that it leaves."""
    launched: list[str] = []

    class Bench(types.ModuleType):
        def register(self, function: Callable[[Any], None]) -> Any:
            self.function = function
            return self

        def add_int64_axis(self, name: str, values: list[int]) -> None:
            self.axis = (name, values)

        def set_timeout(self, seconds: float) -> None:
            assert 0 < seconds < 15

        def run_all_benchmarks(self, argv: list[str]) -> None:
            states = []
            for value in self.axis[1]:
                state = types.SimpleNamespace(
                    get_int64={self.axis[0]: value}.__getitem__,
                    set_stream=lambda provider: launched.append(str(provider.__cuda_stream__())),
                    exec=lambda launcher, batched: launcher(None),
                )
                self.function(state)
                axes = [{"name": self.axis[0], "type": "int64", "value": str(value)}]
                states.append(
                    {"axis_values": axes, "summaries": [summary("nv/cold/time/gpu/mean", f"{value + 1}e-06")]}
                )
            document = {"benchmarks": [{"states": states}]}
            Path(argv[argv.index("--json") + 1]).write_text(json.dumps(document))

    package = types.ModuleType("cuda")
    package.bench = Bench("cuda.bench")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    launches = {name: functools.partial(launched.append, name) for name in ("a", "b")}
    assert witnesses.bench_times(0x5EED, launches) == {"a": [1e-6], "b": [2e-6]}
    assert launched == ["(0, 24301)", "a", "(0, 24301)", "b"]


# Cheats -----------------------------------------------------------------------------------------------------------


class HostArray(np.ndarray):
    """Has the pointer where CuPy's arrays have it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.ctypes.data)


class HostStream:
    """What goes to one that does not block is never seen to end."""

    current: list[HostStream] = []

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    @classmethod
    def from_external(cls, external: Any) -> HostStream:
        return cls()

    def use(self) -> None:
        self.current[:] = [self]

    def synchronize(self) -> None:
        return None

    def __enter__(self) -> HostStream:
        self.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.current.pop()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As much of CuPy as the cheats use, on the fake driver's memory, which is the host's."""

    def view(shape: tuple[int, ...], dtype: Any, pointer: int) -> HostArray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_char * count).from_address(pointer)
        return np.frombuffer(memory, dtype).reshape(shape).view(HostArray)

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a, **k: None if HostStream.current[-1].non_blocking else function(*a, **k)

    module = types.ModuleType("cupy")
    module.ndarray, module.float32 = view, np.float32  # type: ignore[attr-defined]
    module.matmul, module.copyto = seen(np.matmul), seen(np.copyto)  # type: ignore[attr-defined]
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Stream=HostStream,
        Device=lambda ordinal: types.SimpleNamespace(use=lambda: None),
        UnownedMemory=lambda pointer, size, owner, ordinal: pointer,
        MemoryPointer=lambda memory, offset: memory + offset,
        get_current_stream=lambda: HostStream.current[-1],
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield
    HostStream.current.clear()


def case_of(path: Path) -> Case:
    """Small enough for the exact run, with whole numbers that half cannot hold."""
    (variant,) = own_variants(path, Catalog())
    return Case(variant, variant.configs[0], Catalog().operator("matmul").parse("(m=67,n=132,k=1000)"))


@pytest.mark.parametrize("name", [name for name in TIME_CHEATS if name != "patches_the_timing_events"])
def test_a_time_cheat_is_wrong_on_other_content(
    name: str,
    backend: CudaBackend,  # noqa: F811
    cupy: None,
) -> None:
    verdict = Session(backend).check(case_of(TIME_CHEATS[name])).verdict
    assert not verdict.right and "wrong" in expected(TIME_CHEATS[name])
    assert verdict.reason.startswith(("wrong at out", "never written")), verdict.reason


def test_a_patched_event_undercuts_the_floor(
    backend: CudaBackend,  # noqa: F811
    cupy: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opbench.backends.cuda.driver import Driver

    monkeypatch.setattr(Driver, "get", Driver.get)  # what the cheat changes is put back
    case, session = case_of(TIME_CHEATS["patches_the_timing_events"]), Session(backend)
    honest_s = backend.clock().sample(lambda: None).seconds
    options = TimingOptions(max_samples=10, warmup_s=0.0)
    found = measure_cases(session, [case], options, backend.clock()).measurements[case.name]
    ceilings = {"fp32_flops_per_s": case.problem.flops() / (honest_s / 10)}
    floor, bound = floor_s(case, ceilings)
    assert found.median_s < floor < honest_s and bound == "measured fp32 rate", asdict(found)


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
@pytest.mark.parametrize("path", TIME_CHEATS.values(), ids=lambda p: p.stem)
def test_a_time_cheat_is_caught_on_a_gpu(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="one cheat is called by CuPy")
    from opbench import selftest
    from opbench.cli.selftesting import judge_cheat

    part = selftest.cheats([path], lambda file: judge_cheat(file, lambda line: None))
    assert [claim.holds for claim in part.claims] == [True], part.claims


def test_nothing_is_asked_of_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(EnvironmentFault, match="pip install cupti-python"):
        witnesses.cupti_times(None, {})
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(EnvironmentFault, match="cuda-bench"):
        witnesses.bench_times(0, {})


def test_what_the_self_test_launches_is_launched(backend: CudaBackend) -> None:  # noqa: F811
    from opbench import selftest

    flushed = selftest.flush(backend, 0.1)  # type: ignore[arg-type]
    for seen in flushed.figures.values():  # events of the fake take a millisecond, and every launch another one
        one = 2e-3 - backend.clock().offset()
        assert seen == pytest.approx({"cold_s": one, "second_pass_s": 1e-3, "hot_s": one})
    clock, memory = backend.clock(), selftest.untouched(backend)  # type: ignore[arg-type]
    assert memory is not clock
    for launch in (selftest.Cell("read", 256, "r").launch(memory), clock.cycles(1000), clock.spin(1e-3)):
        for mode in ("cold", "dirty", "hot", "graph"):
            sample = backend.clock(mode).sample(launch)
            assert sample.held and sample.seconds > 0
    with pytest.raises(LaunchError, match="does not time kernels"):
        selftest.stamps(backend, 0.1)  # type: ignore[arg-type]


# Wall time --------------------------------------------------------------------------------------------------------


class FakeBench(types.ModuleType):
    """As much of cuda-bench 0.3 as the race uses; every `exec` calls the launch so often and leaves samples."""

    def __init__(self) -> None:
        super().__init__("cuda.bench")
        self.skipped: list[str] = []
        self.modes: list[Any] = []

    def register(self, function: Callable[[Any], None]) -> Any:
        self.function = function
        return self

    def add_int64_axis(self, name: str, values: list[int]) -> None:
        self.axis = (name, values)

    def run_all_benchmarks(self, argv: list[str]) -> None:
        assert argv[1:3] == ["--devices", "0"] and argv[3] == "--jsonbin" and len(argv) == 5, "every default left alone"
        path, states = Path(argv[4]), []
        (path.parent / "bench.json-bin").mkdir()
        for value in self.axis[1]:
            done: list[Any] = []

            def execute(launcher: Any, batched: Any = None, done: list[Any] = done) -> None:
                self.modes.append(batched)
                done += [launcher(None) for _ in range(7)]

            state = types.SimpleNamespace(
                get_int64={self.axis[0]: value}.__getitem__,
                set_stream=lambda provider: provider.__cuda_stream__(),
                exec=execute,
                skip=self.skipped.append,
            )
            self.function(state)
            name = f"bench.json-bin/{value}.bin"
            np.full(len(done), 2e-3, "<f4").tofile(path.parent / name)
            kept = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": name}]}
            axes = [{"name": self.axis[0], "type": "int64", "value": str(value)}]
            summaries = [summary("nv/cold/walltime", "0.75"), kept] if done and value else [kept]
            states.append({"axis_values": axes, "summaries": summaries if done else None})
        path.write_text(json.dumps({"benchmarks": [{"states": states}]}))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """In the place of cuda-bench, on a driver that does not tell what kernels take: the fake's are its own."""
    from opbench.backends.cuda.driver import Driver

    monkeypatch.setattr(Driver, "has", lambda self, name: False)
    package = types.ModuleType("cuda")
    package.bench = FakeBench()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    return package.bench  # type: ignore[attr-defined, no-any-return]


CELLS = ("copy/scalar(n=1000)", "relu/scalar(n=1000)", "relu/nothing(n=1000)")


def test_both_engines_run_on_one_launch_of_each_case(backend: CudaBackend, bench: FakeBench) -> None:  # noqa: F811
    from opbench.selftest.racing_child import race_cells

    found = race_cells(backend, CELLS)
    assert list(found) == list(CELLS) and "unknown variant" in found[CELLS[2]]["left_out"] == bench.skipped[0]
    assert bench.modes == [False, False]
    for case in CELLS[:2]:
        assert found[case]["stop_reason"] == "target" and found[case]["half_width"] == 0 < found[case]["ours_s"]
        assert found[case]["bench_samples_s"] == pytest.approx([2e-3] * 7)
    assert found[CELLS[1]]["bench_s"] == 0.75 > found[CELLS[0]]["bench_s"] > 0, "without its own figure, what exec took"


def test_no_cell_is_begun_after_the_limit(bench: FakeBench) -> None:
    from opbench.selftest.nvbench import race

    times = iter([0.0, 1.0, 2.0, 2.5, 9.0])
    found = race(
        1, {"a": lambda: lambda: None, "b": pytest.fail}, lambda launch: {"ours_s": 1.0}, 5.0, lambda: next(times)
    )
    assert found["a"]["bench_s"] == 0.5 and found["b"] == {"left_out": "not begun within 5 s"}


def test_a_cell_alone_is_measured_at_every_default(
    backend: CudaBackend,  # noqa: F811
    bench: FakeBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from click.testing import CliRunner

    from opbench.backends import cuda
    from opbench.cli import cli as commands

    monkeypatch.setattr(cuda, "CudaBackend", lambda: backend)
    words = ["selftest-race", "alone", "--case", CELLS[0], "--out", str(tmp_path / "found.json")]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "found.json").read_text())["bench_s"] > 0 and bench.modes == [None]


def test_the_worker_measures_a_canary_without_a_check(backend: CudaBackend, bench: FakeBench) -> None:  # noqa: F811
    from opbench.catalog.folders import case_named
    from opbench.runs.protocol import Probe, pack
    from opbench.runs.server import Server

    server = Server.__new__(Server)
    server.catalog, server.backend = Catalog(), backend  # type: ignore[assignment]
    request = Probe([pack(case_named(CELLS[0]))], TimingOptions(warmup_s=0, max_samples=10))
    assert server.serve(request, lambda told: None) == {case_named(CELLS[0]).name: pytest.approx(2e-3)}
