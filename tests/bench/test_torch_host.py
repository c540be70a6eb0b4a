"""What a call of opbench.torch costs the host before the driver is reached: `make bench` where PyTorch is installed.

`examples/torch_overhead.py` measures the whole on a GPU, in turns with torch.nn.functional.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make torch-tests installs it")

import opbench.torch as ours  # noqa: E402
from support.fakes.unlaunched import unlaunched  # noqa: E402

LAYERS = {
    "linear": (lambda t: ours.linear(t["x"], t["w"], t["b"]), 7),
    "conv2d": (lambda t: ours.conv2d(t["image"], t["weight"], t["bias"]), 11),
    "conv2d, nhwc": (lambda t: ours.conv2d(t["last"], t["weights"], t["bias"]), 9),
    "maxpool2d": (lambda t: ours.maxpool2d(t["image"], 2), 9),
    "softmax": (lambda t: ours.softmax(t["x"]), 7),
    "batchnorm2d": (
        lambda t: ours.batchnorm2d(t["image"], t["mean"], t["variance"], t["scale"], t["bias"], True),
        8,
    ),
    "l1_loss": (lambda t: ours.l1_loss(t["x"], t["target"]), 9),
}
"""Each layer as in the example, and the Python functions that a call with gradients may enter besides the driver."""


def tensors(grad: bool) -> dict[str, torch.Tensor]:
    """So small that all of a call is the host's."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).requires_grad_(grad)

    found = {"x": drawn(8, 16), "w": drawn(16, 16), "b": drawn(16), "mean": torch.zeros(8), "variance": torch.ones(8)}
    found |= {"image": drawn(2, 8, 8, 8), "weight": drawn(8, 8, 3, 3), "bias": drawn(8), "scale": drawn(8)}
    found["target"] = torch.randn(8, 16)
    for name, other in (("last", "image"), ("weights", "weight")):
        found[name] = found[other].detach().to(memory_format=torch.channels_last).requires_grad_(grad)
    return found


@pytest.fixture(autouse=True)
def on_no_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The way of a GPU's calls, up to the driver."""
    ours.use(prefer=["*"], precision="f32")
    unlaunched(monkeypatch)
    yield
    ours.use()


@pytest.mark.parametrize("grad", [False, True], ids=["no gradients", "gradients"])
@pytest.mark.parametrize("name", LAYERS)
def test_host_time_of_a_call(benchmark: Callable[..., Any], name: str, grad: bool) -> None:
    """Target: 5 µs more than torch.nn.functional on a GPU's host, where each call of the driver is one, too."""
    layer, given = LAYERS[name][0], tensors(grad)
    layer(given)
    assert benchmark(layer, given).requires_grad == grad


@pytest.mark.parametrize("name", LAYERS)
def test_a_call_enters_few_python_functions(name: str) -> None:
    """What costs the host most grows unseen where nothing is timed."""
    (layer, most), given = LAYERS[name], tensors(True)
    for _ in range(2):
        layer(given)
    entered: list[str] = []

    def noted(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(noted)
    try:
        layer(given)
    finally:
        sys.setprofile(None)
    assert len(entered) - 1 <= most, entered
