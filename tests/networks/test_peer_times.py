"""Both sides on one clock: what is timed as a graph, what is called from Python, what is left out and why."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opbench.networks.plan import torch_gpu
from opbench.networks.plan.torch_comparison import Peer, peer_record, time_opbench_and_peers
from opbench.networks.plan.torch_gpu import TorchGpu
from opbench.timing.clock import DeviceState, Sample
from opbench.timing.sampling import TimingOptions

QUICK = TimingOptions(warmup_runs=2, warmup_s=0.0, min_samples=5, max_samples=12)
OUT = {"out": np.array([1.0, 2.0, 2.0], np.float32)}


class TableClock:
    """A clock that reads a known time for each launch, and keeps which launch was sampled, and whether held."""

    timer = "table"

    def __init__(self, seconds: dict[Callable[[], None], float]) -> None:
        self.seconds, self.log = seconds, list[tuple[Callable[[], None], bool]]()

    def sample(self, launch: Callable[[], None], hold_stream: bool = True) -> Sample:
        self.log.append((launch, hold_stream))
        launch()
        return Sample(self.seconds[launch], stream_held=hold_stream)

    def device_state(self) -> DeviceState:
        return DeviceState()

    def empty_kernel_s(self) -> float:
        return 1e-6

    def timing_offset_s(self) -> float | None:
        return 0.0


def launch_named(name: str, log: list[str]) -> Callable[[], None]:
    return lambda: log.append(name)


def test_ours_and_captured_peers_are_interleaved_on_one_clock_and_held_alike() -> None:
    log: list[str] = []
    own, graph, call, other = (launch_named(name, log) for name in ("own", "graph", "call", "other"))
    found = {
        "eager": Peer(call, graph, outputs=OUT, peak_bytes=12),
        "compiled": Peer(other, peak_bytes=12, error="not captured: no"),
    }
    clock = TableClock({own: 10e-6, graph: 25e-6})
    facts = {name: peer_record(peer, OUT, {}, 1e-3, {"PyTorch": "2"}) for name, peer in found.items()}
    both = time_opbench_and_peers(own, found, clock, lambda: log.append("wait"), QUICK, facts)
    eager, compiled = both.peers["eager"], both.peers["compiled"]
    assert both.total.median_s == 10e-6 and eager.times and eager.times.median_s == 25e-6 and eager.captured
    assert compiled.times is None and not compiled.captured and compiled.error == "not captured: no"
    assert {launch for launch, _ in clock.log} == {own, graph}, "what waits for the host is on the other clock"
    warm = (
        max(i for i, (_, hold_stream) in enumerate(clock.log) if not hold_stream) + 2
    )  # then one that shows that holding works
    assert both.host and eager.host and compiled.host and min(eager.host.median_s, compiled.host.median_s) >= 0
    assert log.count("call") > 5 and log.count("other") > 5 and log.count("wait") > 15
    timed = [launch for launch, _ in clock.log[warm:]]
    assert len(timed) >= 10 and all(hold_stream for _, hold_stream in clock.log[warm:])
    assert all({*timed[i : i + 2]} == {own, graph} for i in range(0, 10, 2)), "samples alternate"


def test_without_a_peer_there_is_no_time_of_a_call_from_python() -> None:
    def own() -> None: ...

    both = time_opbench_and_peers(own, {}, TableClock({own: 1e-5}), lambda: None, QUICK, {})
    assert both.host is None and both.peers == {} and both.total.median_s == 1e-5


def test_a_peer_whose_outputs_are_others_is_not_timed_as_a_graph() -> None:
    def own() -> None: ...
    def graph() -> None: ...

    peer = Peer(lambda: None, graph, outputs={"out": np.array([1.0, 2.0, 2.3], np.float32)})
    peer_result = peer_record(peer, OUT, {}, 1e-3, {})
    assert peer_result.difference == pytest.approx(0.1, rel=1e-5) and peer_result.allowed_difference == 2e-3
    assert peer_result.error == "its outputs differ from ours by 0.1 in norm (0.002 allowed)"
    clock = TableClock({own: 1e-5})
    both = time_opbench_and_peers(own, {"eager": peer}, clock, lambda: None, QUICK, {"eager": peer_result})
    assert both.peers["eager"].times is None
    assert not peer_record(peer, OUT, {}, 0.06, {}).error
    nan = Peer(lambda: None, graph, outputs={"out": np.array([np.nan, 2.0, 2.0], np.float32)})
    assert "differ from ours by nan" in peer_record(nan, OUT, {}, 1.0, {}).error


def test_the_error_against_the_reference_is_recorded_or_unknown() -> None:
    peer = Peer(lambda: None, lambda: None, outputs=OUT)
    peer_result = peer_record(peer, OUT, {"out": np.array([1.0, 2.0, 2.3])}, 1e-3, {"PyTorch": "2"})
    assert peer_result.norm_error == pytest.approx(0.3 / np.sqrt(5 + 2.3**2), rel=1e-6)
    assert peer_record(peer, OUT, {}, 1e-3, {}).norm_error is None


def test_a_peer_that_fails_while_it_is_timed_costs_its_times_only() -> None:
    def own() -> None: ...

    def dying() -> None:
        raise RuntimeError("CUDA out of memory")

    clock = TableClock({own: 1e-5, dying: 1e-5})
    found = {"eager": Peer(dying, dying, outputs=OUT)}
    facts = {"eager": peer_record(found["eager"], OUT, {}, 1e-3, {})}
    both = time_opbench_and_peers(own, found, clock, lambda: None, QUICK, facts)
    assert both.total.median_s == 1e-5 and both.host is None
    assert both.peers["eager"].error == "RuntimeError: CUDA out of memory"


# The lines that need a GPU, on a stand-in for torch.cuda ----------------------------------------------------------


class FakeCuda:
    """torch.cuda as far as TorchGpu uses it; it keeps what happens on which stream."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current, self.made, self.allocated, self.peak = "default", 0, 100, 0

    def ExternalStream(self, handle: int) -> Any:
        return self._stream(f"external {handle}")

    def Stream(self) -> Any:
        self.made += 1
        return self._stream(f"side {self.made}")

    def _stream(self, name: str) -> Any:
        return SimpleNamespace(name=name, wait_stream=lambda other: self.log.append(f"{name} waits for {other.name}"))

    def current_stream(self) -> Any:
        return self._stream(self.current)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.log.append(f"replay on {self.current}"))

    @contextlib.contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self.log.append(f"capture begins on {stream.name}")
        with self.stream(stream):
            yield
        self.log.append("capture ends")

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def memory_allocated(self) -> int:
        return self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def empty_cache(self) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[TorchGpu, FakeCuda]:
    cuda = FakeCuda()
    monkeypatch.setattr(torch_gpu, "find_torch", lambda: SimpleNamespace(cuda=cuda))
    return TorchGpu(SimpleNamespace(stream_handle=7)), cuda  # type: ignore[arg-type]


def test_a_graph_is_captured_where_it_was_warmed_up_and_replayed_on_our_stream(gpu: tuple[TorchGpu, FakeCuda]) -> None:
    torch, cuda = gpu

    def call() -> str:
        cuda.log.append(f"call on {cuda.current}")
        return "out"

    with torch.on_stream():
        torch.warm_up(call, 2)
        captured = torch.capture(call)
    assert captured.result == "out"
    captured.replay()
    assert cuda.log == [
        "side 2 waits for external 7", "call on side 2", "call on side 2", "external 7 waits for side 2", "synchronize",
        "capture begins on side 2", "call on side 2", "capture ends", "replay on external 7",
    ]  # fmt: skip


def test_each_way_has_a_side_stream_of_its_own(gpu: tuple[TorchGpu, FakeCuda]) -> None:
    torch, cuda = gpu
    for _ in range(2):
        torch.warm_up(lambda: None, 1)
        torch.capture(lambda: None)
    begun = [line for line in cuda.log if line.startswith("capture begins")]
    assert begun == ["capture begins on side 2", "capture begins on side 3"]


def test_the_peak_is_beyond_what_was_there(gpu: tuple[TorchGpu, FakeCuda]) -> None:
    torch, cuda = gpu

    def call() -> None:
        cuda.peak = 350

    assert torch.peak_bytes(call) == 250
    cuda.allocated = 120
    assert torch.peak_bytes(call, start_bytes=90) == 260


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("CUDA out of memory. Tried to allocate 3.07 GiB. GPU 0 has a total capacity of 79.18 GiB " + "x " * 90,
         "RuntimeError: CUDA out of memory. Tried to allocate 3.07 GiB."),
        ("no sentence " * 20, "RuntimeError: " + "no sentence " * 10 + "…"),
        ("short. And whole", "RuntimeError: short. And whole"),
        ("", "RuntimeError: no reason given"),
    ],
)  # fmt: skip
def test_an_error_of_a_peer_ends_with_a_sentence_or_a_word(message: str, line: str) -> None:
    assert torch_gpu.on_one_line(RuntimeError(message)) == line
