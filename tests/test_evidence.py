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
from opbench.records import read_json
from opbench.results.files import read_run, run_files
from opbench.running.suite import read_suite

RUNS = [path for folder in REPORTS for path in run_files(folder)]


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
    sorted(REPORTS[0].rglob("plan.json*")),
    ids=lambda path: path.parent.relative_to(ROOT / "reports").as_posix(),
)
def test_a_plan_was_chosen_from_runs_that_are_there(path: Path) -> None:
    """The committed run that a plan names has the case; runs were repeated since, so their times differ.

    Runs of networks on an H200 replaced those of the H100, from which plans of trainings were chosen.
    """
    choices = read_json(path, "")["choices"].values()
    sources = {c["source"].removeprefix("run ") for c in choices if c["source"].startswith("run ")}
    for folder in sorted(folder for folder in sources if not folder.startswith("reports/h100/networks/")):
        assert measured(folder) >= {c["case"] for c in choices if c["source"] == f"run {folder}"}


@cache
def measured(folder: str) -> set[str]:
    """Cases of a committed run that have a time."""
    if is_network(ROOT / folder):
        return {node.case for node in read_network(ROOT / folder).nodes}
    return {r.case for r in read_run(ROOT / folder).results if r.measurement}


def test_the_suites_of_the_evidence_run_every_variant() -> None:
    catalog = Catalog()
    parts = re.search(r"^SUITE_PARTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts
    suites = [read_suite(Path(name), catalog, "cuda") for name in ("ceilings", *parts[1].split())]
    measured = {case.variant.id for suite in suites for case in suite.cases}
    assert {v.id for name in catalog.operator_names() for v in catalog.variants(name)} - measured == set()
