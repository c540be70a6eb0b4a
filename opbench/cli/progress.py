"""Progress of a command on stderr, with an estimate of the remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from opbench import units
from opbench.running.runner import Progress

MIN_SHOWN_ESTIMATE_S = 10.0


@contextmanager
def progress_on_stderr() -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar if stderr is a terminal, otherwise a line for each tenth of the cases."""
    if not sys.stderr.isatty():
        yield plain_progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console, time_left = Console(stderr=True), _RemainingTime()
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting")

        def update_bar(progress: Progress) -> None:
            text = f"{time_left.prefix(progress)}{progress.phase} {progress.case}"
            bar.update(task, completed=progress.done, total=progress.total, description=text[: console.width - 45])

        yield update_bar


def plain_progress(now: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """Return a callback that prints a line for each tenth of the cases."""
    shown_tenth, total, time_left = -1, 0, _RemainingTime(now)

    def print_tenth(progress: Progress) -> None:
        nonlocal shown_tenth, total
        # The tuning of a network and its nodes are counted one after the other, with different totals.
        if progress.total != total:
            shown_tenth, total = -1, progress.total
        text, tenth = time_left.prefix(progress), 10 * progress.done // max(1, progress.total)
        if tenth > shown_tenth:
            shown_tenth = tenth
            click.echo(f"{progress.done}/{progress.total} {text}{progress.phase} {progress.case}", err=True)

    return print_tenth


class _RemainingTime:
    """Estimate the remaining time from the finished cases, without the builds before the first case."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.total = self.first = -1
        self.began_s = 0.0

    def prefix(self, progress: Progress) -> str:
        """Return a prefix for a progress line, such as "about 40 s left: "; "" if the time is unknown or short."""
        if progress.total != self.total or progress.done <= self.first:
            self.total, self.first, self.began_s = progress.total, progress.done, self.now()
        done = progress.done - self.first
        if progress.phase != "done" or not done:
            return ""
        left_s = (self.now() - self.began_s) / done * (progress.total - progress.done)
        return f"about {units.duration(left_s)} left: " if left_s >= MIN_SHOWN_ESTIMATE_S else ""
