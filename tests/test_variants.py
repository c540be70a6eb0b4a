"""Every variant in the tree, found by looking: right on the CPU over odd shapes, and compiles for two GPUs."""

from __future__ import annotations

import zlib

import pytest

from opbench import api
from opbench.backends.cuda import nvrtc
from opbench.case import Case
from opbench.catalog import Catalog
from opbench.variant import Variant

CATALOG = Catalog()
CUDA = [v for name in CATALOG.operator_names() for v in CATALOG.variants(name) if not v.is_library]


@pytest.mark.parametrize("variant", CUDA, ids=lambda v: v.id)
def test_right_on_examples_and_random_shapes(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed differs by variant, so that together they see many shapes, yet a failure repeats.

    Configs take turns at the problems sooner than for a user: 200 variants on two cores have minutes.
    """
    monkeypatch.setattr(api, "MODULES", 12)
    monkeypatch.setattr(api, "INTERPRETED", 5)
    results = api.check([variant.id], backend="cpu", random_shapes=2, seed=zlib.crc32(variant.id.encode()) % 1000)
    assert [f"{r.case}: {r.reason}" for r in results if r.status != "right"] == []
    assert len(results) >= len(variant.configs), "each config must be run at least once"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("variant", CUDA, ids=lambda v: v.id)
def test_compiles_for_the_gpu_without_one(variant: Variant, arch: str) -> None:
    """Every config, on the first example that it supports: what g++ lets pass, NVRTC may not.

    Of those that need sm_80 only the first config is compiled for it too: the others differ in sizes alone.
    """
    requests = set()
    for config in variant.configs[: 1 if variant.compute_capability and arch == "sm_80" else None]:
        for problem in CATALOG.operator(variant.operator).examples():
            case = Case(variant, config, problem)
            if case.unmet() is None:
                requests.add(case.request())
                break
    assert requests, "no example fits any config"
    found = nvrtc.compile_all(requests, arch)
    assert [str(e) for e in found.values() if isinstance(e, Exception)] == []
