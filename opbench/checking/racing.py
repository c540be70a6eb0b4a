"""Find the fastest case of a problem: check each once, then time it until it is clearly slower than the leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opbench.backend.base import DeviceClock
from opbench.checking.checking import Session
from opbench.checking.contents import JUDGED_INPUT_KINDS
from opbench.checking.launch_sources import CaseLaunches
from opbench.checking.measuring import TimedCases, timed_cases
from opbench.errors import CompileError, EnvironmentFault, LaunchError, UsageError
from opbench.kernels.case import Case
from opbench.timing.energy import EnergyMeter
from opbench.timing.racing import RaceOptions, RaceSamples, race


@dataclass(frozen=True)
class RaceResult:
    """The outcome of each case in a race, by name."""

    samples_by_case: dict[str, RaceSamples]
    wrong_cases: dict[str, str]
    failed_cases: dict[str, str]


def measure_in_rounds(
    session: Session,
    cases: Sequence[Case],
    leader: Case | None,
    options: RaceOptions,
    clock: DeviceClock,
    limit_s: float,
    on_start: Callable[[str], None] = lambda name: None,
    now_s: Callable[[], float] = time.perf_counter,
    energy: bool = False,
    mode: str = "cold",
) -> RaceResult:
    """Judge one launch of each case, then measure the right ones and the leader in rounds, for at most `limit_s`.

    They compete in time or, with `energy`, in joules, under the rules of `measure_cases`: a case (also the
    leader) that is wrong in a judged sample or keeps state between launches is in `wrong_cases`. One run is not a
    full check, so the caller must check the winner. Raises LaunchError if a case crashed the device; `on_start`
    was last called with its name.
    """
    start_s = now_s()
    wrong_cases: dict[str, str] = {}
    failed_cases: dict[str, str] = {}
    for case in cases:
        on_start(case.name)
        try:
            reason = _checked_case(session, case)
        except (CompileError, UsageError) as error:
            failed_cases[case.name] = str(error)
            continue
        if reason:
            wrong_cases[case.name] = reason
    right = [case for case in cases if case.name not in wrong_cases and case.name not in failed_cases]
    meter = EnergyMeter(clock, now_s=now_s) if energy else None
    while right:
        racing = [*right, *([leader] if leader and leader.name not in wrong_cases else [])]
        with timed_cases(session, racing, mode, clock, on_start) as timing:

            def time_sample(name: str, timing: TimedCases = timing) -> float:
                on_start(name)
                if meter:
                    return _energy_per_launch(meter, timing.case_launches[name])
                turns = timing.launch_sources[name]
                time_s = clock.sample(turns.next_launch()).seconds
                turns.after_sample()
                return time_s

            def is_over(timing: TimedCases = timing) -> bool:
                return now_s() - start_s > limit_s or bool(timing.faults)

            race_samples = race(time_sample, list(timing.timed), options, is_over)
            for name in (name for name, samples in race_samples.items() if samples.stop != "slower"):
                _judge_on_all_inputs(timing, name, on_start)
            excluded = timing.invalid_cases | timing.invalid_times() | timing.faults
        if not excluded:
            return RaceResult(race_samples, wrong_cases, failed_cases)
        wrong_cases |= excluded  # the others race again, because an invalid case may have been their leader
        right = [case for case in right if case.name not in excluded]
    return RaceResult({}, wrong_cases, failed_cases)


def _judge_on_all_inputs(timing: TimedCases, name: str, on_start: Callable[[str], None]) -> None:
    """Judge a possible winner on every kind of inputs that has a reference; a short race judges only one kind."""
    on_start(name)
    launch_source, judge = timing.launch_sources[name], timing.judges[name]
    for _ in JUDGED_INPUT_KINDS:
        judge.judge_next()
        launch_source.next_launch()()
        launch_source.after_sample()


def _energy_per_launch(meter: EnergyMeter, case_launches: CaseLaunches) -> float:
    """Return the mean energy in joules of one launch among many, each on other inputs than the one before."""
    case_launches.next_launch()  # renews outputs and workspaces
    energy_j = meter.joules(case_launches.launch_on_next_inputs)
    case_launches.after_sample()
    return energy_j


def _checked_case(session: Session, case: Case) -> str:
    """Return the fault of a case in one run on normals; "" if it was right and changed no other memory."""
    try:
        bound_case = session.bind(case, session.prepare(case.problem))
    except EnvironmentFault as error:
        raise LaunchError(error.message, error.location, cause=error) from error
    try:
        outcome = session.run(bound_case, "normal")
    finally:
        if bound_case.workspace:
            session.backend.free(bound_case.workspace)
    if outcome.damaged:
        session.release()
    return "" if outcome.verdict.right else outcome.verdict.reason
