"""Other clocks' records are read right, and what the self-test launches is launched."""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opbench.errors import EnvironmentFault, LaunchError
from opbench.gpu.driver import CudaBackend
from opbench.selftest import reference_timers
from opbench.timing.clock import Sample
from support.checks.errors import refuses
from support.fakes.bench import summary

OWN = ["fill", "drain", "stamp", "hold", "stamp"]


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
        assert requested() == (reference_timers.BUFFER_BYTES, 0)
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

    def launch_empty_kernel(self) -> None:
        self.cupti.kernel("nothing")

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
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
    found = reference_timers.cupti_times(RecordedClock(cupti), launches, samples=5)
    assert found == {"drain": pytest.approx([7e-6] * 5), "two": pytest.approx([3.05e-6] * 5)}
    assert not cupti.enabled


def test_dropped_records_and_a_refusal_are_said(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("lost-kernels", value=0, allowed=3, error=EnvironmentFault):
        reference_timers.kernel_times([], 3, 5, 4)
    with refuses("other-kernels", error=EnvironmentFault):
        reference_timers.launch_position(["fill", "drain"], ["hold"])

    def refuse(kind: int) -> None:
        raise cupti.cuptiError("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setattr(cupti, "activity_enable", refuse)
    with refuses("cupti", error=EnvironmentFault):
        reference_timers.cupti_times(RecordedClock(cupti), {})


def test_nvbench_json_is_read_by_cell() -> None:
    def state(cell: str, *summaries: dict[str, Any]) -> dict[str, Any]:
        return {"axis_values": [{"name": "Cell", "type": "int64", "value": cell}], "summaries": list(summaries)}

    mean, median = summary("nv/cold/time/gpu/mean", "2e-06"), summary("nv/cold/time/gpu/median", "1e-06")
    states = [state("1", mean), state("0", mean, median), {**state("2"), "is_skipped": True, "summaries": None}]
    assert reference_timers.read_bench({"benchmarks": [{"states": states}]}) == {1: 2e-6, 0: 1e-6}


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
    assert reference_timers.bench_times(0x5EED, launches) == {"a": [1e-6], "b": [2e-6]}
    assert launched == ["(0, 24301)", "a", "(0, 24301)", "b"]


def test_nothing_is_asked_of_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    with refuses("missing-package", "cupti-python", error=EnvironmentFault):
        reference_timers.cupti_times(None, {})
    monkeypatch.setitem(sys.modules, "cuda", None)
    with refuses("missing-package", "cuda-bench", error=EnvironmentFault):
        reference_timers.bench_times(0, {})


def test_what_the_self_test_launches_is_launched(backend: CudaBackend) -> None:
    from opbench import selftest

    flushed = selftest.check_flush(backend, 0.1)  # type: ignore[arg-type]
    for seen in flushed.figures.values():  # events of the fake take a millisecond, and every launch another one
        one = 2e-3 - backend.clock().timing_offset_s()
        assert seen == pytest.approx({"cold_s": one, "second_pass_s": 1e-3, "hot_s": one})
    clock, memory = backend.clock(), selftest.untouched(backend)  # type: ignore[arg-type]
    assert memory is not clock
    for launch in (selftest.Cell("read", 256, "r").launch(memory), clock.cycles(1000), clock.spin(1e-3)):
        for mode in ("cold", "dirty", "hot", "graph"):
            sample = backend.clock(mode).sample(launch)
            assert sample.stream_held and sample.seconds > 0
    with refuses("clock-times-nothing", error=LaunchError):
        selftest.check_stamps(backend, 0.1)  # type: ignore[arg-type]
