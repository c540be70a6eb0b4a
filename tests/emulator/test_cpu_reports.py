"""The table of report kinds is the runtime's: same names, same numbers, a rule for each."""

from __future__ import annotations

import re

from common import ROOT

from opbench.backend.rules import RULES, rule_of
from opbench.emulator.reports import FORMS, ReportKind

RUNTIME = ROOT / "opbench" / "emulator" / "runtime" / "worker.hpp"


def enumerators() -> dict[str, int]:
    """Name to number of `enum ReportKind` in C++, as Python would write the names."""
    body = re.search(r"enum ReportKind : uint32_t \{(.*?)\};", RUNTIME.read_text(), re.DOTALL)
    assert body
    names = re.findall(r"^\s*kReport(\w+)", re.sub(r"//.*", "", body[1]), re.MULTILINE)
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): number for number, name in enumerate(names, 1)}


def test_the_enum_of_python_is_that_of_the_runtime() -> None:
    assert {kind.name: kind.value for kind in ReportKind} == enumerators()


def test_every_kind_of_report_has_a_form_with_a_listed_rule() -> None:
    assert list(FORMS) == list(ReportKind)
    assert {form.rule for form in FORMS.values()} <= set(RULES)


def test_rules_are_found_by_their_kind() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule_of(rule.kind) is rule for rule in RULES)
    assert rule_of("of_another_version").name == "of-another-version"
    assert all(rule.remedy.endswith(".") and len(rule.remedy) < 160 for rule in RULES)
