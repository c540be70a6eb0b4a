"""Kernels written as strangers write them, with nothing but a header on top: all run, all compile for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from opbench import api
from opbench.backends.nvrtc import nvrtc
from opbench.catalog.case import Case
from opbench.catalog.folders import Catalog
from opbench.errors import EnvironmentFault
from opbench.runs.targets import own_variants

FILES = sorted(Path(__file__).parent.glob("*.cu"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_runs_as_it_is(path: Path) -> None:
    found = api.check([path], random_shapes=0, cpu_only=True)
    assert [(r.case, r.reason) for r in found if r.status != "right"] == []


def test_compiles_for_a_gpu_as_it_is() -> None:
    try:
        nvrtc.library()
    except EnvironmentFault:
        pytest.skip("NVRTC is not installed")
    catalog = Catalog()
    requests = []
    for path in FILES:
        variant = own_variants(path, catalog)[0]
        problem = catalog.operator(variant.operator).examples()[-1]
        requests.append(Case(variant, variant.configs[0], problem).request())
    compiled = nvrtc.compile_all(requests, "sm_90")
    assert {r.source.name: str(c) for r, c in compiled.items() if not isinstance(c, nvrtc.Compiled)} == {}
