"""ResNet-18 in PyTorch, as torchvision defines it, through `opbench.torch`: layers replaced, and the whole compiled.

    python examples/resnet18.py [--device cuda] [--batch 16] [--size 224] [--train]

It prints which layers opbench runs and why, how far outputs and gradients are from PyTorch's own, and the times of all.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import opbench.torch


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and what went in, added."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample: nn.Module | None = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """Four stages of two blocks, from 64 channels to 512."""

    def __init__(self, num_classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        planes = [width * 2**stage for stage in range(4)]
        for stage, (before, after) in enumerate(zip([width, *planes], planes, strict=False), start=1):
            blocks = nn.Sequential(BasicBlock(before, after, 1 if stage == 1 else 2), BasicBlock(after, after))
            self.add_module(f"layer{stage}", blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(planes[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def seconds(call: Callable[[], object], device: str, count: int = 20) -> float:
    """The median of several calls, each waited for."""
    taken = []
    for _ in range(count if device == "cuda" else 2):
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def off(found: Tensor, right: Tensor) -> float:
    """Relative error in norm."""
    wide = right.detach().double()
    return float(torch.linalg.vector_norm(found.detach().double() - wide) / torch.linalg.vector_norm(wide))


def step(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Forward and backward."""
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    return loss


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--train", action="store_true", help="forward and backward in place of inference")
    parser.add_argument("--book", help="winners of earlier runs: opbench book RUN --out book.json")
    parser.add_argument("--keep", help="write what was measured here to this book")
    return parser.parse_args()


def main() -> None:
    """Compare PyTorch, the replaced model and the compiled one."""
    given = arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    opbench.torch.use(given.book)
    model = ResNet18(width=given.width).to(given.device).to(memory_format=torch.channels_last).train(given.train)
    x = torch.randn(given.batch, 3, given.size, given.size, device=given.device)
    x = x.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (given.batch,), device=given.device)
    exact = copy.deepcopy(model).double()
    replaced, compiled_by_torch = copy.deepcopy(model), torch.compile(copy.deepcopy(model))
    opbench.torch.replace(replaced, example=x)
    base = copy.deepcopy(model)
    compiled = opbench.torch.compile(base, x)
    rivals = {"PyTorch": model, "opbench.torch.replace": replaced, "opbench.torch.compile": compiled}
    bases = {"opbench.torch.compile": base}
    if given.device == "cuda":
        rivals["torch.compile"] = compiled_by_torch
        if given.train:
            bases["compile, CUDA graphs"] = copy.deepcopy(model)
            rivals["compile, CUDA graphs"] = opbench.torch.compile(bases["compile, CUDA graphs"], x, graph=True)
    if given.train:
        step(exact, x.double(), labels)
        right = {name: parameter.grad for name, parameter in exact.named_parameters()}
    else:
        with torch.no_grad():
            expected = exact(x.double())
    for name, rival in rivals.items():
        with torch.set_grad_enabled(given.train):

            def call(rival: nn.Module = rival) -> object:
                return step(rival, x, labels) if given.train else rival(x)

            result = call()
            if given.train:
                own = dict(bases.get(name, rival).named_parameters())
                own = {key.removeprefix("_orig_mod."): parameter for key, parameter in own.items()}
                error = max(off(own[key].grad, gradient) for key, gradient in right.items())  # type: ignore[arg-type]
                what = "worst gradient"
            else:
                error, what = off(result, expected), "output"  # type: ignore[arg-type]
            for _ in range(4 if given.device == "cuda" else 0):
                call()
            print(f"{name:24} {1e3 * seconds(call, given.device):8.3f} ms   {what} {error:.1e} from float64")
    print(compiled.choices())
    if given.keep:
        from pathlib import Path

        opbench.torch.book().save(Path(given.keep))


if __name__ == "__main__":
    main()
