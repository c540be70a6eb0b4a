"""Cases raced on the cpu backend with a clock of numbers: looked at first, bound once, freed after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quiet_clock import QuietClock

from opbench.backends import open_backend
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.runs.targets import own_variants
from opbench.session.checking import Session
from opbench.session.racing import race_cases
from opbench.timing.clock import Sample
from opbench.timing.racing import RaceOptions

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

    def started(self, name: str) -> None:
        self.at = name

    def sample(self, launch: Callable[[], None], hold: bool = True) -> Sample:
        launch()
        return Sample(self.times[self.at])


def test_wrong_ones_and_those_that_do_not_compile_are_named_and_the_others_race(tmp_path: Path) -> None:
    path = tmp_path / "faults.cu"
    path.write_text(KERNEL)
    variant = own_variants(path, Catalog())[0]
    problem = Catalog().operator("relu").parse("(n=1000)")

    def case(block: int, fault: int = 0) -> Case:
        return Case(variant, {"BLOCK": block, "FAULT": fault}, problem)

    leader, quick, slow, wrong, broken = case(32), case(64), case(128), case(96, 1), case(96, 2)
    clock = Clock({leader.name: 2.0, quick.name: 1.5, slow.name: 9.0})
    session = Session(open_backend("cpu"))
    found = race_cases(session, [wrong, quick, broken, slow], leader, RaceOptions(rounds=6), clock, 60.0, clock.started)
    assert found.raced.keys() == {leader.name, quick.name, slow.name}
    assert found.raced[quick.name].stop == "first" and len(found.raced[quick.name].samples) == 3
    assert found.raced[slow.name].samples == [9.0] and found.raced[slow.name].stop == "slower"
    assert "out[" in found.wrong[wrong.name] and "nowhere" in found.failed[broken.name]
    assert session.check(quick).verdict.right, "the session is as good as before"
    alone = race_cases(session, [wrong], leader, RaceOptions(), clock, 60.0)
    assert not alone.raced and alone.wrong.keys() == {wrong.name}
