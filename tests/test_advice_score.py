"""The committed scores of the advice are those of the committed runs, and the rules keep them."""

from __future__ import annotations

import pytest

import advice_score
import gain_errors
from advice_score import Step
from opbench.insight.gains import STEPS_FILE, committed_steps, expected_gain


@pytest.fixture(scope="module")
def measured() -> list[Step]:
    return advice_score.measured_steps()


@pytest.fixture(scope="module")
def steps(measured: list[Step]) -> list[Step]:
    return advice_score.steps(measured)


def test_the_page_and_the_steps_are_current(measured: list[Step]) -> None:
    assert advice_score.PAGE.read_text() == advice_score.page(measured)
    assert STEPS_FILE.read_text() == advice_score.write_steps(advice_score.used_steps(measured))


def test_the_tables_of_errors_are_current(steps: list[Step]) -> None:
    assert gain_errors.PAGE.read_text() == gain_errors.page(steps)


def test_steps_of_the_test_set_change_no_gain(measured: list[Step]) -> None:
    used = [step for step in measured if not step.in_test_set]
    assert used != measured
    assert advice_score.used_steps(measured) == advice_score.used_steps(used)
    test_operators = {step.operator for step in measured if step.in_test_set}
    assert test_operators.isdisjoint(step.operator for step in committed_steps())


def test_enough_steps_are_scored_and_a_third_is_the_test_set(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    assert len(steps) >= 350
    assert sum(step.in_test_set for step in cures) >= len(cures) / 3


def test_each_case_far_from_its_bound_has_advice() -> None:
    advised = advice_score.advice_far_from_bound()
    assert len(advised) > 3000
    assert not [case for case, advice in advised.items() if not advice]
    tuned = sum(advice[0].in_use for advice in advised.values())
    text = " ".join(advice_score.PAGE.read_text().split())
    assert f"each of the {len(advised):,} counted cases" in text
    assert f"has advice; {tuned} of them have only this recommendation" in text


def test_the_promised_gains_are_mostly_in_their_range(steps: list[Step]) -> None:
    promises = [(step, gain) for step in advice_score.cures(steps) if (gain := advice_score.promise(step))]
    assert sum(gain.low <= 1.01 * step.gain <= 1.02 * gain.high for step, gain in promises) >= 0.8 * len(promises)


def test_the_first_advice_is_mostly_right(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    assert sum(step.within(1) for step in cures) >= 0.6 * len(cures)
    assert sum(step.within(3) for step in cures) >= 0.85 * len(cures)


def test_more_than_half_of_the_promised_gains_are_close(steps: list[Step]) -> None:
    for several in (steps, [step for step in steps if step.in_test_set]):
        promises = [(step, gain) for step in advice_score.cures(several) if (gain := advice_score.promise(step))]
        close = sum(advice_score.is_close(gain.middle, step.gain) for step, gain in promises)
        assert close > 0.5 * len(promises)


def test_no_step_is_judged_by_its_own_operator(steps: list[Step]) -> None:
    step = next(step for step in advice_score.cures(steps) if step.operator == "transpose" and step.lower == "shared")
    promised = advice_score.promise(step)
    assert promised is not None
    facts = step.facts
    everything = expected_gain("bank_conflict_free", facts.over_bound, facts.kind, facts.bound_s)
    # The step itself is the nearest one, so an estimate with it is closer to what it gained.
    assert abs(everything.middle - step.gain) < abs(promised.middle - step.gain)


def test_the_guide_has_the_figures_of_the_text(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    text = " ".join(advice_score.PAGE.read_text().split())
    promised = sum(advice_score.promise(step) is not None for step in cures)
    assert f"in the first row, {promised} of {len(cures)}." in text
    conflicts = [step for step in cures if "bank_conflict_free" in step.mechanisms]
    first = sum(one.mechanism == "bank_conflict_free" for step in conflicts for one in step.advice[:1])
    assert f"`bank_conflict_free` was the first advice in {first} of {len(conflicts)} steps." in text
    without = sum(step.facts.conflict_share == 0 for step in conflicts)
    assert f"In {without} of these steps the emulator counts no bank conflicts in the slower variant" in text
