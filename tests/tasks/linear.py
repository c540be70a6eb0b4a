"""A linear layer, in the form of a KernelBench task."""

import torch
from torch import nn


class Model(nn.Module):
    """A linear layer."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


batch = 128
features = 512
outputs = 256


def get_inputs():
    return [torch.rand(batch, features)]


def get_init_inputs():
    return [features, outputs]
