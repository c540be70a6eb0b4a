"""Plans: the fastest that is allowed, ties, nodes without results, a file that may be edited and refuses nonsense."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from opbench.backend.environment import Environment
from opbench.graph.build import Builder
from opbench.graph.graph import Graph
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import apply_passes
from opbench.graph.zoo import lenet, unet
from opbench.insight.defaults import ranking_gpu
from opbench.networks.plan import choosing
from opbench.networks.plan.choosing import apply_enabled_passes, collect_results
from opbench.networks.plan.memory import plan_memory
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import (
    Plan,
    PlanOptions,
    TimedCase,
    candidate_cases,
    cases_of_similar_gpu,
    choose,
    load_plan,
    save_plan,
    timed_cases,
    usable_results,
)
from opbench.networks.plan.setup_launches import PREPARE_WEIGHTS
from opbench.networks.records.network import read_network
from opbench.results.result import Result
from opbench.running.suite import Suite
from opbench.timing.measurement import Measurement
from support.builders.runs import measurement
from support.checks.errors import Refusal, refuses
from support.common import CATALOG, ROOT

GRAPH = apply_passes(lenet(1))[0]
CONV2 = GRAPH.node("conv2")
KEY = ("conv2d", str(CONV2.problem))


def entry(
    variant: str, kernel_s: float, width: float = 0.01, precision: str = "f32", library: bool = False
) -> TimedCase:
    low, high = kernel_s * (1 - width), kernel_s * (1 + width)
    return TimedCase(f"conv2d/{variant}{CONV2.problem}", precision, kernel_s, low, high, library, "run r")


NAIVE, GEMM, FEW = "naive_grid3d[BLOCK_X=32,BLOCK_Y=8]", "implicit_gemm[BM=64,BN=128,BK=16]", "torch_tf32"


def test_the_fastest_of_the_allowed_is_chosen_and_says_by_how_much() -> None:
    results = {KEY: [entry(FEW, 1e-6, precision="tf32", library=True), entry(GEMM, 2e-6), entry(NAIVE, 5e-6)]}
    chosen = choose(GRAPH, results, PlanOptions("f32", "NVIDIA H200")).choices
    assert (chosen["conv2"].case, chosen["conv2"].source) == (results[KEY][1].case, "run r")
    assert chosen["conv2"].lead == pytest.approx(2.5) and chosen["conv2"].tied_with == ()
    assert chosen["conv1"].source == "default" and chosen["conv1"].kernel_s is None
    assert choose(GRAPH, results, PlanOptions("tf32", libraries=False)).choices["conv2"].case == results[KEY][1].case
    assert choose(GRAPH, results, PlanOptions("tf32", libraries=True)).choices["conv2"].case == results[KEY][0].case


def test_of_those_that_are_tied_the_one_without_a_workspace_is_chosen() -> None:
    results = {KEY: [entry(GEMM, 2.00e-6, 0.02), entry(NAIVE, 2.01e-6, 0.02)]}
    chosen = choose(GRAPH, results, PlanOptions("f32")).choices["conv2"]
    assert chosen.case == results[KEY][1].case and chosen.tied_with == (results[KEY][0].case,) and chosen.lead is None


def test_cases_that_are_gone_since_a_run_do_not_count() -> None:
    gone = [entry("no_such_variant", 1e-7), entry("implicit_gemm[BM=7,BN=7,BK=7]", 2e-7)]
    results = {KEY: [*gone, entry(GEMM, 2e-6)]}
    assert (
        choose(GRAPH, usable_results(results, CATALOG), PlanOptions("f32")).choices["conv2"].case
        == results[KEY][2].case
    )
    assert choose(GRAPH, usable_results({KEY: gone}, CATALOG), PlanOptions("f32")).choices["conv2"].source == "default"


def one_layer() -> Graph:
    """LeNet's conv2 alone: while it runs, its workspace makes the peak."""
    net = Builder("one")
    return apply_passes(net.graph(net.relu(net.conv2d(net.input("image", 1, 6, 14, 14), 16, 5, name="conv2"))))[0]


def test_within_a_limit_the_fastest_that_leaves_room_is_chosen() -> None:
    graph, results = one_layer(), {KEY: [entry(GEMM, 2e-6), entry(NAIVE, 5e-6)]}
    fast = choose(graph, results, PlanOptions("f32"))
    sizes = {name: sum(t.nbytes for t in case.workspace(132)) for name, case in fast.cases(graph).items()}
    needed, least = plan_memory(graph, sizes).peak_bytes, plan_memory(graph).peak_bytes
    assert fast.choices["conv2"].case == results[KEY][0].case and least < needed
    for limit, expected in ((needed, 0), (needed - 1, 1), (least, 1)):
        chosen = choose(graph, results, PlanOptions("f32", memory_bytes=limit)).choices["conv2"]
        assert chosen.case == results[KEY][expected].case and chosen.source == "run r", limit


def test_a_limit_that_nothing_keeps_is_refused_with_the_node() -> None:
    with refuses("memory-limit", "conv1", value=1000):
        choose(GRAPH, {}, PlanOptions("f32", memory_bytes=1000))
    graph = one_layer()
    with refuses("memory-limit", "conv2", value=plan_memory(graph).peak_bytes):
        choose(graph, {KEY: [entry(GEMM, 1e-6)]}, PlanOptions("f32", memory_bytes=plan_memory(graph).peak_bytes))


def test_results_that_are_wrong_or_not_measured_do_not_count() -> None:
    def result(status: str, made: Measurement | None) -> Result:
        return Result(
            f"conv2d/x{CONV2.problem}", "conv2d", "x", {}, str(CONV2.problem), {}, "f32", "cuda",
            status, "" if status == "right" else "no", measurement=made,
        )  # type: ignore[arg-type]  # fmt: skip

    measured = replace(measurement(5e-6), low_s=4.9e-6, high_s=5.2e-6, offset_s=2e-6)
    found = timed_cases([result("right", measured), result("wrong", None), result("right", None)], "r")
    assert [e.kernel_s for e in found[KEY]] == [pytest.approx(3e-6)]


def test_candidates_are_what_fits_and_nothing_else() -> None:
    cases = candidate_cases(GRAPH, "f32")
    assert {c.problem for c in cases} == {node.problem for node in GRAPH.nodes}
    assert all(
        c.unmet_requirement() is None and c.variant.precision == "f32" and not c.variant.is_library for c in cases
    )


def test_a_plan_survives_its_file_and_may_be_edited(tmp_path: Path) -> None:
    plan = choose(GRAPH, {KEY: [entry(GEMM, 2e-6), entry(NAIVE, 5e-6)]}, PlanOptions("f32", "NVIDIA H200"))
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert load_plan(path, "lenet", "NVIDIA H200", "f32") == plan
    edited = json.loads(path.read_text())
    edited["choices"]["conv2"]["case"] = f"conv2d/{NAIVE}{CONV2.problem}"
    path.write_text(json.dumps(edited))
    assert load_plan(path, "lenet", "", "f32").cases(GRAPH)["conv2"].variant.name == "naive_grid3d"


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"gpu": "NVIDIA A100"}, Refusal("other-gpu", "plan.json", value="NVIDIA A100", allowed="NVIDIA H200")),
        ({"network": "unet"}, Refusal("other-network", "plan.json", value="unet", allowed="lenet")),
        ({"precision": "bf16"}, Refusal("other-precision", "plan.json", value="bf16", allowed="f32")),
        ({"choices": 7}, Refusal("not-allowed", "choices", value=7)),
    ],
)
def test_a_plan_for_something_else_is_refused(tmp_path: Path, change: dict[str, object], refusal: Refusal) -> None:
    path = tmp_path / "plan.json"
    save_plan(choose(GRAPH, {}, PlanOptions("f32", "NVIDIA H200")), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with refuses(refusal):
        load_plan(path, "lenet", "NVIDIA H200", "f32")
    path.write_text("{")
    with refuses("not-json", "plan.json"):
        load_plan(path, "lenet", "NVIDIA H200", "f32")


def test_a_plan_that_lacks_a_node_or_names_what_is_not_there_says_so() -> None:
    plan = choose(GRAPH, {}, PlanOptions("f32"))
    with refuses("no-variant", "conv1"):
        Plan("lenet", "", "f32", {}).cases(GRAPH)
    choice = plan.choices["pool1"]
    for case, kind in (
        (f"conv2d/{NAIVE}{CONV2.problem}", "other-operator"),
        (choice.case.replace("[", "[SIZE=3,", 1), "no-such-config"),
    ):
        wrong = Plan("lenet", "", "f32", {**plan.choices, "pool1": type(choice)(case)})
        with refuses(kind, "pool1"):
            wrong.cases(GRAPH)


# Winners that were committed --------------------------------------------------------------------------------------


H200 = "NVIDIA H200"


def unet_on(gpu: str, precision: str, memory_bytes: int | None = None) -> Plan:
    """Return the plan of UNet at batch 16 on a GPU of compute capability 9.0, or within its activations' memory."""
    graph, _ = apply_enabled_passes(unet(batch=16), NetOptions("unet", precision=precision))
    graph = with_layouts(graph, {n.name: "nhwc" for n in graph.nodes if "layout" in n.problem.modes()})
    device = ranking_gpu(Environment(gpu=gpu, compute_capability="9.0", sm_count=132))
    return choose(graph, {}, PlanOptions(precision, gpu, memory_bytes=memory_bytes, device=device))


def test_a_gpu_with_a_winners_file_gets_what_was_measured_on_it() -> None:
    """The case of the network's run, or one that a run of a suite measured to be faster."""
    nodes = read_network(ROOT / "reports" / "h200" / "networks" / "unet-16-tf32").nodes
    chosen = unet_on(H200, "tf32").choices
    tensor_core_nodes = {node.name: node for node in nodes if "tf32" in node.case or "f16" in node.case}
    assert len(tensor_core_nodes) > len(nodes) // 2
    others = [name for name, node in tensor_core_nodes.items() if chosen[name].case != node.case]
    assert len(others) < len(tensor_core_nodes) // 4
    assert all((chosen[name].kernel_s or math.inf) < (tensor_core_nodes[name].kernel_s or 0.0) for name in others)
    assert all(choice.source.startswith("run reports/h200/") for choice in chosen.values())
    assert all(choice.kernel_s for choice in chosen.values())


def test_a_gpu_without_a_winners_file_gets_the_cases_of_a_similar_gpu_without_their_times() -> None:
    measured, similar = unet_on(H200, "tf32").choices, unet_on("NVIDIA Someday", "tf32").choices
    assert {name: c.case for name, c in similar.items()} == {name: c.case for name, c in measured.items()}
    assert {(c.source, c.kernel_s) for c in similar.values()} == {("default", None)}
    older = ranking_gpu(Environment(gpu="NVIDIA Older", compute_capability="8.0", sm_count=108))
    problem = next(iter(unet(batch=16).nodes)).problem
    assert cases_of_similar_gpu(problem, "tf32", older, CATALOG) == []


def test_a_winner_that_needs_more_than_the_memory_is_passed_by() -> None:
    free = unet_on(H200, "f32").choices
    tight = unet_on(H200, "f32", 900_000_000).choices
    changed = [name for name, choice in tight.items() if choice.case != free[name].case]
    assert changed and {tight[name].source for name in changed} == {"default"}


@pytest.mark.parametrize("disabled", [(), (PREPARE_WEIGHTS,)])
def test_tuning_leaves_out_the_setup_that_the_network_runs_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disabled: tuple[str, ...]
) -> None:
    suites: list[Suite] = []
    monkeypatch.setattr(choosing, "run_suite", lambda suite, *_: suites.append(suite))
    monkeypatch.setattr(choosing, "gather_timed_cases", lambda folders, catalog: {})
    options = NetOptions("unet", layout="nhwc", tune=True, without=disabled, out=tmp_path)
    collect_results(apply_enabled_passes(unet(), options)[0], options, "cuda", lambda progress: None, CATALOG)
    (suite,) = suites
    with_setup = {case.name for case in suite.cases if case.setup.launches}
    assert with_setup and suite.prepared_cases == (frozenset() if disabled else with_setup)
