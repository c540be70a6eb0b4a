"""A sample of `make mutants`: bugs planted in small kernels, each of which `opbench check` finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import drawn, survivors

OPERATORS = ("relu", "add", "copy", "transpose", "fill", "sum")
PLANTED = drawn(OPERATORS, 60, seed=2)


@pytest.mark.parametrize("part", range(4))
def test_planted_bugs_are_found(tmp_path: Path, part: int) -> None:
    planted = PLANTED[part::4]
    assert len(planted) == 15
    alive, untried = survivors(planted, tmp_path, random_shapes=0)
    assert [mutant.described() for mutant in (*alive, *untried)] == []
