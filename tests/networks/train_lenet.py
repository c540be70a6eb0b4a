"""Trains LeNet on the digits in PyTorch; writes its weights, and the class that PyTorch gives each test image.

    python tests/networks/train_lenet.py

Adam, 30 epochs of batches of 64 with images shifted by up to two pixels; seeded, on the CPU. Written are
opbench/networks/plan/weights/lenet_digits.safetensors and, beside this file, lenet_digits.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save
from torch import nn
from torch.nn import functional

from opbench.networks.plan.inputs import LENET_WEIGHTS, TEST_EVERY, digits
from opbench.paths import write_atomically

EPOCHS = 30
BATCH = 64


class LeNet(nn.Module):
    """As `opbench.graph.zoo.lenet` has it, with parameters of the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc3, self.fc4, self.fc5 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ten numbers an image, the largest for its class."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
        return self.fc5(functional.relu(self.fc4(functional.relu(self.fc3(x)))))


def train(images: torch.Tensor, classes: torch.Tensor) -> LeNet:
    """The network after all epochs."""
    torch.manual_seed(0)
    net = LeNet()
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(images)).split(BATCH):
            rows, columns = torch.randint(-2, 3, (2,)).tolist()
            shifted = images[chosen].roll((rows, columns), (2, 3))
            loss = functional.cross_entropy(net(shifted), classes[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(chosen)
        schedule.step()
        print(f"epoch {epoch + 1}: loss {total / len(images):.4f}")
    return net.eval()


def main() -> None:
    """Train, test and write."""
    images, classes = (torch.from_numpy(array) for array in digits())
    test = torch.arange(len(images)) % TEST_EVERY == 0
    net = train(images[~test], classes[~test])
    with torch.no_grad():
        found = net(images[test]).argmax(1)
    accuracy = (found == classes[test]).double().mean().item()
    print(f"accuracy on {len(found)} test images: {accuracy:.4f}")
    weights = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in net.state_dict().items()}
    write_atomically(LENET_WEIGHTS, save(weights))
    said = {"torch": torch.__version__.split("+")[0], "test_accuracy": accuracy, "test_classes": found.tolist()}
    write_atomically(Path(__file__).with_name("lenet_digits.json"), json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
