"""`opbench new`: what it writes is right as it is, and overwrites nothing; and what CI shows of a wrong kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path

from opbench.kernels.folders import Catalog
from opbench.running.suite import read_suite
from support.checks.command_line import refused
from support.common import ROOT, Cli

WRONG = """// /// opbench
// operator = "relu"
// title    = "without a guard"
// launch   = [{ kernel = "bare", grid = ["cdiv(n, 64)"], block = [64] }]
// ///
extern "C" __global__ void bare(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    out[i] = fmaxf(x[i], 0.0f);
}
"""


def test_an_operator_and_a_variant_are_right_as_they_are_written(cli: Cli, here: Path) -> None:
    assert cli("new", "operator", "square").returncode == 0
    done = cli("new", "variant", "square/faster")
    assert done.returncode == 0
    assert "opbench check square/faster --variants mine" in done.stderr
    done = cli("check", "square", "--variants", "mine", "--cpu-only", "--case", "*BLOCK=256*")
    assert done.returncode == 0, done.stdout
    assert re.findall(r"square/(\w+) +\d+ right\n", done.stdout) == ["naive", "faster"]
    catalog = Catalog((here / "mine",))
    assert len(read_suite(here / "mine/square.toml", catalog, "cpu").cases) == 6


def test_a_guard_taken_away_is_found(cli: Cli, here: Path) -> None:
    cli("new", "operator", "square")
    kernel = here / "mine/square/naive.cu"
    kernel.write_text(kernel.read_text().replace("if (i < n) ", ""))
    done = cli("check", "square", "--variants", "mine", "--cpu-only", "--case", "*=256](n=31)", "--sarif", "log.sarif")
    assert done.returncode == 1
    entries = json.loads((here / "log.sarif").read_text())["runs"][0]["results"]
    assert {entry["ruleId"] for entry in entries} == {"out-of-bounds"}
    place = entries[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "mine/square/naive.cu"
    line = kernel.read_text().splitlines()[place["region"]["startLine"] - 1]
    assert "out[i]" in line


def test_the_first_variant_of_every_ladder_begins_a_variant(cli: Cli, here: Path) -> None:
    for operator in ("matmul", "softmax", "adam"):
        assert cli("new", "variant", f"{operator}/own").returncode == 0
        own = next(v for v in Catalog((here / "mine",)).variants(operator) if v.name == "own")
        foot = next(v for v in Catalog().variants(operator) if v.name == own.builds_on)
        assert not foot.builds_on
        assert own.launch == foot.launch


def test_nothing_is_overwritten_and_names_are_names(cli: Cli, here: Path) -> None:
    cli("new", "operator", "square")
    before = {path: path.read_bytes() for path in here.rglob("*.*") if path.is_file()}
    refused(cli("new", "operator", "square"), 2, "exists already", "opbench new variant square/NAME")
    refused(cli("new", "variant", "square/naive"), 2, "exists already")
    refused(cli("new", "operator", "Square"), 2, "a-z, 0-9 and _")
    refused(cli("new", "operator", "class"), 2, "not allowed as the name of an operator")
    refused(cli("new", "variant", "sqare/x"), 2, "did you mean 'square'", "opbench list operators")
    refused(cli("new", "variant", "relu"), 2, "opbench new variant relu/mine")
    (here / "taken").write_text("")
    refused(cli("new", "operator", "cube", "--in", "taken"), 2)
    assert {path: path.read_bytes() for path in before} == before


def test_ci_says_what_a_check_prints_at_its_line(cli: Cli, here: Path) -> None:
    assert cli("new", "ci", "--in", "kernels").returncode == 0
    workflow = (here / ".github/workflows/kernels.yml").read_text()
    assert "--variants kernels" in workflow
    assert "DIR" not in workflow and "BASE" not in workflow
    matcher = json.loads((here / ".github/opbench-matcher.json").read_text())["problemMatcher"][0]["pattern"][0]
    (here / "bare.cu").write_text(WRONG)
    done = cli("check", "bare.cu", "--cpu-only", "--random", "0", "--case", "*(n=31)", "--sarif", "log.sarif")
    match = next(found for line in done.stdout.splitlines() if (found := re.match(matcher["regexp"], line)))
    assert match[matcher["file"]] == "bare.cu"
    assert match[matcher["line"]] == "8"
    log = json.loads((here / "log.sarif").read_text())
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0" and rule["id"] == "out-of-bounds"
    assert "opbench help finding out-of-bounds" in rule["help"]["text"]
    (entry, *_) = log["runs"][0]["results"]
    assert entry["properties"]["remedy"] and entry["locations"][0]["physicalLocation"]["region"]["startColumn"] > 1


def test_notes_are_said_on_request_and_are_no_faults(cli: Cli, here: Path) -> None:
    (here / "flag.cu").write_text((ROOT / "tests/truth/right/all_raise_one_flag.cu").read_text())
    asked = ("check", "flag.cu", "--cpu-only", "--random", "0", "--case", "*(n=31)")
    silent = cli(*asked, "--sarif", "silent.sarif")
    assert silent.returncode == 0 and "note" not in silent.stdout
    assert json.loads((here / "silent.sarif").read_text())["runs"][0]["results"] == []
    said = cli(*asked, "--notes", "--sarif", "said.sarif")
    (line,) = (line for line in said.stdout.splitlines() if line.startswith("note: "))
    assert said.returncode == 0 and line.startswith("note: flag.cu:13: same-value: write of 4 bytes")
    (entry,) = json.loads((here / "said.sarif").read_text())["runs"][0]["results"]
    assert (entry["level"], entry["ruleId"]) == ("note", "same-value")
