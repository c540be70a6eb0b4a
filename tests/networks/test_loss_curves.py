"""The losses of many steps are those of PyTorch, from the same weights and in the same order of data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import loss_curves
from support.common import ROOT

CURVES = sorted((ROOT / "reports/h100/loss-curves").glob("*.json"))


def test_both_curves_of_a_small_gpt2_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the curve to compare with is PyTorch's")
    text = tmp_path / "text.txt"
    text.write_bytes(b"".join(b"line %d of the text\n" % number for number in range(60)))
    sizes = "--batch 2 --tokens 8 --layers 1 --heads 1 --width 8 --vocabulary 256"
    command = f"{tmp_path / 'curves.json'} --backend cpu --steps 3 --precision f32 --lr 1e-2 --data {text} {sizes}"
    loss_curves.main(command.split())
    losses = json.loads((tmp_path / "curves.json").read_text())["losses"]
    assert len(losses["opbench"]) == 3 and losses["opbench"][2] < losses["opbench"][0]
    np.testing.assert_allclose(losses["opbench"], losses["PyTorch"], rtol=1e-5)


@pytest.mark.parametrize("path", CURVES, ids=lambda path: path.stem)
def test_the_losses_of_300_steps_on_a_gpu_are_those_of_pytorch(path: Path) -> None:
    record = json.loads(path.read_text())
    one, other = (np.array(record["losses"][name]) for name in ("opbench", "PyTorch"))
    assert len(one) == len(other) == 300 and "H100" in record["gpu"]
    assert one[-1] < 0.3 * one[0], "it learns"
    assert np.abs(one / other - 1).max() <= 0.01, "at each step"
    assert abs(one[-1] / other[-1] - 1) <= 0.001
