"""Judge a submission again with the seed of an earlier verdict, and list the fields that differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opbench.checking import backends
from opbench.errors import UsageError
from opbench.judging.document import VerdictDocument, read_document
from opbench.judging.judge import judge_submission
from opbench.judging.submission import read_submission
from opbench.kernels.task_file import TASK_PREFIX
from opbench.paths import next_command
from opbench.records import to_json
from opbench.running.progress import OnProgress, silent

SKIPPED_FIELDS = ("judged", "seed_given", "settings", "next_step", "submission.targets", "submission.task_file")
"""Fields that do not decide a verdict, such as the machine, the time of day and the paths of the kernels."""
TIME_SECTIONS = ("timed", "compared")
"""Sections with times, which are compared by their intervals."""
ABSENT = "absent"
"""The value of a field that only one of the verdicts has."""


@dataclass(frozen=True)
class Difference:
    """One field that differs between two verdicts."""

    field: str
    """The path in the document, such as "right.cases"."""
    stored: Any
    now: Any


@dataclass(frozen=True)
class Verification:
    """The differences between an earlier verdict and the new one."""

    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


def verify(
    path: Path,
    targets: Sequence[str] = (),
    *,
    trust: bool = False,
    no_cage: bool = False,
    on_progress: OnProgress = silent,
) -> Verification:
    """Judge the kernels of an earlier verdict again and return the differences.

    `targets` replace the kernels that the verdict names. Raises UsageError for a file that is no verdict, or if
    a kernel is missing. A verdict may come from anyone, so one that makes Python code run needs `trust`, and one
    whose kernels run without a cage needs `no_cage`.
    """
    stored_verdict = read_document(path)
    needs = {"trust": _python_code_in(stored_verdict), "no_cage": _uncaged_kernels_in(stored_verdict)}
    given = {"trust": trust, "no_cage": no_cage}
    if missing := [name for name, reason in needs.items() if reason and not given[name]]:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        options: dict[str, object] = {name: bool(reason) for name, reason in needs.items()}
        command = next_command("verify", path, *targets, variants=(), **options)
        raise UsageError(
            f"{path}: this verdict {needs[missing[0]]}; add {flags} if you trust the author of the verdict: {command}",
            kind="untrusted-verdict",
            subject=path,
            allowed=flags,
        )
    new_verdict = judge_again(stored_verdict, targets or stored_verdict.submission.targets, on_progress)
    return compare(stored_verdict, new_verdict)


def _python_code_in(stored: VerdictDocument) -> str:
    """Return what makes a verdict run Python code with the user's rights; "" for nothing."""
    if stored.settings.trust:
        return "was made with --trust, which loads Python files"
    if stored.submission.task.operator.startswith(TASK_PREFIX):
        return f"names the PyTorch task {stored.submission.task.operator}, which is Python code"
    if stored.settings.variants:
        return f"names the folder {stored.settings.variants[0]}, whose operators are Python code"
    return ""


def _uncaged_kernels_in(stored: VerdictDocument) -> str:
    """Return what makes the kernels of a verdict run on the CPU without a cage; "" if they run in the cage."""
    return "was made with --no-cage" if stored.settings.no_cage else ""


def judge_again(stored: VerdictDocument, targets: Sequence[str], on_progress: OnProgress = silent) -> VerdictDocument:
    """Judge kernels with the seed, task and settings of an earlier verdict and return the new verdict."""
    settings, submission = stored.settings, stored.submission
    for target in targets:
        if Path(target).suffix == ".cu" and not Path(target).is_file():
            raise UsageError(
                f"{target}: the file does not exist; name the kernel: opbench verify VERDICT.json KERNEL.cu",
                kind="no-such-file",
                subject=target,
            )
    folders = [Path(folder) for folder in settings.variants]
    submitted = read_submission(targets, submission.task, None, folders, settings.trust)
    backend = settings.backend if settings.backend == "cpu" else backends.resolve_name("auto")
    return judge_submission(submitted, replace(settings, backend=backend), stored.seed, True, on_progress)


def compare(stored_verdict: VerdictDocument, new_verdict: VerdictDocument) -> Verification:
    """Return the fields that differ between two verdicts on the same submission."""
    notes = []
    skipped_fields = set(SKIPPED_FIELDS)
    if stored_verdict.settings.backend != new_verdict.settings.backend:
        notes.append("times are not compared: this machine has no GPU that opbench can use (opbench doctor)")
        skipped_fields |= {*TIME_SECTIONS, "cases", "lacking", "reason", "right"}
    differences = _differences("", to_json(stored_verdict), to_json(new_verdict), skipped_fields)
    return Verification(tuple(differences), tuple(notes))


def _differences(path: str, stored: Any, now: Any, skipped: Collection[str]) -> Iterator[Difference]:
    """Yield the fields that differ, except those with a path in `skipped`.

    Two measured times are equal if their intervals overlap.
    """
    if path in skipped:
        return
    if isinstance(stored, dict) and isinstance(now, dict):
        if _is_time(stored) and _is_time(now):
            yield from _time_difference(path, stored, now)
            return
        for key in dict.fromkeys((*stored, *now)):
            key_path = f"{path}.{key}" if path else key
            yield from _differences(key_path, stored.get(key, ABSENT), now.get(key, ABSENT), skipped)
    elif isinstance(stored, list) and isinstance(now, list):
        if len(stored) != len(now):
            yield Difference(f"{path}, number", len(stored), len(now))
        for index, (stored_element, new_element) in enumerate(zip(stored, now, strict=False)):
            yield from _differences(f"{path}[{index}]", stored_element, new_element, skipped)
    elif stored != now and not (path.endswith(".summary") and path.partition(".")[0] in TIME_SECTIONS):
        yield Difference(path, stored, now)


def _is_time(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a measured time with its interval."""
    return {"median_s", "low_s", "high_s"} <= value.keys()


def _time_difference(path: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences of two measured times; times are equal if their intervals overlap."""
    for key in ("case", "problem", "kind", "gpu"):
        if stored.get(key) != now.get(key):
            yield Difference(f"{path}.{key}", stored.get(key), now.get(key))
    if stored["low_s"] > now["high_s"] or now["low_s"] > stored["high_s"]:
        yield Difference(f"{path}.median_s", stored["median_s"], now["median_s"])
