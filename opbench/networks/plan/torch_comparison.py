"""Run the same network in PyTorch and time it like opbench: as one CUDA graph, and called from Python."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from opbench.checking.launch_sources import InputKindOrder, unpredictable_random
from opbench.errors import UsageError, unknown_name
from opbench.graph.graph import Graph
from opbench.kernels.tensors import INTEGERS, Arrays
from opbench.networks.plan.network_launches import norm_difference
from opbench.networks.plan.torch_gpu import TimeLimitExceeded, TorchGpu, on_one_line, precision_settings, time_limit
from opbench.networks.plan.torch_module import to_module
from opbench.networks.records.network import PeerRecord
from opbench.timing.clock import Clock, Launch, LaunchSource
from opbench.timing.host import HostTime, host_times
from opbench.timing.measurement import Measurement
from opbench.timing.sampling import TimingOptions, measure

if TYPE_CHECKING:
    from torch import Tensor

LIBRARY_NAMES = ("torch",)
"""The names that a network can be compared with."""
OPBENCH_NAME = "opbench"
WARM_UP_CALLS = 4
"""Calls before a capture or a timing: cuDNN tries its algorithms, and the compiler compiles."""
AGREEMENT_FACTOR = 2.0
"""Factor on the allowed difference, because PyTorch and opbench may each be off in opposite directions."""


@dataclass(frozen=True)
class TorchMode:
    """A mode in which PyTorch runs a network: memory format, and eager or compiled."""

    channels_last: bool = False
    compiled: bool = False
    """Whether it uses `torch.compile` in its default mode."""


TORCH_MODES = {
    "torch.compile, channels_last": TorchMode(channels_last=True, compiled=True),
    "PyTorch eager, channels_last": TorchMode(channels_last=True),
    "PyTorch eager": TorchMode(),
    "torch.compile": TorchMode(compiled=True),
}
"""The modes in the order of preparation, those that are seldom fastest last: they are missing if time runs out."""


@dataclass(frozen=True)
class Peer:
    """A network that PyTorch runs in one mode: its calls, its outputs, or the reason why it could not run."""

    call: Launch | None = None
    """Calls the module from Python, as a user does, on the backend's stream; None if it cannot be called."""
    replay: Launch | None = None
    """Enqueues the same call, captured as one CUDA graph; None if it could not be captured."""
    write: Callable[[int], None] | None = None
    """Writes one of several contents, by number, into the inputs that the graph and the call read."""
    input_sets: int = 1
    """The number of contents; the first is what `outputs` were computed from."""
    outputs: Arrays = field(default_factory=dict)
    """The outputs of the graph, in float32."""
    peak_bytes: int | None = None
    """Peak bytes of a call: activations, inputs and outputs, without the weights."""
    error: str = ""
    """Why it cannot be called or captured; empty if it can."""


class PeerLaunches:
    """Write other inputs before each timed replay of PyTorch's network; `NetworkLaunches` does so for opbench's."""

    def __init__(self, peer: Peer, rng: random.Random | None = None) -> None:
        assert peer.replay and peer.write
        self._replay, self._write, self._order = (
            peer.replay,
            peer.write,
            InputKindOrder(range(peer.input_sets), rng or unpredictable_random()),
        )

    def next_launch(self) -> Launch:
        """Write the next inputs, outside the timed interval, and return the replay."""
        self._write(self._order.next())
        return self._replay

    def after_sample(self) -> None:
        """Do nothing: a library's outputs are compared before it is timed."""


def require_known_libraries(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown library to compare with."""
    for name in names:
        if name not in LIBRARY_NAMES:
            raise UsageError(unknown_name("peer", name, LIBRARY_NAMES, place="--compare"))


@contextlib.contextmanager
def peers(
    graph: Graph, contents: Sequence[Arrays], precision: str, gpu: TorchGpu, limit_s: float
) -> Iterator[dict[str, Peer]]:
    """Prepare a network in every mode of PyTorch, so that their samples can alternate.

    The network is the one that was built, in nchw. Timed replays take the `contents` of its inputs in turn;
    outputs are those of the first. `precision` is f32 (TF32 off), tf32 (allowed in matrix products and
    convolutions) or bf16 (the module and its inputs in bfloat16). A mode that fails, or is not warmed up within
    `limit_s` seconds, has its reason in `error`; the other modes continue. Raises UsageError for a node without a
    counterpart in PyTorch.
    """
    dtype = "bfloat16" if precision == "bf16" else "float32"
    torch, peers = gpu.torch, dict[str, Peer]()
    with precision_settings(torch, precision), torch.no_grad(), gpu.on_stream():
        try:
            for is_channels_last in sorted({mode.channels_last for mode in TORCH_MODES.values()}, reverse=True):
                module = to_module(graph, dtype, gpu.device, channels_last=is_channels_last)
                inputs_by_content = [
                    [
                        _copy_input_to_gpu(gpu, graph, name, content[name], dtype, channels_last=is_channels_last)
                        for name in graph.inputs
                    ]
                    for content in contents
                ]
                for name, mode in TORCH_MODES.items():
                    if mode.channels_last == is_channels_last:
                        # A new module for each mode, so that the compiler does not reuse the code of another mode.
                        module_copy = torch.fx.GraphModule(module, module.graph)
                        function = torch.compile(module_copy) if mode.compiled else module_copy
                        peers[name] = _prepare_mode(gpu, function, inputs_by_content, graph.outputs, limit_s)
            yield peers
        finally:
            peers.clear()
            torch.compiler.reset()
            gpu.release()


def _copy_input_to_gpu(
    gpu: TorchGpu, graph: Graph, name: str, array: np.ndarray, dtype: str, *, channels_last: bool
) -> Tensor:
    """Copy an input to the GPU, in the module's dtype; integers stay int32."""
    if graph.values[name].dtype in INTEGERS:
        return gpu.place(array.astype(np.int32))
    tensor = gpu.place(array).to(getattr(gpu.torch, dtype))
    is_channels_last = channels_last and tensor.dim() == 4
    return tensor.to(memory_format=gpu.torch.channels_last) if is_channels_last else tensor


def _prepare_mode(
    gpu: TorchGpu,
    function: Callable[..., Sequence[Tensor]],
    contents: Sequence[Sequence[Tensor]],
    names: Sequence[str],
    limit_s: float,
) -> Peer:
    """Warm a mode up, capture it as a CUDA graph, and read the graph's outputs for the first inputs."""
    inputs = [tensor.clone() for tensor in contents[0]]  # clone keeps the memory format

    def load_inputs(content_index: int) -> None:
        for tensor, content in zip(inputs, contents[content_index], strict=True):
            tensor.copy_(content)

    def run() -> Sequence[Tensor]:
        return function(*inputs)

    def call() -> None:
        run()

    try:
        with time_limit(limit_s):
            gpu.warm_up(run, WARM_UP_CALLS)
        call()
        peak_bytes = gpu.peak_bytes(run) + sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    except TimeLimitExceeded:
        return Peer(error=f"not warmed up within {limit_s:g} s; give it more: --compare-limit SECONDS")
    except Exception as error:
        return Peer(error=on_one_line(error))
    try:
        captured = gpu.capture(run)
        captured.replay()
        gpu.synchronize()
        outputs = {name: out.float().cpu().numpy().copy() for name, out in zip(names, captured.result, strict=True)}
    except Exception as error:
        return Peer(call, peak_bytes=peak_bytes, error=f"not captured as a CUDA graph: {on_one_line(error)}")
    return Peer(call, captured.replay, load_inputs, len(contents), outputs, peak_bytes)


# Times of opbench and PyTorch ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkTimes:
    """The times of a network in opbench and in PyTorch, on the same clocks at the same time."""

    total: Measurement
    host: HostTime | None
    """Time of one call from Python; None without a peer."""
    peers: dict[str, PeerRecord]


def time_opbench_and_peers(
    launch: Launch,
    peer_by_name: Mapping[str, Peer],
    clock: Clock,
    synchronize: Callable[[], object],
    options: TimingOptions,
    records: Mapping[str, PeerRecord],
    launch_source: LaunchSource | None = None,
) -> NetworkTimes:
    """Time opbench and each mode of PyTorch whose outputs agree: as CUDA graphs, then as calls from Python.

    Graphs are timed by the device's clock, calls by the host's. `records` holds the other recorded values of each peer
    (`peer_record`); peers with an error are not timed as graphs. `launch_source` renews the network before each of its
    samples; peers take other inputs before each of theirs.
    """
    graphs = {name: peer.replay for name, peer in peer_by_name.items() if peer.replay and not records[name].error}
    calls = {name: peer.call for name, peer in peer_by_name.items() if peer.call}
    peers = {name: records[name] for name in peer_by_name}
    launch_sources: dict[str, LaunchSource] = {OPBENCH_NAME: launch_source} if launch_source else {}
    launches_by_name = {name: PeerLaunches(peer_by_name[name]) for name in graphs if peer_by_name[name].write}
    try:
        measured = measure(
            clock, {OPBENCH_NAME: launch, **graphs}, options, launch_sources=launch_sources | launches_by_name
        )
        for name in launches_by_name:
            if write := peer_by_name[name].write:
                write(0)
        host = host_times({OPBENCH_NAME: launch, **calls}, synchronize) if calls else {}
    except Exception as error:  # for example, PyTorch cannot allocate more memory
        if not peer_by_name:
            raise
        for name in peer_by_name:
            peers[name] = replace(peers[name], error=peers[name].error or on_one_line(error))
        return NetworkTimes(
            measure(clock, {OPBENCH_NAME: launch}, options, launch_sources=launch_sources)[OPBENCH_NAME], None, peers
        )
    for name in peer_by_name:
        if name in measured:
            peers[name] = replace(peers[name], captured=True, times=measured[name])
        if name in host:
            peers[name] = replace(peers[name], host=host[name])
    return NetworkTimes(measured[OPBENCH_NAME], host.get(OPBENCH_NAME), peers)


def peer_record(
    peer: Peer, outputs: Arrays, reference: Mapping[str, np.ndarray], allowed: float, versions: Mapping[str, str]
) -> PeerRecord:
    """Return the record of a mode of PyTorch without times: memory, versions, and agreement of outputs.

    `allowed` is the tolerance of the network's own outputs, relative, in norm. Without a reference the error of the
    peer is unknown.
    """
    record = PeerRecord(peak_bytes=peer.peak_bytes, versions=dict(versions), error=peer.error)
    if peer.error:
        return record
    difference, limit = _norm_difference(peer.outputs, outputs), AGREEMENT_FACTOR * allowed
    return replace(
        record,
        difference=difference,
        allowed_difference=limit,
        norm_error=_norm_difference(peer.outputs, reference) if reference else None,
        error=""
        if difference <= limit
        else f"its outputs differ from ours by {difference:.2g} in norm ({limit:.2g} allowed)",
    )


def _norm_difference(outputs: Arrays, torch_outputs: Mapping[str, np.ndarray]) -> float:
    """Return the largest `norm_difference` of an output of opbench from PyTorch's output of the same name."""
    return max(norm_difference(out, torch_outputs[name]) for name, out in outputs.items())
