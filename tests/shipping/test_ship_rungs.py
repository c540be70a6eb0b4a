"""Every rung of every operator can be shipped, beside all others of its operator in one source."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from opbench.kernels.case import Case
from opbench.kernels.folders import Catalog
from opbench.kernels.variant import Variant
from opbench.shipping import held
from opbench.shipping.choosing import target
from opbench.shipping.compiling import CompiledText
from opbench.shipping.interface import header_text
from opbench.shipping.source import source_text

CATALOG = Catalog()


def cases_of(operator: str) -> Iterator[Case]:
    """A case of each rung, of the first example that it serves."""
    examples = CATALOG.operator(operator).examples()

    def first(variant: Variant) -> Case:
        return next(Case(variant, c, p) for p in examples for c in variant.configs if variant.unmet(p, c) is None)

    return (first(variant) for variant in CATALOG.variants(operator) if not variant.is_library)


@pytest.mark.parametrize("operator", CATALOG.operator_names())
def test_every_rung_of_an_operator_is_shipped_in_one_source(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "compile_text", lambda text, found, arch: CompiledText(arch))
    cases = list(cases_of(operator))
    made = held.make_library(cases, "kernels", target("h200"), {}, "a test")
    source, header = source_text(made), header_text(made)
    assert len({text.space for text in made.found}) == len(made.found)
    kernels = str(made.text)
    assert kernels.count("\nnamespace ") >= len(made.found) and 'extern "C"' not in kernels
    # Nothing leaks from one kernel into the next: what is defined is undefined, headers included are there.
    for name in set(re.findall(r"^#define (\w+)", kernels, re.MULTILINE)):
        assert re.search(rf"^#undef {name}$", kernels, re.MULTILINE), f"{name} stays defined"
    assert set(re.findall(r'#include "(opbench/[^"]+)"', kernels)) == set(made.text.headers)
    assert not re.search(r"#\s*include|#\s*pragma once", "".join(made.text.headers.values()))
    for one in made.every:
        lines = (*one.code.once.lines, *one.code.rest.lines)
        assert sum(line.startswith("TRY(launch(") for line in lines) == sum(
            bool(launch.kernel) for launch in one.case.launches(132)
        )
        assert one.function in source and str(one.case.problem) in header
