"""A shipped network is one program: by g++ and on the cpu backend it gives what the float64 reference says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from opbench.cli.ship import ship_command
from opbench.graph.build import Builder
from opbench.graph.layouts import with_layouts
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.plan import default_cases
from opbench.networks.ship import network
from opbench.networks.ship.network import make_program, program_text
from opbench.networks.ship.shipping_network import ship_network
from opbench.records import read_json
from opbench.shipping.choosing import find_target
from opbench.shipping.compiling import CompiledText
from support.builders.shipped import built
from support.checks.errors import refuses
from support.common import CATALOG, ROOT

PLAN = ROOT / "reports" / "h200" / "networks" / "lenet-1-f32" / "plan.json"


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet with its trained weights, by the committed plan."""
    out = tmp_path_factory.mktemp("ship") / "lenet"
    options = NetOptions(network="lenet", weights="digits", plan=PLAN, backend="cpu", out=out)
    ship_network(options, gpu="h200", test=True, replace=False)
    return out


def test_a_shipped_network_gives_what_the_reference_says_for_other_inputs_too(lenet: Path, tmp_path: Path) -> None:
    program, environment = built(lenet, "lenet.cu")

    def run(*example: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *example], cwd=lenet, env=environment, capture_output=True, text=True, check=False
        )

    answer = run()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "  right fc5: 10 of 10 elements compared" in answer.stdout
    example = load_file(lenet / "lenet_example.safetensors")
    first = load_file(lenet / "lenet_output.safetensors")["fc5"]
    np.testing.assert_allclose(first, example["fc5.reference"], rtol=1e-4)
    # Another input has another result, which is not the first one's; without a reference there is nothing to compare.
    other = tmp_path / "other.safetensors"
    save_file({"image": 2 * example["image"], "fc5.reference": example["fc5.reference"]}, other)
    answer = run(other)
    assert answer.returncode == 1 and "WRONG fc5: all in all off by" in answer.stdout
    save_file({"image": 2 * example["image"]}, other)
    assert run(other).returncode == 0
    assert not np.allclose(load_file(lenet / "lenet_output.safetensors")["fc5"], first)
    # What does not fit is refused in words.
    save_file({"image": example["image"][..., :20].copy()}, other)
    answer = run(other)
    assert answer.returncode == 2 and "'image' has 2240 bytes; 3136 are needed" in answer.stderr


def test_the_program_calls_the_planned_variants_in_order_in_planned_memory(lenet: Path) -> None:
    source = (lenet / "lenet.cu").read_text()
    plan = read_json(PLAN, "")["choices"]
    main = source.partition("int main(")[2]
    assert re.findall(r"TRY\(layer::(\w+)\(", main) == list(plan)
    for choice in plan.values():
        assert choice["case"] in source
    arena = int(re.findall(r"const Memory arena\((\d+)\)", main)[0])
    places = [int(place) for place in re.findall(r"at\(arena\.address, (\d+)\)", main)]
    assert len(places) > len(set(places)) and max(places) < arena


def test_a_preparation_runs_once_with_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "compile_text", lambda text, found, arch: CompiledText(arch))

    build = Builder("small", seed=1)
    graph = build.graph(build.conv2d(build.input("image", 1, 8, 12, 12), 16, 3, padding=1))
    graph = with_layouts(graph, {node.name: "nhwc" for node in graph.nodes if node.operator == "conv2d"})
    catalog = CATALOG
    cases = {node.name: default_cases(catalog, node, "f32")[0] for node in graph.nodes}
    conv = next(node for node in graph.nodes if node.operator == "conv2d")
    cases[conv.name] = catalog.case(f"conv2d/nhwc_winograd_3xtf32{conv.problem}")
    text = program_text(make_program(graph, cases, find_target("h200"), 1e-5, "a test"))
    before, _, main = text.partition("int main(")
    once, _, run = main.partition("auto run =")
    assert once.count(f"layer::prepare_{conv.name}(") == 1 and f"prepare_{conv.name}" not in run
    assert f"const Memory {conv.name}_filters(" in once and f"{conv.name}_filters, at(arena.address, " in run
    assert f"static cudaError_t prepare_{conv.name}(const void* weight, void* filters, cudaStream_t stream)" in before


def test_what_is_no_network_and_a_plan_for_something_else_are_refused(tmp_path: Path) -> None:
    command = ["relu/vec4(n=5)", "--plan", "plan.json", "--out", str(tmp_path / "lib")]
    with refuses("not-a-network", "--plan", value=("relu/vec4(n=5)",)):
        ship_command.main(command, standalone_mode=False)
    with refuses("other-precision", value="f32", allowed="tf32"):
        options = NetOptions(network="lenet", precision="tf32", plan=PLAN, backend="cpu", out=tmp_path / "lenet")
        ship_network(options, gpu="h200", test=False, replace=False)
    with refuses("other-gpu", allowed="L4"):
        options = NetOptions(network="lenet", plan=PLAN, backend="cpu", out=tmp_path / "lenet")
        ship_network(options, gpu="l4", test=False, replace=False)
    assert not list(tmp_path.iterdir())
