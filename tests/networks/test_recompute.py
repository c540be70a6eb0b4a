"""Less memory for a step by computing again what costs little: the same bits, within the limit, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.graph.recipe import Recipe
from opbench.graph.zoo import unet
from opbench.networks.plan.memory import live_bytes
from opbench.networks.plan.recompute import original_node_name, recompute_as_planned, recompute_values
from opbench.networks.records.checkpoints import read_checkpoint
from opbench.networks.records.training import REPEATED_SUFFIX
from opbench.networks.report.training import write_training
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import PLAN_FILE, Trainer
from support.builders.training_data import random_data, step_of
from support.checks.errors import refuses

NETWORK = unet(batch=2, size=32, base=4, levels=2)
RECIPE = Recipe(loss="binary_cross_entropy", steps=2)
DATA = random_data(NETWORK, 8, RECIPE.loss)


def trainer(out: Path, **options: object) -> Trainer:
    given = {"recipe": RECIPE, "backend": "cpu", "out": out, **options}
    return Trainer(NETWORK, DATA, TrainingSettings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_within_three_quarters_of_the_memory_every_bit_is_the_same(accumulate: int, tmp_path: Path) -> None:
    recipe = replace(RECIPE, accumulate=accumulate)
    free = trainer(tmp_path / "free", recipe=recipe)
    record = free.run()
    limit = record.memory.activations_bytes * 3 // 4
    tight = trainer(tmp_path / "tight", recipe=recipe, memory_bytes=limit)
    assert all(tight.cases[name].name == case.name for name, case in free.cases.items())
    again = [node.name for node in tight.training.graph.nodes if node.name.endswith(REPEATED_SUFFIX)]
    assert again and all(tight.cases[name].name == tight.cases[original_node_name(name)].name for name in again)
    second = tight.run()
    assert second.memory.activations_bytes <= limit
    assert second.losses == record.losses
    one, other = (read_checkpoint(tmp_path / name) for name in ("free", "tight"))
    assert one and other and one.arrays.keys() == other.arrays.keys()
    assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)
    page = write_training(second, tmp_path / "tight")[0].read_text()
    assert "computed again" in page and again[0] in page
    (said,) = (p.notes for p in second.passes if p.name == "recompute")
    assert len(said) == len(again) and "recompute" not in [p.name for p in record.passes]
    # It goes on within that memory, its plan serves elsewhere, and with all of the memory it is the same training.
    for options in ({"resume": True}, {"plan": tmp_path / "tight" / PLAN_FILE}):
        other = trainer(tmp_path / ("tight" if "resume" in options else "planned"), recipe=recipe, **options)
        assert other.run().memory.activations_bytes <= limit
        assert other.notes == []
    (tmp_path / "tight" / PLAN_FILE).unlink()
    whole = trainer(tmp_path / "tight", recipe=recipe, resume=True)
    whole.run()
    assert whole.notes == [] and whole.training.graph.nodes == free.training.graph.nodes


def test_a_limit_that_cannot_be_met_is_refused_with_the_least_that_can(tmp_path: Path) -> None:
    with refuses("memory-limit", value=10_000) as refused:
        trainer(tmp_path / "run", memory_bytes=10_000)
    assert not (tmp_path / "run").exists()
    least = refused.value.allowed
    assert isinstance(least, int)
    assert trainer(tmp_path / "run", memory_bytes=least).run().memory.activations_bytes == least
    with refuses("memory-limit", value=least - 1, allowed=least):
        trainer(tmp_path / "less", memory_bytes=least - 1)
    with refuses("memory-limit", value=least):
        trainer(tmp_path / "less", memory_bytes=least, recipe=replace(RECIPE, without=("recompute",)))


def test_the_step_is_as_it_was_in_float64_and_needs_less_at_once() -> None:
    training = step_of(NETWORK, replace(RECIPE, layout="nhwc"), DATA)
    less, again = recompute_values(training, 0)
    assert again and recompute_as_planned(training, again).graph.nodes == less.graph.nodes
    assert max(live_bytes(less.graph).values()) < 0.8 * max(live_bytes(training.graph).values())
    before, after = training.graph.reference({}), less.graph.reference({})
    assert all(np.array_equal(after[name], array, equal_nan=True) for name, array in before.items())
    for node in less.graph.nodes:
        if node.name.endswith(REPEATED_SUFFIX):
            updated = [name for name in node.outputs.values() if less.graph.values[name].updates]
            assert not updated, "what is computed again updates no state"


def test_without_a_need_nothing_is_computed_again() -> None:
    training = step_of(NETWORK, RECIPE, DATA)
    same, again = recompute_values(training, max(live_bytes(training.graph).values()))
    assert same is training and again == []
    with refuses("no-such-value", "nothing"):
        recompute_as_planned(training, [("nothing", 3)])
