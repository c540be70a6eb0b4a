"""Check files without an operator, each in its own worker process: only their memory accesses are judged."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from opbench.adopting.memory_plan import MemoryPlan, MemoryPlans
from opbench.backend.findings import headline
from opbench.checking.memory import MemoryCheckResult
from opbench.errors import EnvironmentFault, OpbenchError, Reason
from opbench.paths import next_command
from opbench.results.result import Result, Status, Verdict, reason_fields
from opbench.running.progress import OnProgress, Progress
from opbench.running.protocol import CheckMemory, OpenBackend
from opbench.running.worker import Worker

NOT_COMPARED = "results were not compared, because a file without an operator has no reference"
MAX_FULL_ACCESSES = 6e7
"""Accesses up to which a run at the file's own sizes is fast enough, at about 30 million per second."""
MAX_FULL_THREADS = 1 << 21
FULL_LIMIT_S = 15.0
MIN_STORED, MAX_FACTORS = 8, 3
"""The fewest written elements, and the most factors of a buffer's size, from which a wrong bound is concluded."""
Note = Callable[[str], None]
OPERATOR_NAME = "memory"
"""The operator's name in these results."""


def run_in_memory_mode(
    files: Sequence[MemoryPlans],
    opening: OpenBackend,
    time_limit_s: float,
    on_progress: OnProgress,
    note: Note,
) -> list[Result]:
    """Check the launches of each file, at the file's own sizes if that is fast; pass assumptions to `note`.

    Raises EnvironmentFault if the backend cannot be opened.
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="opbench-memory-") as folder:
        worker = Worker(opening, Path(folder) / "worker.log")
        try:
            for file_index, plans in enumerate(files):
                on_progress(Progress("check", plans.reduced.name, file_index, len(files)))
                plan, checked = _check_plan(worker, plans, time_limit_s)
                for text in plan.notes:
                    note(text)
                if isinstance(checked, MemoryCheckResult):
                    for text in _bounds_to_check(plan, checked):
                        note(text)
                    for finding in checked.doubtful_findings[1:]:
                        note(f"not judged, as random contents decide it: {headline(finding)}")
                results.append(_judged(plan, opening.backend, checked))
        finally:
            worker.end()
    return results


def _bounds_to_check(plan: MemoryPlan, checked: MemoryCheckResult) -> Iterator[str]:
    """Yield a note for each buffer of unknown size into which the launches may write one element too many."""
    for name, count in checked.stored_elements:
        if elements := product_before(count, plan.sizes):
            yield (
                f"the last element that the launches write into {name} is {name}[{count - 1}]; this is out of bounds "
                f"if {name} has {elements} = {count - 1} elements. Check the bounds with: "
                + next_command("check", plan.path, size=f"{name}={count - 1}")
            )


def product_before(count: int, sizes: Mapping[str, int]) -> str:
    """Return the product of sizes that equals `count - 1`, such as "rows * n"; "" if none does, or if one is `count`.

    Such a count of written elements points to a bound that is wrong by one.
    """
    products = {
        math.prod(sizes[name] for name in names): " * ".join(names)
        for factors in range(MAX_FACTORS, 0, -1)
        for names in itertools.combinations(sizes, factors)
    }
    return products.get(count - 1, "") if count > MIN_STORED and count not in products else ""


def _check_plan(
    worker: Worker, plans: MemoryPlans, time_limit_s: float
) -> tuple[MemoryPlan, MemoryCheckResult | Reason]:
    """Run a plan at full size if it is expected to need few accesses, else at reduced size.

    Returns the plan that ran, with its result or the reason for its failure.
    """
    try:
        checked = worker.ask(CheckMemory(plans.reduced), time_limit_s)
    except EnvironmentFault:
        raise
    except OpbenchError as error:
        return plans.reduced, error.reason
    full = plans.full
    if full is None or checked.unsupported or full.threads > MAX_FULL_THREADS:
        return plans.reduced, checked
    if checked.accesses * plans.growth > MAX_FULL_ACCESSES:
        return plans.reduced, checked
    try:
        return full, worker.ask(CheckMemory(full), min(time_limit_s, FULL_LIMIT_S))
    except EnvironmentFault:
        raise
    except OpbenchError:  # more work than expected: use the reduced run
        return plans.reduced, checked


def _judged(plan: MemoryPlan, backend: str, checked: MemoryCheckResult | Reason) -> Result:
    if isinstance(checked, Reason):
        return _result(plan, backend, "failed", checked)
    if checked.unsupported:
        return _result(plan, backend, "unsupported", checked.unsupported)
    if checked.reason:
        return _result(plan, backend, "wrong", checked.reason, checked)
    doubtful_text = (
        f"; not judged, as random contents decide it: {headline(checked.doubtful_findings[0])}"
        if checked.doubtful_findings
        else ""
    )
    return _result(plan, backend, "no fault found", NOT_COMPARED + doubtful_text, checked)


def _result(
    plan: MemoryPlan, backend: str, status: Status, reason: str | Reason, checked: MemoryCheckResult | None = None
) -> Result:
    verdict = None
    if checked is not None:
        is_right = not checked.reason
        verdict = Verdict(
            is_right, checked.reason, findings=checked.findings, notes=checked.notes, launches=checked.launches
        )
    return Result(
        case=plan.name,
        operator=OPERATOR_NAME,
        variant=plan.path.stem,
        config={},
        problem=plan.name.removeprefix(f"{OPERATOR_NAME}/{plan.path.stem}"),
        axes=dict(plan.sizes),
        precision="f32",
        backend=backend,
        status=status,
        **reason_fields(reason),
        verdict=verdict,
    )
