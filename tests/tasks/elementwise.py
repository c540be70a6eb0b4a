"""Functions of one matrix, each a PyTorch task of its own."""

import torch
import torch.nn.functional as F

rows = 1024
cols = 4096


def sigmoid(x):
    return torch.sigmoid(x)


def tanh(x):
    return torch.tanh(x)


def swish(x):
    return x * torch.sigmoid(x)


def gelu(x):
    return F.gelu(x)


def leaky_relu(x):
    return F.leaky_relu(x, 0.01)


def elu(x):
    return F.elu(x)


def hardtanh(x):
    return F.hardtanh(x)


def hardsigmoid(x):
    return F.hardsigmoid(x)


def softsign(x):
    return F.softsign(x)


def softplus(x):
    return F.softplus(x)


def relu(x):
    return torch.relu(x)


def square_plus(x):
    return x * x + 3.0


def get_inputs():
    return [torch.rand(rows, cols)]
