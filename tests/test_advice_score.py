"""The committed scores of the advice are those of the committed runs, and the rules keep them."""

from __future__ import annotations

import pytest

import advice_score
import gain_errors
from advice_score import Step
from opbench.insight.advice import NEAR_FRACTION
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


def test_steps_that_are_held_out_change_no_gain(measured: list[Step]) -> None:
    used = [step for step in measured if not step.held_out]
    assert used != measured
    assert advice_score.used_steps(measured) == advice_score.used_steps(used)
    held_out = {step.operator for step in measured if step.held_out}
    assert held_out.isdisjoint(step.operator for step in committed_steps())


def test_enough_steps_are_scored_and_a_third_is_held_out(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    assert len(steps) >= 350
    assert sum(step.held_out for step in cures) >= len(cures) / 3


def test_each_case_far_from_its_bound_has_advice(measured: list[Step]) -> None:
    far = [step for step in measured if step.over_bound * NEAR_FRACTION >= 1.0]
    assert len(far) > 700
    assert not [step.case for step in far if not step.advice]


def test_the_promised_gains_are_mostly_in_their_range(steps: list[Step]) -> None:
    promises = [(step, gain) for step in advice_score.cures(steps) if (gain := advice_score.promise(step))]
    assert sum(gain.low <= 1.01 * step.gain <= 1.02 * gain.high for step, gain in promises) >= 0.8 * len(promises)


def test_the_first_advice_is_mostly_right(steps: list[Step]) -> None:
    cures = advice_score.cures(steps)
    assert sum(step.within(1) for step in cures) >= 0.6 * len(cures)
    assert sum(step.within(3) for step in cures) >= 0.85 * len(cures)


def test_more_than_half_of_the_promised_gains_are_close(steps: list[Step]) -> None:
    for several in (steps, [step for step in steps if step.held_out]):
        promises = [(step, gain) for step in advice_score.cures(several) if (gain := advice_score.promise(step))]
        close = sum(advice_score.is_close(gain.middle, step.gain) for step, gain in promises)
        assert close >= 0.55 * len(promises)


def test_no_step_is_judged_by_its_own_operator(steps: list[Step]) -> None:
    step = next(step for step in advice_score.cures(steps) if step.operator == "transpose" and step.lower == "shared")
    promised = advice_score.promise(step)
    assert promised is not None
    facts = step.facts
    everything = expected_gain("bank_conflict_free", facts.over_bound, facts.kind, facts.bound_s)
    # The step itself is the nearest one, so an estimate with it is closer to what it gained.
    assert abs(everything.middle - step.gain) < abs(promised.middle - step.gain)
