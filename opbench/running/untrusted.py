"""Refuse targets and options under which untrusted kernels could not be confined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opbench.cage.facts import require
from opbench.errors import UsageError
from opbench.kernels.folders import variant_folders
from opbench.kernels.header import torch_task_of
from opbench.kernels.task_file import TASK_FILE
from opbench.paths import next_command, path_from_here
from opbench.running.options import CaseOptions


def require_confinable(targets: Sequence[str | Path], options: CaseOptions, backend: str, huge: bool = False) -> None:
    """Raise an error if `options.untrusted` is set and the kernels cannot be confined.

    That is EnvironmentFault on a system without a cage, and UsageError for the cuda backend, for problems
    beyond the memory, and for Python files of the user's folders unless `options.trust` allows them.
    """
    if not options.untrusted:
        if options.trust:
            raise UsageError(
                "--trust has an effect only with --untrusted; add --untrusted or remove --trust",
                kind="needs-option",
                subject="--trust",
                allowed="--untrusted",
            )
        return
    if backend != "cpu":
        raise UsageError(
            "--untrusted works on the cpu backend only, and this run uses the cuda backend; check the kernel with: "
            + next_command("check", *targets, variants=options.variants, untrusted=True),
            kind="exclusive",
            subject=("--untrusted", "--backend cuda"),
        )
    if huge:
        raise UsageError(
            "--untrusted cannot check the problems of --huge, which are larger than the memory; remove --huge or "
            "--untrusted",
            kind="exclusive",
            subject=("--untrusted", "--huge"),
        )
    require()
    if not options.trust:
        refuse_python(targets, options.variants)


def refuse_python(targets: Sequence[str | Path], folders: Sequence[Path]) -> None:
    """Raise UsageError if the targets or the folders of variants name Python files of the user."""
    for path in _python_files(targets, folders):
        raise UsageError(
            f"{path_from_here(str(path))}: is Python code, which runs with your rights; remove this file, or add "
            "--trust if you trust it and all Python files of its folder",
            kind="python-file",
            subject=path,
            allowed="--trust",
        )


def _python_files(targets: Sequence[str | Path], folders: Sequence[Path]) -> list[Path]:
    python_targets = [Path(target) for target in targets if Path(target).suffix == ".py"]
    tasks = [task.file for target in targets if (task := torch_task_of(Path(target)))]
    patterns = ("*.py", TASK_FILE)
    in_folders = [
        p for root in folders for f in variant_folders(root) for kind in patterns for p in sorted(f.glob(kind))
    ]
    return [*python_targets, *tasks, *in_folders]
