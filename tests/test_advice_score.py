"""The committed scores of the advice are those of the committed runs, and the rules keep them."""

from __future__ import annotations

import pytest

import advice_score
from advice_score import Step


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return advice_score.steps()


def test_the_page_and_the_gains_are_in_step(steps: list[Step]) -> None:
    assert advice_score.PAGE.read_text() == advice_score.page(steps)
    assert advice_score.TABLE.read_text() == advice_score.write_gains(advice_score.fitted(steps))


def test_enough_steps_are_scored_and_a_third_is_held_out(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    assert len(steps) >= 250
    assert sum(step.held_out for step in cures) >= len(cures) / 3


def test_the_first_advice_is_mostly_right(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    assert sum(step.within(1) for step in cures) >= 0.6 * len(cures)
    assert sum(step.within(3) for step in cures) >= 0.84 * len(cures)
