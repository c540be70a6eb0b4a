"""Training on the CPU: single steps against float64, the same bits every time, and what a crash or bad data cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opbench.errors import LaunchError, NotFinite, SettingDiffers
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.zoo import lenet
from opbench.kernels.case import Case
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.data import DataSet, load_data
from opbench.networks.plan.executor import Context, Network
from opbench.networks.records.checkpoints import (
    CHECKPOINT_FILE,
    PREVIOUS_CHECKPOINT_FILE,
    read_checkpoint,
    trained_weights,
)
from opbench.networks.train.losses import read_losses
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import Trainer
from support.builders.training_data import gradients_of, random_data
from support.builders.trainings import interrupt_launch, training_files
from support.checks.errors import refuses
from support.common import CATALOG, CHEATS

SMALL = Recipe(optimizer="adam", learning_rate=2e-3, steps=6)


def tiny() -> Graph:
    net = Builder("tiny")
    x = net.input("image", 4, 1, 6, 5)
    y = net.maxpool2d(net.relu(net.conv2d(x, 3, 3, padding=1, name="conv"), name="relu"), name="pool")
    return net.graph(net.linear(net.flatten(y), 4, name="scores"))


def trainer(out: Path, network: Graph | None = None, data: DataSet | None = None, **options: object) -> Trainer:
    network = network or tiny()
    given = {"recipe": SMALL, "backend": "cpu", "out": out, **options}
    return Trainer(network, data or random_data(network, 13), TrainingSettings(**given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    trainer(out).run()
    return out


def test_the_same_training_gives_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    trainer(tmp_path / "again").run()
    assert training_files(tmp_path / "again") == training_files(undisturbed)
    assert len(read_losses(undisturbed / "losses.jsonl")) == SMALL.steps


def gated() -> Graph:
    """A perceptron with a gate, as transformers have it, and one activation of images before it."""
    net = Builder("gated")
    x = net.activation("gelu_tanh", net.conv2d(net.input("image", 4, 1, 6, 5), 3, 3, padding=1, name="conv"))
    rows = net.flatten(x)
    hidden = net.activation("swiglu", net.linear(rows, 7, name="up"), net.linear(rows, 7, name="gate"))
    return net.graph(net.linear(net.activation("hardswish", hidden), 4, name="scores"))


def first_gradients(run: Trainer) -> tuple[Arrays, Arrays]:
    """The gradients of the first step by the float64 reference, and by the kernels."""
    graph = run.training.graph
    device = Network(graph, run.cases, run.backend)
    context = Context(device)
    device.write_state(run.initial_state())
    before = device.read_state()
    context.launch()
    assert run.backend.synchronize() == []
    wanted = gradients_of(run.training, dataclasses.replace(graph, state=before).reference({}))
    found = gradients_of(run.training, device.read_state())
    context.close()
    device.close()
    return wanted, found


def test_the_gradients_of_activations_are_those_of_float64(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", gated(), recipe=dataclasses.replace(SMALL, steps=1))
    wanted, found = first_gradients(run)
    modes = {node.problem.axes["op"] for node in run.training.graph.nodes if node.operator == "elementwise"}
    assert {"gelu_tanh_backward", "swiglu_backward", "hardswish_backward"} <= modes
    assert set(found) == {
        f"{layer}.{part}" for layer in ("conv", "up", "gate", "scores") for part in ("weight", "bias")
    }
    for name, gradient in wanted.items():
        assert np.linalg.norm(found[name] - gradient) <= 1e-5 * np.linalg.norm(gradient), name


def block_of_mobilenetv3() -> Graph:
    """One block with a depthwise convolution, squeeze and excitation and a sum, in few channels."""
    net = Builder("block")
    x = net.conv2d(net.input("image", 3, 1, 6, 6), 8, 1, bias=False, name="expand")
    x = first = net.activation("hardswish", net.batchnorm2d(x, name="norm1"), name="hardswish")
    x = net.relu(net.depthwise_conv2d(x, 3, padding=1, name="depthwise"), name="relu")
    y = net.linear(net.flatten(net.avgpool2d(x, 6, 1, name="means")), 8, name="squeeze")
    factors = net.view(net.activation("hardsigmoid", y, name="excite"), (3, 8, 1, 1), name="factors")
    x = net.elementwise("add", net.elementwise("mul", x, factors, name="scale"), first, name="sum")
    return net.graph(net.linear(net.flatten(net.depthwise_conv2d(x, 3, stride=2, name="half")), 4, name="scores"))


def block_of_diffusion() -> Graph:
    """Group norms, a term for each image and channel, attention over pixels, an upsampling and a concatenation."""
    net = Builder("block")
    image = net.input("image", 2, 2, 4, 4)
    x = net.conv2d(
        net.groupnorm(net.conv2d(image, 8, 3, padding=1), 2, "silu", name="norm1"), 8, 3, stride=2, padding=1
    )
    shift = net.view(net.linear(net.flatten(image), 8, name="time"), (2, 8, 1, 1), name="shift")
    x = net.elementwise("add", x, shift, name="shifted")
    rows = net.linear(net.flatten_pixels(net.groupnorm(x, 4, name="norm2"), name="pixels"), 24, name="qkv")
    x = net.elementwise("add", net.image(net.attention(rows, 2, 2, "none", name="attention"), x, name="back"), x)
    x = net.concat(net.upsample2d(x), image, name="both")
    return net.graph(net.linear(net.flatten(net.conv2d(x, 4, 1, name="last")), 4, name="scores"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("block", "learned"),
    [
        (block_of_mobilenetv3, {"depthwise.weight", "depthwise.bias", "half.weight", "squeeze.weight", "norm1.scale"}),
        (block_of_diffusion, {"norm1.weight", "norm2.bias", "time.weight", "qkv.weight", "last.weight"}),
    ],
)
def test_the_gradients_of_a_block_are_those_of_float64(
    block: Callable[[], Graph], learned: set[str], layout: str, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(SMALL, steps=1, layout=layout)
    wanted, found = first_gradients(trainer(tmp_path / "run", block(), recipe=recipe))
    assert learned <= {name.removesuffix(".nhwc") for name in found}
    for name, gradient in wanted.items():
        assert np.linalg.norm(found[name] - gradient) <= 1e-5 * np.linalg.norm(gradient), name


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_each_step_is_that_of_float64_from_the_same_state(optimizer: str, tmp_path: Path) -> None:
    """Forced steps: the state of a real run is handed to the reference, whose gradients are compared per tensor."""
    network = lenet(batch=4)
    data = load_data("digits", (4, 1, 28, 28))
    recipe = Recipe(optimizer=optimizer, learning_rate=1e-3, decay=0.01, steps=4)
    run = trainer(tmp_path / "run", network, data, recipe=recipe)
    graph = run.training.graph
    device = Network(graph, run.cases, run.backend)
    context = Context(device)
    device.write_state(run.initial_state())
    optimizer = graph.node("optimizer")
    errors = []
    for _ in range(recipe.steps):
        before = device.read_state()
        context.launch()
        assert run.backend.synchronize() == []
        exact = dataclasses.replace(graph, state=before).reference({})
        got = device.read_state()
        wanted = gradients_of(run.training, exact)
        for name, gradient in gradients_of(run.training, got).items():
            errors.append(float(np.linalg.norm(gradient - wanted[name]) / np.linalg.norm(wanted[name])))
        assert np.allclose(got["losses"][: got["step"][0]], exact["losses.next"][: got["step"][0]], rtol=1e-5, atol=0)
        # The optimiser on the gradients that it was given: its first steps turn the least rounding of one into a sign.
        given = {**exact, **before, "gradients": got["gradients"]}
        tensors = {t: given[name].astype(np.float64) for t, name in optimizer.inputs.items()}
        for tensor, wanted in optimizer.problem.computed(**tensors).items():
            name = optimizer.problem.in_place[tensor]
            assert np.allclose(got[optimizer.inputs[name]], wanted, rtol=1e-5, atol=1e-7), name
    assert np.median(errors) <= 2e-6 and np.quantile(errors, 0.95) <= 2e-5
    context.close()
    device.close()


def test_it_learns(tmp_path: Path) -> None:
    """A short run on the digits: far from chance, which is 10 %."""
    network, data = lenet(batch=16), load_data("digits", (16, 1, 28, 28))
    data = dataclasses.replace(data, test_images=data.test_images[:96], test_targets=data.test_targets[:96])
    run = trainer(tmp_path / "run", network, data, recipe=Recipe(learning_rate=3e-3, steps=60))
    record = run.run()
    assert np.mean(run.losses[-10:]) < 0.6 * np.mean(run.losses[:10])
    assert run.scores[-1][1] > 0.5 and record.score_name == "accuracy"
    weights = trained_weights(tmp_path / "run")
    assert run.score(weights) == run.scores[-1][1]


def test_an_interrupted_training_goes_on_to_the_same_bits(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    interrupt_launch(monkeypatch, 6)  # one of them looked at what is held out
    with pytest.raises(KeyboardInterrupt):
        trainer(out, checkpoint_every_s=0.0).run()
    monkeypatch.undo()
    found = read_checkpoint(out)
    assert found and found.facts.step == 4
    again = trainer(out, resume=True)
    again.run()
    assert training_files(out) == training_files(undisturbed) and again.notes == []


def test_a_last_checkpoint_that_is_cut_gives_way_to_the_one_before(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trainer(out, checkpoint_every_s=0.0).run()
    (out / CHECKPOINT_FILE).write_bytes((out / CHECKPOINT_FILE).read_bytes()[:100])
    assert (out / PREVIOUS_CHECKPOINT_FILE).exists()
    trainer(out, resume=True).run()
    assert training_files(out) == training_files(undisturbed)


def test_a_checkpoint_of_another_training_is_refused(undisturbed: Path) -> None:
    for changed, key in (
        ({"recipe": dataclasses.replace(SMALL, learning_rate=1e-3)}, "recipe"),
        ({"data": random_data(tiny(), 13, seed=4)}, "data"),
        ({"network": lenet(batch=4), "data": load_data("digits", (4, 1, 28, 28))}, "network"),
    ):
        with pytest.raises(SettingDiffers) as refused:
            trainer(undisturbed, resume=True, **changed).run()  # type: ignore[arg-type]
        assert refused.value.subject == key
        if key == "recipe":
            assert (refused.value.allowed, refused.value.value) == (
                '{"learning_rate": 0.002}',
                '{"learning_rate": 0.001}',
            )
    with refuses("run-exists"):
        trainer(undisturbed).run()


def test_a_loss_that_is_no_number_is_named_with_step_and_node(tmp_path: Path) -> None:
    data = random_data(tiny(), 13)
    recipe = dataclasses.replace(SMALL, optimizer="sgd", learning_rate=1e30)
    with refuses("not-finite", error=NotFinite) as raised:
        trainer(tmp_path / "run", data=data, recipe=recipe).run()
    assert raised.value.subject, "the first value that is not finite"


def test_every_node_of_the_first_step_can_be_checked_first(tmp_path: Path) -> None:
    good = trainer(tmp_path / "good", check=True)
    good.run()
    assert good.notes == [f"all {len(good.training.graph.nodes)} nodes of the first step are right on its own data"]
    cheat = CATALOG.variant_file(CHEATS / "gradients" / "passes_gradients_at_zero.cu")
    apart = dataclasses.replace(SMALL, without=("fuse_relu_backward",))
    bad = trainer(tmp_path / "bad", check=True, recipe=apart)
    name = "conv.relu_backward"
    bad.cases = {**bad.cases, name: Case(cheat, cheat.configs[0], bad.cases[name].problem)}
    with refuses("node-not-right", "conv.relu_backward", error=LaunchError) as raised:
        bad.run()
    assert "passes_gradients_at_zero" in str(raised.value.value)
    assert not (tmp_path / "bad" / "losses.jsonl").exists()


def test_a_pass_says_what_it_saves(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run")
    saved = {item.name: item.saved for item in run.run().passes}["fuse_relu_backward"]
    masked = [node for node in run.training.graph.nodes if node.problem.axes.get("epilogue") == "mask"]
    assert saved and saved.nodes == len(masked) > 0 and saved.compulsory_bytes > 0
    apart = trainer(tmp_path / "apart", recipe=dataclasses.replace(SMALL, without=("fuse_relu_backward",)))
    assert len(apart.training.graph.nodes) == len(run.training.graph.nodes) + saved.nodes
    assert all(item.saved is None for item in apart.run().passes if item.name == "fuse_relu_backward")


def test_bad_data_is_refused_before_anything_runs(tmp_path: Path) -> None:
    good = random_data(tiny(), 13)
    with refuses("class-out-of-range", value=4, allowed=3):
        trainer(tmp_path / "a", data=dataclasses.replace(good, targets=good.targets + 1 - good.targets.min()))
    with refuses("batch-too-large", value=4, allowed=3):
        trainer(tmp_path / "b", data=random_data(tiny(), 3))
    images = good.images.copy()
    images[2, 0, 1, 1] = np.nan
    with refuses("not-finite", "training set"):
        dataclasses.replace(good, images=images)
    with refuses("other-targets", "l1", allowed=(4,)):
        trainer(tmp_path / "c", recipe=dataclasses.replace(SMALL, loss="l1"))
    assert not (tmp_path / "a").exists()
