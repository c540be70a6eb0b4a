"""The verdict document: its schema is in step with the types and with docs/, and codes cover every finding."""

from __future__ import annotations

import json
from dataclasses import fields

from opbench.backend import rules
from opbench.judging.codes import CODES, OWN_CODES, RACE_RULES
from opbench.judging.document import VerdictDocument, schema
from opbench.judging.faults import CODE_OF_FAILURE
from opbench.judging.page import SECTIONS
from opbench.judging.signs import RULES
from support.common import ROOT


def test_the_schema_in_docs_is_that_of_the_types() -> None:
    assert json.loads((ROOT / "docs" / "verdict.schema.json").read_text()) == schema()


def test_the_schema_names_every_field_and_allows_three_answers() -> None:
    found = schema()["$defs"]["VerdictDocument"]
    assert set(found["properties"]) == {member.name for member in fields(VerdictDocument)}
    assert set(found["properties"]["overall"]["enum"]) == {"accepted", "refused", "not decided"}
    assert set(found["required"]) == set(found["properties"])


def test_every_finding_and_failure_has_a_code() -> None:
    assert {rule.name for rule in rules.RULES} <= CODES.keys()
    assert set(CODE_OF_FAILURE.values()) <= CODES.keys()
    assert CODES["shared-race"].section == "race_free" and CODES["out-of-bounds"].section == "memory_safe"
    assert {rule for rule in rules.RULES if rule.name.endswith("race")} <= RACE_RULES
    assert {code.section for code in CODES.values()} <= {field for field, _ in SECTIONS}


def test_effects_of_signs_are_codes() -> None:
    assert {code for rule in RULES for code in rule.effects} <= CODES.keys()


def test_the_guide_has_every_code_and_sign() -> None:
    text = (ROOT / "docs" / "judging.md").read_text()
    assert [name for name in (*(c.name for c in OWN_CODES), *(r.name for r in RULES)) if f"`{name}`" not in text] == []
