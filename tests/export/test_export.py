"""Exports are read by the tools whose formats they are, as far as these are installed."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.export import FORMATS, export
from opbench.results.files import Run, read_run
from opbench.results.result import Result
from opbench.results.rows import frame
from support.builders.runs import measured, noisy, relu_run, remeasured, result, run, written
from support.checks.errors import needs_extra
from support.common import ROOT, Cli

QUICK = ROOT / "reports" / "h200" / "quick"


def changed(found: Run, factor: float) -> Run:
    """The same run with every sample multiplied."""

    def slower(one: Result) -> Result:
        if not one.measurement:
            return one
        samples = tuple(s * factor for s in one.samples_s)
        return remeasured(one, samples_s=samples)

    return replace(found, results=[slower(one) for one in found.results])


# NVBench ----------------------------------------------------------------------------------------------------------


def state_of(document: Any, description: str) -> Any:
    """The state of one case."""
    states = [state for bench in document["benchmarks"] for state in bench["states"]]
    return next(state for state in states if state["description"] == description)


def test_nvbench_json_and_its_sample_files(tmp_path: Path) -> None:
    path = tmp_path / "quick.json"
    found = read_run(QUICK)
    skipped = replace(found.results[-1], status="unsupported", reason="needs CuPy", measurement=None)
    files = export(replace(found, results=[*found.results[:-1], skipped]), "nvbench", path)
    document = json.loads(path.read_text())
    assert files[0] == path and document["meta"]["version"]["json"]["string"] == "1.0.0"
    assert document["devices"][0] | {"id": 0, "name": "NVIDIA H200", "sm_version": 900} == document["devices"][0]
    case = next(r for r in read_run(QUICK).results if r.measurement and r.operator == "matmul")
    state = state_of(document, case.case)
    values = {value["name"]: value["value"] for value in state["axis_values"]}
    assert values["Variant"] == case.variant and values["m"] == str(case.axes["m"])
    summaries = {summary["tag"]: {d["name"]: d["value"] for d in summary["data"]} for summary in state["summaries"]}
    assert case.measurement
    assert float(summaries["nv/cold/time/gpu/median"]["value"]) == case.measurement.median_s
    times, clocks = (summaries[f"nv/json/{k}"] for k in ("bin:nv/cold/sample_times", "freqs-bin:nv/cold/sample_freqs"))
    samples = np.fromfile(tmp_path / times["filename"], "<f4")
    assert samples == pytest.approx(case.samples_s) and int(times["size"]) == len(samples)
    assert len(np.fromfile(tmp_path / clocks["filename"], "<f4")) == len(samples)
    assert len({summary["filename"] for summary in (times, clocks)}) == 2
    assert (
        state_of(document, skipped.case)["is_skipped"]
        and skipped.reason in state_of(document, skipped.case)["skip_reason"]
    )
    assert {f.relative_to(tmp_path).parts[0] for f in files} == {"quick.json", "quick.json-bin", "quick.json-freqs-bin"}


def nvbench_tool(name: str) -> str:
    """A script of NVIDIA's cuda-bench, beside this Python or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip("needs NVIDIA's scripts: pip install 'cuda-bench[tools]'")
    return found


def table(text: str) -> str:
    """The rows of the tables in a tool's output."""
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("tool", ["nvbench-compare-legacy", "nvbench-compare-robust"])
def test_nvidias_own_comparison_reads_it(tmp_path: Path, tool: str) -> None:
    command = nvbench_tool(tool)
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    export(read_run(QUICK), "nvbench", base)
    export(changed(read_run(QUICK), 1.2), "nvbench", new)
    alike = subprocess.run([command, base, base], capture_output=True, text=True, check=False)
    slower = subprocess.run([command, base, new], capture_output=True, text=True, check=False)
    assert "SAME" in alike.stdout and "SLOW" not in table(alike.stdout)
    measured_cases = sum(bool(one.measurement) for one in read_run(QUICK).results)
    assert table(slower.stdout).count("SLOW") == measured_cases, slower.stdout + slower.stderr
    assert "Traceback" not in slower.stderr and "unavailable" not in slower.stderr


def test_nvidias_own_summary_reads_it(tmp_path: Path) -> None:
    command = nvbench_tool("nvbench-json-summary")
    export(read_run(QUICK), "nvbench", tmp_path / "q.json")
    done = subprocess.run([command, tmp_path / "q.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "NVIDIA H200" in done.stdout and "grid_stride_vec4" in done.stdout


# pytest-benchmark -------------------------------------------------------------------------------------------------


def test_pytest_benchmarks_own_comparison_reads_it(tmp_path: Path) -> None:
    samples = [measured("v", noisy(0)), measured("w", noisy(1, 2e-3)), result("x", status="wrong", reason="no")]
    base, new = tmp_path / "0001_base.json", tmp_path / "0002_new.json"
    export(run(samples), "pytest-benchmark", base)
    export(changed(run(samples), 1.5), "pytest-benchmark", new)
    command = [str(Path(sys.executable).with_name("pytest-benchmark")), "compare", str(base), str(new)]
    command += ["--columns=median,rounds,ops", "--name=long", "--time-unit=us", f"--csv={tmp_path / 'out.csv'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "opbench::relu/v(n=1000000000)" in done.stdout and "relu/x" not in done.stdout
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    medians = sorted(float(row["median"]) for row in rows)
    assert medians == pytest.approx([1e-3, 1.5e-3, 2e-3, 3e-3], rel=0.01)


def test_its_statistics_are_those_of_pytest_benchmark() -> None:
    from pytest_benchmark.stats import Stats

    from opbench.export.pytest_benchmark import sample_statistics

    samples = [*noisy(3, count=21), 2e-3]
    theirs = Stats()
    for sample in samples:
        theirs.update(sample)
    ours = sample_statistics(samples)
    same = ("min", "max", "mean", "stddev", "median", "rounds", "stddev_outliers", "iqr_outliers", "ops", "total")
    assert {key: ours[key] for key in same} == pytest.approx({key: getattr(theirs, key) for key in same})
    assert {*Stats.fields} <= ours.keys()


# Tables -----------------------------------------------------------------------------------------------------------


def test_csv_holds_every_row_and_leaves_what_is_missing_empty(tmp_path: Path) -> None:
    export(relu_run(), "csv", tmp_path / "deep" / "r.csv")
    rows = list(csv.DictReader((tmp_path / "deep" / "r.csv").read_text().splitlines()))
    assert len(rows) == len(relu_run().results)
    by_variant = {row["variant"] + row["config"]: row for row in rows}
    assert by_variant["vec4[BLOCK=512]"]["warnings"] == "noisy" and by_variant["racy"]["time_s"] == ""
    assert float(by_variant["naive"]["time_s"]) > 0


def test_parquet_needs_pyarrow_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with needs_extra("parquet"):
        export(relu_run(), "parquet", tmp_path / "r.parquet")
    assert not (tmp_path / "r.parquet").exists()


def test_parquet_round_trip(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="only this format needs it; opbench[parquet] brings it")
    import pandas

    export(relu_run(), "parquet", tmp_path / "r.parquet")
    table = pandas.read_parquet(tmp_path / "r.parquet")
    assert len(table) == len(relu_run().results)
    assert list(table.time_s.notna()) == list(frame(relu_run()).time_s.notna())
    assert list(table[table.config == "[BLOCK=512]"].warnings.iloc[0]) == ["noisy"]


# The command ------------------------------------------------------------------------------------------------------


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path / "r", relu_run())
    for layout in FORMATS:
        if layout != "parquet":
            done = cli("export", "--format", layout, "r", "--out", f"out/{layout}.txt")
            assert done.returncode == 0 and f"wrote out/{layout}.txt" in done.stderr and done.stdout == ""
            assert (tmp_path / "out" / f"{layout}.txt").stat().st_size > 100
    assert cli("export", "--format", "xml", "r", "--out", "x").returncode == 2
    assert cli("export", "--format", "csv", "nowhere", "--out", "x").returncode == 2
    (tmp_path / "file").write_text("")
    assert cli("export", "--format", "csv", "r", "--out", "file/x.csv").returncode == 3
