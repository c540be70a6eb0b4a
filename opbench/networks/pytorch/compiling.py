"""Compile a whole PyTorch model: import it, plan it as `opbench net run` does, and return a module."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.importing import from_torch
from opbench.graph.values import Node
from opbench.kernels.operator import Operator
from opbench.networks.plan.choosing import apply_enabled_passes, convert_layouts
from opbench.networks.plan.options import NetOptions
from opbench.networks.pytorch import torch_operators
from opbench.networks.pytorch.choice import choice_for, entry_for, prepare, problem_of
from opbench.networks.pytorch.devices import CPU, DTYPE_NAMES, TORCH_DTYPES, opened_device_of
from opbench.networks.pytorch.layers import call
from opbench.networks.pytorch.operator_calls import EPSILON
from opbench.networks.pytorch.primitives import backward_steps, compute, is_plain_eager_call, to_operator_order
from opbench.networks.pytorch.replacing import LayerChoice, LayerChoices

if TYPE_CHECKING:
    from torch import Tensor

WARM_UP_RUNS = 3
"""Calls before a CUDA graph is recorded: the first ones load kernels and measure problems."""


@dataclass(frozen=True)
class NodeValues:
    """The shapes and dtypes of the inputs and outputs of a node."""

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, node: Node, graph: Graph) -> NodeValues:
        """Return the values of a node in the operator's order."""
        outputs = (node.outputs[tensor.name] for tensor in node.problem.output_tensors())
        return cls(
            tuple((node.inputs[tensor.name], tensor.shape) for tensor in node.problem.input_tensors()),
            tuple((name, graph.values[name].shape) for name in outputs),
        )


class CompiledNetwork(nn.Module):  # type: ignore[misc]
    """A network that opbench runs as a PyTorch module; `compile` creates it.

    For a model in evaluation mode it holds a copy of the weights, with batch norms folded into convolutions.
    For one in training mode it shares the model's parameters and statistics, so the model's optimiser trains
    it.
    """

    def __init__(self, graph: Graph, model: nn.Module, example: Sequence[Tensor], recorded: bool) -> None:
        super().__init__()
        self.network, self.training_mode = graph, model.training
        self.index = example[0].get_device()
        self._texts = [str(node.problem) for node in graph.nodes]
        self._forms = [NodeValues.of(node, graph) for node in graph.nodes]
        self._own: dict[str, str] = {}
        self._sources: dict[str, OwnTensor] = {}
        if model.training:
            self.model = model
        for name, array in graph.weights.items():
            value = graph.values[name]
            if model.training and (model_tensor := _model_tensor(model, name)) is not None:
                self._sources[name] = model_tensor
                continue
            if model.training and any(name.startswith(f"{own}.") for own, _ in model.named_parameters()):
                raise UsageError(
                    f"{name}: opbench computes this weight from a parameter once, so training cannot update the "
                    "parameter; call model.eval() before opbench.torch.compile, or train with PyTorch",
                    kind="not-trainable",
                    subject=name,
                )
            self._own[name] = f"constant{len(self._own)}"
            tensor = torch.from_numpy(array.copy()).to(example[0].device, TORCH_DTYPES[value.dtype])
            self.register_buffer(self._own[name], tensor, persistent=not model.training)
        self._norms = {
            node.name: model.get_submodule(node.inputs["mean"].rpartition(".")[0])
            for node in graph.nodes
            if node.operator == "batchnorm2d" and model.training
        }
        self._recorded = recorded and self.index != CPU
        self._trained_by: nn.Module | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: tuple[list[Tensor], list[Tensor]] = ([], [])

    def extra_repr(self) -> str:
        """Return the network's name and number of nodes, for `repr`."""
        return f"{self.network.name}: {len(self.network.nodes)} nodes"

    def problems(self) -> list[tuple[str, Operator]]:
        """Return the problems of all nodes by name; in training, also those of the backward pass."""
        problems = []
        for node in self.network.nodes:
            problem = node.problem
            if problem.name == "batchnorm2d" and self.training_mode:
                problem = problem_of("batchnorm2d_train", str(problem))
            if problem.name not in ("dropout", "layout2d"):
                problems.append((node.name, problem))
            if self.training_mode and node.name in self._nodes_with_gradient:
                input_names = frozenset(t for t, v in node.inputs.items() if v not in self.network.inputs)
                if problem.name == "batchnorm2d_train":
                    input_names = frozenset(("x", "scale", "shift"))
                for step in backward_steps(problem, input_names) if input_names and problem.name != "dropout" else ():
                    if step.operator:
                        problems.append((f"{node.name}.{step.operator}", problem_of(step.operator, step.text)))
        return problems

    @property
    def _nodes_with_gradient(self) -> set[str]:
        """Return the nodes that receive a gradient: those that depend on a parameter."""
        return {n.name for n in self.network.nodes if any(v not in self.network.inputs for v in n.inputs.values())}

    def choices(self) -> LayerChoices:
        """Return the runner of each problem, with the known times."""
        choices = []
        for name, problem in self.problems():
            text = str(problem)
            runner_choice = choice_for(problem.name, text, self.index)
            entry = entry_for(problem, opened_device_of(self.index)) if self.index != CPU else None
            own_s = entry.winner.median_s if entry else None
            torch_s = entry.library.median_s if entry and entry.library else None
            case = runner_choice.runner.case.name.removesuffix(text) if runner_choice.runner else ""
            choice_text = "opbench" if runner_choice.runner else f"PyTorch: {runner_choice.why}"
            choices.append(LayerChoice(name, f"{problem.name}{text}", choice_text, torch_s, own_s, case))
        return LayerChoices(tuple(choices))

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the model's outputs; inputs must have the example's shapes."""
        for name, tensor in zip(self.network.inputs, inputs, strict=True):
            shape = self.network.values[name].shape
            if tuple(tensor.shape) != shape or tensor.get_device() != self.index:
                raise UsageError(
                    f"{self.network.name}: '{name}' is {list(tensor.shape)} on {tensor.device}, but the network was "
                    f"compiled for {list(shape)} on device {self.index}; compile for this input: "
                    "opbench.torch.compile(model, example)",
                    kind="other-shape",
                    subject=name,
                    value=tuple(tensor.shape),
                    allowed=tuple(shape),
                )
        if not self._recorded or not is_plain_eager_call(inputs) or any(t.requires_grad for t in inputs):
            outputs = self._run(inputs)
        elif not self.training_mode:
            outputs = self._replay(inputs)
        elif self.training and torch.is_grad_enabled():
            outputs = self._step(inputs)
        else:
            outputs = self._run(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _step(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs by two CUDA graphs, forward and backward, recorded at the first call."""
        if self._trained_by is None:
            saved_buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            static_inputs = tuple(input_name.clone(memory_format=torch.preserve_format) for input_name in inputs)
            graphed = torch.cuda.make_graphed_callables(_RecordedNetwork(self), static_inputs)
            for name, buffer in self.model.named_buffers():
                buffer.copy_(saved_buffers[name])  # recording changed the buffers, so they are restored
            self.__dict__["_trained_by"] = (
                graphed  # stored without registration: a child module would contain this network again
            )
        return list(self._trained_by(*inputs))  # type: ignore[misc]

    def _replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs by one CUDA graph, recorded at the first call."""
        with torch.no_grad():
            if self._graph is None:
                self._record(inputs)
            for static_input, tensor in zip(self._static[0], inputs, strict=True):
                static_input.copy_(tensor)
            assert self._graph is not None
            self._graph.replay()
            return [output.clone() for output in self._static[1]]

    def _record(self, inputs: Sequence[Tensor]) -> None:
        static_inputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in inputs]
        side = torch.cuda.Stream(self.index)
        side.wait_stream(torch.cuda.current_stream(self.index))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_RUNS):
                self._run(static_inputs)
        torch.cuda.current_stream(self.index).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._run(static_inputs)
        self._graph, self._static = graph, (static_inputs, outputs)

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs node by node; release each value after its last reader."""
        graph = self.network
        values: dict[str, Tensor] = dict(zip(graph.inputs, inputs, strict=True))
        for index, node in enumerate(graph.nodes):
            node_values = self._forms[index]
            operands = [to_operator_order(self._value(values, name), shape) for name, shape in node_values.inputs]
            outputs = self._compute_node(node, self._texts[index], operands)
            for (name, shape), tensor in zip(node_values.outputs, outputs, strict=False):
                values[name] = to_operator_order(tensor, shape)
            for name in self._last_uses.get(index, ()):
                values.pop(name, None)
        return [self._value(values, name) for name in graph.outputs]

    @property
    def _last_uses(self) -> Mapping[int, Sequence[str]]:
        """Return, by node, the values that no later node reads."""
        readers: dict[int, list[str]] | None = self.__dict__.get("_last_readers")
        if readers is None:
            graph = self.network
            last_reader: dict[str, int] = {}
            for index, node in enumerate(graph.nodes):
                last_reader |= dict.fromkeys((graph.base(name) for name in node.inputs.values()), index)
            kept_to_end = {graph.base(name) for name in graph.outputs} | set(graph.inputs)
            readers = {}
            for name, index in last_reader.items():
                if name not in kept_to_end:
                    readers.setdefault(index, []).append(name)
            self.__dict__["_last_readers"] = readers
        return readers

    def _value(self, values: Mapping[str, Tensor], name: str) -> Tensor:
        """Return a value in the memory order that its layout states."""
        if name in values:
            return values[name]
        if name in self.network.weights:
            return getattr(self, self._own[name]) if name in self._own else self._parameter(name)
        value = self.network.values[name]
        base = self._value(values, value.of)
        if value.elements != self.network.values[value.of].elements:
            base = base.reshape(-1)[value.offset : value.offset + value.elements]
        return base.reshape(value.shape)

    def _parameter(self, name: str) -> Tensor:
        """Return a parameter of the model in the memory order that a node reads."""
        owner, attribute, columns = self._sources[name]
        parameter: Tensor = getattr(owner, attribute)
        if columns:
            c, h, w = columns
            return parameter.reshape(-1, c, h, w).permute(0, 2, 3, 1).reshape(parameter.shape)
        return parameter.permute(0, 2, 3, 1) if name.endswith(".nhwc") else parameter

    def _compute_node(self, node: Node, text: str, inputs: list[Tensor]) -> Sequence[Tensor]:
        if node.operator == "layout2d":
            permutation = (0, 2, 3, 1) if node.problem.axes["to"] == "nhwc" else (0, 3, 1, 2)
            if (view := inputs[0].permute(permutation)).is_contiguous():
                return [view]
        if node.operator == "dropout":
            return [functional.dropout(inputs[0], int(node.problem.axes["percent"]) / 100, self.training)]
        if node.operator == "batchnorm2d" and self.training_mode:
            return self._compute_batchnorm(node, inputs)
        return compute(node.operator, text, inputs)

    def _compute_batchnorm(self, node: Node, inputs: list[Tensor]) -> list[Tensor]:
        """Compute a batch norm in training: with the batch's statistics, updating the running ones."""
        x, relu = torch_operators.to_torch_axes(node.problem, inputs[0]), node.problem.axes["epilogue"] == "relu"
        if not self.training:
            out = functional.batch_norm(x, inputs[3], inputs[4], inputs[1], inputs[2], False, 0.0, EPSILON)
            out = functional.relu(out) if relu else out
        else:
            norm = self._norms[node.name]
            statistics = norm.running_mean, norm.running_var
            out = call("batchnorm2d_train", (x, inputs[1], inputs[2], *statistics), (round(100 * norm.momentum), relu))
            norm.num_batches_tracked.add_(1)
        return [torch_operators.to_declared_axes(node.problem, out)]


class _RecordedNetwork(nn.Module):  # type: ignore[misc]
    """The module that PyTorch records as a graph for training: all nodes, with the model's parameters."""

    def __init__(self, network: CompiledNetwork) -> None:
        super().__init__()
        self.model, self._run = network.model, network._run

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the network."""
        return tuple(self._run(inputs))


OwnTensor = tuple[nn.Module, str, tuple[int, ...]]
"""The module that has a parameter or statistic, its name there, and the image whose order its columns follow."""


def _model_tensor(model: nn.Module, name: str) -> OwnTensor | None:
    """Return the parameter or statistic of the model that a weight came from; None for other weights."""
    match = re.fullmatch(r"(?P<name>.+?)(?:\.nhwc(?:_(?P<c>\d+)x(?P<h>\d+)x(?P<w>\d+))?)?", name)
    assert match
    if match["name"] not in {*dict(model.named_parameters()), *dict(model.named_buffers())}:
        return None
    owner, _, attribute = match["name"].rpartition(".")
    return model.get_submodule(owner), attribute, tuple(int(match[axis]) for axis in "chw") if match["c"] else ()


def compile(
    model: nn.Module, example: Tensor | Sequence[Tensor], *, layout: str = "auto", graph: bool | None = None
) -> CompiledNetwork:
    """Return a module in which opbench runs a PyTorch model, with fused nodes and chosen variants.

    Variants are chosen by the rule of `use`. `example` holds the inputs of a call, in their final sizes. A
    model in evaluation mode is compiled for inference; on a GPU it replays a CUDA graph unless `graph` is
    False. A model in training mode stays trainable: opbench's backward operators compute the gradients, and
    parameters and statistics remain the model's own. With `graph` True, forward and backward are one CUDA graph
    each, under the rules of `torch.cuda.make_graphed_callables`. `layout` is nchw, nhwc or auto, which is nhwc
    on a GPU. Raises UsageError, naming the node, for an unknown operator.
    """
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    dtype = DTYPE_NAMES.get(inputs[0].dtype, str(inputs[0].dtype))
    if dtype not in ("f32", "bf16") or (dtype == "bf16" and model.training):
        raise UsageError(
            f"opbench.torch.compile: {inputs[0].dtype}{' in training' if model.training else ''} is not supported; use "
            "torch.float32, or torch.bfloat16 for inference (model.eval())",
            kind="other-dtype",
            subject="opbench.torch.compile",
            value=str(inputs[0].dtype),
        )
    frozen = copy.deepcopy(model).eval().float().cpu()
    with torch.no_grad():
        network = from_torch(frozen, *(t.detach().float().cpu() for t in inputs), name=type(model).__name__)
    disabled = ("fold_batchnorm", "drop_dropout") if model.training else ()
    index = inputs[0].get_device()
    options = NetOptions(network=network.name, without=disabled, precision=dtype, layout=layout, backend="cpu")
    rewritten, _ = apply_enabled_passes(network, options)
    in_layouts, _ = convert_layouts(rewritten, options, {}, opened_device_of(index).ranking_gpu)
    if model.training:
        _require_trainable(model)
        for parameter in model.parameters():
            if parameter.dim() == 4 and "nhwc" in {node.problem.axes.get("layout") for node in in_layouts.nodes}:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    compiled = CompiledNetwork(in_layouts, model, inputs, not model.training if graph is None else graph)
    prepare([problem for _, problem in compiled.problems()], opened_device_of(index))
    return compiled


def _require_trainable(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            momentum = module.momentum
            if module.eps != EPSILON or momentum is None or abs(round(100 * momentum) - 100 * momentum) > 1e-9:
                raise UsageError(
                    f"{name}: eps={module.eps}, momentum={momentum} is not supported in training; use eps={EPSILON} "
                    "and a momentum in whole hundredths, such as momentum=0.1",
                    kind="not-allowed",
                    subject=name,
                    value=(module.eps, momentum),
                )
