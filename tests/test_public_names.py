"""What `from opbench import …` gives: a list that does not change by accident, quick to import, with its types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import opbench
from support.common import ROOT

NAMES = {
    "read_run", "run", "check", "figures", "load", "train", "TrainOptions", "RunOptions", "CheckOptions",
    "Operator", "Tensor", "Tolerance", "Arrays", "UNIT_ROUNDOFF", "from_storage", "to_storage", "UsageError",
    "rounded", "magnitude_of_rounded", "matrix_product", "by_pieces", "vector_width",
    "torch_tensor", "torch_tensors", "torch_launch", "torch_activate", "nchw_view",
    "Gradient", "passed_on", "ActivatedProduct",
    "Conv2dGeometry", "Conv3dGeometry", "Pool2dGeometry", "Pool3dGeometry", "AttentionGeometry", "GroupNormGeometry",
    "ConcatGeometry", "Upsample2dGeometry", "UpsampleConcatGeometry", "PagedDecodeGeometry", "MeanLoss",
    "Builder", "Network", "network", "plan", "PlannedNetwork", "from_torch", "from_onnx",
    "__version__",
}  # fmt: skip


def python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert set(opbench.__all__) == NAMES and set(dir(opbench)) >= NAMES
    with pytest.raises(AttributeError, match="no attribute 'Operater'"):
        opbench.Operater  # noqa: B018


def test_a_public_name_stays_what_it_is_whatever_is_imported(tmp_path: Path) -> None:
    """A sub-package of the same name would take its place as soon as anything imports it."""
    code = (
        "import importlib, pkgutil, opbench\n"
        "for module in pkgutil.walk_packages(opbench.__path__, 'opbench.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        try: importlib.import_module(module.name)\n"
        "        except ImportError: pass\n"
        "print(*sorted(n for n in opbench.__all__ if type(getattr(opbench, n)).__name__ == 'module'))"
    )
    assert python(code, tmp_path) == ""


def test_importing_opbench_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = "{'numpy', 'pandas', 'matplotlib', 'rich', 'networkx', 'torch', 'cupy'}"
    seen = f"print(*sorted({heavy} & {{m.split('.')[0] for m in sys.modules}}))"
    assert python(f"import sys, opbench; {seen}", tmp_path) == ""
    assert python(f"import sys; from opbench import Operator; {seen}", tmp_path) == "numpy"


def test_shipped_operators_import_public_names_alone() -> None:
    for path in (ROOT / "variants").glob("*/operator.py"):
        lines = [line for line in path.read_text().splitlines() if "opbench" in line and "import" in line]
        assert [line.split(" import ")[0] for line in lines] == ["from opbench"], path


def test_types_are_seen_from_outside(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="opbench[dev] brings it")
    (tmp_path / "mine.py").write_text(
        "from opbench import Builder, Operator, run\nclass Mine(Operator):\n    n: int = 'x'\nrun(3)\nBuilder(4)\n"
    )
    # The cache of `make lint` holds all but the file itself.
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir",
               ROOT / ".mypy_cache", "mine.py"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [line.split("[")[-1] for line in done.stdout.splitlines()]
    assert found[:3] == ["assignment]", "arg-type]", "arg-type]"], done.stdout
