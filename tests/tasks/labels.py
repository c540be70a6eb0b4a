"""A loss of labels, in the form of a KernelBench task."""

import torch
from torch import nn


class Model(nn.Module):
    """The mean cross entropy of scores and labels."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores, labels)


rows = 4096
classes = 10


def get_inputs():
    return [torch.rand(rows, classes), torch.randint(0, classes, (rows,))]


def get_init_inputs():
    return []
