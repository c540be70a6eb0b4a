"""The tab key: what a real shell is given for words of a command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opbench.graph.passes import PASSES
from opbench.graph.zoo import NETWORKS
from opbench.paths import shipped_suites
from support.common import CATALOG, RELU

SUITES = {path.stem for path in shipped_suites()}


def offered(line: str, cwd: Path) -> set[str]:
    """What bash has to complete the last word of a line with, by the script that README names."""
    words = line.split(" ")
    script = (
        'eval "$(_OPBENCH_COMPLETE=bash_source opbench)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        "compopt() { echo files; }\n"
        '_opbench_completion opbench\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    done = subprocess.run(
        [bash, "-c", script], cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("opbench che", {"check"}),
        ("opbench net ", {"list", "show", "run", "train"}),
        ("opbench check rel", {"relu", "relu_backward"}),
        ("opbench check relu/", {v.id for v in CATALOG.variants("relu")}),
        ("opbench explain relu/gr", {"relu/grid_stride"}),
        ("opbench run lay", {"layers", "layernorm", "layernorm_backward", "layout2d"}),
        ("opbench list cases ", SUITES),
        ("opbench list variants mat", {"matmul"}),
        ("opbench list operators ", set()),
        ("opbench net run ", set(NETWORKS)),
        ("opbench net show unet --disable ", {*PASSES, "prepare_weights"}),
        ("opbench run quick --backend c", {"cuda", "cpu"}),
        ("opbench explain --gpu h2", {"h200"}),
        ("opbench check my_", {"files"}),
        ("opbench compare --thr", {"--threshold"}),
    ],
)
def test_the_tab_key_offers(tmp_path: Path, line: str, wanted: set[str]) -> None:
    found = offered(line, tmp_path)
    assert found == wanted


def test_ones_own_variants_are_offered(tmp_path: Path) -> None:
    (tmp_path / "mine" / "relu").mkdir(parents=True)
    (tmp_path / "mine" / "relu" / "fancy.cu").write_text(RELU)
    assert offered("opbench check --variants mine relu/f", tmp_path) == {"relu/fancy"}
    (tmp_path / "mine" / "relu" / "fancy.cu").write_text("no header")
    assert offered("opbench check --variants mine relu/f", tmp_path) == {"files"}
