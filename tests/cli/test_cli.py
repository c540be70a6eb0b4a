"""The command line as people use it: real processes, their exit codes, their words, their two streams."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from opbench import __version__
from opbench.results.files import read_run
from support.common import RELU, ROOT, WRONG, Cli


def test_without_arguments_it_shows_what_there_is(cli: Cli) -> None:
    bare, asked, version = cli(), cli("--help"), cli("--version")
    assert bare.returncode == asked.returncode == version.returncode == 0
    assert bare.stdout == asked.stdout and bare.stdout.startswith("Usage: opbench ")
    for code in ("0 all right", "1 a case is wrong or failed", "2 usage", "3 environment"):
        assert code in bare.stdout
    assert __version__ in version.stdout


def test_a_file_of_ones_own_runs_from_anywhere(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "a folder of mine"
    folder.mkdir()
    (folder / "my kernel.cu").write_text(RELU)
    done = cli("run", folder / "my kernel.cu", "--backend", "cpu", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").exists()
    results = read_run(tmp_path / "out").results
    assert {r.status for r in results if r.variant == "my kernel"} == {"right"}
    assert "my kernel" in done.stdout
    assert "Traceback" not in done.stderr and "\x1b" not in done.stdout + done.stderr


def test_a_run_without_a_report_names_the_command_that_draws_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(RELU)
    done = cli("run", "mine.cu", "--backend", "cpu", "--out", "out", "--cpu-only", "--no-report")
    assert done.returncode == 0 and "opbench report out" in done.stderr
    assert not list((tmp_path / "out").glob("*.html")) and not list((tmp_path / "out").glob("*.png"))
    assert cli("report", "out").returncode == 0 and (tmp_path / "out" / "report.html").exists()


def test_a_run_of_a_file_names_the_check_of_other_sizes(cli: Cli, tmp_path: Path) -> None:
    """Sizes that a block divides do not show a missing guard."""
    (tmp_path / "my relu.cu").write_text(RELU.replace("if (i < n) ", ""))
    done = cli("run", "my relu.cu", "--backend", "cpu", "--out", "run", "--cpu-only")
    (note,) = (line for line in done.stderr.splitlines() if line.startswith("note:"))
    assert done.returncode == 0 and note.endswith(": opbench check 'my relu.cu'")
    assert cli("run", "relu", "--backend", "cpu", "--out", "all", "--cpu-only").stderr.count("note:") == 0


def test_a_wrong_case_ends_in_1_and_its_line_repeats_it(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(WRONG)
    first = cli("check", relu_file, "--seed", "5", "--random", "1")
    assert first.returncode == 1
    assert "wrong-result: out[" in first.stdout and "expected " in first.stdout
    rerun = re.search(r"rerun: opbench (check .*) --case '(.*)'", first.stdout)
    assert rerun
    again = cli(*rerun[1].split(), "--case", rerun[2])
    assert again.returncode == 1 and first.stdout.splitlines()[1].partition(" (and ")[0] in again.stdout


def test_the_rerun_line_of_a_random_shape_finds_that_shape(cli: Cli, relu_file: Path) -> None:
    relu_file.write_text(
        RELU.replace('title = "', 'requires = ["n % 10 == 7 and n != 127 and n != 65537"]\n// title = "')
    )
    relu_file.write_text(relu_file.read_text().replace(": 0.0f", ": 1.0f"))
    first = cli("check", relu_file, "--random", "40", "--seed", "9")
    rerun = re.search(r"rerun: opbench (check .*) --case '(.*)'", first.stdout)
    assert first.returncode == 1 and rerun
    assert cli(*rerun[1].split(), "--case", rerun[2]).returncode == 1


def test_json_is_alone_on_stdout(cli: Cli, tiny_suite: Path) -> None:
    run = cli("run", tiny_suite, "--backend", "cpu", "--out", "out", "--json")
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    assert [r["case"] for r in results] == [r.case for r in read_run(tiny_suite.parent / "out").results]
    assert {r["status"] for r in results} == {"right"} and all(r["measurement"] is None for r in results)
    assert "report: " in run.stderr
    check = json.loads(
        cli("check", "relu/scalar", "--random", "0", "--json", "--case", "*(n=7)", "--case", "*(n=1)").stdout or "0"
    )
    assert check == 0, "n=7 is no example: the whole command is refused"
    check = json.loads(cli("check", "relu/scalar", "--random", "0", "--json", "--case", "*(n=1)").stdout)
    assert {r["problem"] for r in check} == {"(n=1)"}


def test_progress_goes_to_stderr_and_the_table_to_stdout(cli: Cli, tiny_suite: Path) -> None:
    done = cli("run", tiny_suite, "--backend", "cpu", "--out", "out")
    assert done.returncode == 0
    assert "8/8 done" in done.stderr and "done" not in done.stdout
    assert "scalar" in done.stdout and "BLOCK=256" in done.stdout and "relu(n=1000)" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    # The same table again, from the run's folder alone.
    again = cli("report", "out")
    assert again.returncode == 0 and again.stdout == done.stdout
    told = json.loads(cli("report", "out", "--json").stdout)
    assert [case["case"] for case in told] == [result.case for result in read_run(tiny_suite.parent / "out").results]


def test_the_module_and_the_script_are_the_same(cli: Cli) -> None:
    script = subprocess.run(
        [Path(sys.executable).with_name("opbench"), "--help"], capture_output=True, text=True, check=True
    )
    assert script.stdout == cli("--help").stdout
    assert (ROOT / "opbench" / "__main__.py").exists()
