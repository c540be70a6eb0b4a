"""Steps of several micro-batches: what they add up to, in which order, and to the same bits when resumed."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from opbench.emulator import CpuBackend
from opbench.graph import micro_batches
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.training_step import Training
from opbench.graph.values import Node
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.executor import Network
from opbench.networks.plan.plan import PlanOptions, choose
from opbench.networks.records.checkpoints import read_checkpoint
from opbench.networks.train.buckets import gradient_buckets, micro_batch, overlapped_buckets
from opbench.networks.train.steps import Step, exchange_times
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import Trainer
from opbench.timing.clock import Launch
from support.builders.training_data import random_data
from support.checks.graphs import NETWORKS


def tiny(batch: int) -> Graph:
    net = Builder("tiny")
    x = net.relu(net.conv2d(net.input("image", batch, 1, 6, 5), 3, 3, padding=1, name="conv"), name="relu")
    return net.graph(net.linear(net.flatten(net.maxpool2d(x, name="pool")), 4, name="scores"))


def trainer(out: Path, network: Graph, loss: str = "cross_entropy", **recipe: object) -> Trainer:
    given = Recipe(**{"loss": loss, "steps": 3, "learning_rate": 2e-3, **recipe})  # type: ignore[arg-type]
    return Trainer(network, random_data(network, 24, loss), TrainingSettings(given, backend="cpu", out=out))


def arrays(folder: Path) -> Arrays:
    found = read_checkpoint(folder)
    assert found
    return dict(found.arrays)


@pytest.mark.parametrize("count", [2, 3])
def test_micro_batches_are_a_batch_of_all_their_pictures(tmp_path: Path, count: int) -> None:
    """Where nothing depends on the batch itself, as batch norm does; but for the order of sums."""
    parts = trainer(tmp_path / "parts", tiny(12 // count), accumulate=count)
    whole = trainer(tmp_path / "whole", tiny(12))
    records = [run.run() for run in (parts, whole)]
    assert records[0].losses == pytest.approx(records[1].losses, rel=1e-5)
    assert records[0].steps_per_epoch == records[1].steps_per_epoch == 2
    one, other = arrays(tmp_path / "parts"), arrays(tmp_path / "whole")
    assert one.keys() == other.keys()
    assert all(np.allclose(one[name], other[name], rtol=1e-3, atol=2e-6) for name in one)


def check_steps(folder: Path, name: str) -> None:
    """Gradients, batch norm's statistics and the loss of two steps: each micro-batch in float64, with its own mask."""
    make, loss = NETWORKS[name]
    run = trainer(folder / "run", make(), loss, accumulate=3, steps=2)
    graph = run.training.graph
    device = Network(graph, run.cases, run.backend)
    step = Step(device, run.training)
    device.write_state(run.initial_state())
    for done in range(2):
        before = device.read_state()
        step.launch()
        assert run.backend.synchronize() == []
        found = device.read_state()
        exact = [
            dataclasses.replace(graph, state={**before, "micro": np.array([3 * done + number], np.int32)}).reference({})
            for number in range(3)
        ]
        for one, other in itertools.combinations(exact if name == "dropping" else [], 2):
            x = graph.node("drop").inputs["x"]
            both = (one[x] != 0) & (other[x] != 0)
            alike = ((one["drop"] != 0) == (other["drop"] != 0))[both]
            assert both.any() and not alike.all(), "two micro-batches have the same mask"
        wanted = sum(values["gradients"] for values in exact)
        off = np.linalg.norm(found["gradients.sum"] - wanted) / np.linalg.norm(wanted)
        assert off <= 1e-5, f"the gradients are {off:.2g} off"
        assert found["losses"][done] == pytest.approx(sum(values["loss"][0] for values in exact), rel=1e-6)
        assert found["micro"][0] == 3 * (done + 1) and found["step"][0] == done + 1
        for running, (arena, start) in run.training.statistics.items():
            mean = np.mean([values[f"{running}.next"] for values in exact], axis=0)
            kept = found[arena][start : start + mean.size]
            assert np.allclose(kept, mean, rtol=1e-5, atol=1e-6), f"{running} is no mean of the micro-batches'"
    step.close()
    device.close()


@pytest.mark.parametrize("name", ["dropping", "unet"])
def test_a_step_adds_what_its_micro_batches_give(tmp_path: Path, name: str) -> None:
    check_steps(tmp_path, name)


def not_cleared(patch: pytest.MonkeyPatch) -> None:
    """The first micro-batch, too, is added to the sum: that of the step before."""
    first, phase = Step._first_micro_batch, Step._add_phase

    def written(self: Step, each: Sequence[str]) -> list[object]:
        self.adding = first(self, each)  # type: ignore[attr-defined]
        return [(name, self.context.launches[name], {}) for name in each]

    def added(self: Step, launches: Sequence[object], *rest: object) -> None:
        phase(self, launches, *rest)  # type: ignore[arg-type]
        if rest:
            adds = self.training.exchange.adding_node  # type: ignore[union-attr]
            phase(self, [(adds, self.context.launches[adds], {})])

    patch.setattr(Step, "_first_micro_batch", written)
    patch.setattr(Step, "_add_phase", added)


def one_mask(patch: pytest.MonkeyPatch) -> None:
    """Dropout counts steps, not micro-batches."""
    changed = micro_batches._MicroBatchBuilder._node_for_micro_batch

    def of_the_step(self: micro_batches._MicroBatchBuilder, node: Node) -> Node:
        found = changed(self, node)
        return (
            dataclasses.replace(found, inputs={**found.inputs, "step": "step"}) if node.operator == "dropout" else found
        )

    patch.setattr(micro_batches._MicroBatchBuilder, "_node_for_micro_batch", of_the_step)


def chained(patch: pytest.MonkeyPatch) -> None:
    """Running statistics are those of the sum, not the mean."""
    statistics = micro_batches._MicroBatchBuilder._average_statistics

    def of_one(self: micro_batches._MicroBatchBuilder) -> Node | None:
        node = statistics(self)
        self.weights["micro_batches"] = np.ones(1, np.float32)
        return node

    patch.setattr(micro_batches._MicroBatchBuilder, "_average_statistics", of_one)


@pytest.mark.parametrize(
    ("plant", "name", "message"),
    [
        (not_cleared, "dropping", "the gradients are .* off"),
        (one_mask, "dropping", "two micro-batches have the same mask"),
        (chained, "unet", "is no mean of the micro-batches'"),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_an_error_planted_into_a_step_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    name: str,
    message: str,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        check_steps(tmp_path, name)


def test_an_interrupted_training_of_micro_batches_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, loss = NETWORKS["unet"]
    trainer(tmp_path / "whole", make(), loss, accumulate=2, clip=0.1).run()
    launches, launch = 0, Step.launch

    def interrupted(step: Step) -> None:
        nonlocal launches
        launches += 1
        if launches == 3:
            raise KeyboardInterrupt
        launch(step)

    monkeypatch.setattr(Step, "launch", interrupted)
    cut = trainer(tmp_path / "cut", make(), loss, accumulate=2, clip=0.1)
    cut.options = dataclasses.replace(cut.options, checkpoint_every_s=0.0)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    monkeypatch.undo()
    again = trainer(tmp_path / "cut", make(), loss, accumulate=2, clip=0.1)
    again.options = dataclasses.replace(again.options, resume=True)
    again.run()
    assert again.notes == []
    one, other = arrays(tmp_path / "whole"), arrays(tmp_path / "cut")
    assert all(one[name].tobytes() == other[name].tobytes() for name in (*one, *other))
    assert (tmp_path / "whole" / "losses.jsonl").read_bytes() == (tmp_path / "cut" / "losses.jsonl").read_bytes()


def step_of(network: Graph, parallel: bool, bucket_bytes: int = 1 << 20, ranks: int = 1, **recipe: object) -> Step:
    training = training_graph(network, Recipe(ranks=ranks, **recipe), 8)  # type: ignore[arg-type]
    backend = CpuBackend()
    device = Network(
        training.graph, choose(training.graph, {}, PlanOptions("f32", "cpu")).cases(training.graph), backend
    )
    reduce = (lambda buffer: lambda: None) if ranks > 1 else None
    return Step(device, training, parallel=parallel, all_reduce=reduce, bucket_bytes=bucket_bytes)


def ancestors(step: Step) -> list[set[int]]:
    found: list[set[int]] = []
    for piece in step.launches:
        found.append(set(piece.after).union(*(found[number] for number in piece.after)))
    return found


@pytest.mark.parametrize("parallel", [False, True])
def test_each_micro_batch_waits_for_all_of_the_one_before(parallel: bool) -> None:
    """They share activations: also where independent nodes run side by side."""
    step = step_of(tiny(2), parallel, accumulate=3)
    before, names = ancestors(step), [piece.name for piece in step.launches]
    starts = [number for number, name in enumerate(names) if name == "advance"]
    assert len(starts) == 3 and names.count("accumulate") == 2
    for start in (*starts[1:], *(number for number, name in enumerate(names) if name == "accumulate")):
        assert before[start] == set(range(start))
    assert before[names.index("optimizer")] >= set(range(names.index("tick")))
    assert [bool(piece.replaced_states) for piece in step.launches if piece.name.endswith("wgrad")] == [True] * 2 + [
        False
    ] * 4
    step.close()


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 2000, 1 << 30])
def test_buckets_are_exchanged_behind_what_fills_them_and_beside_the_rest(parallel: bool, bucket_bytes: int) -> None:
    make, _ = NETWORKS["branching"]
    step = step_of(make(), parallel, bucket_bytes, ranks=2)
    graph, before = step.training.graph, ancestors(step)
    places = {name: number for number, piece in enumerate(step.launches) for name in [piece.name]}
    end, last = 0, None
    for number, piece in enumerate(step.launches):
        if not piece.is_exchange:
            continue
        first, stop = map(int, piece.name.removeprefix("all_reduce ").split(":"))
        assert first == end and (last is None or last in piece.after)
        end, last = stop, number
        for node in graph.nodes:
            for value in node.outputs.values():
                base, start, until = graph.memory_range(value)
                if base == "gradients" and start < stop and first < until:
                    assert places[node.name] in before[number], node.name
    assert end == graph.values["gradients"].elements
    beside = [
        n
        for n in range(len(step.launches))
        if any(p.is_exchange for p in step.launches[:n])
        and not before[n] & {m for m, p in enumerate(step.launches) if p.is_exchange}
        and not step.launches[n].is_exchange
    ]
    assert bool(beside) == (bucket_bytes < 1 << 30)
    assert before[places["optimizer"]] >= set(range(places["tick"]))
    step.close()


def test_nodes_that_begin_during_an_exchange_leave_it_room() -> None:
    make, loss = NETWORKS["lenet"]
    training = training_graph(make(), Recipe(loss=loss, steps=2, ranks=2), 24)
    assert training.exchange
    names = [node.name for node in micro_batch(training, training.exchange)]
    finished = [number for number, _ in gradient_buckets(training, 500)]

    def found(of: Training, bucket_bytes: int, seconds: float, fewer: float) -> list[str]:
        return overlapped_buckets(of, bucket_bytes, lambda node: seconds, lambda node: fewer)

    assert found(training, 500, 0.0, 0.0) == names[finished[0] + 1 :]
    assert found(training, 500, 1.0, 1.0) == [names[n + 1] for n in finished if n + 1 < len(names)]
    assert found(training, 500, 1.0, 1.1) == []  # an exchange takes microseconds
    assert found(training, 1 << 30, 0.0, 0.0) == []  # all of it behind the last
    accumulated = training_graph(make(), Recipe(loss=loss, steps=2, ranks=2, accumulate=2), 24)
    assert found(accumulated, 500, 0.0, 0.0) == []  # it waits for the last micro-batch


class Shuffled(CpuBackend):
    """Records, and replays in any order that what waits for what allows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)

    def graph(self, steps: Sequence[tuple[Launch, Sequence[int]]]) -> Shuffled:
        self.steps = steps
        return self

    def enter_thread(self) -> None:
        """Nothing to do."""

    def launch(self) -> None:
        left = dict(enumerate(self.steps))
        while left:
            number = self.rng.choice([n for n, (_, after) in left.items() if not left.keys() & set(after)])
            left.pop(number)[0]()

    def close(self) -> None:
        """Nothing to give back."""


def bits(backend: CpuBackend, name: str, **recipe: object) -> dict[str, bytes]:
    """The state after two steps; summing over ranks doubles."""
    make, loss = NETWORKS[name]
    training = training_graph(make(), Recipe(loss=loss, steps=2, **recipe), 24)  # type: ignore[arg-type]
    graph, data = training.graph, random_data(make(), 24, loss)
    device = Network(graph, choose(graph, {}, PlanOptions("f32", "cpu")).cases(graph), backend)
    reduce = (lambda buffer: lambda: buffer.write(2 * buffer.read())) if training.recipe.ranks > 1 else None
    step = Step(device, training, parallel=isinstance(backend, Shuffled), all_reduce=reduce, bucket_bytes=500)
    order = np.resize(np.arange(24, dtype=np.int32), graph.values["order"].shape)
    targets = data.targets.reshape(graph.values["targets"].shape)
    device.write_state({"data": data.images.reshape(24, -1), "targets": targets, "order": order})
    step.launch()
    step.launch()
    assert backend.synchronize() == []
    found = {state: array.tobytes() for state, array in device.read_state().items()}
    step.close()
    device.close()
    return found


@pytest.mark.parametrize(
    "recipe", [{"accumulate": 3}, {"ranks": 2, "clip": 0.01}, {"ranks": 2, "accumulate": 2}], ids=str
)
def test_any_order_that_the_graph_allows_gives_the_same_bits(recipe: dict[str, int]) -> None:
    wanted = bits(CpuBackend(), "branching", **recipe)
    for seed in range(2):
        found = bits(Shuffled(seed), "branching", **recipe)
        assert [name for name in wanted if found[name] != wanted[name]] == []


def test_a_step_can_be_timed_without_its_exchange() -> None:
    step = step_of(tiny(2), parallel=False, bucket_bytes=1, ranks=2)
    times = exchange_times(step)
    assert len(times.parts) == sum(piece.is_exchange for piece in step.launches) > 1
    assert [part.after.endswith("wgrad") for part in times.parts] == [True] * len(times.parts)
    assert sum(part.nbytes for part in times.parts) == step.training.graph.values["gradients"].nbytes
    assert times.step_s > 0 and times.ranks_without_s[0] > 0 and times.alone_s >= 0
    step.close()
