"""A user's own folder of variants and operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from opbench.paths import shipped_folder
from support.checks.command_line import own_folder, refused
from support.common import RELU, Cli


def test_an_operators_folder_may_be_the_working_folder(cli: Cli, tmp_path: Path) -> None:
    """Its operator.py must not stand in for the standard library's module of that name in the worker."""
    folder = own_folder(tmp_path / "mine", mine=RELU.replace('operator = "relu"\n// ', "")) / "relu"
    (folder / "operator.py").write_text((shipped_folder("variants") / "relu" / "operator.py").read_text())
    script = Path(sys.executable).with_name("opbench")
    args = [str(script), "check", "relu/mine", "--variants", "..", "--random", "0"]
    done = subprocess.run(args, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("relu/mine  10 right")


OPERATOR = '''\
"""negate: out = -x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opbench import Operator, Tolerance


@dataclass(frozen=True, kw_only=True)
class Negate(Operator):
    """out[i] = -x[i]."""

    n: int
    inputs = {"x": "n"}
    outputs = {"out": "n"}

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Minus x."""
        return -x

    def tolerance(self, precision: str) -> Tolerance:
        """Exact: nothing is rounded."""
        return Tolerance(0.0, 0.0)

    @classmethod
    def examples(cls) -> Sequence[Negate]:
        """One and a prime."""
        return [cls(n=1), cls(n=257)]
'''


def test_a_folder_of_ones_own_adds_variants_and_operators(cli: Cli, tmp_path: Path) -> None:
    mine = own_folder(tmp_path / "mine", fancy=RELU.replace('operator = "relu"\n// ', ""))
    (mine / "negate").mkdir()
    (mine / "negate" / "operator.py").write_text(OPERATOR)
    negate = RELU.replace('operator = "relu"\n// ', "").replace("x[i] > 0.0f ? x[i] : 0.0f", "-x[i]")
    (mine / "negate" / "plain.cu").write_text(negate)
    assert "negate" in cli("list", "--variants", "mine").stdout
    assert "relu/fancy" in cli("list", "variants", "relu", "--variants", "mine").stdout
    done = cli("check", "negate", "relu/fancy", "--variants", "mine", "--random", "1")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["negate/plain", "relu/fancy"]
    suite = tmp_path / "s.toml"
    suite.write_text('[[run]]\noperator = "negate"\nproblems = [{ n = 5 }]\n')
    assert cli("run", "s.toml", "--variants", "mine", "--backend", "cpu", "--out", "out").returncode == 0
    refused(cli("run", "s.toml", "--backend", "cpu"), 2, "s.toml: unknown operator 'negate'")


def test_a_folder_that_would_be_left_out_in_silence_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(
        cli("list", "--variants", "empty"),
        2,
        "empty: contains no variants; name a folder with one subfolder per operator",
    )
    mine = own_folder(tmp_path / "mine", fancy=RELU)
    refused(cli("list", "--variants", mine / "relu"), 2, "contains no variants")
    (mine / "relu").rename(mine / "relo")
    refused(
        cli("check", "relu", "--variants", mine),
        2,
        "relo: unknown operator 'relo'; did you mean 'relu'?",
        "relo/operator.py",
    )
    (mine / "relo").rename(mine / "relu")
    (mine / "relu" / "fancy.py").write_text('"""x.\n\n/// opbench\ntitle = "x"\n///\n\nWhy.\n"""\n')
    refused(
        cli("list", "variants", "relu", "--variants", mine),
        2,
        "fancy.py",
        "fancy.cu",
        "has variant 'relu/fancy' already",
    )


def test_the_page_of_a_run_shows_the_source_of_an_operator_of_ones_own(cli: Cli, tmp_path: Path) -> None:
    negate = tmp_path / "mine" / "negate"
    negate.mkdir(parents=True)
    (negate / "operator.py").write_text(OPERATOR.replace("cls(n=257)", "cls(n=4099)"))
    kernel = RELU.replace('operator = "relu"\n// ', "").replace("x[i] > 0.0f ? x[i] : 0.0f", "-x[i]")
    strided = kernel.replace("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x * gridDim.x + blockIdx.x")
    assert strided != kernel
    (negate / "strided.cu").write_text(strided)
    run = ("run", "negate", "--variants", "mine", "--backend", "cpu", "--case", "*n=4099*", "--out", "out")
    assert cli(*run).returncode == 0
    page = tmp_path / "out" / "report.html"
    assert "of all passes" in page.read_text()
    for option, shown in (((), False), (("--variants", "mine"), True)):
        assert cli("report", "out", *option).returncode == 0
        assert ("of all passes" in page.read_text()) == shown
