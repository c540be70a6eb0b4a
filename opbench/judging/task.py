"""A task: a TOML file with the operator, the problems and the limits for a submitted kernel."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from opbench.errors import UsageError, unknown_name
from opbench.kernels.task_file import read_reference
from opbench.records import from_json, read_toml
from opbench.source.precision import PRECISION_CLASSES


@dataclass(frozen=True)
class ErrorLimits:
    """Limits on errors that are stricter than those of the operator; None for no stricter limit."""

    elementwise: float | None = None
    """Largest |out - reference| divided by the magnitude of the terms."""
    norm: float | None = None
    """Largest norm of the error divided by the norm of the reference."""


@dataclass(frozen=True)
class Limits:
    """Limits on times and on the speedup; None for no limit."""

    time_s: float | None = None
    """Largest median GPU time of the fastest config, in seconds, on every problem."""
    speedup: float | None = None
    """Least speedup over the library, on every problem."""
    check_s: float | None = None
    """Longest time of one case's check, in seconds."""


@dataclass(frozen=True)
class Task:
    """The requirements that a submitted kernel must satisfy."""

    operator: str = ""
    """The operator, or "torch:FILE.py:Model" for a PyTorch task; empty for the operator of the kernel's header."""
    problems: tuple[str, ...] = ()
    """Problems such as "(rows=4096,cols=1024)": they are timed; other sizes are checked, too."""
    precision: str = ""
    """The lowest precision class that the kernel may claim; empty for any."""
    tolerance: ErrorLimits = ErrorLimits()
    limits: Limits = Limits()


def read_task(path: Path) -> Task:
    """Read a task from a TOML file, or from a PyTorch file such as softmax.py or softmax.py:Model.

    Raises UsageError for an unknown key or a value that is not allowed.
    """
    if path.name.partition(":")[0].endswith(".py"):
        return Task(operator=str(read_reference(str(path), Path())))
    table = read_toml(path)
    try:
        _require_keys(table, Task, "key")
        for name, record_type in (("tolerance", ErrorLimits), ("limits", Limits)):
            if isinstance(limits_table := table.get(name), dict):
                _require_keys(limits_table, record_type, f"key of [{name}]")
        task = from_json(Task, table)
    except (ValueError, UsageError) as error:
        raise UsageError(f"{path}: {error}", cause=error) from None
    if task.precision and task.precision not in PRECISION_CLASSES:
        raise UsageError(
            f"{path}: {unknown_name('precision', task.precision, PRECISION_CLASSES)}",
            cause=UsageError(unknown_name("precision", task.precision, PRECISION_CLASSES)),
        )
    for limits in (task.tolerance, task.limits):
        for member in fields(limits):
            value = getattr(limits, member.name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(
                    f"{path}: {member.name} = {value:g} is not allowed; write a number > 0",
                    kind="not-allowed",
                    subject=member.name,
                    value=value,
                    allowed=0,
                )
    return task


def _require_keys(table: dict[str, Any], record_type: type, key_text: str) -> None:
    """Raise UsageError for a key that is no field of a record; `key_text` names the kind of key in the message."""
    allowed_keys = [member.name for member in fields(record_type)]
    for key in table:
        if key not in allowed_keys:
            raise UsageError(unknown_name(key_text, key, allowed_keys))
