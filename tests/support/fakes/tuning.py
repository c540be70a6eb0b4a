"""`opbench tune` on a GPU that is not there: a worker and compilers that answer from a formula.

PYTHONPATH=tests python -m support.fakes.tuning FOLDER: a search that goes on until it is killed; with "all" it
tries all at once, and its finals go on until it is killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opbench.backend.environment import Environment
from opbench.checking.checking import CheckResult
from opbench.checking.measuring import MeasureResult
from opbench.checking.racing import RaceResult
from opbench.errors import LaunchError
from opbench.gpu.compile.fitting import CompiledCase, GpuTarget
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.results.files import Run
from opbench.results.result import Verdict
from opbench.results.tuning import Tuning
from opbench.running import runner
from opbench.running.protocol import CaseStarted, CheckCase, MeasureCases, ModuleBuilt, PackedCase, RaceCases, unpack
from opbench.running.targets import own_variants
from opbench.timing.racing import race
from opbench.timing.sampling import measure
from opbench.tuning import tune as tuning
from opbench.tuning.options import TuneOptions
from support.common import CATALOG
from support.fakes.worker import FakeClock, FakeWorker

KERNEL = """// /// opbench
// operator = "relu"
// tune     = { BLOCK = { from = 32, to = 1024, step = 32 }, ITEMS = { from = 1, to = 18, step = 1 } }
// where    = ["BLOCK % 64 == 0 or ITEMS > 1"]
// launch   = [{ kernel = "relu", grid = ["cdiv(n, BLOCK * ITEMS)"], block = ["BLOCK"] }]
// ///
extern "C" __global__ void relu(const float* x, float* out, int n) {
    for (int k = 0; k < ITEMS; ++k) {
        const int i = (blockIdx.x * ITEMS + k) * BLOCK + threadIdx.x;
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
    }
}
"""


def seconds(config: dict[str, int]) -> float:
    """The best is BLOCK=256, ITEMS=8."""
    return 1e-4 * (1 + abs(config["BLOCK"] - 256) / 512 + abs(config["ITEMS"] - 8) / 16)


def watts(config: dict[str, int]) -> float:
    """Fewer items a thread take less power: ITEMS=6 costs the fewest joules."""
    return 400.0 + 100.0 * max(0, config["ITEMS"] - 6)


class TuningWorker(FakeWorker):
    """Races by the formula; ITEMS = 5 is wrong, ITEMS = 13 kills its process."""

    pause_s = check_s = 0.0
    counted = True

    def start(self) -> Environment:
        return Environment(gpu=self.gpu, energy_counted=self.counted, compute_capability="9.0", sm_count=132)

    def end(self) -> None:
        """Nothing to end."""

    def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        time.sleep(self.pause_s)
        catalog = Catalog(self.opening.roots)
        if isinstance(request, CheckCase):
            time.sleep(self.check_s)
            return CheckResult(Verdict(True), {}, None, "")
        cases = [unpack(catalog, packed) for packed in request.cases]
        if isinstance(request, RaceCases):
            cases += [unpack(catalog, request.leader)] if request.leader else []
            for case in cases:
                on_notification(CaseStarted(case.name))
                if case.config["ITEMS"] == 13:
                    raise LaunchError("an illegal address")
            wrong = {c.name: "wrong at out[0]" for c in cases if c.config["ITEMS"] == 5}
            times = {c.name: seconds(c.config) for c in cases if c.name not in wrong}
            clock = FakeClock(times)

            config_of = {c.name: c.config for c in cases}

            def sample(name: str) -> float:
                clock.key = name
                found_s = clock.sample(lambda: None).seconds
                return found_s * watts(config_of[name]) if request.energy else found_s

            return RaceResult(race(sample, list(times), request.options), wrong, {})
        if isinstance(request, MeasureCases):
            clock = FakeClock({c.name: seconds(c.config) for c in cases})
            ticks = iter(range(10**9))
            found = measure(
                clock,
                {c.name: lambda: None for c in cases},
                request.timing,
                on_start=lambda key: setattr(clock, "key", key),
                now_s=lambda: next(ticks) * 1e-3,
            )
            return MeasureResult(found, {})
        for index in range(len(cases)):
            on_notification(ModuleBuilt([index]))
        return None


class TuningCompilers:
    """BLOCK = 1024 takes too many registers; ITEMS = 17 does not compile; ITEMS = 3 is the code of ITEMS = 2.

    ITEMS = 16 takes too long to compile.
    """

    def __init__(self, roots: tuple[Path, ...], folder: Path, limit_s: float) -> None:
        self.limit_s = limit_s
        self.waiting: list[tuple[int, CompiledCase]] = []

    def begin(self, number: int, packed: PackedCase, target: GpuTarget) -> None:
        assert target.limits is not None and target.limits.sm_count == 132
        block, items = packed.config["BLOCK"], packed.config["ITEMS"]
        self.waiting.append(
            (
                number,
                CompiledCase(
                    compile_error="ranges.cu:9: no" if items == 17 else "",
                    timeout_message=f"not compiled within {self.limit_s:g} s" if items == 16 else "",
                    launch_obstacle="a block of 1024 threads" if block == 1024 else "",
                    identity=f"{block} {2 if items == 3 else items}",
                    registers=40,
                ),
            )
        )

    def done(self, wait_s: float) -> list[tuple[int, CompiledCase]]:
        found, self.waiting = self.waiting, []
        return found

    def close(self) -> None:
        """Nothing to close."""


def tune_fake(
    folder: Path, patch: Callable[[object, str, object], None] = setattr, **options: Any
) -> tuple[Tuning, Run | None]:
    """Search the kernel's thousand configs on the fake GPU."""
    path = folder / "ranges.cu"
    if not path.exists():
        path.write_text(KERNEL)
    patch(tuning, "Worker", TuningWorker)
    patch(runner, "Worker", TuningWorker)
    patch(tuning, "Compilers", TuningCompilers)
    variant: Variant = own_variants(path, CATALOG)[0]
    problem = CATALOG.operator("relu").parse("(n=67108864)")
    return tuning.tune(variant, problem, TuneOptions(folder / "out", **options))


if __name__ == "__main__":
    if sys.argv[2:] == ["all"]:
        TuningWorker.check_s = 1.0
    else:
        TuningWorker.pause_s = 0.02
    tune_fake(Path(sys.argv[1]), budget_s=600)
