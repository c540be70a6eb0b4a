"""Networks on a real GPU: as one graph, node by node, with branches in parallel, and from several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from opbench.backend.base import TimedBackend
from opbench.checking.backends import open_backend
from opbench.errors import EnvironmentFault
from opbench.gpu.driver import why_missing
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.passes import apply_passes
from opbench.graph.zoo import unet
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.network_launches import NetworkLaunches
from opbench.networks.plan.node_times import node_samples
from opbench.networks.plan.plan import PlanOptions, choose
from opbench.timing.sampling import TimingOptions, measure
from support.builders.small_networks import pictures, residual
from support.checks.errors import refuses

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=f"needs a GPU: {why_missing()}")


def ready(graph: Graph) -> Network:
    return Network(graph, choose(graph, {}, PlanOptions("f32")).cases(graph), open_backend("cuda"))


@pytest.mark.parametrize("graph", [residual(), apply_passes(unet(2, 32, 8, 2))[0]], ids=lambda g: g.name)
def test_every_way_to_run_gives_the_same_right_answer(graph: Graph) -> None:
    network, given = ready(graph), pictures(graph)
    wanted = graph.reference(given)
    answers = []
    for options in ({"graph": False}, {}, {"parallel": True}):
        context = Context(network, **options)  # type: ignore[arg-type]
        for _ in range(3):  # a replay finds its inputs whole
            answers.append(context.run(given))
        context.close()
    for answer in answers:
        for name, out in answer.items():
            np.testing.assert_array_equal(out, answers[0][name])
            np.testing.assert_allclose(out, wanted[name], rtol=1e-3, atol=1e-4)
    network.close()


def test_threads_share_the_weights_and_give_the_answers_of_one() -> None:
    graph = apply_passes(unet(1, 64, 8, 2))[0]
    network = ready(graph)
    given = [pictures(graph, seed) for seed in range(8)]
    alone = Context(network)
    wanted = [alone.run(one) for one in given]
    contexts = [Context(network) for _ in range(4)]

    def work(number: int) -> list[dict[str, np.ndarray]]:
        return [contexts[number].run(one) for one in given for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(work, range(4)):
            for index, answer in enumerate(answers):
                for name, out in answer.items():
                    np.testing.assert_array_equal(out, wanted[index // 5][name])


def test_a_network_too_large_for_the_gpu_is_refused_with_what_it_needs() -> None:
    net = Builder("wide")
    x = net.input("image", 1, 1, 40_000, 50_000)
    graph = net.graph(*(net.relu(x, name=f"copy{i}") for i in range(18)))
    with refuses("gpu-memory", error=EnvironmentFault):
        Context(ready(graph))


def test_timed_replays_on_other_inputs_are_those_of_untimed_runs() -> None:
    network = ready(apply_passes(unet(2, 32, 8, 2))[0])
    backend = network.backend
    assert isinstance(backend, TimedBackend)
    for options in ({"graph": False}, {}, {"parallel": True}):
        context = Context(network, **options)  # type: ignore[arg-type]
        turns = NetworkLaunches(context, pictures(network.graph), 1e-6)
        timing = TimingOptions(warmup_s=0.0, min_samples=48, max_samples=48)
        clock = backend.clock("cold")
        found = measure(clock, {"own": context.launch}, timing, launch_sources={"own": turns})["own"]
        node_samples(context, clock, turns)
        assert len(found.samples_s) == 48 and turns.fault == ""
        turns.close()
        context.close()
    network.close()
