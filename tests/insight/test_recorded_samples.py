"""`opbench profile --source` on what Nsight Compute 2025.3 printed on an H100, with a stand-in that prints it again."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opbench import nvtx
from opbench.cli import cli
from opbench.insight.levels import unit_bounds
from opbench.insight.nsight import parse
from opbench.insight.nsight.source_page import SampledKernel, read_sampled, with_lines, with_texts
from opbench.insight.source_profile import source_profile
from opbench.running.profile import executed_instructions

RECORDED = Path(__file__).parent / "recorded"
CASES = {
    "matmul_shared_tile": "matmul/shared_tile[TILE=32](m=2048,n=2048,k=2048)",
    "sum_interleaved": "sum/interleaved[BLOCK=256](n=67108864)",
}
FAKE_NCU = r"""#!{python}
import gzip, pathlib, sys
argv = sys.argv[1:]
if "--import" in argv:
    view = argv[argv.index("--print-source") + 1] if "--print-source" in argv else argv[argv.index("--page") + 1]
    print("==PROF== reading")
    print(gzip.open("{recorded}." + view.replace(",", "_") + ".csv.gz", "rt").read())
else:
    assert "SourceCounters" in argv and "--import-source" in argv
    pathlib.Path(argv[argv.index("-o") + 1] + ".ncu-rep").write_text("report")
"""


def recorded(name: str, view: str) -> str:
    return gzip.open(RECORDED / f"{name}.{view}.csv.gz", "rt").read()


def kernels(name: str) -> list[SampledKernel]:
    return with_lines(read_sampled(recorded(name, "sass")), recorded(name, "cuda_sass"))


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs, with the stand-in for ncu on PATH."""
    for variable in nvtx.TOOL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    tool = tmp_path / "bin" / "ncu"
    tool.parent.mkdir()
    tool.write_text(
        FAKE_NCU.replace("{python}", sys.executable).replace("{recorded}", str(RECORDED / "matmul_shared_tile"))
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "run"


def run(folder: Path, *options: str) -> Result:
    words = ["profile", CASES["matmul_shared_tile"], "--source", "--run", str(folder), *options]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("name", CASES)
def test_all_sums_equal_the_profilers_totals(name: str) -> None:
    totals = parse.read_ncu(recorded(name, "raw"))
    found = source_profile(CASES[name], "", kernels(name), totals)
    assert found.mismatches == () and found.compared == 2 + 19 + 1, "# Samples twice, each reason, the sample count"
    for kernel in found.kernels:
        charged = sum(one.samples for one in kernel.charges)
        by_line = sum(line.total for line in kernel.lines)
        assert charged == by_line == kernel.total == sum(sum(line.waiting.values()) for line in kernel.lines)
    assert found.total == sum(launch.get("smsp__pcsamp_sample_count") or 0 for launch in totals) > 30_000


def test_four_launches_of_one_kernel_are_one() -> None:
    (kernel,) = kernels("sum_interleaved")
    assert kernel.launches == 4 and len(kernel.instructions) == 88


def test_waits_are_charged_to_the_lines_that_cause_them() -> None:
    found = source_profile("", "", kernels("matmul_shared_tile"))
    by_line = {line.line: line for line in found.kernels[0].lines}
    text = next(iter(found.kernels[0].sources.values()))
    assert all("__syncthreads();" in text[number] for number in (33, 36))
    assert sum(by_line[number].charged["barrier"] for number in (33, 36)) == found.reasons["barrier"]
    assert "barrier" not in by_line[33].waiting, "the profiler samples the instruction after a barrier"
    loads = by_line[31].charged["long_scoreboard"] + by_line[32].charged["long_scoreboard"]
    assert loads == found.reasons["long_scoreboard"], "the two lines that load from global memory"
    assert next(iter(by_line[35].charged)) == "mio_throttle"


def test_a_page_has_the_whole_file_only_if_it_is_the_version_that_was_profiled() -> None:
    (kernel,) = kernels("matmul_shared_tile")
    ((file, listed_lines),) = kernel.sources.items()
    lines = [listed_lines.get(number, f"// comment {number}") for number in range(1, max(listed_lines) + 3)]
    whole = with_texts(kernel, lambda path: "\n".join(lines))
    assert whole.sources[file] == dict(enumerate(lines, start=1))
    lines[min(listed_lines) - 1] += "  // edited"
    assert with_texts(kernel, lambda path: "\n".join(lines)).sources == kernel.sources
    assert with_texts(kernel, lambda path: None).sources == kernel.sources


def test_the_command_prints_the_hottest_lines_and_writes_a_page(profiled: Path) -> None:
    done = run(profiled)
    rows = re.findall(r"^ *[\d.]+ % +shared_tile\.cu:(\d+)  .*$", done.output, re.MULTILINE)
    assert rows[:5] == ["35", "31", "32", "33", "36"] and len(rows) == 10
    assert "equal the profiler's own totals" in " ".join(done.output.split())
    assert "vectorised_access: see matmul/vectorised" in done.output
    (page,) = (profiled / "profile").glob("*.html")
    text = page.read_text()
    assert 'id="reason-mio_throttle"' in text and "BAR.SYNC.DEFER_BLOCKING" in text
    assert "or the next tile would overwrite" in text, "a line as recorded: the file was edited since"
    targets, anchors = set(re.findall(r'href="#([^"]+)"', text)), set(re.findall(r'id="([^"]+)"', text))
    assert targets <= anchors, targets - anchors


def test_json_has_lines_instructions_and_mismatches(profiled: Path) -> None:
    found = json.loads(run(profiled, "--json").stdout)
    assert found["samples"] == sum(found["reasons"].values()) == sum(line["samples"] for line in found["lines"])
    assert found["mismatches"] == [] and found["counters"]["tool"] == "ncu" and Path(found["page"]).exists()
    (kernel,) = found["kernels"]
    assert sum(sum(one["charged"].values()) for one in kernel["instructions"]) == found["samples"]
    barriers = [one for one in kernel["instructions"] if one["text"].startswith("BAR")]
    assert [sum(one["charged"].values()) > 7000 for one in barriers] == [True, True]
    after = next(one for one in kernel["instructions"] if one["offset"] == barriers[0]["offset"] + 16)
    assert {"reason": "barrier", "rule": "before"}.items() <= after["waits_for"][0].items()


def test_limits_are_compared_with_the_profiled_time(profiled: Path) -> None:
    found = json.loads(run(profiled, "--json").stdout)
    assert found["time_s"] > 1e-3 and found["gpu"] == "", "the recorded excerpt lacks the name of the GPU"
    assert found["bounds"] == []


def test_instructions_of_a_profile_are_exact() -> None:
    found = executed_instructions(kernels("matmul_shared_tile"))
    (totals,) = parse.read_ncu(recorded("matmul_shared_tile", "raw"))
    assert found.total == totals.get("smsp__inst_executed.sum") and found.source == "counted"
    bounds = {bound.limit: bound.time_s for bound in unit_bounds(found, "h100")}
    time_s = totals.get("gpu__time_duration.sum") or 0.0
    assert 0.7 * time_s < bounds["lsu"] < time_s and bounds["fma"] < bounds["issue"] < 0.5 * time_s


def test_source_needs_ncu(profiled: Path) -> None:
    done = CliRunner().invoke(cli, ["profile", CASES["matmul_shared_tile"], "--source", "--tool", "nsys"])
    assert done.exit_code != 0 and "--source needs --tool ncu" in str(done.exception)
