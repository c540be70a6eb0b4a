"""Which worker runs which problem, and what follows when one is lost; no clock, no process, no network."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C")

DEATHS = 2
"""Workers that may die at one case before it is held to blame: one alone may be the machine's doing."""


@dataclass
class _Problem(Generic[C]):
    number: int
    cases: list[C]
    """Those without an outcome."""
    losses: int = 0
    """Workers that died without anybody knowing at which case."""


@dataclass
class Dispatch(Generic[C]):
    """Problems in order, each whole to one worker; one that is lost gives its problem back, to be run again whole.

    Of such a problem outcomes that are on disk stay. The case at which workers died is `blamed` on the last death that
    is allowed; its problem goes on without it.
    """

    name_of: Callable[[C], str]
    deaths_allowed: int = DEATHS
    _waiting: deque[_Problem[C]] = field(default_factory=deque)
    _running: dict[str, _Problem[C]] = field(default_factory=dict)
    _at: dict[str, str] = field(default_factory=dict)
    """By worker, the case that it is at."""
    _deaths: Counter[str] = field(default_factory=Counter)

    def add(self, problems: Sequence[Sequence[C]]) -> None:
        """Problems to run, in the order in which they are given out."""
        self._waiting.extend(_Problem(number, list(cases)) for number, cases in enumerate(problems))

    @property
    def done(self) -> bool:
        """Whether every problem has come to its end."""
        return not self._waiting and not self._running

    @property
    def waiting(self) -> int:
        """Problems that nobody runs."""
        return len(self._waiting)

    def give(self, worker: str) -> list[C] | None:
        """The cases of the next problem, which is this worker's now; None where none waits."""
        assert worker not in self._running, f"{worker} has a problem already"
        if not self._waiting:
            return None
        problem = self._running[worker] = self._waiting.popleft()
        return list(problem.cases)

    def at(self, worker: str, case: str) -> None:
        """A worker is at a case now."""
        self._at[worker] = case

    def at_case(self, worker: str) -> str:
        """The case that a worker was last known to be at."""
        return self._at.get(worker, "")

    def wary(self, worker: str) -> bool:
        """Whether a worker died of this one's problem at a case that nobody knows: now each is to be told."""
        return worker in self._running and self._running[worker].losses > 0

    def judged(self, worker: str, cases: Sequence[str]) -> None:
        """Outcomes of a worker's cases are on disk."""
        if worker in self._running:
            problem, names = self._running[worker], set(cases)
            problem.cases = [case for case in problem.cases if self.name_of(case) not in names]

    def finished(self, worker: str) -> None:
        """A worker has come to the end of its problem."""
        self._running.pop(worker, None)
        self._at.pop(worker, None)

    def given_back(self, worker: str) -> None:
        """A worker leaves its problem to others: it is next."""
        problem = self._running.pop(worker, None)
        self._at.pop(worker, None)
        if problem is not None and problem.cases:
            self._waiting.appendleft(problem)

    def blamed(self, case: str) -> bool:
        """A worker died at a case: whether that was one too many."""
        self._deaths[case] += 1
        return self._deaths[case] >= self.deaths_allowed

    def lost(self, worker: str) -> C | None:
        """A worker died: its problem is next. Returns the case to be failed where too many died at it."""
        problem, at = self._running.get(worker), self._at.get(worker, "")
        guilty: C | None = None
        if problem is not None and problem.cases:
            suspect = next((case for case in problem.cases if self.name_of(case) == at), None)
            if suspect is None:  # at none of them, or while all were measured in turns
                problem.losses += 1
                guilty = problem.cases[0] if problem.losses > self.deaths_allowed else None
            elif self.blamed(self.name_of(suspect)):
                guilty = suspect
            self.judged(worker, [self.name_of(guilty)] if guilty is not None else [])
        self.given_back(worker)
        return guilty
