"""Choose nchw or nhwc for each node of a network, and add the conversions in between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from opbench.errors import UsageError, unknown_name
from opbench.graph.graph import Graph
from opbench.graph.passes import rebuild_graph, with_modes
from opbench.graph.values import CONVERSION, LAYOUTS, Node, Value
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator

PERMUTATION = (0, 2, 3, 1)
"""The permutation of axes from nchw to nhwc; for a filter, from "k c r s" to "k r s c"."""
DEPTHWISE_PERMUTATION = (1, 2, 0)
"""The permutation of a depthwise filter's axes from "c r s" (for nchw) to "r s c" (for nhwc)."""
ELEMENT_BY_ELEMENT = ("relu", "add", "copy", "dropout", "elementwise")
"""Operators that work in both layouts if all their images have the same one."""


def with_layouts(graph: Graph, layouts: Mapping[str, str]) -> Graph:
    """Return a network in which each node has the layout in `layouts`, with conversions in between.

    Other nodes stay in nchw, and element-by-element ones in the layout of their input. Weights are permuted,
    and so are the columns of a linear layer that reads a flattened nhwc image; both are free at run time. A
    value that is read in another layout is converted once for all its readers. Inputs and outputs stay in nchw.
    The nhwc form of a value has the name of the value plus ".nhwc".
    """
    check_layouts(graph, layouts)
    draft = _LayoutRewriter(graph)
    for node in graph.nodes:
        layout = "nchw"
        if not node.layouts and allowed_layouts(graph, node) == LAYOUTS:
            layout = next(
                (draft.layout_by_image.get(renamed_original(graph, v), "nchw") for v in images_read(graph, node)),
                "nchw",
            )
        draft.add(node, layouts.get(node.name, layout))
    for name in graph.outputs:
        draft.read_in_nchw(name)
    return rebuild_graph(graph, draft.values, draft.nodes, draft.weights)


def permuted_from(name: str, array: np.ndarray, weights: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray]:
    """Return the original weight that a weight of `with_layouts` permutes, and the permuted order of its elements.

    `weights` are those of the network as it was built.
    """
    if name in weights:
        return name, array
    original_name, _, permutation = name.rpartition(".nhwc")
    if original_name not in weights:
        raise UsageError(
            f"'{name}' is not a weight of the network; use one of its weights: {', '.join(weights)}",
            kind="unknown-name",
        )
    if permutation:  # the columns of a linear layer that reads a flattened image
        c, h, w = map(int, permutation.removeprefix("_").split("x"))
        columns = array.reshape(-1, h, w, c).transpose(0, 3, 1, 2)
        return original_name, np.ascontiguousarray(columns.reshape(weights[original_name].shape))
    return original_name, np.ascontiguousarray(
        array.transpose(np.argsort(DEPTHWISE_PERMUTATION if array.ndim == 3 else PERMUTATION))
    )


# The layouts of a node ---------------------------------------------------------------------------------------------


def renamed_original(graph: Graph, name: str) -> str:
    """Return the value behind a chain of views that only rename it, without a change of shape."""
    value = graph.values[name]
    is_renaming = value.of and graph.values[value.of].shape == value.shape
    return renamed_original(graph, value.of) if is_renaming else name


def underlying_image(graph: Graph, name: str) -> str | None:
    """Return the image that a value is, or is a flattened form of; None for other values and weights."""
    value = graph.values[name]
    if len(value.shape) == 4 and graph.base(name) not in graph.weights:
        return renamed_original(graph, name)
    return underlying_image(graph, value.of) if value.of else None


def is_image(graph: Graph, name: str) -> bool:
    """Return whether a value is an image: it has four axes and is not a weight."""
    return len(graph.values[name].shape) == 4 and graph.base(name) not in graph.weights


def images_read(graph: Graph, node: Node) -> list[str]:
    """Return the images that a node reads."""
    return [name for name in node.inputs.values() if is_image(graph, name)]


def works_on_images(graph: Graph, node: Node) -> bool:
    """Return whether a node reads or writes images."""
    return any(is_image(graph, name) for name in (*node.inputs.values(), *node.outputs.values()))


def has_image_layouts(problem: Operator) -> bool:
    """Return whether a problem's mode `layout` orders the axes of images; attention's mode orders heads and tokens."""
    return set(LAYOUTS) <= set(problem.choices.get("layout", ()))


def allowed_layouts(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the layouts that a node supports: nchw, and nhwc if its operator has both or works element by element.

    A conversion node of a network as built is only allowed in nhwc: then it copies nothing.
    """
    if node.operator == CONVERSION:
        return LAYOUTS[1:]
    if "layout" in node.problem.axes:
        computed = [
            name
            for tensor, name in node.inputs.items()
            if is_depthwise_filter(node, tensor) and name not in graph.weights
        ]
        return LAYOUTS if has_image_layouts(node.problem) and not computed else LAYOUTS[:1]
    if node.operator not in ELEMENT_BY_ELEMENT or not works_on_images(graph, node):
        return LAYOUTS[:1]
    axes, out = node.problem.axes, graph.values[next(iter(node.outputs.values()))]
    others = [value for name in node.inputs.values() if (value := graph.values[name]).shape != out.shape]
    broadcast = axes.get("broadcast", "none")
    # Dropout draws its mask by the position in memory, so both layouts would give different masks.
    if len(out.shape) != 4 or axes.get("training") == "yes":
        return LAYOUTS[:1]
    if broadcast == "channel":
        n, c, h, w = out.image
        broadcast_sizes = (axes["outer"], axes["channels"], axes["inner"])
        return LAYOUTS if broadcast_sizes in ((n, c, h * w), (1, n * c, h * w)) else LAYOUTS[:1]
    return LAYOUTS if all(value.elements == 1 for value in others) else LAYOUTS[:1]


def problem_in(graph: Graph, node: Node, layout: str) -> Operator:
    """Return the node's problem in a layout."""
    if layout == "nhwc" and node.problem.axes.get("broadcast") == "channel":
        n, c, h, w = graph.values[next(iter(node.outputs.values()))].image
        if node.problem.axes["channels"] != c:  # an operand with one number for each channel of each image
            return with_modes(node.problem, broadcast="outer_inner", outer=n, channels=h * w, inner=c)
        return with_modes(node.problem, outer=n * h * w, channels=c, inner=1)
    return with_modes(node.problem, layout=layout) if has_image_layouts(node.problem) else node.problem


def is_depthwise_filter(node: Node, tensor: str) -> bool:
    """Return whether a tensor of a node is the filter of a depthwise convolution, which has three axes."""
    return (node.operator, tensor) == ("depthwise_conv2d", "weight")


def has_same_order_in_both(value: Value) -> bool:
    """Return whether the elements of an image have the same order in nchw and nhwc: it has one channel or one pixel."""
    _, c, h, w = value.image
    return c == 1 or h * w == 1


def conversion_problem(value: Value, layout: str) -> Operator:
    """Return the problem that copies an image to another layout."""
    n, c, h, w = value.image
    axes = {"n": n, "c": c, "h": h, "w": w, "to": layout, "dtype": value.dtype}
    return Catalog().operator(CONVERSION).from_axes(axes)


def can_permute_columns(graph: Graph, node: Node, tensor: str) -> bool:
    """Return whether a node reads a flattened image such that its weight's columns can be permuted instead."""
    image = underlying_image(graph, node.inputs[tensor])
    if image is None or (node.operator, tensor) != ("linear", "x") or node.inputs["weight"] not in graph.weights:
        return False
    n, *rest = graph.values[image].shape
    return graph.values[node.inputs[tensor]].shape == (n, math.prod(rest))


def pixel_rows(graph: Graph) -> set[str]:
    """Return the nhwc images of a network as it was built: those that are read as, or made from, rows of pixels."""
    converted = {
        node.outputs["out"] for node in graph.nodes if node.operator == CONVERSION and _converts_to(node, "nhwc")
    }
    converted_rows = {
        node.inputs["x"] for node in graph.nodes if node.operator == CONVERSION and _converts_to(node, "nchw")
    }
    read_directly = {name for node in graph.nodes for name in node.inputs.values()}
    return (converted - read_directly) | {name for name in converted_rows if graph.values[name].of}


def _converts_to(node: Node, layout: str) -> bool:
    """Return whether a conversion node writes this layout."""
    return node.problem.axes["to"] == layout


def check_layouts(graph: Graph, layouts: Mapping[str, str]) -> None:
    """Raise UsageError for a network not in nchw, unknown nodes, and layouts that a node does not support."""
    nhwc_images = pixel_rows(graph)
    if nhwc_value := next(
        (v.name for v in graph.values.values() if v.layout != "nchw" and v.name not in nhwc_images), None
    ):
        raise UsageError(
            f"{graph.name}: '{nhwc_value}' is in nhwc already; choose layouts before any conversion",
            kind="layouts-chosen",
            subject=nhwc_value,
        )
    for name, layout in layouts.items():
        node = graph.node(name)
        if layout not in LAYOUTS:
            raise UsageError(unknown_name("layout", layout, LAYOUTS, place=name))
        if layout not in allowed_layouts(graph, node):
            raise UsageError(
                f"{name}: {node.operator} does not support the layout {layout}; use nchw for this node",
                kind="other-layout",
                subject=name,
                value=layout,
                allowed="nchw",
            )


# Rewriting --------------------------------------------------------------------------------------------------------


class _LayoutRewriter:
    """A network under construction in which each node has its chosen layout."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values, self.weights = dict(graph.values), dict(graph.weights)
        self.nodes: list[Node] = []
        self.layout_by_image: dict[str, str] = {}
        """Layout in which each image is computed; inputs, and views of another shape, are in nchw."""
        self.converted: set[str] = set()
        """Images that exist in both layouts."""

    def add(self, node: Node, layout: str) -> None:
        """Add a node in a layout, after the conversions of its inputs."""
        if node.operator == CONVERSION:
            self.add_conversion(node)
            return
        inputs = {}
        for tensor, name in node.inputs.items():
            if tensor == "x" and self.is_in_nhwc_order(name) and can_permute_columns(self.graph, node, tensor):
                inputs[tensor] = self.nhwc_rows(name)
                inputs["weight"] = self.permuted_columns(node.inputs["weight"], name)
            elif layout == "nhwc" and is_depthwise_filter(node, tensor):
                inputs[tensor] = self.permuted_depthwise(name)
            elif tensor not in inputs:
                inputs[tensor] = self.read_in_layout(name, layout)
        outputs = {}
        for tensor, name in node.outputs.items():
            outputs[tensor] = name
            if is_image(self.graph, name):
                self.layout_by_image[name] = layout
                outputs[tensor] = self.name_in_layout(name, layout)
        problem = problem_in(self.graph, node, layout)
        self.nodes.append(replace(node, problem=problem, inputs=inputs, outputs=outputs))

    def add_conversion(self, node: Node) -> None:
        """Replace a conversion of the network as built by a view of the image in nhwc, converted if necessary."""
        x, out = node.inputs["x"], node.outputs["out"]
        if _converts_to(node, "nhwc"):
            self.values[out] = replace(
                self.values[out], of=self.image_in_layout(renamed_original(self.graph, x), "nhwc")
            )
        else:
            self.layout_by_image[out] = "nhwc"
            image = self.name_in_layout(out, "nhwc")
            self.values[image] = replace(self.values[image], of=x)

    def read_in_layout(self, name: str, layout: str) -> str:
        """Return the form of a value that a node in this layout reads; only images can be in nhwc."""
        if len(self.graph.values[name].shape) != 4:
            return self.read_in_nchw(name)
        if self.graph.base(name) in self.weights:
            return name if layout == "nchw" else self.permuted_weight(name)
        return self.image_in_layout(renamed_original(self.graph, name), layout)

    def read_in_nchw(self, name: str) -> str:
        """Return the name of a value in nchw, which is the original name; add the conversion if it is missing."""
        if image := underlying_image(self.graph, name):
            self.image_in_layout(image, "nchw")
        return name

    def image_in_layout(self, image: str, layout: str) -> str:
        """Return the name of an image in a layout; the first call adds the node that converts the image."""
        if base := self.graph.values[image].of:
            self.read_in_nchw(base)
        current_layout, name = self.layout_by_image.get(image, "nchw"), self.name_in_layout(image, layout)
        if layout == current_layout or image in self.converted:
            return name
        self.converted.add(image)
        source = self.name_in_layout(image, current_layout)
        if has_same_order_in_both(self.graph.values[image]):
            self.values[name] = replace(self.values[name], of=source)
        else:
            node = f"{image}.to_{layout}"
            problem = conversion_problem(self.graph.values[image], layout)
            self.nodes.append(Node(node, CONVERSION, problem, {"x": source}, {"out": name}))
        return name

    def name_in_layout(self, image: str, layout: str) -> str:
        """Return the name of an image in a layout."""
        value = self.graph.values[image]
        if layout == "nchw":
            return image
        shape = tuple(value.shape[axis] for axis in PERMUTATION)
        return self.add_value(replace(value, name=f"{image}.nhwc", shape=shape, layout=layout, of=""))

    def add_value(self, value: Value) -> str:
        """Add a value to the network unless it exists; return its name."""
        if value.name in self.graph.values:
            raise UsageError(
                f"{self.graph.name}: '{value.name}' exists already; give the value '{value.name}' another name",
                kind="duplicate-name",
                subject=value.name,
            )
        self.values.setdefault(value.name, value)
        return value.name

    # Where flattening meets a linear layer ----------------------------------------------------------------------------

    def is_in_nhwc_order(self, name: str) -> bool:
        """Return whether a flattened image is in nhwc order, which differs from the original network."""
        image = underlying_image(self.graph, name)
        if image is None or len(self.graph.values[name].shape) == 4 or has_same_order_in_both(self.graph.values[image]):
            return False
        return self.layout_by_image.get(image) == "nhwc"

    def nhwc_rows(self, name: str) -> str:
        """Return a flattened image in nhwc order."""
        source = self.name_in_layout(str(underlying_image(self.graph, name)), "nhwc")
        return self.add_value(replace(self.graph.values[name], name=f"{name}.nhwc", of=source))

    def permuted_columns(self, weight: str, rows: str) -> str:
        """Return the weight of a linear layer with its columns in the order of nhwc rows."""
        _, c, h, w = self.graph.values[str(underlying_image(self.graph, rows))].image
        name = self.add_value(replace(self.graph.values[weight], name=f"{weight}.nhwc_{c}x{h}x{w}"))
        columns = self.graph.weights[weight].reshape(-1, c, h, w).transpose(0, 2, 3, 1)
        self.weights[name] = np.ascontiguousarray(columns.reshape(self.graph.values[weight].shape))
        return name

    def permuted_depthwise(self, name: str) -> str:
        """Return a depthwise filter for the nhwc layout."""
        value = self.graph.values[name]
        permuted = self.add_value(
            replace(value, name=f"{name}.nhwc", shape=tuple(value.shape[axis] for axis in DEPTHWISE_PERMUTATION))
        )
        self.weights[permuted] = np.ascontiguousarray(self.graph.weights[name].transpose(DEPTHWISE_PERMUTATION))
        return permuted

    def permuted_weight(self, name: str) -> str:
        """Return a filter, or a constant image, for the nhwc layout."""
        array = self.graph.weights[self.graph.base(name)].reshape(self.graph.values[name].shape)
        permuted = self.name_in_layout(name, "nhwc")
        self.weights[permuted] = np.ascontiguousarray(array.transpose(PERMUTATION))
        return permuted
