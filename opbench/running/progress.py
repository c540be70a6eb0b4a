"""Reports on the progress of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The current step of a run, and how many cases are done."""

    phase: str
    """"build", "check", "measure", "done" or "advise"; "lost" when a worker died."""
    case: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore a progress report; the default where the caller shows no progress."""
