"""A pooling layer, in the form of a KernelBench task."""

import torch
from torch import nn


class Model(nn.Module):
    """The maximum of each window of two by two."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.layer = nn.MaxPool2d(kernel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


kernel = 2


def get_inputs():
    return [torch.rand(16, 32, 64, 64)]


def get_init_inputs():
    return [kernel]
