"""Replace the layers of a model that are faster in opbench than in PyTorch, and return a table of decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from opbench import units
from opbench.errors import OpbenchError, UsageError
from opbench.kernels.operator import Operator
from opbench.networks.pytorch import functions, operator_calls
from opbench.networks.pytorch.choice import entry_for, prepare, problem_of, settings, use
from opbench.networks.pytorch.devices import CPU, DTYPE_NAMES, OpenedDevice, opened_device_of
from opbench.networks.pytorch.operator_calls import EPSILON, OperatorCall
from opbench.networks.pytorch.primitives import backward_steps
from opbench.results.book import Book, BookEntry
from opbench.tables import align_columns

if TYPE_CHECKING:
    from torch import Tensor


class OpbenchLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer by opbench; PyTorch runs what opbench does not support, such as float64."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias."""
        return (
            functions.linear(x, self.weight, self.bias) if _are_types_supported(x, self.weight) else super().forward(x)
        )


class OpbenchConv2d(nn.Conv2d):  # type: ignore[misc]
    """A convolution by opbench; PyTorch runs what opbench does not support."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        if not _are_types_supported(x, self.weight):
            return super().forward(x)
        return functions.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class OpbenchMaxPool2d(nn.MaxPool2d):  # type: ignore[misc]
    """A max pooling by opbench; PyTorch runs what opbench does not support."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest element of each window."""
        if x.dtype not in SUPPORTED_DTYPES:
            return super().forward(x)
        return functions.maxpool2d(x, self.kernel_size, self.stride, self.padding)


class OpbenchBatchNorm2d(nn.BatchNorm2d):  # type: ignore[misc]
    """A batch norm by opbench, in training and with running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised image."""
        if x.dtype not in SUPPORTED_DTYPES or not x.numel():
            return super().forward(x)
        use_batch_statistics = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        mean, variance = self.running_mean, self.running_var
        return functions.batchnorm2d(
            x, mean, variance, self.weight, self.bias, use_batch_statistics, self.momentum or 0.0, self.eps
        )


class OpbenchSoftmax(nn.Softmax):  # type: ignore[misc]
    """A softmax by opbench; PyTorch runs what opbench does not support."""

    def forward(self, x: Tensor) -> Tensor:
        """Return exponentials divided by their sum."""
        return (
            functions.softmax(x, self.dim)
            if x.dtype in SUPPORTED_DTYPES and self.dim is not None
            else super().forward(x)
        )


SUPPORTED_DTYPES = (torch.float32, torch.bfloat16)
REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: OpbenchLinear,
    nn.Conv2d: OpbenchConv2d,
    nn.MaxPool2d: OpbenchMaxPool2d,
    nn.BatchNorm2d: OpbenchBatchNorm2d,
    nn.Softmax: OpbenchSoftmax,
}


def _are_types_supported(x: Tensor, weight: Tensor) -> bool:
    """Return whether opbench supports the types, after autocast."""
    if not functions._is_autocast_active():
        return x.dtype in SUPPORTED_DTYPES and x.dtype == weight.dtype
    if torch.is_autocast_enabled(x.device.type):
        return bool(torch.get_autocast_dtype(x.device.type) == torch.bfloat16)
    return x.dtype in SUPPORTED_DTYPES and x.dtype == weight.dtype


@dataclass(frozen=True)
class LayerChoice:
    """The decision for one layer, with the times on which it is based."""

    layer: str
    problem: str
    choice: str
    """ "opbench", or "PyTorch" with the reason."""
    pytorch_s: float | None = None
    ours_s: float | None = None
    """The sum of opbench's forward times, plus backward for training, in seconds.

    Of each problem the fastest variant.
    """
    case: str = ""

    @property
    def ours(self) -> bool:
        """Return whether the layer was replaced."""
        return self.choice == "opbench"


@dataclass(frozen=True)
class LayerChoices:
    """The decisions for all layers of a model."""

    choices: tuple[LayerChoice, ...]

    def __str__(self) -> str:
        rows = [
            [c.layer, units.time(c.pytorch_s), units.time(c.ours_s), c.choice, c.problem, c.case] for c in self.choices
        ]
        headings = ["layer", "PyTorch", "ours", "choice", "problem", "variant"]
        replaced = sum(choice.ours for choice in self.choices)
        return "\n".join(
            [*align_columns(headings, rows, left=[0, 3, 4, 5]), f"{replaced} of {len(rows)} layers by opbench"]
        )


def replace(
    model: nn.Module, book: Book | str | Path | None = None, *, example: Tensor | Sequence[Tensor], verbose: bool = True
) -> LayerChoices:
    """Replace, in place, the layers that opbench computes faster than PyTorch; return and print a table.

    `example` holds the model's inputs: one call shows the shapes, types and memory formats of its layers.
    `book` is a winners file, as in `use`; without one the settings stay. A layer is replaced if the whole 95 %
    interval of opbench is below PyTorch's; for a model in training mode its backward problems count too.
    Problems that are not in the winners file are measured first if the settings say so; otherwise the layer
    stays PyTorch's. Parameters, buffers, hooks and the names in `state_dict` are unchanged.
    """
    if book is not None:
        use(book, missing=settings().missing, precision=settings().precision)
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    names = {module: name for name, module in model.named_modules() if type(module) in REPLACEMENTS}
    choices = []
    calls_by_layer = _recorded_calls(model, inputs, list(names))
    _compile_all(calls_by_layer)
    for module, calls in calls_by_layer.items():
        choice = _choose_layer(names[module], module, calls)
        choices.append(choice)
        if choice.ours:
            _replace_layer(model, names[module], module)
    choices_made = LayerChoices(tuple(choices))
    if verbose:
        print(choices_made)
    return choices_made


def _compile_all(calls_by_layer: Mapping[nn.Module, Sequence[tuple[Tensor, Tensor]]]) -> None:
    """Compile the kernels that will be measured for all layers, in parallel."""
    problems: dict[int, list[Operator]] = {}
    for module, calls in calls_by_layer.items():
        with contextlib.suppress(OpbenchError):  # the error is reported when the layer is decided
            problems.setdefault(calls[0][0].get_device(), []).extend(_layer_problems(module, calls)[1])
    for index, layer_problems in problems.items():
        prepare(layer_problems, opened_device_of(index))


def _replace_layer(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a layer by one that shares all parameters, buffers and hooks with it."""
    replacement_class = REPLACEMENTS[type(module)]
    replacement = object.__new__(replacement_class)
    replacement.__dict__ = module.__dict__
    if not name:
        raise UsageError(
            "the model is a single layer, which opbench cannot replace in place; wrap the layer: "
            "torch.nn.Sequential(model)",
            kind="single-layer",
            subject="model",
            value=type(module).__name__,
        )
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, replacement)


def _recorded_calls(
    model: nn.Module, inputs: Sequence[Tensor], layers: Sequence[nn.Module]
) -> dict[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Run the model once and return input and output of each call of each layer; then restore the model's state."""
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def note(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        calls.setdefault(module, []).append((arguments[0].detach(), output.detach()))

    saved_buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for name, buffer in model.named_buffers():
            buffer.copy_(saved_buffers[name])
    return calls


def _choose_layer(name: str, module: nn.Module, calls: Sequence[tuple[Tensor, Tensor]]) -> LayerChoice:
    """Decide whether to replace a layer, from the times of all its problems."""
    try:
        problem_text, problems = _layer_problems(module, calls)
    except OpbenchError as error:
        return LayerChoice(name, "", f"PyTorch: {str(error).removeprefix('opbench.torch.')}")
    index = calls[0][0].get_device()
    if index == CPU:
        return LayerChoice(name, problem_text, "PyTorch: the host has no clock of ours")
    opened_device = opened_device_of(index)
    entries = [entry_for(problem, opened_device) for problem in problems]
    return _compare_layer(name, problem_text, entries, problems, opened_device)


def _layer_problems(module: nn.Module, calls_of_layer: Sequence[tuple[Tensor, Tensor]]) -> tuple[str, list[Operator]]:
    """Return a layer's first problem as text, and all its problems; in training with those of the backward pass."""
    calls = [_call_of(module, x) for x, _ in calls_of_layer]
    problems = [problem_of(call.operator, call.text) for call in calls]
    all_problems = list(problems)
    if module.training and (not list(module.parameters()) or any(p.requires_grad for p in module.parameters())):
        all_problems += [
            backward_problem for problem in problems for backward_problem in _backward_problems(problem, calls[0])
        ]
    return f"{problems[0].name}{problems[0]}", all_problems


def _backward_problems(problem: Operator, call: OperatorCall) -> list[Operator]:
    input_names = frozenset(name for name in problem.inputs if name in call.names and not name.startswith("running"))
    steps = backward_steps(problem, input_names)
    return [problem_of(step.operator, step.text) for step in steps if step.operator]


def _compare_layer(
    name: str,
    problem_text: str,
    entries: Sequence[BookEntry | None],
    problems: Sequence[Operator],
    opened_device: OpenedDevice,
) -> LayerChoice:
    known_entries = [entry for entry in entries if entry is not None]
    missing_problems = [p for e, p in zip(entries, problems, strict=True) if e is None or e.library is None]
    if missing_problems:
        return LayerChoice(
            name,
            problem_text,
            f"PyTorch: no times of {missing_problems[0].name}{missing_problems[0]} on {opened_device.gpu}",
        )
    torch_times = [entry.library for entry in known_entries if entry.library is not None]
    opbench_times = [
        min(entry.winner, torch_entry, key=lambda t: t.median_s)
        for entry, torch_entry in zip(known_entries, torch_times, strict=True)
    ]
    torch_s, opbench_s = sum(t.median_s for t in torch_times), sum(t.median_s for t in opbench_times)
    high, low = sum(t.high_s for t in opbench_times), sum(t.low_s for t in torch_times)
    has_own_winner = any(entry.winner is time for entry, time in zip(known_entries, opbench_times, strict=True))
    choice = (
        "opbench" if has_own_winner and high < low else "PyTorch: as fast" if opbench_s < torch_s else "PyTorch: faster"
    )
    cases = " ".join(
        e.winner.case.removesuffix(e.problem)
        for e, t in zip(known_entries, opbench_times, strict=True)
        if e.winner is t
    )
    return LayerChoice(name, problem_text, choice, torch_s, opbench_s, cases)


def _call_of(module: nn.Module, x: Tensor) -> OperatorCall:
    """Return a layer's call as a problem; raise UsageError for a layer that opbench does not support."""
    match module:
        case nn.Linear():
            x, weight, bias = functions._to_autocast_type(x, module.weight, module.bias)
            return operator_calls.linear(x, weight, bias, False)
        case nn.Conv2d():
            return _conv2d_call(module, x)
        case nn.MaxPool2d():
            return _maxpool2d_call(module, x)
        case nn.BatchNorm2d():
            return _batchnorm_call(module, x)
        case nn.Softmax():
            return _softmax_call(module, x)
    raise UsageError(
        f"opbench has no replacement for {type(module).__name__}; it replaces "
        f"{', '.join(layer.__name__ for layer in REPLACEMENTS)}",
        kind="no-counterpart",
        subject=type(module).__name__,
        allowed=tuple(layer.__name__ for layer in REPLACEMENTS),
    )


def _conv2d_call(module: nn.Conv2d, x: Tensor) -> OperatorCall:
    if module.groups != 1 or set(module.dilation) != {1} or module.padding_mode != "zeros":
        raise UsageError(
            f"groups={module.groups}, dilation={module.dilation}, padding_mode={module.padding_mode!r} is not "
            "supported; opbench replaces layers with groups=1, dilation=1 and padding_mode='zeros'",
            kind="unsupported-option",
            subject="conv2d",
            value=(module.groups, module.dilation, module.padding_mode),
        )
    if isinstance(module.padding, str):
        raise UsageError(
            f"padding='{module.padding}' is not supported; opbench replaces layers with padding as a number",
            kind="unsupported-option",
            subject="conv2d",
            value=("padding", module.padding),
        )
    x, weight, bias = functions._to_autocast_type(x, module.weight, module.bias)
    stride = operator_calls.one_number("conv2d", "stride", module.stride)
    padding = operator_calls.one_number("conv2d", "padding", module.padding)
    return operator_calls.conv2d(x, weight, bias, stride, padding, False)


def _maxpool2d_call(module: nn.MaxPool2d, x: Tensor) -> OperatorCall:
    if module.dilation not in (1, (1, 1)) or module.ceil_mode or module.return_indices:
        raise UsageError(
            f"dilation={module.dilation}, ceil_mode={module.ceil_mode}, return_indices={module.return_indices} "
            "is not supported; opbench replaces layers with dilation=1, ceil_mode=False and "
            "return_indices=False",
            kind="unsupported-option",
            subject="maxpool2d",
            value=(module.dilation, module.ceil_mode, module.return_indices),
        )
    sizes = (module.kernel_size, module.stride or module.kernel_size, module.padding)
    window, stride, padding = (operator_calls.one_number("maxpool2d", "sizes", size) for size in sizes)
    return operator_calls.maxpool2d(x, window, stride, padding)


def _softmax_call(module: nn.Softmax, x: Tensor) -> OperatorCall:
    if module.dim is None or module.dim % x.dim() != x.dim() - 1:
        raise UsageError(
            f"softmax with dim={module.dim} is not supported, because opbench would have to copy the tensor; "
            "opbench replaces a softmax over the last axis (dim=-1)",
            kind="unsupported-option",
            subject="softmax",
            value=("dim", module.dim),
            allowed=-1,
        )
    return operator_calls.softmax(x)


def _batchnorm_call(module: nn.BatchNorm2d, x: Tensor) -> OperatorCall:
    momentum = module.momentum
    if module.eps != EPSILON or momentum is None or abs(round(100 * momentum) - 100 * momentum) > 1e-9:
        raise UsageError(
            f"BatchNorm2d with eps={module.eps} and momentum={momentum} is not supported; opbench replaces one with "
            f"eps={EPSILON} and a momentum that is a multiple of 0.01, such as 0.1; "
            "change the layer, or leave it to PyTorch",
            kind="unsupported-option",
            subject="batchnorm2d",
            value=(module.eps, momentum),
        )
    parameters = (module.weight, module.bias, module.running_mean, module.running_var)
    if module.training:
        return operator_calls.batchnorm2d_train(x, *parameters, round(100 * momentum), False)
    if DTYPE_NAMES.get(x.dtype) == "bf16" and any(
        parameter is not None and parameter.dtype != x.dtype for parameter in parameters
    ):
        raise UsageError(
            "images of bf16 with statistics of another dtype are not supported; convert the layer to torch.bfloat16",
            kind="other-dtype",
            subject="batchnorm2d",
        )
    return operator_calls.batchnorm2d(x, *parameters, False)
