"""Every rule has a section in the guide, whose example gives that very finding; `opbench help finding` prints it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from opbench import api
from opbench.backend.findings import Finding
from opbench.backend.rules import RULES
from opbench.cli import cli
from opbench.cli.help import section
from opbench.insight.diagnosis import PROBLEMS
from opbench.results.faults import faults_of
from support.common import ROOT

pytestmark = pytest.mark.usefixtures("forked_workers")

PAGE = ROOT / "docs" / "findings.md"
NAMES = [rule.name for rule in RULES]


def example(name: str) -> str:
    """The file that a section shows."""
    (code,) = re.findall(r"^```c\+\+\n(.*?)^```", section(name), re.MULTILINE | re.DOTALL)
    return code


def test_every_rule_has_a_section_in_the_order_of_the_table() -> None:
    assert re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_section_has_meaning_remedy_and_source(name: str) -> None:
    text = section(name)
    assert re.search(r"^Remedy: \S", text, re.MULTILINE) and re.search(r"^In CUDA's documentation: \S", text, re.M)
    assert len(example(name).splitlines()) < 30


@pytest.mark.parametrize("name", NAMES)
def test_help_prints_a_section_in_80_columns(name: str) -> None:
    done = CliRunner().invoke(cli, ["help", "finding", name])
    assert done.exit_code == 0 and done.output.startswith(f"{name}\n")
    prose = [line for line in done.output.splitlines() if not line.startswith("    ")]
    assert max(map(len, prose)) <= 80 and "```" not in done.output


def test_help_lists_the_rules_and_names_the_nearest() -> None:
    listed = CliRunner().invoke(cli, ["help", "finding"]).output
    assert all(re.search(rf"^{rule.name} +{re.escape(rule.title)}$", listed, re.MULTILINE) for rule in RULES)
    wrong = CliRunner().invoke(cli, ["help", "finding", "shard-race"])
    assert wrong.exit_code != 0 and "shared-race" in str(wrong.exception)


def test_the_guide_explains_each_problem_that_explain_reports() -> None:
    table = (ROOT / "docs" / "cpu.md").read_text().partition("### What explain reports")[2].partition("###")[0]
    assert set(re.findall(r"^\| ([a-z][\w -]*) \|", table, re.MULTILINE)) - {"problem"} == set(PROBLEMS)


def found_in(folder: Path, names: list[str], huge: bool = False) -> dict[str, list[Finding]]:
    """What a check of the sections' examples finds, by section."""
    paths = {name: folder / f"{name.replace('-', '_')}.cu" for name in names}
    for name, path in paths.items():
        path.write_text(example(name))
    problems = () if huge else ("(n=1000)", "(n=1024)")
    results = api.check(
        list(paths.values()), problems=problems, random_shapes=0, huge=huge, cpu_only=True, time_limit_s=30.0
    )
    found: dict[str, list[Finding]] = {}
    for name, path in paths.items():
        for result in (r for r in results if r.variant == path.stem):
            notes = (*result.verdict.findings, *result.verdict.notes) if result.verdict else ()
            found.setdefault(name, []).extend((*faults_of(result, str(path)), *notes))
    return found


def test_every_example_gives_its_finding(tmp_path: Path) -> None:
    found = found_in(tmp_path, [name for name in NAMES if name != "index-overflow"])
    found |= found_in(tmp_path, ["index-overflow"], huge=True)
    given = {name: sorted({one.rule for one in findings}) for name, findings in found.items()}
    assert {name: rules for name, rules in given.items() if name not in rules} == {}
    assert given.keys() == set(NAMES)
