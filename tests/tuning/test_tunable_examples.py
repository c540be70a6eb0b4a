"""The kernels that docs/tuning.md searches: right in a few configs on the CPU, and their spaces as large as it says."""

from __future__ import annotations

import pytest

from opbench.checking.backends import open_backend
from opbench.checking.checking import Session
from opbench.kernels.case import Case
from opbench.running.targets import own_variants
from support.common import CATALOG, ROOT

SMALL = {"gemm": "(m=33,n=20,k=12)", "convolution": "(n=2,c=1,h=40,w=37,k=1,r=5,s=3)", "gemv": "(m=133,n=1,k=36)"}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_is_right_and_has_more_configs_than_anyone_tries_by_hand(name: str) -> None:
    variant = own_variants(ROOT / "examples" / "tune" / f"{name}_tunable.cu", CATALOG)[0]
    problem = CATALOG.operator(variant.operator).parse(SMALL[name])
    assert variant.searched
    assert sum(1 for _ in zip(range(5001), variant.space, strict=False)) == 5001
    session = Session(open_backend("cpu"))
    for config in [c for c in variant.configs if variant.unmet_requirement(problem, c) is None][:2]:
        verdict = session.check(Case(variant, config, problem)).verdict
        assert verdict.right, verdict.reason
