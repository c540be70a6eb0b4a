"""A sample of `make mutants`: bugs planted in small kernels, each of which `opbench check` finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mutants import Trial, described, drawn, read

OPERATORS = ("relu", "add", "copy", "transpose", "fill", "sum")
PLANTED = drawn(OPERATORS, 60, seed=2)


@pytest.mark.parametrize("part", range(4))
def test_planted_bugs_are_found(tmp_path: Path, part: int) -> None:
    planted = PLANTED[part::4]
    assert len(planted) == 15
    with Trial(tmp_path, random_shapes=0) as trial:
        missed = [described(m.to_json()) for m in planted if trial.outcome(m)["outcome"] != "found"]
    assert missed == []


def test_a_torn_line_of_the_outcomes_is_tried_again(tmp_path: Path) -> None:
    whole = {**PLANTED[0].to_json(), "outcome": "found"}
    (tmp_path / "mutants.jsonl").write_text(json.dumps(whole) + "\n" + json.dumps(whole)[:40])
    assert read(tmp_path / "mutants.jsonl") == {PLANTED[0].key: whole}
