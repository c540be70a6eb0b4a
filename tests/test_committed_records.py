"""Every committed record of any earlier version loads through its typed loader, with every field that it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opbench.errors import UsageError
from opbench.gpu.limits.ceilings import read_ceilings
from opbench.networks.plan.plan import load_plan
from opbench.networks.records.network import read_network
from opbench.networks.records.training import read_training
from opbench.records import read_json, to_json, unpacked
from opbench.report.selftest import read_selftest
from opbench.results.book import read_book
from opbench.results.files import FILE, read_lines, read_run, run_files
from opbench.results.tuning import FILE as SEARCH
from opbench.results.tuning import read_tuning
from support.common import ROOT, read_experiments

REPORTS = ROOT / "reports"
ABSENT = (None, "", [], {})
"""What a record says of something that it does not know; a typed record leaves it out or has its default."""

RENAMED = {"said": ("notes", "text"), "told": ("notes",)}
"""What former keys are called now."""


def named(path: Path) -> str:
    return path.parent.relative_to(REPORTS).as_posix()


def missing(written: object, read: object, place: str = "") -> list[str]:
    """Return the places of a file whose values are not those of the record read from it."""
    if isinstance(written, Mapping):
        known = read if isinstance(read, Mapping) else {}
        names = {key: next((one for one in (key, *RENAMED.get(key, ())) if one in known), key) for key in written}
        found = [missing(of, known.get(names[key]), f"{place}.{key}") for key, of in written.items()]
        return [each for places in found for each in places]
    if isinstance(written, list):
        items = read if isinstance(read, list) and len(read) == len(written) else [None] * len(written)
        found = [
            missing(one, other, f"{place}[{n}]") for n, (one, other) in enumerate(zip(written, items, strict=True))
        ]
        return [each for places in found for each in places]
    return [] if written == read or (written in ABSENT and read in ABSENT) else [place]


def content(path: Path) -> Any:
    return read_json(path, "")


@pytest.mark.parametrize("path", run_files(REPORTS), ids=named)
def test_a_run_keeps_its_header_and_its_ceilings(path: Path) -> None:
    run = read_run(path)
    lines = [line for _, line in read_lines(path)]
    header = {key: of for key, of in lines[0].items() if key != "type"}
    assert missing(header, run.header.to_json()) == []
    limits = [line for line in lines if line["type"] == "ceilings"]
    for line in limits[-1:]:
        assert run.ceilings
        assert missing({key: of for key, of in line.items() if key != "type"}, run.ceilings.to_json()) == []
    assert len(run.results) == len({line["case"] for line in lines if line["type"] == "result"})


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("experiments.jsonl*")), ids=named)
def test_experiments(path: Path) -> None:
    written = [json.loads(line) for line in unpacked(path).decode().splitlines()]
    assert missing(written, json.loads(json.dumps([one.to_json() for one in read_experiments(path)]))) == []


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("selftest.json*")), ids=named)
def test_a_selftest(path: Path) -> None:
    written = content(path)
    del written["summary"]  # a sentence about the other fields, which newer versions word differently
    assert missing(written, read_selftest(path).to_json()) == []


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("network.json*")), ids=named)
def test_a_network(path: Path) -> None:
    assert missing(content(path), read_network(path).to_json()) == []


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("train.json*")), ids=named)
def test_a_training(path: Path) -> None:
    assert missing(content(path), read_training(path).to_json()) == []


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("plan.json*")), ids=named)
def test_a_plan(path: Path) -> None:
    written = content(path)
    plan = load_plan(path, written["network"], written["gpu"], written["precision"])
    assert missing(written, {"format": 1, **to_json(plan)}) == []


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("book.json")), ids=named)
def test_a_winners_file(path: Path) -> None:
    assert missing(content(path), read_book(path).to_json()) == []


@pytest.mark.parametrize("path", sorted(REPORTS.rglob(f"{SEARCH}*")), ids=named)
def test_a_search(path: Path) -> None:
    search, lines = read_tuning(path), [line for _, line in read_lines(path)]
    assert missing({key: of for key, of in lines[0].items() if key != "type"}, to_json(search.begun)) == []
    trials = {json.dumps(line["config"]): line for line in lines if line["type"] == "trial"}
    assert [missing({**line, "type": ""}, to_json(search.trials[n])) for n, line in enumerate(trials.values())] == [
        [] for _ in trials
    ]


def test_no_shipped_variant_was_refused() -> None:
    lines = unpacked(ROOT / "reports/cpu/judged-variants.jsonl.xz").decode().splitlines()
    answers = {answer["variant"]: answer["answer"] for answer in map(json.loads, lines)}
    assert set(answers.values()) == {"accepted"}
    operators = {variant.partition("/")[0] for variant in answers}
    sentence = f"{len(answers)} shipped variants of {len(operators)} operators"
    assert sentence in (ROOT / "docs/judging.md").read_text(encoding="utf-8")


def test_no_cheat_gained_time_on_an_h100() -> None:
    (part,) = json.loads(unpacked(ROOT / "reports/h100/selftest/selftest.json.xz"))["parts"]
    cheats = [claim for claim in part["claims"] if claim["wanted"] == "caught"]
    assert all(claim["holds"] for claim in cheats)
    right = sum(claim["seen"] == "right" for claim in cheats)
    text = " ".join((ROOT / "docs/judging.md").read_text(encoding="utf-8").split())
    assert (
        f"{len(cheats)} kernels that cheat on time. {len(cheats) - right} were refused, and {right} were no more"
        in text
    )


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("ceilings.json")), ids=named)
def test_ceilings(path: Path) -> None:
    assert missing(content(path), read_ceilings(path, "").to_json()) == []


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ({"type": "run", "format": 2}, "format 2"),
        ({"type": "run", "format": 1, "environment": {"sm_count": "many"}}, "environment.sm_count = 'many'"),
        ({"type": "run", "format": 1, "timing": 3}, "timing = 3"),
        ({"type": "ceilings", "cases": {"f32": 1}}, "cases.f32 = 1"),
        ({"type": "traffic", "kernels": [{"kernel": 1}]}, "kernels[0].kernel = 1"),
        ({"type": "traffic", "lines": 3}, "is corrupt"),
        ({"type": "device", "index": "first"}, "index = 'first'"),
    ],
)
def test_a_corrupt_line_is_named_with_what_was_seen(line: dict[str, Any], seen: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"type": "run", "format": 1}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(UsageError) as refused:
        read_run(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / FILE}:2: ") and seen in str(refused.value)
