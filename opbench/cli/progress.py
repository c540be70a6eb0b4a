"""What a command tells on stderr while it goes on: how far it is, and about how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from opbench import units
from opbench.running.runner import Progress

WORTH_TELLING_S = 10.0


@contextmanager
def progress_on_stderr() -> Iterator[Callable[[Progress], None]]:
    """A progress bar when stderr is a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield plain_progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console, left = Console(stderr=True), _TimeLeft()
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting")

        def tell(progress: Progress) -> None:
            words = f"{left.words(progress)}{progress.phase} {progress.case}"
            bar.update(task, completed=progress.done, total=progress.total, description=words[: console.width - 45])

        yield tell


def plain_progress(now: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """A line for every tenth of the cases."""
    shown, total, left = -1, 0, _TimeLeft(now)

    def tell(progress: Progress) -> None:
        nonlocal shown, total
        if progress.total != total:  # a network's nodes follow the cases that it was tuned by
            shown, total = -1, progress.total
        words, tenth = left.words(progress), 10 * progress.done // max(1, progress.total)
        if tenth > shown:
            shown = tenth
            click.echo(f"{progress.done}/{progress.total} {words}{progress.phase} {progress.case}", err=True)

    return tell


class _TimeLeft:
    """An estimate from the cases that are done, from when the first of them began: builds come before all."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.total = self.first = -1
        self.began_s = 0.0

    def words(self, progress: Progress) -> str:
        """Such as "about 40 s left: ", or nothing where that is not known or not long."""
        if progress.total != self.total or progress.done <= self.first:
            self.total, self.first, self.began_s = progress.total, progress.done, self.now()
        done = progress.done - self.first
        if progress.phase != "done" or not done:
            return ""
        left_s = (self.now() - self.began_s) / done * (progress.total - progress.done)
        return f"about {units.duration(left_s)} left: " if left_s >= WORTH_TELLING_S else ""
