"""Histories of fabricated runs whose steps are known."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opbench.report.history import SHOWN_LINES, TREND_ORDER, block_bars, history_lines, to_json, to_page
from opbench.results import history
from opbench.results.files import RunWriter
from opbench.results.header import Revision
from opbench.results.history.database import TABLES
from opbench.results.history.steps import _distances, find_steps
from opbench.timing import stats
from support.builders.runs import elsewhere, measured, noisy, result, run, written
from support.checks.errors import refuses, refuses_version
from support.common import ROOT, Cli

REPORTS = ROOT / "reports" / "h100"


# Steps ------------------------------------------------------------------------------------------------------------


def series_of(seed: int, levels: list[tuple[int, float]], spread: float = 0.003) -> list[float]:
    """Medians of runs: so many at each level."""
    draw = random.Random(seed)
    return [level * math.exp(draw.gauss(0, spread)) for count, level in levels for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 0.003, 0.01])
def test_known_steps_are_found_where_they_are(seed: int, spread: float) -> None:
    found = find_steps(series_of(seed, [(8, 1e-3), (10, 1.1e-3), (7, 0.9e-3)], spread), 0.01)
    assert [step.index for step in found] == [8, 18]
    assert [step.ratio for step in found] == pytest.approx([1.1, 0.9 / 1.1], rel=0.02)


def test_one_odd_run_is_no_step_wherever_it_stands() -> None:
    for odd in range(12):
        medians = series_of(odd, [(12, 1e-3)])
        medians[odd] *= 1.5
        assert find_steps(medians, 0.01) == []


def test_two_runs_confirm_a_step_and_one_does_not() -> None:
    assert [s.index for s in find_steps(series_of(1, [(6, 1e-3), (2, 1.1e-3)]), 0.01)] == [6]
    assert find_steps(series_of(1, [(7, 1e-3), (1, 1.1e-3)]), 0.01) == []


@pytest.mark.parametrize(("spread", "most"), [(0.003, 0.0), (0.01, 0.06), (0.03, 0.15)])
@pytest.mark.parametrize("runs", [6, 20, 60])
def test_noise_is_seldom_a_step(spread: float, most: float, runs: int) -> None:
    false = sum(bool(find_steps(series_of(seed, [(runs, 1e-3)], spread), 0.01)) for seed in range(200))
    assert false / 200 <= most


def test_what_is_below_the_threshold_is_no_step() -> None:
    medians = [1e-3] * 10 + [1.008e-3] * 10
    assert find_steps(medians, 0.01) == []
    assert [step.index for step in find_steps(medians, 0.005)] == [10]
    assert find_steps([1e-3], 0.01) == find_steps([], 0.01) == []


def test_distances_to_the_median_are_kept_up_value_by_value() -> None:
    draw = random.Random(3)
    for _ in range(50):
        values = [draw.choice([1.0, 2.0, 3.0, draw.random()]) for _ in range(draw.randint(2, 15))]
        for end, distance in _distances(values, 0):
            middle = stats.median(values[:end])
            assert distance == pytest.approx(sum(abs(v - middle) for v in values[:end]))


# The database -----------------------------------------------------------------------------------------------------


def add_run(
    folder: Path,
    day: int,
    times: dict[str, float],
    *,
    code: str = "",
    revision: Revision | None = None,
    **environment: Any,
) -> Path:
    """A run of a day; a time of 0 is a wrong case."""
    results = [
        measured(name, noisy(day, time), machine_code_sha256=code)
        if time
        else result(name, status="wrong", reason="no")
        for name, time in times.items()
    ]
    found = run(results, started=f"2026-02-{day:02d}T03:04:05+01:00")
    elsewhere(found, **environment)
    found.header = replace(found.header, revision=revision)
    return written(folder / f"day{day:02d}", found)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Twenty days, written in no order: a step on day 11, one odd day, a wrong day, a new driver on day 16."""
    folder = tmp_path / "runs"
    for day in random.Random(1).sample(range(1, 21), 20):
        slower = 1.08e-3 if day >= 11 else 1e-3
        late = {"driver": "590.1"} if day >= 16 else {}
        times = {"steps": slower, "even": 1.3e-3 if day == 5 else 1e-3, "wrong": 0 if day == 7 else 2e-3}
        if day == 20:
            times["newcomer"] = 1e-4
        add_run(folder, day, times, code=("a" if day < 11 else "b") * 64, **late)
    return folder


def series(connection: sqlite3.Connection, **options: Any) -> dict[str, history.Series]:
    """By variant."""
    return {re.sub(r"relu/|\(.*", "", s.case): s for s in history.all_series(connection, **options)}


def test_runs_are_ordered_by_time_and_steps_found(runs: Path) -> None:
    connection = history.open_database(None)
    assert len(history.add_runs(connection, history.find_runs([runs]))) == 20
    found = series(connection)
    assert [point.folder[-5:] for point in found["steps"].points] == [f"day{day:02d}" for day in range(1, 21)]
    ((point, step),) = found["steps"].steps
    assert point.folder.endswith("day11") and step.index == 10 and step.ratio == pytest.approx(1.08, rel=0.005)
    assert found["steps"].changes == ((15, "driver: 580.0 → 590.1"),)
    assert found["even"].steps == found["wrong"].steps == ()
    assert [p.status for p in found["wrong"].points if p.median_s is None] == ["wrong"]
    assert found["newcomer"].last_over_first is None and found["steps"].last_over_first == pytest.approx(
        1.08, rel=0.005
    )
    assert found["steps"].points[0].started == "2026-02-01T02:04:05+00:00", "UTC"
    assert list(series(connection, cases=["relu/ev*"])) == ["even"]
    connection.close()


def test_across_environments_nothing_is_a_step(tmp_path: Path) -> None:
    for day in range(1, 13):
        add_run(tmp_path, day, {"v": 1e-3 if day < 7 else 2e-3}, driver="1" if day < 7 else "2")
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([tmp_path]))
    found = series(connection)["v"]
    assert found.steps == () and [index for index, _ in found.changes] == [6]
    connection.close()


@pytest.mark.parametrize(("factor", "steps"), [(1.02, 0), (1.08, 1)])
def test_another_gpu_of_the_kind_needs_a_larger_step(tmp_path: Path, factor: float, steps: int) -> None:
    for day in range(1, 13):
        add_run(tmp_path, day, {"v": 1e-3 * (factor if day > 6 else 1)}, uuid=f"GPU-{day % 2}")
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([tmp_path]))
    assert len(series(connection)["v"].steps) == steps
    connection.close()


def test_the_database_reads_what_is_new_and_keeps_what_is_gone(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.db"
    connection = history.open_database(path)
    assert len(history.add_runs(connection, history.find_runs([runs]))) == 20
    connection.close()
    connection = history.open_database(path)
    assert history.add_runs(connection, history.find_runs([runs])) == []
    shutil.copytree(runs / "day03", tmp_path / "copy")
    assert history.add_runs(connection, history.find_runs([tmp_path / "copy"])) == [], "a copy is the same run"
    writer = RunWriter(runs / "day04")
    writer.result(measured("resumed", noisy(1)))
    writer.close()
    assert history.add_runs(connection, history.find_runs([runs])) == [runs / "day04" / "results.jsonl"]
    assert len(series(connection)["resumed"].points) == 1
    shutil.rmtree(runs)
    assert len(series(connection)["steps"].points) == 20
    (orphans,) = connection.execute(
        "SELECT count(*) FROM samples WHERE result NOT IN (SELECT result FROM results)"
    ).fetchone()
    assert orphans == 0
    connection.close()


def test_queries_change_nothing_and_mistakes_name_the_tables(runs: Path) -> None:
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([runs]))
    names, rows = history.query(connection, "SELECT count(*) AS n, max(seconds) > 0 AS some FROM samples")
    assert (names, rows) == (["n", "some"], [(20 * 59 + 20 * 1 + 0, 1)])
    for sql, words in (("DELETE FROM runs", "readonly"), ("SELECT x FROM runs", "no such column"), ("SELEC", "syntax")):
        with refuses("sql", "--sql") as raised:
            history.query(connection, sql)
        assert words in raised.value.value and "results(result, run, case_name, operator" in raised.value.allowed
    assert history.query(connection, "SELECT count(*) FROM runs")[1] == [(20,)]
    for table, columns in TABLES.items():
        assert history.query(connection, f"SELECT {', '.join(columns)} FROM {table} LIMIT 1")[0] == list(columns)
    connection.close()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, and longer than a hundred bytes" * 10)
    with refuses("not-a-database"):
        history.open_database(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("PRAGMA user_version = 99")
    other.close()
    with refuses_version("version", 99, 2):
        history.open_database(tmp_path / "other.db")
    with refuses("no-run"):
        history.find_runs([tmp_path])


def test_the_committed_runs_have_a_history() -> None:
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([REPORTS, REPORTS.with_name("h200")]))
    found = history.all_series(connection)
    on_one_gpu = [s.case for s in found for at, step in s.steps if s.timed[step.index - 1].uuid == at.uuid]
    assert sum(len(s.timed) > 1 for s in found) >= 600 and not on_one_gpu  # cuBLAS took 6 % longer on another H200
    connection.close()


# Words and pages --------------------------------------------------------------------------------------------------


def test_words_and_page(runs: Path) -> None:
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([runs]))
    found = history.all_series(connection)
    connection.close()
    text = history_lines(found)
    (stepped,) = (line for line in text if "  relu/steps" in line)
    assert "20  1.00 ms  1.08 ms" in stepped and "+8.0 % 2026-02-11" in stepped
    assert text[-1] == "4 cases in 20 runs from 2026-02-01 to 2026-02-20: 1 step, 1 slower"
    page = to_page(found, 0.01)
    assert page.index("relu/steps") < page.index("Changes without a step") < page.index('id="operator-relu"')
    assert page.count('class="trend"') >= 1 and "driver: 580.0 → 590.1" in page and ">changed<" in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert all(0 <= float(x) <= 440 for x in re.findall(r'\bcx="([\d.-]+)"', page))
    assert all(0 <= float(y) <= 72 for y in re.findall(r'\b(?:cy|y1|y2)="([\d.-]+)"', page))
    told = json.loads(json.dumps(to_json(found)))
    assert [len(entry["steps"]) for entry in told] == [0, 0, 1, 0]


def test_what_became_slower_is_told_from_the_rest(cli: Cli, tmp_path: Path) -> None:
    """By the newest step, else by the last time beside the first; a link of the page and an option show no other."""
    for day in range(1, 13):
        back = 1e-3 if day <= 4 else 2e-3 if day <= 8 else 1.5e-3
        add_run(tmp_path / "runs", day, {"mended": back, "stepped": 1e-3 if day <= 6 else 2e-3, "even": 1e-3})
    add_run(tmp_path / "runs", 13, {"late_slower": 1e-3})
    add_run(tmp_path / "runs", 14, {"late_slower": 1.2e-3})
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([tmp_path / "runs"]))
    found = series(connection)
    connection.close()
    assert {name: case.trend(0.01) for name, case in found.items()} == {
        "mended": "faster",
        "stepped": "slower",
        "even": "same",
        "late_slower": "slower",
    }
    assert found["late_slower"].trend(0.3) == "same"
    page = to_page(list(found.values()), 0.01)
    assert '<a href="#filter=is:slower">only slower (2)</a><a href="#filter=is:faster">only faster (1)</a>' in page
    assert page.count('data-name="is:faster relu/mended') == 3, "each of its two steps, and its row"
    told = json.loads(cli("history", tmp_path / "runs", "--only", "slower", "--json").stdout)
    assert [re.sub(r"relu/|\(.*", "", case["case"]) for case in told] == ["late_slower", "stepped"]


def test_a_case_without_a_step_takes_a_row_in_a_folded_table(tmp_path: Path) -> None:
    for day in (1, 2):
        add_run(tmp_path, day, {f"v{i}": 1e-3 * (1 + 0.0001 * i * day) for i in range(300)})
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([tmp_path]))
    found = history.all_series(connection)
    connection.close()
    page = to_page(found, 0.01)
    assert "No step in 300 cases that more than one run measured." in page
    assert "relu</strong>: 300 cases, no step" in page and page.count("<details") == page.count("</details>")
    assert page.count("<svg") <= 16, "only the largest changes are drawn"
    body = page.split("</style>", 1)[1].split("<script>", 1)[0]
    assert len(re.findall(r"<\w", body)) < 300 * 10 + 16 * 30 + 150, "ten elements a case"


def test_bars_show_shape_and_not_noise() -> None:
    assert block_bars([1.0, 2.0]) == "▁█" and block_bars([1.0, 1.0005]) == "▁▁" and block_bars([3.0]) == "▁"


# The command ------------------------------------------------------------------------------------------------------


def test_the_command(cli: Cli, runs: Path, tmp_path: Path) -> None:
    done = cli("history", runs, "--out", "history.html", "--database", "history.db")
    assert done.returncode == 0 and "20 runs read into history.db" in done.stderr and "1 step" in done.stdout
    assert (tmp_path / "history.html").read_text().startswith("<!DOCTYPE html>")
    again = cli("history", runs, "--database", "history.db", "--case", "relu/even*")
    assert "0 runs read" in again.stderr and "relu/steps" not in again.stdout
    sql = "SELECT variant, avg(median_s) AS mean_s FROM results WHERE status = 'right' GROUP BY variant"
    rows = json.loads(cli("history", "--database", "history.db", "--sql", sql, "--json").stdout)
    assert {row["variant"]: row["mean_s"] for row in rows}["even"] == pytest.approx(1.015e-3, rel=0.01)
    assert cli("history", "--database", "history.db", "--sql", sql).stdout.splitlines()[0].split() == [
        "variant",
        "mean_s",
    ]
    assert cli("history").returncode == 2 and cli("history", "--database", "none.db").returncode == 2
    assert "no run lies here" in cli("history", tmp_path / "nowhere").stderr
    assert json.loads(cli("history", runs, "--json").stdout)[0]["case"] == "relu/even(n=1000000000)"


def test_commits_stand_beside_the_points_of_the_runs_that_told_them(tmp_path: Path) -> None:
    told = [None, Revision("1a2b3c4d" * 5, False), Revision("99aabbcc" * 5, True)]
    for day, revision in enumerate(told, start=1):
        add_run(tmp_path, day, {"v": 1e-3 * (1 + day)}, revision=revision)
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([tmp_path]))
    found = history.all_series(connection)
    connection.close()
    assert [point.revision for point in found[0].points] == ["", "1a2b3c4", "99aabbc + changes"]
    headings, line = history_lines(found)[:2]
    assert headings.split()[-2:] == ["commits", "case"]
    assert line.split("  ")[-2:] == ["? → 99aabbc + changes", found[0].case]
    page = to_page(found, 0.01)
    assert "commit 1a2b3c4: 3.00 ms" in page and '<div class="sub">commit 99aabbc + changes</div>' in page
    assert to_json(found)[0]["points"][2]["revision"] == "99aabbc + changes"  # type: ignore[index]


def test_a_database_from_before_commits_is_read_on(tmp_path: Path) -> None:
    add_run(tmp_path, 1, {"v": 1e-3})
    path = tmp_path / "history.db"
    connection = history.open_database(path)
    history.add_runs(connection, history.find_runs([tmp_path]))
    for column in ("revision", "changed"):
        connection.execute(f"ALTER TABLE runs DROP COLUMN {column}")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    add_run(tmp_path, 2, {"v": 1e-3}, revision=Revision("1a2b3c4d" * 5))
    connection = history.open_database(path)
    history.add_runs(connection, history.find_runs([tmp_path]))
    assert [point.revision for point in history.all_series(connection)[0].points] == ["", "1a2b3c4"]
    connection.close()


def test_regressions_come_first_and_the_terminal_gets_forty_lines(cli: Cli) -> None:
    done = cli("history", str(REPORTS), "--case", "relu/*", "--case", "matmul/*")
    printed = done.stdout.splitlines()
    assert len(printed) <= SHOWN_LINES and any("--all" in line for line in printed) and " cases in " in printed[-1]
    every = cli("history", str(REPORTS), "--case", "relu/*", "--case", "matmul/*", "--all").stdout
    assert len(every.splitlines()) > SHOWN_LINES and every.startswith(printed[0].split()[0])
    connection = history.open_database(None)
    history.add_runs(connection, history.find_runs([REPORTS / "repeat-1"]))
    history.add_runs(connection, history.find_runs([REPORTS / "repeat-2"]))
    found = {series.case: series for series in history.all_series(connection, (), 0.01)}
    shown = [line.split()[-1] for line in history_lines(list(found.values()), 0.01, show_all=False)[1:-2]]
    trends = [found[case].trend(0.01) for case in shown if case in found]
    assert trends == sorted(trends, key=TREND_ORDER.index) and trends[0] == "slower"
