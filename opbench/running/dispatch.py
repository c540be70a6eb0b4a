"""Assign problems to workers, and assign a dead worker's problem again; this module starts no process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

CaseType = TypeVar("CaseType")

MAX_DEATHS = 2
"""After this many deaths of workers at one case the case fails; a single death may be caused by the machine."""


@dataclass
class _Problem(Generic[CaseType]):
    number: int
    cases: list[CaseType]
    """Cases that have no outcome yet."""
    losses: int = 0
    """Number of workers that died at an unknown case of this problem."""


@dataclass
class Dispatch(Generic[CaseType]):
    """A queue of problems; each goes to one worker, and returns to the queue if its worker dies.

    Results on disk stay valid. After `crashes_allowed` deaths at one case that case fails, and its problem
    continues without the case.
    """

    name_of: Callable[[CaseType], str]
    crashes_allowed: int = MAX_DEATHS
    _waiting: deque[_Problem[CaseType]] = field(default_factory=deque)
    _running: dict[str, _Problem[CaseType]] = field(default_factory=dict)
    _current_cases: dict[str, str] = field(default_factory=dict)
    """The case that each worker runs now."""
    _deaths: Counter[str] = field(default_factory=Counter)

    def add(self, problems: Sequence[Sequence[CaseType]]) -> None:
        """Append problems to the queue, in order."""
        self._waiting.extend(_Problem(problem_index, list(cases)) for problem_index, cases in enumerate(problems))

    @property
    def is_done(self) -> bool:
        """Return whether every problem has ended."""
        return not self._waiting and not self._running

    @property
    def waiting(self) -> int:
        """Return the number of problems in the queue."""
        return len(self._waiting)

    def assign(self, worker: str) -> list[CaseType] | None:
        """Assign the next problem to a worker and return its cases; None if no problem waits."""
        assert worker not in self._running, f"{worker} has a problem already"
        if not self._waiting:
            return None
        problem = self._running[worker] = self._waiting.popleft()
        return list(problem.cases)

    def set_current_case(self, worker: str, case: str) -> None:
        """Record the case that a worker runs now."""
        self._current_cases[worker] = case

    def current_case(self, worker: str) -> str:
        """Return the case that a worker reported last, or an empty string."""
        return self._current_cases.get(worker, "")

    def reports_each_launch(self, worker: str) -> bool:
        """Return whether a worker must report each launch, because an earlier worker died at an unknown case."""
        return worker in self._running and self._running[worker].losses > 0

    def remove_judged(self, worker: str, cases: Sequence[str]) -> None:
        """Remove cases with results on disk from a worker's problem."""
        if worker in self._running:
            problem, names = self._running[worker], set(cases)
            problem.cases = [case for case in problem.cases if self.name_of(case) not in names]

    def finish(self, worker: str) -> None:
        """Record that a worker finished its problem."""
        self._running.pop(worker, None)
        self._current_cases.pop(worker, None)

    def return_problem(self, worker: str) -> None:
        """Return a worker's problem to the front of the queue."""
        problem = self._running.pop(worker, None)
        self._current_cases.pop(worker, None)
        if problem is not None and problem.cases:
            self._waiting.appendleft(problem)

    def count_crash(self, case: str) -> bool:
        """Count a worker's death at a case; return whether the case reached the limit."""
        self._deaths[case] += 1
        return self._deaths[case] >= self.crashes_allowed

    def return_lost(self, worker: str) -> CaseType | None:
        """Put a dead worker's problem back into the queue; return the case if too many workers died at it."""
        problem, current_case = self._running.get(worker), self._current_cases.get(worker, "")
        failed_case: CaseType | None = None
        if problem is not None and problem.cases:
            suspect = next((case for case in problem.cases if self.name_of(case) == current_case), None)
            if suspect is None:  # between cases, or while all cases were measured in turn
                problem.losses += 1
                failed_case = problem.cases[0] if problem.losses > self.crashes_allowed else None
            elif self.count_crash(self.name_of(suspect)):
                failed_case = suspect
            self.remove_judged(worker, [self.name_of(failed_case)] if failed_case is not None else [])
        self.return_problem(worker)
        return failed_case
