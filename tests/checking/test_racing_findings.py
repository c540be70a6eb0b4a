"""Cases raced on the cpu backend with a clock of numbers: looked at first, bound once, freed after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import Buffer
from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.checking.racing import measure_in_rounds
from opbench.emulator import CpuBackend
from opbench.kernels.case import Case
from opbench.kernels.folders import case_named
from opbench.running.targets import own_variants
from opbench.timing.clock import DeviceState, Sample
from opbench.timing.racing import RaceOptions
from support.common import CATALOG
from support.fakes.quiet_clock import QuietClock

KERNEL = """// /// opbench
// operator = "relu"
// tune     = { BLOCK = [32, 64, 96, 128], FAULT = [0, 1, 2] }
// launch   = [{ kernel = "relu", grid = ["cdiv(n, BLOCK)"], block = ["BLOCK"] }]
// ///
extern "C" __global__ void relu(const float* x, float* out, int n) {
    const int i = blockIdx.x * BLOCK + threadIdx.x;
#if FAULT == 1
    if (i < n) out[i] = x[i];
#elif FAULT == 2
    if (i < n) out[i] = nowhere(x[i]);
#else
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
#endif
}
"""


class Clock(QuietClock):
    """Launches for real; times by the order of who was started."""

    timer = "numbers"

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.at = times, ""
        self.gap_between_launches_s = 0.0

    def chain(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        return [1.0 for _ in launches]

    def forget(self, launch: Callable[[], None]) -> None:
        pass

    def started(self, name: str) -> None:
        self.at = name

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        launch()
        return Sample(self.times[self.at])


def test_wrong_ones_and_those_that_do_not_compile_are_named_and_the_others_race(tmp_path: Path) -> None:
    path = tmp_path / "faults.cu"
    path.write_text(KERNEL)
    variant = own_variants(path, CATALOG)[0]
    problem = CATALOG.operator("relu").parse("(n=1000)")

    def case(block: int, fault: int = 0) -> Case:
        return Case(variant, {"BLOCK": block, "FAULT": fault}, problem)

    leader, quick, slow, wrong, broken = case(32), case(64), case(128), case(96, 1), case(96, 2)
    clock = Clock({leader.name: 2.0, quick.name: 1.5, slow.name: 9.0})
    session = Session(open_backend("cpu"))
    found = measure_in_rounds(
        session, [wrong, quick, broken, slow], leader, RaceOptions(max_rounds=6), clock, 60.0, clock.started
    )
    assert found.samples_by_case.keys() == {leader.name, quick.name, slow.name}
    assert found.samples_by_case[quick.name].stop == "first" and len(found.samples_by_case[quick.name].samples) == 3
    assert found.samples_by_case[slow.name].samples == [9.0] and found.samples_by_case[slow.name].stop == "slower"
    assert "out[" in found.wrong_cases[wrong.name] and "nowhere" in found.failed_cases[broken.name]
    assert session.check(quick).verdict.right, "the session is as good as before"
    alone = measure_in_rounds(session, [wrong], leader, RaceOptions(), clock, 60.0)
    assert not alone.samples_by_case and alone.wrong_cases.keys() == {wrong.name}


RULES = """// /// opbench
// operator  = "relu"
// tune      = { KIND = [0, 1, 2] }
// workspace = { seen = "1" }
// launch    = [{ kernel = "relu", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "seen", "n"] }]
// ///
//
// KIND 1 is right on the content of the first check only. KIND 2 keeps in a variable which input it saw last.
__device__ float last[4];
extern "C" __global__ void relu(const float* x, float* out, float* seen, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i == 0) seen[0] = x[0];
#if KIND == 1
    if (x[0] != FIRST) return;
#elif KIND == 2
    const bool known = last[blockIdx.x] == x[blockIdx.x];
    __syncthreads();
    if (known) return;
    if (threadIdx.x == 0) last[blockIdx.x] = x[blockIdx.x];
#endif
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
"""


class Recorded(CpuBackend):
    """A backend that knows which memory of a name it gave out last."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, Buffer] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        self.last[name] = super().allocate(name, shape, dtype)
        return self.last[name]


class Looking(Clock):
    """A clock that looks for poison in an output and a workspace before a launch, and at what it read after."""

    def __init__(self, times: dict[str, float], backend: Recorded) -> None:
        super().__init__(times)
        self.backend, self.poisoned, self.firsts = backend, list[bool](), list[float]()

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        buffers = [self.backend.last[name] for name in ("out", "seen")]
        self.poisoned.append(all(bool(np.isnan(buffer.read()).all()) for buffer in buffers))
        sample = super().sample(launch, hold_stream)
        self.firsts.append(float(buffers[1].read()[0]))
        return sample


class Meter(QuietClock):
    """A clock of a device that takes 100 W, whose launches take 0.1 s."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        launch()
        self.now_s += 0.1
        return Sample(0.1)

    def device_state(self) -> DeviceState:
        return DeviceState(energy_j=100.0 * self.now_s)


def three_kinds(tmp_path: Path) -> list[Case]:
    """Return an honest case, one that recognises the checked content, and one that remembers its input."""
    problem = CATALOG.operator("relu").parse("(n=1000)")
    first = float(Session(open_backend("cpu")).prepare(problem).inputs("normal")["x"].reshape(-1)[0])
    path = tmp_path / "rules.cu"
    path.write_text(RULES.replace("FIRST", f"{first!r}f"))
    variant = own_variants(path, CATALOG)[0]
    return [Case(variant, {"KIND": kind}, problem) for kind in range(3)]


def test_inputs_rotate_and_outputs_are_poisoned_before_each_sample_of_a_race(tmp_path: Path) -> None:
    honest = three_kinds(tmp_path)[0]
    backend = Recorded()
    clock = Looking({honest.name: 1.0}, backend)
    found = measure_in_rounds(
        Session(backend),
        [honest],
        None,
        RaceOptions(max_rounds=9, min_samples_for_interval=9),
        clock,
        60.0,
        clock.started,
    )
    assert len(found.samples_by_case[honest.name].samples) == 9 and len(clock.poisoned) == 10 and all(clock.poisoned)
    assert len(set(clock.firsts)) == 3 and all(len(set(clock.firsts[n : n + 7])) == 3 for n in range(4))


@pytest.mark.parametrize("mode", ["cold", "graph"])
def test_a_race_refuses_what_a_run_refuses(tmp_path: Path, mode: str) -> None:
    honest, recognises, keeps = three_kinds(tmp_path)
    session = Session(open_backend("cpu"))
    clock = Clock({honest.name: 3.0, recognises.name: 0.001, keeps.name: 0.002})
    found = measure_in_rounds(
        session, [honest, recognises, keeps], None, RaceOptions(), clock, 60.0, clock.started, mode=mode
    )
    assert found.samples_by_case.keys() == {honest.name} and len(found.samples_by_case[honest.name].samples) >= 3
    assert found.wrong_cases.keys() == {recognises.name, keeps.name} and not found.failed_cases
    assert "timed sample" in found.wrong_cases[recognises.name] and "'last'" in found.wrong_cases[keeps.name]
    led = measure_in_rounds(session, [honest], recognises, RaceOptions(), clock, 60.0, clock.started, mode=mode)
    assert led.samples_by_case.keys() == {honest.name} and led.wrong_cases.keys() == {recognises.name}, (
        "a leader is judged as well"
    )


def test_a_race_by_joules_judges_too(tmp_path: Path) -> None:
    honest, recognises, _ = three_kinds(tmp_path)
    session = Session(open_backend("cpu"))
    clock = Meter()
    found = measure_in_rounds(
        session,
        [honest, recognises],
        None,
        RaceOptions(max_rounds=6),
        clock,
        60.0,
        now_s=lambda: clock.now_s,
        energy=True,
        mode="hot",
    )
    assert found.samples_by_case.keys() == {honest.name} and found.wrong_cases.keys() == {recognises.name}


def test_a_verdict_says_why_whole_numbers_are_not_compared() -> None:
    checked = Session(open_backend("cpu"), traced_work=0).check(case_named("softmax/thread_per_row(rows=3,cols=5)"))
    assert checked.verdict.right and "rounded" in checked.verdict.integers
