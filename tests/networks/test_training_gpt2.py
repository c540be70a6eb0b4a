"""Training of a small GPT-2 on the CPU: gradients of all weights, a falling loss, the same bits when resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import opbench
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.training_step import BF16_PARAMETERS
from opbench.graph.zoo import gpt2, gpt2_for_training
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.data import DataSet, load_data
from opbench.networks.plan.executor import Context, Network
from opbench.networks.records.checkpoints import read_checkpoint, trained_weights
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import Trainer
from support.builders.training_data import gradients_of, rounded_reference
from support.builders.trainings import interrupt_launch
from support.checks.errors import refuses

BATCH, TOKENS = 2, 24
SIZES = {"layers": 2, "heads": 2, "width": 32, "vocabulary": 256}
RECIPE = Recipe(optimizer="adamw", decay=0.01, learning_rate=3e-3, steps=6)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """A text with much to learn: lines that count."""
    file = tmp_path_factory.mktemp("text") / "numbers.txt"
    file.write_bytes(b"".join(b"line %d of the text\n" % number for number in range(60)))
    return load_data(str(file), (BATCH, TOKENS), 0, "gpt2")


def network(batch: int = BATCH) -> Graph:
    return gpt2_for_training(batch=batch, tokens=TOKENS, **SIZES)


def trainer(out: Path, text: DataSet, graph: Graph | None = None, **options: object) -> Trainer:
    given = {"recipe": RECIPE, "backend": "cpu", "out": out, **options}
    return Trainer(graph or network(), text, TrainingSettings(**given))  # type: ignore[arg-type]


def first_step(run: Trainer) -> tuple[Arrays, Arrays]:
    """The states before and after the first step."""
    device = Network(run.training.graph, run.cases, run.backend)
    context = Context(device)
    device.write_state(run.initial_state())
    before = device.read_state()
    context.launch()
    assert run.backend.synchronize() == []
    after = device.read_state()
    context.close()
    device.close()
    return before, after


@pytest.mark.parametrize("batch", [1, BATCH])
def test_each_gradient_of_a_step_is_that_of_float64(batch: int, tmp_path: Path, text: DataSet) -> None:
    """With one sequence the table of positions has the gradient of the sum itself, which is copied."""
    run = trainer(tmp_path / "run", text, network(batch))
    before, after = first_step(run)
    exact = dataclasses.replace(run.training.graph, state=before).reference({})
    wanted, found = (gradients_of(run.training, values) for values in (exact, after))
    assert found.keys() == network().weights.keys()
    for name, gradient in wanted.items():
        assert np.linalg.norm(found[name] - gradient) <= 2e-6 * np.linalg.norm(gradient), name
    assert after["losses"][0] == pytest.approx(exact["losses.next"][0], rel=1e-6)


def test_the_loss_and_its_slopes_are_those_of_the_network(tmp_path: Path, text: DataSet) -> None:
    """The mean over all tokens, by NumPy; its slope along random changes of each weight, the tied table's too."""
    run = trainer(tmp_path / "run", text)
    state = run.initial_state()
    rows = state["order"][:BATCH]
    forward = network()

    def loss(weights: Arrays) -> float:
        given = {"tokens": text.images[rows].astype(np.float64), **weights}
        values = forward._compute_values(given, lambda problem, tensors: problem.evaluated(tensors))
        scores = values["scores"] - values["scores"].max(axis=1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(len(logs)), text.targets[rows].reshape(-1)].mean())

    weights = {name: array.astype(np.float64) for name, array in forward.weights.items()}
    exact = dataclasses.replace(run.training.graph, state={**run.training.graph.state, **state}).reference({})
    assert exact["loss"][0] == pytest.approx(loss(weights), rel=1e-12)
    rng = np.random.default_rng(4)
    for name, gradient in gradients_of(run.training, exact).items():
        direction, step = rng.standard_normal(gradient.shape), 1e-6
        ahead, behind = (loss({**weights, name: weights[name] + sign * step * direction}) for sign in (1, -1))
        size = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
        assert abs((ahead - behind) / (2 * step) - np.vdot(gradient, direction)) <= 1e-6 * size, name


def test_sums_are_fused_into_the_norms_that_read_them_but_for_the_last(tmp_path: Path, text: DataSet) -> None:
    """The last norm's sum has no other reader, so no gradient comes from elsewhere."""
    fused, plain = (
        trainer(tmp_path / "run", text, recipe=dataclasses.replace(RECIPE, without=without)).training
        for without in ((), ("fuse_sum_into_norm",))
    )
    modes = {node.name: node.problem.axes["residual"] for node in fused.graph.nodes if node.operator == "layernorm"}
    assert {name for name, residual in modes.items() if residual == "none"} == {"layer0.norm1", "norm"}
    backward = [node for node in fused.graph.nodes if node.operator == "layernorm_backward"]
    assert sum(node.problem.axes["residual"] == "add" for node in backward) == 3
    state = trainer(tmp_path / "run", text).initial_state()
    one, other = (
        gradients_of(each, dataclasses.replace(each.graph, state={**each.graph.state, **state}).reference({}))
        for each in (fused, plain)
    )
    for name, gradient in one.items():
        assert np.linalg.norm(gradient - other[name]) <= 1e-11 * np.linalg.norm(gradient), name


def test_the_slope_of_gelu_is_applied_where_its_gradient_is_computed(tmp_path: Path, text: DataSet) -> None:
    graph = trainer(tmp_path / "run", text).training.graph
    assert {node.name for node in graph.nodes if node.problem.axes.get("epilogue") == "gelu_tanh"} == {
        f"layer{number}.down.linear_dgrad" for number in range(SIZES["layers"])
    }
    assert not [node for node in graph.nodes if str(node.problem.axes.get("op")).endswith("_backward")]


def test_a_step_in_bf16_is_one_rounding_from_float64(tmp_path: Path, text: DataSet) -> None:
    run = trainer(tmp_path / "run", text, precision="bf16")
    before, after = first_step(run)
    graph = dataclasses.replace(run.training.graph, state=before)
    exact, rounded = (gradients_of(run.training, values) for values in (graph.reference({}), rounded_reference(graph)))
    found = gradients_of(run.training, after)
    assert {node.problem.axes["dtype"] for node in graph.nodes if node.operator.startswith("attention")} == {"bf16"}
    assert graph.values["layer0.attention.logsumexp"].dtype == "f32"
    assert graph.values["tokens.weight"].of == BF16_PARAMETERS and graph.values["norm.weight"].of == "parameters"
    for name, gradient in exact.items():
        size = np.linalg.norm(gradient)
        assert np.linalg.norm(found[name] - gradient) <= 2 * np.linalg.norm(rounded[name] - gradient) + 1e-3 * size
        assert np.linalg.norm(found[name] - gradient) <= 0.03 * size, name


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_it_learns_and_goes_on_to_the_same_bits(
    precision: str, tmp_path: Path, text: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = dataclasses.replace(RECIPE, steps=12)
    options = {"recipe": recipe, "precision": precision, "evaluate_every": 12}
    whole = trainer(tmp_path / "whole", text, **options)
    record = whole.run()
    assert whole.losses[0] > 5 and np.mean(whole.losses[-2:]) < 0.75 * whole.losses[0]
    assert record.score_name == "accuracy" and whole.scores[-1][1] > 0.05, "chance is one in 256"
    weights = trained_weights(tmp_path / "whole")
    assert whole.score(weights) == whole.scores[-1][1]

    interrupt_launch(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", text, checkpoint_every_s=0.0, **options).run()
    monkeypatch.undo()
    trainer(tmp_path / "run", text, resume=True, **options).run()
    one, other = (read_checkpoint(tmp_path / name) for name in ("whole", "run"))
    assert one and other and one.arrays.keys() == other.arrays.keys()
    assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)
    losses = [(tmp_path / name / "losses.jsonl").read_bytes() for name in ("whole", "run")]
    assert losses[0] == losses[1]


def test_trained_weights_are_those_that_the_network_infers_with(text: DataSet) -> None:
    """By name and shape; the scores after the last place are those of the form for training."""
    training, inference = network(1), gpt2(tokens=TOKENS, **SIZES)
    assert {n: a.shape for n, a in training.weights.items()} == {n: a.shape for n, a in inference.weights.items()}
    inputs = {"tokens": text.images[:1]}
    every = training.reference(inputs)["scores"]
    last = inference.with_weights(dict(training.weights)).reference(
        {**inputs, "places": np.array([TOKENS - 1], np.int32)}
    )
    assert every.shape == (TOKENS, 256) and np.allclose(every[-1:], last["scores"], rtol=1e-12)


def test_gradients_are_added_over_micro_batches(tmp_path: Path, text: DataSet) -> None:
    """Two sequences in turn have the loss and the gradients of both at once, but for the order of the sums."""
    one = trainer(tmp_path / "one", text)
    two = trainer(tmp_path / "two", text, network(1), recipe=dataclasses.replace(RECIPE, accumulate=2))
    one.run()
    two.run()
    assert one.losses == pytest.approx(two.losses, rel=1e-4)


def test_the_first_step_is_pytorchs(tmp_path: Path, text: DataSet) -> None:
    pytest.importorskip("torch", reason="its autograd is what the step is compared with")
    recipe = dataclasses.replace(RECIPE, steps=1)
    record = trainer(tmp_path / "run", text, recipe=recipe, compare=("torch",)).run()
    assert record.comparison is not None and record.comparison.first_step.right


def test_scores_of_another_number_of_tokens_are_refused(tmp_path: Path, text: DataSet) -> None:
    pictures = DataSet("own", text.images, text.targets[:, 0], text.test_images, text.test_targets[:, 0])
    with refuses("other-targets", "own", value=1, allowed=TOKENS):
        trainer(tmp_path / "run", pictures)


def test_training_in_python_takes_the_form_with_one_input(tmp_path: Path, text: DataSet) -> None:
    graph = opbench.network("gpt2", batch=BATCH, tokens=TOKENS, training=True, **SIZES)
    assert graph.inputs == ("tokens",) and graph.weights.keys() == network().weights.keys()
    record = opbench.train(graph, text, backend="cpu", steps=1, out=tmp_path / "run")
    assert record.network == "gpt2"
    with refuses("not-one-each", "gpt2", value=2, allowed=1):
        opbench.train(opbench.network("gpt2", tokens=TOKENS, **SIZES), text, backend="cpu", steps=1)
