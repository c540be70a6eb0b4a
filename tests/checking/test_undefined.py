"""A shuffle of a value that CUDA does not define: an error where an output depends on the value, else a note."""

from __future__ import annotations

import pytest

from opbench import api
from opbench.results.result import Result
from support.common import ROOT

pytestmark = pytest.mark.usefixtures("forked_workers")

TRUTH = ROOT / "tests" / "truth"
USED = [("shuffles_from_a_lane_the_block_lacks", 13), ("shuffles_from_outside_its_mask", 13)]


def check(name: str) -> Result:
    (file,) = TRUTH.glob(f"*/{name}.cu")
    (result,) = api.check([file], random_shapes=0, cases=["*(n=1021)"], cpu_only=True)
    return result


@pytest.mark.parametrize(("name", "line"), USED)
def test_a_value_that_is_used_is_the_first_finding(name: str, line: int) -> None:
    verdict = check(name).verdict
    assert verdict and not verdict.right
    first = verdict.findings[0]
    assert (first.kind, first.line, first.hint) == ("warp_mask", line, False)
    assert "__shfl" in first.message and "with mask 0x" in first.message


def test_a_value_that_is_not_used_is_a_note() -> None:
    verdict = check("drops_what_absent_lanes_gave").verdict
    assert verdict and verdict.right and verdict.findings == ()
    assert [(note.kind, note.line) for note in verdict.notes] == [("warp_mask", 12)]
