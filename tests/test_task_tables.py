"""The tables of other suites in the guide: each task once, each problem one that a shipped variant computes."""

from __future__ import annotations

import re

from opbench.kernels.folders import Catalog
from support.common import ROOT

PAGE = ROOT / "docs" / "torch-tasks.md"
TASKS = range(1, 101)


def numbers(text: str) -> list[int]:
    """The numbers of "1, 6 to 9"."""
    found = []
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def test_each_task_is_in_the_table_or_among_the_others() -> None:
    section = PAGE.read_text().partition("## Tasks that shipped operators cover")[2].partition("\n## ")[0]
    covered = [task for cell in re.findall(r"^\| ([\d, to]+) \|", section, re.MULTILINE) for task in numbers(cell)]
    others = [task for group in re.findall(r"\(([\d,\s to]+)\)", section.rpartition("|")[2]) for task in numbers(group)]
    assert sorted([*covered, *others]) == list(TASKS)
    (claimed,) = re.findall(r"(\d+) of the 100 tasks", section)
    assert int(claimed) == len(covered)


def test_a_shipped_variant_computes_each_problem() -> None:
    catalog = Catalog()
    problems = re.findall(r"\| `(\w+)(\(\S+\))` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(problems) > 20
    for name, sizes in problems:
        problem = catalog.operator(name).parse(sizes)
        own = [variant for variant in catalog.variants(name) if not variant.is_library]
        assert any(
            variant.unmet_requirement(problem, config) is None for variant in own for config in variant.configs
        ), name


def test_as_many_operators_of_tritonbench_are_claimed_as_are_listed() -> None:
    section = PAGE.read_text().partition("## Operators of tritonbench")[2]
    names = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell.partition("(")[0])
    ]
    (claimed,) = re.findall(r"(\d+) have a ladder", section)
    assert int(claimed) == len(set(names)) == len(names)
