"""Steps of training beside PyTorch's autograd in float64, where PyTorch is installed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.recipe import Recipe
from opbench.graph.zoo import diffusion_for_training, lenet, mobilenetv3, unet
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.data import DataSet, load_data
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.torch_gpu import TimeLimitExceeded, time_limit
from opbench.networks.plan.torch_module import to_module, weight_of
from opbench.networks.train.torch_comparison import compare_first_steps
from opbench.networks.train.torch_training import FirstStep, dropout_masks, first_step, timed_steps, torch_modes
from opbench.networks.train.train_options import TrainingSettings
from opbench.networks.train.training import Trainer
from support.builders.training_data import gradients_of, random_data, step_of
from support.fakes.cpu_in_place_of_gpu import CpuInPlaceOfGpu

torch = pytest.importorskip("torch", reason="its autograd is what steps are compared with; opbench[torch] brings it")

NETWORKS: dict[str, tuple[Callable[[], Graph], str]] = {
    "lenet": (lambda: lenet(batch=5), "cross_entropy"),
    "unet": (lambda: unet(batch=2, size=16, base=4, levels=2), "binary_cross_entropy"),
    "diffusion": (lambda: diffusion_for_training(batch=2, size=8, base=32), "mse"),
    "mobilenetv3": (lambda: mobilenetv3(batch=4, size=32, width=10, classes=3), "cross_entropy"),
}


def by_autograd(
    network: Graph, loss: str, data: DataSet, rows: np.ndarray, masks: Arrays | None = None
) -> tuple[float, Arrays]:
    """Loss and gradients of all float weights for some pictures."""
    module = to_module(network, "float64", training=True, masks=masks)
    tensors = {name: weight_of(module, network, name) for name in network.weights}
    (scores,) = module(torch.from_numpy(data.images[rows]).double())
    targets = torch.from_numpy(data.targets[rows])
    functional = torch.nn.functional
    if loss == "cross_entropy":
        total = functional.cross_entropy(scores, targets.long())
    elif loss == "mse":
        total = functional.mse_loss(scores, targets.double())
    else:
        total = functional.binary_cross_entropy_with_logits(scores, targets.double())
    total.backward()
    shapes = {name: array.shape for name, array in network.weights.items()}  # PyTorch's depthwise filters: c 1 r s
    gradients = {name: t.grad.numpy() for name, t in tensors.items() if t.grad is not None}
    return float(total.detach()), {name: array.reshape(shapes[name]) for name, array in gradients.items()}


def with_dropout() -> Graph:
    """Dropout on an image, whose mask has an order that layouts change, and on rows."""
    net = Builder("dropping")
    x = net.relu(net.conv2d(net.input("image", 4, 3, 8, 6), 5, 3, name="conv1"), name="relu1")
    x = net.maxpool2d(net.dropout(x, 25, name="drop1"), name="pool")
    x = net.dropout(net.relu(net.linear(net.flatten(x), 7, name="fc"), name="relu2"), name="drop2")
    return net.graph(net.linear(x, 4, name="scores"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_float64_step_is_autograds(name: str, layout: str) -> None:
    make, loss = NETWORKS[name]
    network = make()
    batch = network.values["image"].shape[0]
    data = random_data(network, 2 * batch, loss)
    training = step_of(network, Recipe(loss=loss, layout=layout), data)
    values = training.graph.reference({})
    total, wanted = by_autograd(network, loss, data, np.arange(batch), dropout_masks(training, 1))
    assert values["loss"][0] == pytest.approx(total, rel=1e-12)
    arena = {"parameters": values["gradients"]}
    zeros = {n: np.zeros_like(a, np.float64) for n, a in training.graph.state.items()}
    found = training.weights({**zeros, **arena})
    allowed = 1e-7 if name == "mobilenetv3" else 1e-11  # PyTorch's hardsigmoid has a sixth in float32
    largest = max(np.linalg.norm(gradient) for gradient in wanted.values())
    for parameter in training.parameters:
        plain = parameter.rpartition(".nhwc")[0] or parameter
        error = np.linalg.norm(found[plain] - wanted[plain])
        # The second term is for a shift that a later batch norm subtracts again: its gradient is rounding alone.
        assert error <= allowed * np.linalg.norm(wanted[plain]) + 1e-15 * largest, (plain, error)


def test_forced_steps_of_a_real_run_have_autograds_gradients(tmp_path: Path) -> None:
    """Twenty states of a run on the digits, each handed to PyTorch in float64 and to our kernels in float32."""
    network = lenet(batch=8)
    data = load_data("digits", (8, 1, 28, 28))
    recipe = Recipe(learning_rate=2e-3, steps=20)
    run = Trainer(network, data, TrainingSettings(recipe, backend="cpu", out=tmp_path / "run"))
    device = Network(run.training.graph, run.cases, run.backend)
    context = Context(device)
    device.write_state(run.initial_state())
    order = run.initial_state()["order"]
    errors: list[float] = []
    for step in range(recipe.steps):
        weights = run.training.weights(device.read_state())
        context.launch()
        assert run.backend.synchronize() == []
        rows = order[step * run.batch : (step + 1) * run.batch]
        _, wanted = by_autograd(network.with_weights(weights), recipe.loss, data, rows)
        found = gradients_of(run.training, device.read_state())
        errors += [float(np.linalg.norm(found[n] - wanted[n]) / np.linalg.norm(wanted[n])) for n in found]
    context.close()
    device.close()
    assert np.median(errors) <= 2e-6 and np.quantile(errors, 0.95) <= 2e-5, (np.median(errors), max(errors))


@pytest.mark.parametrize("clip", [0.0, 0.01, 1e3])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_the_first_step_is_pytorchs(optimizer: str, layout: str, clip: float, tmp_path: Path) -> None:
    """--compare torch without a GPU: no times, but loss, gradients and parameters of a step beside the eager one."""
    recipe = Recipe(optimizer=optimizer, learning_rate=1e-3, decay=0.01, clip=clip, steps=2, layout=layout)
    options = TrainingSettings(recipe, backend="cpu", out=tmp_path / "run", compare=("torch",))
    network = with_dropout()
    run = Trainer(network, random_data(network, 8), options)
    comparison = run.run()["comparison"]
    assert comparison["ways"] == {} and comparison["versions"]["PyTorch"] == torch.__version__
    first = comparison["first_step"]
    assert first["right"] and first["compared"] == len(network.weights), first
    assert first["errors"]["loss"] <= 1e-6 and first["errors"]["gradients"] <= 2e-5, first


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_the_first_step_of_several_micro_batches_is_pytorchs(clip: float, tmp_path: Path) -> None:
    """Which adds their gradients up as it goes, each with the mask that ours draws for it."""
    recipe = Recipe(optimizer="sgd", learning_rate=1e-2, accumulate=3, steps=2, clip=clip)
    network = with_dropout()
    run = Trainer(
        network, random_data(network, 24), TrainingSettings(recipe, backend="cpu", out=tmp_path, compare=("torch",))
    )
    one, other, _ = (mask["drop2"] for mask in run.torch_comparison.problem.masks)
    assert not np.array_equal(one, other)
    first = run.run()["comparison"]["first_step"]
    assert first["right"] and first["compared"] == len(network.weights), first
    assert first["errors"]["loss"] <= 1e-6 and first["errors"]["gradients"] <= 2e-5, first
    assert first["loss"] == pytest.approx(run.losses[0], rel=1e-6), "the loss of all pictures of the step"


def test_batch_norm_beside_pytorchs_normalises_each_micro_batch(tmp_path: Path) -> None:
    network = unet(batch=2, size=16, base=4, levels=1)
    recipe = Recipe(loss="binary_cross_entropy", steps=1, accumulate=2)
    options = TrainingSettings(recipe, backend="cpu", out=tmp_path / "run", compare=("torch",))
    first = Trainer(network, random_data(network, 8, recipe.loss), options).run()["comparison"]["first_step"]
    assert first["right"] and first["errors"]["gradients"] <= 1e-4, first


def made(network: Graph, tmp_path: Path) -> Trainer:
    """A training of one step that is to be compared."""
    recipe = Recipe(loss="binary_cross_entropy", steps=1)
    options = TrainingSettings(recipe, backend="cpu", out=tmp_path / "run", compare=("torch",))
    return Trainer(network, random_data(network, 4, recipe.loss), options)


def test_another_first_step_is_told_in_words(tmp_path: Path) -> None:
    """Other pictures, and a gradient of the other sign."""
    network = unet(batch=2, size=16, base=4, levels=1)
    run = made(network, tmp_path)
    assert run.run()["comparison"]["first_step"]["right"]
    problem = run.torch_comparison.problem
    theirs = first_step(problem, "cpu")
    other = first_step(replace(problem, images=problem.images + 0.01), "cpu")
    assert compare_first_steps(theirs, theirs, network.weights, "f32").right
    comparison = compare_first_steps(theirs, other, network.weights, "f32")
    assert not comparison.right and "its times say nothing here: off are the loss by " in comparison.text
    gradients = {**theirs.gradients, "head.bias": -theirs.gradients["head.bias"]}
    comparison = compare_first_steps(replace(theirs, gradients=gradients), theirs, network.weights, "bf16")
    assert comparison.text.endswith("off are the gradient of head.bias by 2 (0.7 allowed)"), comparison.text
    comparison = compare_first_steps(replace(theirs, parameters=network.weights), theirs, network.weights, "bf16")
    assert comparison.text.endswith("off are the change of the parameters by 1 (0.9 allowed)"), (
        "a step that was not done"
    )


def test_a_step_may_round_as_much_as_pytorchs_own(tmp_path: Path) -> None:
    network = unet(batch=2, size=16, base=4, levels=1)
    exact = first_step(made(network, tmp_path).torch_comparison.problem, "cpu")

    def off(share: float) -> FirstStep:
        return replace(exact, gradients={**exact.gradients, "head.bias": exact.gradients["head.bias"] * (1 + share)})

    comparison = compare_first_steps(off(0.5), exact, network.weights, "tf32", off(0.3))
    assert comparison.right and comparison.text.endswith(
        "its own in tf32 is loss 0, gradients 0.3, the parameters' change 0 off"
    )
    assert not compare_first_steps(off(0.5), exact, network.weights, "tf32", off(0.2)).right, "more than twice as far"
    assert not compare_first_steps(off(0.5), exact, network.weights, "tf32").right


def test_all_ways_of_a_step_are_ready_and_say_whether_they_are_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = made(unet(batch=2, size=16, base=4, levels=1), tmp_path).torch_comparison.problem

    def missing(function: object, **options: object) -> object:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(torch, "compile", missing)
    with timed_steps(problem, CpuInPlaceOfGpu(), 60.0) as found:  # type: ignore[arg-type]
        assert found.keys() == torch_modes("f32").keys() and len(found) == 6
        for name, way in found.items():
            if name.startswith("torch.compile"):
                assert way.launch is None and way.error == "RuntimeError: Failed to find C compiler"
                continue
            assert (way.captured is not None) == name.endswith("CUDA graph") and way.launch and way.peak_bytes == 1000
            way.launch()
            assert way.captured is None or np.isfinite(float(way.captured.result))


def test_a_compiler_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeLimitExceeded), time_limit(0.05):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)
    with time_limit(0.02):
        pass
    time.sleep(0.04)
