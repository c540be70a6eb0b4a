"""A saved network comes back bit by bit; a file that is damaged or edited wrongly is refused in words."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from opbench.errors import EnvironmentFault, UsageError
from opbench.graph.graph import Graph
from opbench.graph.layouts import with_layouts
from opbench.graph.passes import apply_passes, to_dtype
from opbench.graph.saving import load, save
from opbench.graph.zoo import lenet, unet
from support.builders.random_networks import inputs_of, networks
from support.checks.errors import Refusal, message_of, refuses, refuses_version, same_messages

Document = dict[str, Any]


def assert_equal(one: Graph, other: Graph) -> None:
    assert (one.name, one.values, one.inputs, one.outputs) == (other.name, other.values, other.inputs, other.outputs)
    assert one.nodes == other.nodes
    assert list(one.weights) == list(other.weights)
    known, again = one.reference(inputs_of(one)), other.reference(inputs_of(other))
    for name, array in known.items():
        np.testing.assert_array_equal(again[name], array)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("networks")


@settings(max_examples=40)
@given(graph=networks())
def test_any_network_comes_back_as_it_was(folder: Path, graph: Graph) -> None:
    save(graph, folder / "random.json")
    assert_equal(graph, load(folder / "random.json"))


def test_rewritten_networks_come_back_too(tmp_path: Path) -> None:
    graph = to_dtype(apply_passes(unet(size=16, base=2, levels=2))[0], "bf16")
    graph = with_layouts(graph, {node.name: "nhwc" for node in graph.nodes[1:]})
    save(graph, tmp_path / "unet.json")
    assert_equal(graph, load(tmp_path / "unet.json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unet.json", "unet.safetensors"]
    assert load_file(tmp_path / "unet.safetensors").keys() == graph.weights.keys()


def edited(path: Path, change: Callable[[Document], object]) -> Path:
    """The file after a change to what it holds."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


CHANGES: dict[str, tuple[Callable[[Document], object], Refusal]] = {
    "format": (
        lambda d: d.update(format="opbench network 99"),
        Refusal("other-version", "format"),
    ),
    "unknown key": (lambda d: d.update(outpts=[]), Refusal("unknown-name", "key", value="outpts")),
    "no nodes": (lambda d: d.pop("nodes"), Refusal("missing-key", "nodes")),
    "nodes no list": (lambda d: d.update(nodes=3), Refusal("not-allowed", "nodes", value=3, allowed="array")),
    "inputs no texts": (lambda d: d.update(inputs=[3]), Refusal("not-allowed", "inputs[0]", value=3, allowed="str")),
    "value no table": (
        lambda d: d["values"].update(image=3),
        Refusal("not-allowed", "values.image", value=3, allowed="object"),
    ),
    "shape": (
        lambda d: d["values"]["image"].update(shape=[1, -1]),
        Refusal("not-allowed", "values.image.shape[1]", value=-1, allowed="int >= 1"),
    ),
    "shape true": (
        lambda d: d["values"]["image"].update(shape=[True]),
        Refusal("not-allowed", "values.image.shape[0]", value=True),
    ),
    "dtype": (lambda d: d["values"]["image"].update(dtype="f31"), Refusal("unknown-name", "dtype", value="f31")),
    "layout": (lambda d: d["values"]["image"].update(layout="chwn"), Refusal("unknown-name", "layout", value="chwn")),
    "weight": (
        lambda d: d["values"]["image"].update(weight=1),
        Refusal("not-allowed", "values.image.weight", value=1, allowed="bool"),
    ),
    "operator": (
        lambda d: d["nodes"][0].update(operator="conv4d"),
        Refusal("unknown-name", "operator", value="conv4d"),
    ),
    "axis": (lambda d: d["nodes"][0]["axes"].update(q=3), Refusal("unknown-name", "axis", value="q")),
    "axis value": (lambda d: d["nodes"][0]["axes"].update(k="six"), Refusal("not-allowed", "k", value="six")),
    "fit": (lambda d: d["nodes"][0]["axes"].update(k=7), Refusal("other-shape", "conv1")),
    "tied to a number": (
        lambda d: d["nodes"][0]["inputs"].update(image=3),
        Refusal("not-allowed", "nodes[0].inputs.image", value=3),
    ),
    "cycle": (
        lambda d: d["nodes"][0]["inputs"].update(image="image2"),
        Refusal("unknown-name", "value", value="image2"),
    ),
    "weights elsewhere": (
        lambda d: d["weights"].update(file="../x"),
        Refusal("not-allowed", "weights.file", value="../x"),
    ),
    "no such weights": (lambda d: d["weights"].update(file="x"), Refusal("unreadable", "x", value=errno.ENOENT)),
    "weights no table": (lambda d: d.update(weights=[]), Refusal("not-allowed", "weights", value=[], allowed="object")),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_edit_that_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    save(lenet(), tmp_path / "lenet.json")
    change, refusal = CHANGES[case]
    with refuses(refusal):
        load(edited(tmp_path / "lenet.json", change))


def test_the_messages_about_saved_networks(tmp_path: Path) -> None:
    def message(change: Callable[[Document], object]) -> str:
        save(lenet(), tmp_path / "lenet.json")
        return message_of(lambda: load(edited(tmp_path / "lenet.json", change)))

    same_messages("saved_networks", {case: message(change) for case, (change, _) in CHANGES.items()}, tmp_path)


def places(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything in a document."""
    inside = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.just(1.5), st.just([]), st.just({}), st.text(max_size=3)
)


@settings(max_examples=150)
@given(data=st.data())
def test_no_edit_ends_in_anything_but_a_network_or_words(folder: Path, data: st.DataObject) -> None:
    path, whole = folder / "edited.json", folder / "whole.json"
    if not whole.exists():
        save(lenet(), whole)
    document = json.loads(whole.read_text())
    *way, last = data.draw(st.sampled_from([place for place in places(document) if place]))
    table = document
    for key in way:
        table = table[key]
    if data.draw(st.booleans()):
        table[last] = data.draw(ANYTHING)
    else:
        del table[last]
    path.write_text(json.dumps(document))
    try:
        assert load(path).nodes
    except UsageError as error:
        assert "edited." in str(error)


def test_files_that_are_damaged_are_refused(tmp_path: Path) -> None:
    path, weights = tmp_path / "lenet.json", tmp_path / "lenet.safetensors"
    save(lenet(), path)
    whole, text = weights.read_bytes(), path.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with refuses("other-weights", "lenet.safetensors"):
        load(path)
    edited(path, lambda d: d["weights"].pop("sha256"))
    changed = load(path).weights
    assert sum(int((changed[name] != array).sum()) for name, array in lenet().weights.items()) == 1
    for damaged in (whole[:1000], b"", b"\xff" * 100):
        weights.write_bytes(damaged)
        with refuses("not-safetensors", "lenet.safetensors"):
            load(path)
    for damaged in (text[: len(text) // 2], b"", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(damaged)
        with refuses("not-json", "lenet.json"):
            load(path)
    for other, seen in ((b"[]", "list"), (b"3", "int"), (b"{}", None)):
        path.write_bytes(other)
        with refuses_version("format", seen):
            load(path)
    with refuses("unreadable", "none.json", value=errno.ENOENT):
        load(tmp_path / "none.json")


def test_tensors_that_are_missing_or_do_not_fit_are_named(tmp_path: Path) -> None:
    path, weights = tmp_path / "lenet.json", tmp_path / "lenet.safetensors"
    graph = lenet()
    save(graph, path)
    edited(path, lambda d: d["weights"].pop("sha256"))
    arrays = dict(graph.weights)
    for changed, refusal in (
        (
            {name: array for name, array in arrays.items() if name != "fc3.bias"},
            Refusal("missing-weight", "fc3.bias", value=1),
        ),
        (
            {**arrays, "fc3.bias": np.zeros(7, np.float32)},
            Refusal("other-shape", "fc3.bias", value=(7,), allowed=(120,)),
        ),
        ({**arrays, "fc3.bias": np.zeros(120)}, Refusal("other-dtype", "fc3.bias", value="float64", allowed="float32")),
        ({**arrays, "fc9.bias": np.zeros(7, np.float32)}, Refusal("extra-weight", "fc9.bias")),
    ):
        save_file(changed, weights)
        with refuses(refusal):
            load(path)


def test_writing_leaves_no_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(lenet(), tmp_path / "lenet.json")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with refuses("unwritable", "lenet.safetensors", value=errno.ENOSPC, error=EnvironmentFault):
        save(lenet(2), tmp_path / "lenet.json")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with refuses("not-a-json-name", "net.toml", allowed="net.json"):
        save(lenet(), tmp_path / "net.toml")
    with refuses("unwritable", "net.safetensors", value=errno.ENOENT, error=EnvironmentFault):
        save(lenet(), tmp_path / "nowhere" / "net.json")
