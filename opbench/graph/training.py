"""Convert a network to a training step: data, forward, loss, backward and optimiser in one graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from opbench.errors import UsageError
from opbench.graph.gradients import append_backward
from opbench.graph.graph import Graph
from opbench.graph.micro_batches import with_micro_batches
from opbench.graph.passes import PASSES, Pass, Rewrite, on_each_node, rebuild_graph, rewrite_graph, to_dtype
from opbench.graph.recipe import LOSSES, OPTIMIZERS, Recipe
from opbench.graph.training_passes import BACKWARD_PASSES, FORWARD_PASSES, fuse_gradient_add
from opbench.graph.training_step import (
    ALIGNMENT,
    BF16_PARAMETERS,
    CLIP,
    COUNTER,
    FACTOR,
    LIMIT,
    NEXT,
    Training,
    parameter_elements,
    with_bf16_copy,
    with_layouts_of,
)
from opbench.graph.values import Node, Value
from opbench.kernels.expression import round_up
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.kernels.tensors import DTYPES

STATISTICS = ("mean", "variance")
"""The weights of a batch norm that are statistics of the data and not trained."""


def training_graph(network: Graph, recipe: Recipe, items: int, planned: Collection[str] = ()) -> Training:
    """Return the graph of a training step for a network with one input and one output.

    The batch size is the network's own. `items` is the size of the data set: the state `data` has shape (items,
    features), and `targets` has int32 classes for cross entropy, else arrays of the output's shape. The state
    `order` has the items' numbers, batch after batch. All are zeros here and are written before the first step.
    The step keeps the nodes in `planned`: its recipe also disables the passes that would remove one of them.
    Raises UsageError, naming the node, for a network that cannot be trained.
    """
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise UsageError(
            f"{network.name}: it has {len(network.inputs)} inputs and {len(network.outputs)} outputs; train a "
            "network with one input and one output",
            kind="not-one-each",
            subject=network.name,
            value=(len(network.inputs), len(network.outputs)),
        )
    training = _TrainingBuilder(network, recipe, items, planned).training()
    return with_micro_batches(training) if recipe.micro_batches > 1 else training


@dataclass
class _TrainingBuilder:
    """A training step under construction from a network and a recipe."""

    network: Graph
    recipe: Recipe
    items: int
    planned: Collection[str] = ()
    catalog: Catalog = field(default_factory=Catalog)
    rewrites: list[Rewrite] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)

    def training(self) -> Training:
        """Return the training step: data, forward pass, loss, backward pass and optimiser in one graph."""
        trainable = self._trainable_weights()
        graph = self._apply_passes(
            self.network, {n: PASSES[n] for n in ("fuse_relu", "fuse_upsample_concat")} | FORWARD_PASSES
        )
        graph = with_layouts_of(graph, self.recipe.layout)
        graph, statistics = self._in_training_mode(graph)
        if self.recipe.dtype != "f32":
            graph = to_dtype(graph, self.recipe.dtype, keep=("tick",))
        trainable = [name for name in graph.weights if self._original_name(name) in trainable]
        forward = [node.name for node in graph.nodes]
        graph = self._with_data(graph)
        graph, seeds = self._with_loss(graph)
        forward_names = {node.name for node in graph.nodes}
        graph, gradients = self._with_f32_gradients(*append_backward(graph, seeds, trainable))
        fuse_add = on_each_node(fuse_gradient_add, forward=forward_names)
        graph = self._apply_passes(graph, BACKWARD_PASSES | {"fuse_gradient_add": fuse_add})
        backward = [node.name for node in graph.nodes if node.name not in forward_names]
        self.groups = dict.fromkeys(forward, "forward") | dict.fromkeys(backward, "backward") | self.groups
        graph, parameters = self._with_arenas(graph, gradients)
        graph = self._with_optimizer(graph, parameter_elements(parameters))
        newer_passes = (r.name for r in self.rewrites if not r.on and r.name not in self.recipe.without)
        recipe = replace(self.recipe, without=(*self.recipe.without, *newer_passes))
        return Training(graph, self.network, recipe, parameters, statistics, self.groups, tuple(self.rewrites))

    def _trainable_weights(self) -> list[str]:
        """Return the network's weights without the running statistics."""
        statistics = {
            node.inputs[part] for node in self.network.nodes if node.operator == "batchnorm2d" for part in STATISTICS
        }
        trainable = [name for name in self.network.weights if name not in statistics]
        if not trainable:
            raise UsageError(
                f"{self.network.name}: the network has no weights to train; add a layer with weights",
                kind="no-weights",
                subject=self.network.name,
            )
        return trainable

    def _original_name(self, name: str) -> str:
        """Return the name that a weight had before passes; a weight that passes added keeps its name."""
        original = name.rpartition(".nhwc")[0]
        return original if original in self.network.weights else name

    def _apply_passes(self, graph: Graph, passes: Mapping[str, Pass]) -> Graph:
        """Apply the passes that the recipe does not disable, and record the changes of each pass."""
        graph, rewrites = rewrite_graph(graph, passes, self.recipe.without, self.planned)
        self.rewrites += rewrites
        return graph

    def _in_training_mode(self, graph: Graph) -> tuple[Graph, dict[str, tuple[str, int]]]:
        """Return the graph for training: batch norms use the batch's statistics, and dropout is active."""
        values, state = dict(graph.values), dict(graph.state)
        statistics: dict[str, tuple[str, int]] = {}
        nodes: list[Node] = []
        removed_biases = self._removed_biases(graph)
        values |= {COUNTER: Value(COUNTER, (1,), "i32"), NEXT: Value(NEXT, (1,), "i32", updates=COUNTER)}
        state[COUNTER] = np.zeros(1, np.int32)
        for node in graph.nodes:
            if node.operator == "batchnorm2d":
                nodes.append(self._train_batchnorm(graph, node, values, state, statistics))
                if node.name in removed_biases:
                    state[node.inputs["mean"]] = graph.weights[node.inputs["mean"]] - removed_biases[node.name]
            elif node.operator == "dropout":
                axes = {**node.problem.axes, "training": "yes", "counter": "step"}
                # The original name does not depend on the passes.
                dropout_count = sum(other.operator == "dropout" for other in nodes)
                axes["seed"] = (self.recipe.seed * 1000 + dropout_count + 1) % 2**31
                problem = self._make_problem(node.name, "dropout", axes)
                nodes.append(replace(node, problem=problem, inputs={**node.inputs, "step": NEXT}))
            elif node.operator == "attention":
                problem = self._make_problem(node.name, "attention", {**node.problem.axes, "statistics": "logsumexp"})
                name = f"{node.name}.logsumexp"
                shape = next(tensor.shape for tensor in problem.output_tensors() if tensor.name == "logsumexp")
                values[name] = Value(name, shape)
                nodes.append(replace(node, problem=problem, outputs={**node.outputs, "logsumexp": name}))
            else:
                nodes.append(node)
        table, hyper = self.recipe.learning_rates(), self.recipe.optimizer_constants()
        state |= {"learning_rates": table, "hyper": hyper}
        values |= {name: Value(name, state[name].shape) for name in ("learning_rates", "hyper")}
        values["rates"] = Value("rates", (4,))
        axes, rates = {"steps": self.recipe.steps}, "rates"
        if self.recipe.clip:  # the factor that clips is the last rate; the gradient determines it
            axes, rates = axes | {"factor": "later"}, "rates.of_step"
            values[rates] = Value(rates, (3,), of="rates")
            state["rates"] = np.zeros(4, np.float32)
        problem = self._make_problem("tick", "tick", axes)
        inputs = {"step": COUNTER, "table": "learning_rates", "hyper": "hyper"}
        tick = Node("tick", "tick", problem, inputs, {"new_step": NEXT, "rates": rates})
        self.groups["tick"] = "data"
        weights = {name: array for name, array in graph.weights.items() if name not in state}
        return replace(graph, values=values, nodes=(tick, *nodes), state=state, weights=weights), statistics

    def _removed_biases(self, graph: Graph) -> dict[str, np.ndarray]:
        """Return, by batch norm, the bias before it that a pass removed; the running mean must not include the bias."""
        result = {}
        for norm in self.network.nodes:
            conv = self.network.producer(norm.inputs["x"]) if norm.operator == "batchnorm2d" else None
            bias = conv.inputs.get("bias") if conv else None
            if bias is not None and bias not in graph.weights:
                result[norm.name] = self.network.weights[bias]
        return result

    def _train_batchnorm(
        self,
        graph: Graph,
        node: Node,
        values: dict[str, Value],
        state: dict[str, np.ndarray],
        statistics: dict[str, tuple[str, int]],
    ) -> Node:
        """Return the batch norm for training; its running statistics become state that it updates."""
        problem = self._make_problem(node.name, "batchnorm2d_train", node.problem.axes)
        inputs = {name: node.inputs[name] for name in ("x", "scale", "shift")}
        outputs = dict(node.outputs)
        for name in ("mean", "rstd"):
            outputs[name] = f"{node.name}.batch_{name}"
            values[outputs[name]] = Value(outputs[name], (values[node.inputs["scale"]].elements,))
        for name in STATISTICS:
            running = node.inputs[name]
            if running not in graph.weights:
                raise UsageError(
                    f"{node.name}: the running {name} '{running}' is computed by a node; make '{running}' a weight "
                    "of the network",
                    kind="computed",
                    subject=node.name,
                )
            state[running] = graph.weights[running]
            statistics[running] = (running, 0)
            inputs[f"running_{name}"], outputs[f"new_running_{name}"] = running, f"{running}.next"
            values[f"{running}.next"] = replace(values[running], name=f"{running}.next", updates=running)
        return Node(node.name, "batchnorm2d_train", problem, inputs, outputs)

    def _make_problem(self, owner: str, operator: str, axes: Mapping[str, object]) -> Operator:
        """Return a problem of an operator; axes that the operator lacks are ignored."""
        operator_class = self.catalog.operator(operator)
        own_axes = {name: value for name, value in axes.items() if name in operator_class.__dataclass_fields__}
        try:
            return operator_class.from_axes(own_axes)
        except UsageError as error:
            raise UsageError(f"{owner}: {error}", cause=error) from None

    # Data and loss ------------------------------------------------------------------------------------------------

    def _with_data(self, graph: Graph) -> Graph:
        """Return the graph with its input and targets gathered from the data set on the device."""
        (name,), (out,) = graph.inputs, graph.outputs
        image, scores = graph.values[name], graph.values[out]
        rows = image.shape[0]
        has_classes = self.recipe.loss == "cross_entropy"
        if has_classes and len(scores.shape) != 2:
            raise UsageError(
                f"--loss cross_entropy needs rows with one score per class, but '{out}' has the shape "
                f"{scores.shape}; for an output in the shape of the target, use --loss binary_cross_entropy, l1 or "
                "mse",
                kind="not-rows",
                subject=out,
                value=scores.shape,
            )
        if scores.shape[0] != rows and (not has_classes or scores.shape[0] % rows):
            raise UsageError(
                f"{graph.name}: the output '{out}' {scores.shape} and the input '{name}' {image.shape} have "
                "different batch sizes; give both the same first axis",
                kind="other-shape",
                subject=graph.name,
            )
        target_dtype = "i32" if has_classes else scores.dtype
        # Text has one target per token.
        target_features = scores.shape[0] // rows if has_classes else scores.elements // rows
        values, state, nodes = dict(graph.values), dict(graph.state), []
        item_count = self.recipe.steps * self.recipe.micro_batches * rows
        values["order"], state["order"] = Value("order", (item_count,), "i32"), np.zeros(item_count, np.int32)
        for label, dtype, features in (
            ("data", image.dtype, image.elements // rows),
            ("targets", target_dtype, target_features),
        ):
            values[label] = Value(label, (self.items, features), dtype)
            state[label] = np.broadcast_to(np.zeros((), DTYPES[dtype]), (self.items, features))
            values[f"{label}.batch"] = Value(f"{label}.batch", (rows, features), dtype)
            axes = {"items": self.items, "features": features, "rows": rows, "total": item_count, "dtype": dtype}
            problem = self._make_problem("gather", "gather", axes)
            inputs = {"data": label, "order": "order", "step": NEXT}
            nodes.append(Node(f"gather.{label}", "gather", problem, inputs, {"batch": f"{label}.batch"}))
            self.groups[f"gather.{label}"] = "data"
        values[name] = replace(image, of="data.batch")
        target = scores.shape[:1] if has_classes else scores.shape
        values["target"] = Value("target", target, target_dtype, of="targets.batch")
        tick, *rest = graph.nodes
        return replace(graph, values=values, state=state, nodes=(tick, *nodes, *rest), inputs=())

    def _with_loss(self, graph: Graph) -> tuple[Graph, dict[str, str]]:
        """Return the graph with the loss and its record, and the value with the gradient of the network's output."""
        (out,) = graph.outputs
        scores, operator = graph.values[out], LOSSES[self.recipe.loss]
        if self.recipe.loss == "cross_entropy":
            axes = {"rows": scores.shape[0], "cols": scores.shape[1]}
        else:
            axes = {"n": scores.elements}
        axes["micro"] = self.recipe.micro_batches
        problem = self._make_problem("loss", operator, {**axes, "dtype": scores.dtype})
        score_tensor, target_tensor = (tensor.name for tensor in problem.input_tensors())
        loss, gradient = (tensor.name for tensor in problem.output_tensors())
        seed_name = f"d.{out}"
        values = {**graph.values, "loss": Value("loss", (1,)), seed_name: replace(scores, name=seed_name, of="")}
        values |= {
            "losses": Value("losses", (self.recipe.steps,)),
            "losses.next": Value("losses.next", (self.recipe.steps,), updates="losses"),
        }
        record = Node(
            "record",
            "record",
            self._make_problem("record", "record", {"steps": self.recipe.steps}),
            {"losses": "losses", "loss": "loss", "step": NEXT},
            {"new_losses": "losses.next"},
        )
        inputs = {score_tensor: out, target_tensor: "target"}
        node = Node("loss", operator, problem, inputs, {loss: "loss", gradient: seed_name})
        self.groups |= {"loss": "loss", "record": "loss"}
        state = {**graph.state, "losses": np.full(self.recipe.steps, np.nan, np.float32)}
        return replace(graph, values=values, state=state, nodes=(*graph.nodes, node, record)), {out: seed_name}

    # Parameters and optimiser -------------------------------------------------------------------------------------

    def _with_arenas(
        self, graph: Graph, gradients: Mapping[str, str]
    ) -> tuple[Graph, dict[str, tuple[int, tuple[int, ...]]]]:
        """Return the graph with all parameters in one array and all gradients in another, in the same order."""
        writer_index = {name: number for number, node in enumerate(graph.nodes) for name in node.outputs.values()}
        for name, gradient in gradients.items():
            if gradient not in writer_index:
                raise UsageError(
                    f"weight '{name}': the gradient '{gradient}' is not the result of a separate node; use the "
                    f"weight in a node that computes a gradient for it, or exclude '{name}' from training",
                    kind="no-separate-gradient",
                    subject=name,
                    value=gradient,
                )
        order = sorted(gradients, key=lambda name: (writer_index[gradients[name]], name))
        positions, values, end_element = {}, dict(graph.values), 0
        for name in order:
            shape = graph.values[name].shape
            positions[name] = (end_element, shape)
            end_element += round_up(math.prod(shape), ALIGNMENT)
        arena = np.zeros(end_element, np.float32)
        for name, (start, shape) in positions.items():
            arena[start : start + math.prod(shape)] = graph.weights[name].reshape(-1)
            values[name] = replace(
                values[name], of="parameters" if values[name].dtype == "f32" else BF16_PARAMETERS, offset=start
            )
            values[gradients[name]] = replace(values[gradients[name]], of="gradients", offset=start)
        values |= {label: Value(label, (end_element,)) for label in ("parameters", "gradients")}
        state = {**graph.state, "parameters": arena, "gradients": np.zeros(end_element, np.float32)}
        if self.recipe.dtype == "bf16":
            values[BF16_PARAMETERS] = Value(BF16_PARAMETERS, (end_element,), "bf16")
            state |= with_bf16_copy(arena)
        weights = {name: array for name, array in graph.weights.items() if name not in positions}
        return replace(graph, values=values, state=state, weights=weights), positions

    def _with_f32_gradients(self, graph: Graph, gradients: Mapping[str, str]) -> tuple[Graph, dict[str, str]]:
        """Return the graph with bf16 gradients converted to f32.

        A gradient that is a view, or that another parameter has too, such as that of both terms of a sum, is
        copied.
        """
        values, nodes, f32_gradients = dict(graph.values), list(graph.nodes), dict(gradients)
        computed = {name for node in graph.nodes for name in node.outputs.values()}
        for name, gradient in gradients.items():
            value = graph.values[gradient]
            if value.dtype == "f32" and gradient not in computed:
                f32_gradients[name] = copy_name = f"{gradient}.of.{name}"
                values[copy_name] = replace(value, name=copy_name, of="")
                problem = self._make_problem(name, "copy", {"n": value.elements})
                nodes.append(Node(f"{copy_name}.copy", "copy", problem, {"x": gradient}, {"out": copy_name}))
            computed.discard(gradient)
            if value.dtype != "f32":
                f32_gradients[name] = f32_name = f"{gradient}.f32"
                values[f32_name] = replace(value, name=f32_name, dtype="f32", of="")
                problem = self._make_problem(name, "convert", {"n": value.elements, "to": "f32"})
                nodes.append(Node(f"{gradient}.convert", "convert", problem, {"x": gradient}, {"out": f32_name}))
        return replace(graph, values=values, nodes=tuple(nodes)), f32_gradients

    def _with_optimizer(self, graph: Graph, elements: int) -> Graph:
        """Return the graph with one node that updates all parameters, after a node that clips gradients if required."""
        operator = OPTIMIZERS[self.recipe.optimizer]
        decays = {"adam": "coupled" if self.recipe.decay else "none", "adamw": "decoupled"}
        modes = {"decay": decays[self.recipe.optimizer]} if operator == "adam" else {"momentum": "yes"}
        if self.recipe.dtype == "bf16":
            modes["copy"] = "bf16"
        problem = self._make_problem("optimizer", operator, {"n": elements, **modes})
        values, state = dict(graph.values), dict(graph.state)
        nodes = list(graph.nodes)
        if self.recipe.clip:
            values |= {LIMIT: Value(LIMIT, (1,)), "gradients.norm": Value("gradients.norm", (1,))}
            values[FACTOR] = Value(FACTOR, (1,), of="rates", offset=3)
            state[LIMIT] = np.array([self.recipe.clip], np.float32)
            norm = self._make_problem(CLIP, "global_norm", {"n": elements})
            norm_inputs = {"gradient": "gradients", "limit": LIMIT}
            nodes.append(Node(CLIP, "global_norm", norm, norm_inputs, {"norm": "gradients.norm", "factor": FACTOR}))
            self.groups[CLIP] = "optimizer"
        inputs, outputs = {}, {}
        names = {"parameter": "parameters", "gradient": "gradients"}
        for tensor in problem.input_tensors():
            name = inputs[tensor.name] = names.get(tensor.name, tensor.name)
            if name not in values:
                values[name], state[name] = Value(name, tensor.shape), np.zeros(tensor.shape, np.float32)
        for tensor in problem.output_tensors():
            state_name = BF16_PARAMETERS if tensor.name == "stored" else inputs[problem.in_place[tensor.name]]
            outputs[tensor.name] = f"{state_name}.next"
            values[f"{state_name}.next"] = replace(values[state_name], name=f"{state_name}.next", updates=state_name)
        node = Node("optimizer", operator, problem, inputs, outputs)
        self.groups["optimizer"] = "optimizer"
        graph = replace(graph, values=values, state=state, nodes=(*nodes, node), outputs=("loss",))
        return rebuild_graph(graph, graph.values, graph.nodes, graph.weights)
