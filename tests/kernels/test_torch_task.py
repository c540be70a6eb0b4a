"""Operators whose reference is a PyTorch module or function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opbench.errors import EnvironmentFault, UsageError
from opbench.kernels.folders import Catalog
from opbench.kernels.task_file import TASK_FILE, TorchTask, read_reference
from opbench.kernels.task_import import import_flashinfer, import_kernelbench
from opbench.kernels.torch_task import TorchOperator, torch_operator

TASKS = Path(__file__).parent.parent / "tasks"
DEFINITION = """{"name": "rows_times", "op_type": "gemm",
 "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": 512}},
 "inputs": {"A": {"shape": ["M", "K"], "dtype": "float16"}, "B": {"shape": ["K"], "dtype": "float16"}},
 "outputs": {"C": {"shape": ["M"], "dtype": "float16"}}, "reference": "def run(A, B):\\n    return A @ B\\n"}"""
TASK = "import torch\n{}\ndef get_inputs():\n    return [torch.ones(9)]"
INDICES = DEFINITION.replace("rows_times", "pages").replace("float16", "int32")


def operator(name: str) -> type[TorchOperator]:
    pytest.importorskip("torch")
    return torch_operator(read_reference(name, TASKS))


def test_parameters_become_inputs_and_numbers_of_the_file_become_axes() -> None:
    linear = operator("torch:linear.py:Model")
    assert linear.facts.axes == {"batch": 128, "features": 512, "outputs_count": 256}
    problem = linear.from_axes({"batch": 2, "features": 3, "outputs_count": 5})
    assert [(t.name, t.shape) for t in problem.input_tensors()] == [
        ("x", (2, 3)),
        ("layer_weight", (5, 3)),
        ("layer_bias", (5,)),
    ]
    assert [(t.name, t.shape) for t in problem.output_tensors()] == [("out", (2, 5))]
    assert problem.scope["out_size"] == 10
    inputs = problem.make_inputs(1)
    found = problem.reference_outputs(inputs)["out"]
    x, weight, bias = (inputs[name].astype(np.float64) for name in ("x", "layer_weight", "layer_bias"))
    assert found.dtype == np.float64
    assert np.allclose(found, x @ weight.T + bias, rtol=1e-14, atol=1e-14)


def test_special_inputs_and_exact_whole_numbers_follow_from_float32_runs() -> None:
    softmax, product = operator("torch:rows.py:softmax"), operator("torch:products.py:matmul")
    assert {"far", "masked"} <= set(softmax.special_inputs["x"]) and "infinite" not in softmax.special_inputs["x"]
    assert not softmax.integers_exact
    assert product.integers_exact
    problem = product.from_axes({"m": 2, "n": 3, "k": 100})
    assert problem.reduction() == 200
    assert problem.tolerance("f32").elementwise >= 8 * 2.0**-24 * 100**0.5


def test_labels_are_drawn_by_the_task() -> None:
    labels = operator("torch:labels.py:Model")
    assert labels.facts.own == ("labels",)
    problem = labels.from_axes({"rows": 50, "classes": 3})
    drawn = problem.make_inputs(5)["labels"]
    assert drawn.dtype == np.int32 and set(np.unique(drawn)) == {0, 1, 2}
    assert not np.array_equal(drawn, problem.make_inputs(6)["labels"])


def test_numbers_within_get_inputs_are_axes_and_a_stride_is_a_constant() -> None:
    pool = operator("torch:pool.py:Model")
    assert pool.facts.axes == {"size_16": 16, "size_32": 32, "size_64": 64}
    assert pool.facts.constants == {"kernel": 2}


def test_sizes_that_must_be_equal_have_one_axis(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    task = tmp_path / "square.py"
    task.write_text("import torch\nn = 64\nm = 64\n\ndef f(x):\n    return x + x.T\n\ndef get_inputs():\n"
                    "    return [torch.rand(n, m)]\n")  # fmt: skip
    found = torch_operator(TorchTask(str(task), "f"))
    assert found.facts.axes == {"n": 64} and found.facts.follow == {"m": "n"}
    assert found.from_axes({"n": 3}).input_tensors()[0].shape == (3, 3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TASK.format("def f(x):\n    return torch.dropout(x, 0.5, True)"), 1),
        (TASK.format("def f(x):\n    return x.nothing()"), 3),
        (TASK.format("def g(x):\n    return x"), 1),
        ("def f(x):\n    return (", 2),
    ],
    ids=["random", "fails", "no-function", "syntax"],
)
def test_a_bad_task_is_an_error_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    pytest.importorskip("torch")
    task = tmp_path / "bad.py"
    task.write_text(text)
    with pytest.raises(UsageError) as caught:
        torch_operator(TorchTask(str(task), "f"))
    assert caught.value.location is not None and caught.value.location.line == line


def test_a_bad_task_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    task, started, start = tmp_path / "bad.py", list[subprocess.Popen[bytes]](), subprocess.Popen
    task.write_text(TASK.format("def f(x):\n    return x.nothing()"))
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **options: started.append(start(*args, **options)) or started[-1]
    )
    with pytest.raises(UsageError):
        torch_operator(TorchTask(str(task), "f"))
    assert started and started[0].poll() is not None


def test_without_pytorch_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    task = tmp_path / "relu.py"
    task.write_text("import torch\n")
    with pytest.raises(EnvironmentFault, match="pip install"):
        torch_operator(TorchTask(str(task)))


@pytest.mark.parametrize("name", ["torch:absent.py:Model", "torch:linear.txt:Model", "torch:linear.py:not a name"])
def test_a_reference_that_names_no_task_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        read_reference(name, TASKS)


def test_kernelbench_tasks_become_folders(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (source := tmp_path / "level1").mkdir()
    (source / "1_Linear.py").write_text((TASKS / "linear.py").read_text())
    (source / "2_Broken.py").write_text((TASKS / "linear.py").read_text().replace("self.layer(x)", "self.nothing"))
    (source / "helper.py").write_text("import os\n")
    done = import_kernelbench(source, tmp_path / "out", lambda task: None)
    assert [(task.operator, bool(task.reason)) for task in done] == [
        ("torch_1_linear", False),
        ("torch_2_broken", True),
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["torch_1_linear"]
    assert (tmp_path / "out" / "torch_1_linear" / TASK_FILE).is_file()
    catalog = Catalog([tmp_path / "out"])
    assert "torch_1_linear" in catalog.operator_names()
    assert catalog.operator("torch_1_linear").examples()
    with pytest.raises(UsageError):
        import_kernelbench(source, tmp_path / "out", lambda task: None)


def test_flashinfer_definitions_become_folders(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (source := tmp_path / "definitions").mkdir()
    (source / "rows_times.json").write_text(DEFINITION)
    (source / "pages.json").write_text(INDICES)
    (source / "other.json").write_text("[]")
    done = import_flashinfer(source, tmp_path / "out", lambda task: None)
    assert {task.operator: bool(task.reason) for task in done} == {"torch_pages": True, "torch_rows_times": False}
    problem = Catalog([tmp_path / "out"]).operator("torch_rows_times").from_axes({"M": 2, "K": 5})
    assert [(t.name, t.shape, t.dtype) for t in (*problem.input_tensors(), *problem.output_tensors())] == [
        ("A", (2, 5), "f16"),
        ("B", (5,), "f16"),
        ("out", (2,), "f16"),
    ]
