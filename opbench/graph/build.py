"""Build a network in Python with one call per node; shapes are inferred and checked, weights are random."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from opbench.errors import UsageError
from opbench.graph.graph import Graph
from opbench.graph.values import CONVERSION, Node, Value
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator


class Builder:
    """Build a network: methods named as layers and operators add nodes and return the values that these compute.

    All values except integers are float32 in layout nchw; passes choose other layouts and dtypes. Weights equal those
    of PyTorch's layers, bit for bit, if they are created in the same order after `torch.manual_seed(seed)`: uniform
    within 1/sqrt(fan-in) (He et al. 2015 with a = sqrt(5)).
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self._random = np.random.RandomState(seed)  # the same generator as PyTorch's on the CPU
        self._catalog = Catalog()
        self._values: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._inputs: list[str] = []
        self._weights: dict[str, np.ndarray] = {}

    # Inputs and outputs -------------------------------------------------------------------------------------------

    def input(self, name: str, *shape: int, dtype: str = "f32") -> Value:
        """Add an input and return it, such as "image" with shape (1, 3, 224, 224), or integers with dtype "i32"."""
        self._inputs.append(name)
        return self._value(name, shape, dtype=dtype)

    def graph(self, *outputs: Value) -> Graph:
        """Return the network that computes these outputs; nodes that they do not need are omitted."""
        if not outputs:
            raise UsageError(
                f"{self.name}: a network needs at least one output; pass the output values to graph(), such as "
                "graph(y)",
                kind="no-output",
                subject=self.name,
            )
        names = tuple(value.name for value in outputs)
        needed, nodes = set(self._inputs), []

        def mark_needed(value_name: str) -> None:
            needed.add(value_name)
            if base := self._values[value_name].of:
                mark_needed(base)

        for value_name in names:
            mark_needed(value_name)
        for node in reversed(self._nodes):  # the build order is a topological order
            if needed & set(node.outputs.values()):
                nodes.append(node)
                for value_name in (*node.inputs.values(), *node.outputs.values()):
                    mark_needed(value_name)
        values = {value_name: value for value_name, value in self._values.items() if value_name in needed}
        weights = {value_name: array for value_name, array in self._weights.items() if value_name in needed}
        return Graph(self.name, values, tuple(reversed(nodes)), tuple(self._inputs), names, weights)

    # Nodes --------------------------------------------------------------------------------------------------------

    def conv2d(
        self,
        x: Value,
        k: int,
        r: int,
        s: int = 0,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        name: str = "",
    ) -> Value:
        """Add a convolution to k channels with filters of r x s (s defaults to r)."""
        name, s = self._name("conv", name), s or r
        n, c, h, w = self._require_image(name, x)
        bound = 1 / math.sqrt(c * r * s)
        axes: dict[str, int | str] = {
            "n": n,
            "c": c,
            "h": h,
            "w": w,
            "k": k,
            "r": r,
            "s": s,
            "stride": stride,
            "padding": padding,
        }
        inputs = {"image": x, "weight": self.weight(f"{name}.weight", (k, c, r, s), bound)}
        if bias:
            axes["epilogue"] = "bias"
            inputs["bias"] = self.weight(f"{name}.bias", (k,), bound)
        return self.node(name, "conv2d", axes, inputs)

    def depthwise_conv2d(
        self, x: Value, r: int, *, stride: int = 1, padding: int = 0, bias: bool = True, name: str = ""
    ) -> Value:
        """Add a depthwise convolution: each channel has its own filter of r x r."""
        name = self._name("depthwise", name)
        n, c, h, w = self._require_image(name, x)
        axes: dict[str, int | str] = {"n": n, "c": c, "h": h, "w": w, "r": r, "s": r}
        axes |= {"stride": stride, "padding": padding}
        inputs = {"image": x, "weight": self.weight(f"{name}.weight", (c, r, r), 1 / r)}
        if bias:
            axes["epilogue"] = "bias"
            inputs["bias"] = self.weight(f"{name}.bias", (c,), 1 / r)
        return self.node(name, "depthwise_conv2d", axes, inputs)

    def linear(self, x: Value, n: int, *, weight: Value | None = None, name: str = "") -> Value:
        """Add a matrix product with n outputs per row, and a bias; with a given weight [n, k], without a bias."""
        name = self._name("linear", name)
        m, k = self._require_rows(name, "linear", x)
        bound = 1 / math.sqrt(k)
        axes = {"m": m, "n": n, "k": k}
        if weight:
            return self.node(name, "linear", {**axes, "epilogue": "none"}, {"x": x, "weight": weight})
        weight, bias = self.weight(f"{name}.weight", (n, k), bound), self.weight(f"{name}.bias", (n,), bound)
        return self.node(name, "linear", axes, {"x": x, "weight": weight, "bias": bias})

    def embedding(self, table: Value, indices: Value, *, name: str = "") -> Value:
        """Add an embedding: the rows of a table [items, features] that int32 indices select."""
        (items, features), rows = table.shape, indices.elements
        axes = {"items": items, "features": features, "rows": rows, "total": rows, "batches": "one"}
        return self.node(self._name("embedding", name), "gather", axes, {"data": table, "order": indices})

    def layernorm(self, x: Value, *, name: str = "") -> Value:
        """Add a layer norm: each row is normalised by its mean and variance, then scaled and shifted per column."""
        name = self._name("layernorm", name)
        rows, cols = self._require_rows(name, "layernorm", x)
        weight = self.weight(f"{name}.weight", (cols,), 0.5, centre=1.0)
        bias = self.weight(f"{name}.bias", (cols,), 0.5)
        inputs = {"x": x, "weight": weight, "bias": bias}
        return self._add(name, "layernorm", {"rows": rows, "cols": cols}, inputs)["out"]

    def attention(self, qkv: Value, heads: int, batch: int = 1, mask: str = "causal", *, name: str = "") -> Value:
        """Add attention between the tokens of each sequence.

        The rows of `qkv` are the tokens of `batch` sequences, one after the other: its queries of all heads,
        then keys, then values. The result has one row per token.
        """
        name = self._name("attention", name)
        rows, width = self._require_rows(name, "attention", qkv)
        if rows % batch or width % (3 * heads):
            raise UsageError(
                f"{name}: '{qkv.name}' has the shape {qkv.shape}; the rows of '{qkv.name}' must be a multiple of "
                f"batch={batch}, and the columns a multiple of 3 x heads={3 * heads}; change batch, heads or the "
                "shape",
                kind="other-shape",
                subject=name,
                value=qkv.shape,
                allowed=(batch, 3 * heads),
            )
        tokens = rows // batch
        sizes = {"batch": batch, "heads": heads, "kv_heads": heads, "queries": tokens, "keys": tokens}
        axes = {**sizes, "depth": width // (3 * heads), "mask": mask, "layout": "qkv"}
        return self.node(name, "attention", axes, {"qkv": qkv}, shape=(rows, width // 3))

    def relu(self, x: Value, *, name: str = "") -> Value:
        """Add a ReLU: max(x, 0) for each element."""
        return self.node(self._name("relu", name), "relu", {"n": x.elements}, {"x": x}, shape=x.shape)

    def activation(self, op: str, x: Value, gate: Value | None = None, *, name: str = "") -> Value:
        """Add an activation of `elementwise`, such as gelu or silu.

        swiglu and geglu multiply the activation of x by `gate`, which has x's shape.
        """
        name = self._name(op, name)
        inputs = {"a": x, **({"b": gate} if gate else {})}
        axes = {"op": op, "outer": 1, "channels": 1, "inner": x.elements}
        required_inputs = self._problem(name, "elementwise", axes).inputs
        if set(required_inputs) != set(inputs):
            raise UsageError(
                f"{name}: op={op!r} needs {' and '.join(required_inputs)}, but {' and '.join(inputs)} is given; pass "
                f"exactly {' and '.join(required_inputs)}",
                kind="other-tensors",
                subject=name,
                value=tuple(inputs),
                allowed=tuple(required_inputs),
            )
        if gate and gate.shape != x.shape:
            raise UsageError(
                f"{name}: '{gate.name}' has the shape {gate.shape}; pass a value with the shape of '{x.name}', "
                f"{x.shape}",
                kind="other-shape",
                subject=name,
                value=gate.shape,
                allowed=x.shape,
            )
        return self.node(name, "elementwise", axes, inputs, shape=x.shape)

    def maxpool2d(self, x: Value, window: int = 2, stride: int = 2, padding: int = 0, *, name: str = "") -> Value:
        """Add a max pooling: the maximum of each window."""
        return self._add_pool("maxpool2d", x, window, stride, padding, self._name("maxpool", name))

    def avgpool2d(self, x: Value, window: int = 2, stride: int = 2, padding: int = 0, *, name: str = "") -> Value:
        """Add an average pooling: the mean of each window."""
        return self._add_pool("avgpool2d", x, window, stride, padding, self._name("avgpool", name))

    def batchnorm2d(self, x: Value, *, name: str = "") -> Value:
        """Add a batch norm with running mean and variance, scale and shift."""
        name = self._name("batchnorm", name)
        n, c, h, w = self._require_image(name, x)
        parameters = {
            "scale": self.weight(f"{name}.scale", (c,), 0.5, centre=1.0),
            "shift": self.weight(f"{name}.shift", (c,), 0.5),
            "mean": self.weight(f"{name}.mean", (c,), 0.5),
            "variance": self.weight(f"{name}.variance", (c,), 0.5, centre=1.0),
        }
        return self.node(name, "batchnorm2d", {"n": n, "c": c, "h": h, "w": w}, {"x": x, **parameters})

    def groupnorm(self, x: Value, groups: int = 32, activation: str = "none", *, name: str = "") -> Value:
        """Add a group norm: groups of channels of each image are normalised, scaled and shifted; then maybe SiLU."""
        name = self._name("groupnorm", name)
        n, c, h, w = self._require_image(name, x)
        weight = self.weight(f"{name}.weight", (c,), 0.5, centre=1.0)
        bias = self.weight(f"{name}.bias", (c,), 0.5)
        axes = {"batch": n, "channels": c, "pixels": h * w, "groups": groups, "activation": activation}
        return self._add(name, "groupnorm", axes, {"x": x, "weight": weight, "bias": bias}, x.shape)["out"]

    def split(self, x: Value, first: int, *, name: str = "") -> tuple[Value, Value]:
        """Split an image by channels; return the image of the first channels and that of the others."""
        name = self._name("split", name)
        n, c, h, w = self._require_image(name, x)
        axes = {"n": n, "c1": first, "c2": c - first, "h": h, "w": w}
        first_channels, other_channels = self._add(name, "split", axes, {"x": x}).values()
        return first_channels, other_channels

    def flatten_pixels(self, x: Value, *, name: str = "") -> Value:
        """Return an image as rows: one row for each pixel, one column for each channel.

        The rows are in the order of nhwc: a network that computes the image in nhwc needs no conversion.
        """
        name = self._name("pixels", name)
        n, c, h, w = self._require_image(name, x)
        self._convert(name, x, "nhwc", (n, h, w, c))
        return self.view(self._values[name], (n * h * w, c), name=f"{name}.rows")

    def image(self, rows: Value, like: Value, *, name: str = "") -> Value:
        """Return rows of channels as an image, with as many images and pixels as `like`."""
        name = self._name("image", name)
        row_count, c = self._require_rows(name, "layout2d", rows)
        n, _, h, w = self._require_image(name, like)
        if row_count != n * h * w:
            raise UsageError(
                f"{name}: '{rows.name}' has the shape {rows.shape}; pass a value with one row for each pixel of "
                f"'{like.name}' {like.shape}",
                kind="other-shape",
                subject=name,
                value=rows.shape,
                allowed=like.shape,
            )
        nhwc_view = self._value(f"{name}.pixels", (n, h, w, c), of=rows.name, layout="nhwc")
        return self._convert(name, nhwc_view, "nchw", (n, c, h, w))

    pixels = flatten_pixels
    """The former name of `flatten_pixels`."""

    def _convert(self, name: str, x: Value, layout: str, shape: tuple[int, ...]) -> Value:
        """Add a conversion of an image to the other layout."""
        n, c, h, w = x.image
        problem = self._problem(name, CONVERSION, {"n": n, "c": c, "h": h, "w": w, "to": layout})
        out = self._value(name, shape, layout=layout)
        self._nodes.append(Node(name, CONVERSION, problem, {"x": x.name}, {"out": name}))
        return out

    def upsample2d(self, x: Value, scale: int = 2, mode: str = "nearest", *, name: str = "") -> Value:
        """Add an upsampling to an image `scale` times as high and wide."""
        name = self._name("upsample", name)
        n, c, h, w = self._require_image(name, x)
        return self.node(name, "upsample2d", {"n": n, "c": c, "h": h, "w": w, "scale": scale, "mode": mode}, {"x": x})

    def concat(self, a: Value, b: Value, *, name: str = "") -> Value:
        """Concatenate the channels of a and b."""
        name = self._name("concat", name)
        n, c1, h, w = self._require_image(name, a)
        if (other_image := self._require_image(name, b))[0::2] + other_image[3:] != (n, h, w):
            raise UsageError(
                f"{name}: '{a.name}' {a.shape} and '{b.name}' {b.shape} may differ only in their number of channels; "
                "resize one of the two",
                kind="other-shape",
                subject=name,
                value=b.shape,
                allowed=a.shape,
            )
        return self.node(name, "concat", {"n": n, "c1": c1, "c2": other_image[1], "h": h, "w": w}, {"a": a, "b": b})

    def elementwise(self, op: str, a: Value, b: Value, *, name: str = "") -> Value:
        """Add a node `a op b`; op is add, sub, mul or div (a residual connection is an add).

        b has a's shape, or one that broadcasts to it as in NumPy along one run of axes: (1, c, 1, 1), (k,) or (1,).
        """
        name = self._name(op, name)
        padded_shape = (1,) * (len(a.shape) - len(b.shape)) + b.shape
        varying_axes = [axis for axis, size in enumerate(padded_shape) if size != 1]
        axis_range = range(varying_axes[0], varying_axes[-1] + 1) if varying_axes else range(0)
        if len(padded_shape) != len(a.shape) or any(padded_shape[axis] != a.shape[axis] for axis in axis_range):
            raise UsageError(
                f"{name}: '{b.name}' has the shape {b.shape}; pass a value with the shape of '{a.name}', {a.shape}, "
                "or with consecutive axes of that shape",
                kind="other-shape",
                subject=name,
                value=b.shape,
                allowed=a.shape,
            )
        outer_size, inner_size = math.prod(a.shape[: axis_range.start]), math.prod(a.shape[axis_range.stop :])
        axes: dict[str, int | str] = {"op": op, "outer": 1, "channels": 1, "inner": a.elements}
        if b.elements == 1 < a.elements:
            axes |= {"broadcast": "scalar"}
        elif outer_size == inner_size == 1 or b.elements == a.elements:
            pass
        elif inner_size == 1:
            axes |= {"broadcast": "inner", "outer": outer_size, "inner": b.elements}
        else:
            axes |= {"broadcast": "channel", "outer": outer_size, "channels": b.elements, "inner": inner_size}
        return self.node(name, "elementwise", axes, {"a": a, "b": b}, shape=a.shape)

    def dropout(self, x: Value, percent: int = 50, *, name: str = "") -> Value:
        """Add a dropout, which is the identity at inference."""
        axes = {"n": x.elements, "percent": percent}
        return self.node(self._name("dropout", name), "dropout", axes, {"x": x}, shape=x.shape)

    def softmax(self, x: Value, *, name: str = "") -> Value:
        """Add a softmax over the last axis of rows of features."""
        name = self._name("softmax", name)
        rows, cols = self._require_rows(name, "softmax", x)
        return self.node(name, "softmax", {"rows": rows, "cols": cols}, {"x": x})

    def flatten(self, x: Value, *, name: str = "") -> Value:
        """Return a view of the same memory as rows of features."""
        return self.view(x, (x.shape[0], x.elements // x.shape[0]), name=self._name("flatten", name))

    def view(self, x: Value, shape: tuple[int, ...], *, name: str) -> Value:
        """Return a view of the same memory with another shape or name."""
        if math.prod(shape) != x.elements:
            raise UsageError(
                f"{name}: '{x.name}' {x.shape} cannot be viewed as {shape}; choose a shape with {x.elements} elements",
                kind="other-shape",
                subject=name,
            )
        return self._value(name, shape, of=x.name)

    def node(
        self,
        name: str,
        operator: str,
        axes: Mapping[str, object],
        inputs: dict[str, Value],
        shape: tuple[int, ...] | None = None,
    ) -> Value:
        """Add a node of any operator with one output; `shape` is needed if the operator treats its tensors as flat."""
        (out,) = self._add(name, operator, axes, inputs, shape).values()
        return out

    # Parts --------------------------------------------------------------------------------------------------------

    def _add(
        self,
        name: str,
        operator: str,
        axes: Mapping[str, object],
        inputs: dict[str, Value],
        shape: tuple[int, ...] | None = None,
    ) -> dict[str, Value]:
        """Add a node of any operator and return its outputs by tensor.

        The first output has the node's name, others also the tensor's.
        """
        problem = self._problem(name, operator, axes)
        outputs = {}
        for index, tensor in enumerate(problem.output_tensors()):
            value_name = name if index == 0 else f"{name}.{tensor.name}"
            outputs[tensor.name] = self._value(value_name, (shape if index == 0 else None) or tensor.shape)
        input_names = {key: value.name for key, value in inputs.items()}
        self._nodes.append(
            Node(name, operator, problem, input_names, {key: value.name for key, value in outputs.items()})
        )
        return outputs

    def weight(self, name: str, shape: tuple[int, ...], bound: float, centre: float = 0.0) -> Value:
        """Create a weight with random numbers within `bound` of `centre`, as PyTorch's uniform_ draws them.

        It uses 24 bits of the generator, scaled and shifted with one rounding.
        """
        bits = self._random.randint(1 << 32, size=shape, dtype=np.uint32) & 0xFFFFFF
        low, high = np.float32(centre - bound), np.float32(centre + bound)
        return self.constant(name, bits * 2.0**-24 * float(high - low) + float(low))

    def constant(self, name: str, array: np.ndarray) -> Value:
        """Add a weight with the given numbers."""
        self._weights[name] = np.ascontiguousarray(array, np.float32)
        return self._value(name, array.shape)

    def _add_pool(self, operator: str, x: Value, window: int, stride: int, padding: int, name: str) -> Value:
        """Add a pooling operator and return its result."""
        n, c, h, w = self._require_image(name, x)
        axes = {"n": n, "c": c, "h": h, "w": w, "window": window, "stride": stride, "padding": padding}
        return self.node(name, operator, axes, {"x": x})

    def _problem(self, name: str, operator: str, axes: Mapping[str, object]) -> Operator:
        """Return a problem of an operator; raise UsageError that names the node."""
        try:
            return self._catalog.operator(operator).from_axes(axes)
        except UsageError as error:
            raise UsageError(f"{name}: {error}", cause=error, subject=name) from None

    def _value(
        self, name: str, shape: tuple[int, ...], of: str = "", dtype: str = "f32", layout: str = "nchw"
    ) -> Value:
        """Add a value to the network; `of` makes it a view of another value. Raises UsageError for a name that
        exists.
        """
        if name in self._values:
            raise UsageError(
                f"{self.name}: '{name}' exists already; choose another name", kind="duplicate-name", subject=name
            )
        self._values[name] = Value(name, tuple(shape), dtype, layout, of)
        return self._values[name]

    def _name(self, prefix: str, name: str) -> str:
        """Return the given name; if it is empty, a new one such as "conv3"."""
        count = sum(node.name.startswith(prefix) for node in self._nodes)
        return name or next(
            f"{prefix}{i}" for i in range(count + 1, count + 1000) if f"{prefix}{i}" not in self._values
        )

    def _require_rows(self, name: str, operator: str, x: Value) -> tuple[int, int]:
        """Return rows and columns of a value with two axes; raise UsageError for another value."""
        if len(x.shape) != 2:
            raise UsageError(
                f"{name}: {operator} needs two axes (rows, features), but '{x.name}' has shape {x.shape}; flatten "
                f"'{x.name}' first",
                kind="not-rows",
                subject=name,
                value=x.shape,
            )
        rows, columns = x.shape
        return rows, columns

    def _require_image(self, name: str, x: Value) -> tuple[int, int, int, int]:
        """Return n, c, h and w of an image; raise UsageError that names the node for another value."""
        try:
            return x.image
        except UsageError as error:
            raise UsageError(f"{name}: {error}", cause=error, subject=name) from None
