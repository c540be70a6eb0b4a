"""Whole network runs on the cpu backend: the record, the layouts by cost, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbench.graph.layouts import with_layouts
from opbench.graph.saving import save
from opbench.graph.zoo import alexnet
from opbench.networks.plan.choosing import apply_enabled_passes, convert_layouts, given_plan, plan_network
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import TimedCase, save_plan
from opbench.networks.plan.running import make_graph, run_network
from opbench.networks.records.network import Record, read_network
from support.checks.errors import Refusal, refuses, refuses_name


def run(tmp_path: Path, network: str, **changes: Any) -> Record:
    return run_network(NetOptions(network, backend="cpu", out=tmp_path / "out", **changes))


@pytest.mark.parametrize(
    ("network", "sizes"), [("lenet", {}), ("alexnet", {}), ("unet", {"size": 32, "base": 6, "levels": 2})]
)
def test_shipped_networks_are_right_on_the_cpu(tmp_path: Path, network: str, sizes: dict[str, int]) -> None:
    record = run(tmp_path, network, sizes=sizes)
    assert record.check.right and all(node.check.right for node in record.nodes)
    assert record.total is None and all(node.kernel_s is None for node in record.nodes), "a cpu has no clock"
    assert all(node.bound_s > 0 and node.bound for node in record.nodes), "but a GPU's ceilings are known"
    memory = record.memory
    assert memory.lower_bound_bytes <= memory.peak_bytes < memory.naive_bytes
    assert read_network(tmp_path / "out") == record
    assert (tmp_path / "out" / "plan.json").is_file()


def test_a_plan_and_a_saved_network_repeat_a_run(tmp_path: Path) -> None:
    first = run(tmp_path, "lenet", sizes={"batch": 2})
    again = run(tmp_path, "lenet", sizes={"batch": 2}, plan=tmp_path / "out" / "plan.json")
    assert [n.case for n in again.nodes] == [n.case for n in first.nodes]
    save(make_graph(NetOptions("lenet", {"batch": 2})), tmp_path / "mine.json")
    saved = run(tmp_path, str(tmp_path / "mine.json"))
    assert saved.check == first.check


def test_what_nobody_knows_the_ceilings_of_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with refuses_name("GPU", "abacus"):
        run(tmp_path, "lenet", gpu="abacus")
    assert not (tmp_path / "out").exists()
    least = [sum(n.bound_s for n in run(tmp_path, "lenet", gpu=gpu).nodes) for gpu in ("h200", "l4")]
    assert least[0] < least[1]


def test_passes_can_be_left_out(tmp_path: Path) -> None:
    record = run(tmp_path, "lenet", without=("fuse_relu", "prepare_weights"))
    assert record.check.right and any(node.operator == "relu" for node in record.nodes)
    on = {p.name: p.on for p in record.passes}
    assert not on["fuse_relu"] and not on["prepare_weights"] and on["fold_batchnorm"]


@pytest.mark.parametrize(("conversion_s", "nhwc", "conversions"), [(2e-6, 0, 0), (0.2e-6, 1, 2)])
def test_layouts_are_those_that_cost_least_in_all(conversion_s: float, nhwc: int, conversions: int) -> None:
    """conv3 alone is faster in nhwc: that pays only where converting there and back costs less than it gains."""
    options = NetOptions("alexnet")
    graph, _ = apply_enabled_passes(alexnet(), options)
    able = [node.name for node in graph.nodes if "layout" in node.problem.modes()]
    times: dict[tuple[str, str], list[TimedCase]] = {}
    for turned in (able, [], ["conv3"]):
        for node in with_layouts(graph, {name: "nhwc" if name in turned else "nchw" for name in able}).nodes:
            kernel_s = {"nchw": 3e-6, "nhwc": 2e-6 if node.name == "conv3" else 5e-6}.get(
                str(node.problem.scope.get("layout")), 3e-6
            )
            kernel_s = conversion_s if node.operator == "layout2d" else kernel_s
            entry = TimedCase(f"{node.operator}/x{node.problem}", "f32", kernel_s, kernel_s, kernel_s, False, "r")
            times[node.operator, str(node.problem)] = [entry]
    laid, said = convert_layouts(graph, options, times)
    assert said.notes == (f"{nhwc} of 8 nodes work in nhwc; {conversions} conversions",)
    assert laid.node("conv3").problem.scope["layout"] == ("nhwc" if nhwc else "nchw")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"network": "alexnett"}, Refusal("unknown-name", "network", value="alexnett")),
        ({"precision": "fp8"}, Refusal("unknown-name", "precision", value="fp8")),
        ({"layout": "nwhc"}, Refusal("not-allowed", "--layout", value="nwhc")),
        ({"without": ("fold",)}, Refusal("unknown-name", "pass", value="fold")),
        ({"sizes": {"batches": 1}}, Refusal("unknown-size", "lenet", value=("batches",))),
        ({"tune": True}, Refusal("no-clock", "cpu")),
        (
            {"inputs": {"image": np.zeros((2, 1, 28, 28), np.float32)}},
            Refusal("other-shape", "image", value=(2, 1, 28, 28)),
        ),
        ({"weights": "nowhere.safetensors"}, Refusal("unreadable", "nowhere.safetensors")),
        ({"plan": Path("nowhere.json")}, Refusal("unreadable", "nowhere.json")),
    ],
)
def test_nonsense_is_refused_in_words(tmp_path: Path, changes: dict[str, Any], refusal: Refusal) -> None:
    with refuses(refusal):
        run(tmp_path, **{"network": "lenet", **changes})
    assert not (tmp_path / "out" / "network.json").exists()


def test_a_plan_that_is_older_than_a_pass_keeps_its_nodes(tmp_path: Path) -> None:
    options = NetOptions("mobilenetv3", {"size": 32, "width": 25}, without=("fuse_hardswish", "fuse_residual"))
    graph, plan, _ = plan_network(apply_enabled_passes(make_graph(options), options)[0], options, {}, "", 132)
    save_plan(plan, tmp_path / "plan.json")
    followed = replace(options, without=(), plan=tmp_path / "plan.json")
    graph_before = make_graph(followed)
    older_plan = given_plan(graph_before, followed)
    fused, rewrites = apply_enabled_passes(graph_before, followed, older_plan)
    assert {one.name for one in rewrites if not one.on} == {"fuse_hardswish", "fuse_residual"}
    again, same_plan, _ = plan_network(fused, followed, {}, "", 132, plan=older_plan)
    assert [node.name for node in again.nodes] == [node.name for node in graph.nodes]
    assert same_plan.cases(again).keys() == plan.cases(graph).keys()
    newer_graph = apply_enabled_passes(graph_before, replace(followed, plan=None))[0]
    newer_plan = plan_network(newer_graph, replace(followed, plan=None), {}, "", 132)[1]
    of_both = replace(plan, choices={**plan.choices, **newer_plan.choices})
    assert all(one.on for one in apply_enabled_passes(graph_before, followed, of_both)[1])


NETWORK_RUNS = sorted((Path(__file__).parents[2] / "reports" / "h200" / "networks").iterdir())


@pytest.mark.parametrize("folder", NETWORK_RUNS, ids=lambda folder: folder.name)
def test_a_committed_plan_still_fits_its_network(folder: Path) -> None:
    """Who reads of a time can have the very variants: none of them has gone or serves another problem now."""
    record = read_network(folder)
    options = NetOptions(record.network, record.sizes, precision=record.precision, plan=folder / "plan.json")
    original = make_graph(options)
    committed_plan = given_plan(original, options)
    rewritten, _ = apply_enabled_passes(original, options, committed_plan)
    graph, plan, _ = plan_network(rewritten, options, {}, record.environment.gpu, 132, plan=committed_plan)
    cases = plan.cases(graph)
    assert {n.name: n.case for n in record.nodes} == {n.name: cases[n.name].name for n in graph.nodes}
    for node in graph.nodes:
        assert cases[node.name].problem.axes == node.problem.axes and cases[node.name].unmet_requirement() is None
