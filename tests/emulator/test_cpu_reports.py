"""Every report kind of the runtime has a rule."""

from __future__ import annotations

from opbench.backend.rules import RULES, rule_of
from opbench.emulator.abi import ReportKind
from opbench.emulator.reports import RULES_BY_KIND


def test_every_kind_of_report_has_a_form_with_a_listed_rule() -> None:
    assert list(RULES_BY_KIND) == list(ReportKind)
    assert {form.rule for form in RULES_BY_KIND.values()} <= set(RULES)


def test_rules_are_found_by_their_kind() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule_of(rule.kind) is rule for rule in RULES)
    assert rule_of("of_another_version").name == "of-another-version"
    assert all(rule.remedy.endswith(".") and len(rule.remedy) < 160 for rule in RULES)
