"""What is chosen without measurements, judged by those that were committed."""

from __future__ import annotations

import math
from functools import cache

import pytest

from opbench.backend.environment import Environment
from opbench.graph.problems import ALLOWED_PRECISIONS
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.zoo import unet
from opbench.insight.defaults import RankingGpu, rank_cases, ranking_gpu
from opbench.networks.plan.choosing import convert_layouts, gather_timed_cases
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import PlanOptions, Results, choose
from support.checks.errors import refuses
from support.common import CATALOG, ROOT

RUNS = tuple(ROOT / "reports" / "h200" / run for run in ("hopper", "gradients", "layers"))


@cache
def model(name: str) -> RankingGpu:
    found = ranking_gpu(Environment(gpu=f"NVIDIA {name.upper()}", compute_capability="9.0", sm_count=132))
    assert found and found.capability == (9, 0) and found.sm_count == 132
    return found


@cache
def measured() -> Results:
    return gather_timed_cases(RUNS, CATALOG)


def times_as_long(operator: str, device: RankingGpu | None) -> list[float]:
    """Of each measured problem what the default takes, of the cases that were measured, over the fastest."""
    order = {v.name: number for number, v in enumerate(CATALOG.variants(operator))}
    product = any(variant.unit for variant in CATALOG.variants(operator))
    found = []
    for (name, problem), entries in measured().items():
        precision = "bf16" if "dtype=bf16" in problem else "tf32"
        times = {e.case: e.kernel_s for e in entries if e.precision in ALLOWED_PRECISIONS[precision] and not e.library}
        if name == operator and times:
            cases = sorted(
                map(CATALOG.case, times), key=lambda c: (order[c.variant.name], c.variant.configs.index(c.config))
            )
            found.append(times[rank_cases(cases, device, product=product)[0].name] / min(times.values()))
    return found


@pytest.mark.parametrize(
    ("operator", "mean", "most"),
    [
        ("conv2d", 1.05, 2.4),
        ("conv2d_dgrad", 1.1, 2.7),
        ("conv2d_wgrad", 1.1, 2.0),
        ("upsample_concat_conv2d", 1.05, 1.2),
        ("linear", 1.05, 1.05),
        ("matmul", 1.05, 1.05),
    ],
)
def test_products_are_ranked_well_by_runs_newer_than_the_model(operator: str, mean: float, most: float) -> None:
    """The figures of docs/networks.md, rounded up; the model was fitted to earlier runs, on other cards of this GPU."""
    found = times_as_long(operator, model("h200"))
    assert len(found) >= 12 and max(found) <= most
    assert math.exp(math.fsum(map(math.log, found)) / len(found)) <= mean, found
    assert math.prod(found) < math.prod(times_as_long(operator, None)), "worse than the ladder's order"


def test_what_memory_bounds_keeps_the_ladders_top() -> None:
    assert times_as_long("maxpool2d", model("h200")) == times_as_long("maxpool2d", None)


@pytest.mark.parametrize(
    ("precision", "units"), [("f32", {"tf32/2", "f16/3"}), ("tf32", {"tf32", "f16"}), ("bf16", {"bf16"})]
)
def test_a_step_of_training_multiplies_on_tensor_cores_as_the_precision_allows(precision: str, units: set[str]) -> None:
    recipe = Recipe(loss="binary_cross_entropy", layout="nhwc", dtype="bf16" if precision == "bf16" else "f32")
    graph = training_graph(unet(batch=4, size=64, levels=2), recipe, 8).graph
    cases = choose(graph, {}, PlanOptions(precision, device=model("h100"))).cases(graph)
    for node in ("down1b", "down1b.conv2d_dgrad", "down1b.conv2d_wgrad"):
        assert cases[node].unit in units, cases[node].name
    without = choose(graph, {}, PlanOptions(precision)).cases(graph)
    assert not without["down1b.conv2d_dgrad"].variant.compute_capability


def test_a_gpu_without_the_instructions_or_the_shared_memory_is_given_neither() -> None:
    environment = Environment(gpu="NVIDIA Someday", compute_capability="7.5", sm_count=40)
    old = ranking_gpu(environment)
    assert old and old.shared_per_block == 48 * 1024 and ranking_gpu(Environment(device="a CPU")) is None
    graph = training_graph(unet(batch=1, size=32, base=16, levels=1), Recipe(loss="l1", layout="nhwc"), 2).graph
    for case in choose(graph, {}, PlanOptions("tf32", device=old)).cases(graph).values():
        assert not case.variant.compute_capability
        assert all(step.shared_bytes <= old.shared_per_block for step in case.launches(old.sm_count))


@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0"])
def test_variants_for_one_gpu_alone_are_left_to_it(capability: str) -> None:
    device = ranking_gpu(Environment(gpu="NVIDIA Someday", compute_capability=capability, sm_count=132))
    recipe = Recipe(loss="binary_cross_entropy", layout="nhwc", dtype="bf16")
    graph = training_graph(unet(batch=16, size=64, levels=2), recipe, 8).graph
    needed = {
        case.variant.compute_capability
        for case in choose(graph, {}, PlanOptions("bf16", device=device)).cases(graph).values()
    }
    assert needed & {"8.0", "9.0a"} and ("9.0a" in needed) == (capability == "9.0")


def test_images_lie_as_tensor_cores_read_them_where_there_are_some() -> None:
    graph, options = unet(batch=1, size=32, levels=1), NetOptions("unet")
    for device, layout in ((model("h100"), "nhwc"), (None, "nchw")):
        laid, _ = convert_layouts(graph, options, {}, device)
        assert {node.problem.axes["layout"] for node in laid.nodes if node.operator == "conv2d"} <= {layout, None}
        assert laid.node("down0b").problem.axes["layout"] == layout
    with refuses("not-allowed", "--layout", value="hwc"):
        NetOptions("unet", layout="hwc")
