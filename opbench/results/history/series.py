"""The times of one case on one GPU model, with one point per run and the steps between them."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from opbench.kernels.case import is_named
from opbench.results.comparison import THRESHOLD, THRESHOLD_OTHER_GPU
from opbench.results.header import Revision, short_revision
from opbench.results.history.steps import TimeStep, find_steps


@dataclass(frozen=True)
class Point:
    """One point of a series: the result of a case in one run, with the run's environment."""

    run: int
    """Number of the run in order of time, over all runs."""
    started: str
    folder: str
    status: str
    reason: str
    alike: str
    median_s: float | None
    low_s: float | None
    high_s: float | None
    machine_code_sha256: str | None
    uuid: str | None
    """UUID of the GPU; None if not known."""
    revision: str = ""
    """Short commit of the user's project, such as "1a2b3c4" or "1a2b3c4 + changes"."""


@dataclass(frozen=True)
class Series:
    """All results of a case on one GPU model in order of time, with the steps."""

    case: str
    operator: str
    gpu: str
    points: tuple[Point, ...]
    steps: tuple[tuple[Point, TimeStep], ...]
    """Each step with the first point after it; `Step.index` is an index of `points`."""
    changes: tuple[tuple[int, str], ...]
    """Indices of the points before which the environment changed, and the change."""

    @property
    def timed(self) -> list[Point]:
        """Return the points with a time."""
        return [point for point in self.points if point.median_s is not None]

    @property
    def last_over_first(self) -> float | None:
        """Return the last time divided by the first; None with fewer than two times."""
        timed = self.timed
        first_s, last_s = (timed[0].median_s, timed[-1].median_s) if len(timed) > 1 else (None, None)
        return last_s / first_s if first_s and last_s else None

    def trend(self, threshold: float) -> str:
        """Return "slower", "faster" or "same" by the newest step; without a step, by the last and the first time."""
        change = self.steps[-1][1].ratio if self.steps else self.last_over_first or 1.0
        if not self.steps and max(change, 1 / change) <= 1 + threshold:
            return "same"
        return "slower" if change > 1 else "faster"


def all_series(connection: sqlite3.Connection, cases: Sequence[str] = (), threshold: float = THRESHOLD) -> list[Series]:
    """Return the series of every case that matches one of the globs, by operator and name.

    Runs are ordered by their start.
    """
    rows = connection.execute(
        "SELECT case_name, operator, coalesce(gpu, ''), dense_rank() OVER (ORDER BY started, runs.run) - 1, started,"
        " folder, status, reason, alike, CASE WHEN status = 'right' AND median_s > 0 THEN median_s END, low_s, high_s,"
        " machine_code_sha256, uuid, runs.revision, runs.changed FROM results JOIN runs USING (run)"
        " ORDER BY operator, case_name, gpu, started, runs.run"
    )
    series = []
    for (case, operator, gpu), group in itertools.groupby(rows, key=lambda row: row[:3]):
        point_fields = [(*row[3:-2], short_revision(Revision(row[-2], row[-1]) if row[-2] else None)) for row in group]
        points = tuple(Point(*row) for row in point_fields)
        if not cases or any(is_named(case, pattern) for pattern in cases):
            changes = tuple(_environment_changes(points))
            steps = tuple(_steps_in_equal_environments(points, changes, threshold))
            series.append(Series(case, operator, gpu, points, steps, changes))
    return series


def _environment_changes(points: Sequence[Point]) -> list[tuple[int, str]]:
    changes = []
    for index, (earlier, later) in enumerate(itertools.pairwise(points), start=1):
        if earlier.alike != later.alike:
            earlier_values, later_values = json.loads(earlier.alike), json.loads(later.alike)
            change_texts = [
                f"{k}: {earlier_values.get(k)} → {later_values.get(k)}"
                for k in {**earlier_values, **later_values}
                if earlier_values.get(k) != later_values.get(k)
            ]
            changes.append((index, ", ".join(change_texts)))
    return changes


def _steps_in_equal_environments(
    points: Sequence[Point], changes: Sequence[tuple[int, str]], threshold: float
) -> list[tuple[Point, TimeStep]]:
    """Return the steps between runs in an equal environment: if the environment changed, the cause is unknown.

    With several GPUs of one model, a step must exceed the difference between the GPUs.
    """
    steps = []
    segment_ends = [0, *(index for index, _ in changes), len(points)]
    for start, end in itertools.pairwise(segment_ends):
        timed = [index for index in range(start, end) if points[index].median_s is not None]
        has_several_gpus = len({points[index].uuid for index in timed}) > 1
        min_ratio_change = max(threshold, THRESHOLD_OTHER_GPU) if has_several_gpus else threshold
        for step in find_steps([points[index].median_s or 0.0 for index in timed], min_ratio_change):
            index = timed[step.index]
            steps.append((points[index], TimeStep(index, step.before_s, step.after_s)))
    return steps
