"""The page of a training, from a record that was made up."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opbench.networks.records.training import (
    GROUPS,
    FirstStepRecord,
    TrainingRecord,
    read_training,
    store_training_record,
)
from opbench.networks.report.training import headline, write_training
from opbench.networks.report.training_comparison import first_step_text
from opbench.records import from_json, to_json
from support.builders.runs import measurement
from support.checks.errors import refuses, refuses_version


def typed(values: dict[str, Any]) -> TrainingRecord:
    return from_json(TrainingRecord, json.loads(json.dumps(values)))


def times_of(median_s: float, low_s: float, high_s: float) -> dict[str, Any]:
    return {**to_json(measurement(median_s)), "low_s": low_s, "high_s": high_s}


def record(timed: bool) -> dict[str, Any]:
    losses = [2.3 / (1 + step / 10) for step in range(400)]
    nodes = [
        {
            "name": f"node_of_{group}",
            "operator": "conv2d",
            "group": group,
            "case": "conv2d/naive_grid3d[BLOCK=256](n=1,c=1,h=5,w=5,k=1,r=3,s=3)",
            "inputs": {},
            "outputs": {},
            "flops": 10**9 * number,
            "compulsory_bytes": 10**6,
            "source": "default" if number % 2 else "run r",
        }
        for number, group in enumerate(GROUPS)
    ]
    took = times_of(4e-4, 3.9e-4, 4.2e-4)
    times = {"cold": took, "hot": {**took, "median_s": 3.1e-4}, "nodes_s": {str(n["name"]): 1e-4 for n in nodes}}
    return {
        "format": 1,
        "opbench": "0.1.0",
        "started": "2026-11-22T10:00:00+00:00",
        "command": ["net", "train", "lenet", "--data", "digits"],
        "network": "lenet",
        "recipe": {"loss": "cross_entropy"},
        "data": {"name": "<digits>", "sha256": "0", "items": 1437},
        "batch": 32,
        "steps_per_epoch": 44,
        "precision": "f32",
        "backend": "cuda" if timed else "cpu",
        "environment": {"gpu": "NVIDIA H200"} if timed else {"device": "a CPU"},
        "losses": losses,
        "scores": [[200, 0.9], [400, 0.985]],
        "score_name": "accuracy",
        "images_per_s": 12345.6,
        "times": times if timed else {},
        "parameters": 61706,
        "memory": {"activations_bytes": 10**6, "state_bytes": 3 * 10**6, "data_bytes": 10**6},
        "passes": [
            {
                "name": "fuse_relu",
                "on": True,
                "notes": ["relu1: fused into conv1"],
                "saved": {"nodes": 1, "compulsory_bytes": 2_500_000, "flops": 0},
            }
        ],
        "nodes": nodes,
        "notes": ["the checkpoint is of another device"],
    }


@pytest.mark.parametrize("timed", [False, True])
def test_the_page_shows_what_the_record_has(tmp_path: Path, timed: bool) -> None:
    written = record(timed)
    page, picture, *others = write_training(typed(written), tmp_path)
    assert [path.name for path in others] == ["step.png"] * timed
    text = page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    for words in (
        "Test accuracy 98.50 %",
        "12,346 images/s",
        "&lt;digits&gt;",
        "relu1: fused into conv1",
        "another device",
        "saves 1 node, 2.50 MB of compulsory traffic a step",
    ):
        assert words in text, words
    assert all(f"node_of_{group}" in text for group in GROUPS)
    assert ("310 µs back to back" in text) == timed and (text.count("<td>100 µs</td>") == len(GROUPS)) == timed
    assert (
        f"{len(GROUPS) // 2} of {len(GROUPS)} variants were chosen without measurements: <code>--tune</code>" in text
    ) == timed
    assert "10^" not in text, "a logarithmic axis has plain numbers"
    assert "<script src" not in text and not re.search(r"https?://(?!www\.w3\.org)", text)


def test_a_training_on_text_counts_sequences(tmp_path: Path) -> None:
    made = record(timed=True)
    made["data"] = {**made["data"], "unit": "sequences"}
    page, *_ = write_training(typed(made), tmp_path)
    assert "12,346 sequences/s" in page.read_text()


def test_the_exchange_between_gpus_stands_on_the_page(tmp_path: Path) -> None:
    made = record(timed=True)
    made["recipe"] = {**made["recipe"], "ranks": "2", "accumulate": "1"}
    made["times"] = {"nodes_s": made["times"]["nodes_s"]}
    parts = [
        {"after": f"node_of_{g}", "nbytes": 8 << 20, "alone_s": s} for g, s in (("loss", 5e-4), ("backward", 1e-4))
    ]
    made["exchange"] = {"step_s": 1.1e-3, "ranks_without_s": [9e-4, 1e-3], "alone_s": 6e-4, "parts": parts}
    said = " ".join(headline(typed(made)))
    assert "12,346 images/s over 2 GPUs" in said and "400 steps of 2 x 32" in said
    assert "600 µs in 2 parts: 83 % of it is hidden" in said
    write_training(typed(made), tmp_path)
    page = (tmp_path / "train.html").read_text()
    assert "behind node_of_loss: 500 µs alone" in page and "<td>700 µs</td>" in page
    assert "its gradients are ready" in page


def test_the_memory_map_tells_what_backward_waits_for(tmp_path: Path) -> None:
    written = record(False)
    forward, backward = ("node_of_forward", "node_of_backward")
    ties = {forward: ({}, {"out": "image", "idle": "idle"}), backward: ({"x": "view"}, {"dx": "d.image"})}
    for node in written["nodes"]:
        inputs, outputs = ties.get(node["name"], ({}, {}))
        node["inputs"], node["outputs"] = dict(inputs), dict(outputs)
    written["values"] = {
        "image": {"bytes": 3000, "of": ""}, "view": {"bytes": 3000, "of": "image"}, "idle": {"bytes": 500, "of": ""},
        "d.image": {"bytes": 1000, "of": ""},
    }  # fmt: skip
    written["memory"]["offsets"] = {"image": 0, "idle": 3000, "d.image": 3000}
    written["memory"]["workspaces"] = {backward: {"offset": 4000, "bytes": 96}}
    page, *pictures = write_training(typed(written), tmp_path)
    assert [path.name for path in pictures] == ["loss.png", "training-memory.png"]
    text = page.read_text()
    assert "across the middle: 3.00 kB" in text, "the image, of which backward reads a view"
    assert f"image: 3.00 kB at 0 B, from {forward} to {backward}" in text
    assert f"idle: 500 B at 3.00 kB, from {forward} to {forward}" in text
    assert f"workspace of {backward}: 96.0 B at 4.00 kB" in text or f"workspace of {backward}: 96 B at 4.00 kB" in text


def test_peers_stand_beside_our_step_fastest_first_and_say_why_they_failed(tmp_path: Path) -> None:
    written = record(True)
    took = times_of(6.2e-4, 6.1e-4, 6.3e-4)
    ways = {
        "PyTorch eager": {"cold": took, "hot": {**took, "median_s": 1.2e-3, "high_s": 1.3e-3}, "peak_bytes": 6 * 10**6},
        "torch.compile": {"error": "not compiled within 60 s"},
        "channels_last, CUDA graph": {"cold": took, "hot": took, "peak_bytes": 10**7},
    }
    first = {
        "right": True, "text": "as the first version recorded it",
        "loss": 2.25, "peer_loss": 2.250001, "compared": 10, "worst_gradient": "conv1.weight",
        "errors": {"loss": 1e-7, "gradients": 2e-6, "parameters": 3e-8},
        "allowed": {"loss": 1e-5, "gradients": 1e-3, "parameters": 1e-4},
    }  # fmt: skip
    written["comparison"] = {"first_step": first, "ways": ways, "versions": {"PyTorch": "2.13"}}
    text = write_training(typed(written), tmp_path)[0].read_text()
    places = [
        text.index(f"{name}</th>")
        for name in ("opbench", "PyTorch eager, channels_last, CUDA graph", "PyTorch eager", "torch.compile")
    ]
    assert places == sorted(places)
    for words in ("not compiled within 60 s", "2.00×", "51,613", "10.0 MB", "over 10 weights", "PyTorch 2.13"):
        assert words in text, words
    said = headline(typed(written))
    assert said[-2] == (
        "The first step agrees with PyTorch's in float64: relative differences (and allowed ones) are loss 1e-07 "
        "(≤ 1e-05), gradient of conv1.weight 2e-06 (≤ 0.001) and parameter change 3e-08 (≤ 0.0001), over 10 weights."
    )
    assert said[0].startswith("A step takes") and "620 µs" in said[0]
    assert "speedup over the fastest PyTorch (PyTorch eager, channels_last, CUDA graph): 2.00×" in said[0]
    assert said[1].startswith("Test accuracy") and html.escape(said[1], quote=False) in text
    assert said[-1] == "A step needs 3.00 MB of memory, 50 % of PyTorch's smallest mode (6.00 MB)."
    written["comparison"]["first_step"] = {"right": False, "text": "PyTorch's step was not computed: OSError: no"}
    written["comparison"]["ways"] = {}
    text = write_training(typed(written), tmp_path)[0].read_text()
    assert '<p class="notice">PyTorch&#39;s step was not computed: OSError: no.</p>' in text
    assert "back to back" not in headline(typed(written))[-1]


def test_what_was_kept_is_read_again_and_nothing_else(tmp_path: Path) -> None:
    store_training_record(typed(record(True)), tmp_path)
    assert read_training(tmp_path) == typed(record(True)) == read_training(tmp_path / "train.json")
    assert headline(typed(record(False)))[0].startswith("Test accuracy 98.50 % after 400 steps of 32")
    (tmp_path / "train.json").write_text('{"format": 2}')
    with refuses_version("format", 2, 1):
        read_training(tmp_path)
    (tmp_path / "train.json").write_text("{")
    with refuses("not-json", "train.json"):
        read_training(tmp_path)


def test_a_record_with_the_keys_of_older_versions_is_read(tmp_path: Path) -> None:
    written = record(True)
    first = {"right": False, "text": "PyTorch's step was not computed", "compared": 0}
    written["comparison"] = {"first_step": first, "ways": {}, "versions": {}}
    store_training_record(typed(written), tmp_path)
    content = json.loads((tmp_path / "train.json").read_text())
    content["told"] = content.pop("notes")
    content["passes"][0]["said"] = content["passes"][0].pop("notes")
    content["comparison"]["first_step"]["said"] = content["comparison"]["first_step"].pop("text")
    (tmp_path / "train.json").write_text(json.dumps(content))
    assert read_training(tmp_path) == typed(written)


def test_a_comparison_that_rounding_decides_is_called_weak() -> None:
    errors = {"loss": 1e-3, "gradients": 1.0, "parameters": 0.5}
    step = FirstStepRecord(right=True, text="", errors=errors, allowed={**errors, "gradients": 2.8}, compared=161)
    assert "proves little" in first_step_text(step)
    assert "proves little" not in first_step_text(replace(step, allowed={**errors, "gradients": 1.0}))
