"""Read a submission: kernels, their operator and the task; Python code is rejected without --trust."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opbench.errors import Unreadable, UsageError
from opbench.judging.document import FileHash, JudgedVariant, Submission
from opbench.judging.task import Task
from opbench.kernels.folders import Catalog
from opbench.kernels.operator import Operator
from opbench.kernels.task_file import TASK_PREFIX, read_reference
from opbench.kernels.variant import Variant
from opbench.paths import next_command, path_from_here, portable_path, shipped_folder
from opbench.running.targets import is_file, own_variants


@dataclass(frozen=True)
class SubmittedKernels:
    """The submitted kernels of one operator, ready to be judged."""

    catalog: Catalog
    targets: tuple[str, ...]
    variants: tuple[Variant, ...]
    operator: type[Operator]
    named_problems: tuple[Operator, ...]
    """The problems that the task names."""
    task: Task
    record: Submission
    """The submission as the verdict document stores it."""


def read_submission(
    targets: Sequence[str], task: Task, task_file: Path | None, folders: Sequence[Path], trust: bool
) -> SubmittedKernels:
    """Return the submitted variants from files, or shipped variants such as "relu/vec4".

    Raises UsageError for kernels of several operators and, without `trust`, for Python code and for a reference that
    replaces a shipped one.
    """
    catalog = Catalog(folders)
    operator_name, task_operator = task.operator, ""
    if operator_name.startswith(TASK_PREFIX):
        operator_name = task_operator = catalog.add_task(
            read_reference(operator_name, task_file.parent if task_file else Path())
        )
    variants = [variant for target in targets for variant in _variants_of(target, catalog, task_operator)]
    operators = list(dict.fromkeys(variant.operator for variant in variants))
    operator_name = operator_name or operators[0]
    if other_variant := next((variant for variant in variants if variant.operator != operator_name), None):
        raise UsageError(
            f"{other_variant.path}: is a kernel for operator {other_variant.operator}, but the judged operator is "
            f"{operator_name}; judge this file separately: {next_command('judge', other_variant.path)}",
            kind="other-operator",
            subject=other_variant.path,
            value=other_variant.operator,
            allowed=operator_name,
        )
    if not trust:
        _require_no_host_code(variants, catalog, operator_name, task_operator)
    operator = catalog.operator(operator_name)
    named_problems = tuple(operator.parse(problem) for problem in task.problems)
    sources = {str(source.path): source for variant in variants for source in variant.sources}
    record = Submission(
        targets=tuple(targets),
        files=tuple(FileHash(document_path(path), _sha256(source.content)) for path, source in sources.items()),
        variants=tuple(JudgedVariant(v.id, v.precision, v.product) for v in variants),
        operator=operator_name,
        operator_file=file_hash(catalog.operator_file(operator_name)),
        task=task,
        task_file=file_hash(task_file) if task_file else None,
    )
    return SubmittedKernels(catalog, tuple(targets), tuple(variants), operator, named_problems, task, record)


def _variants_of(target: str, catalog: Catalog, task_operator: str) -> Sequence[Variant]:
    """Return the variants of one target.

    `task_operator` is the operator of a PyTorch task, which the header need not name.
    """
    if is_file(target):
        return own_variants(Path(target), catalog, task_operator)
    operator, _, name = target.partition("/")
    if not operator or not name or "/" in name:
        raise UsageError(
            f"'{target}' is not a kernel; name a FILE.cu or a variant such as relu/vec4",
            kind="not-a-kernel-file",
            subject=target,
        )
    return [catalog.variant(operator, name)]


def _require_no_host_code(variants: Sequence[Variant], catalog: Catalog, operator: str, task_operator: str) -> None:
    """Raise UsageError for a variant in Python, and for a reference that the kernel's author may have written.

    `task_operator` is the operator of the PyTorch task that the user names; a header alone may name none.
    """
    for variant in variants:
        if variant.is_library:
            raise UsageError(
                f"{variant.path}: is Python code, which runs with your rights; add --trust if you trust the file",
                kind="host-code",
                subject=variant.path,
                allowed="--trust",
            )
        if variant.torch_task and variant.operator != task_operator:
            task = path_from_here(str(variant.torch_task.file))
            raise UsageError(
                f"{variant.path}: names the PyTorch task {task}, which is Python code; if you wrote this task, add "
                f"--task {task}:{variant.torch_task.model}",
                kind="other-task",
                subject=variant.path,
                value=task,
                allowed="--task",
            )
    shipped_variants = shipped_folder("variants")
    operator_file = catalog.operator_file(operator)
    if (shipped_variants / operator / "operator.py").exists() and not operator_file.resolve().is_relative_to(
        shipped_variants.resolve()
    ):
        raise UsageError(
            f"{operator_file}: replaces the reference of the shipped operator {operator}; add --trust if you trust "
            "the file",
            kind="replaced-reference",
            subject=operator_file,
            value=operator,
            allowed="--trust",
        )


def document_path(path: str | Path) -> str:
    """Return a path as a verdict names it: relative to opbench for shipped files, else to the current folder.

    An empty text stays empty.
    """
    return path_from_here(portable_path(str(Path(path).absolute()))) if path else ""


def file_hash(path: Path) -> FileHash:
    """Return the path and the SHA-256 of a file."""
    try:
        return FileHash(document_path(path), _sha256(path.read_bytes()))
    except OSError as error:
        raise Unreadable(path, error) from None


def _sha256(content: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
