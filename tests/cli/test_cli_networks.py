"""`opbench net`: what its commands hand on, print and refuse; running itself is tested with the networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from opbench.cli import cli
from opbench.errors import EnvironmentFault, UsageError
from opbench.gpu import driver as cuda
from opbench.graph.zoo import NETWORKS
from opbench.kernels.case_names import CASE_NAME
from opbench.networks.plan import running
from opbench.networks.plan.choosing import apply_enabled_passes, collect_results, plan_network
from opbench.networks.plan.options import NetOptions
from opbench.networks.plan.pictures import pictures
from opbench.networks.plan.plan import default_cases
from opbench.networks.records.network import Record
from support.builders import network_runs as fabricate_network
from support.builders.runs import result, written
from support.builders.runs import run as fabricated
from support.checks.errors import Refusal, refuses
from support.common import CATALOG


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, ["net", *words])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[NetOptions]:
    """The options of every run; each run gives a fabricated record."""
    options: list[NetOptions] = []

    def run_network(given: NetOptions, tell: Any) -> Record:
        options.append(given)
        return fabricate_network.typed(fabricate_network.record(NETWORKS[given.network](**given.sizes)))

    monkeypatch.setattr(running, "run_network", run_network)
    return options


def test_list_names_every_network_with_its_sizes() -> None:
    text = invoke("list").stdout
    assert all(name in text for name in NETWORKS) and "--base 64" in text
    rows = json.loads(invoke("list", "--json").stdout)
    assert {row["name"]: row["sizes"] for row in rows}["alexnet"] == {"batch": 1}


def test_show_has_a_line_a_node_after_the_passes() -> None:
    text = invoke("show", "lenet", "--batch", "3").stdout
    assert "relu1: fused into conv1" in text and "3×6×28×28 nchw" in text and "61,706 weights" in text
    kept = json.loads(invoke("show", "lenet", "--disable", "fuse_relu", "--json").stdout)
    assert [node["name"] for node in kept["nodes"]][:2] == ["conv1", "relu1"]


def test_run_hands_on_its_options_and_writes_the_page(seen: list[NetOptions], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = "--batch 2 --precision tf32 --layout nhwc --disable fuse_relu --no-graph --compare torch --libraries"
    done = invoke("run", "alexnet", "--backend", "cuda", *words.split(), "--results", str(tmp_path), "--out", str(out))
    assert done.exit_code == 0, done.output
    (options,) = seen
    assert options.network == "alexnet" and options.sizes == {"batch": 2} and options.out == out
    assert (options.precision, options.layout, options.without) == ("tf32", "nhwc", ("fuse_relu",))
    assert not options.graph and options.compare == ("torch",) and options.libraries and options.check
    assert options.results == (tmp_path,) and options.inputs is None
    assert "fc6" in done.stdout and (out / "network.html").exists()


def test_a_wrong_node_ends_in_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = fabricate_network.record(NETWORKS["lenet"]())
    record["nodes"][0]["check"]["right"] = False
    monkeypatch.setattr(running, "run_network", lambda options, tell: fabricate_network.typed(record))
    done = invoke("run", "lenet", "--out", str(tmp_path), "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)["nodes"][0]["check"]["right"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "lenett"], "unknown network 'lenett'; did you mean 'lenet'?"),
        (["run", "a/model.onnx"], "import it once, then name a/model.json: python -c "),
        (["show", "model.pt"], "from_torch, then saving.save to model.json"),
        (["run", "alexnet", "--levels", "3"], "--levels: alexnet has no such size; use one of --batch 1"),
        (["show", "unet", "--size", "30"], "size=30 cannot be halved 4 times; choose a multiple of 16"),
        (["run", "mine.json", "--batch", "2"], "--batch: the sizes of a saved network are fixed"),
        (["show", "lenet", "--disable", "fuse"], "unknown pass 'fuse'"),
        (
            ["run", "lenet", "--compare", "torch", "--backend", "cpu"],
            "the cpu backend measures no times; remove --compare",
        ),
        (["run", "lenet", "--image", "no.png"], "no.png: cannot be read"),
    ],
)
def test_mistakes_are_told_in_words(words: list[str], message: str) -> None:
    error = invoke(*words).exception
    assert isinstance(error, UsageError) and message in str(error)


def test_without_a_gpu_nothing_is_left_of_a_run_that_was_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda, "why_missing", lambda: "no CUDA device")
    for backend in ("auto", "cuda"):
        error = invoke("run", "lenet", "--tune", "--backend", backend).exception
        assert "--tune measures: no CUDA device; to run without a GPU: opbench net run lenet" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_fills_the_input(seen: list[NetOptions], tmp_path: Path) -> None:
    from PIL import Image

    file, out = tmp_path / "half.png", tmp_path / "run"
    Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 40, axis=0).repeat(30, axis=1)).save(file)
    assert invoke("run", "lenet", "--batch", "2", "--image", str(file), "--out", str(out)).exit_code == 0
    assert seen[0].inputs is not None
    image = seen[0].inputs["image"]
    assert image.shape == (2, 1, 28, 28) and image.dtype == np.float32
    assert np.all(image[..., :10] == 0) and np.all(image[..., -10:] == 1) and np.array_equal(image[0], image[1])


def test_an_array_is_taken_as_it_is_and_checked(tmp_path: Path) -> None:
    array = np.arange(2 * 5 * 3 * 3, dtype=np.float32).reshape(2, 5, 3, 3)
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(pictures(str(tmp_path / "a.npy"), (2, 5, 3, 3)), array)
    with refuses("other-shape", "a.npy", value=(2, 5, 3, 3), allowed=(1, 5, 3, 3)):
        pictures(str(tmp_path / "a.npy"), (1, 5, 3, 3))
    with refuses("not-allowed", "--image", value=5):
        pictures("picture.png", (1, 5, 3, 3))


@pytest.mark.parametrize(("source", "module"), [("digits", "sklearn"), ("photo", "skimage")])
def test_digits_and_photographs_differ_from_image_to_image(source: str, module: str) -> None:
    pytest.importorskip(module, reason="ships the pictures; opbench[nets] brings it")
    found = pictures(source, (3, 1, 28, 28))
    assert found.shape == (3, 1, 28, 28) and found.dtype == np.float32 and 0 <= found.min() < found.max() <= 1
    assert not np.array_equal(found[0], found[1])


def test_trained_weights_recognise_the_digits(tmp_path: Path) -> None:
    """All but one of the first eight: PyTorch, too, takes the second for a 9 (nets/lenet_digits.json)."""
    pytest.importorskip("sklearn", reason="ships the digits; opbench[nets] brings it")
    words = ("--batch", "8", "--weights", "digits", "--image", "digits", "--backend", "cpu", "--out", str(tmp_path))
    done = invoke("run", "lenet", *words)
    assert done.stderr.startswith("0/7 build the nodes' variants\n1/7 check pool1\n")
    assert done.stdout.endswith("7 of 8 pictures are recognised: a 5 is recognised as a 9.\n")


def test_digits_are_enlarged_for_a_larger_input_and_refused_for_colour() -> None:
    pytest.importorskip("sklearn", reason="ships the digits; opbench[nets] brings it")
    small, large = (pictures("digits", (3, 1, size, size)) for size in (28, 224))
    assert large.shape == (3, 1, 224, 224) and (large[:, :, ::8, ::8] == small).all()
    with refuses("not-allowed", "--image", value=(3, 28, 28)):
        pictures("digits", (1, 3, 28, 28))


@pytest.mark.parametrize(("network", "data"), [("alexnet", "digits"), ("unet", "textures")])
def test_weights_of_digits_for_another_network_name_its_training(network: str, data: str) -> None:
    done = invoke("run", network, "--weights", "digits", "--backend", "cpu", "--out", "unused")
    assert isinstance(done.exception, UsageError)
    assert f"opbench net train {network} --data {data}" in str(done.exception)


def test_further_variants_reach_the_run_and_show(seen: list[NetOptions], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    further = ("--variants", str(tmp_path / "mine"))
    assert invoke("run", "lenet", "--out", str(tmp_path / "run"), *further).exit_code == 0
    assert seen[0].variants == (tmp_path / "mine",)
    assert invoke("show", "lenet", *further).exit_code == 0


@pytest.mark.parametrize("words", [("--tune",), ("--compare", "torch")], ids=" ".join)
def test_measuring_without_a_gpu_is_told_at_once_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(cuda, "why_missing", lambda: "no CUDA device (in a test)")
    error = invoke("run", "lenet", *words, "--out", str(tmp_path / "out")).exception
    assert isinstance(error, EnvironmentFault) and error.exit_code == 3
    assert "no CUDA device (in a test); to run without a GPU: opbench net run lenet --backend cpu" in str(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"plan": Path("plan.json"), "memory_bytes": 9}, Refusal("exclusive", ("--memory", "--plan"))),
        ({"plan": Path("plan.json"), "tune": True}, Refusal("exclusive", ("--tune", "--plan"))),
        ({"leave_out": ("conv2d/naive*",)}, Refusal("needs-option", "--exclude", allowed="--tune")),
        ({"layout": "nwhc"}, Refusal("not-allowed", "--layout", value="nwhc")),
        ({"precision": "f64"}, Refusal("unknown-name", "precision", value="f64")),
    ],
)
def test_options_that_do_not_fit_together_are_refused_in_python_too(given: dict[str, Any], refusal: Refusal) -> None:
    with refuses(refusal):
        NetOptions("lenet", **given)


def timed_run(folder: Path, *cases: str) -> Path:
    """A run that has times of these cases."""
    results = []
    for name in cases:
        match = CASE_NAME.match(name)
        assert match
        results.append(result(match["variant"], 1e-5, operator=match["operator"], problem=match["problem"], case=name))
    return written(folder, fabricated(results))


def test_results_that_fit_no_node_say_what_would(tmp_path: Path) -> None:
    folder = timed_run(tmp_path / "base", "conv2d/naive_grid3d(n=1,c=1,h=9,w=9,k=6,r=5,s=5)")
    words = ("run", "lenet", "--backend", "cpu", "--results", str(folder), "--out", str(tmp_path / "out"))
    told = str(invoke(*words).exception)
    assert "these results contain no correct and timed case for a node of lenet" in told
    assert "conv1 is conv2d (n=1," in told
    assert "opbench run lenet --out DIR" in told and "opbench net run lenet --tune. Or remove --results" in told
    assert not (tmp_path / "out").exists()


def test_results_of_some_nodes_leave_the_others_to_their_top_variant(tmp_path: Path) -> None:
    options = NetOptions("lenet", {"batch": 1})
    graph, _ = apply_enabled_passes(running.make_graph(options), options)
    node = graph.nodes[0]
    folder = timed_run(tmp_path / "base", default_cases(CATALOG, node, "f32")[0].name)
    options = NetOptions("lenet", {"batch": 1}, results=(folder,))
    results = collect_results(graph, options, "cpu", lambda progress: None, CATALOG)
    _, plan, said = plan_network(graph, options, results, "", 132, CATALOG)
    assert {name: choice.source == "default" for name, choice in plan.choices.items()} == {
        n.name: n is not node for n in graph.nodes
    }
    assert "no result covers pool1" in said[0].notes[1] and node.name not in said[0].notes[1].split(": ")[0].split()
