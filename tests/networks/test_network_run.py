"""Runs of networks read as runs of cases: compared, exported, loaded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import opbench
from opbench.graph.zoo import lenet
from opbench.networks.records.network_run import network_run, read_any_run
from opbench.records import read_json
from opbench.results.comparison import NotComparable, RunComparison, compare_runs
from support.builders.network_runs import record as fabricated
from support.builders.network_runs import typed
from support.builders.runs import result, run, written
from support.checks.errors import refuses
from support.common import ROOT, Cli

NAME = "lenet(batch=1,precision=f32)"
COMMITTED = ROOT / "reports/h200/networks/alexnet-1-f32"


def record(factors: dict[str, float] | None = None, noise: float = 0.002, **changed: Any) -> dict[str, Any]:
    """A record of a timed lenet, its nodes slower by factors and with fifteen samples each."""
    made = fabricated(lenet(), **changed)
    draw = random.Random(str(factors))
    for node in made["nodes"]:
        time_s = 20 * node["kernel_s"] * (factors or {}).get(node["name"], 1.0)
        node["samples_s"] = [time_s * (1 + noise * draw.gauss(0, 1)) for _ in range(15)]
        node["kernel_s"] = sorted(node["samples_s"])[7]
        node["case"] = f"{node['operator']}/plain{node['problem']}"
    return made


def compared(base: dict[str, Any], new: dict[str, Any]) -> tuple[RunComparison, dict[str, str]]:
    found = compare_runs(network_run(typed(base), Path("base")), network_run(typed(new), Path("new")))
    return found, {case.case.removeprefix(NAME).removeprefix("/"): str(case.change) for case in found.cases}


def test_nodes_are_judged_by_the_interval_of_their_samples() -> None:
    found, changes = compared(record(), record({"conv1": 1.3, "conv2": 0.7}))
    assert changes.pop("conv1") == "SLOWER" and changes.pop("conv2") == "FASTER"
    assert changes.pop("") == "SAME" and set(changes.values()) == {"SAME"} and len(changes) > 3
    assert found.exit_code == 1 and found.cases[0].time and found.cases[0].time.low > 1.28

    _, noisy = compared(record(), record({"fc3": 1.02}, noise=0.2))
    assert noisy["fc3"] == "UNDECIDED"


def test_a_node_that_broke_and_a_variant_that_changed_are_said() -> None:
    new = record({"fc3": 0.5})
    for node in new["nodes"]:
        if node["name"] == "conv1":
            node["check"] |= {"right": False, "status": "wrong", "reason": "out[3]: got 1, want 2"}
        if node["name"] == "fc3":
            node["case"] = node["case"].replace("/plain", "/vec4[BLOCK=64]")
    new["check"] = {"right": False, "missing": ["conv1"], "outputs": {}}
    found, changes = compared(record(), new)
    reasons = {case.case.rpartition("/")[2]: case.reason for case in found.cases}
    assert changes["conv1"] == changes[""] == "BROKEN" and found.exit_code == 5
    assert "out[3]" in reasons["conv1"] and "wrong nodes: conv1" in reasons[NAME]
    assert changes["fc3"] == "FASTER" and reasons["fc3"].startswith("plain → vec4[BLOCK=64]: −5")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The folder of a record whose nodes have a median and no samples."""
    made = read_json(COMMITTED / "network.json", "")
    for node in made["nodes"]:
        node["samples_s"] = []
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "network.json").write_text(json.dumps(made))
    return tmp_path / "older"


def test_an_older_record_has_no_interval_of_its_nodes_and_one_of_the_whole(older: Path) -> None:
    found = compare_runs(read_any_run(older), read_any_run(older))
    whole, nodes = [c for c in found.cases if "/" not in c.case], [c for c in found.cases if "/" in c.case]
    assert [str(c.change) for c in whole] == ["SAME"] and len(nodes) == 11
    assert all(c.change == "UNDECIDED" and c.base_s and "BASE and NEW kept no samples" in c.reason for c in nodes)
    json.dumps(found.to_json())


@pytest.mark.parametrize("changed", [{"sizes": {"batch": 2}}, {"precision": "bf16"}, {"network": "other"}])
def test_another_problem_is_not_compared(changed: dict[str, Any]) -> None:
    found, _ = compared(record(), {**record(), **changed})
    assert not found.cases and found.exit_code == 6


def test_a_network_is_not_compared_with_single_cases() -> None:
    network = network_run(typed(record()), Path("net"))
    with refuses("other-kind", "net"):
        compare_runs(run([result("vec4", 1e-6)]), network)
    other = record()
    other["environment"] = {"gpu": "NVIDIA H100"}
    with pytest.raises(NotComparable) as refused:
        compared(record(), other)
    assert [one.key for one in refused.value.differences] == ["gpu"]


def test_a_run_without_a_gpu_compares_verdicts() -> None:
    _, changes = compared(fabricated(lenet(), timed=False), fabricated(lenet(), timed=False))
    assert set(changes.values()) == {"RIGHT"}


def test_the_frame_has_a_row_a_node_and_no_ranks(tmp_path: Path, older: Path) -> None:
    (tmp_path / "network.json").write_text(json.dumps(record()))
    table = opbench.load(tmp_path).set_index("case")
    assert list(table.index)[:2] == [NAME, f"{NAME}/conv1"]
    row = table.loc[f"{NAME}/conv1"]
    assert row["samples"] == 15 and row["time_low_s"] < row["time_s"] < row["time_high_s"] and row["peak_share"] > 0
    assert table["rank"].isna().all() and table["speedup_over_previous"].isna().all()
    old = opbench.load(older).set_index("case")
    assert old["time_s"].notna().all() and old["time_low_s"].isna().sum() == 11


@pytest.mark.parametrize("layout", ["csv", "nvbench", "pytest-benchmark"])
def test_a_network_is_exported(cli: Cli, tmp_path: Path, older: Path, layout: str) -> None:
    (tmp_path / "network.json").write_text(json.dumps(record()))
    for folder, name in ((tmp_path, NAME), (older, "alexnet(batch=1,precision=f32)")):
        done = cli("export", str(folder), "--format", layout, "--out", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
        assert f"{name}/conv1" in (tmp_path / "out").read_text() or (folder == older and layout != "csv")


def test_the_command_compares_networks(cli: Cli, tmp_path: Path) -> None:
    for name, factors in (("base", {}), ("new", {"fc3": 1.5})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "network.json").write_text(json.dumps(record(factors)))
    page = tmp_path / "page.html"
    done = cli("compare", str(tmp_path / "base"), str(tmp_path / "new"), "--out", str(page))
    assert done.returncode == 1 and f"SLOWER  {NAME}/fc3" in done.stdout
    assert f"{NAME}/fc3" in page.read_text()
    written(tmp_path / "cases", run([result("vec4", 1e-6)]))
    assert cli("compare", str(tmp_path / "base"), str(tmp_path / "cases")).returncode == 2
