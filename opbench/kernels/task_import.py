"""Convert the task files of KernelBench and FlashInfer-Bench to folders of operators."""

from __future__ import annotations

import ast
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from opbench.errors import OpbenchError, UsageError
from opbench.kernels.operator import Operator
from opbench.kernels.task_file import TASK_FILE, TorchTask
from opbench.kernels.torch_task import torch_operator
from opbench.records import from_json

SOURCE_SUFFIX = "_task.py"
"""The task's Python file in an operator's folder; the underscore says that it is no variant."""
EXAMPLE_SIZE = 128
"""The size of an axis that a FlashInfer-Bench definition leaves open."""
TORCH_TYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class ImportedTask:
    """One task file, and the operator that was made from it, or the reason for the failure."""

    file: str
    operator: str
    example: str = ""
    """The first small problem; empty if the task was not imported."""
    reason: str = ""
    """Why it was not imported."""


Done = Callable[[ImportedTask], None]


def import_kernelbench(source: Path, out: Path, on_task: Done) -> list[ImportedTask]:
    """Write a folder for each KernelBench task: a Python file with a class Model and a function get_inputs().

    A task that fails is in the result with a reason. Raises UsageError for an existing folder, or without
    tasks.
    """
    files = [path for path in sorted(_require_folder(source).rglob("*.py")) if _is_kernelbench(path)]
    if not files:
        raise UsageError(f"{source}: has no KernelBench task; it is a Python file with a class Model and get_inputs()")
    tasks = [(TorchTask(str(path)).name, path, path.read_text(encoding="utf-8"), "Model") for path in files]
    return _import(tasks, out, on_task)


def import_flashinfer(source: Path, out: Path, on_task: Done) -> list[ImportedTask]:
    """Write a folder for each FlashInfer-Bench definition: a JSON file with axes, inputs, outputs and a reference.

    A task that fails is in the result with a reason. Raises UsageError for an existing folder, or without
    tasks.
    """
    tasks, refused = [], list[ImportedTask]()
    for path in sorted(_require_folder(source).rglob("*.json")):
        definition = _definition(path)
        if definition is None:
            continue
        name = "torch_" + re.sub(r"\W+", "_", definition.name).lower()
        try:
            tasks.append((name, path, task_text(definition), "run"))
        except UsageError as error:
            refused.append(ImportedTask(str(path), name, reason=error.message))
    if not tasks and not refused:
        raise UsageError(f"{source}: has no FlashInfer-Bench definition; it is a JSON file with axes and a reference")
    for refusal in refused:
        on_task(refusal)
    return [*refused, *_import(tasks, out, on_task)]


@dataclass(frozen=True)
class Axis:
    """An axis in a FlashInfer-Bench definition."""

    type: Literal["const", "var"]
    value: int | None = None


@dataclass(frozen=True)
class DefinedTensor:
    """An input of a definition; its shape is None for a single number."""

    shape: tuple[str, ...] | None
    dtype: str


@dataclass(frozen=True)
class Definition:
    """A FlashInfer-Bench definition."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, DefinedTensor]
    reference: str
    outputs: dict[str, DefinedTensor] = field(default_factory=dict)


def task_text(definition: Definition) -> str:
    """Return the text of a Python file with the definition's reference and a get_inputs().

    Raises UsageError for inputs that cannot be generated.
    """
    lines = [definition.reference.rstrip(), "", "import torch as _torch", ""]
    lines += [f"{name} = {axis.value or EXAMPLE_SIZE}" for name, axis in definition.axes.items()]
    lines += ["", "", "def get_inputs():", "    return ["]
    for name, tensor in definition.inputs.items():
        if tensor.shape is None:
            lines.append("        1.0,")
            continue
        if tensor.dtype not in TORCH_TYPES:
            raise UsageError(
                f"input '{name}' has the type {tensor.dtype}, whose values the definition does not limit; "
                f"imported are {', '.join(TORCH_TYPES)}"
            )
        shape = "".join(f"{axis}, " for axis in tensor.shape)
        lines.append(f"        _torch.randn(({shape}), dtype=_torch.{tensor.dtype}),")
    return "\n".join([*lines, "    ]", ""])


def _definition(path: Path) -> Definition | None:
    try:
        return from_json(Definition, json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _require_folder(source: Path) -> Path:
    if not source.is_dir():
        raise UsageError(f"{source}: no such folder; name the folder of the task files")
    return source


def _is_kernelbench(path: Path) -> bool:
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError, OSError):
        return False
    names = {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return {"Model", "get_inputs"} <= names


def _import(tasks: Sequence[tuple[str, Path, str, str]], out: Path, on_task: Done) -> list[ImportedTask]:
    for name, path, _, _ in tasks:
        if (out / name).exists():
            raise UsageError(
                f"{out / name}: exists already, and {path.name} would replace it; choose another --out DIR"
            )
    out.mkdir(parents=True, exist_ok=True)
    imported = []
    for name, path, text, model in tasks:
        with tempfile.TemporaryDirectory(dir=out, prefix=".import-") as scratch:
            folder = Path(scratch) / name
            folder.mkdir()
            (folder / SOURCE_SUFFIX).write_text(text, encoding="utf-8")
            (folder / TASK_FILE).write_text(f'torch = "{SOURCE_SUFFIX}:{model}"\n', encoding="utf-8")
            task = TorchTask(str(folder / SOURCE_SUFFIX), model, name)
            try:
                task_result = ImportedTask(str(path), name, str(_first_example(task)))
                shutil.move(folder, out / name)
            except UsageError as error:
                task_result = ImportedTask(str(path), name, reason=error.message)
        imported.append(task_result)
        on_task(task_result)
    return imported


def _first_example(task: TorchTask) -> Operator:
    """Run the reference of a task and return its first example; raise UsageError if that fails."""
    operator = torch_operator(task)
    try:
        problem = operator.examples()[0]
        problem.reference_outputs(problem.make_inputs(0))
    except OpbenchError as error:
        raise UsageError(error.message, cause=error) from None
    finally:
        operator.process.stop()
    return problem
