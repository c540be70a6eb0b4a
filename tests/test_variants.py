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


FEW = 5
"""Modules that a variant may have compiled here for every pair of config and problem: the tree has minutes, on two
cores. `opbench check --all` takes every pair, on a GPU in seconds; every run checks what it measures."""


def spread(variant: Variant, pairs: list[Case]) -> list[Case]:
    """As few pairs as show each value of each tuned parameter and of each macro, and a random shape.

    With them go all others that need no further module, but where instructions are interpreted, which takes longer.
    """
    interpreted = bool(variant.compute_capability)
    if len({case.request() for case in pairs}) <= FEW and not (interpreted and len(pairs) > FEW):
        return pairs
    examples = set(CATALOG.operator(variant.operator).examples())
    shows = {case.name: {*case.config.items(), *case.request().macros, case.problem in examples} for case in pairs}
    kept: list[Case] = []
    seen: set[object] = set()
    while rest := [case for case in pairs if shows[case.name] - seen]:
        kept.append(max(rest, key=lambda case: len(shows[case.name] - seen)))
        seen |= shows[kept[-1].name]
    if interpreted:
        return kept
    built = {case.request() for case in kept}
    return [case for case in pairs if case.request() in built]


@pytest.mark.parametrize("variant", CUDA, ids=lambda v: v.id)
def test_right_on_examples_and_random_shapes(variant: Variant) -> None:
    """The seed differs by variant, so that together they see many shapes, yet a failure repeats."""
    seed = zlib.crc32(variant.id.encode()) % 1000
    names = [case.name for case in spread(variant, api.cases_to_check(CATALOG, variant.id, 2, seed))]
    results = api.check([variant.id], backend="cpu", cases=names, random_shapes=2, seed=seed)
    assert [f"{r.case}: {r.reason}" for r in results if r.status != "right"] == []
    assert len(results) == len(names) > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("variant", CUDA, ids=lambda v: v.id)
def test_compiles_for_the_gpu_without_one(variant: Variant, arch: str) -> None:
    """Every config, on the first example that it supports: what g++ lets pass, NVRTC may not.

    For sm_80 only the first config is compiled too: the others differ in sizes alone.
    """
    requests = set()
    for config in variant.configs[: 1 if arch == "sm_80" else None]:
        for problem in CATALOG.operator(variant.operator).examples():
            case = Case(variant, config, problem)
            if case.unmet() is None:
                requests.add(case.request())
                break
    assert requests, "no example fits any config"
    found = nvrtc.compile_all(requests, arch)
    assert [str(e) for e in found.values() if isinstance(e, Exception)] == []
