"""A worker that answers from tables, as one on a GPU would."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opbench.backend.environment import Environment
from opbench.checking.checking import CheckResult
from opbench.checking.measuring import MeasureResult
from opbench.errors import LaunchError, Location, Reason
from opbench.gpu.limits.ceilings import Peaks
from opbench.kernels.folders import Catalog
from opbench.results.files import read_run
from opbench.results.result import Result, Verdict
from opbench.running.protocol import (
    BuildModules,
    CaseStarted,
    CaseUnsupported,
    CheckCase,
    MeasureCases,
    ModuleBuilt,
    SampleTaken,
    unpack,
)
from opbench.running.runner import RunSetup, run_suite
from opbench.running.suite import read_suite
from opbench.running.worker import Worker
from opbench.timing.clock import Sample
from opbench.timing.sampling import measure
from support.common import CATALOG
from support.fakes.quiet_clock import QuietClock


class FakeClock(QuietClock):
    """Time that passes as told."""

    def __init__(self, times: Mapping[str, float]) -> None:
        self.times, self.key, self.noise = times, "", random.Random(1)

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        """The time of whatever was launched."""
        launch()
        return Sample(self.times[self.key] * (1 + 1e-4 * self.noise.random()))

    def timing_offset_s(self) -> float | None:
        """A little less than a launch takes."""
        return 0.8e-6


class FakeWorker(Worker):
    """Answers as a worker on a GPU would, from tables."""

    wrong_after: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()

    times: Mapping[str, float] = {}
    deadly: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    gpu = "Fake GPU"
    asked: list[type] = []

    def start(self) -> Environment:
        """Nothing to start."""
        return Environment(gpu=self.gpu)

    def ask(self, request: Any, limit_s: float, on_notification: Any = None) -> Any:
        """One of the three requests."""
        FakeWorker.asked.append(type(request))
        catalog = Catalog(self.opening.roots)
        if isinstance(request, CheckCase):
            right = unpack(catalog, request.case).variant.name not in self.wrong
            return CheckResult(Verdict(right, "" if right else "wrong at out[0]"), {}, None, "")
        cases = [unpack(catalog, packed) for packed in request.cases]
        if isinstance(request, BuildModules):
            for index, case in enumerate(cases):
                if case.variant.name in self.broken:
                    on_notification(ModuleBuilt([index], Reason("no", Location(Path("broken.cu"), 1))))
                if case.variant.is_library:
                    on_notification(CaseUnsupported(index, Reason("no such library here")))
            return None
        assert isinstance(request, MeasureCases)
        clock = FakeClock({c.name: self.times[c.variant.name] for c in cases})

        def on_start(key: str) -> None:
            clock.key = key
            on_notification(CaseStarted(key))
            if re.split(r"[/\[(]", key)[1] in self.deadly:
                raise LaunchError("an illegal address")

        launches = {c.name: lambda: None for c in cases}
        ticks = iter(range(10**9))
        found = measure(
            clock,
            launches,
            request.timing,
            on_start=on_start,
            on_sample=lambda key, s: on_notification(SampleTaken(key, s)),
            now_s=lambda: next(ticks) * 1e-3,
        )
        late = {
            c.name: "correct before timing, wrong after timing" for c in cases if c.variant.name in self.wrong_after
        }
        refused = {c.name: "keeps state between launches" for c in cases if c.variant.name in self.refused}
        timed = {name: measured for name, measured in found.items() if name not in refused}
        return MeasureResult(timed, late if request.check_again else {}, refused)

    def stop(self) -> None:
        """Nothing to stop."""


def run_fake(folder: Path, ceilings: Peaks | None = None, **options: Any) -> dict[str, Result]:
    """Run relu's default configs on 2^26 elements on the fake GPU; results by variant."""
    text = '[timing]\nbudget_s = 0.05\n[[run]]\noperator = "relu"\nconfigs = "default"\nproblems = [{ n = 67108864 }]\n'
    (folder / "s.toml").write_text(text)
    suite = read_suite(folder / "s.toml", CATALOG, "cuda")
    find_ceilings = (lambda devices: [ceilings]) if ceilings else None
    run = run_suite(suite, RunSetup("cuda", folder / "out", **options), find_ceilings=find_ceilings)
    assert run == read_run(folder / "out"), "what is returned is what is on disk"
    return {r.variant: r for r in run.results}


PEAKS = Peaks("Fake GPU", dram_bytes_per_s=4e12, l2_bytes=60 << 20, fp32_flops_per_s=5e13)
