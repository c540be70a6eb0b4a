"""What a rung says it serves, an example asks of it."""

from __future__ import annotations

import pytest

from opbench.catalog.folders import Catalog

CATALOG = Catalog()


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_every_value_of_every_mode_of_each_rung_is_met_by_an_example(operator: str) -> None:
    examples = list(dict.fromkeys(CATALOG.operator(operator).examples()))
    modes = CATALOG.operator(operator).modes()
    missing = []
    for variant in CATALOG.variants(operator):
        if variant.is_library:
            continue
        served = [e for e in examples if any(variant.unmet(e, config) is None for config in variant.configs)]
        for mode, default in modes.items():
            values = variant.supports.get(mode, [default])
            missing += [f"{variant.id}: {mode}={v}" for v in values if not any(e.axes[mode] == v for e in served)]
    assert missing == []
