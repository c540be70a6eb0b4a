"""PyTorch on the same network, weights and input: as a module of plain calls, eager and compiled."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from opbench.backends.base import Libraries
from opbench.catalog.operator import Arrays
from opbench.errors import EnvironmentFault, UsageError, unknown
from opbench.graphs.graph import Graph
from opbench.graphs.training import STATISTICS
from opbench.graphs.values import Node
from opbench.paths import pip_install
from opbench.results.network import PeerRecord

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.fx import Node as Call

NAMES = ("torch",)
"""Whom a network can be compared with."""
WAYS: Mapping[str, Mapping[str, str] | None] = {
    "PyTorch eager": None,
    "torch.compile": {},
    "torch.compile, CUDA graphs": {"mode": "reduce-overhead"},
}
"""How PyTorch runs it: options of `torch.compile`, None without it."""
WARM_UP = 4
"""Calls before anything is timed: cuDNN tries its algorithms, the compiler compiles, a graph is recorded."""
EPSILON = 1e-5


# The network as a module ------------------------------------------------------------------------------------------


def to_module(
    graph: Graph,
    dtype: str = "float32",
    device: str = "cpu",
    *,
    channels_last: bool = False,
    training: bool = False,
    masks: Mapping[str, np.ndarray] | None = None,
) -> torch.fx.GraphModule:
    """A `torch.fx.GraphModule` of a network as it was built (nchw): inputs in order to a tuple of its outputs.

    Its code is a straight line of calls of torch and torch.nn.functional, which `torch.compile` sees whole. With
    `channels_last` weights of convolutions lie in that memory format. With `training` batch norm goes by its batch's
    statistics, dropout drops (by `masks`, factors by node, where those are given), and what is learned is a parameter,
    which `weight_of` finds. Raises UsageError, naming the node, for an operator that has no counterpart here.
    """
    import torch

    root, trace = torch.nn.Module(), torch.fx.Graph()
    known = {name: trace.placeholder(_identifier(name)) for name in graph.inputs}

    def place(name: str, array: np.ndarray, *, learned: bool) -> Call:
        tensor = torch.from_numpy(np.array(array)).to(device, getattr(torch, dtype))  # never the network's own memory
        if channels_last and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        if learned:
            root.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            root.register_buffer(name, tensor)
        return trace.get_attr(name)

    norms = [node for node in graph.nodes if node.operator == "batchnorm2d"]
    measured = {node.inputs[part] for node in norms for part in STATISTICS}
    for number, (name, array) in enumerate(graph.weights.items()):
        known[name] = place(f"weight{number}", array, learned=training and name not in measured)
    factors = {
        name: place(f"mask{number}", mask, learned=False) for number, (name, mask) in enumerate((masks or {}).items())
    }

    def get(name: str) -> Call:
        value = graph.values[name]
        if name not in known:  # a view of one that is there
            known[name] = trace.call_function(torch.reshape, (get(value.of), tuple(value.shape)))
        return known[name]

    for node in graph.nodes:
        given = {tensor: get(name) for tensor, name in node.inputs.items()}
        if node.name in factors:
            made = [trace.call_function(torch.mul, (given["x"], factors[node.name]))]
        else:
            made = _call(trace, graph, node, given, training)
        known |= dict(zip(node.outputs.values(), made, strict=True))
    trace.output(tuple(get(name) for name in graph.outputs))
    trace.lint()
    return torch.fx.GraphModule(root, trace, _identifier(graph.name)).eval()


def weight_of(module: torch.fx.GraphModule, graph: Graph, name: str) -> Tensor:
    """The tensor of a network's weight in a module of `to_module`."""
    return getattr(module, f"weight{list(graph.weights).index(name)}")


def _identifier(name: str) -> str:
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned[:1].isalpha() else f"n{cleaned}"


def _call(trace: torch.fx.Graph, graph: Graph, node: Node, given: Mapping[str, Call], training: bool) -> list[Call]:
    """The calls that compute a node's outputs, in the order of its problem's."""
    import torch

    functional, axes = torch.nn.functional, node.problem.axes
    if axes.get("layout", "nchw") != "nchw":
        raise UsageError(
            f"{node.name}: it works in {axes['layout']}; PyTorch is given a network as it was built, in nchw"
        )

    def call(function: Callable[..., object], *args: object, **options: object) -> Call:
        return trace.call_function(function, args, options)

    def window(function: Callable[..., object], **options: object) -> Call:
        return call(function, given["x"], axes["window"], axes["stride"], axes["padding"], **options)

    def upsampled(x: Call, scale: int | str, mode: int | str) -> Call:
        corners = {"align_corners": False} if mode == "bilinear" else {}
        return call(functional.interpolate, x, scale_factor=scale, mode=mode, **corners)

    def norm() -> Call:
        parts = {"weight": given["scale"], "bias": given["shift"], "training": training, "eps": EPSILON}
        return call(functional.batch_norm, given["x"], given["mean"], given["variance"], **parts)

    def joined() -> Call:
        return call(torch.cat, (given["skip"], upsampled(given["low"], 2, "nearest")), 1)

    def conv(image: Call) -> Call:
        geometry = {"stride": axes.get("stride", 1), "padding": axes["padding"]}
        return call(functional.conv2d, image, given["weight"], given.get("bias"), **geometry)

    makers: dict[str, Callable[[], Call]] = {
        "conv2d": lambda: conv(given["image"]),
        "linear": lambda: call(functional.linear, given["x"], given["weight"], given["bias"]),
        "matmul": lambda: call(torch.matmul, given["a"], given["b"]),
        "relu": lambda: call(functional.relu, given["x"]),
        "maxpool2d": lambda: window(functional.max_pool2d),
        "avgpool2d": lambda: window(functional.avg_pool2d, count_include_pad=axes["divisor"] == "window"),
        "upsample2d": lambda: upsampled(given["x"], axes["scale"], axes["mode"]),
        "concat": lambda: call(torch.cat, (given["a"], given["b"]), 1),
        "split": lambda: call(torch.split, given["x"], (axes["c1"], axes["c2"]), 1),
        "upsample_concat": joined,
        "upsample_concat_conv2d": lambda: conv(joined()),
        "batchnorm2d": norm,
        "softmax": lambda: call(functional.softmax, given["x"], dim=-1),
        "elementwise": lambda: _elementwise(trace, graph, node, given),
        "add": lambda: call(torch.add, *given.values()),
        "dropout": lambda: call(functional.dropout, given["x"], int(axes["percent"]) / 100, training=training),
    }
    if node.operator not in makers or axes.get("training") == "yes":
        raise UsageError(
            f"{node.name}: {node.operator}{node.problem} has no counterpart in PyTorch here; leave out --compare torch"
        )
    out = makers[node.operator]()
    if "relu" in str(axes.get("epilogue", "")):
        out = call(functional.relu, out)
    count = len(node.outputs)
    return [out] if count == 1 else [trace.call_method("__getitem__", (out, index)) for index in range(count)]


def _elementwise(trace: torch.fx.Graph, graph: Graph, node: Node, given: Mapping[str, Call]) -> Call:
    """a op b in the shapes of their values where those broadcast as in NumPy, else as the operator sees them."""
    import torch

    axes = node.problem.axes
    operations = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
    a, b = given["a"], given["b"]
    shapes = [graph.values[node.inputs[tensor]].shape for tensor in ("a", "b")]
    if len(shapes[1]) <= len(shapes[0]) and all(
        own in (1, other) for own, other in zip(reversed(shapes[1]), reversed(shapes[0]), strict=False)
    ):
        return trace.call_function(operations[str(axes["op"])], (a, b))
    seen = tuple(int(axes[axis]) for axis in ("outer", "channels", "inner"))
    flat = {"none": seen, "channel": (seen[1], 1), "inner": (seen[2],), "scalar": (1,)}[str(axes["broadcast"])]
    parts = (trace.call_function(torch.reshape, (a, seen)), trace.call_function(torch.reshape, (b, flat)))
    (out,) = (graph.values[name] for name in node.outputs.values())
    return trace.call_function(
        torch.reshape, (trace.call_function(operations[str(axes["op"])], parts), tuple(out.shape))
    )


# PyTorch's ways, ready to be timed --------------------------------------------------------------------------------


@dataclass
class Peer:
    """One way in which PyTorch runs the network."""

    launch: Callable[[], None]
    """Enqueues it once on the backend's stream."""
    outputs: Arrays
    """What the warm-up's last call computed, in float32."""
    peak_bytes: int | None
    """Of activations, inputs and outputs among them, without the weights; None where nobody can tell."""
    versions: Mapping[str, str]

    def facts(self, reference: Mapping[str, np.ndarray]) -> PeerRecord:
        """What a record says of it beside its times; an empty reference leaves the error unknown."""
        errors = [
            float(np.linalg.norm(out - reference[name]) / max(float(np.linalg.norm(reference[name])), 1e-30))
            for name, out in self.outputs.items()
            if name in reference
        ]
        return {
            "peak_bytes": self.peak_bytes,
            "norm_error": max(errors, default=None),
            "versions": dict(self.versions),
        }


class Peers(dict[str, Peer]):
    """Peers by name; `failed` says, in a record's form, why another of PyTorch's ways is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, PeerRecord] = {}


@contextlib.contextmanager
def peers(names: Sequence[str], graph: Graph, inputs: Arrays, precision: str, backend: Libraries) -> Iterator[Peers]:
    """PyTorch's ways of running a network as it was built, warmed up on the stream of a cuda backend.

    `precision` is f32 (TF32 off), tf32 (allowed in matrix products and convolutions) or bf16 (all of the module, in the
    channels_last memory format). Raises UsageError for an unknown name or a node without a counterpart,
    EnvironmentFault where there is no PyTorch that sees the GPU.
    """
    require_known(names)
    torch = find_torch()
    found = Peers()
    stream = torch.cuda.ExternalStream(backend.stream_handle)
    last = precision == "bf16"
    dtype = "bfloat16" if last else "float32"
    with settings(torch, precision), torch.no_grad():
        placed = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in graph.inputs]
        placed = [_placed(torch, tensor, dtype, channels_last=last) for tensor in placed]
        module = to_module(graph, dtype, "cuda", channels_last=last)
        for way, options in WAYS.items():
            # A module of its own has code of its own, so that no compiled form is taken for another's.
            own = torch.fx.GraphModule(module, module.graph)
            try:
                function = own if options is None else torch.compile(own, **options)
                found[way] = _warmed(torch, function, placed, graph.outputs, stream, graphs=bool(options))
            except Exception as error:
                # A compiler that is missing or fails costs its own way only.
                found.failed[way] = {"error": in_one_line(error)}
        try:
            yield found
        finally:
            torch.cuda.synchronize()
            found.clear()
            torch.compiler.reset()
            torch.cuda.empty_cache()


def require_known(names: Sequence[str]) -> None:
    """Raise UsageError for a peer that there is not."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--compare: {unknown('peer', name, NAMES)}")


def find_torch(*, gpu: bool = True) -> ModuleType:
    """PyTorch; raises EnvironmentFault where it is not installed, or sees no GPU where it has to."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentFault(
            f"--compare torch: PyTorch cannot be imported ({error}): {pip_install('torch')}"
        ) from None
    if gpu and not torch.cuda.is_available():
        raise EnvironmentFault(
            f"--compare torch: PyTorch {torch.__version__} sees no GPU; install a build for this driver's CUDA"
        )
    found: ModuleType = torch
    return found


@contextlib.contextmanager
def settings(torch: ModuleType, precision: str) -> Iterator[None]:
    """TF32 as the precision allows, and cuDNN trying its algorithms; as before afterwards.

    In float64, which is computed once and timed nowhere, without cuDNN, which would try its algorithms for it.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.enabled)
        matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
        cudnn.benchmark, cudnn.enabled = True, precision != "f64"
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.enabled = before


def _placed(torch: ModuleType, tensor: Tensor, dtype: str, *, channels_last: bool) -> Tensor:
    placed = tensor.to("cuda", getattr(torch, dtype))
    return placed.to(memory_format=torch.channels_last) if channels_last and placed.dim() == 4 else placed


def _warmed(
    torch: ModuleType,
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    names: Sequence[str],
    stream: torch.cuda.ExternalStream,
    *,
    graphs: bool,
) -> Peer:
    """A peer that has been called until it only runs."""

    def call() -> Sequence[Tensor]:
        with torch.no_grad(), torch.cuda.stream(stream):
            return function(*inputs)

    torch.cuda.synchronize()
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    peak = _peak(torch, call, inputs) if not graphs else None  # a graph's memory was taken when it was recorded
    computed = call()
    torch.cuda.synchronize()
    outputs = {name: out.float().cpu().numpy().copy() for name, out in zip(names, computed, strict=True)}
    del computed  # a recorded graph writes where it lies

    def launch() -> None:
        call()

    return Peer(launch, outputs, peak, versions_of(torch))


def in_one_line(error: Exception) -> str:
    """Why one of PyTorch's ways failed."""
    first = (str(error).strip() or "no reason given").splitlines()[0]
    return f"{type(error).__name__}: {first[:200]}"


def versions_of(torch: ModuleType) -> dict[str, str]:
    """What a comparison depends on."""
    cudnn = torch.backends.cudnn.version()
    found = {"PyTorch": torch.__version__, "CUDA": torch.version.cuda, "cuDNN": cudnn}
    return {name: str(version) for name, version in found.items() if version}


def _peak(torch: ModuleType, call: Callable[[], object], inputs: Sequence[Tensor]) -> int:
    """The most that one call holds, what is there all along left out but for its inputs."""
    torch.cuda.reset_peak_memory_stats()
    standing = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    own = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    return int(torch.cuda.max_memory_allocated() - standing + own)
