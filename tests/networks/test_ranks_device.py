"""Sums by NCCL on real GPUs: one rank alone goes the whole way, two give the bits of two micro-batches in turn."""

from __future__ import annotations

import functools
import signal
from pathlib import Path

import numpy as np
import pytest

from opbench.backend.base import CollectiveBackend
from opbench.checking.backends import open_backend
from opbench.errors import EnvironmentFault
from opbench.gpu.driver import collective, why_missing
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.networks.plan.executor import Network
from opbench.networks.plan.plan import PlanOptions, choose
from opbench.networks.records.checkpoints import read_checkpoint
from opbench.networks.train.group import RankLost
from opbench.networks.train.steps import Step, exchange_times
from support.builders.training_data import random_data
from support.builders.trainings import train_on, training_files
from support.checks.errors import refuses
from support.checks.graphs import NETWORKS
from support.checks.rank_signals import RankSignal


def _lacking(ranks: int) -> str:
    try:
        missing = why_missing()
        if missing is None:
            collective.rank_environments(ranks)
    except EnvironmentFault as fault:
        return str(fault)
    return missing or ""


one_gpu = pytest.mark.skipif(bool(_lacking(1)), reason=f"needs a GPU and NCCL: {_lacking(1)}")
two_gpus = pytest.mark.skipif(bool(_lacking(2)), reason=f"needs two GPUs and NCCL: {_lacking(2)}")


@one_gpu
@pytest.mark.parametrize("graph", [True, False])
def test_a_rank_alone_goes_the_whole_way(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined by itself, captured or not, in one bucket or many: the bits of a step without any exchange."""
    monkeypatch.setenv(collective.MULTICAST_VARIABLE, "0")
    make, loss = NETWORKS["unet"]
    training = training_graph(make(), Recipe(loss=loss, steps=6, ranks=2), 24)
    whole, data = training.graph, random_data(make(), 24, loss)
    backend = open_backend("cuda")
    assert isinstance(backend, CollectiveBackend)
    device = Network(whole, choose(whole, {}, PlanOptions("f32")).cases(whole), backend)
    order = np.resize(np.arange(24, dtype=np.int32), whole.values["order"].shape)
    targets = data.targets.reshape(whole.values["targets"].shape)
    group = backend.communicator(1, backend.new_communicator_id(), 0)
    found = []
    for reduce, size in ((None, 1), (group.all_reduce, 1 << 30), (group.all_reduce, 500)):
        step = Step(device, training, graph=graph, parallel=graph, all_reduce=reduce, bucket_bytes=size)
        device.write_state(whole.state)
        device.write_state({"data": data.images.reshape(24, -1), "targets": targets, "order": order})
        for _ in range(3):
            step.launch()
        step.context.settle()
        found.append({name: array.tobytes() for name, array in device.read_state().items()})
        if reduce is not None:
            times = exchange_times(step)
            assert len(times.parts) == sum(piece.is_exchange for piece in step.launches) >= 1
        step.close()
    group.close()
    device.close()
    for other in found[1:]:
        assert [name for name in found[0] if found[0][name] != other[name]] == []


train = functools.partial(train_on, "cuda")


@two_gpus
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", ["unet", "dropping"])
def test_two_gpus_give_the_bits_of_two_micro_batches_in_turn(tmp_path: Path, name: str, graph: bool) -> None:
    record = train(tmp_path / "ranks", name, ranks=2, steps=20, graph=graph)
    train(tmp_path / "turns", name, accumulate=2, steps=20, graph=graph)
    assert training_files(tmp_path / "ranks") == training_files(tmp_path / "turns")
    assert len(record.exchange.parts) > 1 and record.exchange.step_s > 0
    train(tmp_path / "again", name, ranks=2, steps=20, graph=graph, parallel=graph)
    assert training_files(tmp_path / "again") == training_files(tmp_path / "turns")


@two_gpus
def test_a_gpu_that_is_lost_ends_the_other_that_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL alone would wait for ever."""
    kill = RankSignal(monkeypatch, signal.SIGKILL, step=10)
    with refuses("rank-died", 1, error=RankLost):
        train(
            tmp_path / "run", "unet", tell=kill.tell, ranks=2, steps=200_000, checkpoint_every_s=0.0, evaluate_every=10
        )
    assert kill.seconds_since() < 10
    assert None not in kill.return_codes()
    saved = read_checkpoint(tmp_path / "run")
    assert saved and saved.facts.step >= 1
