"""Agreement of fabricated runs whose differences are known."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opbench.backend.counts import KernelTraffic, LineTraffic, Traffic
from opbench.insight.levels import Levels
from opbench.insight.nsight.metrics import COUNTS
from opbench.report.agreement import provenance, verdict_sentences, write_agreement
from opbench.results.agreement import (
    QUANTITIES,
    Agreement,
    CountComparison,
    compare_caches,
    compare_case,
    compare_runs,
    inexact_comparisons,
    is_in_test_set,
    summarise,
)
from opbench.results.files import RunWriter, read_run
from support.checks.errors import refuses
from support.common import Cli

LOAD = LineTraffic("k", "k.cu", 3, "global", "load", 4, 100, 3200, 400, 400, upper_requests=150, upper_sectors=500)
SHARED = LineTraffic("k", "k.cu", 4, "shared", "load", 4, 100, 3200, 0, 0, 3200, 100, upper_requests=100)
ATOMIC = LineTraffic("k", "k.cu", 5, "global", "atomic", 4, 7, 7, 7, 7)
TRAFFIC = Traffic((LOAD, SHARED, ATOMIC), (KernelTraffic("k", 1, 8, 8, 256, 8),))
EQUAL: dict[str, Any] = {
    "global_load_requests": 100.0,
    "global_load_sectors": 400.0,
    "global_store_requests": 0.0,
    "global_store_sectors": 0.0,
    "shared_load_wavefronts": 3200.0,
    "bank_conflicts_load": 3100.0,
    "kernels": [{"kernel": "k", "grid": "(8, 1, 1)", "block": "(256, 1, 1)"}],
}


def test_the_counters_are_those_that_the_profiler_collects() -> None:
    assert {quantity.counter for quantity in QUANTITIES} <= set(COUNTS)


def verdicts(counters: Mapping[str, Any], traffic: Traffic = TRAFFIC) -> dict[str, str]:
    """By quantity."""
    return {c.quantity: c.verdict for c in compare_case("op/v(n=1)", traffic, {**EQUAL, **counters})}


def test_equal_counts_are_equal_and_what_a_case_has_not_proves_nothing() -> None:
    assert verdicts({}) == dict.fromkeys(
        ("global_load_requests", "global_load_sectors", "shared_load_wavefronts", "bank_conflicts_load"), "equal"
    )


def test_atomics_are_counted_apart_by_the_hardware() -> None:
    (requests, *_) = compare_case("op/v(n=1)", TRAFFIC, EQUAL)
    assert requests.predicted == 100


def test_near_and_outside() -> None:
    assert verdicts({"global_load_requests": 104.0})["global_load_requests"] == "within 5 %"
    assert verdicts({"global_load_requests": 110.0})["global_load_requests"] == "within 15 %"
    assert verdicts({"global_load_requests": 120.0})["global_load_requests"] == "outside"
    assert verdicts({"global_store_requests": 3.0})["global_store_requests"] == "outside"
    assert verdicts({"bank_conflicts_load": 0.0})["bank_conflicts_load"] == "outside"


def test_a_counter_that_is_missing_is_not_compared() -> None:
    assert "global_load_sectors" not in verdicts({"global_load_sectors": None})


@pytest.mark.parametrize(("measured", "bounded"), [(99, False), (100, True), (150, True), (151, False)])
def test_the_bounds(measured: float, bounded: bool) -> None:
    found = compare_case("op/v(n=1)", TRAFFIC, {**EQUAL, "global_load_requests": measured})
    assert found[0].bounded is bounded


def test_sampled_kernels_are_scaled() -> None:
    sampled = Traffic((LOAD,), (KernelTraffic("k", 1, 8, 4, 256, 8),))
    assert verdicts({"global_load_requests": 200.0}, sampled)["global_load_requests"] == "equal"


def test_a_third_is_held_out_by_name_alone() -> None:
    names = [f"op/v(n={n})" for n in range(3000)]
    share = sum(map(is_in_test_set, names)) / len(names)
    assert 0.3 < share < 0.37
    assert [n for n in names[:12] if is_in_test_set(n)] == ["op/v(n=0)", "op/v(n=2)", "op/v(n=4)"]


def test_summaries_count_cases_whole() -> None:
    def one(case: str, measured: float) -> CountComparison:
        return CountComparison(case, "global_load_requests", "global", 104, 100, 150, measured, False)

    found = summarise("all", [one("a", 100), one("a", 104), one("b", 100), one("c", 151)])
    assert (found.total, found.counted, found.equal, found.near, found.bounded) == (4, 1, 2, 1, 3)
    assert (found.cases, found.cases_equal) == (3, 1)
    assert [c.measured for c in inexact_comparisons([one("a", 100), one("a", 104), one("c", 151)])] == [151, 104]


def run_with(folder: Path, kind: str, lines: Mapping[str, Mapping[str, Any]]) -> Path:
    """A run's folder that holds such lines."""
    writer = RunWriter(folder)
    writer.write("run", {"format": 1})
    for case, value in lines.items():
        writer.write(kind, {"case": case, **value})
    writer.close()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs: four cases that pair, one launched differently, one on either side alone, one abandoned."""
    cases = [f"op/v(n={n})" for n in range(4)]
    abandoned = Traffic(TRAFFIC.lines, TRAFFIC.kernels, complete=False)
    cpu = {name: TRAFFIC.to_json() for name in [*cases, "op/grid(n=1)", "op/cpu(n=1)"]}
    cpu["op/dead(n=1)"] = abandoned.to_json()
    other_grid = {**EQUAL, "kernels": [{"kernel": "k", "grid": "(132, 1, 1)"}]}
    gpu = dict.fromkeys([*cases, "op/gpu(n=1)", "op/dead(n=1)"], EQUAL) | {"op/grid(n=1)": other_grid}
    gpu[cases[2]] = {**EQUAL, "global_load_sectors": 390.0}
    gpu[cases[3]] = {**EQUAL, "shared_load_wavefronts": 800.0}
    return run_with(tmp_path / "cpu", "traffic", cpu), run_with(tmp_path / "gpu", "counters", gpu)


def test_two_runs(runs: tuple[Path, Path]) -> None:
    found = compare_runs(read_run(runs[0]), read_run(runs[1]))
    assert len(found.comparisons) == 16
    assert found.left_out == {
        "op/grid(n=1)": "launched differently: 8 blocks on the cpu, 132 on the GPU (a grid sized by multiprocessors)",
        "op/cpu(n=1)": "no counters in the GPU run",
        "op/dead(n=1)": "a launch was abandoned on the cpu",
        "op/gpu(n=1)": "no traffic in the cpu run",
    }
    by_name = {s.name: s for s in found.summaries()}
    assert list(by_name) == [
        "global, model set",
        "global, test set",
        "shared, model set",
        "shared, test set",
        "caches, model set",
        "caches, test set",
    ]
    seen, held = by_name["global, model set"], by_name["global, test set"]
    assert (seen.total, seen.equal, seen.cases, seen.cases_equal) == (4, 4, 2, 2)
    assert (held.total, held.equal, held.near, held.cases_equal) == (4, 3, 1, 1)
    assert (by_name["shared, model set"].equal, by_name["shared, model set"].total) == (3, 4)


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    cpu, gpu = (read_run(folder) for folder in runs)
    with refuses("no-traffic"):
        compare_runs(gpu, gpu)
    with refuses("no-counters"):
        compare_runs(cpu, cpu)
    other = read_run(run_with(tmp_path / "other", "counters", {"op/w(n=1)": EQUAL}))
    with refuses("no-shared-case"):
        compare_runs(cpu, other)


def test_the_page_holds_all_and_needs_nothing_else(runs: tuple[Path, Path], tmp_path: Path) -> None:
    found = compare_runs(read_run(runs[0]), read_run(runs[1]))
    page, picture = write_agreement(found, tmp_path / "out", "Predicted & measured")
    text = page.read_text()
    assert "Predicted &amp; measured" in text and "launched differently" in text
    assert "http://" not in text and "https://" not in text and "<svg" in text
    assert text.count('class="point"') == len(found.comparisons)
    links = re.findall(r'href="#([^"]+)"', text)
    assert {"top", "how-many", "scatter"} <= set(links) and all(f'id="{link}"' in text for link in links)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [p.read_bytes() for p in write_agreement(found, tmp_path / "again", "Predicted & measured")] == [
        page.read_bytes(),
        picture.read_bytes(),
    ]


def test_the_page_begins_with_the_result_and_where_it_comes_from(runs: tuple[Path, Path], tmp_path: Path) -> None:
    cpu, gpu = read_run(runs[0]), read_run(runs[1])
    found = compare_runs(cpu, gpu)
    text = write_agreement(found, tmp_path, "Agreement", provenance(cpu, gpu))[0].read_text()
    said = verdict_sentences(found)
    equal = sum(c.verdict == "equal" for c in found.comparisons)
    assert said.startswith(f"{equal} of 16 counts ({round(100 * equal / 16)} %) are predicted exactly and ")
    assert " The worst: " in said and ", measured " in said
    assert text.index(f"{cpu.folder.name} against {gpu.folder.name}") < text.index(said.split(" The worst")[0])
    assert text.index(said.split(" The worst")[0]) < text.index("<table") < text.index("<svg")
    assert '<figure class="small" id="scatter">' in text, "it shrinks with the screen"
    assert verdict_sentences(Agreement(())) == "Nothing could be compared."


def test_the_command(cli: Cli, runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = cli("agreement", *runs, "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    assert "global, test set" in done.stdout and "test set, selected by a hash of the name (2 cases):" in done.stdout
    assert "op/v(n=2)  global_load_sectors" in done.stdout and "2.6 %" in done.stdout
    assert (tmp_path / "page" / "agreement.html").exists()
    value = json.loads(cli("agreement", *runs, "--json").stdout)
    assert len(value["comparisons"]) == 16
    assert cli("agreement", runs[0], tmp_path / "nowhere").returncode == 2


def test_bytes_at_l2_and_dram_are_compared_with_cold_counters_only() -> None:
    found = Levels(l1_bytes=1, l2_bytes=100, dram_bytes=50, profiled_dram_bytes=112)
    counters = {"cache": "cold", "l2_bytes": 100.0, "dram_bytes": 100.0}
    l2, dram = compare_caches("op/v(n=1)", found, counters)
    assert (l2.quantity, l2.verdict) == ("l2_bytes", "equal")
    assert (dram.predicted, dram.verdict, dram.group) == (112, "within 15 %", "caches")
    assert compare_caches("op/v(n=1)", found, {**counters, "cache": "warm"}) == []
    assert compare_caches("op/v(n=1)", None, counters) == []
    assert [c.quantity for c in compare_caches("op/v(n=1)", found, {**counters, "l2_bytes": None})] == ["dram_bytes"]
