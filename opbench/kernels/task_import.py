"""Convert the task files of KernelBench and FlashInfer-Bench to folders of operators."""

from __future__ import annotations

import ast
import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opbench.errors import OpbenchError, UsageError
from opbench.kernels.flashinfer_task import Definition, IndexLimit, task_text
from opbench.kernels.operator import Operator
from opbench.kernels.task_file import TASK_FILE, TorchTask
from opbench.kernels.torch_task import TaskProcess, torch_operator
from opbench.records import from_json

SOURCE_SUFFIX = "_task.py"
"""The task's Python file in an operator's folder; the underscore says that it is no variant."""


@dataclass(frozen=True)
class ImportedTask:
    """One task file, and the operator that was made from it, or the reason for the failure."""

    file: str
    operator: str
    example: str = ""
    """The first small problem; empty if the task was not imported."""
    reason: str = ""
    """Why it was not imported."""


OnTask = Callable[[ImportedTask], None]


def import_kernelbench(source: Path, out: Path, on_task: OnTask) -> list[ImportedTask]:
    """Write a folder for each KernelBench task: a Python file with a class Model and a function get_inputs().

    A task that fails is in the result with a reason. Raises UsageError for an existing folder, or without
    tasks.
    """
    files = [path for path in sorted(_require_folder(source).rglob("*.py")) if _is_kernelbench(path)]
    if not files:
        raise UsageError(
            f"{source}: is not a KernelBench task; name a Python file with a class Model and a function get_inputs()",
            kind="not-a-task",
            subject=source,
        )
    return _import(
        [
            _TaskSource(TorchTask(str(path)).name, path, "Model", functools.partial(path.read_text, "utf-8"))
            for path in files
        ],
        out,
        on_task,
    )


def import_flashinfer(source: Path, out: Path, on_task: OnTask) -> list[ImportedTask]:
    """Write a folder for each FlashInfer-Bench definition: a JSON file with axes, inputs, outputs and a reference.

    A task that fails is in the result with a reason. Raises UsageError for an existing folder, or without
    tasks.
    """
    definitions = [(path, _definition(path)) for path in sorted(_require_folder(source).rglob("*.json"))]
    tasks = [
        _TaskSource(
            "torch_" + re.sub(r"\W+", "_", definition.name).lower(),
            path,
            "run",
            functools.partial(task_text, definition, _find_limits),
        )
        for path, definition in definitions
        if definition is not None
    ]
    if not tasks:
        raise UsageError(
            f"{source}: is not a FlashInfer-Bench definition; name a JSON file with axes and a reference",
            kind="not-a-task",
            subject=source,
        )
    return _import(tasks, out, on_task)


@dataclass(frozen=True)
class _TaskSource:
    """A task to import; `text` returns the text of its Python file, or raises UsageError."""

    operator: str
    path: Path
    model: str
    text: Callable[[], str]


def _find_limits(text: str, candidates: Mapping[str, Sequence[int]]) -> dict[str, IndexLimit]:
    """Run the reference of a task in a process of its own, and return the limit of each index input."""
    with tempfile.TemporaryDirectory(prefix="opbench-import-") as scratch:
        (file := Path(scratch) / SOURCE_SUFFIX).write_text(text, encoding="utf-8")
        process = TaskProcess(TorchTask(str(file), "run"))
        try:
            tried = {name: np.array(sizes, np.int64) for name, sizes in candidates.items()}
            header, _ = process.ask("limits", {}, tried)
        finally:
            process.stop()
    return {name: from_json(IndexLimit, limit) for name, limit in header["limits"].items()}


def _definition(path: Path) -> Definition | None:
    try:
        return from_json(Definition, json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _require_folder(source: Path) -> Path:
    if not source.is_dir():
        raise UsageError(
            f"{source}: is not a folder; name the folder that contains the task files",
            kind="no-such-folder",
            subject=source,
        )
    return source


def _is_kernelbench(path: Path) -> bool:
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError, OSError):
        return False
    names = {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return {"Model", "get_inputs"} <= names


def _import(tasks: Sequence[_TaskSource], out: Path, on_task: OnTask) -> list[ImportedTask]:
    for source in tasks:
        if (out / source.operator).exists():
            raise UsageError(
                f"{out / source.operator}: exists already, and {source.path.name} would replace it; "
                "choose another --out DIR",
                kind="exists",
                subject=out / source.operator,
            )
    out.mkdir(parents=True, exist_ok=True)
    imported = []
    for source in tasks:
        name = source.operator
        with tempfile.TemporaryDirectory(dir=out, prefix=".import-") as scratch:
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                (folder / SOURCE_SUFFIX).write_text(source.text(), encoding="utf-8")
                (folder / TASK_FILE).write_text(f'torch = "{SOURCE_SUFFIX}:{source.model}"\n', encoding="utf-8")
                example = _first_example(TorchTask(str(folder / SOURCE_SUFFIX), source.model, name))
                task_result = ImportedTask(str(source.path), name, str(example))
                shutil.move(folder, out / name)
            except UsageError as error:
                task_result = ImportedTask(str(source.path), name, reason=error.message)
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
