"""Train the same network in PyTorch: the results of the first step, and the modes to run a step in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from opbench.graph.graph import Graph
from opbench.graph.layouts import underlying_image
from opbench.graph.recipe import Recipe
from opbench.graph.training_step import Training
from opbench.kernels.tensors import Arrays
from opbench.networks.plan.torch_gpu import (
    CapturedGraph,
    TimeLimitExceeded,
    TorchGpu,
    find_torch,
    on_one_line,
    precision_settings,
    release_unused_memory,
    time_limit,
)
from opbench.networks.plan.torch_module import to_module, weight_of
from opbench.timing.clock import Launch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

WARM_UP_STEPS = 3
"""Steps before a capture or a timing: cuDNN tries its algorithms, and the optimiser creates its moments."""


@dataclass(frozen=True)
class StepProblem:
    """The data of one training step for PyTorch: the network with initial weights, and the micro-batches."""

    network: Graph
    """The network as built, in nchw."""
    recipe: Recipe
    precision: str
    """PyTorch's arithmetic: f32, tf32, bf16 (by autocast), or f64, the reference for the others."""
    images: np.ndarray
    """Images of all micro-batches, one after the other; targets likewise."""
    targets: np.ndarray
    masks: Sequence[Mapping[str, np.ndarray]] = ()
    """For each micro-batch, the factors of each dropout in opbench's first step."""


@dataclass(frozen=True)
class FirstStep:
    """The results of one step, by the weights' original names."""

    loss: float
    gradients: Arrays
    parameters: Arrays
    """The parameters after the step."""


@dataclass(frozen=True)
class TorchMode:
    """A mode in which PyTorch runs a training step: memory format, compiled or eager, called or as a CUDA graph."""

    channels_last: bool = False
    compiled: bool = False
    graph: bool = False
    """Whether the whole step, from clearing the gradients to the optimiser, is captured as one CUDA graph."""


def torch_modes(precision: str) -> dict[str, TorchMode]:
    """Return the modes in which a step can run, by name.

    The compiled modes use the memory format in which the eager step is faster. That is channels_last for tensor cores,
    else nchw: on an H200 UNet's eager step takes 35.8 ms instead of 50.3 ms in tf32, but 131 ms instead of 129 ms in
    f32.
    """
    channels_last = precision != "f32"
    return {
        "PyTorch eager": TorchMode(),
        "PyTorch eager, CUDA graph": TorchMode(graph=True),
        "channels_last": TorchMode(channels_last=True),
        "channels_last, CUDA graph": TorchMode(channels_last=True, graph=True),
        "torch.compile": TorchMode(channels_last=channels_last, compiled=True),
        "torch.compile, CUDA graph": TorchMode(channels_last=channels_last, compiled=True, graph=True),
    }


# One step in PyTorch ----------------------------------------------------------------------------------------------


class TorchStep:
    """A PyTorch network with optimiser and micro-batches; a call runs one step and returns the loss."""

    def __init__(self, problem: StepProblem, device: str, mode: TorchMode, *, masked: bool = False) -> None:
        """Prepare the step; with `masked`, dropout uses the problem's masks instead of random ones."""
        import torch

        self.network, self.precision, self.device, self.torch = problem.network, problem.precision, device, torch
        self.masks = problem.masks if masked else ()
        self.module = to_module(
            problem.network,
            device=device,
            channels_last=mode.channels_last,
            training=True,
            masks=self.masks[0] if self.masks else None,
        )
        if problem.precision == "f64":
            self.module.double()
        self.way = mode
        self.take_batch(problem.images, problem.targets, problem.recipe.accumulate)
        self.clip = problem.recipe.clip
        self.optimizer = _optimizer(torch, problem.recipe, self.module.parameters(), device, mode)
        with_loss = _with_loss(torch, self.module, problem.recipe.loss)
        self.loss_of = torch.compile(with_loss, dynamic=False) if mode.compiled else with_loss

    def take_batch(self, images: np.ndarray, targets: np.ndarray, count: int = 1) -> None:
        """Use these images for the next steps, in `count` micro-batches."""
        split_arrays = (np.split(array, count) for array in (images, targets))
        self.batches = [
            tuple(self._to_device(part, self.way) for part in images_and_targets)
            for images_and_targets in zip(*split_arrays, strict=True)
        ]

    def _to_device(self, array: np.ndarray, mode: TorchMode) -> Tensor:
        is_integer = array.dtype.kind in "iu"
        tensor = self.torch.from_numpy(np.array(array)).to(self.device)
        tensor = tensor.long() if is_integer else tensor.double() if self.precision == "f64" else tensor.float()
        is_channels_last = mode.channels_last and tensor.dim() == 4
        return tensor.to(memory_format=self.torch.channels_last) if is_channels_last else tensor

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        losses = [self._micro_batch(micro_batch_index) for micro_batch_index in range(len(self.batches))]
        if self.clip:
            self.torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        self.optimizer.step()
        return sum(losses[1:], start=losses[0])

    def _micro_batch(self, micro_batch_index: int) -> Tensor:
        """Add the gradients of one micro-batch to the sum, and return its loss."""
        for index, mask in enumerate(
            self.masks[micro_batch_index].values() if micro_batch_index and self.masks else ()
        ):
            getattr(self.module, f"mask{index}").copy_(self.torch.from_numpy(mask))
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.loss_of(*self.batches[micro_batch_index])
        loss = loss / len(self.batches) if len(self.batches) > 1 else loss
        loss.backward()
        return loss.detach()

    def gradients(self) -> Arrays:
        """Return the gradients of the last step by weight; zeros for a weight without a gradient."""
        weights = {name: weight_of(self.module, self.network, name) for name in self.network.weights}
        return {
            name: self._read(name, tensor.grad if tensor.grad is not None else self.torch.zeros_like(tensor))
            for name, tensor in weights.items()
            if tensor.requires_grad
        }

    def parameters(self) -> Arrays:
        """Return the current parameters and running statistics."""
        return {name: self._read(name, weight_of(self.module, self.network, name)) for name in self.network.weights}

    def _read(self, name: str, tensor: Tensor) -> np.ndarray:
        """Return a weight or its gradient in the network's shape, without PyTorch's extra axis of depthwise filters."""
        array: np.ndarray = tensor.detach().float().cpu().contiguous().numpy().copy()
        return array.reshape(self.network.weights[name].shape)


def _with_loss(torch: ModuleType, module: Callable[..., Sequence[Tensor]], loss: str) -> Callable[..., Tensor]:
    """Return a PyTorch module that computes the loss from images and targets."""
    functional = torch.nn.functional
    losses = {
        "cross_entropy": functional.cross_entropy,
        "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
        "l1": functional.l1_loss,
        "mse": functional.mse_loss,
    }

    class WithLoss(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, images: Tensor, targets: Tensor) -> Tensor:
            classes = targets.flatten() if loss == "cross_entropy" else targets  # text has one target per token
            return losses[loss](self.network(images)[0], classes)

    with_loss: Callable[..., Tensor] = WithLoss()
    return with_loss


def _optimizer(
    torch: ModuleType, recipe: Recipe, parameters: Iterator[Tensor], device: str, mode: TorchMode
) -> Optimizer:
    """Return the recipe's optimiser at the first learning rate, on a GPU as one fused kernel."""
    arguments: dict[str, object] = {"lr": float(recipe.learning_rates()[0]), "weight_decay": recipe.decay}
    if device == "cuda":
        arguments["fused"] = True
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, **arguments)
    if device == "cuda":
        arguments["capturable"] = mode.graph
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    return optimizer_class(parameters, betas=recipe.betas, eps=recipe.epsilon, **arguments)


def first_step(problem: StepProblem, device: str) -> FirstStep:
    """Return the results of PyTorch's eager step with opbench's dropout masks."""
    torch = find_torch(gpu=device == "cuda")
    with precision_settings(torch, problem.precision):
        step = TorchStep(problem, device, TorchMode(), masked=True)
        step_result = FirstStep(float(step()), step.gradients(), step.parameters())
        del step
        if device == "cuda":
            release_unused_memory(torch)
        return step_result


def dropout_masks(training: Training, micro_batch: int) -> Arrays:
    """Return the dropout factors of a micro-batch, numbered from 1, by the nodes' original names."""
    graph, masks = training.graph, {}
    for node in graph.nodes:
        if node.operator != "dropout" or training.groups.get(node.name) != "forward":
            continue
        (name,) = node.outputs.values()
        value, n = graph.values[name], int(node.problem.axes["n"])
        (mask,) = node.problem.computed(x=np.ones(n), step=np.array([micro_batch], np.int32)).values()
        image = underlying_image(graph, node.inputs["x"])
        if image is not None and graph.values[image].layout == "nhwc":
            batch, c, h, w = graph.values[image].image
            mask = mask.reshape(batch, h, w, c).transpose(0, 3, 1, 2)
            shape = (batch, c, h, w) if len(value.shape) == 4 else value.shape
        else:
            shape = value.shape
        masks[node.name] = np.ascontiguousarray(mask.reshape(shape), np.float32)
    return masks


# Modes of a step, prepared for timing -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedStep:
    """A training step in one mode of PyTorch: ready to launch, or the reason why it is not."""

    launch: Launch | None = None
    """Enqueues a step on the backend's stream; None if the way failed."""
    peak_bytes: int | None = None
    """Peak bytes of a step: parameters, gradients, moments, batch and everything between."""
    error: str = ""
    captured: CapturedGraph[Tensor] | None = None
    """The CUDA graph that `launch` replays.

    None for a step that is called from Python, whose time includes its launches."""


@contextlib.contextmanager
def timed_steps(problem: StepProblem, gpu: TorchGpu, limit_s: float) -> Iterator[dict[str, TimedStep]]:
    """Prepare a training step in every mode of PyTorch, by name.

    A mode that fails, without a compiler or memory for example, or that is not warmed up within `limit_s` seconds, has
    its reason in `error`; the other modes continue.
    """
    torch, steps = gpu.torch, dict[str, TimedStep]()
    with precision_settings(torch, problem.precision):
        try:
            for name, mode in torch_modes(problem.precision).items():
                try:
                    steps[name] = _prepare_mode(gpu, problem, mode, limit_s)
                except TimeLimitExceeded:
                    reason = f"not warmed up within {limit_s:g} s; give it more: --compare-limit SECONDS"
                    steps[name] = TimedStep(error=reason)
                except Exception as error:
                    steps[name] = TimedStep(error=on_one_line(error))
                if steps[name].error:
                    gpu.release()
            yield steps
        finally:
            steps.clear()
            torch.compiler.reset()
            gpu.release()


def _prepare_mode(gpu: TorchGpu, problem: StepProblem, mode: TorchMode, limit_s: float) -> TimedStep:
    """Run a step in one mode until compiling and tuning are done; capture it if the mode is a graph."""
    # Memory that an earlier mode left in reference cycles would be missing from the peak of this mode.
    gpu.release()
    start_bytes = gpu.allocated_bytes()
    with time_limit(limit_s):
        step = TorchStep(problem, gpu.device, mode)
        if mode.graph:
            gpu.warm_up(step, WARM_UP_STEPS)
        else:
            with gpu.on_stream():  # all modes that are called from Python share this stream and its memory
                for _ in range(WARM_UP_STEPS):
                    step()
    if not mode.graph:

        def launch() -> None:
            with gpu.on_stream():
                step()

        return TimedStep(launch, gpu.peak_bytes(launch, start_bytes))
    step.optimizer.zero_grad(set_to_none=True)
    gpu.release()  # the graph cannot use memory that the side stream has cached
    captured: list[CapturedGraph[Tensor]] = []
    peak_bytes = gpu.peak_bytes(lambda: captured.append(gpu.capture(step)), start_bytes)
    replay = captured[0].replay
    replay()
    gpu.synchronize()
    return TimedStep(replay, peak_bytes, captured=captured[0])
