"""Right cases of one problem timed together, then checked once more: what was timed must still be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opbench.backends.base import Buffer, DeviceClock
from opbench.catalog.case import Case
from opbench.errors import EnvironmentFault, LaunchError
from opbench.session.binding import bind
from opbench.session.checking import INTEGER_RUN_BYTES, Ready, Session
from opbench.session.expected import Prepared
from opbench.session.rotation import Rotation, rotate
from opbench.timing.clock import Launch
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure


@dataclass(frozen=True)
class Measured:
    """Timed cases by name, and what those among them got wrong that did not stay right."""

    measurements: dict[str, Measurement]
    wrong: dict[str, str]


def measure_cases(
    session: Session,
    cases: Sequence[Case],
    options: TimingOptions,
    clock: DeviceClock,
    on_start: Callable[[str], None] = lambda name: None,
    on_sample: Callable[[str, float], None] = lambda name, seconds: None,
    check_again: bool = True,
) -> Measured:
    """Measure right cases of one problem, interleaved; then, unless told not to, check their outputs once more."""
    prepared = session.prepare(cases[0].problem)
    prepared.load("normal", verify=True)
    ready: dict[str, Ready] = {}
    rotation = Rotation()
    try:
        for case in cases:
            on_start(case.name)
            ready[case.name] = session.bind(case, prepared)
        launches: Mapping[str, Launch] = {name: r.binding.launch for name, r in ready.items()}
        if options.mode == "graph":
            rotation = _rotated(session, prepared, ready)
            launches = rotation.launches
        found = measure(clock, launches, options, on_sample=on_sample, on_start=on_start)
        found = {name: replace(m, mode=rotation.modes.get(name, m.mode)) for name, m in found.items()}
        return Measured(found, _check_again(session, prepared, ready, on_start) if check_again else {})
    except EnvironmentFault as error:
        # A workspace that does not fit beside the others costs the case that asked for it, not the run.
        raise LaunchError(str(error)) from error
    finally:
        for launch in rotation.launches.values():
            clock.forget(launch)
        session.backend.free(rotation.arenas)
        for each in ready.values():
            session.backend.free(each.workspace)


def _rotated(session: Session, prepared: Prepared, ready: Mapping[str, Ready]) -> Rotation:
    """Every case bound to enough sets of buffers for a graph of its launches to be cold."""

    def launch(case: Case, buffers: Mapping[str, Buffer]) -> Launch:
        return bind(session.backend, case, buffers, session.sm_count).launch

    cases = [each.case for each in ready.values()]
    workspaces = {name: each.workspace for name, each in ready.items()}
    return rotate(session.backend, cases, prepared.buffers, workspaces, prepared.inputs("normal"), launch)


def _check_again(
    session: Session, prepared: Prepared, ready: Mapping[str, Ready], on_start: Callable[[str], None]
) -> dict[str, str]:
    """What timed cases got wrong, by name, on new content in the very buffers that were timed, then in other ones.

    The first finds an output that is kept and given again, or work that stops after some launches; the second also one
    that is tied to an address.
    """
    wrong: dict[str, str] = {}
    for name, timed in ready.items():
        on_start(name)
        outcome = session.run(timed, "again")
        if not outcome.verdict.right:
            wrong[name] = f"right before it was timed, wrong after, on new content: {outcome.verdict.reason}"
        if outcome.damaged:
            session.release()
            break  # the rest is checked in other buffers only
    if prepared.problem.bytes() > INTEGER_RUN_BYTES:
        return wrong  # moving and checking hundreds of megabytes once more would outlast the measurement
    moved = session.move(prepared)
    for name in (n for n in ready if n not in wrong):
        on_start(name)
        fresh = session.bind(ready[name].case, moved)
        try:
            outcome = session.run(fresh, "again")
        finally:
            session.backend.free(fresh.workspace)
        if not outcome.verdict.right:
            wrong[name] = f"right before it was timed, wrong after, in other buffers: {outcome.verdict.reason}"
        if outcome.damaged:
            moved = session.move(moved)
    return wrong
