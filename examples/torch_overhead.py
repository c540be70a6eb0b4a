"""Host time of a call on a GPU: `opbench.torch` beside `torch.nn.functional`, on tensors so small that nothing waits.

    python examples/torch_overhead.py [--backward]

With `--backward` further lines are of a call and its gradients, both ways by one of the two.

Each number is the least of several rounds of 500 calls in microseconds, by time.perf_counter, the GPU waited for
between rounds only. Rounds of both take turns, so that what else the host does falls on both. Every call runs opbench's
kernels here, whatever would be faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.nn import functional

import opbench.torch

ROUNDS, CALLS = 40, 500


def microseconds(*calls: Callable[[], object]) -> list[float]:
    """Host time of one call of each."""
    best = [float("inf")] * len(calls)
    for round in range(ROUNDS + 1):
        for place, call in enumerate(calls):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            if round:  # the first makes plans and loads kernels
                best[place] = min(best[place], (time.perf_counter() - began) / CALLS)
    torch.cuda.synchronize()
    return [1e6 * seconds for seconds in best]


def pairs(grad: bool) -> dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]]:
    """Each layer by PyTorch and by opbench."""
    ours, theirs = opbench.torch, functional

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", requires_grad=grad)

    x, w, b = drawn(8, 16), drawn(16, 16), drawn(16)
    image, weight, bias = drawn(2, 8, 8, 8), drawn(8, 8, 3, 3), drawn(8)
    mean, variance = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    last, weights = (t.detach().to(memory_format=torch.channels_last) for t in (image, weight))
    last.requires_grad_(grad), weights.requires_grad_(grad)
    return {
        "linear": (lambda: theirs.linear(x, w, b), lambda: ours.linear(x, w, b)),
        "conv2d": (lambda: theirs.conv2d(image, weight, bias), lambda: ours.conv2d(image, weight, bias)),
        "conv2d, nhwc": (lambda: theirs.conv2d(last, weights, bias), lambda: ours.conv2d(last, weights, bias)),
        "maxpool2d": (lambda: theirs.max_pool2d(image, 2), lambda: ours.maxpool2d(image, 2)),
        "softmax": (lambda: theirs.softmax(x, -1), lambda: ours.softmax(x)),
        "batchnorm2d": (
            lambda: theirs.batch_norm(image, mean, variance, bias, bias, True),
            lambda: ours.batchnorm2d(image, mean, variance, bias, bias, True),
        ),
        "l1_loss": (lambda: theirs.l1_loss(x, x), lambda: ours.l1_loss(x, x)),
    }


def and_back(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """A call with its backward pass, which adds to the gradients that are there."""
    gradient = torch.ones_like(call())
    return lambda: call().backward(gradient)


def main() -> None:
    """One line a layer, without gradients and with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backward", action="store_true", help="calls with their backward passes, too")
    backward = parser.parse_args().backward
    opbench.torch.use(prefer=["*"], precision="f32")
    print(f"{'layer':14} {'gradients':9} {'PyTorch':>8} {'ours':>8} {'more':>8}   µs of host time a call")
    for gradients in ("no", "yes", "computed")[: 3 if backward else 2]:
        for name, both in pairs(gradients != "no").items():
            theirs, ours = microseconds(*(map(and_back, both) if gradients == "computed" else both))
            print(f"{name:14} {gradients:9} {theirs:8.2f} {ours:8.2f} {ours - theirs:+8.2f}")


if __name__ == "__main__":
    main()
