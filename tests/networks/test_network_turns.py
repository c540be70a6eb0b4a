"""Timed replays of a network on the cpu backend, by a clock of the test's own: what each finds, and what is judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.emulator import CpuBackend
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.kernels.case import Case
from opbench.networks.plan import running
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.network_launches import INPUT_SETS, NetworkLaunches
from opbench.networks.plan.node_times import MAX_CHAINS, node_samples
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import PlanOptions, choose
from opbench.networks.plan.running import run_network
from opbench.networks.plan.torch_comparison import Peer, time_opbench_and_peers
from opbench.networks.records.network import PeerRecord
from opbench.networks.records.network_run import network_run
from opbench.networks.report import phrases
from opbench.running.targets import own_variants
from opbench.timing.sampling import TimingOptions
from support.builders.small_networks import pictures, residual
from support.common import CATALOG, CHEATS
from support.fakes.quiet_clock import SteadyClock

OPTIONS = TimingOptions(warmup_runs=2, warmup_s=0.0, min_samples=24, max_samples=24)


class Watch(SteadyClock):
    """A clock that also runs the launches of a chain."""

    def chain(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        self.before()
        for launch in launches:
            launch()
        return super().chain(launches)


def context_of(graph: Graph, file: str = "") -> Context:
    """Return a context on the cpu backend, with a file of the cheats on time for each relu."""
    cases = choose(graph, {}, PlanOptions("f32")).cases(graph)
    if file:
        (variant,) = own_variants(CHEATS / "time" / file, CATALOG)
        relus = [node for node in graph.nodes if node.operator == "relu"]
        cases |= {node.name: Case(variant, variant.configs[0], node.problem) for node in relus}
    return Context(Network(graph, cases, open_backend("cpu")))


def one_relu() -> Graph:
    net = Builder("one_relu")
    return net.graph(net.relu(net.input("image", 4, 3, 16, 16)))


def test_each_replay_finds_other_inputs_and_poison_in_all_else() -> None:
    context = context_of(residual())
    seen: list[bytes] = []

    def look() -> None:
        seen.append(context.buffer("image").read().tobytes())
        others = [v for v in context.network.graph.values if v not in context.network.weights and v != "image"]
        assert others and all(np.isnan(context.buffer(name).read()).all() for name in others)

    turns = NetworkLaunches(context, pictures(context.network.graph), 1e-6)
    both = time_opbench_and_peers(context.launch, {}, Watch(look), lambda: None, OPTIONS, {}, turns)
    assert len(both.total.samples_s) == 24 and turns.fault == ""
    assert len(set(seen)) == INPUT_SETS >= 3
    assert all(seen.count(one) >= len(seen) // INPUT_SETS for one in set(seen))
    seen.clear()
    node_samples(context, Watch(look), turns)
    assert len(seen) == MAX_CHAINS and len(set(seen)) == INPUT_SETS and turns.fault == ""
    turns.close()
    assert context.buffer("image").read().tobytes() == pictures(context.network.graph)["image"].tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_does_not_work_in_every_replay_is_found(seed: int) -> None:
    context = context_of(one_relu(), "works_every_eighth_launch.cu")
    turns = NetworkLaunches(context, pictures(context.network.graph), 1e-3, rng=random.Random(seed))
    time_opbench_and_peers(context.launch, {}, Watch(), lambda: None, OPTIONS, {}, turns)
    assert turns.fault.startswith("in timed replay ") and "relu" in turns.fault


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_keeps_state_in_a_module_variable_is_named(seed: int, timed: bool) -> None:
    context = context_of(one_relu(), "remembers_its_input.cu")
    turns = NetworkLaunches(context, pictures(context.network.graph), 1e-3, rng=random.Random(seed))
    if timed:
        time_opbench_and_peers(context.launch, {}, Watch(), lambda: None, OPTIONS, {}, turns)
    turns.fault = ""
    turns.check_state()
    (node,) = context.network.graph.nodes
    assert turns.fault.startswith(f"{node.name}: relu/remembers_its_input ") and "'seen'" in turns.fault


def test_an_honest_network_changes_no_module_variable() -> None:
    context = context_of(residual())
    turns = NetworkLaunches(context, pictures(context.network.graph), 1e-3)
    time_opbench_and_peers(context.launch, {}, Watch(), lambda: None, OPTIONS, {}, turns)
    turns.check_state()
    assert turns.fault == ""


def test_peers_take_other_inputs_before_each_replay_too() -> None:
    log: list[int | str] = []
    peer = Peer(None, lambda: log.append("replay"), log.append, 3)
    both = time_opbench_and_peers(lambda: None, {"peer": peer}, Watch(), lambda: None, OPTIONS, {"peer": PeerRecord()})
    assert both.peers["peer"].captured and log[-1] == 0, "the inputs that a call from Python finds are the given ones"
    timed = log[:-1]
    assert timed[1::2] == ["replay"] * (len(timed) // 2)
    assert all({*timed[at : at + 6 : 2]} == {0, 1, 2} for at in range(0, len(timed) - 6, 6))


def test_what_is_missing_leaves_no_poison_for_the_nodes_behind_it() -> None:
    graph = residual()
    cases = choose(graph, {}, PlanOptions("f32")).cases(graph)
    context = Context(Network(graph, cases, open_backend("cpu")), excluded=["left"])
    turns = NetworkLaunches(context, pictures(graph), 1e-6, complete=False)
    before = context.buffer(graph.node("left").outputs["out"]).read()
    node_samples(context, Watch(), turns)
    assert np.array_equal(before, context.buffer(graph.node("left").outputs["out"]).read(), equal_nan=True)
    assert turns.fault == ""


class TimedCpu(CpuBackend):
    """The cpu backend with a clock, as a GPU has one."""

    l2_bytes = 1 << 20
    name = "cuda"

    def clock(self, mode: str = "cold") -> Watch:
        return Watch()


def test_a_network_that_is_wrong_while_it_is_timed_has_no_time_and_its_record_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.backends, "open_backend", lambda name: TimedCpu())
    monkeypatch.setattr(running, "TIMING", OPTIONS)
    monkeypatch.setattr(running, "_known_ceilings", lambda *_: None)
    honest = run_network(NetOptions("lenet", backend="cpu", out=tmp_path / "honest"))
    assert (
        honest.check
        and honest.check.right
        and not honest.check.timed
        and honest.total
        and honest.total.median_s == 1e-3
    )
    genuine = Context.launch
    replays = iter(range(10**6))
    monkeypatch.setattr(Context, "launch", lambda context: genuine(context) if next(replays) < 8 else None)
    record = run_network(NetOptions("lenet", backend="cpu", out=tmp_path / "cheat"))
    check = record.check
    assert check and not check.right and all(end.right for end in check.outputs.values())
    assert record.total is None and check.timed.startswith("in timed replay")
    sentences = phrases.headline(record)
    assert any(check.timed in sentence for sentence in sentences)
    assert not any("CPU" in sentence for sentence in sentences)
    whole = network_run(record, tmp_path).results[0]
    assert whole.status == "wrong" and whole.reason == check.timed and whole.measurement is None
