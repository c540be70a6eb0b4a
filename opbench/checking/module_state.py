"""Check that a launch does not use results that earlier launches left in module variables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opbench.backend.base import Buffer
from opbench.checking.binding import Binding, BoundCase
from opbench.checking.checking import Session
from opbench.checking.contents import JUDGED_INPUT_KINDS
from opbench.checking.launch_sources import CaseLaunches
from opbench.checking.outputs import judge_outputs
from opbench.kernels.shapes import emulated_work

LAUNCHES, FEWEST_LAUNCHES, LAUNCHES_WORK = 24, 6, 1e8
"""A case must be right in this many launches for its variables to count as scratch; fewer if they exceed the work.

A limit on time would make a verdict depend on the load of the machine.
"""
MIXED_STATE_LAUNCHES = (3, 5, 7, 9)
"""The numbers of the launches that start from a mixture of two earlier states."""
HEAP_MESSAGE = "keeps state between launches: it calls malloc, and memory of the device's heap outlives a launch"


def uses_device_heap(binding: Binding) -> bool:
    """Return whether a bound case's module calls malloc or new in device code."""
    return bool(binding.program and binding.program.uses_device_heap)


def module_variables(binding: Binding) -> Mapping[str, Buffer]:
    """Return the `__device__` variables of a bound case's module, without constants that the header fills."""
    filled = {launch.constant for launch in binding.launches}
    variables = binding.program.variables() if binding.program else {}
    return {name: buffer for name, buffer in variables.items() if name not in filled}


class ModuleState:
    """The `__device__` variables of a case's module, without constants that the header fills."""

    def __init__(self, session: Session, bound_case: BoundCase, case_launches: CaseLaunches, judged: bool) -> None:
        """Take a bound case and its launches; `judged` is False without a reference to judge the outputs with."""
        self._session, self._bound_case, self._case_launches, self._judged = session, bound_case, case_launches, judged
        self._heap = uses_device_heap(bound_case.binding)
        self._variables = module_variables(bound_case.binding)
        self._first_fingerprints: dict[str, int] = {}
        self._copies: dict[str, Buffer] = {}

    def untimable_reason(self) -> str:
        """Return why the case may not be timed: it keeps state between launches. Return "" if it may be timed.

        Every content is launched once. Variables that these launches change are scratch memory if the case is
        right whatever their values are; they are then restored before each sample.
        """
        if self._heap:
            return HEAP_MESSAGE
        if not self._variables:
            return ""
        initial_contents = {name: variable.read() for name, variable in self._variables.items()}
        changed: list[str] = []
        for number, (kind, launch) in enumerate(self._case_launches.launches.items()):
            self._case_launches.renew(kind)
            launch()
            self._session.backend.synchronize()
            fingerprints = self._fingerprints()
            if number:  # the first launch may fill a table that does not change afterwards
                changed += [
                    name
                    for name in fingerprints
                    if fingerprints[name] != self._first_fingerprints[name] and name not in changed
                ]
            self._first_fingerprints = fingerprints
        if changed and self._judged and (reason := self._state_dependence(changed)):
            return f"{state_fault(changed)}. A launch after others is wrong: {reason}"
        for name in changed:
            copy = self._copies[name] = self._session.backend.allocate(name, initial_contents[name].shape, "u8")
            copy.write(initial_contents[name])
            del self._first_fingerprints[name]
        self._case_launches.restored = [(self._variables[name], copy) for name, copy in self._copies.items()]
        return ""

    def free(self) -> None:
        """Free the memory of the copies; a second call does nothing."""
        self._case_launches.restored = ()
        self._session.backend.free(self._copies)
        self._copies = {}

    def change_while_timed(self) -> str:
        """Return which variables changed only while the case was timed; "" for none."""
        fingerprints = self._fingerprints() if self._first_fingerprints else {}
        changed = [
            name
            for name, first_fingerprint in self._first_fingerprints.items()
            if fingerprints[name] != first_fingerprint
        ]
        return f"{state_fault(changed)} while it was timed" if changed else ""

    def _fingerprints(self) -> dict[str, int]:
        return {name: variable.fingerprint() for name, variable in self._variables.items()}

    def _state_dependence(self, changed: list[str]) -> str:
        """Return the fault of the case in some states of its variables; "" if it is right in all of them.

        Each content runs twice in a row, so a launch follows one on the same or on other inputs. Some states
        are mixed, word by word, from two states after a launch, so that a count or an index remains valid.
        """
        later_state = {name: self._variables[name].read() for name in changed}
        kinds = [kind for kind in JUDGED_INPUT_KINDS if kind in self._case_launches.launches]
        launch_count = min(
            max(int(LAUNCHES_WORK / emulated_work(self._bound_case.case.problem)), FEWEST_LAUNCHES), LAUNCHES
        )
        rng = np.random.default_rng(self._bound_case.prepared.rng(self._bound_case.case.name).getrandbits(64))
        for number in range(launch_count):
            if number in MIXED_STATE_LAUNCHES:
                for name in changed:
                    self._variables[name].write(_mix_states(self._variables[name].read(), later_state[name], rng))
            kind = kinds[number // 2 % len(kinds)]
            self._case_launches.renew(kind)
            self._case_launches.launches[kind]()
            self._session.backend.synchronize()
            if reason := judge_outputs(self._session.backend, self._bound_case, kind, self._bound_case.buffers):
                return reason
        return ""


def state_fault(names: list[str]) -> str:
    """Return the message for a case that changes these module variables."""
    plural = "s" if len(names) > 1 else ""
    listed = ", ".join(f"'{name}'" for name in names)
    return f"keeps state between launches: it changes the module variable{plural} {listed}"


def _mix_states(state: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return bytes in which each aligned 4-byte word comes at random from one of two states."""
    is_first = rng.random(-(-state.size // 4)) < 0.5
    return np.where(np.repeat(is_first, 4)[: state.size], state, other)
