"""What is committed of GPU runs is data, each run once, with the pictures that documents show."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from evidence import PAGES, REPORTS, ROOT, loose, redrawn, shown
from opbench.kernels.folders import Catalog
from opbench.networks.records.network import is_network, read_network
from opbench.networks.records.training import read_training
from opbench.records import read_json
from opbench.results.files import read_run, run_files
from opbench.running.suite import read_suite

RUNS = [path for folder in REPORTS for path in run_files(folder)]
REPLACED = re.compile(r"reports/h100/(gradients|hopper|layers|networks/[^/]+)")
"""Runs of the H100 that plans of its trainings name. Runs of an H200 replaced them: only the history has them."""
OTHER_TUNING = {"reports/h200/networks/mobilenetv3-64-bf16": ".gpu/tuning"}
"""The folder of the search, of a network whose search is not in the network's own folder."""


def test_runs_are_packed_and_what_can_be_drawn_again_is_not_there() -> None:
    assert (loose(), redrawn()) == ([], []), "python tests/evidence.py mends it"


def test_what_documents_show_and_lead_to_is_there() -> None:
    assert [path for path in (*shown(), *(ROOT / "reports" / page for page in PAGES)) if not path.exists()] == []


def test_no_run_is_kept_twice() -> None:
    starts = Counter(read_run(path).header.started + str(len(read_run(path).results)) for path in RUNS)
    assert [start for start, times in starts.items() if times > 1] == []


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.relative_to(ROOT / "reports").as_posix())
def test_every_committed_run_reads_whole(path) -> None:  # type: ignore[no-untyped-def]
    run = read_run(path)
    assert run.results and run.finished and not [w for w in run.warnings if "incomplete" in w]


@pytest.mark.parametrize(
    "path",
    [path for folder in REPORTS for path in sorted(folder.rglob("plan.json*"))],
    ids=lambda path: path.parent.relative_to(ROOT / "reports").as_posix(),
)
def test_a_plan_is_what_was_run_and_its_runs_are_there_or_replaced(path: Path) -> None:
    """A run that a plan names has the case; runs were repeated since, so their times differ.

    Of a search of the network itself only the chosen cases are kept, in the record.
    """
    choices = read_json(path, "")["choices"]
    assert {name: (choice["case"], choice["source"]) for name, choice in choices.items()} == nodes(path.parent)
    own = path.parent.relative_to(ROOT).as_posix()
    for source in {choice["source"] for choice in choices.values()} - {"default"}:
        folder = source.removeprefix("run ")
        if folder != OTHER_TUNING.get(own, f"{own}/tuning") and not REPLACED.fullmatch(folder):
            assert measured(folder) >= {choice["case"] for choice in choices.values() if choice["source"] == source}


def nodes(folder: Path) -> dict[str, tuple[str, str]]:
    """Return for each node of a network or a training the case that ran and the source of its choice."""
    record = read_network(folder) if is_network(folder) else read_training(folder)
    return {node.name: (node.case, node.source) for node in record.nodes}


@cache
def measured(folder: str) -> set[str]:
    """Cases of a committed run that have a time."""
    return {r.case for r in read_run(ROOT / folder).results if r.measurement}


def test_the_suites_of_the_evidence_run_every_variant() -> None:
    catalog = Catalog()
    parts = re.search(r"^SUITE_PARTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts
    suites = [read_suite(Path(name), catalog, "cuda") for name in ("ceilings", *parts[1].split())]
    measured = {case.variant.id for suite in suites for case in suite.cases}
    assert {v.id for name in catalog.operator_names() for v in catalog.variants(name)} - measured == set()
