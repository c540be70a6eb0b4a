"""docs/goals.md compares the goals with the committed runs, and says of each missed goal what limits it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import goals_page
from goals_page import EVENTS_S, Goal, deciding, goals, kernel_s, measured


@pytest.fixture
def all_goals() -> list[Goal]:
    """The goals of operators and of networks; a fixture, as reading the committed runs takes seconds."""
    return [goal for group in goals().values() for goal in group]


def test_the_page_has_the_tables_of_the_committed_runs() -> None:
    text = goals_page.PAGE.read_text(encoding="utf-8")
    assert goals_page.goals_page(text) == text, "python tests/goals_page.py"


def test_limit_and_next_step_are_given_until_a_goal_is_reached(all_goals: list[Goal]) -> None:
    odd = [one.name for one in all_goals if [bool(one.limit), bool(one.next)] != [not one.reached] * 2]
    assert all_goals and odd == []


def test_goals_of_operators_are_of_problems_that_exist(all_goals: list[Goal]) -> None:
    assert [goal.name for goal in all_goals if goal.outcome == "not compared"] == []
    assert len({goal.name for goal in all_goals}) == len(all_goals)


def test_the_fastest_case_of_all_runs_decides() -> None:
    runs = measured()["sort", "(n=67108864)"]
    assert len(runs) > 1
    fastest = min((row for table in runs.values() for row in table if not row.library), key=kernel_s)
    folder, row = deciding(runs, lambda row: not row.library) or ("", None)
    assert row == fastest and row in runs[folder]
    assert deciding(runs, lambda row: False) is None


def test_a_time_has_the_share_of_the_events_of_the_goals() -> None:
    row = next(row for table in measured()["sort", "(n=67108864)"].values() for row in table)
    assert row.times is not None and row.times.kernel_s is not None
    assert kernel_s(row) == row.times.kernel_s + EVENTS_S
    assert kernel_s(replace(row, times=replace(row.times, kernel_s=None))) == row.times.time_s


def test_a_goal_without_a_time_is_not_reached() -> None:
    unmeasured = Goal("a kernel", "≤ 1 µs")
    assert (unmeasured.outcome, unmeasured.reached) == ("not measured", False)
    assert replace(unmeasured, source="h200/norms", ours_s=1e-6).outcome == "not compared"
    assert replace(unmeasured, source="h200/norms", ours_s=2e-6, allowed_s=1e-6).outcome == "missed"
    assert replace(unmeasured, source="h200/norms", ours_s=1e-6, allowed_s=1e-6).reached
