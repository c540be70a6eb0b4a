"""A network's run as trace events, and what to ship out of runs."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from opbench.networks.records.network import read_network
from opbench.records import read_json
from support.builders.runs import relu_run, written
from support.checks.command_line import refused
from support.common import ROOT, Cli

LENET = ROOT / "reports/h200/networks/lenet-1-f32"


def test_each_node_is_an_event_of_its_own_time_after_the_one_before(cli: Cli, tmp_path: Path) -> None:
    assert cli("export", LENET, "--format", "chrome-trace", "--out", "trace.json").returncode == 0
    trace = json.loads((tmp_path / "trace.json").read_text())
    nodes = read_network(LENET).nodes
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in events] == [node.name for node in nodes]
    for event, after in itertools.pairwise(events):
        assert after["ts"] == pytest.approx(event["ts"] + event["dur"], abs=0.002)
    last = events[-1]
    assert last["ts"] + last["dur"] == pytest.approx(trace["metadata"]["sum_of_nodes_s"] * 1e6, abs=0.01)


def test_a_run_without_times_is_refused(cli: Cli, tmp_path: Path) -> None:
    record = read_json(LENET / "network.json", "")
    for node in record["nodes"]:
        node["kernel_s"] = None
    (tmp_path / "network.json").write_text(json.dumps(record))
    refused(
        cli("export", tmp_path, "--format", "chrome-trace", "--out", "t.json"), 2, "has no times", "opbench net run"
    )
    assert not (tmp_path / "t.json").exists()


def test_best_is_of_the_runs_in_reports_unless_some_are_named(cli: Cli, tmp_path: Path) -> None:
    old = tmp_path / "reports" / "old"
    old.mkdir(parents=True)
    (old / "results.jsonl.bak").touch()  # not the name of a run's file
    refused(cli("best"), 2, "no GPU run was found in reports/", "opbench run quick")
    written(tmp_path / "reports" / "a" / "deeper", relu_run())
    refused(cli("best"), 2, "name a run, such as reports/a/deeper")
    shutil.copytree(ROOT / "reports/h200/quick", tmp_path / "reports/quick")
    done = cli("best", "relu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("relu(n=")
    assert "matmul" not in done.stdout
    assert cli("best", "relu", tmp_path / "reports/quick").stdout == done.stdout
    told = json.loads(cli("best", "relu", "--json").stdout)
    assert {entry["operator"] for entry in told["entries"]} == {"relu"}
    refused(cli("best", "rellu", tmp_path / "reports/quick"), 2, "did you mean 'relu'")
    refused(cli("open", old), 2, "has no page", "opbench report")
    refused(cli("open", tmp_path / "reports"), 2, "has no page", "opbench open reports/a/deeper")
