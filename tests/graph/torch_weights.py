"""Writes the SHA-256 of every weight that PyTorch's layers draw for the networks that opbench ships.

    python tests/graph/torch_weights.py

Beside this file, torch_weights.json; a test makes the same weights without PyTorch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import nn

from opbench.paths import write_atomically

NORM = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}


def drawn_norm(channels: int) -> nn.BatchNorm2d:
    """A batch norm that does something: PyTorch's own starts as the identity."""
    norm = nn.BatchNorm2d(channels)
    for tensor, centre in ((norm.weight, 1), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 1)):
        assert tensor is not None
        nn.init.uniform_(tensor, centre - 0.5, centre + 0.5)
    return norm


def lenet() -> dict[str, nn.Module]:
    """Layers in the order in which they are made, and so drawn."""
    return {
        "conv1": nn.Conv2d(1, 6, 5, padding=2),
        "conv2": nn.Conv2d(6, 16, 5),
        "fc3": nn.Linear(400, 120),
        "fc4": nn.Linear(120, 84),
        "fc5": nn.Linear(84, 10),
    }


def alexnet() -> dict[str, nn.Module]:
    """For one channel and ten classes, without padding in the first convolution."""
    return {
        "conv1": nn.Conv2d(1, 96, 11, stride=4),
        "conv2": nn.Conv2d(96, 256, 5, padding=2),
        "conv3": nn.Conv2d(256, 384, 3, padding=1),
        "conv4": nn.Conv2d(384, 384, 3, padding=1),
        "conv5": nn.Conv2d(384, 256, 3, padding=1),
        "fc6": nn.Linear(6400, 4096),
        "fc7": nn.Linear(4096, 4096),
        "fc8": nn.Linear(4096, 10),
    }


def unet() -> dict[str, nn.Module]:
    """Base 64, four levels."""
    layers: dict[str, nn.Module] = {}

    def level(name: str, c: int, k: int) -> None:
        for half, channels in (("a", c), ("b", k)):
            layers[f"{name}{half}"] = nn.Conv2d(channels, k, 3, padding=1)
            layers[f"{name}{half}.norm"] = drawn_norm(k)

    for i, k in enumerate((64, 128, 256, 512)):
        level(f"down{i}", 1 if i == 0 else k // 2, k)
    level("bottom", 512, 1024)
    for i, k in reversed(list(enumerate((64, 128, 256, 512)))):
        level(f"up{i}", k + 2 * k, k)
    return {**layers, "head": nn.Conv2d(64, 1, 1)}


def resnet(stages: tuple[int, ...], bottleneck: bool) -> dict[str, nn.Module]:
    """Base 64, three channels, 1000 classes; a block's downsampling comes after its other convolutions."""
    layers: dict[str, nn.Module] = {}

    def conv(name: str, c: int, k: int, r: int, stride: int) -> None:
        layers[name] = nn.Conv2d(c, k, r, stride, r // 2, bias=False)
        layers[f"{name}.norm"] = drawn_norm(k)

    conv("conv1", 3, 64, 7, 2)
    c = 64
    for stage, blocks in enumerate(stages):
        k = 64 << stage
        for number in range(blocks):
            stride, name = (2 if stage and not number else 1), f"layer{stage + 1}.{number}"
            widths = ((k, 1, 1), (k, 3, stride), (4 * k, 1, 1)) if bottleneck else ((k, 3, stride), (k, 3, 1))
            before = c
            for place, (width, r, step) in enumerate(widths, start=1):
                conv(f"{name}.conv{place}", before, width, r, step)
                before = width
            if stride > 1 or c != before:
                conv(f"{name}.downsample", c, before, 1, stride)
            c = before
    return {**layers, "fc": nn.Linear(c, 1000)}


def resnet18() -> dict[str, nn.Module]:
    """Blocks of two convolutions."""
    return resnet((2, 2, 2, 2), False)


def resnet50() -> dict[str, nn.Module]:
    """Blocks of three convolutions."""
    return resnet((3, 4, 6, 3), True)


MOBILENETV3 = (
    (3, 16, 16, 0), (3, 64, 24, 0), (3, 72, 24, 0), (5, 72, 40, 24), (5, 120, 40, 32), (5, 120, 40, 32),
    (3, 240, 80, 0), (3, 200, 80, 0), (3, 184, 80, 0), (3, 184, 80, 0), (3, 480, 112, 120),
    (3, 672, 112, 168), (5, 672, 160, 168), (5, 960, 160, 240), (5, 960, 160, 240),
)  # fmt: skip
"""For each block of torchvision's mobilenet_v3_large: filter, expanded, output and squeezed channels."""


def mobilenetv3() -> dict[str, nn.Module]:
    """Three channels, 1000 classes; squeeze and excitation by linear layers in place of 1x1 convolutions."""
    layers: dict[str, nn.Module] = {}

    def conv(name: str, c: int, k: int, r: int, groups: int = 1) -> None:
        layers[name] = nn.Conv2d(c, k, r, padding=r // 2, groups=groups, bias=False)
        layers[f"{name}.norm"] = drawn_norm(k)

    conv("conv1", 3, 16, 3)
    c = 16
    for number, (r, expanded, k, squeezed) in enumerate(MOBILENETV3, start=1):
        name = f"block{number}"
        if expanded != c:
            conv(f"{name}.expand", c, expanded, 1)
        conv(f"{name}.depthwise", expanded, expanded, r, expanded)
        if squeezed:
            layers[f"{name}.squeeze.fc1"] = nn.Linear(expanded, squeezed)
            layers[f"{name}.squeeze.fc2"] = nn.Linear(squeezed, expanded)
        conv(f"{name}.project", expanded, k, 1)
        c = k
    conv("conv2", 160, 960, 1)
    return {**layers, "fc1": nn.Linear(960, 1280), "fc2": nn.Linear(1280, 1000)}


def diffusion() -> dict[str, nn.Module]:
    """Four channels, base 128."""
    layers: dict[str, nn.Module] = {"time1": nn.Linear(128, 512), "time2": nn.Linear(512, 512)}

    def norm(name: str, c: int) -> None:
        layers[name] = layer = nn.GroupNorm(32, c)
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.uniform_(layer.bias, -0.5, 0.5)

    def residual(name: str, c: int, k: int) -> None:
        norm(f"{name}.norm1", c)
        layers[f"{name}.conv1"] = nn.Conv2d(c, k, 3, padding=1)
        layers[f"{name}.time"] = nn.Linear(512, k)
        norm(f"{name}.norm2", k)
        layers[f"{name}.conv2"] = nn.Conv2d(k, k, 3, padding=1)
        if c != k:
            layers[f"{name}.skip"] = nn.Conv2d(c, k, 1)

    def attention(name: str) -> None:
        norm(f"{name}.norm", 256)
        layers[f"{name}.qkv"] = nn.Linear(256, 768)
        layers[f"{name}.projection"] = nn.Linear(256, 256)

    layers["first"] = nn.Conv2d(4, 128, 3, padding=1)
    residual("down1", 128, 128)
    layers["down1.half"] = nn.Conv2d(128, 128, 3, stride=2, padding=1)
    residual("down2", 128, 256)
    attention("down2.attention")
    residual("middle1", 256, 256)
    attention("middle.attention")
    residual("middle2", 256, 256)
    residual("up2", 512, 256)
    attention("up2.attention")
    layers["up1.double"] = nn.Conv2d(256, 256, 3, padding=1)
    residual("up1", 384, 128)
    norm("last.norm", 128)
    return {**layers, "last": nn.Conv2d(128, 4, 3, padding=1)}


def drawn(module: nn.Module, bound: float, centre: float = 0.0) -> nn.Module:
    """A module whose parameters are drawn again, uniformly around a centre."""
    for tensor in module.parameters():
        nn.init.uniform_(tensor, centre - bound, centre + bound)
    return module


def gpt2() -> dict[str, nn.Module]:
    """Twelve layers of 768 columns; the last product has the weight of the embedding."""
    bound = 0.02 * 3**0.5
    layers: dict[str, nn.Module] = {
        "tokens": drawn(nn.Embedding(50257, 768, _weight=torch.empty(50257, 768)), bound),
        "positions": drawn(nn.Embedding(1024, 768, _weight=torch.empty(1024, 768)), bound),
    }

    def norm(name: str) -> None:
        layers[name] = layer = nn.LayerNorm(768)
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.uniform_(layer.bias, -0.5, 0.5)

    for number in range(12):
        name = f"layer{number}"
        norm(f"{name}.norm1")
        layers[f"{name}.qkv"] = nn.Linear(768, 3 * 768)
        layers[f"{name}.projection"] = nn.Linear(768, 768)
        norm(f"{name}.norm2")
        layers[f"{name}.up"] = nn.Linear(768, 4 * 768)
        layers[f"{name}.down"] = nn.Linear(4 * 768, 768)
    norm("norm")
    return layers


def digests(layers: dict[str, nn.Module]) -> dict[str, str]:
    """The SHA-256 of every tensor, by its name in opbench."""
    found = {}
    for name, layer in layers.items():
        for key, tensor in layer.state_dict().items():
            if key == "num_batches_tracked":
                continue
            part = NORM[key] if isinstance(layer, nn.BatchNorm2d) else key
            found[f"{name}.{part}"] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    return found


if __name__ == "__main__":
    written = {}
    for make in (lenet, alexnet, unet, resnet18, resnet50, mobilenetv3, diffusion, gpt2):
        torch.manual_seed(0)
        written[make.__name__] = digests(make())
    path = Path(__file__).with_suffix(".json")
    write_atomically(path, (json.dumps({"torch": torch.__version__, **written}, indent=1) + "\n").encode())
    print(path)
