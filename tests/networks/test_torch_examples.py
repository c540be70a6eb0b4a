"""The examples with PyTorch run as they are, on the CPU and small."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.common import ROOT

pytest.importorskip("torch", reason="make torch-tests installs it")


@pytest.mark.parametrize("more", [[], ["--train"]])
def test_a_resnet_is_replaced_and_compiled(more: list[str]) -> None:
    small = ["--device", "cpu", "--batch", "2", "--size", "32", "--width", "4"]
    command = [sys.executable, str(ROOT / "examples" / "resnet18.py"), *small, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = {line.split()[0]: float(line.split()[-3]) for line in done.stdout.splitlines() if " from float64" in line}
    assert set(errors) == {"PyTorch", "opbench.torch.replace", "opbench.torch.compile"}
    assert errors["opbench.torch.compile"] < 10 * errors["PyTorch"] + 1e-6
