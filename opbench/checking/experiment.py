"""Time a case with knock-outs: edited machine code that lacks some instructions, to find what limits a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opbench.backend.base import Backend, CubinBackend, DeviceClock
from opbench.checking.checking import BoundCase, Session
from opbench.checking.contents import InputSets, load_contents
from opbench.checking.launch_sources import CaseLaunches, SampleJudge
from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.kernels.case import Case
from opbench.results.experiment import ORIGINAL
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure

CHECK_LAUNCHES = 2
"""Launches of each knock-out on each content of the inputs before it is timed."""


@dataclass(frozen=True)
class KnockOutTimes:
    """The times of a case with each knock-out, by name; empty for a run without a clock."""

    measurements: dict[str, Measurement]


def time_cubins(
    session: Session,
    case: Case,
    cubins: Mapping[str, Path],
    options: TimingOptions,
    clock: DeviceClock | None,
    on_start: Callable[[str], None] = lambda name: None,
    on_sample: Callable[[str, float], None] = lambda name, seconds: None,
) -> KnockOutTimes:
    """Launch a case with each edited cubin in place of its own code, and time the launches if there is a clock.

    Inputs rotate and outputs are poisoned as in `measure_cases`. Outputs are not judged, because knock-outs
    compute wrong ones. The original case must be right before and after all launches: then none of them wrote
    elsewhere. Raises UsageError if the case is wrong, and LaunchError for a knock-out that faults; `on_start`
    was last called with its name.
    """
    backend = session.backend
    if not isinstance(backend, CubinBackend):
        raise UsageError(
            f"the {backend.name} backend has no clock; experiments run on cuda",
            kind="needs-gpu",
            subject="--experiment",
            value=backend.name,
            allowed="cuda",
        )
    prepared = session.prepare(case.problem)
    prepared.load("normal", verify=True)
    contents = InputSets({})
    ready = None
    try:
        ready = session.bind(case, prepared)
        if ORIGINAL in cubins:
            _require_right(session, ready, "before")
            prepared.load("normal", verify=True)
        contents = load_contents(backend, prepared)
        turns = {name: _bind_cubin(session, ready, contents, cubin) for name, cubin in cubins.items()}
        for name, own in turns.items():
            on_start(name)
            for _ in range(CHECK_LAUNCHES * len(contents.sets)):
                own.next_launch()()
                backend.synchronize()
        if clock is None:
            return KnockOutTimes({})
        launches = {name: next(iter(own.launches.values())) for name, own in turns.items()}
        times = measure(clock, launches, options, on_start=on_start, on_sample=on_sample, turns=turns)
        on_start("")
        _require_right(session, ready, "after")
        return KnockOutTimes(times)
    except EnvironmentFault as error:
        raise LaunchError(error.message, error.location, cause=error) from error
    finally:
        _free(backend, contents, ready)


def _free(backend: Backend, contents: InputSets, ready: BoundCase | None) -> None:
    """Free the memory; ignore errors after a fault, because the process ends and reports its first error."""
    try:
        contents.free(backend)
        if ready is not None:
            backend.free(ready.workspace)
    except OpbenchError:
        return


def _bind_cubin(session: Session, ready: BoundCase, contents: InputSets, cubin: Path) -> CaseLaunches:
    """Bind a cubin to the inputs of every content."""
    assert isinstance(session.backend, CubinBackend)
    program = session.backend.load_cubin(cubin, ready.case.request())
    launches = {
        kind: program.bind(ready.binding.launches, {**ready.buffers, **inputs})
        for kind, inputs in contents.sets.items()
    }
    chance = ready.prepared.chance(f"knock-outs of {ready.case.name}")
    judge = SampleJudge(session, ready, chance, active=False)
    return CaseLaunches(ready, contents.sets, launches, judge, chance)


def _require_right(session: Session, ready: BoundCase, when: str) -> None:
    """Raise UsageError if the case is wrong; `when` is the point in time for the message."""
    changed = [t.name for t in ready.case.problem.input_tensors() if ready.prepared.changed(t.name)]
    verdict = session.run(ready, "normal").verdict
    if verdict.right and not changed:
        return
    if when == "before":
        raise UsageError(
            f"{ready.case.name}: {verdict.reason}; an experiment needs a kernel whose results are right; "
            "find out what is wrong with: opbench check",
            kind="not-right",
            subject=ready.case.name,
            value=verdict.reason,
        )
    raise LaunchError(
        f"{ready.case.name}: a knock-out wrote elsewhere: {verdict.reason or f'input {changed[0]} changed'}",
        kind="wrote-elsewhere",
        subject=ready.case.name,
        value=verdict.reason or changed[0],
    )
