"""Layers with the inputs that tests give them, as opbench has them and as PyTorch has them; needs PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import opbench.torch as ours

DEVICE = os.environ.get("OPBENCH_TEST_DEVICE", "cpu")
"""Where the tests run: `cuda` on a machine with a GPU."""
LAST = torch.channels_last


class Layer(NamedTuple):
    """One layer in one form."""

    name: str
    mine: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    tensors: list[Tensor]

    def cast(self, dtype: torch.dtype, grad: bool = True) -> list[Tensor]:
        """Its inputs anew, in a type, in the memory order that they have."""
        return [t.detach().to(DEVICE, dtype).requires_grad_(grad) for t in self.tensors]


def drawn(*shape: int, last: bool = False, dense: bool = True) -> Tensor:
    """Seeded normals, contiguous, channels_last, or every second element of something larger."""
    if not dense:
        return torch.randn(*shape[:-1], 2 * shape[-1]).to(DEVICE)[..., ::2]
    tensor = torch.randn(*shape).to(DEVICE)
    return tensor.to(memory_format=LAST) if last else tensor


def layers(dense: bool = True) -> list[Layer]:
    """Every layer with a gradient, in both memory formats, with and without what may be left out."""
    torch.manual_seed(1)
    result = []
    for bias in (True, False):
        tensors = [drawn(3, 2, 7, dense=dense), drawn(5, 7, dense=dense), *([drawn(5)] if bias else [])]
        result.append(Layer(f"linear, bias {bias}", ours.linear, functional.linear, tensors))
    tensors = [drawn(6, 8, dense=dense), drawn(4, 8, dense=dense), drawn(4)]
    result.append(
        Layer("linear, relu", lambda *t: ours.linear(*t, relu=True), lambda *t: functional.linear(*t).relu(), tensors)
    )
    for last in (False, True):
        form = "nhwc" if last else "nchw"
        image, weight = drawn(2, 3, 9, 8, last=last, dense=dense), drawn(5, 3, 3, 3, last=last, dense=dense)
        result += [
            Layer(
                f"conv2d, {form}",
                lambda *t: ours.conv2d(*t, stride=2, padding=1),
                lambda *t: functional.conv2d(*t, stride=2, padding=1),
                [image, weight],
            ),
            Layer(
                f"conv2d, bias and relu, {form}",
                lambda *t: ours.conv2d(*t, padding=(1, 1), relu=True),
                lambda *t: functional.conv2d(*t, padding=1).relu(),
                [image, weight, drawn(5)],
            ),
            Layer(
                f"maxpool2d, {form}",
                lambda x: ours.maxpool2d(x, 3, 2, 1),
                lambda x: functional.max_pool2d(x, 3, 2, 1),
                [image],
            ),
        ]
        x, parts = drawn(3, 4, 5, 6, last=last, dense=dense), [drawn(4).abs() + 0.5, drawn(4)]
        result.append(
            Layer(
                f"batchnorm2d in training, {form}",
                lambda x, w, b: ours.batchnorm2d(x, None, None, w, b, training=True),
                lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
                [x, *parts],
            )
        )
    rows = drawn(4, 3, 10, dense=dense)
    result += [
        Layer("softmax", ours.softmax, lambda x: functional.softmax(x, -1), [rows]),
        Layer("softmax, first axis", lambda x: ours.softmax(x, 0), lambda x: functional.softmax(x, 0), [rows]),
        Layer("l1_loss", ours.l1_loss, functional.l1_loss, [rows, drawn(4, 3, 10)]),
        Layer(
            "l1_loss, sum",
            lambda *t: ours.l1_loss(*t, reduction="sum"),
            lambda *t: functional.l1_loss(*t, reduction="sum"),
            [rows, drawn(4, 3, 10)],
        ),
    ]
    return result


def off(tensor: Tensor, right: Tensor) -> float:
    """The error in norm, relative to what is right."""
    wide = right.detach().double()
    return float(
        torch.linalg.vector_norm(tensor.detach().double() - wide) / torch.linalg.vector_norm(wide).clamp_min(1e-12)
    )
