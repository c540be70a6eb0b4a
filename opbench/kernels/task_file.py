"""Refer to PyTorch tasks: a class or function in a Python file that defines an operator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from opbench.errors import UsageError
from opbench.paths import path_from_here
from opbench.records import read_toml

TASK_PREFIX = "torch:"
"""The prefix of `operator` in a header if it names a PyTorch task."""
TASK_FILE = "operator.toml"
"""The file of an operator's folder that names a PyTorch task, instead of operator.py."""


@dataclass(frozen=True)
class TorchTask:
    """A class or function in a Python file that defines an operator."""

    path: str
    """The absolute path of the Python file."""
    model: str = "Model"
    operator: str = ""
    """The name of the operator; empty if the file's name decides."""

    @property
    def file(self) -> Path:
        """Return the path of the Python file."""
        return Path(self.path)

    @property
    def name(self) -> str:
        """Return the operator's name, such as "torch_softmax" for softmax.py."""
        stem = re.sub(r"\W+", "_", self.file.stem).strip("_").lower()
        return self.operator or f"torch_{stem}" + ("" if self.model == "Model" else f"_{self.model}")

    def __str__(self) -> str:
        return f"{TASK_PREFIX}{self.path}:{self.model}"


def read_reference(text: str, folder: Path, operator: str = "") -> TorchTask:
    """Return the task that a text such as "torch:softmax.py:Model" names; the file is relative to `folder`."""
    file, _, model = text.removeprefix(TASK_PREFIX).partition(":")
    path = (folder / file).resolve()
    if path.suffix != ".py" or (model and not model.isidentifier()):
        raise UsageError(
            f"'{text}' does not name a PyTorch task; write {TASK_PREFIX}FILE.py:Model or {TASK_PREFIX}FILE.py:function",
            kind="not-a-task",
        )
    if not path.is_file():
        raise UsageError(
            f"'{text}': the file {path_from_here(str(path))} does not exist; name a Python file with a class Model",
            kind="no-such-file",
        )
    return TorchTask(str(path), model or "Model", operator)


def task_of_folder(folder: Path) -> TorchTask | None:
    """Return the PyTorch task in the operator.toml of an operator's folder; None if it names no task."""
    path = folder / TASK_FILE
    if not path.is_file():
        return None
    torch_file = read_toml(path).get("torch")
    if not isinstance(torch_file, str):
        raise UsageError(
            f"{path_from_here(str(path))}: has no key 'torch'; write torch = \"_task.py:Model\"",
            kind="missing-key",
            subject="torch",
        )
    return read_reference(torch_file, folder, folder.name)
