"""A whole search on a fake GPU: its file, its finals, and what a killed one leaves to the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from opbench.cli.report import report_command
from opbench.errors import EnvironmentFault
from opbench.report.tuning import finals_bars, lines, verdict
from opbench.report.tuning_page import write_tuning
from opbench.results.tuning import FILE, Trial, fastest_results, finals_run, ranked_finals, read_tuning
from opbench.running.protocol import MeasureCases
from opbench.tuning.search import Search
from support.checks.errors import refuses, refuses_setting
from support.common import ROOT
from support.fakes.tuning import TuningWorker, seconds, tune_fake


def every(patch: pytest.MonkeyPatch) -> None:
    """Let a search end where every config was tried, not by the clock."""
    run = Search.run
    patch.setattr(Search, "run", lambda search, budget_s: run(search, 1e9))


def test_a_search_keeps_every_outcome_and_measures_the_best_as_an_ordinary_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(monkeypatch)
    found, run = tune_fake(tmp_path, monkeypatch.setattr, budget_s=60)
    assert found == read_tuning(tmp_path / "out") and len(found.trials) == found.begun.allowed == 32 * 17 + 16
    by_ending: dict[str, list[Trial]] = {}
    for trial in found.trials:
        by_ending.setdefault(trial.ending, []).append(trial)
    assert {t.config["BLOCK"] for t in by_ending["unfit"]} == {1024}
    assert {t.config["ITEMS"] for t in by_ending["refused"]} == {17}
    assert {t.config["ITEMS"] for t in by_ending["overtime"]} == {16}
    assert by_ending["overtime"][0].reason == "not compiled within 20 s"
    assert {t.config["ITEMS"] for t in by_ending["wrong"]} == {5}
    assert {t.config["ITEMS"] for t in by_ending["failed"]} == {13}
    assert {t.config["ITEMS"] for t in by_ending["same"]} <= {2, 3} and len(by_ending["same"]) > 10
    assert all(t.reason for name in ("unfit", "refused", "overtime", "wrong", "failed") for t in by_ending[name])
    assert run is not None and fastest_results(run)[0].config == {"BLOCK": 256, "ITEMS": 8}
    assert found.stopped is not None and found.stopped.reason == "every config tried"
    assert found.stopped.finals == "finals" and run.folder == tmp_path / "out" / "finals"
    assert {"BLOCK": 32, "ITEMS": 2} in [r.config for r in run.results], "the default is measured beside the best"
    page = write_tuning(found, run).read_text()
    for said in (
        "BLOCK=256 ITEMS=8",
        "Best so far",
        "What each tunable does",
        "does not compile",
        "an illegal address",
    ):
        assert said in page
    assert page.count("<svg") == 3 and "mathdefault" not in page
    assert found.default == {"BLOCK": 32, "ITEMS": 2}, "the first that the rules allow"
    told = verdict(found, run)
    assert told.startswith("`BLOCK=256 ITEMS=8` takes ") and "; the default, `BLOCK=32 ITEMS=2`, takes 1.8" in told
    assert "</code> takes " in page.partition("<nav")[0], "the result is what the page says first"
    shown = "\n".join(lines(found, run))
    assert "BLOCK=256 ITEMS=8" in shown and "560 of 560 configs tried" in shown


def test_a_search_starts_from_the_best_configs_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune_fake(tmp_path, monkeypatch.setattr)
    before = read_tuning(tmp_path / "out").ranked_trials[:8]
    (tmp_path / "next").mkdir()
    after, _ = tune_fake(tmp_path / "next", monkeypatch.setattr, start_from=(tmp_path / "out",))
    first = [trial.config for trial in after.trials[:16]]
    assert all(trial.config in first for trial in before)
    lines = (tmp_path / "out" / FILE).read_text().replace('"ITEMS":', '"OTHER":')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).write_text(lines)
    (tmp_path / "third").mkdir()
    with refuses(kind="nothing-to-start-from", subject=str(tmp_path / "other")):
        tune_fake(tmp_path / "third", monkeypatch.setattr, start_from=(tmp_path / "other",))


def test_a_search_by_joules_ranks_by_them_and_keeps_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(monkeypatch)
    found, run = tune_fake(tmp_path, monkeypatch.setattr, energy=True, mode="hot")
    assert found.begun.unit == "J" and found.energies is not None
    assert found.ranked_trials[0].config == {"BLOCK": 256, "ITEMS": 6} and (found.ranked_trials[0].score or 0) > 0.04
    finals = ranked_finals(found, run)
    assert finals[0].config == {"BLOCK": 256, "ITEMS": 6} and finals[0].low <= finals[0].median <= finals[0].high
    assert len(finals) == len(found.finals.configs if found.finals else ())
    shown = "\n".join(lines(found, run))
    assert "joules a launch" in shown and "45.0 mJ" in shown and "by joules" in shown
    page = write_tuning(found, run).read_text()
    assert "45.0 mJ" in page and "ranked by joules a launch" in page
    size = found.folder.joinpath(FILE).read_bytes().count(b'"energies"')
    tune_fake(tmp_path, monkeypatch.setattr, energy=True, mode="hot", resume=True)
    assert size == found.folder.joinpath(FILE).read_bytes().count(b'"energies"') == 1
    with refuses_setting("unit", "J", "s"):
        tune_fake(tmp_path, monkeypatch.setattr, mode="hot", resume=True)


def test_where_no_energy_is_counted_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TuningWorker, "counted", False)
    with pytest.raises(EnvironmentFault, match=r"counts no energy .* remove --energy"):
        tune_fake(tmp_path, monkeypatch.setattr, energy=True, mode="hot")
    assert not (tmp_path / "out" / FILE).read_bytes()


def test_another_search_and_another_kernel_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every(monkeypatch)
    tune_fake(tmp_path, monkeypatch.setattr)
    with refuses("run-exists"):
        tune_fake(tmp_path, monkeypatch.setattr)
    with refuses_setting("mode", "cold", "hot"):
        tune_fake(tmp_path, monkeypatch.setattr, resume=True, mode="hot")
    monkeypatch.setattr(TuningWorker, "gpu", "Another GPU")
    with refuses_setting("gpu", "Fake GPU", "Another GPU"):
        tune_fake(tmp_path, monkeypatch.setattr, resume=True)


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it writes: what it had kept stands byte by byte, and no config of it is tried again."""
    path = tmp_path / "out" / FILE
    killed_when(tmp_path, lambda: path.exists() and path.read_bytes().count(b"\n") >= 60)
    before = path.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    path.write_bytes(before + b'{"type":"trial","conf')
    killed = read_tuning(path)
    every(monkeypatch)
    found, run = tune_fake(tmp_path, monkeypatch.setattr, resume=True)
    after = path.read_bytes()
    assert after.startswith(whole)
    configs = [tuple(e["config"].items()) for e in map(json.loads, after.splitlines()) if e["type"] == "trial"]
    assert len(configs) == len(set(configs)) == found.begun.allowed
    assert found.trials[: len(killed.trials)] == killed.trials
    assert all(t.at_s >= killed.spent_s > 0 for t in found.trials[len(killed.trials) :])
    assert run is not None and seconds(fastest_results(run)[0].config) == 1e-4
    again, other = tune_fake(tmp_path, monkeypatch.setattr, resume=True, budget_s=1e6)
    assert len(again.trials) == len(found.trials) and other == run, "nothing was left to try: the finals stand"


def killed_when(folder: Path, is_time: Callable[[], bool], *arguments: str) -> None:
    """Kill a search in a process of its own at the right moment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    child = subprocess.Popen([sys.executable, "-m", "support.fakes.tuning", folder, *arguments], env=environment)
    try:
        while not is_time():
            assert child.poll() is None
            time.sleep(0.005)
    finally:
        child.kill()
        child.wait()


def test_one_killed_in_its_finals_completes_these_and_tries_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finals are those that were begun, and what they had measured is not measured twice."""
    path, results = tmp_path / "out" / FILE, tmp_path / "out" / "finals" / "results.jsonl"
    killed_when(tmp_path, lambda: results.exists() and b"\n" in results.read_bytes(), "all")
    killed, before = read_tuning(path), path.read_bytes()
    assert killed.finals is not None and killed.stopped is None and finals_run(killed) is not None
    every(monkeypatch)
    found, run = tune_fake(tmp_path, monkeypatch.setattr, resume=True, budget_s=600)
    assert path.read_bytes().startswith(before) and found.trials == killed.trials
    assert found.stopped is not None and found.stopped.finals == "finals" and found.finals == killed.finals
    assert run is not None and [r.config for r in run.results] == list(killed.finals.configs)
    assert all(r.status == "right" for r in run.results) and not (tmp_path / "out" / "finals-2").exists()

    # Killed a little later: some of the results were on disk, the last one torn.
    whole = results.read_bytes().splitlines(keepends=True)
    kept = b"".join(line for line in whole if not line.startswith(b'{"type":"end"'))
    lines_kept = kept.splitlines(keepends=True)
    results.write_bytes(b"".join(lines_kept[:-2]) + lines_kept[-2][:40])
    path.write_bytes(before)
    measured: list[str] = []
    ask = TuningWorker.ask

    def noted(worker: TuningWorker, request: object, limit_s: float, on_notification: object = None) -> object:
        if isinstance(request, MeasureCases):
            measured.extend(str(case.config) for case in request.cases)
        return ask(worker, request, limit_s, on_notification)

    monkeypatch.setattr(TuningWorker, "ask", noted)
    again, completed = tune_fake(tmp_path, monkeypatch.setattr, resume=True, budget_s=600)
    assert again.trials == killed.trials and completed is not None
    assert results.read_bytes().startswith(b"".join(lines_kept[:-2]))
    assert measured == [str(config) for config in killed.finals.configs[-2:]]
    assert sorted(str(r.config) for r in completed.results) == sorted(map(str, killed.finals.configs))


def test_bars_compare_the_best_configs_with_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best, *others = finals_bars(*tune_fake(tmp_path, monkeypatch.setattr, budget_s=2))
    assert best.tone == "own" and others and all(best.length <= bar.length for bar in others)
    assert sum("default" in bar.note for bar in (best, *others)) == 1


def test_report_writes_the_page_of_a_search_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, run = tune_fake(tmp_path, monkeypatch.setattr, budget_s=5)
    written = write_tuning(found, run).read_text()
    (tmp_path / "out" / "tune.html").unlink()
    for place in (tmp_path / "out", tmp_path / "out" / FILE):
        shown = CliRunner().invoke(report_command, [str(place)])
        assert shown.exit_code == 0 and "BLOCK=256 ITEMS=8" in shown.stdout and "configs tried" in shown.stdout
        assert (tmp_path / "out" / "tune.html").read_text() == written
