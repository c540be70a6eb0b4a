"""Which variants a training takes: by a plan's file, by measurements, as before when it goes on, within a limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.networks.plan.plan import TimedCase, save_plan
from opbench.networks.train import training
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import PLAN_FILE, Trainer
from support.builders.training_data import random_data
from support.checks.errors import Refusal, refuses


def tiny() -> Graph:
    net = Builder("tiny")
    y = net.relu(net.conv2d(net.input("image", 4, 1, 6, 5), 3, 3, padding=1, name="conv"), name="relu")
    return net.graph(net.linear(net.flatten(y), 4, name="scores"))


def trainer(out: Path, **options: object) -> Trainer:
    given = {"recipe": Recipe(steps=2), "backend": "cpu", "out": out, **options}
    return Trainer(tiny(), random_data(tiny(), 13), TrainingSettings(**given))  # type: ignore[arg-type]


def test_a_plan_is_written_may_be_edited_and_is_taken(tmp_path: Path) -> None:
    first = trainer(tmp_path / "first")
    record = first.run()
    plan = json.loads((tmp_path / "first" / PLAN_FILE).read_text())
    assert set(plan["choices"]) == {node.name for node in first.training.graph.nodes}
    assert {node.source for node in record.nodes} == {"default"}
    node = first.training.graph.node("conv.conv2d_wgrad")
    other = f"conv2d_wgrad/thread_per_weight[BLOCK=128]{node.problem}"
    assert plan["choices"]["conv.conv2d_wgrad"]["case"] != other
    plan["choices"]["conv.conv2d_wgrad"]["case"] = other
    (tmp_path / "edited.json").write_text(json.dumps(plan))
    second = trainer(tmp_path / "second", plan=tmp_path / "edited.json")
    assert second.cases["conv.conv2d_wgrad"].name == other
    second.run()
    assert json.loads((tmp_path / "second" / PLAN_FILE).read_text())["choices"] == plan["choices"]
    # What goes on takes the plan that it began with, as other kernels would give other bits.
    again = trainer(tmp_path / "second", resume=True)
    again.run()
    assert again.cases["conv.conv2d_wgrad"].name == other and again.notes == []


def test_a_plan_of_another_step_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    trainer(tmp_path / "first").run()
    for change, refusal in (
        ({"recipe": Recipe(optimizer="sgd", steps=2)}, Refusal("other-operator", "optimizer")),
        ({"precision": "tf32"}, Refusal("other-precision", value="f32", allowed="tf32")),
    ):
        with refuses(refusal):
            trainer(tmp_path / "second", plan=tmp_path / "first" / PLAN_FILE, **change)
    assert not (tmp_path / "second").exists()


def test_what_was_measured_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = trainer(tmp_path / "any").training.graph.node("conv.conv2d_wgrad").problem
    case = f"conv2d_wgrad/block_tree[BLOCK=256]{problem}"
    found = {("conv2d_wgrad", str(problem)): [TimedCase(case, "f32", 1e-6, 9e-7, 1.1e-6, False, "run r")]}
    monkeypatch.setattr(training, "gather_timed_cases", lambda folders, catalog: found)
    chosen = trainer(tmp_path / "run", results=(tmp_path,)).plan.choices
    assert chosen["conv.conv2d_wgrad"].case == case and chosen["conv.conv2d_wgrad"].source == "run r"
    assert chosen["conv"].source == "default"


def test_tuning_needs_a_clock_and_measures_all_that_could_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses("no-clock", "cpu"):
        trainer(tmp_path / "run", tune=True)
    asked: list[Graph] = []

    def measured(graphs: list[Graph], options: TrainingSettings, *further: object) -> dict[object, object]:
        asked.extend(graphs)
        assert options.leave_out == ("conv2d/*",)
        return {}

    monkeypatch.setattr(training, "measure_cases", measured)
    monkeypatch.setattr(TrainingSettings, "resolved_backend", lambda self: "cpu")
    tuned = trainer(tmp_path / "run", tune=True, leave_out=("conv2d/*",))
    assert asked == [tuned.training.graph]


def test_a_pass_that_is_newer_than_a_plan_is_not_applied(tmp_path: Path) -> None:
    older = trainer(tmp_path / "older", recipe=Recipe(steps=2, without=("fuse_relu",)))
    names = {node.name for node in older.training.graph.nodes}
    assert "relu" in names - {node.name for node in trainer(tmp_path / "newer").training.graph.nodes}
    save_plan(older.plan, tmp_path / "plan.json")
    followed = trainer(tmp_path / "followed", plan=tmp_path / "plan.json")
    assert followed.recipe.without == ("fuse_relu",) and any("fuse_relu" in note for note in followed.notes)
    assert {node.name for node in followed.training.graph.nodes} == names and followed.cases == older.cases


def test_a_plan_that_has_every_node_keeps_all_passes(tmp_path: Path) -> None:
    """Also if it has nodes that a pass has removed, as a plan to which someone added the new ones."""
    older = trainer(tmp_path / "older", recipe=Recipe(steps=2, without=("fuse_relu",)))
    newer = trainer(tmp_path / "newer")
    save_plan(replace(newer.plan, choices={**older.plan.choices, **newer.plan.choices}), tmp_path / "plan.json")
    followed = trainer(tmp_path / "followed", plan=tmp_path / "plan.json")
    assert followed.recipe.without == () and followed.cases == newer.cases
