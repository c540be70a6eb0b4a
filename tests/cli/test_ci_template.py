"""`opbench new ci`: the workflow is read as YAML, its steps are run, and its matcher sees every kind of finding."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from opbench.backend.findings import Finding
from opbench.backend.rules import RULES
from opbench.emulator.reports import RULES_BY_KIND
from opbench.report.findings import finding_lines
from support.common import Cli

WORKFLOW, MATCHER = Path(".github/workflows/kernels.yml"), Path(".github/opbench-matcher.json")
SOURCE = "https://example.org/opbench.git@v1"


def workflow(here: Path) -> dict[Any, Any]:
    """The workflow as GitHub reads it."""
    read = yaml.safe_load((here / WORKFLOW).read_text())
    assert isinstance(read, dict)
    return read


def shell(read: dict[Any, Any], job: str, name: str) -> str:
    """The text of a step."""
    (text,) = (step["run"] for step in read["jobs"][job]["steps"] if step.get("name") == name)
    return str(text)


def simulate(here: Path, text: str, codes: dict[str, int], source: str = SOURCE) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does, with commands that write down how they were called and exit with these codes."""
    tools = here / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("opbench", "pip"):
        lines = [f'echo {tool} "$@" >> "{here}/calls"']
        lines += [f'case "{tool} $*" in *"{words}"*) exit {code} ;; esac' for words, code in codes.items()]
        (tools / tool).write_text("\n".join(["#!/bin/bash", *lines, ""]))
        (tools / tool).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OPBENCH_SOURCE": source}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)


def calls(here: Path) -> list[str]:
    """The commands of the last simulation."""
    found = (here / "calls").read_text().splitlines()
    (here / "calls").unlink()
    return found


def test_a_nightly_run_checks_and_times(cli: Cli, here: Path) -> None:
    assert cli("new", "ci").returncode == 0
    read = workflow(here)
    events = read[True]  # YAML 1.1 reads `on` as true
    assert set(events) == {"pull_request", "workflow_dispatch", "schedule"}
    assert re.fullmatch(r"\d+ \d+ \* \* \*", events["schedule"][0]["cron"])
    assert "if" not in read["jobs"]["check"]
    assert read["jobs"]["time"]["if"] == "github.event_name != 'pull_request'"


def test_an_address_that_was_not_filled_in_fails_with_a_hint(cli: Cli, here: Path) -> None:
    done = cli("new", "ci")
    assert "set OPBENCH_SOURCE in .github/workflows/kernels.yml" in done.stderr
    read = workflow(here)
    step = shell(read, "check", "Install opbench")
    refused = simulate(here, step, {}, source=read["env"]["OPBENCH_SOURCE"])
    assert refused.returncode == 1 and "::error file=.github/workflows/kernels.yml::" in refused.stdout
    assert not (here / "calls").exists()


def test_an_address_is_installed_from_and_no_bare_name_ever(cli: Cli, here: Path) -> None:
    assert cli("new", "ci", "--source", SOURCE).returncode == 0
    read = workflow(here)
    assert read["env"]["OPBENCH_SOURCE"] == SOURCE
    assert simulate(here, shell(read, "check", "Install opbench"), {}).returncode == 0
    assert calls(here) == [f"pip install opbench[nvrtc] @ git+{SOURCE}"]
    installs = re.findall(r"pip install .*", (here / WORKFLOW).read_text())
    assert installs and all("@ git+$OPBENCH_SOURCE" in line for line in installs)


def test_the_base_of_the_hint_is_the_base_of_the_workflow(cli: Cli, here: Path) -> None:
    assert cli("new", "operator", "square", "--in", "kernels").returncode == 0
    done = cli("new", "ci", "--in", "kernels", "--base", "runs of/base")
    hinted = re.search(r"opbench run kernels/square\.toml --variants kernels --out '(.*)'", done.stderr)
    assert hinted and hinted[1] == "runs of/base/square"
    (here / hinted[1]).mkdir(parents=True)
    step = shell(workflow(here), "time", "Time the suites and compare with " + "'runs of/base'")
    assert simulate(here, step, {}).returncode == 0
    assert calls(here) == [
        "opbench run kernels/square.toml --variants kernels --out runs/square",
        "opbench compare runs of/base/square runs/square",
    ]


@pytest.mark.parametrize(("code", "fails"), [(0, False), (4, False), (1, True), (5, True), (6, True)])
def test_what_cannot_be_decided_does_not_fail_the_job(cli: Cli, here: Path, code: int, fails: bool) -> None:
    cli("new", "operator", "square")
    assert cli("new", "ci").returncode == 0
    (here / "reports/base/square").mkdir(parents=True)
    step = shell(workflow(here), "time", "Time the suites and compare with reports/base")
    done = simulate(here, step, {"opbench compare": code})
    assert (done.returncode != 0) == fails
    assert ("UNDECIDED" in done.stdout) == (code == 4)


def test_a_suite_without_a_base_is_timed_and_named(cli: Cli, here: Path) -> None:
    cli("new", "operator", "square")
    assert cli("new", "ci").returncode == 0
    step = shell(workflow(here), "time", "Time the suites and compare with reports/base")
    done = simulate(here, step, {})
    assert done.returncode == 0 and "--out reports/base/square" in done.stdout
    assert calls(here) == ["opbench run mine/square.toml --variants mine --out runs/square"]
    assert simulate(here, step, {"opbench run": 1}).returncode == 1


def printed(finding: Finding) -> str:
    """The first line of a finding as the terminal has it."""
    return finding_lines(finding)[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_matcher_sees_every_kind_of_finding(cli: Cli, here: Path, rule: Any) -> None:
    assert cli("new", "ci").returncode == 0
    error, note = (each["pattern"][0] for each in json.loads((here / MATCHER).read_text())["problemMatcher"])
    inside = Finding(rule.kind, "what happened: here", "mine/a kernel.cu", 12, block=(0, 0, 0), thread=(1, 0, 0))
    called = Finding(rule.kind, "it", "tma.cuh", 29, called_from=42, kernel_file="mine/own.cu", column=5)
    nowhere = Finding(rule.kind, "it", "mine/own.cu")
    for finding, file, line in (
        (inside, "mine/a kernel.cu", "12"),
        (called, "mine/own.cu", "42"),
        (nowhere, "mine/own.cu", None),
    ):
        for pattern, start in ((error, ""), (note, "note: ")):
            match = re.match(pattern["regexp"], start + printed(finding))
            assert match and (match[pattern["file"]], match[pattern["line"]]) == (file, line)
            assert match[pattern["code"]] == rule.name and match[pattern["message"]].startswith(finding.message)
        assert re.match(error["regexp"], f"note: {printed(finding)}") is None
        rest = finding_lines(finding, ("rerun: opbench check mine/own.cu:3: out-of-bounds: x",))[1:]
        assert not any(re.match(pattern["regexp"], line) for pattern in (error, note) for line in rest)


def test_rules_of_the_emulator_are_among_those_that_the_matcher_sees() -> None:
    assert {form.rule for form in RULES_BY_KIND.values()} <= set(RULES)
