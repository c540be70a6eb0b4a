"""Each recipe of the Makefile runs Python in the project's environment, where opbench is installed."""

from __future__ import annotations

import re

from support.common import ROOT

MAKES_THE_ENVIRONMENT = "$(PYTHON) -m venv $(VENV)"


def test_only_the_environment_is_made_with_the_python_of_the_system() -> None:
    recipes = re.findall(r"^\t@?(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert MAKES_THE_ENVIRONMENT in recipes
    assert [line for line in recipes if re.match(r"\$\(PYTHON\)|python", line)] == [MAKES_THE_ENVIRONMENT]
