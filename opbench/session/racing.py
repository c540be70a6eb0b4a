"""Cases of one problem raced: each looked at quickly, then timed until it is slower than the leader beyond doubt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opbench.backends.base import Buffer
from opbench.catalog.case import Case
from opbench.errors import CompileError, EnvironmentFault, LaunchError, UsageError
from opbench.session.checking import Ready, Session
from opbench.timing.clock import Clock
from opbench.timing.energy import EnergyMeter
from opbench.timing.racing import Raced, RaceOptions, race


@dataclass(frozen=True)
class RacedCases:
    """What became of each case, by name."""

    raced: dict[str, Raced]
    wrong: dict[str, str]
    failed: dict[str, str]


def race_cases(
    session: Session,
    cases: Sequence[Case],
    leader: Case | None,
    options: RaceOptions,
    clock: Clock,
    limit_s: float,
    on_start: Callable[[str], None] = lambda name: None,
    now: Callable[[], float] = time.perf_counter,
    energy: bool = False,
) -> RacedCases:
    """Run each case once on normals and judge it, then race the right ones, and the leader, for `limit_s` at most.

    What they race for is time or, with `energy`, joules.

    One run is no check: what wins is to be checked in full. Raises LaunchError where a case took the device with it;
    `on_start` has named it then.
    """
    began = now()
    wrong: dict[str, str] = {}
    failed: dict[str, str] = {}
    for case in cases:
        on_start(case.name)
        try:
            reason = _looked_at(session, case)
        except (CompileError, UsageError) as error:
            failed[case.name] = str(error)
            continue
        if reason:
            wrong[case.name] = reason
    running = [case for case in cases if case.name not in wrong and case.name not in failed]
    if not running:
        return RacedCases({}, wrong, failed)
    ready: dict[str, Ready] = {}
    meter = EnergyMeter(clock, now=now) if energy else None
    try:
        prepared = session.prepare(running[0].problem)
        prepared.load("normal", verify=True)
        for case in [*running, *([leader] if leader else [])]:
            on_start(case.name)
            ready[case.name] = session.bind(case, prepared)

        def sample(name: str) -> float:
            on_start(name)
            launch = ready[name].binding.launch
            return meter.joules(launch) if meter else clock.sample(launch).seconds

        return RacedCases(race(sample, list(ready), options, lambda: now() - began > limit_s), wrong, failed)
    except EnvironmentFault as error:
        # A workspace that does not fit beside the others costs the case that asked for it, not the search.
        raise LaunchError(str(error)) from error
    finally:
        for each in ready.values():
            _free(session, each.workspace)


def _looked_at(session: Session, case: Case) -> str:
    """Why a case is wrong; empty where one run on normals was right and left all other memory as it was."""
    try:
        ready = session.bind(case, session.prepare(case.problem))
    except EnvironmentFault as error:
        raise LaunchError(str(error)) from error
    try:
        outcome = session.run(ready, "normal")
    finally:
        _free(session, ready.workspace)
    if outcome.damaged:
        session.release()
    return "" if outcome.verdict.right else outcome.verdict.reason


def _free(session: Session, workspace: Mapping[str, Buffer]) -> None:
    if workspace:
        session.backend.free(workspace)
