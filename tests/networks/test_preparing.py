"""What is made of weights alone is made once: the same bits, new weights seen, and no header merely believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from opbench.checking.backends import open_backend
from opbench.gpu.limits.ceilings import committed_ceilings
from opbench.graph.graph import Graph
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import apply_passes
from opbench.graph.recipe import Recipe
from opbench.graph.training import training_graph
from opbench.graph.zoo import unet
from opbench.insight.defaults import RankingGpu, expected_s
from opbench.kernels.case import Case
from opbench.kernels.setup import Setup
from opbench.networks.plan.executor import Context, Network
from opbench.networks.plan.plan import PlanOptions, choose
from opbench.networks.plan.setup_launches import constants, weight_setup
from support.builders.small_networks import pictures
from support.checks.errors import Refusal, refuses
from support.common import CATALOG, CHEATS

JOINED = "up0a"
VARIANT = "upsample_concat_conv2d/nhwc_four_filters_tf32_corrected[BM=64,BN=64,STAGES=4]"


def nhwc() -> Graph:
    """A UNet of one level, in one layout."""
    graph, _ = apply_passes(unet(batch=1, size=8, base=8, levels=1))
    return with_layouts(graph, {n.name: "nhwc" for n in graph.nodes if "layout" in n.problem.modes()})


def chosen(graph: Graph) -> dict[str, Case]:
    """By the ladder, but for the joined layer, which gets the variant that sums filters."""
    problem = graph.node(JOINED).problem
    return {**choose(graph, {}, PlanOptions("f32")).cases(graph), JOINED: CATALOG.case(f"{VARIANT}{problem}")}


def answer(network: Network) -> np.ndarray:
    context = Context(network)
    (out,) = context.run(pictures(network.graph)).values()
    context.close()
    return out


def test_what_reads_only_weights_runs_once_and_gives_the_same_bits() -> None:
    graph = nhwc()
    cases, node = chosen(graph), graph.node(JOINED)
    each = Network(graph, cases, open_backend("cpu"), prepare=False)
    once = Network(graph, cases, open_backend("cpu"))
    assert not each.node_setup(node).launches and each.memory().workspaces.keys() == {JOINED}
    assert once.node_setup(node) == Setup(("weight",), ("filters",), ("filters",), 1)
    assert {n.name for n in graph.nodes if once.node_setup(n).launches} == {JOINED}
    assert JOINED not in once.memory().workspaces, "its filters lie beside the weights, not among what is overwritten"
    assert [t.nbytes for t in once.prepared_tensors(node)] == [4 * 8 * (9 * 8 + 4 * 16) * 4]
    wanted = answer(each)
    np.testing.assert_array_equal(answer(once), wanted)

    weight = node.inputs["weight"]
    other = np.ascontiguousarray(graph.weights[weight][::-1])
    once.weights[weight].write(other)
    np.testing.assert_array_equal(answer(once), wanted, "the sums were made before, and are still there")
    once.write_weights({weight: other})
    each.write_weights({weight: other})
    changed = answer(once)
    np.testing.assert_array_equal(changed, answer(each))
    assert np.abs(changed - wanted).max() > 0
    once.close()
    each.close()
    assert not once.weights


def test_what_is_made_of_anything_but_constants_is_made_each_time() -> None:
    """An image, and in a step of training the weights."""
    (variant,) = (v for v in CATALOG.variants("conv2d") if v.name == "nhwc_wgmma_patch_floats")
    network = unet(batch=1, size=8, base=8, levels=1)
    for graph, launches in (
        (nhwc(), 1),
        (training_graph(network, Recipe(loss="l1", layout="nhwc"), 2).graph, 0),
    ):
        node = graph.node("down0b")
        assert weight_setup(graph, node, Case(variant, {}, node.problem)).launches == launches
    known = constants(nhwc(), nhwc().node(JOINED))
    assert set(known) == {"weight", "bias"}
    assert Setup(("weight",), launches=1).depends_only_on(known)
    assert not Setup(("weight", "low"), launches=1).depends_only_on(known) and not Setup().depends_only_on(known)


def test_what_only_the_preparing_launches_need_is_not_kept() -> None:
    """Sums of filters in float32 that are then split into planes."""
    node = nhwc().node(JOINED)
    (variant,) = (v for v in CATALOG.variants(node.operator) if v.name == "nhwc_wgmma_four_filters_planes")
    made = Case(variant, variant.configs[0], node.problem).setup
    assert made.launches == 2 and set(made.workspaces) == {"filters", "filter_planes", "filter_exponents"}
    assert set(made.persistent) == {"filter_planes", "filter_exponents"}


def test_what_runs_once_costs_a_choice_nothing() -> None:
    graph = nhwc()
    case, gpu = chosen(graph)[JOINED], RankingGpu(committed_ceilings("h200"), 132, (9, 0), 227 << 10)
    every, once = expected_s(case, gpu), expected_s(case, gpu, ("weight", "bias"))
    assert once < every == expected_s(case, gpu, ("bias",))


LINEAR = (CHEATS / "fills_once_what_it_writes_again.cu").read_text()


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        (
            {'"bias", "shift", "n"]': '"bias", "shift", "out", "n"]'},
            Refusal("setup-names-output", "copy_bias", value="out"),
        ),
        (
            {'args   = ["bias", "shift", "n"]\n// setup': "setup"},
            Refusal("not-allowed", "launch.0.setup"),
        ),
        (
            {'["bias", "shift", "n"]': '["bias", "weight", "n"]'},
            Refusal("setup-without-workspace", "copy_bias", value=["bias", "weight"]),
        ),
        (
            {'"k"]\n': '"k"]\n// setup = true\n', "// setup  = true\n": ""},
            Refusal("setup-names-output", "multiply", value="out"),
        ),
        (
            {
                '"k"]\n': '"k"]\n//\n// [[launch]]\n// kernel = "copy_bias"\n// grid = [1]\n// block = [64]\n'
                '// args = ["bias", "shift", "n"]\n// setup = true\n',
                "// setup  = true\n": "",
            },
            Refusal("setup-too-late", "copy_bias", value="shift"),
        ),
        (
            {'// [[launch]]\n// kernel = "copy': '// [constants]\n// c = 1\n//\n// [[launch]]\n// kernel = "copy'},
            Refusal("setup-with-constants", "copy_bias", value=["c"]),
        ),
    ],
)
def test_a_launch_that_cannot_run_once_is_refused(tmp_path: Path, changes: Mapping[str, str], refusal: Refusal) -> None:
    text = LINEAR
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    path = tmp_path / "mine.cu"
    path.write_text(text)
    with refuses(refusal):
        Case(CATALOG.variant_file(path), {}, CATALOG.operator("linear").from_axes({"m": 2, "n": 3, "k": 4})).launches(1)


@pytest.mark.parametrize("key", ["setup ", "once  "])
def test_a_setup_launch_is_read_by_its_present_and_its_earlier_key(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(LINEAR.replace("// setup  = true", f"// {key} = true"))
    case = Case(CATALOG.variant_file(path), {}, CATALOG.operator("linear").from_axes({"m": 2, "n": 3, "k": 4}))
    assert case.setup == Setup(("bias",), ("shift",), ("shift",), 1)
