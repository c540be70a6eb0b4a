"""Kernels as strangers write them: both of each pair fit their operator, and the page has the committed scores."""

from __future__ import annotations

from dataclasses import replace

import pytest

import strangers_score
from opbench import api
from opbench.results.files import read_run
from strangers_score import FOLDER, KERNELS, Score, changes, read_scores, timed, variants

pytestmark = pytest.mark.usefixtures("forked_workers")

PATHS = sorted(KERNELS.glob("*/*.cu"))
LOSES_NAN = "layernorm/thread_zero_sums_fewer_passes"
"""Was measured before norms were checked with NaN; a corrected source would lose its time."""


def test_each_kernel_has_a_second_one_with_the_first_advice() -> None:
    found, known = read_scores(), variants()
    assert len(found) == 20
    named = {one.kernel for one in found}
    for one in found:
        assert known[one.kernel].mechanism == (), "a stranger's file names no mechanism"
        changed = changes(one.kernel, known)
        assert set(changed) == {one.mechanism, *one.others}
        for mechanism, name in changed.items():
            assert known[name].mechanism == (mechanism,)
            assert known[name].builds_on == known[one.kernel].name
        named |= set(changed.values())
    assert named == set(known)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_fits_its_operator(path) -> None:  # type: ignore[no-untyped-def]
    name = f"{path.parent.name}/{path.stem}"
    found = api.check([name], variants=(KERNELS,), random_shapes=3)
    wrong = [r.reason for r in found if r.status != "right"]
    if name == LOSES_NAN:
        assert wrong and all("only with NaN" in reason for reason in wrong)
    else:
        assert not wrong


def test_the_scores_are_those_of_the_run() -> None:
    assert {result.status for result in read_run(FOLDER).results} == {"right"}
    times = {name: r.measurement.median_s for name, r in timed().items() if r.measurement}
    for one in read_scores():
        assert (one.before_s, one.after_s) == (times[one.kernel], times.get(f"{one.kernel}_{one.mechanism}"))
        assert one.gain is None or one.gain == pytest.approx(one.before_s / (one.after_s or 0), rel=1e-3)
        assert set(one.others) == set(changes(one.kernel, times)) - {one.mechanism}


def test_the_page_is_in_step() -> None:
    assert strangers_score.PAGE.read_text(encoding="utf-8") == strangers_score.page(read_scores())


def test_the_guide_has_the_counts_of_the_table() -> None:
    number, _, faster, slower, inside, below, above, _ = strangers_score.counts(read_scores())[0][1:]
    text = " ".join(strangers_score.PAGE.read_text(encoding="utf-8").split())
    assert f"{faster} of {number} kernels became faster by 5 % or more, and {slower} became slower by 5 %" in text
    assert text.count(f"{inside} gains were in the") == 2
    assert text.count(f"range, {below} were below it, and {above} above it.") == 2


def test_a_gain_outside_its_range_has_a_reason() -> None:
    assert [
        one.kernel for one in read_scores() if one.verdict in ("below", "above") and len(one.note.split()) < 5
    ] == []


def test_verdicts_on_a_promise() -> None:
    one = Score("a/b", "(n=1)", 1.0, 8.0, 4.0, 2.0, (1.9, 2.1), "fused", "launches", "", (1.5, 2.4, 3.0))
    missed = replace(one, after_s=8.0, gain=1.0, interval=(0.9, 1.1))
    unknown = replace(one, after_s=None, gain=None, interval=None)
    assert [each.verdict for each in (one, missed, unknown)] == ["yes", "below", ""]
    assert [each.close for each in (one, missed, unknown)] == [True, False, False]
    assert strangers_score.counts([one, missed, replace(unknown, gain_was_known=True)]) == [
        ["all", *"32101101"],
        ["gain known before the correction", *"10000000"],
        ["gain unknown before the correction", *"22101101"],
    ]
    text = strangers_score.table([one, missed, unknown])
    assert "| 1.00× | below |" in text and "| 2.00× | yes |" in text and "| – |  |" in text
