"""Time the right cases of one problem in turn, and check that they are still right while timed and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from opbench.backend.base import Buffer, DeviceClock
from opbench.backend.findings import headline
from opbench.checking.binding import BoundCase, bind, rebind
from opbench.checking.checking import Session
from opbench.checking.contents import TIMED_INPUT_KINDS, InputSets, load_input_sets
from opbench.checking.expected import PreparedProblem
from opbench.checking.launch_sources import CaseLaunches, GraphLaunches, SampleJudge
from opbench.checking.module_state import ModuleState
from opbench.checking.outputs import MAX_INTEGER_RUN_BYTES, judge_outputs
from opbench.checking.rotation import Rotation, rotate_buffers
from opbench.errors import EnvironmentFault, LaunchError
from opbench.kernels.case import Case
from opbench.timing.clock import Launch, LaunchSource
from opbench.timing.measurement import Measurement, TimingWarning
from opbench.timing.sampling import TimingOptions, measure

RELAUNCH_COUNT = 12
"""Number of launches of a case without a clock, of which three are judged."""
POISONED_ELEMENTS = 64
"""Number of output elements that are poisoned before a launch over the case's own earlier output."""


@dataclass(frozen=True)
class MeasureResult:
    """The measurements, and the faults of cases that were wrong while or after they were timed, by name of case."""

    measurements: dict[str, Measurement]
    wrong_cases: dict[str, str]
    invalid_cases: dict[str, str] = field(default_factory=dict)
    """Reasons why right cases have no time."""


@dataclass
class TimedCases:
    """The buffers, launches and judges that are needed to time one problem's cases."""

    prepared: PreparedProblem
    input_sets: InputSets = field(default_factory=lambda: InputSets({}))
    rotation: Rotation = field(default_factory=Rotation)
    bound_cases: dict[str, BoundCase] = field(default_factory=dict)
    case_launches: dict[str, CaseLaunches] = field(default_factory=dict)
    graph_launches: dict[str, GraphLaunches] = field(default_factory=dict)
    state: dict[str, ModuleState] = field(default_factory=dict)
    invalid_cases: dict[str, str] = field(default_factory=dict)
    """Reasons why cases get no time."""

    @property
    def timed(self) -> dict[str, BoundCase]:
        """Return the bound cases to time, by name."""
        return {name: bound_case for name, bound_case in self.bound_cases.items() if name not in self.invalid_cases}

    @property
    def launch_sources(self) -> dict[str, LaunchSource]:
        """Return, for each case, the object that poisons its buffers before a sample."""
        return {**self.case_launches, **self.graph_launches}

    @property
    def judges(self) -> dict[str, SampleJudge]:
        """Return, for each case, the judge of its samples."""
        own = {name: case_launches.judge for name, case_launches in self.case_launches.items()}
        return {**own, **{name: case_launches.judge for name, case_launches in self.graph_launches.items()}}

    @property
    def faults(self) -> dict[str, str]:
        """Return the first fault in the judged samples of each case."""
        return {name: judge.fault for name, judge in self.judges.items() if judge.fault}

    def invalid_times(self) -> dict[str, str]:
        """Return, by name of case, why a time is invalid: the case changed module variables while it was timed."""
        return {name: reason for name in self.timed if (reason := self.state[name].change_while_timed())}

    @property
    def launches(self) -> list[Launch]:
        """Return all launches for which a clock may hold a CUDA graph."""
        own = [launch for case_launches in self.case_launches.values() for launch in case_launches.launches.values()]
        return [*own, *self.rotation.launches.values()]

    def with_actual_mode(self, name: str, measurement: Measurement) -> Measurement:
        """Return a measurement with the mode that was really used, and a warning if too few sets of inputs fit."""
        has_few_inputs = name not in self.graph_launches and len(self.input_sets.sets) < len(TIMED_INPUT_KINDS)
        warnings = (*measurement.warnings, TimingWarning.FEW_CONTENTS) if has_few_inputs else measurement.warnings
        return replace(measurement, mode=self.rotation.mode_by_case.get(name, measurement.mode), warnings=warnings)


def measure_cases(
    session: Session,
    cases: Sequence[Case],
    options: TimingOptions,
    clock: DeviceClock,
    on_start: Callable[[str], None] = lambda name: None,
    on_sample: Callable[[str, float], None] = lambda name, seconds: None,
    check_again: bool = True,
    prepared_cases: Collection[str] = (),
) -> MeasureResult:
    """Measure right cases of one problem, interleaved, and judge some of the samples.

    Inputs differ from sample to sample; outputs and workspaces are poisoned before each. With `check_again`, outputs
    are also checked after the last sample, on new inputs and in other buffers. The setup launches of `prepared_cases`
    run before each sample and are not part of its time, except in a CUDA graph over several buffer sets.
    """
    with timed_cases(
        session, cases, options.mode, clock, on_start, judged=check_again, prepared_cases=prepared_cases
    ) as timing:
        launches = {name: bound_case.binding.launch for name, bound_case in timing.timed.items()}
        measured = measure(
            clock, launches, options, on_sample=on_sample, on_start=on_start, launch_sources=timing.launch_sources
        )
        return _split_by_faults(session, timing, measured, {}, check_again, on_start)


def relaunch_cases(
    session: Session, cases: Sequence[Case], on_start: Callable[[str], None] = lambda name: None
) -> MeasureResult:
    """Launch right cases again as `measure_cases` does, on a backend that cannot time.

    The result has no measurements. A finding in these launches makes a case wrong.
    """
    with timed_cases(session, cases, "cold", None, on_start) as timing:
        findings: dict[str, str] = {}
        for name in timing.timed:
            on_start(name)
            case_launches = timing.case_launches[name]
            for _ in range(RELAUNCH_COUNT):
                case_launches.next_launch()()
                if errors := [finding for finding in session.backend.synchronize() if not finding.hint]:
                    findings[name] = headline(errors[0])
                    break
                case_launches.after_sample()
        return _split_by_faults(session, timing, {}, findings, True, on_start)


def _split_by_faults(
    session: Session,
    timing: TimedCases,
    measurements: Mapping[str, Measurement],
    findings: Mapping[str, str],
    check_again: bool,
    on_start: Callable[[str], None],
) -> MeasureResult:
    """Split the cases after timing: return the measurements of cases without a fault, and the faults of the others."""
    invalid_cases = timing.invalid_cases | timing.invalid_times()
    valid_measurements = {
        name: timing.with_actual_mode(name, m) for name, m in measurements.items() if name not in invalid_cases
    }
    wrong_cases = {**timing.faults, **findings}
    if check_again:
        cases_to_check = {
            name: bound_case
            for name, bound_case in timing.timed.items()
            if name not in {**wrong_cases, **invalid_cases}
        }
        wrong_cases |= _check_again(session, timing.prepared, cases_to_check, timing.input_sets, on_start)
    return MeasureResult(
        valid_measurements,
        wrong_cases,
        {name: reason for name, reason in invalid_cases.items() if name not in wrong_cases},
    )


@contextmanager
def timed_cases(
    session: Session,
    cases: Sequence[Case],
    mode: str,
    clock: DeviceClock | None,
    on_start: Callable[[str], None] = lambda name: None,
    judged: bool = True,
    prepared_cases: Collection[str] = (),
) -> Iterator[TimedCases]:
    """Bind right cases of one problem for timing: inputs rotate, outputs are poisoned, some samples are judged.

    All code that times cases uses this function. Cases that keep state between launches are in `invalid_cases`.
    Without a clock, cases run in the build in which they were checked. The setup launches of `prepared_cases` run
    before each sample.
    """
    timing = TimedCases(session.prepare(cases[0].problem))
    timing.prepared.load("normal", verify=True)
    try:
        timing.input_sets = load_input_sets(session.backend, timing.prepared)
        for case in cases:
            on_start(case.name)
            traced = clock is None and session.is_traced(case)
            timing.bound_cases[case.name] = session.bind(case, timing.prepared, traced)
            _bind_to_inputs(session, timing, case, judged, prepared=case.name in prepared_cases)
        timing.invalid_cases = _untimable_cases(timing, on_start)
        if mode == "graph" and timing.timed:
            _bind_rotating_buffers(session, timing, judged)
        yield timing
    except EnvironmentFault as error:
        # A workspace that does not fit fails its case, not the run.
        raise LaunchError(error.message, error.location, cause=error) from error
    finally:
        if clock and mode == "graph":
            for launch in timing.launches:
                clock.forget(launch)
        session.backend.free(timing.rotation.arenas)
        timing.input_sets.free(session.backend)
        for state in timing.state.values():
            state.free()
        for prepared in timing.bound_cases.values():
            session.backend.free(prepared.workspace)


def _bind_to_inputs(session: Session, timing: TimedCases, case: Case, judged: bool, prepared: bool) -> None:
    """Bind a case to the inputs of every kind, and add its launches and its module state to `timing`."""
    bound_case = timing.bound_cases[case.name]
    parts = {"timed": bound_case.binding}
    if prepared:
        parts = {
            name: bind(session.backend, case, bound_case.buffers, session.sm_count, setup=name == "setup")
            for name in ("timed", "setup")
        }
    launches = {name: {TIMED_INPUT_KINDS[0]: part.launch} for name, part in parts.items()}
    for kind, inputs in timing.input_sets.sets.items():
        if kind != TIMED_INPUT_KINDS[0]:
            buffers = {**bound_case.buffers, **inputs}
            for name, part in parts.items():
                launches[name][kind] = rebind(session.backend, case, part, buffers)
    rng = timing.prepared.rng(f"samples of {case.name}")
    judge = SampleJudge(session, bound_case, rng, judged)
    case_launches = CaseLaunches(
        bound_case, timing.input_sets.sets, launches["timed"], judge, rng, launches.get("setup")
    )
    timing.case_launches[case.name] = case_launches
    timing.state[case.name] = ModuleState(session, bound_case, case_launches, judged)


def _untimable_cases(timing: TimedCases, on_start: Callable[[str], None]) -> dict[str, str]:
    """Return, by name of case, why it cannot be timed."""
    invalid_cases: dict[str, str] = {}
    for name, state in timing.state.items():
        on_start(name)
        if reason := state.untimable_reason():
            invalid_cases[name] = reason
    return invalid_cases


def _bind_rotating_buffers(session: Session, timing: TimedCases, judged: bool) -> None:
    """Bind every case to so many sets of buffers that a CUDA graph of its launches runs with a cold L2."""

    timed_cases = timing.timed

    def bind_to(case: Case, buffers: Mapping[str, Buffer]) -> Launch:
        return rebind(session.backend, case, timed_cases[case.name].binding, buffers)

    workspaces = {name: measurement.workspace for name, measurement in timed_cases.items()}
    cases = [measurement.case for measurement in timed_cases.values()]
    own_buffers = timing.prepared.buffers
    timing.rotation = rotate_buffers(session.backend, cases, own_buffers, workspaces, timing.input_sets.sets, bind_to)
    for name, graph_launch in timing.rotation.launches.items():
        updated = bool(timed_cases[name].case.updates)  # such an output must contain the input's values, not poison
        poisoned = [] if updated else timing.rotation.buffers_to_poison[name]
        rng = timing.prepared.rng(f"graph of {name}")
        judge = SampleJudge(session, timed_cases[name], rng, judged and not updated)
        timing.graph_launches[name] = GraphLaunches(graph_launch, timing.rotation.outputs, poisoned, judge, rng)


def _check_again(
    session: Session,
    prepared: PreparedProblem,
    timed_cases: Mapping[str, BoundCase],
    input_sets: InputSets,
    on_start: Callable[[str], None],
) -> dict[str, str]:
    """Check timed cases on new inputs in the same buffers, then in other buffers; return the faults by name.

    The first check finds outputs that are cached and returned again, or work that stops after some launches.
    The second also finds a dependence on addresses. In between, each case runs once while most of its output
    holds its own old results.
    """
    wrong_cases: dict[str, str] = {}
    prepared.device_inputs = {kind: inputs for kind, inputs in input_sets.sets.items() if kind == "again"}
    for name, timed_case in timed_cases.items():
        on_start(name)
        outcome = session.run(timed_case, "again")
        if not outcome.verdict.right:
            wrong_cases[name] = f"correct before timing, wrong after timing, on new inputs: {outcome.verdict.reason}"
        if outcome.damaged:
            session.release()
            break  # the other cases are checked only in other buffers
        if outcome.verdict.right and (reason := _check_on_old_output(session, timed_case)):
            wrong_cases[name] = (
                f"correct before timing, wrong after timing, when the output was already mostly filled: {reason}"
            )
    prepared.device_inputs = {}
    input_sets.free(session.backend)
    if prepared.problem.bytes() > MAX_INTEGER_RUN_BYTES:
        return wrong_cases  # moving and checking hundreds of megabytes would take longer than the measurement
    moved_problem = session.move(prepared)
    for name in (n for n in timed_cases if n not in wrong_cases):
        on_start(name)
        rebound_case = session.bind(timed_cases[name].case, moved_problem)
        try:
            outcome = session.run(rebound_case, "again")
        finally:
            session.backend.free(rebound_case.workspace)
        if not outcome.verdict.right:
            wrong_cases[name] = f"correct before timing, wrong after timing, in other buffers: {outcome.verdict.reason}"
        if outcome.damaged:
            moved_problem = session.move(moved_problem)
    return wrong_cases


def _check_on_old_output(session: Session, bound_case: BoundCase) -> str:
    """Launch a right case while its output holds old results and a few poisoned elements; return the fault, or "".

    This finds a kernel that skips the work if some elements of the old output, or a mark in a workspace, are
    present.
    """
    if bound_case.case.updates:
        return ""  # the old output is an input of such a case
    rng = bound_case.prepared.rng(f"holes of {bound_case.case.name}")
    for tensor in bound_case.case.problem.output_tensors():
        width = tensor.nbytes // tensor.elements
        for _ in range(POISONED_ELEMENTS):
            bound_case.buffers[tensor.name].poison_part(width * rng.randrange(tensor.elements), width)
    bound_case.binding.launch()
    session.backend.synchronize()
    return judge_outputs(session.backend, bound_case, "again", bound_case.buffers)
