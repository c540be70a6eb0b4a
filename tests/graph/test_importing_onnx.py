"""Networks imported from ONNX give what ONNX's own reference gives; what is not supported is named."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.graph.graph import Graph
from opbench.graph.importing import from_onnx
from opbench.graph.passes import apply_passes
from support.builders.random_networks import inputs_of
from support.checks.errors import Refusal, refuses, same_messages
from support.checks.graphs import check_slopes

onnx = pytest.importorskip("onnx", reason="makes the models; opbench[onnx] brings it")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(
    nodes: list[Any],
    inputs: dict[str, tuple[Any, ...]],
    outputs: list[str],
    constants: dict[str, np.ndarray],
    opset: int = 20,
) -> Any:
    """A model in which every node has one output, called as the node is."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(operator: str, inputs: str, name: str, **attributes: Any) -> Any:
    """A node; "-" stands for an input that is left out."""
    return helper.make_node(operator, [i.replace("-", "") for i in inputs.split()], [name], name=name, **attributes)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def assert_same(made: Any, graph: Graph) -> None:
    from onnx.reference import ReferenceEvaluator

    inputs = inputs_of(graph)
    expected = ReferenceEvaluator(made).run(None, inputs)
    known = graph.reference(inputs)
    assert list(graph.outputs) == [output.name for output in made.graph.output]
    for name, result in zip(graph.outputs, expected, strict=True):
        np.testing.assert_allclose(known[name], result, rtol=2e-5, atol=2e-5, err_msg=name)


def every_operator() -> Any:
    """Branches, several inputs and outputs, shapes that are computed, as exporters write them."""
    nodes = [
        node("Conv", "image w1 b1", "conv1", auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        node("BatchNormalization", "conv1 scale shift mean variance", "norm", epsilon=1e-5),
        node("Relu", "norm", "relu"),
        node("MaxPool", "relu", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "pool w2", "conv2", auto_pad="VALID"),
        node(
            "Resize",
            "pool - scales",
            "up",
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        node("Concat", "relu up other", "join", axis=1),
        node("Constant", "", "half", value=onnx.numpy_helper.from_array(np.float32(0.5))),
        node("Mul", "join half", "scaled"),
        node("AveragePool", "scaled", "average", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Resize", "average - scales", "smooth", mode="linear"),
        node("GlobalAveragePool", "pool", "means"),
        node("Div", "pool per_channel", "divided"),
        node("Add", "divided means", "sum"),
        node("Sub", "ones sum", "difference"),
        node("Shape", "difference", "shape"),
        node("Gather", "shape zero", "batch", axis=0),
        node("ReduceMean", "pool pixels", "pooled", keepdims=0),
        node("Slice", "shape zeros two", "sizes"),
        node("Reshape", "pooled sizes", "rows_of_means"),
        node("Unsqueeze", "batch zeros", "batches"),
        node("Concat", "batches minus", "rows_shape", axis=0),
        node("Reshape", "difference rows_shape", "rows"),
        node("Dropout", "rows", "dropped"),
        node("Gemm", "dropped w3 b3", "fc", transB=1),
        node("MatMul", "fc w4", "product"),
        node("Add", "product b4", "biased"),
        node("Softmax", "biased", "probabilities"),
        node("Flatten", "conv2", "flat"),
        node("Identity", "flat", "end"),
    ]
    constants = {"w1": drawn(4, 2, 3, 3), "b1": drawn(4), "w2": drawn(3, 4, 3, 3), "w3": drawn(5, 64), "b3": drawn(5)}
    constants |= {name: drawn(4, seed=i) for i, name in enumerate(("scale", "shift", "mean"))}
    constants |= {"variance": np.abs(drawn(4)) + 0.5, "scales": np.array([1, 1, 2, 2], np.float32)}
    constants |= {"per_channel": np.abs(drawn(4, 1, 1)) + 1, "ones": np.ones(1, np.float32), "w4": drawn(5, 6)}
    constants |= {"b4": drawn(6), "zero": np.array(0), "zeros": np.array([0]), "minus": np.array([-1])}
    constants |= {"pixels": np.array([2, 3]), "two": np.array([2])}
    inputs = {"image": (2, 2, 8, 8), "other": (2, 1, 8, 8)}
    return model(nodes, inputs, ["smooth", "probabilities", "end", "sum", "rows_of_means"], constants)


def test_every_operator_gives_what_onnx_gives(tmp_path: Path) -> None:
    made = every_operator()
    onnx.save(made, str(tmp_path / "net.onnx"))
    graph = from_onnx(tmp_path / "net.onnx", "every")
    assert graph.name == "every"
    assert_same(made, graph)
    fused, done = apply_passes(graph)
    assert "norm: folded into the weights of conv1" in done
    assert_same(made, fused)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "opset"),
    [
        ("Resize", "image - scales", {"mode": "nearest"}, 20),
        ("Resize", "image - - sizes", {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}, 20),
        ("Resize", "image scales", {"mode": "nearest"}, 10),
        ("Upsample", "image scales", {"mode": "nearest"}, 9),
        ("Resize", "image - scales", {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}, 20),
    ],
)
def test_ways_of_resizing(operator: str, inputs: str, attributes: dict[str, str], opset: int) -> None:
    constants = {"scales": np.array([1, 1, 3, 3], np.float32), "sizes": np.array([1, 2, 12, 15])}
    made = model([node(operator, inputs, "up", **attributes)], {"image": (1, 2, 4, 5)}, ["up"], constants, opset)
    graph = from_onnx(made)
    if operator == "Upsample" or opset == 10:  # the reference has it no longer
        image = inputs_of(graph)["image"]
        np.testing.assert_array_equal(graph.reference({"image": image})["up"], image.repeat(3, 2).repeat(3, 3))
    else:
        assert_same(made, graph)


def test_what_is_not_supported_is_named_with_its_node(tmp_path: Path) -> None:
    image = {"x": (1, 4, 8, 8)}
    scales = {"scales": np.array([1, 1, 1.5, 1.5], np.float32), "channels": np.array([1, 2, 1, 1], np.float32)}
    messages = {}
    for nodes, refusal in (
        ([node("Relu", "mask", "end")], Refusal("no-producer", "'end' (Relu)", value="mask")),
        ([node("Sin", "x", "wave")], Refusal("unknown-operator", "'wave' (Sin)", value="Sin")),
        (
            [node("LeakyRelu", "x", "leaky", alpha=0.25)],
            Refusal("unsupported-option", "'leaky' (LeakyRelu)", value=("alpha", 0.25), allowed=0.01),
        ),
        (
            [node("Conv", "x w", "conv", group=2)],
            Refusal("unsupported-option", "'conv' (Conv)", value=("group", 2), allowed=1),
        ),
        (
            [node("Conv", "x w", "conv", auto_pad="SAME_UPPER", strides=[2, 2])],
            Refusal("other-auto-pad", value="SAME_UPPER"),
        ),
        (
            [node("Conv", "x w", "conv", pads=[0, 0, 1, 1])],
            Refusal("unsupported-option", value=("padding", [0, 0, 1, 1])),
        ),
        ([node("Relu", "x", "w_of"), node("Conv", "x w_of", "conv")], Refusal("computed", value="weight")),
        (
            [node("MaxPool", "x", "pool", kernel_shape=[2, 2], ceil_mode=1)],
            Refusal("unsupported-option", value=("ceil_mode", 1), allowed=0),
        ),
        ([node("Concat", "x x", "join", axis=3)], Refusal("unsupported-option", value=("axis", 3), allowed=1)),
        ([node("Softmax", "x", "soft", axis=1)], Refusal("other-axis", value=1)),
        ([node("Resize", "x - scales", "up")], Refusal("unsupported-option", value=("scale", 1.5))),
        ([node("Resize", "x - channels", "up")], Refusal("other-resize", value=(1, 8, 8, 8))),
        (
            [node("Resize", "x - scales", "up", nearest_mode="ceil")],
            Refusal("other-nearest", value=("half_pixel", "ceil")),
        ),
        (
            [node("Resize", "x - scales", "up", mode="cubic")],
            Refusal("unsupported-option", value=("mode", "cubic"), allowed="linear"),
        ),
        ([node("Transpose", "x", "turned", perm=[0, 2, 3, 1])], Refusal("computed", value="input")),
    ):
        weight = drawn(4, 2, 3, 3) if refusal.value == ("group", 2) else drawn(4, 4, 3, 3)
        made = model(nodes, image, [nodes[-1].output[0]], {"w": weight, **scales})
        with refuses(refusal) as raised:
            from_onnx(made)
        messages[f"{nodes[-1].op_type}: {refusal.kind} {refusal.value}"] = str(raised.value)
    same_messages("onnx", messages, tmp_path)
    free = model([node("Relu", "x", "y")], {"x": ("batch", 4)}, ["y"], {})
    with refuses("shape-not-fixed", "x"):
        from_onnx(free)
    (tmp_path / "bad.onnx").write_bytes(b"no protobuf at all")
    with refuses("not-onnx", "bad.onnx"):
        from_onnx(tmp_path / "bad.onnx")
    with refuses("unreadable", "none.onnx", value=errno.ENOENT):
        from_onnx(tmp_path / "none.onnx")


def test_softmax_of_old_opsets_over_more_than_rows_is_refused() -> None:
    made = model([node("Softmax", "x", "soft")], {"x": (1, 2, 3, 4)}, ["soft"], {}, opset=11)
    with refuses("other-axis", value=1):
        from_onnx(made)


ACTIVATIONS = {
    "Gelu": "gelu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "LeakyRelu": "leaky_relu",
    "Elu": "elu",
    "Selu": "selu",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "HardSwish": "hardswish",
    "HardSigmoid": "hardsigmoid",
    "Exp": "exp",
    "Abs": "abs",
}
"""ONNX's activations, each with opbench's mode of elementwise."""


def every_activation() -> Any:
    """A chain of linear layers with an activation after each; SiLU as exporters write it, as a product."""
    nodes, last = [], "x"
    for number, operator in enumerate([*ACTIVATIONS, "Gelu"]):
        attributes = {"HardSigmoid": {"alpha": 1 / 6}}.get(operator, {})
        if number == len(ACTIVATIONS):
            attributes = {"approximate": "tanh"}
        nodes.append(node("Gemm", f"{last} w b", f"fc{number}", transB=1))
        last = f"act{number}"
        nodes.append(node(operator, f"fc{number}", last, **attributes))
    nodes += [node("Sigmoid", last, "gate"), node("Mul", f"{last} gate", "silu")]
    return model(nodes, {"x": (3, 6)}, ["silu"], {"w": 0.3 * drawn(6, 6), "b": drawn(6)})


def test_activations_are_modes_of_elementwise_with_gradients() -> None:
    made = every_activation()
    graph = from_onnx(made)
    assert_same(made, graph)
    modes = [n.problem.axes["op"] for n in graph.nodes if n.operator == "elementwise"]
    assert modes == [*ACTIVATIONS.values(), "gelu_tanh", "sigmoid", "mul"]
    backward = check_slopes(graph, ["w", "b"])
    given = {n.problem.axes["op"] for n in backward.nodes if n.operator == "elementwise"}
    assert {f"{mode}_backward" for mode in (*ACTIVATIONS.values(), "gelu_tanh")} <= given
