"""Time a case with knock-outs: edited machine code that lacks some instructions, to find what limits a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opbench.backend.base import Backend, CubinBackend, DeviceClock
from opbench.checking.binding import BoundCase
from opbench.checking.checking import Session
from opbench.checking.contents import InputSets, load_input_sets
from opbench.checking.launch_sources import CaseLaunches, SampleJudge
from opbench.errors import EnvironmentFault, LaunchError, OpbenchError, UsageError
from opbench.kernels.case import Case
from opbench.paths import next_command
from opbench.results.experiment import ORIGINAL
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure

CHECK_LAUNCHES = 2
"""Launches of each knock-out on each set of inputs before it is timed."""


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
    judged: bool = False,
) -> KnockOutTimes:
    """Launch a case with each edited cubin in place of its own code, and time the launches if there is a clock.

    Inputs rotate and outputs are poisoned as in `measure_cases`. Outputs are not judged, because most knock-outs
    compute wrong ones; with `judged`, some outputs are judged before the launches are timed. The original
    case must be right before and after all launches: then none of them wrote elsewhere. Raises UsageError if the case
    is wrong, and LaunchError for a knock-out that faults; `on_start` was last called with its name.
    """
    backend = session.backend
    if not isinstance(backend, CubinBackend):
        raise UsageError(
            f"the {backend.name} backend measures no time; run the experiment on a GPU with --backend cuda",
            kind="needs-gpu",
            subject="--experiment",
            value=backend.name,
            allowed="cuda",
        )
    prepared = session.prepare(case.problem)
    prepared.load("normal", verify=True)
    input_sets = InputSets({})
    bound_case = None
    try:
        bound_case = session.bind(case, prepared)
        if ORIGINAL in cubins:
            _require_right(session, bound_case, "before")
            prepared.load("normal", verify=True)
        input_sets = load_input_sets(backend, prepared)
        launches_by_name = {
            name: _bind_cubin(session, bound_case, input_sets, cubin, judged) for name, cubin in cubins.items()
        }
        for name, case_launches in launches_by_name.items():
            on_start(name)
            if judged:  # the judge chooses a launch at random, which may come after the few launches here
                case_launches.judge.judge_next()
            for _ in range(CHECK_LAUNCHES * len(input_sets.sets)):
                case_launches.next_launch()()
                backend.synchronize()
                case_launches.after_sample()
            if case_launches.judge.fault:
                raise LaunchError(
                    f"{case.name}: without {name}, the kernel is {case_launches.judge.fault}; opbench does not time it",
                    kind="wrong-results",
                    subject=case.name,
                    value=name,
                )
        if clock is None:
            return KnockOutTimes({})
        first_launches = {
            name: next(iter(case_launches.launches.values())) for name, case_launches in launches_by_name.items()
        }
        measurements = measure(
            clock, first_launches, options, on_start=on_start, on_sample=on_sample, launch_sources=launches_by_name
        )
        on_start("")
        _require_right(session, bound_case, "after")
        return KnockOutTimes(measurements)
    except EnvironmentFault as error:
        raise LaunchError(error.message, error.location, cause=error) from error
    finally:
        _free(backend, input_sets, bound_case)


def _free(backend: Backend, input_sets: InputSets, bound_case: BoundCase | None) -> None:
    """Free the memory; ignore errors after a fault, because the process ends and reports its first error."""
    try:
        input_sets.free(backend)
        if bound_case is not None:
            backend.free(bound_case.workspace)
    except OpbenchError:
        return


def _bind_cubin(
    session: Session, bound_case: BoundCase, input_sets: InputSets, cubin: Path, judged: bool
) -> CaseLaunches:
    """Bind a cubin to the inputs of every kind; `judged` says whether some of its outputs are judged."""
    assert isinstance(session.backend, CubinBackend)
    program = session.backend.load_cubin(cubin, bound_case.case.request())
    launches = {
        kind: program.bind(bound_case.binding.launches, {**bound_case.buffers, **inputs})
        for kind, inputs in input_sets.sets.items()
    }
    rng = bound_case.prepared.rng(f"knock-outs of {bound_case.case.name}")
    judge = SampleJudge(session, bound_case, rng, active=judged)
    return CaseLaunches(bound_case, input_sets.sets, launches, judge, rng)


def _require_right(session: Session, bound_case: BoundCase, when: str) -> None:
    """Raise UsageError if the case is wrong; `when` is the point in time for the message."""
    changed = [t.name for t in bound_case.case.problem.input_tensors() if bound_case.prepared.is_changed(t.name)]
    verdict = session.run(bound_case, "normal").verdict
    if verdict.right and not changed:
        return
    if when == "before":
        raise UsageError(
            f"{bound_case.case.name}: {verdict.reason}; an experiment needs a kernel with correct results; see what "
            f"is wrong with: {next_command('check', bound_case.case.name)}",
            kind="not-right",
            subject=bound_case.case.name,
            value=verdict.reason,
        )
    raise LaunchError(
        f"{bound_case.case.name}: the kernel without some instructions (a knock-out) wrote outside its outputs: "
        f"{verdict.reason or f'input {changed[0]} changed'}; this case allows no experiment, so choose another case",
        kind="wrote-elsewhere",
        subject=bound_case.case.name,
        value=verdict.reason or changed[0],
    )
