"""`import opbench.torch`: opbench's operators in PyTorch, with the variants that a winners file lists as fastest."""

from __future__ import annotations

from opbench.paths import pip_install

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError(f"opbench.torch needs PyTorch ({_error}); install PyTorch with: {pip_install('torch')}") from None

from opbench.networks.pytorch.choice import book, settings, use
from opbench.networks.pytorch.compiling import compile
from opbench.networks.pytorch.functions import (
    batchnorm2d,
    conv2d,
    l1_loss,
    linear,
    maxpool2d,
    operator,
    softmax,
)
from opbench.networks.pytorch.replacing import replace

__all__ = [
    "batchnorm2d",
    "book",
    "compile",
    "conv2d",
    "l1_loss",
    "linear",
    "maxpool2d",
    "operator",
    "replace",
    "settings",
    "softmax",
    "use",
]
