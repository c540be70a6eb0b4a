"""A convolution, in the form of a KernelBench task."""

import torch
from torch import nn


class Model(nn.Module):
    """A convolution of images, without padding."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, filters, kernel_size=3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


batch = 16
channels = 32
filters = 64
height = 128
width = 128


def get_inputs():
    return [torch.rand(batch, channels, height, width)]


def get_init_inputs():
    return [channels, filters]
