"""Real input and trained weights: what the packages ship, as documented, and the class that PyTorch found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from opbench.graph.passes import apply_passes, to_dtype
from opbench.graph.zoo import lenet
from opbench.networks.plan.inputs import PHOTOGRAPHS, digits, digits_test_set, photograph, photographs, trained_lenet
from support.checks.errors import needs_extra, refuses, refuses_name


def test_digits_are_what_scikit_learn_has_enlarged() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="ships the digits; opbench[nets] brings it")
    images, classes = digits()
    raw = datasets.load_digits()
    assert (images.shape, images.dtype) == ((1797, 1, 28, 28), np.float32)
    np.testing.assert_array_equal(images[:, 0, 3:26:3, 3:26:3] * 16, raw.images)
    np.testing.assert_array_equal(classes, raw.target)
    assert not images[:, :, :2].any()
    assert not images[..., 26:].any()
    held_out, _ = digits_test_set()
    np.testing.assert_array_equal(held_out[1], images[5])


@pytest.mark.parametrize("way", ["as built", "fused", "bf16"])
def test_lenet_gives_the_class_that_pytorch_gave_for_every_digit(way: str) -> None:
    pytest.importorskip("sklearn", reason="ships the digits; opbench[nets] brings it")
    images, classes = digits_test_set()
    graph = lenet(len(images)).with_weights(trained_lenet())
    if way != "as built":
        graph, _ = apply_passes(graph)
    if way == "bf16":
        graph = to_dtype(graph, "bf16")
    found = graph.reference({"image": images})["fc5"].argmax(1)
    said = json.loads(Path(__file__).with_name("lenet_digits.json").read_text())
    if way == "bf16":  # its rounded weights may tip what is close
        assert (found == said["test_classes"]).mean() >= 0.99
    else:
        assert found.tolist() == said["test_classes"]
    assert (found == classes).mean() >= 0.97
    assert said["test_accuracy"] >= 0.97


def test_weights_are_those_that_pytorch_runs() -> None:
    torch = pytest.importorskip("torch", reason="too large for CI; run where PyTorch is: on the GPU machine")
    pytest.importorskip("sklearn", reason="ships the digits; opbench[nets] brings it")
    from train_lenet import LeNet

    net = LeNet().eval()
    net.load_state_dict({name: torch.from_numpy(array) for name, array in trained_lenet().items()})
    images, _ = digits_test_set()
    said = json.loads(Path(__file__).with_name("lenet_digits.json").read_text())
    with torch.no_grad():
        assert net(torch.from_numpy(images)).argmax(1).tolist() == said["test_classes"]


def test_photographs_fill_a_batch() -> None:
    data = pytest.importorskip("skimage.data", reason="ships the photographs; opbench[nets] brings it")
    grey = photographs((12, 1, 20, 24))
    assert (grey.shape, grey.dtype) == ((12, 1, 20, 24), np.float32)
    assert grey.min() >= 0
    assert grey.max() <= 1
    np.testing.assert_array_equal(grey[10], grey[0])
    assert len({image.tobytes() for image in grey[: len(PHOTOGRAPHS)]}) == len(PHOTOGRAPHS)
    full = photograph("astronaut", 3, (512, 512))
    np.testing.assert_allclose(full.transpose(1, 2, 0) * 255, data.astronaut(), atol=1e-4)
    camera = photograph("camera", 3, (8, 8))
    np.testing.assert_array_equal(camera[0], camera[2])
    with refuses("not-allowed", "photographs", value=(1, 2, 8, 8)):
        photographs((1, 2, 8, 8))
    with refuses_name("photograph", "camara", "camera"):
        photograph("camara", 1, (8, 8))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "skimage.color", None)
    monkeypatch.setitem(sys.modules, "skimage", None)
    with needs_extra("nets"):
        digits()
    with needs_extra("nets"):
        photographs((1, 1, 8, 8))
