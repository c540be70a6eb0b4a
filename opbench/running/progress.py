"""What a run tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes on."""

    phase: str
    """"build", "check", "measure" or "done"; "lost" where a worker died."""
    case: str
    done: int
    total: int


Tell = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore the progress of a run."""
