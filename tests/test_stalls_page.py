"""docs/stalls.md has the reasons, cures and rules of the code; `opbench help stall` prints the same."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import stalls_page
from opbench.cli import cli
from opbench.insight.stalls import CAUSES, STALLS


def test_the_page_has_the_tables_of_the_code() -> None:
    text = stalls_page.PAGE.read_text(encoding="utf-8")
    assert stalls_page.stalls_page(text) == text, "python tests/stalls_page.py"
    assert all(stall.meaning in text and stall.remedy in text for stall in STALLS.values())


@pytest.mark.parametrize("name", STALLS)
def test_a_reason_is_explained_with_its_cures(name: str) -> None:
    done = CliRunner().invoke(cli, ["help", "stall", name])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert STALLS[name].meaning in text and STALLS[name].remedy in text and "opbench profile CASE --source" in text
    wanted = [cause.mechanisms for cause in CAUSES if name in cause.reasons] or [STALLS[name].mechanisms]
    assert all(f"{mechanism}: " in text for mechanisms in wanted for mechanism in mechanisms)


def test_reasons_are_listed_and_a_wrong_name_is_refused() -> None:
    listed = CliRunner().invoke(cli, ["help", "stall"]).output
    assert all(name in listed for name in STALLS)
    wrong = CliRunner().invoke(cli, ["help", "stall", "short_scoreboart"])
    assert getattr(wrong.exception, "exit_code", 0) == 2
